package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sqsworker/sqsworker/idempotency"
)

// reader is a store whose records a test can look at.
type reader interface {
	idempotency.Store
	Get(context.Context, string) (idempotency.Record, error)
}

// endpointVariable names another DynamoDB to run the conformance tests against, with its URL; "aws" is AWS itself, with what the
// environment says of Region and credentials.
const endpointVariable = "SQSWORKER_DYNAMODB_ENDPOINT"

// noTransactionsVariable says that the server at the endpoint has none.
const noTransactionsVariable = "SQSWORKER_DYNAMODB_NO_TRANSACTIONS"

func TestStoresDoTheSame(t *testing.T) {
	stores := map[string]func(t *testing.T) reader{
		"memory": func(t *testing.T) reader {
			return &idempotency.MemoryStore{Transact: func(context.Context, []types.TransactWriteItem) error { return nil }}
		},
		"minidyn": func(t *testing.T) reader { return newDynamo().newTable(t, testTable) },
		"minidyn without items in failures": func(t *testing.T) reader {
			d := newDynamo()
			d.oldOnly = true
			return d.newTable(t, testTable)
		},
		"minidyn with a sort key": func(t *testing.T) reader {
			c, cfg := newDynamo().client(), idempotency.DynamoConfig{PartitionKey: "pk", SortKey: "sk"}
			if err := idempotency.CreateTable(t.Context(), c, testTable, cfg); err != nil {
				t.Fatal(err)
			}
			s, err := idempotency.NewDynamoStore(c, testTable, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			for claim, test := range conformance {
				t.Run(claim, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { test(t, open(t), "k") })
				})
			}
		})
	}
}

func TestStoresDoTheSameAtAnEndpoint(t *testing.T) {
	endpoint := os.Getenv(endpointVariable)
	if endpoint == "" {
		t.Skipf("%s names no DynamoDB endpoint", endpointVariable)
	}
	o := dynamodb.Options{Region: "us-east-1", Credentials: static("id", "secret", "")}
	if endpoint == "aws" {
		o.Region = os.Getenv("AWS_REGION")
		o.Credentials = static(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN"))
	} else {
		o.BaseEndpoint = &endpoint
	}
	c := dynamodb.New(o)
	table := fmt.Sprintf("idempotency-test-%d", time.Now().UnixNano())
	if _, err := c.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: &table, BillingMode: types.BillingModePayPerRequest,
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}},
	}); err != nil {
		t.Fatal(err)
	}
	defer c.DeleteTable(context.Background(), &dynamodb.DeleteTableInput{TableName: &table})
	if err := dynamodb.NewTableExistsWaiter(c).Wait(t.Context(), &dynamodb.DescribeTableInput{TableName: &table}, time.Minute); err != nil {
		t.Logf("waiting for the table: %v", err) // some servers never say that it is active
	}
	store, err := idempotency.NewDynamoStore(c, table, idempotency.DynamoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for claim, test := range conformance {
		t.Run(claim, func(t *testing.T) {
			if strings.Contains(claim, "transaction") && os.Getenv(noTransactionsVariable) != "" {
				t.Skip("the server has no transactions")
			}
			test(t, store, claim)
		})
	}
}

// conformance is what every store must do. Nothing in it waits: leases and expiries lie in the past or the future.
var conformance = map[string]func(t *testing.T, s reader, id string){
	"a fresh record is claimed":                                 freshRecord,
	"a held record refuses others":                              heldRecord,
	"a lease that is over by more than the skew is taken":       lapsedRecord,
	"a completed record is never claimed within its retention":  completedRecord,
	"an expired record is claimed although it is still there":   expiredRecord,
	"an overtaken owner changes nothing":                        overtaken,
	"a released record is claimed at once and counts are right": releasedRecord,
	"a result that is too large leaves its size":                omittedResult,
	"of a hundred who claim at once one does":                   race,
	"a transaction completes or is refused":                     transaction,
}

const skew = 2 * time.Second

func request(id, owner string, lease time.Duration) idempotency.AcquireRequest {
	now := time.Now()
	return idempotency.AcquireRequest{ID: id, Owner: owner, Payload: "hash of " + owner, Lease: now.Add(lease), Expires: now.Add(time.Hour), Skew: skew}
}

func mustAcquire(t *testing.T, s reader, r idempotency.AcquireRequest) idempotency.Record {
	t.Helper()
	got, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire by %s: %v", r.Owner, err)
	}
	return got
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustRefuse returns the record that refused.
func mustRefuse(t *testing.T, err error) idempotency.Record {
	t.Helper()
	var refused *idempotency.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a RefusedError", err)
	}
	return refused.Record
}

func get(t *testing.T, s reader, id string) idempotency.Record {
	t.Helper()
	r, err := s.Get(t.Context(), id)
	must(t, err)
	return r
}

func done(result string) idempotency.Completion {
	return idempotency.Completion{Result: []byte(result), Expires: time.Now().Add(time.Hour)}
}

func freshRecord(t *testing.T, s reader, id string) {
	before := time.Now().UnixMilli()
	req := request(id, "a", time.Minute)
	r := mustAcquire(t, s, req)
	if r.ID != id || r.Status != idempotency.InProgress || r.Owner != "a" || r.Payload != "hash of a" || r.Attempts != 1 || r.Failures != 0 {
		t.Errorf("claimed %+v", r)
	}
	if r.Fence <= before {
		t.Errorf("fence is %d: must be above the time in ms, %d, so that it grows when a table is lost", r.Fence, before)
	}
	if r.Lease.UnixMilli() != req.Lease.UnixMilli() || r.Expires.Unix() != req.Expires.Unix() {
		t.Errorf("lease %v, expires %v, asked for %v, %v", r.Lease, r.Expires, req.Lease, req.Expires)
	}
	if r := get(t, s, id+"/other"); r.Status != "" {
		t.Errorf("a record that nobody made: %+v", r)
	}
}

func heldRecord(t *testing.T, s reader, id string) {
	held := mustAcquire(t, s, request(id, "a", time.Minute))
	_, err := s.Acquire(t.Context(), request(id, "b", time.Minute))
	if r := mustRefuse(t, err); r.Owner != "a" || r.Status != idempotency.InProgress || r.Lease.UnixMilli() != held.Lease.UnixMilli() || r.Fence != held.Fence {
		t.Errorf("refused by %+v, want %+v", r, held)
	}
	_, err = s.Acquire(t.Context(), request(id, "a", time.Minute))
	if r := mustRefuse(t, err); r.Owner != "a" || r.Attempts != 1 { // how an owner finds its own write whose answer was lost
		t.Errorf("the owner's second claim was refused by %+v", r)
	}
	lease := time.Now().Add(2 * time.Minute)
	must(t, s.Extend(t.Context(), id, "a", lease, lease.Add(time.Hour)))
	if r := get(t, s, id); r.Lease.UnixMilli() != lease.UnixMilli() || r.Expires.Unix() != lease.Add(time.Hour).Unix() {
		t.Errorf("extended to %v, expires %v", r.Lease, r.Expires)
	}
}

func lapsedRecord(t *testing.T, s reader, id string) {
	first := mustAcquire(t, s, request(id, "a", -skew/2))
	_, err := s.Acquire(t.Context(), request(id, "b", time.Minute))
	mustRefuse(t, err) // over, but not by more than clocks may differ
	must(t, s.Extend(t.Context(), id, "a", time.Now().Add(-skew-100*time.Millisecond), time.Now().Add(time.Hour)))
	second := mustAcquire(t, s, request(id, "b", time.Minute))
	if second.Fence != first.Fence+1 || second.Owner != "b" || second.Payload != "hash of b" || second.Attempts != 2 {
		t.Errorf("took over as %+v from %+v", second, first)
	}
}

func completedRecord(t *testing.T, s reader, id string) {
	mustAcquire(t, s, request(id, "a", time.Minute))
	must(t, s.Complete(t.Context(), id, "a", done(`{"n":1}`)))
	_, err := s.Acquire(t.Context(), request(id, "b", time.Minute))
	r := mustRefuse(t, err)
	if r.Status != idempotency.Completed || r.Owner != "a" || !bytes.Equal(r.Result, []byte(`{"n":1}`)) || r.Payload != "hash of a" || !r.Lease.IsZero() {
		t.Errorf("refused by %+v", r)
	}
	if r := mustRefuse(t, s.Complete(t.Context(), id, "a", done("other"))); string(r.Result) != `{"n":1}` {
		t.Errorf("completed again: %+v", r)
	}
	mustRefuse(t, s.Extend(t.Context(), id, "a", time.Now(), time.Now()))
	mustRefuse(t, s.Release(t.Context(), id, "a", idempotency.Failed))
	if again := get(t, s, id); again.Status != idempotency.Completed || string(again.Result) != `{"n":1}` {
		t.Errorf("afterwards %+v", again)
	}
}

func expiredRecord(t *testing.T, s reader, id string) {
	first := mustAcquire(t, s, request(id, "a", time.Minute))
	c := done(`1`)
	c.Expires = time.Now().Add(-2 * time.Second)
	must(t, s.Complete(t.Context(), id, "a", c))
	r := mustAcquire(t, s, request(id, "b", time.Minute))
	if r.Result != nil || r.Attempts != 1 || r.Fence <= first.Fence {
		t.Errorf("claimed %+v after %+v", r, first)
	}
}

func overtaken(t *testing.T, s reader, id string) {
	mustAcquire(t, s, request(id, "a", -time.Minute))
	mustAcquire(t, s, request(id, "b", time.Minute))
	before := get(t, s, id)
	if r := mustRefuse(t, s.Extend(t.Context(), id, "a", time.Now(), time.Now())); r.Owner != "b" {
		t.Errorf("extend refused by %+v", r)
	}
	mustRefuse(t, s.Complete(t.Context(), id, "a", done("late")))
	mustRefuse(t, s.Release(t.Context(), id, "a", idempotency.Failed))
	if after := get(t, s, id); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("record is %+v, was %+v", after, before)
	}
	for _, err := range []error{s.Extend(t.Context(), id+"/none", "a", time.Now(), time.Now()), s.Complete(t.Context(), id+"/none", "a", done("")), s.Release(t.Context(), id+"/none", "a", idempotency.Failed)} {
		if r := mustRefuse(t, err); r.Status != "" {
			t.Errorf("refused by a record that there isn't: %+v", r)
		}
	}
}

func releasedRecord(t *testing.T, s reader, id string) {
	for i, step := range []struct {
		how                               idempotency.Ended
		attempts, failures, interruptions int
	}{{idempotency.Failed, 1, 0, 0}, {idempotency.Interrupted, 2, 1, 0}, {idempotency.PutOff, 3, 1, 1}, {idempotency.Failed, 3, 1, 1}, {idempotency.Failed, 4, 2, 1}} {
		owner := fmt.Sprint("owner", i)
		r := mustAcquire(t, s, request(id, owner, time.Minute))
		if r.Attempts != step.attempts || r.Failures != step.failures || r.Interruptions != step.interruptions {
			t.Errorf("claim %d: attempts %d, failures %d, interruptions %d, want %+v", i, r.Attempts, r.Failures, r.Interruptions, step)
		}
		must(t, s.Release(t.Context(), id, owner, step.how))
		if r := mustRefuse(t, s.Release(t.Context(), id, owner, step.how)); r.Owner != "" || r.Status != idempotency.InProgress {
			t.Errorf("the second release was refused by %+v", r)
		}
	}
}

func omittedResult(t *testing.T, s reader, id string) {
	mustAcquire(t, s, request(id, "a", time.Minute))
	must(t, s.Complete(t.Context(), id, "a", idempotency.Completion{Omitted: 500_000, Expires: time.Now().Add(-2 * time.Second)}))
	if r := get(t, s, id); r.Omitted != 500_000 || r.Result != nil {
		t.Errorf("kept %+v", r)
	}
	if r := mustAcquire(t, s, request(id, "b", time.Minute)); r.Omitted != 0 {
		t.Errorf("claimed %+v", r)
	}
	must(t, s.Complete(t.Context(), id, "b", idempotency.Completion{Expires: time.Now().Add(time.Hour)}))
	if r := get(t, s, id); r.Result != nil || r.Omitted != 0 || r.Status != idempotency.Completed {
		t.Errorf("a completion without a result is %+v", r)
	}
}

func race(t *testing.T, s reader, id string) {
	var won atomic.Int32
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			_, err := s.Acquire(context.Background(), request(id, fmt.Sprint("owner", i), time.Minute))
			var refused *idempotency.RefusedError
			switch {
			case err == nil:
				won.Add(1)
			case !errors.As(err, &refused) || refused.Record.Status != idempotency.InProgress:
				t.Errorf("a loser got %v", err)
			}
		})
	}
	all.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d of 100 claimed the record", n)
	}
}

func transaction(t *testing.T, s reader, id string) {
	tx := s.(idempotency.Transactor)
	mustAcquire(t, s, request(id, "a", time.Minute))
	must(t, tx.CompleteTx(t.Context(), id, "a", "a-1", done("2"), nil))
	if r := get(t, s, id); r.Status != idempotency.Completed || string(r.Result) != "2" {
		t.Errorf("committed %+v", r)
	}
	if r := mustRefuse(t, tx.CompleteTx(t.Context(), id, "b", "b-1", done("3"), nil)); r.Owner != "a" || string(r.Result) != "2" {
		t.Errorf("refused by %+v", r)
	}
}
