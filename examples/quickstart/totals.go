package main

import (
	"slices"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// totals is what became of all messages.
type totals struct {
	sent, received int
	handled        int // messages of which a run succeeded
	retried        int // runs after a failed one
	released       int // messages given back by the worker that was told to stop
	dead           int // in the dead-letter queue
	goodDead       int // of them such as would have succeeded
	left           int // still in the queue
	lost           int // gone without a successful run and without being dead-lettered
	twice          int // runs of a message that had succeeded already, or was running
	suppressed     int // messages deleted without a run
	again          int // of them such as an earlier delivery had succeeded with
	charged        int // orders
	chargedTwice   int // of them more than once, and no crash was the cause
	afterCrash     int // runs that the crash made necessary: cut short by it, or succeeded and not deleted in time
}

// totals counts, once nothing runs any more. left and dead are the ids of the messages that are in the queue and in the
// dead-letter queue now.
func (l *ledger) totals(left, dead map[string]bool) totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := totals{left: len(left)}
	orders := l.orders()
	for _, o := range orders {
		count(&t.charged, o.charges > 0)
		count(&t.chargedTwice, o.again > 0)
	}
	for id, e := range l.entries {
		t.add(e)
		if dead[id] {
			t.dead++
			count(&t.goodDead, !e.message.job.alwaysFails && !orders[e.message.job.name].ambiguous)
		}
		retried, twice, afterCrash := l.rerun(e.runs)
		t.retried += retried
		t.twice += twice
		t.afterCrash += afterCrash
		done := e.succeeded() || orders[e.message.job.name].charges > 0
		count(&t.lost, !dead[id] && !left[id] && !(e.deleted() && done))
	}
	return t
}

// add counts what the server did with one message.
func (t *totals) add(e *entry) {
	for _, ev := range e.events {
		switch ev.Kind {
		case sqsmodel.Sent:
			t.sent++
		case sqsmodel.Received:
			t.received++
		}
	}
	count(&t.released, e.released())
	count(&t.handled, e.succeeded())
	count(&t.suppressed, e.suppressed())
	count(&t.again, e.suppressed() && e.succeeded())
}

// order is what became of the orders with one number, in however many messages they came. A run that succeeds charges
// the customer.
type order struct {
	charges   int
	again     int  // charges after one, none of them because of a crash
	ambiguous bool // its messages don't say the same
}

func (l *ledger) orders() map[string]order {
	orders := map[string]order{}
	runs, body := map[string][]handlerRun{}, map[string]string{}
	for _, e := range l.entries {
		name := e.message.job.name
		if e.message.job.event {
			continue
		}
		o := orders[name]
		o.ambiguous = o.ambiguous || body[name] != "" && body[name] != e.message.body
		orders[name], body[name] = o, e.message.body
		runs[name] = append(runs[name], e.runs...)
	}
	for name, o := range orders {
		o.charges, o.again = l.charges(runs[name])
		orders[name] = o
	}
	return orders
}

// charges counts the runs that succeeded, and of them those after which that should not have been.
func (l *ledger) charges(runs []handlerRun) (all, again int) {
	runs = slices.DeleteFunc(slices.Clone(runs), func(r handlerRun) bool { return r.to.IsZero() || r.end != succeeded })
	slices.SortFunc(runs, func(a, b handlerRun) int { return a.to.Compare(b.to) })
	for i, r := range runs {
		died := func(earlier handlerRun) bool { return earlier.worker == l.killed && r.from.After(l.killedAt) }
		count(&again, i > 0 && !(l.killed != "" && slices.ContainsFunc(runs[:i], died)))
	}
	return len(runs), again
}

// suppressed tells whether the message was deleted by a delivery that it wasn't run for.
func (e *entry) suppressed() bool {
	var received time.Time
	for _, ev := range e.ordered() {
		switch ev.Kind {
		case sqsmodel.Received:
			received = ev.At
		case sqsmodel.Deleted:
			return !slices.ContainsFunc(e.runs, func(r handlerRun) bool { return !r.from.Before(received) })
		}
	}
	return false
}

func (e *entry) deleted() bool {
	return slices.ContainsFunc(e.events, func(ev sqsmodel.Event) bool { return ev.Kind == sqsmodel.Deleted })
}

func (e *entry) released() bool {
	return slices.ContainsFunc(e.events, func(ev sqsmodel.Event) bool {
		return ev.Kind == sqsmodel.VisibilityChanged && ev.VisibilityTimeout == 0
	})
}

func (e *entry) succeeded() bool {
	return slices.ContainsFunc(e.runs, func(r handlerRun) bool { return !r.to.IsZero() && r.end == succeeded })
}

// rerun judges each run of a message by those that began before it.
func (l *ledger) rerun(runs []handlerRun) (retried, twice, afterCrash int) {
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b handlerRun) int { return a.from.Compare(b.from) })
	for i, r := range runs {
		var afterFailure, afterCut, duplicate bool
		for _, earlier := range runs[:i] {
			switch {
			case earlier.to.IsZero() || earlier.to.After(r.from): // both ran at the same time
				duplicate = true
			case earlier.end == cut:
				afterCut = true
			case earlier.end == succeeded && earlier.worker == l.killed && r.from.After(l.killedAt): // its delete died too
				afterCut = true
			case earlier.end == succeeded:
				duplicate = true
			case earlier.end == failed:
				afterFailure = true
			}
		}
		switch {
		case duplicate:
			twice++
		case afterCut:
			afterCrash++
		case afterFailure:
			retried++
		}
	}
	return retried, twice, afterCrash
}
