package sqsmodel

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// A receipt handle names queue, message and receive, with a checksum that tells
// garbage from a handle. Nothing has to be remembered for handles that have been
// replaced or whose message is gone.
type handle struct {
	serial, receipt uint64
}

func encodeHandle(q *queue, m *message) string {
	if m.receipt == 0 {
		return ""
	}
	var b [24]byte
	binary.BigEndian.PutUint32(b[:], q.id)
	binary.BigEndian.PutUint64(b[4:], m.serial)
	binary.BigEndian.PutUint64(b[12:], m.receipt)
	binary.BigEndian.PutUint32(b[20:], crc32.ChecksumIEEE(b[:20]))
	return "AQEB" + base64.StdEncoding.EncodeToString(b[:])
}

func (q *queue) decodeHandle(text *string) (handle, *apiError) {
	if text == nil || *text == "" {
		return handle{}, missing("ReceiptHandle")
	}
	invalid := func() *apiError {
		return fail("ReceiptHandleIsInvalid", `The input receipt handle "%s" is not a valid receipt handle.`, *text)
	}
	if len(*text) != 36 || (*text)[:4] != "AQEB" {
		return handle{}, invalid()
	}
	var b [24]byte
	if n, err := base64.StdEncoding.Decode(b[:], []byte((*text)[4:])); err != nil || n != len(b) {
		return handle{}, invalid()
	}
	if binary.BigEndian.Uint32(b[20:]) != crc32.ChecksumIEEE(b[:20]) || binary.BigEndian.Uint32(b[:]) != q.id {
		return handle{}, invalid()
	}
	return handle{binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])}, nil
}

const (
	reasonGone    = "Message does not exist or is not available for visibility timeout change."
	reasonExpired = "The receipt handle has expired."
)

// badHandle is a well-formed handle that is of no use any more. In a batch the
// same failure has another code, and only the reason as its text.
func badHandle(text, reason string) *apiError {
	e := invalidValue(text, "ReceiptHandle", reason)
	e.entryCode, e.entryMessage = "ReceiptHandleIsInvalid", strings.TrimSuffix(reason, ".")
	return e
}

// visibilityInput tells a VisibilityTimeout that was left out from one that is 0.
type visibilityInput struct {
	sqs.ChangeMessageVisibilityInput
	VisibilityTimeout *int32
}

func (s *Server) changeMessageVisibility(x *exchange, in *visibilityInput) (reply, error) {
	if in.VisibilityTimeout == nil {
		return nil, missing("VisibilityTimeout")
	}
	return empty{}, s.changeVisibility(x.queue, in.ReceiptHandle, *in.VisibilityTimeout, x.now).orNil()
}

func (s *Server) changeMessageVisibilityBatch(x *exchange, in *sqs.ChangeMessageVisibilityBatchInput) (reply, error) {
	if err := checkBatch("ChangeMessageVisibilityBatchRequestEntry", x.entryIDs); err != nil {
		return nil, err
	}
	return x.batch(func(i int) (*sent, *apiError) {
		e := in.Entries[i]
		return nil, s.changeVisibility(x.queue, e.ReceiptHandle, e.VisibilityTimeout, x.now)
	}), nil
}

func (s *Server) changeVisibility(q *queue, text *string, seconds int32, now time.Time) *apiError {
	h, err := q.decodeHandle(text)
	if err != nil {
		return err
	}
	if seconds < 0 || seconds > maxVisibility {
		return invalidValue(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
	}
	m := q.messages[h.serial]
	if m == nil {
		return badHandle(*text, reasonGone)
	}
	if m.state != InFlight || q.fifo && h.receipt != m.receipt {
		return s.changeExpired(q, m, h, *text, seconds, now)
	}
	return s.hide(q, m, *text, seconds, now)
}

// changeExpired handles a handle whose visibility has run out. On a standard
// queue a replaced handle is as good as the newest one while the message is in
// flight, so only the message's own state brings a call here.
func (s *Server) changeExpired(q *queue, m *message, h handle, text string, seconds int32, now time.Time) *apiError {
	switch {
	case q.fifo:
		return badHandle(text, reasonGone)
	case m.duplicate && h.receipt == m.receipt && now.Before(m.leaseUntil):
		m.leaseUntil = now.Add(time.Duration(seconds) * time.Second)
		m.changes++
		s.emit(q, m, VisibilityChanged, now, text, time.Duration(seconds)*time.Second)
		return nil
	case s.cfg.ExpiredVisibility == ExpiredVisibilityApplies:
		return s.hide(q, m, text, seconds, now)
	case s.cfg.ExpiredVisibility == ExpiredVisibilityFails:
		return fail("MessageNotInflight")
	}
	return nil
}

// hide applies the new visibility: from now, not added to what is left.
func (s *Server) hide(q *queue, m *message, text string, seconds int32, now time.Time) *apiError {
	d := time.Duration(seconds) * time.Second
	if now.Add(d).After(m.clock.Add(s.cfg.MaxHold)) {
		return invalidValue(seconds, "VisibilityTimeout",
			"Total VisibilityTimeout for the message is beyond the limit ["+strconv.Itoa(int(s.cfg.MaxHold/time.Second))+" seconds]")
	}
	m.changes++
	s.emit(q, m, VisibilityChanged, now, text, d)
	if seconds == 0 {
		s.setState(q, m, Visible, now)
	} else {
		s.setState(q, m, InFlight, now.Add(d))
	}
	return nil
}

// Duplicate makes an in-flight message of a standard queue deliverable again
// inside its visibility, as at-least-once delivery may: the next receive returns
// it with the same MessageId and a new handle, the first holder's handle goes on
// working by the rules for replaced handles. It reports whether the message was
// in flight.
func (s *Server) Duplicate(queue, messageID string) bool {
	s.lock()
	defer s.unlock()
	now := time.Now()
	q := s.lookup(queue)
	if q == nil || q.fifo {
		return false
	}
	s.advance(q, now)
	for _, m := range q.messages {
		if m.id == messageID && m.state == InFlight {
			s.duplicate(q, m, now)
			s.settle(now)
			return true
		}
	}
	return false
}

func (s *Server) duplicate(q *queue, m *message, now time.Time) {
	until := m.visibleAt
	s.setState(q, m, Visible, now)
	m.duplicate, m.leaseUntil = true, until
	s.emit(q, m, Duplicated, now, encodeHandle(q, m), 0)
}
