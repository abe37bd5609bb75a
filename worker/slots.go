package worker

import "sync"

// slots counts what may still be received: Concurrency + Prefetch, less what is held and what open receives asked
// for. A receive takes its slots before it is sent, so that never more arrives than can be kept; each message
// returns its slot when its handler is done, whatever became of it.
type slots struct {
	freed chan struct{} // capacity 1: some came back

	mu    sync.Mutex
	total int
	free  int // below zero while more is held than a lowered total allows
}

func newSlots(total int) *slots {
	return &slots{total: total, free: total, freed: make(chan struct{}, 1)}
}

// take takes n slots, or none and reports how many are free.
func (s *slots) take(n int) (ok bool, free int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free < n {
		return false, max(s.free, 0)
	}
	s.free -= n
	return true, s.free
}

func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	s.free += n
	s.mu.Unlock()
	s.tell()
}

func (s *slots) tell() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// resize changes the total. What is held beyond a lower one is worked off before anything more is received.
func (s *slots) resize(total int) {
	s.mu.Lock()
	more := total - s.total
	s.total = total
	s.free += more
	s.mu.Unlock()
	if more > 0 {
		s.tell()
	}
}

func (s *slots) available() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.free, 0)
}

func (s *slots) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}
