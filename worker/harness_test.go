package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

const (
	receiveMessage   = "ReceiveMessage"
	deleteBatch      = "DeleteMessageBatch"
	visibilityBatch  = "ChangeMessageVisibilityBatch"
	queueAttributes  = "GetQueueAttributes"
	testQueue        = "work"
	testDLQ          = "work-dead"
	never            = 1000 * time.Hour
	sqsMaxVisibility = 12 * time.Hour
)

// bubble runs a test on virtual time, where nothing but sleeping takes time. A goroutine that is left behind fails it.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// each runs one bubble for each case.
func each[C any](t *testing.T, cases map[string]C, f func(t *testing.T, c C)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) { bubble(t, func(t *testing.T) { f(t, cases[name]) }) })
	}
}

// fixture is one queue, "work", at an SQS of its own.
type fixture struct {
	*sqsmodel.Server
	t   *testing.T
	url string
}

// newQueue makes a queue; attributes are names and values in turn.
func newQueue(t *testing.T, attributes ...string) *fixture {
	return newQueueAt(t, sqsmodel.Config{}, attributes...)
}

func newQueueAt(t *testing.T, cfg sqsmodel.Config, attributes ...string) *fixture {
	q := &fixture{Server: sqsmodel.New(cfg), t: t}
	values := map[string]string{}
	for i := 0; i < len(attributes); i += 2 {
		values[attributes[i]] = attributes[i+1]
	}
	q.url = q.MustCreateQueue(testQueue, values)
	return q
}

// newQueueWithDLQ makes a queue about whose settings there is nothing to say.
func newQueueWithDLQ(t *testing.T, maxReceives int, attributes ...string) *fixture {
	q := &fixture{Server: sqsmodel.New(sqsmodel.Config{}), t: t}
	q.MustCreateQueue(testDLQ, map[string]string{"MessageRetentionPeriod": "1209600"})
	values := map[string]string{"RedrivePolicy": fmt.Sprintf(
		`{"deadLetterTargetArn":%q,"maxReceiveCount":"%d"}`, q.Queue(testDLQ).ARN, maxReceives)}
	for i := 0; i < len(attributes); i += 2 {
		values[attributes[i]] = attributes[i+1]
	}
	q.url = q.MustCreateQueue(testQueue, values)
	return q
}

// send puts n messages into the queue, with bodies "0", "1", ….
func (q *fixture) send(n int) (ids []string) {
	bodies := make([]string, n)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i)
	}
	return q.MustSend(q.url, bodies...)
}

func (q *fixture) state() sqsmodel.QueueState { return q.Queue(testQueue) }

// message is the state of one message; zero when it isn't in the queue.
func (q *fixture) message(id string) sqsmodel.MessageState {
	for _, m := range q.state().Messages {
		if m.ID == id {
			return m
		}
	}
	return sqsmodel.MessageState{}
}

// events are those of some kinds, of one message or of all ("").
func (q *fixture) events(id string, kinds ...sqsmodel.EventKind) (found []sqsmodel.Event) {
	for _, e := range q.Journal() {
		if (id == "" || e.MessageID == id) && slices.Contains(kinds, e.Kind) {
			found = append(found, e)
		}
	}
	return found
}

// finished are the calls of one action that have been answered, by the time at which they came.
func (q *fixture) finished(action string) (found []sqsmodel.Call) {
	for _, c := range q.Calls() {
		if c.Action == action {
			found = append(found, c)
		}
	}
	slices.SortStableFunc(found, func(a, b sqsmodel.Call) int { return a.At.Compare(b.At) })
	return found
}

// mustBeEmpty: nothing is in the queue, neither visible nor in flight.
func (q *fixture) mustBeEmpty() {
	q.t.Helper()
	if st := q.state(); len(st.Messages) > 0 {
		q.t.Errorf("%d messages are left in the queue: visible %d, in flight %d, delayed %d", len(st.Messages), st.Visible, st.InFlight, st.Delayed)
	}
}

// mustHaveHappened compares how often an event happened.
func (q *fixture) mustHaveHappened(kind sqsmodel.EventKind, want int) {
	q.t.Helper()
	if got := q.CountEvents(kind); got != int64(want) {
		q.t.Errorf("%v happened %d times, want %d", kind, got, want)
	}
}

// mustWriteOnlyUnderLease: no delete and no visibility change was sent for a message that wasn't in flight any more;
// somebody else could have had it. A delete may repeat one that was applied without an answer.
func (q *fixture) mustWriteOnlyUnderLease() {
	q.t.Helper()
	ids, lives := map[string]string{}, map[string][]sqsmodel.Event{}
	for _, e := range q.events("", sqsmodel.Received, sqsmodel.Expired, sqsmodel.VisibilityChanged, sqsmodel.Deleted, sqsmodel.Duplicated) {
		if e.Kind == sqsmodel.Received {
			ids[e.Handle] = e.MessageID
		}
		lives[e.MessageID] = append(lives[e.MessageID], e)
	}
	for _, c := range q.Calls() {
		if c.Action != deleteBatch && c.Action != visibilityBatch {
			continue
		}
		for _, h := range c.ReceiptHandles {
			if id := ids[h]; id != "" && !inFlightAt(lives[id], c.At, c.Action == deleteBatch) {
				q.t.Errorf("%s was sent for message %s at %v, when it wasn't in flight", c.Action, id, c.At.Format("04:05.000"))
			}
		}
	}
}

func inFlightAt(life []sqsmodel.Event, at time.Time, deletedCounts bool) bool {
	in := false
	for _, e := range life {
		if e.At.After(at) {
			break
		}
		if e.At.Equal(at) && in {
			return true // at the same instant in either order
		}
		switch e.Kind {
		case sqsmodel.Expired:
			in = false
		case sqsmodel.VisibilityChanged:
			in = e.VisibilityTimeout > 0
		case sqsmodel.Deleted:
			in = deletedCounts
		default:
			in = true
		}
	}
	return in
}

// started is a worker whose Run is under way.
type started struct {
	*worker.Worker
	t      *testing.T
	log    *logbook
	cfg    worker.Config
	cancel context.CancelCauseFunc
	done   chan struct{}
	result error
}

// start runs a worker on the queue until the test ends.
func (q *fixture) start(h worker.Handler, cfg worker.Config) *started {
	q.t.Helper()
	return q.startWith(q.Client(), h, cfg)
}

func (q *fixture) startWith(c worker.Client, h worker.Handler, cfg worker.Config) *started {
	q.t.Helper()
	log := &logbook{}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(log)
	}
	w, err := worker.New(c, q.url, h, cfg)
	if err != nil {
		q.t.Fatal(err)
	}
	s := run(q.t, w, log)
	s.cfg = cfg
	return s
}

// run runs a worker until the test ends.
func run(t *testing.T, w *worker.Worker, log *logbook) *started {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &started{Worker: w, t: t, log: log, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.result = w.Run(ctx)
	}()
	t.Cleanup(func() {
		_ = s.stop()
		if t.Failed() {
			t.Logf("the worker's log:\n%s", log)
		}
	})
	return s
}

// stop ends Run's context and waits for Run.
func (s *started) stop() error { return s.stopBecause(context.Canceled) }

func (s *started) stopBecause(cause error) error {
	s.cancel(cause)
	<-s.done
	return s.result
}

// mustStop stops a worker that has no reason to complain.
func (s *started) mustStop() {
	s.t.Helper()
	if err := s.stop(); err != nil {
		s.t.Errorf("Run returned %v", err)
	}
	s.mustHoldNothing()
}

// mustHoldNothing: Run has returned, every slot is free and nothing is kept of any message.
func (s *started) mustHoldNothing() {
	s.t.Helper()
	st, slots := s.Stats(), s.Concurrency()+s.cfg.Prefetch
	if st.FreeSlots != slots || st.Held+st.Waiting+st.Running+st.Unsettled+st.OpenReceives != 0 || st.Heartbeat.Held != 0 {
		s.t.Errorf("after the stop, with %d slots: %d free, held %d, waiting %d, running %d, unsettled %d, receives open %d, leases %d", slots,
			st.FreeSlots, st.Held, st.Waiting, st.Running, st.Unsettled, st.OpenReceives, st.Heartbeat.Held)
	}
}

// mustBeRunning: whatever SQS did, Run has not returned.
func (s *started) mustBeRunning() {
	s.t.Helper()
	synctest.Wait()
	select {
	case <-s.done:
		s.t.Fatalf("Run returned %v", s.result)
	default:
	}
}

// eventually waits for a condition, in steps that grow from 1 ms to 1 s.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	step := time.Millisecond
	for end := time.Now().Add(within); ; time.Sleep(min(step, time.Until(end))) {
		synctest.Wait()
		if ok() {
			return
		}
		if !time.Now().Before(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
		step = min(step+step/8+1, time.Second)
	}
}

// mustEmpty waits until the queue is empty.
func (q *fixture) mustEmpty(within time.Duration) {
	q.t.Helper()
	eventually(q.t, within, "the queue is empty", func() bool { return len(q.state().Messages) == 0 })
}

// runs records what a handler did.
type runs struct {
	mu      sync.Mutex
	all     []*handled
	running int
	most    int // handlers at once
}

// handled is one call of a handler.
type handled struct {
	id, body       string
	receives       int
	started, ended time.Time
	result         error
}

// handler records calls of f.
func (r *runs) handler(f worker.HandlerFunc) worker.Handler {
	return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		h := &handled{id: m.ID, body: m.Body, receives: m.ReceiveCount, started: time.Now()}
		r.mu.Lock()
		r.all = append(r.all, h)
		r.running++
		r.most = max(r.most, r.running)
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			r.running--
			h.ended = time.Now()
			r.mu.Unlock()
		}()
		h.result = f(ctx, m)
		return h.result
	})
}

func (r *runs) list() []handled {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]handled, len(r.all))
	for i, h := range r.all {
		list[i] = *h
	}
	return list
}

func (r *runs) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

func (r *runs) now() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// of counts the runs of each message.
func (r *runs) of() map[string]int {
	n := map[string]int{}
	for _, h := range r.list() {
		n[h.id]++
	}
	return n
}

// mustHaveRunOnce: every one of these messages was run, and none twice.
func (r *runs) mustHaveRunOnce(t *testing.T, ids []string) {
	t.Helper()
	n := r.of()
	for _, id := range ids {
		if n[id] != 1 {
			t.Errorf("message %s ran %d times, want once", id, n[id])
		}
	}
}

// succeed is a handler with nothing to do.
func succeed(context.Context, *worker.Message) error { return nil }

// takes is a handler that works for d and heeds its context.
func takes(d time.Duration) worker.HandlerFunc {
	return func(ctx context.Context, _ *worker.Message) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// deaf is a handler that works for d whatever its context says.
func deaf(d time.Duration) worker.HandlerFunc {
	return func(context.Context, *worker.Message) error {
		time.Sleep(d)
		return nil
	}
}

// returns is a handler that fails at once.
func returns(err error) worker.HandlerFunc {
	return func(context.Context, *worker.Message) error { return err }
}

// logbook is a slog.Handler that keeps every line.
type logbook struct {
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	level slog.Level
	text  string // message and attributes, as a text handler writes them
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logbook) Handle(ctx context.Context, r slog.Record) error {
	return (&logScope{book: b}).Handle(ctx, r)
}
func (b *logbook) WithAttrs(a []slog.Attr) slog.Handler { return (&logScope{book: b}).WithAttrs(a) }
func (b *logbook) WithGroup(name string) slog.Handler   { return (&logScope{book: b}).WithGroup(name) }

// logScope is a logbook with the attributes of Logger.With.
type logScope struct {
	book *logbook
	wrap []func(slog.Handler) slog.Handler
}

func (s *logScope) Enabled(context.Context, slog.Level) bool { return true }

func (s *logScope) Handle(ctx context.Context, r slog.Record) error {
	var text strings.Builder
	var h slog.Handler = slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true})
	for _, wrap := range s.wrap {
		h = wrap(h)
	}
	if err := h.Handle(ctx, r); err != nil {
		return err
	}
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.book.lines = append(s.book.lines, logLine{r.Level, text.String()})
	return nil
}

func (s *logScope) with(wrap func(slog.Handler) slog.Handler) slog.Handler {
	return &logScope{s.book, append(slices.Clip(s.wrap), wrap)}
}

func (s *logScope) WithAttrs(a []slog.Attr) slog.Handler {
	return s.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(a) })
}

func (s *logScope) WithGroup(name string) slog.Handler {
	return s.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// String is the beginning and the end.
func (b *logbook) String() string {
	lines := b.atLeast(slog.LevelDebug)
	if n := len(lines); n > 30 {
		lines = slices.Concat(lines[:10], []string{fmt.Sprintf("… %d lines …\n", n-30)}, lines[n-20:])
	}
	return strings.Join(lines, "")
}

// atLeast are the lines of a level or above.
func (b *logbook) atLeast(level slog.Level) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if l.level >= level {
			found = append(found, l.text)
		}
	}
	return found
}

// with are the lines that contain all of some words.
func (b *logbook) with(words ...string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l.text, w) }) {
			found = append(found, l.text)
		}
	}
	return found
}

// mustHaveNo: no line of that level or above was logged.
func (b *logbook) mustHaveNo(t *testing.T, level slog.Level) {
	t.Helper()
	for _, line := range b.atLeast(level) {
		t.Errorf("logged: %s", line)
	}
}

// ourGoroutines are the stacks of goroutines that run code of the worker or its heartbeat, tests' own apart.
func ourGoroutines() (stacks []string) {
	synctest.Wait() // those that are about to end do
	buf := make([]byte, 8<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, stack := range strings.Split(string(buf), "\n\n") {
		const module = "github.com/sqsworker/sqsworker/"
		if strings.Contains(stack, module+"worker.") || strings.Contains(stack, module+"heartbeat.") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
