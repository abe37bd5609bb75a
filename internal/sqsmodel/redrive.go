package sqsmodel

import (
	"strings"
	"time"
)

// exhausted returns the dead-letter queue that a message has to go to instead of
// being received: the policy acts at the receive after the last one allowed. A
// policy whose target is gone does nothing.
func (s *Server) exhausted(q *queue, m *message, at time.Time) *queue {
	if q.settings.deadLetterARN == "" || m.receives < q.settings.maxReceives {
		return nil
	}
	if m.hopped.Equal(at) && m.hops >= len(s.queues) {
		return nil // policies in a circle
	}
	target := s.byARN(q.settings.deadLetterARN)
	if target == nil || target.fifo != q.fifo {
		return nil
	}
	return target
}

func (s *Server) byARN(arn string) *queue {
	if q := s.queues[arn[strings.LastIndexByte(arn, ':')+1:]]; q != nil && q.arn == arn {
		return q
	}
	return nil
}

// deadLetter moves a message with its id, attributes and receive count. On a
// standard queue its age goes on, on a FIFO queue its retention starts again and
// its message id becomes its deduplication id.
func (s *Server) deadLetter(from, to *queue, m *message, at time.Time) {
	s.emit(from, m, DeadLettered, at, "", 0)
	s.remove(from, m)
	moved := *m
	moved.place, moved.age = 0, 0
	moved.receipt, moved.changes, moved.duplicate = 0, 0, false
	moved.state, moved.visibleAt = Visible, at
	moved.sourceID = from.arn
	if moved.hops++; !moved.hopped.Equal(at) {
		moved.hops, moved.hopped = 1, at
	}
	if to.fifo {
		moved.sentAt = at
		moved.dedupID = m.id
		moved.sequence = s.sequenceNumber()
	}
	s.add(to, &moved)
}
