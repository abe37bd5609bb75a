package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/truora/minidyn/server"

	"github.com/sqsworker/sqsworker/idempotency"
)

const testTable = "idempotency"

// dynamo is a DynamoDB in process: minidyn, which is not ours, behind a thin front that answers what it doesn't know (time to
// live, a table's status and attributes), mends what it gets wrong (REMOVE), plays faults and counts. Its Do runs in the caller's goroutine, so that it works in a bubble.
type dynamo struct {
	mu     sync.Mutex
	next   *server.Server
	ttl    map[string]string // by table: the attribute
	types  map[string]any    // by table: its AttributeDefinitions
	calls  map[string]int    // by operation
	faults []*fault

	oldOnly bool // sends no item along with a failed condition, as some servers do
}

// fault is something that goes wrong with calls.
type fault struct {
	op    string // "" is every operation
	match func(body string) bool
	times int // 0 is always

	dropBefore, dropAfter bool
	code                  string // answers with this error
	body                  string // and this body instead of {"__type": code}
	stall                 bool   // no answer until the context ends
	hold, holdAfter       time.Duration
	then                  func() // once it was applied, before the answer
}

var errBroken = errors.New("connection reset by peer")

func newDynamo() *dynamo {
	return &dynamo{next: server.NewServer(), ttl: map[string]string{}, types: map[string]any{}, calls: map[string]int{}}
}

// inject adds a fault until remove.
func (d *dynamo) inject(f fault) (remove func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &f
	d.faults = append(d.faults, p)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i, have := range d.faults {
			if have == p {
				d.faults = append(d.faults[:i], d.faults[i+1:]...)
				return
			}
		}
	}
}

func (d *dynamo) fault(op, body string) fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range d.faults {
		if (f.op != "" && f.op != op) || (f.match != nil && !f.match(body)) {
			continue
		}
		if f.times > 0 {
			if f.times--; f.times == 0 {
				d.faults = append(d.faults[:i:i], d.faults[i+1:]...)
			}
		}
		return *f
	}
	return fault{}
}

func (d *dynamo) count(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[op]
}

// writes counts the calls that write.
func (d *dynamo) writes() int { return d.count("UpdateItem") + d.count("TransactWriteItems") }

// Do implements the SDK's HTTPClient.
func (d *dynamo) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	target := r.Header.Get("X-Amz-Target")
	op := target[strings.LastIndexByte(target, '.')+1:]
	d.mu.Lock()
	d.calls[op]++
	d.mu.Unlock()
	f := d.fault(op, string(body))
	if f.hold > 0 {
		select {
		case <-time.After(f.hold):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if f.stall {
		<-r.Context().Done()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if f.dropBefore {
		return nil, errBroken
	}
	status, answer := d.answer(op, body, f)
	if f.then != nil {
		f.then()
	}
	time.Sleep(f.holdAfter)
	if f.dropAfter {
		return nil, errBroken
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body: io.NopCloser(bytes.NewReader(answer)), ContentLength: int64(len(answer)), Request: r}, nil
}

// ServeHTTP is Do over a socket.
func (d *dynamo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	res, err := d.Do(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	time.Sleep(2 * time.Millisecond) // the SDK can lose an answer that comes within microseconds
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, res.Body)
}

func (d *dynamo) answer(op string, body []byte, f fault) (int, []byte) {
	if f.code != "" {
		answer := f.body
		if answer == "" {
			answer = `{"__type":"com.amazonaws.dynamodb.v20120810#` + f.code + `","message":"injected"}`
		}
		return http.StatusBadRequest, []byte(answer)
	}
	var in struct {
		TableName               string
		AttributeDefinitions    any
		TimeToLiveSpecification struct {
			AttributeName string
			Enabled       bool
		}
	}
	_ = json.Unmarshal(body, &in)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch op {
	case "UpdateTimeToLive":
		d.ttl[in.TableName] = ""
		if in.TimeToLiveSpecification.Enabled {
			d.ttl[in.TableName] = in.TimeToLiveSpecification.AttributeName
		}
		return http.StatusOK, []byte(`{}`)
	case "DescribeTimeToLive":
		if name := d.ttl[in.TableName]; name != "" {
			return http.StatusOK, []byte(`{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"` + name + `"}}`)
		}
		return http.StatusOK, []byte(`{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}}`)
	}
	status, answer := d.ask(op, body)
	if op == "CreateTable" && status == http.StatusOK {
		d.types[in.TableName] = in.AttributeDefinitions
	}
	var removed []string
	if status == http.StatusOK {
		removed = d.remove(op, body)
	}
	if op == "DescribeTable" || d.oldOnly || len(removed) > 0 {
		answer = rewrite(answer, d.oldOnly, removed, d.types[in.TableName])
	}
	return status, answer
}

func (d *dynamo) ask(op string, body []byte) (int, []byte) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+op)
	d.next.ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

// item is an item as it is, nil if there is none, and setItem puts it there; both without a call being made.
func (d *dynamo) item(table, id string) map[string]any {
	d.mu.Lock()
	defer d.mu.Unlock()
	in, _ := json.Marshal(map[string]any{"TableName": table, "Key": map[string]any{"id": map[string]any{"S": id}}})
	_, answer := d.ask("GetItem", in)
	var got struct{ Item map[string]any }
	_ = json.Unmarshal(answer, &got)
	return got.Item
}

func (d *dynamo) setItem(table, id string, item map[string]any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op, in := "PutItem", map[string]any{"TableName": table, "Item": item}
	if len(item) == 0 {
		op, in = "DeleteItem", map[string]any{"TableName": table, "Key": map[string]any{"id": map[string]any{"S": id}}}
	}
	body, _ := json.Marshal(in)
	d.ask(op, body)
}

// remove does what minidyn understands and forgets: it parses a REMOVE clause after SET, but leaves the attributes in the item.
func (d *dynamo) remove(op string, body []byte) (removed []string) {
	type update struct {
		TableName, UpdateExpression string
		Key                         map[string]any
		ExpressionAttributeNames    map[string]string
	}
	var in struct {
		update
		TransactItems []struct{ Update *update }
	}
	_ = json.Unmarshal(body, &in)
	updates := []*update{&in.update}
	for _, item := range in.TransactItems {
		updates = append(updates, item.Update)
	}
	if op != "UpdateItem" && op != "TransactWriteItems" {
		return nil
	}
	for _, u := range updates {
		if u == nil {
			continue
		}
		_, names, _ := strings.Cut(u.UpdateExpression, " REMOVE ")
		if names == "" {
			continue
		}
		key, _ := json.Marshal(map[string]any{"TableName": u.TableName, "Key": u.Key})
		_, answer := d.ask("GetItem", key)
		var got struct{ Item map[string]any }
		_ = json.Unmarshal(answer, &got)
		for _, name := range strings.Split(names, ",") {
			name = u.ExpressionAttributeNames[strings.TrimSpace(name)]
			delete(got.Item, name)
			removed = append(removed, name)
		}
		put, _ := json.Marshal(map[string]any{"TableName": u.TableName, "Item": got.Item})
		d.ask("PutItem", put)
	}
	return removed
}

// rewrite sets a table's status and attributes, takes items away from failed conditions, and removed attributes from the new item.
func rewrite(answer []byte, withoutItem bool, removed []string, attributes any) []byte {
	var doc map[string]any
	if json.Unmarshal(answer, &doc) != nil {
		return answer
	}
	if item, ok := doc["Attributes"].(map[string]any); ok {
		for _, name := range removed {
			delete(item, name)
		}
	}
	if table, ok := doc["Table"].(map[string]any); ok {
		table["TableStatus"], table["AttributeDefinitions"] = "ACTIVE", attributes
	}
	if _, failed := doc["__type"]; failed && withoutItem {
		delete(doc, "Item")
		reasons, _ := doc["CancellationReasons"].([]any)
		for _, reason := range reasons {
			delete(reason.(map[string]any), "Item")
		}
	}
	out, _ := json.Marshal(doc)
	return out
}

// client is a real SDK client of it.
func (d *dynamo) client(optFns ...func(*dynamodb.Options)) *dynamodb.Client {
	o := dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://dynamodb.test"), HTTPClient: d,
		Credentials: static("id", "secret", ""),
	}
	return dynamodb.New(o, optFns...)
}

// newTable makes a table and returns a store on it.
func (d *dynamo) newTable(t testing.TB, table string, optFns ...func(*dynamodb.Options)) *idempotency.DynamoStore {
	t.Helper()
	c := d.client(optFns...)
	if err := idempotency.CreateTable(context.Background(), c, table, idempotency.DynamoConfig{}); err != nil {
		t.Fatal(err)
	}
	store, err := idempotency.NewDynamoStore(c, table, idempotency.DynamoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	clear(d.calls)
	d.mu.Unlock()
	return store
}

func static(id, secret, token string) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: token}, nil
	})
}
