package bench

import (
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// ledger counts what happens to messages at the server.
type ledger struct {
	mu       sync.Mutex
	counts   tallies
	expected int64 // messages of this run
	changed  *sync.Cond
}

// tallies are a ledger's figures.
type tallies struct {
	Sent, Received, Deleted, Released, Extended, Expired int64
	InFlight, PeakInFlight                               int64
	// FirstReceived is when the first message was handed out; LowAt and HighAt are when a tenth and nine tenths of
	// the expected messages had been deleted: between them a contestant runs at full speed.
	FirstReceived, LowAt, HighAt, LastDeleted time.Time
	Low, High                                 int64
}

func newLedger() *ledger {
	l := &ledger{}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// expect says how many messages this run has.
func (l *ledger) expect(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expected += n
	l.counts.Low, l.counts.High = l.expected/10, l.expected*9/10
}

// note is the model's listener.
func (l *ledger) note(e sqsmodel.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.counts
	switch e.Kind {
	case sqsmodel.Sent:
		t.Sent++
	case sqsmodel.Received:
		if t.Received++; t.Received == 1 {
			t.FirstReceived = e.At
		}
		t.InFlight++
		t.PeakInFlight = max(t.PeakInFlight, t.InFlight)
	case sqsmodel.Deleted:
		t.InFlight--
		l.noteDeletedLocked(e.At)
	case sqsmodel.VisibilityChanged:
		t.Extended++
		if e.VisibilityTimeout == 0 {
			t.Extended--
			t.Released++
			t.InFlight--
		}
	case sqsmodel.Expired:
		t.Expired++
		t.InFlight--
	}
}

func (l *ledger) noteDeletedLocked(at time.Time) {
	t := &l.counts
	t.Deleted++
	t.LastDeleted = at
	switch t.Deleted {
	case t.Low:
		t.LowAt = at
	case t.High:
		t.HighAt = at
	}
	if t.Deleted == t.Low || t.Deleted >= l.expected {
		l.changed.Broadcast()
	}
}

// awaitDeleted waits until everything expected has been deleted, or a tenth of it, and reports whether it was in time.
func (l *ledger) awaitDeleted(tenth bool, most time.Duration) bool {
	deadline := time.Now().Add(most)
	late := time.AfterFunc(most, l.changed.Broadcast)
	defer late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	target := l.expected
	if tenth {
		target = l.counts.Low
	}
	for l.counts.Deleted < target {
		if !time.Now().Before(deadline) {
			return false
		}
		l.changed.Wait()
	}
	return true
}

func (l *ledger) snapshot() tallies {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// rate is the messages per second between a tenth and nine tenths of the run.
func (t tallies) rate() float64 {
	took := t.HighAt.Sub(t.LowAt).Seconds()
	if took <= 0 {
		return 0
	}
	return float64(t.High-t.Low) / took
}
