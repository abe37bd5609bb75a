package sqsmodel

import "time"

// Call is one request as the server saw it.
type Call struct {
	Action, Queue      string
	At                 time.Time // when it arrived
	Done               time.Time // when it was answered or failed
	Entries            int       // of a batch
	ReceiptHandles     []string  // used, or given out by a receive
	VisibilityTimeouts []int     // seconds; of a receive only if it set one
	Input              any       // the SDK's input type, decoded
	Err                string    // error code answered, "ConnectionDropped", "Canceled", or "" for success
	FailedEntries      int
	Messages           int // received
	MaxMessages        int // asked for; 0 = left out
	WaitSeconds        int // asked for; 0 = left out, or a short poll
	AttemptID          string
	MessageIDs         []string // sent or received
}

// Calls returns the finished calls in the order in which they finished: the
// newest hundred thousand at least.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls.list()
}

// RecordCalls switches the recording off and on; Count works either way.
func (s *Server) RecordCalls(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.off = !on
}

// Count says how many calls of an action have arrived since ResetCounts,
// finished or not, failed or not; "" = of any action, unknown ones too.
func (s *Server) Count(action string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[action]
}

// ResetCounts sets all of Count's counters to 0 and forgets Calls.
func (s *Server) ResetCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.counts)
	s.calls.items = nil
}
