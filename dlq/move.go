package dlq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// move sends messages and deletes those whose sending SQS has confirmed.
func (m *mover) move(moves []outgoing) {
	if m.cfg.DryRun {
		for _, o := range moves {
			m.record(Result{Item: o.item, Outcome: WouldMove, Destination: o.to.url})
		}
		return
	}
	stuck := map[string]bool{} // groups of which a message could not be sent
	for _, round := range rounds(moves, m.pace.batch()) {
		var clear []outgoing
		for _, o := range round {
			if o.to.fifo && stuck[o.group] {
				m.record(Result{Item: o.item, Outcome: HeldBack})
				continue
			}
			clear = append(clear, o)
		}
		if len(clear) == 0 {
			continue
		}
		for _, o := range m.moveRound(clear) {
			stuck[o.group] = true
		}
	}
}

// rounds cuts messages into calls: of one destination each, of at most so many entries and bytes, and for a FIFO queue with at most one
// message of a group, so that one whose predecessor failed isn't sent.
func rounds(moves []outgoing, most int) (all [][]outgoing) {
	type open struct {
		moves  []outgoing
		bytes  int
		groups map[string]bool
	}
	var calls []*open
	for _, o := range moves {
		size := sizeOf(o.item.Body, o.item.Attributes)
		first := 0
		if o.to.fifo { // after the call that has the last one of its group
			for i, c := range calls {
				if c.groups[o.group] {
					first = i + 1
				}
			}
		}
		at := slices.IndexFunc(calls[first:], func(c *open) bool {
			return c.moves[0].to == o.to && len(c.moves) < most && c.bytes+size <= maxMessageSize
		})
		if at < 0 {
			calls = append(calls, &open{groups: map[string]bool{}})
			at = len(calls) - 1 - first
		}
		c := calls[first+at]
		c.moves, c.bytes = append(c.moves, o), c.bytes+size
		c.groups[o.group] = true
	}
	for _, c := range calls {
		all = append(all, c.moves)
	}
	return all
}

// moveRound makes one call's worth of moves and returns those that were not sent.
func (m *mover) moveRound(round []outgoing) (unsent []outgoing) {
	if !m.pace.wait(m.sends, len(round)) {
		return m.untouched(round)
	}
	round, unsent = m.reset(m.stillHeld(round))
	if len(round) == 0 {
		return unsent
	}
	if err := m.note(round, Sending); err != nil {
		m.fail(err)
		return append(unsent, m.untouched(round)...)
	}
	s := &sending{m: m, to: round[0].to, began: time.Now(), unsure: map[string]string{}}
	s.send(round)
	if err := s.note(); err != nil {
		m.fail(err) // what was sent is deleted all the same
	}
	m.delete(s.sent)
	return append(unsent, s.unsent...)
}

// untouched gives up messages because the redrive ends.
func (m *mover) untouched(round []outgoing) []outgoing {
	for _, o := range round {
		m.record(Result{Item: o.item, Outcome: Untouched})
	}
	return round
}

// reset makes consumers forget the messages, before they can get them.
func (m *mover) reset(round []outgoing) (rest, failed []outgoing) {
	if m.cfg.Reset == nil {
		return round, nil
	}
	for _, o := range round {
		if err := m.cfg.Reset.Reset(m.settling, o.forReset()); err != nil {
			m.record(Result{Item: o.item, Outcome: Failed, Err: fmt.Errorf("resetting its idempotency record: %w", err)})
			failed = append(failed, o)
			continue
		}
		rest = append(rest, o)
	}
	return rest, failed
}

// losesAtMost is how often a message comes again because its lease was lost before it could be sent.
const losesAtMost = 3

// stillHeld drops what somebody else may have by now. It comes again, but not for ever.
func (m *mover) stillHeld(round []outgoing) (rest []outgoing) {
	for _, o := range round {
		err := o.lease.Err()
		if err == nil {
			rest = append(rest, o)
			continue
		}
		m.mu.Lock()
		m.lost[o.item.ID]++
		enough := m.lost[o.item.ID] >= losesAtMost
		m.mu.Unlock()
		if enough {
			m.record(Result{Item: o.item, Outcome: Failed, Err: fmt.Errorf("it could not be held %d times: %w", losesAtMost, err)})
		}
	}
	return rest
}

// note writes into the journal, if there is one.
func (m *mover) note(round []outgoing, state State) error {
	if m.cfg.Journal == nil {
		return nil
	}
	notes := make([]Note, len(round))
	for i, o := range round {
		notes[i] = Note{ID: o.item.ID, State: state}
	}
	return m.cfg.Journal.Write(m.settling, notes)
}

// sending is one round on its way.
type sending struct {
	m      *mover
	to     *target
	began  time.Time
	sent   []outgoing
	unsent []outgoing
	notes  []Note
	unsure map[string]string // ids that an attempt may have sent, and why it isn't known
}

// send sends until each message is confirmed or given up.
func (s *sending) send(pending []outgoing) {
	for failures := 1; len(pending) > 0; failures++ {
		out, err := s.call(pending)
		whole := err != nil
		switch {
		case err == nil:
			pending, err = s.read(pending, out)
		case isPassing(err) || s.m.settling.Err() != nil: // broken off by us is as unknown as broken off by the network
			s.doubt(pending, err)
		case len(pending) > 1 && !isHopeless(err):
			for _, o := range pending { // one of them is the reason
				s.send([]outgoing{o})
			}
			return
		default:
			s.refused(pending, err)
			return
		}
		if len(pending) > 0 && (failures == maxTries || !again(s.m.settling, failures)) {
			s.giveUp(pending, err, whole)
			return
		}
	}
}

func (s *sending) call(pending []outgoing) (*sqs.SendMessageBatchOutput, error) {
	in := &sqs.SendMessageBatchInput{QueueUrl: &s.to.url}
	for i, o := range pending {
		in.Entries = append(in.Entries, o.entry(i))
	}
	ctx, cancel := context.WithTimeout(s.m.settling, 30*time.Second)
	defer cancel()
	return s.m.client.SendMessageBatch(ctx, in, s.m.holder.options...)
}

// entry is the message as it was, with the deduplication id that is the same whenever it is sent.
func (o outgoing) entry(n int) types.SendMessageBatchRequestEntry {
	e := types.SendMessageBatchRequestEntry{Id: entryID(n), MessageBody: &o.item.Body, MessageAttributes: o.item.Attributes}
	if o.item.GroupID != "" {
		e.MessageGroupId = &o.item.GroupID
	}
	if o.to.fifo {
		e.MessageDeduplicationId = ptr(freshDeduplicationID("redrive", o.item.ID))
	}
	if o.item.TraceHeader != "" {
		e.MessageSystemAttributes = traceHeader(o.item.TraceHeader)
	}
	return e
}

// read takes SQS's answer apart and returns what is to be tried again.
func (s *sending) read(pending []outgoing, out *sqs.SendMessageBatchOutput) (retry []outgoing, last error) {
	answered := make([]bool, len(pending))
	for _, e := range out.Successful {
		if i, ok := indexOf(e.Id, len(pending)); ok && !answered[i] {
			answered[i] = true
			s.confirmed(pending[i], value(e.MessageId))
		}
	}
	for _, e := range out.Failed {
		i, ok := indexOf(e.Id, len(pending))
		if !ok || answered[i] {
			continue
		}
		answered[i] = true
		err := entryError(e)
		if e.SenderFault && !isPassing(err) {
			s.fail(pending[i], err)
			continue
		}
		s.doubt(pending[i:i+1], err)
		retry, last = append(retry, pending[i]), err
	}
	for i, ok := range answered {
		if !ok {
			last = errors.New("SQS's answer doesn't mention it")
			s.doubt(pending[i:i+1], last)
			retry = append(retry, pending[i])
		}
	}
	return retry, last
}

// doubt remembers that an attempt may have sent these, unless its failure says that it can't have.
func (s *sending) doubt(pending []outgoing, err error) {
	if !maybeApplied(err) {
		return
	}
	for _, o := range pending {
		s.unsure[o.item.ID] = "the answer to a send was lost: " + heartbeat.Code(err)
	}
}

// maybeApplied: a refused connection and a throttled call have done nothing, a broken one and an internal error may have.
func maybeApplied(err error) bool {
	switch codeOf(err) {
	case "":
		var dial *net.OpError
		var dns *net.DNSError
		return !(errors.As(err, &dial) && dial.Op == "dial") && !errors.As(err, &dns)
	case "InternalFailure", "InternalError", "InternalServerError", "ServiceUnavailable":
		return true
	}
	return false
}

// dedupWindow is how long a FIFO queue knows a deduplication id.
const dedupWindow = 5 * time.Minute

func (s *sending) confirmed(o outgoing, newID string) {
	id := o.item.ID
	s.sent = append(s.sent, o)
	s.notes = append(s.notes, Note{ID: id, State: Sent, NewID: newID})
	m := s.m
	m.mu.Lock()
	m.sent[id] = copied{newID: newID}
	m.produced[newID] = true
	before := m.unsure[id]
	m.mu.Unlock()
	if why, ok := s.unsure[id]; ok && !(s.to.fifo && time.Since(s.began) < dedupWindow) {
		m.mayBeTwice(id, newID, why)
	}
	if before {
		m.mayBeTwice(id, newID, "an earlier run ended while it was being sent")
	}
	m.record(Result{Item: o.item, Outcome: Moved, Destination: o.to.url, NewID: newID})
}

// fail leaves a message in the dead-letter queue.
func (s *sending) fail(o outgoing, err error) {
	id := o.item.ID
	s.unsent = append(s.unsent, o)
	why, unsure := s.unsure[id]
	if unsure {
		s.m.mayBeTwice(id, "", why+"; it is still in the dead-letter queue")
	} else {
		s.notes = append(s.notes, Note{ID: id, State: Unsent})
	}
	s.m.record(Result{Item: o.item, Outcome: Failed, Destination: o.to.url, Err: fmt.Errorf("sending to %s: %w", nameOf(o.to.url), err)})
}

// refused: nothing can be sent there as things are. With one destination for all that ends the redrive; what was being sent stays.
func (s *sending) refused(pending []outgoing, err error) {
	err = explain(err, "SendMessage", s.to.url)
	if s.m.to != nil && isHopeless(err) {
		s.m.fail(err)
	}
	for _, o := range pending {
		s.fail(o, err)
	}
}

// giveUp leaves what could not be sent for all its attempts. If the calls failed as a whole, more of the same would follow.
func (s *sending) giveUp(pending []outgoing, err error, whole bool) {
	if whole && s.m.settling.Err() == nil {
		s.m.fail(explain(err, "SendMessage", s.to.url))
	}
	for _, o := range pending {
		s.fail(o, err)
	}
}

// note writes down how it went.
func (s *sending) note() error {
	if s.m.cfg.Journal == nil || len(s.notes) == 0 {
		return nil
	}
	return s.m.cfg.Journal.Write(context.WithoutCancel(s.m.settling), s.notes)
}

func entryID(n int) *string { return ptr(strconv.Itoa(n)) }

func indexOf(entryID *string, n int) (int, bool) {
	i, err := strconv.Atoi(value(entryID))
	return i, err == nil && i >= 0 && i < n
}

func entryError(e types.BatchResultErrorEntry) error {
	return &heartbeat.EntryError{Code: value(e.Code), Message: value(e.Message), SenderFault: e.SenderFault}
}

func ptr[T any](v T) *T { return &v }

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
