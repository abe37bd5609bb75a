package sqsmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// QueueState is a queue as it is now. The counts are exact.
type QueueState struct {
	Name, URL, ARN             string
	Visible, InFlight, Delayed int
	OpenPolls                  int            // long polls waiting, abandoned ones too
	Messages                   []MessageState // in the order they came to this queue
}

// MessageState is one message as it is now.
type MessageState struct {
	ID, Body, GroupID, DeduplicationID, SequenceNumber string
	State                                              State
	ReceiveCount                                       int
	SentAt, FirstReceivedAt                            time.Time
	VisibleAt                                          time.Time // end of its visibility timeout or delay
	Handle                                             string    // the newest; "" = not received from this queue
	DeadLetterSourceARN                                string
}

// Queue looks at a queue by its name or URL, without touching it. A queue that
// doesn't exist has a zero QueueState.
func (s *Server) Queue(nameOrURL string) QueueState {
	s.lock()
	defer s.unlock()
	s.advanceAll(time.Now())
	q := s.lookup(nameOrURL)
	if q == nil {
		return QueueState{}
	}
	st := QueueState{
		Name: q.name, URL: q.url, ARN: q.arn, OpenPolls: len(q.polls),
		Visible: q.count[Visible], InFlight: q.count[InFlight], Delayed: q.count[Delayed],
	}
	serials := make([]uint64, 0, len(q.messages))
	for serial := range q.messages {
		serials = append(serials, serial)
	}
	slices.Sort(serials)
	for _, serial := range serials {
		st.Messages = append(st.Messages, q.messages[serial].snapshot(q))
	}
	return st
}

func (m *message) snapshot(q *queue) MessageState {
	return MessageState{
		ID: m.id, Body: m.body, GroupID: m.groupID, DeduplicationID: m.dedupID, SequenceNumber: m.sequence,
		State: m.state, ReceiveCount: m.receives,
		SentAt: m.sentAt, FirstReceivedAt: m.firstReceived, VisibleAt: m.visibleAt,
		Handle: encodeHandle(q, m), DeadLetterSourceARN: m.sourceID,
	}
}

func (s *Server) lookup(nameOrURL string) *queue {
	if q := s.queues[nameOrURL]; q != nil {
		return q
	}
	if q, err := s.find(&nameOrURL); err == nil {
		return q
	}
	return nil
}

// MustCreateQueue creates a queue and returns its URL. It is not recorded as a
// call, faults don't touch it, it takes no time, and it panics if SQS would
// refuse.
func (s *Server) MustCreateQueue(name string, attrs map[string]string) string {
	in := &sqs.CreateQueueInput{QueueName: &name, Attributes: attrs}
	out := s.must("CreateQueue", func(x *exchange) (reply, error) { return s.createQueue(x, in) })
	var res struct{ QueueUrl string }
	if err := json.Unmarshal(out, &res); err != nil {
		panic(err)
	}
	return res.QueueUrl
}

// MustSend sends messages, each with its own group and deduplication id if the
// queue is FIFO (see MustSendGroup), and returns their MessageIds. Like
// MustCreateQueue it is no call.
func (s *Server) MustSend(queueURL string, bodies ...string) []string {
	return s.mustSend(queueURL, func(id string) *string { return &id }, bodies)
}

// MustSendGroup sends messages to one message group.
func (s *Server) MustSendGroup(queueURL, groupID string, bodies ...string) []string {
	return s.mustSend(queueURL, func(string) *string { return &groupID }, bodies)
}

func (s *Server) mustSend(queueURL string, group func(unique string) *string, bodies []string) []string {
	var ids []string
	s.must("SendMessage", func(x *exchange) (reply, error) {
		q := s.lookup(queueURL)
		if q == nil {
			return nil, fail("QueueDoesNotExist")
		}
		s.advance(q, x.now)
		for _, body := range bodies {
			o := outgoing{body: &body}
			if q.fifo {
				unique := s.uuid()
				o.groupID, o.dedupID = group(unique), &unique
			}
			done, err := s.send(q, o, x.now)
			if err != nil {
				return nil, err
			}
			ids = append(ids, done.id)
		}
		return empty{}, nil
	})
	return ids
}

func (s *Server) must(action string, apply func(x *exchange) (reply, error)) []byte {
	s.lock()
	x := &exchange{ctx: context.Background(), header: http.Header{}, now: time.Now()}
	x.call.Action = action
	out, err := apply(x)
	s.settle(x.now)
	s.unlock()
	if err != nil {
		panic(fmt.Sprintf("sqsmodel: %s: %v", action, err))
	}
	return out.appendJSON(nil)
}
