package sqsmodel

import (
	"slices"
	"time"
)

// Fault is something that goes wrong with the calls it matches. Faults add up:
// holds are summed, and the first one that ends the call does.
type Fault struct {
	Action string          // "ReceiveMessage", …; "" = every action
	Queue  string          // queue name; "" = every queue
	Match  func(Call) bool // a further condition; must not inject faults
	Skip   int             // let that many matching calls through first
	Times  int             // then apply to that many; 0 = to all

	Hold      time.Duration // wait before processing, as a slow network does; ends with the caller's context
	HoldAfter time.Duration // apply, then wait before answering

	DropBefore bool // the connection fails, nothing is applied
	DropAfter  bool // applied, then the connection fails: the caller can't know
	Stall      bool // nothing is applied or answered until the context ends

	// Code answers with this error instead of processing the call. A name that
	// SQS knows ("RequestThrottled", "KmsThrottled", "QueueDoesNotExist",
	// "AccessDeniedException", "InternalFailure", shape or query code) brings its
	// status, header, type and text; Message and Status override them.
	Code    string
	Message string
	Status  int

	// FailEntries fails entries of a batch, the others are applied. It gets each
	// entry's index, its Id, and its receipt handle or, in a SendMessageBatch,
	// its body.
	FailEntries func(c Call, entry int, entryID, receiptHandleOrBody string) *EntryError

	// CorruptMD5 picks the messages for which ReceiveMessage answers a wrong
	// MD5OfBody.
	CorruptMD5 func(messageID string) bool
}

// EntryError is the failure of one batch entry.
type EntryError struct {
	Code, Message string
	SenderFault   bool
	ApplyAnyway   bool // the entry takes effect and is reported as failed all the same
}

type fault struct {
	Fault
	matched int
}

// Inject adds a fault until remove is called.
func (s *Server) Inject(f Fault) (remove func()) {
	entry := &fault{Fault: f}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(slices.Clip(s.faults), entry)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(slices.Clone(s.faults), func(o *fault) bool { return o == entry })
	}
}

// script is what the faults have in store for one call.
type script struct {
	hold, holdAfter              time.Duration
	dropBefore, dropAfter, stall bool
	err                          *apiError
	failEntries                  []func(Call, int, string, string) *EntryError
	corrupt                      []func(string) bool
}

func (s *Server) match(c Call) script {
	s.mu.Lock()
	faults := s.faults
	s.mu.Unlock()
	var sc script
	for _, f := range faults {
		if f.Action != "" && f.Action != c.Action || f.Queue != "" && f.Queue != c.Queue {
			continue
		}
		if f.Match != nil && !f.Match(c) {
			continue
		}
		s.mu.Lock()
		f.matched++
		n := f.matched - f.Skip
		s.mu.Unlock()
		if n > 0 && (f.Times == 0 || n <= f.Times) {
			sc.add(f.Fault)
		}
	}
	return sc
}

func (sc *script) add(f Fault) {
	sc.hold += f.Hold
	sc.holdAfter += f.HoldAfter
	if ended := sc.dropBefore || sc.stall || sc.err != nil; !ended {
		sc.dropBefore, sc.stall = f.DropBefore, f.Stall
		if f.Code != "" {
			sc.err = f.apiError()
		}
	}
	sc.dropAfter = sc.dropAfter || f.DropAfter
	if f.FailEntries != nil {
		sc.failEntries = append(sc.failEntries, f.FailEntries)
	}
	if f.CorruptMD5 != nil {
		sc.corrupt = append(sc.corrupt, f.CorruptMD5)
	}
}

func (f Fault) apiError() *apiError {
	e := fail(f.Code)
	if f.Message != "" {
		e.message = f.Message
	}
	if f.Status != 0 {
		e.status = f.Status
		e.receiver = f.Status >= 500
	}
	return e
}

func (x *exchange) corrupt(messageID string) bool {
	for _, f := range x.script.corrupt {
		if f(messageID) {
			return true
		}
	}
	return false
}

// failEntries asks the scripts about every entry, before the state is locked.
func (x *exchange) failEntries() {
	for _, f := range x.script.failEntries {
		for i, id := range x.entryIDs {
			if x.entryErrors[i] != nil {
				continue
			}
			if e := f(x.call, i, id, x.subjects[i]); e != nil {
				if x.entryErrors == nil {
					x.entryErrors = map[int]*EntryError{}
				}
				x.entryErrors[i] = e
			}
		}
	}
}
