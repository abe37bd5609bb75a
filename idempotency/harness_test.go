package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// scene is a queue "orders" with a visibility of 30 s, a DynamoDB, and workers on both.
type scene struct {
	*sqsmodel.Server
	t      *testing.T
	url    string
	dynamo *dynamo
	store  *idempotency.DynamoStore
}

// play runs a story on virtual time.
func play(t *testing.T, story func(*scene), attributes ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{Server: sqsmodel.New(sqsmodel.Config{Latency: 5 * time.Millisecond}), t: t, dynamo: newDynamo()}
		s.MustCreateQueue("orders-dead", nil)
		values := map[string]string{"VisibilityTimeout": "30", "RedrivePolicy": `{"deadLetterTargetArn":"` + s.Queue("orders-dead").ARN + `","maxReceiveCount":"10"}`}
		for i := 0; i < len(attributes); i += 2 {
			values[attributes[i]] = attributes[i+1]
		}
		s.url = s.MustCreateQueue("orders", values)
		s.store = s.dynamo.newTable(t, testTable)
		story(s)
	})
}

// process is a worker in a process of its own, as far as the world can see: killed, it reaches nobody any more.
type process struct {
	*worker.Worker
	guard  *idempotency.Guard
	line   *line
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// line is the network of one process.
type line struct {
	cut atomic.Bool
}

var errCut = errors.New("network is unreachable")

// through makes an HTTP client that reaches next while the line isn't cut, neither with its request nor with its answer.
func (l *line) through(next func(*http.Request) (*http.Response, error)) httpClient {
	return func(r *http.Request) (*http.Response, error) {
		if l.cut.Load() {
			return nil, errCut
		}
		res, err := next(r)
		if l.cut.Load() {
			return nil, errCut
		}
		return res, err
	}
}

type httpClient func(*http.Request) (*http.Response, error)

func (f httpClient) Do(r *http.Request) (*http.Response, error) { return f(r) }

// run starts a worker; it is stopped at the test's end.
func (s *scene) run(h worker.HandlerFunc, cfg idempotency.Config, wcfg worker.Config) *process {
	s.t.Helper()
	p := &process{line: &line{}, done: make(chan struct{})}
	cfg.Logger, wcfg.Logger = silent, silent
	c := s.dynamo.client(func(o *dynamodb.Options) { o.HTTPClient = p.line.through(s.dynamo.Do) })
	store, err := idempotency.NewDynamoStore(c, testTable, idempotency.DynamoConfig{})
	if err != nil {
		s.t.Fatal(err)
	}
	if p.guard, err = idempotency.New(store, cfg); err != nil {
		s.t.Fatal(err)
	}
	wcfg.Middleware = []worker.Middleware{p.guard.Middleware}
	queue := s.Client(func(o *sqs.Options) { o.HTTPClient = p.line.through(s.Do) })
	if p.Worker, err = worker.New(queue, s.url, h, wcfg); err != nil {
		s.t.Fatal(err)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancelCause(context.Background())
	go func() {
		defer close(p.done)
		p.err = p.Run(ctx)
	}()
	s.t.Cleanup(p.stop)
	return p
}

func (p *process) stop() {
	p.cancel(context.Canceled)
	<-p.done
}

// kill ends a process as kill -9 does, as seen from outside.
func (p *process) kill() { p.line.cut.Store(true) }

// until waits for a condition.
func (s *scene) until(within time.Duration, what string, ok func() bool) {
	s.t.Helper()
	step := time.Millisecond
	for end := time.Now().Add(within); ; time.Sleep(step) {
		synctest.Wait()
		if ok() {
			return
		}
		if !time.Now().Before(end) {
			s.t.Fatalf("not within %v: %s", within, what)
		}
		step = min(2*step, 250*time.Millisecond)
	}
}

func (s *scene) untilEmpty(within time.Duration) {
	s.t.Helper()
	s.until(within, "the queue is empty", func() bool { return len(s.Queue("orders").Messages) == 0 })
}

// record is the only one in the table with this key.
func (s *scene) record(key string) idempotency.Record {
	s.t.Helper()
	r, err := s.store.Get(context.Background(), "orders#"+key)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// tally counts runs by body.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(body string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[body]++
	return c.n[body]
}

func (c *tally) of(body string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[body]
}

func (c *tally) want(t *testing.T, body string, n int) {
	t.Helper()
	if got := c.of(body); got != n {
		t.Errorf("%s ran %d times, want %d", body, got, n)
	}
}

func byOrder() idempotency.Config { return idempotency.Config{Key: idempotency.JSONField("order")} }

func order(n int) string { return fmt.Sprintf(`{"order":%d,"amount":500}`, n) }
