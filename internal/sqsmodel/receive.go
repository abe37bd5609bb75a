package sqsmodel

import (
	"context"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// receiveInput tells a member that was left out from one that is 0: without
// WaitTimeSeconds the queue's own wait holds, with 0 it is a short poll.
type receiveInput struct {
	sqs.ReceiveMessageInput
	MaxNumberOfMessages *int32
	VisibilityTimeout   *int32
	WaitTimeSeconds     *int32
}

// poll is one ReceiveMessage call. While it waits it is in its queue's list,
// oldest first; who changes the queue serves it and then wakes it.
type poll struct {
	max        int
	visibility *int32
	attemptID  string
	started    time.Time
	deadline   time.Time // when a long poll's wait ends
	long       bool
	wake       chan struct{}
	armed      time.Time // the queue's next event, for the poll that minds it
	served     bool
	deliveries []delivery
	err        *apiError
}

// hide is how long the poll's messages stay hidden.
func (p *poll) hide(q *queue) time.Duration {
	if p.visibility != nil {
		return time.Duration(*p.visibility) * time.Second
	}
	return q.settings.visibility
}

// delivery is a message as one receive returns it.
type delivery struct {
	m             *message
	handle        string
	receipt       uint64
	receives      int
	firstReceived time.Time
}

func (s *Server) receiveMessage(x *exchange, in *receiveInput) (reply, error) {
	p, err := s.newPoll(x, in)
	if err != nil {
		return nil, err
	}
	q := x.queue
	out := &received{names: newNameFilter(in), senderID: s.cfg.AccountID, corrupt: x.corrupt}
	if p.attemptID != "" {
		if got, ok := s.replay(q, p, x.now); ok {
			out.deliveries = got
			return out, nil
		}
	}
	if q.full(s) && !q.fifo && (!p.long || s.cfg.OverLimitOnLongPoll) {
		return nil, fail("OverLimit")
	}
	if len(q.polls) == 0 { // else older polls go first, and they have been served
		out.deliveries = s.take(q, p, x.now)
	}
	if len(out.deliveries) == 0 && p.long {
		q.polls = append(q.polls, p)
		s.touch(q)
		x.poll = p
	}
	return out, nil
}

func (s *Server) newPoll(x *exchange, in *receiveInput) (*poll, error) {
	p := &poll{max: 1, started: x.call.At, visibility: in.VisibilityTimeout}
	if v := in.MaxNumberOfMessages; v != nil {
		if *v < 1 || *v > maxMessages {
			return nil, invalidValue(*v, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
		}
		p.max = int(*v)
	}
	wait := x.queue.settings.wait
	if v := in.WaitTimeSeconds; v != nil {
		if *v < 0 || *v > maxWait {
			return nil, invalidValue(*v, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
		}
		wait = time.Duration(*v) * time.Second
	}
	if v := in.VisibilityTimeout; v != nil && (*v < 0 || *v > maxVisibility) {
		return nil, invalidValue(*v, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
	}
	if id := in.ReceiveRequestAttemptId; id != nil {
		if err := checkAttemptID(x.queue, *id); err != nil {
			return nil, err
		}
		p.attemptID = *id
	}
	p.long, p.deadline = wait > 0, x.now.Add(wait)
	if p.long {
		p.wake = make(chan struct{}, 1)
	}
	return p, nil
}

func (q *queue) room(s *Server) int {
	if q.fifo {
		return s.cfg.FIFOInFlightLimit - q.count[InFlight]
	}
	return s.cfg.InFlightLimit - q.count[InFlight]
}

func (q *queue) full(s *Server) bool { return q.room(s) <= 0 }

// take hands messages to a poll: those that have used up their receives go to
// the dead-letter queue instead.
func (s *Server) take(q *queue, p *poll, at time.Time) []delivery {
	limit := min(p.max, q.room(s))
	if limit <= 0 || q.visible.top() == nil {
		return nil
	}
	var taken []*message
	if q.fifo {
		taken = s.takeGroups(q, limit, at)
	} else {
		taken = s.takeAny(q, p, limit, at)
	}
	if len(taken) == 0 {
		return nil
	}
	visibility := p.hide(q)
	got := make([]delivery, len(taken))
	for i, m := range taken {
		got[i] = s.deliver(q, p, m, at, visibility)
	}
	if p.attemptID != "" {
		q.attempts.add(p.attemptID, got, at.Add(s.cfg.AttemptIDWindow))
	}
	return got
}

func (s *Server) takeAny(q *queue, p *poll, limit int, at time.Time) (taken []*message) {
	var missed []*message
	for len(taken) < limit && q.visible.top() != nil {
		m := q.visible.pop()
		if !p.long && s.cfg.ShortPollMiss > 0 && s.rng.Float64() < s.cfg.ShortPollMiss {
			missed = append(missed, m)
			continue
		}
		if dlq := s.exhausted(q, m, at); dlq != nil {
			s.deadLetter(q, dlq, m, at)
			continue
		}
		taken = append(taken, m)
	}
	for _, m := range missed {
		q.visible.push(m)
	}
	return taken
}

func (s *Server) deliver(q *queue, p *poll, m *message, at time.Time, visibility time.Duration) delivery {
	s.receipt++
	m.receipt, m.changes = s.receipt, 0
	m.receives++
	if m.firstReceived.IsZero() {
		m.firstReceived = at
	}
	switch s.cfg.Ceiling {
	case CeilingFromRequest:
		m.clock = p.started
	case CeilingFromFirstReceive:
		m.clock = m.firstReceived
	default:
		m.clock = at
	}
	s.setState(q, m, InFlight, at.Add(visibility))
	d := delivery{m: m, handle: encodeHandle(q, m), receipt: m.receipt, receives: m.receives, firstReceived: m.firstReceived}
	s.emit(q, m, Received, at, d.handle, visibility)
	if !q.fifo && s.cfg.DuplicateRate > 0 && s.rng.Float64() < s.cfg.DuplicateRate {
		s.duplicate(q, m, at)
	}
	return d
}

// serve gives what is visible to the open polls, the oldest first.
func (s *Server) serve(q *queue, at time.Time) {
	for i := 0; i < len(q.polls) && q.visible.top() != nil; {
		p := q.polls[i]
		if p.deadline.Before(at) {
			i++ // over; dropPolls takes it out
			continue
		}
		got := s.take(q, p, at)
		if len(got) == 0 {
			return
		}
		p.deliveries = got
		s.finish(q, p)
	}
}

func (s *Server) finish(q *queue, p *poll) {
	p.served = true
	q.polls = slices.DeleteFunc(q.polls, func(o *poll) bool { return o == p })
	s.wakes = append(s.wakes, p.wake)
}

// dropPolls forgets the abandoned polls whose wait is over. A live one leaves by
// itself.
func (q *queue) dropPolls(now time.Time) {
	if !q.abandoned {
		return
	}
	q.polls = slices.DeleteFunc(q.polls, func(p *poll) bool { return p.deadline.Before(now) })
	q.abandoned = len(q.polls) > 0
}

// arm lets the oldest poll mind the queue's next event; the others only mind
// their own end, so that one expiry doesn't wake a hundred of them.
func (s *Server) arm(q *queue) {
	if len(q.polls) == 0 {
		return
	}
	at, ok := s.nextEvent(q)
	for _, p := range q.polls {
		if p.wake == nil { // abandoned
			continue
		}
		if !ok {
			at = p.deadline
		}
		if !p.armed.Equal(at) {
			p.armed = at
			s.wakes = append(s.wakes, p.wake)
		}
		return
	}
}

// await waits for a registered poll's messages, its end or its client's.
func (s *Server) await(ctx context.Context, x *exchange, p *poll) ([]delivery, error) {
	for {
		s.lock()
		now := time.Now()
		q := x.queue
		if !p.served && p.err == nil {
			s.runTasks(now)
			s.advance(q, now)
			s.touch(q)
			s.settle(now)
		}
		done := p.served || p.err != nil || !now.Before(p.deadline)
		if done {
			s.leavePoll(q, p, now)
		}
		end := p.deadline
		if !p.armed.IsZero() && p.armed.Before(end) {
			end = p.armed
		}
		s.unlock()
		if done {
			return p.deliveries, p.err.orNil()
		}
		timer := time.NewTimer(end.Sub(now))
		select {
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if !s.abandon(x.queue, p) {
				return nil, context.Cause(ctx)
			}
		}
		timer.Stop()
	}
}

// abandon ends the poll of a client that has gone, unless it has been served
// just now.
func (s *Server) abandon(q *queue, p *poll) (served bool) {
	s.lock()
	defer s.unlock()
	now := time.Now()
	s.runTasks(now)
	s.advance(q, now)
	if p.served || p.err != nil {
		return true
	}
	if s.cfg.AbandonedPolls {
		q.abandoned = true
		p.wake = nil
		p.armed = time.Time{}
		s.touch(q)
		s.settle(now)
		return false
	}
	s.leavePoll(q, p, now)
	return false
}

func (s *Server) leavePoll(q *queue, p *poll, now time.Time) {
	n := len(q.polls)
	q.polls = slices.DeleteFunc(q.polls, func(o *poll) bool { return o == p })
	if len(q.polls) != n {
		s.touch(q) // the next one has to mind the queue's events
		s.settle(now)
	}
}
