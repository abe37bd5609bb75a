package sqsmodel

import (
	"slices"
	"time"
)

// EventKind names what happened to a message.
type EventKind int

const (
	Sent              EventKind = iota // accepted by SendMessage or SendMessageBatch
	Received                           // handed to a consumer, or to a poll that nobody waits for any more
	Deleted                            // by DeleteMessage or DeleteMessageBatch
	VisibilityChanged                  // by ChangeMessageVisibility or ChangeMessageVisibilityBatch; 0 = released
	Expired                            // a visibility ran out without delete: a lease lapsed
	DeadLettered                       // moved to the dead-letter queue by the redrive policy; Queue is the source
	RetentionExpired                   // older than the queue's retention period
	Purged                             // by PurgeQueue or DeleteQueue
	Moved                              // by a message move task; Queue is the task's source, MessageID the old one
	Deduplicated                       // a send that FIFO deduplication swallowed; MessageID is the first one's
	Duplicated                         // made deliverable again inside its visibility
	eventKinds
)

var eventKindNames = [eventKinds]string{
	"Sent", "Received", "Deleted", "VisibilityChanged", "Expired", "DeadLettered",
	"RetentionExpired", "Purged", "Moved", "Deduplicated", "Duplicated",
}

func (k EventKind) String() string {
	if k < 0 || k >= eventKinds {
		return "unknown"
	}
	return eventKindNames[k]
}

// Event is one change of one message.
type Event struct {
	Seq               uint64 // order in which the model applied the events
	At                time.Time
	Kind              EventKind
	Queue             string // name
	MessageID         string
	Handle            string // the receipt handle used or given out
	ReceiveCount      int
	VisibilityTimeout time.Duration // Received, VisibilityChanged: what the message was hidden for
}

type listener struct{ fn func(Event) }

// OnEvent calls fn with every event from now on, in the goroutine of the call
// that caused it and before that call is answered. Calls in several goroutines
// reach fn side by side (Event.Seq has the order); fn may use the Server. What
// time alone has done, an expired visibility say, is told when somebody looks.
func (s *Server) OnEvent(fn func(Event)) (remove func()) {
	l := &listener{fn}
	s.lock()
	defer s.unlock()
	s.listeners = append(slices.Clip(s.listeners), l)
	return func() {
		s.lock()
		defer s.unlock()
		s.listeners = slices.DeleteFunc(slices.Clone(s.listeners), func(o *listener) bool { return o == l })
	}
}

// Journal returns the events so far by their time (the newest half million at
// least), with everything that time has done until now.
func (s *Server) Journal() []Event {
	s.lock()
	s.advanceAll(time.Now())
	events := s.journal.list()
	s.unlock()
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
	return events
}

// CountEvents says how often an event has happened, whatever the journal keeps.
func (s *Server) CountEvents(kind EventKind) int64 {
	s.lock()
	defer s.unlock()
	s.advanceAll(time.Now())
	return s.kinds[kind]
}

// RecordJournal switches the journal off and on; listeners and CountEvents
// work either way.
func (s *Server) RecordJournal(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal.off = !on
}

func (s *Server) emit(q *queue, m *message, kind EventKind, at time.Time, handle string, visibility time.Duration) {
	s.kinds[kind]++
	if s.journal.off && len(s.listeners) == 0 {
		return
	}
	s.events++
	e := Event{
		Seq: s.events, At: at, Kind: kind, Queue: q.name, MessageID: m.id, Handle: handle,
		ReceiveCount: m.receives, VisibilityTimeout: visibility,
	}
	s.journal.add(e)
	if len(s.listeners) > 0 {
		s.pending = append(s.pending, e)
	}
}
