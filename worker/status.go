package worker

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Status is what a worker does at one moment, for people and for those who ask over HTTP. Nothing of it is secret to
// somebody who may read the worker's log: there are message ids and error texts, never a body or a receipt handle.
type Status struct {
	Name  string    `json:"name"`
	Queue string    `json:"queue"`
	FIFO  bool      `json:"fifo"`
	At    time.Time `json:"at"`

	// State is "not started", "starting", "working", "draining" or "stopped".
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"` // what Healthy says, unless all is well
	// Since is when Run began, zero before.
	Since time.Time `json:"since"`
	// CancelAt is when a drain will cancel the handlers that still run; zero unless it drains.
	CancelAt time.Time `json:"cancel_at,omitzero"`

	Concurrency       int     `json:"concurrency"`
	Prefetch          int     `json:"prefetch"`
	VisibilitySeconds float64 `json:"visibility_seconds"`
	BreakerReason     string  `json:"breaker_reason,omitempty"` // why it isn't closed

	// Running are the handlers that have run longest, 100 at most; Stats.Running is how many there are.
	Running []RunningHandler `json:"running"`
	// LeastLeaseSeconds is the least time left of any lease held; negative when none is.
	LeastLeaseSeconds float64 `json:"least_lease_seconds"`

	CallsPerMessage float64 `json:"calls_per_message"` // calls of SQS for each message deleted, since Run began
	EstimatedCost   float64 `json:"estimated_cost"`    // of these, by Telemetry.RequestPrice
	MeanSeconds     float64 `json:"mean_seconds"`      // that handlers took of late
	Stats           Stats   `json:"stats"`             // durations in it are nanoseconds

	Problems []Problem     `json:"problems"` // the last 20 warnings and errors that were logged, newest first
	History  []HistoryStep `json:"history"`  // of the last quarter of an hour; empty unless a StatusHandler is mounted
}

// RunningHandler is one handler that runs.
type RunningHandler struct {
	MessageID    string    `json:"message_id"`
	ReceiveCount int       `json:"receive_count"`
	Since        time.Time `json:"since"`
	ForSeconds   float64   `json:"for_seconds"`
	LeaseSeconds float64   `json:"lease_seconds"` // left of its lease, which is renewed in time
}

// mostRunning bounds what a status lists.
const mostRunning = 100

// States of a worker, as Status has them.
const (
	stateNotStarted = "not started"
	stateStarting   = "starting"
	stateWorking    = "working"
	stateDraining   = "draining"
	stateStopped    = "stopped"
)

// state is what the worker is about.
func (w *Worker) state() string {
	running, r := w.running.Load(), w.current.Load()
	switch {
	case !running && !w.ran.Load():
		return stateNotStarted
	case !running:
		return stateStopped
	case r == nil || r.over.Load() || !r.started.Load():
		return stateStarting
	case r.stopping.Load():
		return stateDraining
	}
	return stateWorking
}

// Status tells what the worker does. It is safe at any time; it costs a look at every message held.
func (w *Worker) Status() Status {
	now := time.Now()
	s := Status{
		Name: w.cfg.Name, Queue: queueName(w.queueURL), At: now, State: w.state(), Concurrency: w.Concurrency(), Prefetch: w.cfg.Prefetch,
		LeastLeaseSeconds: -1, Problems: w.diary.problems(), Running: []RunningHandler{}, History: []HistoryStep{},
	}
	if err := w.Healthy(); err != nil && !errors.Is(err, ErrNotRunning) {
		s.Problem = err.Error()
	}
	if h := w.history.Load(); h != nil {
		s.History = h.list(now)
	}
	r := w.current.Load()
	if r == nil {
		return s
	}
	s.Since, s.FIFO, s.VisibilitySeconds, s.Stats = r.began, r.fifo, r.visibility.Seconds(), r.snapshot()
	if at := r.cancelAt.Load(); at != nil && s.State == stateDraining {
		s.CancelAt = *at
	}
	if state, err := r.breaker.snapshot(); state != BreakerClosed && err != nil {
		s.BreakerReason = brief(err)
	}
	if least, ok := r.registry.leastLeft(); ok {
		s.LeastLeaseSeconds = least.Seconds()
	}
	s.Running = r.registry.runningLongest(mostRunning, now)
	s.MeanSeconds = s.Stats.MeanHandling.Seconds()
	s.EstimatedCost = float64(s.Stats.BilledRequests) * r.cfg.Telemetry.price(r.fifo)
	if s.Stats.Deleted > 0 {
		s.CallsPerMessage = float64(s.Stats.Receives+s.Stats.DeleteCalls+s.Stats.Heartbeat.Calls) / float64(s.Stats.Deleted)
	}
	return s
}

// runningLongest are the handlers that have run longest.
func (g *registry) runningLongest(most int, now time.Time) []RunningHandler {
	g.mu.Lock()
	var all []*delivery
	handlers := []RunningHandler{}
	for _, d := range g.held {
		if d.stage == running {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b *delivery) int { return cmp.Or(a.started.Compare(b.started), cmp.Compare(a.id, b.id)) })
	all = all[:min(len(all), most)]
	for _, d := range all {
		handlers = append(handlers, RunningHandler{MessageID: d.id, ReceiveCount: d.receives, Since: d.started, ForSeconds: now.Sub(d.started).Seconds()})
	}
	g.mu.Unlock()
	for i, d := range all {
		handlers[i].LeaseSeconds = d.lease.Deadline().Sub(now).Seconds()
	}
	return handlers
}
