package worker

import (
	"slices"
	"sync"
	"time"
)

// handback is what a drain has to give back unstarted: what waited when it began, and what receives of our own that are
// still open bring afterwards.
//
// Such a receive would take what is given back right in again, at the price of a receive more on its count, and the
// redrive policy moves messages by that count. So while receives are open, messages are given back one at a time, those
// that have been received least often first: each goes to somebody else, or ends one of our receives. After a second
// everything is given back at once. But a message that did come back to us, or that may be received only once more, stays
// under its lease until our receives have ended, unless the drain is in a hurry.
type handback struct {
	mu      sync.Mutex
	phase   handbackPhase
	waiting []*delivery
	given   map[string]struct{} // ids of messages that were given back in this drain
}

type handbackPhase int

const (
	oneByOne handbackPhase = iota
	butThoseAtRisk
	everything
)

// add keeps messages for later, and returns those that are to be given back now.
func (h *handback) add(r *run, batch []*delivery) (now []*delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range batch {
		if h.phase == oneByOne || h.phase == butThoseAtRisk && h.atRiskLocked(r, d) {
			h.waiting = append(h.waiting, d)
			continue
		}
		h.noteLocked(d)
		now = append(now, d)
	}
	return now
}

func (h *handback) atRiskLocked(r *run, d *delivery) bool {
	_, back := h.given[d.id]
	return back || r.nearLimit(d)
}

func (h *handback) noteLocked(d *delivery) {
	if h.given == nil {
		h.given = map[string]struct{}{}
	}
	h.given[d.id] = struct{}{}
}

// next takes the one that was received least often, on a FIFO queue the first; none when all that wait are at risk.
func (h *handback) next(r *run) []*delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	least := -1
	for i, d := range h.waiting {
		if !h.atRiskLocked(r, d) && (least < 0 || !r.fifo && d.receives < h.waiting[least].receives) {
			least = i
		}
	}
	if least < 0 {
		return nil
	}
	d := h.waiting[least]
	h.waiting = slices.Delete(h.waiting, least, least+1)
	h.noteLocked(d)
	return []*delivery{d}
}

// enter begins a phase and takes what it doesn't keep.
func (h *handback) enter(r *run, phase handbackPhase) []*delivery {
	h.mu.Lock()
	h.phase = phase
	batch := h.waiting
	h.waiting = nil
	h.mu.Unlock()
	return h.add(r, batch)
}

// giveBackUnstarted gives back what wasn't started. The function that it returns waits until that is over.
func (r *run) giveBackUnstarted(unstarted []*delivery, polled <-chan struct{}, t *timetable) (wait func()) {
	r.giveBack(r.handback.add(r, unstarted), 0, 0)
	giveUp := time.Now().Add(time.Second)
	for any := len(unstarted) > 0; any; {
		s, _ := t.now()
		now := time.Now()
		if !now.Before(first(giveUp, s.cancel)) || waitUntil(polled, now.Add(50*time.Millisecond)) {
			break
		}
		r.giveBack(r.handback.next(r), 0, 0)
	}
	r.giveBack(r.handback.enter(r, butThoseAtRisk), 0, 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.await(polled, byRisk)
		r.giveBack(r.handback.enter(r, everything), 0, 0)
	}()
	return func() { <-done }
}
