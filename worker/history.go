package worker

import (
	"sync"
	"time"
)

const (
	historyStep  = 15 * time.Second
	historySteps = 60 // a quarter of an hour
)

// HistoryStep is how many handlers ended in one step of a worker's history, and how many of them had failed.
type HistoryStep struct {
	At      time.Time `json:"at"` // its beginning
	Handled int       `json:"handled"`
	Failed  int       `json:"failed"`
}

// history counts what handlers did in the last quarter of an hour, for the status page. A nil one counts nothing.
type history struct {
	mu    sync.Mutex
	steps [historySteps]HistoryStep
}

func (h *history) handled(o outcome) {
	if h == nil {
		return
	}
	at := time.Now().Truncate(historyStep)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.step(at)
	s.Handled++
	if o.kind == failed || o.kind == unavailable || o.kind == lost {
		s.Failed++
	}
}

// step is the one that begins at a time; its place may still be taken by one of a quarter of an hour ago.
func (h *history) step(at time.Time) *HistoryStep {
	s := &h.steps[at.UnixNano()/int64(historyStep)%historySteps]
	if !s.At.Equal(at) {
		*s = HistoryStep{At: at}
	}
	return s
}

// list is every step up to now, oldest first.
func (h *history) list(now time.Time) []HistoryStep {
	all := make([]HistoryStep, 0, historySteps)
	last := now.Truncate(historyStep)
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := last.Add(-(historySteps - 1) * historyStep); !at.After(last); at = at.Add(historyStep) {
		s := h.steps[at.UnixNano()/int64(historyStep)%historySteps]
		if !s.At.Equal(at) {
			s = HistoryStep{At: at}
		}
		all = append(all, s)
	}
	return all
}
