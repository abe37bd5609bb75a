package dlq

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sqsworker/sqsworker/worker"
)

// target is a queue that messages are sent to.
type target struct {
	url  string
	fifo bool
}

// outgoing is a message that is to be moved.
type outgoing struct {
	*held
	to *target
}

// process sees to a batch of received messages.
func (m *mover) process(got []*held) {
	var moves []outgoing
	var gone []*held
	stuck := map[string]bool{} // groups of a FIFO queue whose next message isn't to be moved
	for _, h := range got {
		outcome, err := m.decide(h)
		if outcome == "" && m.dead.fifo && stuck[h.group] {
			outcome = HeldBack
		}
		var move outgoing
		if outcome == "" {
			move, outcome, err = m.prepareMove(h)
		}
		switch outcome {
		case "":
			moves = append(moves, move)
			continue
		case AlreadyMoved:
			gone = append(gone, h)
			continue
		case Failed, Untouched:
			stuck[h.group] = true
		}
		m.record(Result{Item: h.item, Outcome: outcome, Err: err})
	}
	if len(gone) > 0 {
		m.deleteAgain(gone)
	}
	if len(moves) > 0 {
		m.move(moves)
	}
}

// deletesAtMost is how many deliveries of a message that was sent are tried to be deleted, each until its lease ends.
const deletesAtMost = 2

// decide says what is to become of a message; nothing when it is to be moved.
func (m *mover) decide(h *held) (Outcome, error) {
	i := h.item
	i.payloads = m.cfg.Payloads
	m.mu.Lock()
	_, sent := m.sent[i.ID]
	returned := m.produced[i.ID] || i.Reason != nil && m.produced[i.Reason.ID]
	counted := m.outcomes[i.ID]
	again := m.undeleted[i.ID] < deletesAtMost
	m.mu.Unlock()
	switch {
	case sent && !again: // it is held to the end, or it would come for ever
		return Skipped, nil
	case sent:
		return AlreadyMoved, nil
	case counted: // it was left, and its lease was lost: it is held anew
		return Skipped, nil
	case returned:
		return Returned, nil
	case h.corrupt:
		return Failed, ErrCorrupt
	case m.cfg.Filter != nil && !m.cfg.Filter(i):
		return Skipped, nil
	}
	return "", nil
}

// prepareMove takes a message into the limit, edits it and finds its destination; an outcome says that it isn't to be moved.
func (m *mover) prepareMove(h *held) (outgoing, Outcome, error) {
	if !m.admit() {
		return outgoing{}, Untouched, nil
	}
	err := m.edit(h.item)
	var to *target
	if err == nil {
		to, err = m.targetOf(h.item)
	}
	if err == nil && to.fifo && h.item.GroupID == "" {
		err = fmt.Errorf("it has no message group, which %s needs: set GroupID in Edit", nameOf(to.url))
	}
	if err != nil {
		return outgoing{}, Failed, err
	}
	return outgoing{h, to}, "", nil
}

// admit counts towards RedriveConfig.Limit.
func (m *mover) admit() bool {
	if m.cfg.Limit == 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun++
	if m.begun >= m.cfg.Limit {
		m.stop(errLimit)
	}
	return m.begun <= m.cfg.Limit
}

func (m *mover) edit(i *Item) error {
	if m.cfg.Edit == nil {
		return nil
	}
	before := i.Body
	if err := m.cfg.Edit(m.settling, i); err != nil {
		return fmt.Errorf("edit: %w", err)
	}
	switch {
	case i.Body == "":
		return errors.New("edit: the body is empty, which SQS refuses")
	case i.Body != before && isExtended(i.Attributes):
		return fmt.Errorf("edit: the body is a pointer to S3 and was changed: delete the attributes %s too if it is the payload now", strings.Join(reservedAttributes[:], " and "))
	}
	return nil
}

// targetOf finds where a message goes.
func (m *mover) targetOf(i *Item) (*target, error) {
	if m.to != nil {
		return m.target(m.to.url), nil
	}
	url := i.SourceURL()
	if url == "" {
		return nil, fmt.Errorf("%w: it was sent to the dead-letter queue directly: set RedriveConfig.Destination", errSourceUnknownLate)
	}
	if i.SourceARN == "" {
		// Anybody who may send to the dead-letter queue can write such a reason, and would have us send to any queue that we may.
		name := nameOf(url)
		if !m.sources[name] {
			return nil, fmt.Errorf("%w: its reason names the queue %q, whose redrive policy doesn't name this dead-letter queue: add it to RedriveConfig.Sources, or set Destination", errSourceUnknownLate, name)
		}
		url = siblingURL(m.dead.url, name)
	}
	if nameOf(url) == m.dead.name {
		return nil, fmt.Errorf("%w: its reason names the dead-letter queue itself", errSourceUnknownLate)
	}
	return m.target(url), nil
}

func (m *mover) target(url string) *target {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[url]
	if t == nil {
		t = &target{url: url, fifo: strings.HasSuffix(nameOf(url), ".fifo")}
		m.targets[url] = t
	}
	return t
}

// forReset is the message as its consumers will see it, for [Resetter].
func (o outgoing) forReset() *worker.Message {
	i := o.item
	m := &worker.Message{
		Body: i.Body, Attributes: i.Attributes, QueueURL: o.to.url, ReceiveCount: 1, Attempt: 1,
		GroupID: i.GroupID, TraceHeader: i.TraceHeader,
	}
	if o.to.fifo {
		m.DeduplicationID = freshDeduplicationID("redrive", i.ID)
	}
	return m
}
