package main

import (
	"slices"

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
	afterCrash     int // runs that the crash made necessary: cut short by it, or succeeded and not deleted in time
}

// totals counts, once nothing runs any more. left and dead are the ids of the messages that are in the queue and in the
// dead-letter queue now.
func (l *ledger) totals(left, dead map[string]bool) totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := totals{left: len(left)}
	for id, e := range l.entries {
		t.add(e)
		if dead[id] {
			t.dead++
			count(&t.goodDead, !e.message.job.alwaysFails)
		}
		retried, twice, afterCrash := l.rerun(e.runs)
		t.retried += retried
		t.twice += twice
		t.afterCrash += afterCrash
		count(&t.lost, !dead[id] && !left[id] && !(e.deleted() && e.succeeded()))
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
