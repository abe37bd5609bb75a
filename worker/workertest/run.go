package workertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// Running is a worker that a test has started.
type Running struct {
	*worker.Worker
	stop func() error
}

// Stop ends the worker as the end of Run's context does, and returns what Run returned. Calling it again returns the same.
func (r *Running) Stop() error { return r.stop() }

// Start runs a worker on the queue until the test ends, or Stop. It ends the test when worker.New refuses the configuration;
// without a logger of its own the worker logs into the test's output.
func (q *Queue) Start(h worker.Handler, cfg worker.Config) *Running {
	q.tb.Helper()
	return q.start(q.client, h, cfg)
}

func (q *Queue) start(c worker.Client, h worker.Handler, cfg worker.Config) *Running {
	q.tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(output{q.tb}, nil))
	}
	w, err := worker.New(c, q.URL, h, cfg)
	if err != nil {
		q.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- w.Run(ctx) }()
	r := &Running{Worker: w, stop: sync.OnceValue(func() error {
		cancel()
		return <-result
	})}
	q.tb.Cleanup(func() {
		var left *worker.DrainError
		if err := r.stop(); err != nil && !errors.As(err, &left) {
			q.tb.Errorf("workertest: Run: %v", err)
		}
	})
	return r
}

// output is a test's log as a writer.
type output struct{ tb testing.TB }

func (o output) Write(p []byte) (int, error) {
	o.tb.Logf("%s", p[:max(len(p)-1, 0)])
	return len(p), nil
}

// Result is what became of one message.
type Result struct {
	Standing
	// Outcome is how the worker read what the handler, with its middleware, returned.
	Outcome worker.Outcome
	// Err is what that was; a panic is an error.
	Err error
	// Took is how long that took, and Tries how often the handler was called: more than once with Config.Retries.
	Took  time.Duration
	Tries int
}

// Handle sends one message to a standard queue of its own and runs it through the real worker: middleware, retries in process,
// the dead-letter sink, settling. It returns once the message is settled: deleted, given back for later ([Held], with
// VisibleIn) or at once ([Visible]). It doesn't wait for a second delivery; for that, use [NewQueue]. It lasts as long as the
// handler does.
func Handle(tb testing.TB, h worker.Handler, m Message, cfg worker.Config) Result {
	tb.Helper()
	return NewQueue(tb, Options{}).Handle(h, m, cfg)
}

// Handle is the function [Handle] on this queue, which must be empty.
func (q *Queue) Handle(h worker.Handler, m Message, cfg worker.Config) Result {
	q.tb.Helper()
	if left := q.server.Queue(q.URL).Messages; len(left) > 0 {
		q.tb.Fatalf("workertest: Handle needs an empty queue, and this one has %d messages", len(left))
	}
	id := q.SendMessage(m)
	seen := &witness{}
	cfg.Middleware = append([]worker.Middleware{seen.watch}, cfg.Middleware...)
	client := &once{Client: q.client, over: make(chan struct{})}
	w := q.start(client, h, cfg)
	for !seen.any() || w.Stats().Held > 0 {
		time.Sleep(time.Millisecond)
	}
	result := seen.result()
	result.Standing = q.Look(id)
	close(client.over)
	if err := w.Stop(); err != nil {
		q.tb.Errorf("workertest: Run: %v", err)
	}
	return result
}

// witness is a middleware that remembers the last result; there may be several, for Config.Retries.
type witness struct {
	mu    sync.Mutex
	tries int
	last  Result
	began time.Time
}

func (s *witness) watch(next worker.Handler) worker.Handler {
	return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) (err error) {
		s.mu.Lock()
		if s.began.IsZero() {
			s.began = time.Now()
		}
		s.mu.Unlock()
		returned := false
		defer func() {
			if returned {
				return
			}
			v := recover()
			s.note(worker.OutcomeFailed, fmt.Errorf("the handler panicked: %v", v))
			if v != nil { // nil: it called runtime.Goexit, a t.FailNow say
				panic(v) // the worker sees it too
			}
		}()
		err = next.Handle(ctx, m)
		returned = true
		s.note(worker.OutcomeOf(ctx, err), err)
		return err
	})
}

func (s *witness) note(o worker.Outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	s.last = Result{Outcome: o, Err: err, Took: time.Since(s.began), Tries: s.tries}
}

func (s *witness) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries > 0
}

func (s *witness) result() Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// once is a client that receives until a message has come, and then nothing more: what the worker gives back at once shall be
// seen, not received again.
type once struct {
	*sqs.Client
	over chan struct{}

	mu   sync.Mutex // one receive at a time
	came bool
}

func (c *once) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, o ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.came {
		select {
		case <-c.over:
		case <-ctx.Done():
		}
		return &sqs.ReceiveMessageOutput{}, ctx.Err()
	}
	out, err := c.Client.ReceiveMessage(ctx, in, o...)
	c.came = err == nil && len(out.Messages) > 0
	return out, err
}
