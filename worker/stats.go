package worker

import (
	"sync/atomic"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// Stats are the counts since Run began, and how things stand now. Counts only grow.
type Stats struct {
	// Now.
	Held         int // messages held: waiting, running, or being settled
	Waiting      int // of them not started
	Running      int // handlers running
	Unsettled    int // being deleted or given back
	FreeSlots    int // what may still be received
	OpenReceives int // receives under way

	// Receiving.
	Receives          int64 // ReceiveMessage calls
	FilledReceives    int64 // that brought messages
	EmptyReceives     int64 // that brought nothing
	ReceiveErrors     int64 // that failed
	BilledRequests    int64 // what SQS bills for all calls: one request for each 64 KiB begun of what a call carries
	AmbiguousReceives int64 // failed, so that SQS may have handed out messages that nobody got
	AbortedReceives   int64 // broken off by a drain whose time was over
	OverLimit         int64 // refused because too many messages are in flight
	Received          int64 // messages
	Duplicates        int64 // received while held here already
	Suppressed        int64 // completed before, deleted without a run
	NearLimit         int64 // that the redrive policy takes next time or the time after, though a receive was no failure
	Corrupt           int64 // whose body didn't match its MD5; given back, not run

	// Running.
	Started      int64 // handlers started
	Succeeded    int64
	Failed       int64 // errors and panics
	Panics       int64 // of them panics
	Overdue      int64 // handlers reported for not returning after their timeout
	LateResults  int64 // results that came after the drain had given the message back
	Lost         int64 // leases lost
	MeanHandling time.Duration

	// Settling.
	Deleted             int64
	DeleteCalls         int64         // DeleteMessageBatch calls
	DeleteFailures      int64         // entries that failed, tried again or not
	Undeleted           int64         // completed messages that were not deleted
	MeanDeleteLag       time.Duration // from the handler's end to the confirmed delete
	Retried             int64         // given back after a failure
	RetriedInProcess    int64         // handlers called again without giving the message back
	DeadLettered        int64         // sent to the dead-letter sink
	DeadLetterFailures  int64         // that the sink did not take; given back
	Unavailable         int64         // given back because a dependency is down
	BreakerOpened       int64         // how often the breaker opened
	Breaker             BreakerState
	Snoozed             int64
	Interrupted         int64 // given back because the drain cancelled their handlers
	ReleasedUnstarted   int64 // given back without having been started
	TenantSurplus       int64 // given back because their tenant had as many as it may
	ReleaseFailures     int64 // that could not be given back
	AfterDeleteFailures int64

	// Heartbeat counts renewals and releases, which share their calls.
	Heartbeat heartbeat.Stats
}

// counters are the live form of Stats.
type counters struct {
	receives, emptyReceives, receiveErrors, ambiguousReceives, abortedReceives, overLimit atomic.Int64
	received, duplicates, suppressed, nearLimit, corrupt, tenantSurplus                   atomic.Int64
	started, succeeded, failed, panics, overdue, lateResults, lost                        atomic.Int64
	deleted, deleteCalls, deleteFailures, undeleted                                       atomic.Int64
	retried, snoozed, interrupted, releasedUnstarted, releaseFailures                     atomic.Int64
	afterDeleteFailures                                                                   atomic.Int64
	retriedInProcess, deadLettered, deadLetterFailures, unavailable, breakerOpened        atomic.Int64
	filledReceives, billed                                                                atomic.Int64 // billed: for receives
	meanHandling                                                                          atomic.Int64 // nanoseconds
	deleteLag                                                                             mean
}

// handled updates the moving average of how long handlers take.
func (c *counters) handled(took time.Duration) {
	old := c.meanHandling.Load()
	c.meanHandling.Store(old + (int64(took)-old)/16) // a lost update costs nothing
}

// mean is a running mean.
type mean struct{ sum, n atomic.Int64 }

func (m *mean) observe(d time.Duration) {
	m.sum.Add(int64(d))
	m.n.Add(1)
}

func (m *mean) value() time.Duration {
	if n := m.n.Load(); n > 0 {
		return time.Duration(m.sum.Load() / n)
	}
	return 0
}

// Stats returns the counts of the current run, or of the last one. It is safe at any time.
func (w *Worker) Stats() Stats {
	r := w.current.Load()
	if r == nil {
		return Stats{}
	}
	return r.snapshot()
}

func (r *run) snapshot() Stats {
	c := &r.stats
	s := Stats{
		Held: r.registry.size(), Unsettled: r.unsettled.count(), FreeSlots: r.slots.available(), OpenReceives: int(r.poller.health.open.Load()),
		Receives: c.receives.Load(), EmptyReceives: c.emptyReceives.Load(), ReceiveErrors: c.receiveErrors.Load(),
		AmbiguousReceives: c.ambiguousReceives.Load(), AbortedReceives: c.abortedReceives.Load(), OverLimit: c.overLimit.Load(),
		Received: c.received.Load(), Duplicates: c.duplicates.Load(), Suppressed: c.suppressed.Load(), Corrupt: c.corrupt.Load(),
		Started: c.started.Load(), Succeeded: c.succeeded.Load(), Failed: c.failed.Load(), Panics: c.panics.Load(),
		Overdue: c.overdue.Load(), LateResults: c.lateResults.Load(), Lost: c.lost.Load(), MeanHandling: time.Duration(c.meanHandling.Load()),
		Deleted: c.deleted.Load(), DeleteCalls: c.deleteCalls.Load(), DeleteFailures: c.deleteFailures.Load(), Undeleted: c.undeleted.Load(),
		MeanDeleteLag: c.deleteLag.value(), Retried: c.retried.Load(), Snoozed: c.snoozed.Load(), Interrupted: c.interrupted.Load(),
		ReleasedUnstarted: c.releasedUnstarted.Load(), ReleaseFailures: c.releaseFailures.Load(), AfterDeleteFailures: c.afterDeleteFailures.Load(),
		Heartbeat: r.heartbeat.Stats(),
	}
	s.RetriedInProcess, s.DeadLettered, s.DeadLetterFailures = c.retriedInProcess.Load(), c.deadLettered.Load(), c.deadLetterFailures.Load()
	s.Unavailable, s.BreakerOpened = c.unavailable.Load(), c.breakerOpened.Load()
	s.TenantSurplus = c.tenantSurplus.Load()
	s.NearLimit, s.FilledReceives = c.nearLimit.Load(), c.filledReceives.Load()
	s.BilledRequests = c.billed.Load() + s.DeleteCalls + s.Heartbeat.Calls
	s.Breaker, _ = r.breaker.snapshot()
	s.Waiting, s.Running = r.dispatcher.counts()
	return s
}
