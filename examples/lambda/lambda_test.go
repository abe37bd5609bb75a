package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// The program is built once, as it would be for Lambda.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lambda")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "bootstrap")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// program is the binary, running.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	log bytes.Buffer
	end chan error
}

// start runs the binary with nothing in its environment but env.
func start(t *testing.T, env ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary), end: make(chan error, 1)}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.end <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the program's log:\n%s", p.wait())
		}
	})
	return p
}

// wait waits for the program's end, which must come soon, and returns its log.
func (p *program) wait() string {
	p.t.Helper()
	select {
	case err := <-p.end:
		p.end <- err
	case <-time.After(30 * time.Second):
		p.t.Fatal("the program didn't end")
	}
	return p.log.String()
}

// runtimeAPI is the Lambda service's side: it hands out invocations and takes the answers, as documented at
// https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html.
type runtimeAPI struct {
	*httptest.Server
	t       *testing.T
	invokes chan invocation
	answers chan answer
}

type invocation struct {
	id       string
	payload  string
	deadline time.Time
}

// answer is what the function posted: to /response, /error, or /runtime/init/error.
type answer struct {
	id, kind, body string
	at             time.Time
}

func newRuntimeAPI(t *testing.T) *runtimeAPI {
	api := &runtimeAPI{t: t, invokes: make(chan invocation, 10), answers: make(chan answer, 10)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", api.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/{kind}", api.answer)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", api.answer)
	api.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
	})
	return api
}

func (api *runtimeAPI) next(w http.ResponseWriter, r *http.Request) {
	select {
	case in := <-api.invokes:
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", in.id)
		w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(in.deadline.UnixMilli()))
		w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:123456789012:function:charge")
		w.Header().Set("Lambda-Runtime-Trace-Id", "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, in.payload)
	case <-r.Context().Done():
	}
}

func (api *runtimeAPI) answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	api.answers <- answer{id: r.PathValue("id"), kind: r.PathValue("kind"), body: string(body), at: time.Now()}
	w.WriteHeader(http.StatusAccepted)
}

// invoke hands one payload to the function and returns its answer.
func (api *runtimeAPI) invoke(id, payload string, timeout time.Duration) answer {
	api.t.Helper()
	api.invokes <- invocation{id, payload, time.Now().Add(timeout)}
	select {
	case a := <-api.answers:
		if a.id != id {
			api.t.Fatalf("the answer is for invocation %q, want %q", a.id, id)
		}
		return a
	case <-time.After(30 * time.Second):
		api.t.Fatalf("no answer to invocation %s", id)
		return answer{}
	}
}

// event is a Lambda event with one message for each body; ids are m-0, m-1, …
func event(queue, messageType string, bodies ...string) string {
	var records []map[string]any
	for i, body := range bodies {
		records = append(records, map[string]any{
			"messageId": fmt.Sprintf("m-%d", i), "receiptHandle": "AQEB", "body": body, "md5OfBody": "",
			"attributes": map[string]string{"ApproximateReceiveCount": "1", "SentTimestamp": "1545082649183", "SenderId": "AIDA", "ApproximateFirstReceiveTimestamp": "1545082649185"},
			"messageAttributes": map[string]any{"type": map[string]any{
				"stringValue": messageType, "stringListValues": []string{}, "binaryListValues": []string{}, "dataType": "String"}},
			"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:" + queue, "awsRegion": "eu-west-1",
		})
	}
	payload, err := json.Marshal(map[string]any{"Records": records})
	if err != nil {
		panic(err)
	}
	return string(payload)
}

// shop is the payments service: it charges orders by their number, and remembers them.
type shop struct {
	*httptest.Server
	mu      sync.Mutex
	charged []string // idempotency keys
}

func newShop(t *testing.T) *shop {
	s := &shop{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			t.Errorf("payments got %v", err)
		}
		switch o.Number {
		case 400, 503:
			w.WriteHeader(o.Number)
			return
		case 999: // never answers
			<-r.Context().Done()
			return
		}
		s.mu.Lock()
		s.charged = append(s.charged, r.Header.Get("Idempotency-Key"))
		s.mu.Unlock()
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

const good = `{"number": 1, "amount": 10}`

func TestTheRuntimeIsToldWhichMessagesFailed(t *testing.T) {
	api, payments := newRuntimeAPI(t), newShop(t)
	start(t, "AWS_LAMBDA_RUNTIME_API="+api.Listener.Addr().String(), "PAYMENTS_URL="+payments.URL)
	failures := func(ids ...string) string {
		items := []string{}
		for _, id := range ids {
			items = append(items, fmt.Sprintf(`{"itemIdentifier":%q}`, id))
		}
		return `{"batchItemFailures":[` + strings.Join(items, ",") + `]}`
	}
	began := time.Now()
	for _, c := range []struct {
		name, payload, kind, body string
		timeout                   time.Duration
	}{
		{"all good", event("orders", "order.placed", good, good), "response", failures(), 30 * time.Second},
		{"some fail", event("orders", "order.placed", good, `{"number": "x"}`, good, `{"number": 400, "amount": 1}`, `{"number": 503, "amount": 1}`, `{"number": 2, "amount": 0}`),
			"response", failures("m-1", "m-3", "m-4", "m-5"), 30 * time.Second},
		{"unknown type", event("orders", "order.refunded", good), "response", failures("m-0"), 30 * time.Second},
		{"ignored type", event("orders", "order.viewed", good), "response", failures(), 30 * time.Second},
		{"FIFO stops", event("orders.fifo", "order.placed", good, `{"number": 503, "amount": 1}`, good, good), "response", failures("m-1", "m-2", "m-3"), 30 * time.Second},
		{"out of time", event("orders", "order.placed", good, `{"number": 999, "amount": 1}`), "response", failures("m-1"), 2 * time.Second},
		{"no messages of SQS", `{"key1": "value1"}`, "error", "has no Records", 30 * time.Second},
		{"all good again", event("orders", "order.placed", good), "response", failures(), 30 * time.Second},
	} {
		sent := time.Now()
		a := api.invoke(strings.ReplaceAll(c.name, " ", "-"), c.payload, c.timeout)
		if a.kind != c.kind || !strings.Contains(a.body, c.body) || (c.kind == "response" && a.body != c.body) {
			t.Errorf("%s: the function answered %s %s, want %s %s", c.name, a.kind, a.body, c.kind, c.body)
		}
		if a.at.Sub(sent) >= c.timeout {
			t.Errorf("%s: answered after %v, when Lambda had ended it after %v", c.name, a.at.Sub(sent), c.timeout)
		}
	}
	t.Logf("8 invocations took %v", time.Since(began).Round(time.Millisecond))
	if n := len(payments.charged); n != 2+2+1+1+1 {
		t.Errorf("%d orders were charged, want 7", n)
	}
}

func TestTheSameProgramWorksAQueueByItself(t *testing.T) {
	server, payments := sqsmodel.New(sqsmodel.Config{}), newShop(t)
	endpoint := httptest.NewServer(server)
	defer endpoint.Close()
	url := server.MustCreateQueue("orders", map[string]string{"VisibilityTimeout": "30"})
	for range 5 {
		if _, err := server.Client().SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(good),
			MessageAttributes: map[string]types.MessageAttributeValue{"type": {DataType: aws.String("String"), StringValue: aws.String("order.placed")}}}); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, "QUEUE_URL="+url, "PAYMENTS_URL="+payments.URL, "AWS_ENDPOINT_URL_SQS="+endpoint.URL,
		"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test")
	for end := time.Now().Add(20 * time.Second); len(server.Queue(url).Messages) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left are %+v", server.Queue(url))
		}
	}
	server.MustSend(url, "the last long poll ends at once") // has no type: it is given back
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if log := p.wait(); !strings.Contains(log, `"msg":"drained"`) || p.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("status %d, log:\n%s", p.cmd.ProcessState.ExitCode(), log)
	}
	if n := len(payments.charged); n != 5 {
		t.Errorf("%d orders were charged, want 5", n)
	}
}

func TestMissingSettingsAreNamed(t *testing.T) {
	for want, env := range map[string][]string{
		"PAYMENTS_URL is":   {"QUEUE_URL=https://sqs.us-east-1.amazonaws.com/123456789012/orders"},
		"set QUEUE_URL":     {"PAYMENTS_URL=http://localhost:1"},
		"worker: queue URL": {"PAYMENTS_URL=http://localhost:1", "QUEUE_URL=orders", "AWS_REGION=us-east-1"},
	} {
		p := start(t, env...)
		if log := p.wait(); !strings.Contains(log, want) || p.cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%v: status %d, log:\n%s", env, p.cmd.ProcessState.ExitCode(), log)
		}
	}
}
