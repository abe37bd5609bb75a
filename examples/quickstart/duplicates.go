package main

import (
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// longestWait is how long somebody wants to wait, at most, for a message to come back whose delete failed.
const longestWait = 10 * time.Second

// failedDeletes scripts an SQS that refuses the first receipt handle of some messages at their delete, although they were
// handled: such a message comes back when its visibility ends. (A delete that fails in passing doesn't bring it back: the
// worker holds it, and tries again.)
type failedDeletes struct {
	ledger *ledger

	mu     sync.Mutex
	handle map[string]string // by message id: the receipt handle with which it can't be deleted
	failed []string          // ids of the messages, in order
}

func (s *scene) failDeletes() *failedDeletes {
	f := &failedDeletes{ledger: s.ledger, handle: map[string]string{}}
	if s.o.visibility <= longestWait && s.victim == nil { // a crash is enough for one lesson
		s.server.Inject(sqsmodel.Fault{Action: deleteAction, FailEntries: f.judge})
	}
	return f
}

func (f *failedDeletes) judge(_ sqsmodel.Call, _ int, _, handle string) *sqsmodel.EntryError {
	id := f.ledger.failingDelete(handle)
	if id == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handle[id] == "" {
		f.handle[id] = handle
		f.failed = append(f.failed, id)
	}
	if f.handle[id] != handle {
		return nil // it was received again
	}
	return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", Message: "scripted", SenderFault: true}
}

func (f *failedDeletes) since(skip int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed[min(skip, len(f.failed)):]
}

// tellDuplicates tells of the first message of each kind that came although its work was done, or will come.
func (s *scene) tellDuplicates() {
	for _, id := range s.deletes.since(s.deletesTold) {
		if s.deletesTold++; s.deletesTold == 1 {
			s.out.say("%s has been handled, but SQS refuses its delete: it will come again", s.ledger.job(id).name)
		}
	}
	for _, d := range s.ledger.suppressed(&s.deletionsSeen) {
		switch {
		case d.again && !s.againTold:
			s.againTold = true
			s.out.say("%s came again after its success: deleted without a run", d.name)
		case !d.again && !s.twiceTold:
			s.twiceTold = true
			s.out.say("%s came a second time, as another message: deleted without a run", d.name)
		}
	}
}
