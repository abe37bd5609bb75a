package dlq

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// deletion is a message that is at its destination and has to go from here.
type deletion struct {
	*held
	handle string
	until  time.Time // when its lease ends
}

// deleteAgain deletes what was sent before: by an earlier run, or by this one which could not delete it then.
func (m *mover) deleteAgain(gone []*held) {
	moves := make([]outgoing, len(gone))
	for i, h := range gone {
		moves[i] = outgoing{held: h}
	}
	for _, h := range m.delete(moves) {
		m.mu.Lock()
		newID := m.sent[h.item.ID].newID
		m.mu.Unlock()
		m.record(Result{Item: h.item, Outcome: AlreadyMoved, NewID: newID}) // counts nothing if this run had moved it
	}
}

// delete deletes messages whose sending is confirmed, and returns those whose deletion is. What can't be deleted is named in the report.
func (m *mover) delete(moved []outgoing) (deleted []*held) {
	var pending []deletion
	for _, o := range moved {
		handle, until, err := m.holder.settle(o.held)
		if err != nil { // somebody else may have it
			m.keep(o.held)
			continue
		}
		pending = append(pending, deletion{o.held, handle, until})
	}
	for failures := 1; len(pending) > 0; failures++ {
		var done []*held
		pending, done = m.deleteOnce(pending)
		deleted = append(deleted, done...)
		if len(pending) > 0 && !again(m.settling, failures) {
			for _, d := range pending {
				m.keep(d.held)
			}
			break
		}
	}
	return deleted
}

// deleteOnce makes a call and returns what is to be tried again and what is gone.
func (m *mover) deleteOnce(pending []deletion) (retry []deletion, gone []*held) {
	held := pending[:0:0]
	for _, d := range pending {
		if time.Now().Before(d.until) {
			held = append(held, d)
		} else {
			m.keep(d.held)
		}
	}
	if len(held) == 0 {
		return nil, nil
	}
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &m.dead.url}
	for i, d := range held {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: entryID(i), ReceiptHandle: ptr(d.handle)})
	}
	ctx, cancel := context.WithTimeout(m.settling, 30*time.Second)
	defer cancel()
	out, err := m.client.DeleteMessageBatch(ctx, in, m.holder.options...)
	switch {
	case err != nil && isPassing(err):
		return held, nil
	case err != nil:
		m.fail(explain(err, "DeleteMessage", m.dead.url))
		for _, d := range held {
			m.keep(d.held)
		}
		return nil, nil
	}
	failed := map[int]error{}
	for _, e := range out.Failed {
		if i, ok := indexOf(e.Id, len(held)); ok {
			failed[i] = entryError(e)
		}
	}
	for i, d := range held {
		err := failed[i]
		switch {
		case err == nil:
			gone = append(gone, d.held)
			m.gone(d.held)
		case heartbeat.Judge(err) == heartbeat.Transient && isPassing(err):
			retry = append(retry, d)
		default:
			m.keep(d.held)
		}
	}
	return retry, gone
}

func (m *mover) gone(h *held) {
	m.holder.forget(h)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.undeleted, h.item.ID)
	m.sent[h.item.ID] = copied{newID: m.sent[h.item.ID].newID, deleted: true}
}

// keep names a message that is at its destination and here, unless a later delivery of it has been deleted by now.
func (m *mover) keep(h *held) {
	m.holder.forget(h)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.sent[h.item.ID].deleted {
		m.undeleted[h.item.ID]++
	}
}
