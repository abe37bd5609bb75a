package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// Worker works one queue. Its methods are safe for concurrent use.
type Worker struct {
	client         Client
	queueURL       string
	handler        Handler
	cfg            Config
	receiveOptions []func(*sqs.Options)
	otherOptions   []func(*sqs.Options)
	readings       *readings // its metrics
	diary          *diary    // the problems that it logged
	history        atomic.Pointer[history]

	concurrency atomic.Int64
	running     atomic.Bool
	ran         atomic.Bool         // Run was called
	current     atomic.Pointer[run] // the run under way, or the last one
}

// New returns a worker for one queue; it makes no call. The error names everything that is wrong with the
// configuration.
func New(c Client, queueURL string, h Handler, cfg Config) (*Worker, error) {
	var errs []error
	if own, ok := c.(*sqs.Client); c == nil || ok && own == nil {
		errs = append(errs, errors.New("worker: no client: pass an *sqs.Client"))
		c = nil
	}
	if h == nil {
		errs = append(errs, errors.New("worker: no handler"))
	}
	if err := checkQueueURL(c, queueURL); err != nil {
		errs = append(errs, err)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		errs = append(errs, err)
	}
	handler, err := assemble(h, cfg.Middleware, &cfg)
	if err != nil {
		errs = append(errs, err)
	}
	if err := checkTimeouts(c, cfg); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if cfg.Name == "" {
		cfg.Name = queueName(queueURL)
	}
	w := &Worker{client: c, queueURL: queueURL, handler: handler, cfg: cfg, readings: &readings{}, diary: &diary{}}
	w.concurrency.Store(int64(cfg.Concurrency))
	w.receiveOptions, w.otherOptions = callOptions(c, cfg)
	return w, nil
}

// run is one call of Run: everything that lives from its start to its end.
type run struct {
	w                *Worker
	cfg              Config
	client           Client
	log              *slog.Logger
	receiveOptions   []func(*sqs.Options)
	otherOptions     []func(*sqs.Options)
	visibility       time.Duration
	wait             time.Duration
	fifo             bool // by the queue's name: since fair queues, a message group alone doesn't tell
	retries          int  // in process
	systemAttributes []types.MessageSystemAttributeName
	maxReceiveCount  int // of the queue's redrive policy; 0 when there is none

	// Three lives, which end one after the other: open receives, handlers, the calls that settle.
	polling     context.Context
	abortPolls  context.CancelFunc
	handling    context.Context
	cancelWork  context.CancelCauseFunc
	settling    context.Context
	stopSettle  context.CancelFunc
	stopPolling chan struct{}

	concurrency concurrency

	slots      *slots
	registry   *registry
	heartbeat  *heartbeat.Heartbeat
	poller     *poller
	dispatcher *dispatcher
	breaker    *breaker
	deleter    *deleter
	unsettled  *unsettled
	arrivals   *arrivals
	leftBehind leftBehind
	handback   handback
	order      sync.Mutex // FIFO: a receive's messages arrive together, before what waits is taken to be given back or after it
	began      time.Time
	stats      counters
	tell       *telemetry

	started  atomic.Bool
	stopping atomic.Bool
	over     atomic.Bool
	cancelAt atomic.Pointer[time.Time] // when the drain will cancel handlers
	fatal    chan error                // capacity 1: why the run can't go on
}

// Run works the queue until ctx ends, then drains and returns: nil when everything that was held has been settled,
// a [*DrainError] that names what wasn't, or an error when the worker could never work (no such queue, denied, bad
// credentials), so that a deployment fails. Failures of SQS later on never end it.
//
// In order, when ctx ends:
//
//  1. No new receive begins. Open ones may end by themselves, and what they bring is given back; they are broken off
//     only when the time is over, because SQS may have handed out messages to them already.
//  2. Messages that weren't started are given back, visible to others at once.
//  3. Running handlers go on, their messages held, until DrainTimeout less CancelGrace and the reserve for settling. If
//     the cause of ctx has a method Deadline() time.Time, an earlier deadline counts instead: package interruption makes
//     such causes. With less than 5 s left until it nothing goes on: running handlers are cancelled at once. If the cause
//     also has a method Tightened() <-chan struct{}, whose channel is closed when Deadline becomes earlier, the drain
//     follows it: a Spot notice may come after SIGTERM.
//  4. Their contexts are cancelled with [ErrShutdown]. What returns within CancelGrace is settled by its result; an
//     interrupted one is given back at once and is no failure. The messages of handlers that don't return are given
//     back all the same.
//  5. What is being deleted or given back is waited for, and Run returns. No goroutine of the worker's is left, but
//     those in which handlers still run.
//
// A worker runs once at a time; it may be run again.
func (w *Worker) Run(ctx context.Context) error {
	if !w.running.CompareAndSwap(false, true) {
		return fmt.Errorf("worker: %s: Run is running already", w.cfg.Name)
	}
	w.ran.Store(true)
	defer w.running.Store(false)
	r := w.newRun(ctx)
	defer r.end()
	attributes, err := r.attributes(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it started: nothing is held
		}
		return err
	}
	if err := r.configure(attributes); err != nil {
		return err
	}
	w.current.Store(r)
	w.readings.begin(r)
	r.resize() // SetConcurrency may have been called since it was made
	r.checkQueue(ctx, attributes)
	return r.serve(ctx)
}

// serve polls until ctx ends or the run can't go on, then drains.
func (r *run) serve(ctx context.Context) error {
	r.started.Store(true)
	r.log.Info("working", "concurrency", r.cfg.Concurrency, "prefetch", r.cfg.Prefetch, "visibility", r.visibility, "wait", r.wait)
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		r.poller.loop(r.stopPolling)
	}()
	var fatal error
	select {
	case <-ctx.Done():
	case fatal = <-r.fatal:
	}
	return errors.Join(fatal, r.drain(ctx, polled))
}

// newRun makes what doesn't depend on the queue's attributes.
func (w *Worker) newRun(ctx context.Context) *run {
	r := &run{
		w: w, cfg: w.cfg, client: w.client, receiveOptions: w.receiveOptions, otherOptions: w.otherOptions,
		began: time.Now(), log: w.diary.logger(w.cfg.Logger).With("worker", w.cfg.Name, "queue", queueName(w.queueURL)),
		wait: w.cfg.waitTime(), stopPolling: make(chan struct{}), fatal: make(chan error, 1),
	}
	r.cfg.Concurrency = w.Concurrency()
	r.concurrency.n = r.cfg.Concurrency
	r.fifo = strings.HasSuffix(w.queueURL, ".fifo")
	r.retries = w.cfg.retries(r.fifo)
	r.systemAttributes = systemAttributes(r.cfg)
	r.arrivals = newArrivals(r.cfg.Concurrency, r.stopPolling)
	r.tell = w.newTelemetry()
	r.cfg.MessageAttributes = r.tell.receivable(r.cfg.MessageAttributes)
	detached := context.WithoutCancel(ctx) // the end of ctx begins the drain; it ends none of these
	r.polling, r.abortPolls = context.WithCancel(detached)
	r.handling, r.cancelWork = context.WithCancelCause(detached)
	r.settling, r.stopSettle = context.WithCancel(detached)
	return r
}

// configure makes the rest.
func (r *run) configure(attributes map[string]string) (err error) {
	r.visibility = r.visibilityOf(attributes)
	policy, _ := redrivePolicyOf(attributes)
	r.maxReceiveCount, _ = strconv.Atoi(policy.MaxReceiveCount.String())
	r.heartbeat, err = heartbeat.New(r.client, r.w.queueURL, heartbeat.Config{
		Visibility: r.visibility, Interval: r.cfg.HeartbeatInterval, MaxHold: r.cfg.MaxHold, Logger: r.log,
		Observer: r.tell.observer(),
	})
	if err != nil {
		return fmt.Errorf("worker: HeartbeatInterval doesn't fit the queue's visibility of %v: %w", r.visibility, err)
	}
	total := r.cfg.Concurrency + r.cfg.Prefetch
	r.slots = newSlots(total)
	r.registry = newRegistry(r.fifo)
	r.breaker = newBreaker(r)
	r.unsettled = newUnsettled(max(1000, 2*total))
	r.dispatcher = newDispatcher(r)
	r.deleter = newDeleter(r)
	r.poller = newPoller(r)
	return nil
}

// giveUp ends the run because it could never work.
func (r *run) giveUp(err error) {
	select {
	case r.fatal <- r.hopelessf("receiving from", err, "allow sqs:ReceiveMessage, sqs:DeleteMessage and sqs:ChangeMessageVisibility on the queue, and kms:Decrypt on its key"):
	default:
	}
}

// end frees the contexts.
func (r *run) end() {
	r.over.Store(true)
	r.abortPolls()
	r.cancelWork(ErrShutdown)
	r.stopSettle()
	r.w.readings.end(r)
}
