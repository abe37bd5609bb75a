package sqsmodel

import (
	"fmt"
	"time"
)

// group is a message group of a FIFO queue: its messages in the order they were
// sent. A hidden message hides all later ones too, but not the earlier ones
// (recorded in November 2025): the group is available while its head is visible.
type group struct {
	id         string
	head, tail *message
	listed     *message // its head, while that is in the queue's visible heap
}

func (q *queue) join(m *message) {
	if !q.fifo {
		return
	}
	g := q.groups[m.groupID]
	if g == nil {
		g = &group{id: m.groupID}
		q.groups[m.groupID] = g
	}
	m.group, m.prev = g, g.tail
	if g.tail != nil {
		g.tail.next = m
	} else {
		g.head = m
	}
	g.tail = m
}

func (q *queue) part(m *message) {
	g := m.group
	if g == nil {
		return
	}
	if m.prev != nil {
		m.prev.next = m.next
	} else {
		g.head = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	} else {
		g.tail = m.prev
	}
	m.group, m.prev, m.next = nil, nil, nil
	if g.head == nil {
		delete(q.groups, g.id)
		return
	}
	q.list(g)
}

// list puts the group's head into the visible heap, or takes it out.
func (q *queue) list(g *group) {
	want := g.head
	if want != nil && want.state != Visible {
		want = nil
	}
	if g.listed == want {
		return
	}
	if g.listed != nil {
		q.visible.remove(g.listed)
	}
	g.listed = want
	if want != nil {
		q.visible.push(want)
	}
}

// takeGroups hands out as many messages as it may from one group, then from
// the next: the groups in the order of their heads.
func (s *Server) takeGroups(q *queue, limit int, at time.Time) []*message {
	var taken []*message
	for len(taken) < limit {
		head := q.visible.top()
		if head == nil {
			break
		}
		g := head.group
		for m := g.head; m != nil && m.state == Visible && len(taken) < limit; {
			next := m.next
			if dlq := s.exhausted(q, m, at); dlq != nil {
				s.deadLetter(q, dlq, m, at)
			} else {
				taken = append(taken, m)
				s.setState(q, m, InFlight, at) // hides the group; the receive sets the real end
			}
			m = next
		}
	}
	return taken
}

// deduplication remembers the sends of a FIFO queue for five minutes, also when
// the message has long been received and deleted.
type deduplication struct {
	byKey map[string]*duplicate
	order []*duplicate
}

type duplicate struct {
	key          string
	id, sequence string
	until        time.Time
}

func (q *queue) dedupKey(groupID, dedupID string) string {
	if q.settings.groupDedup {
		return groupID + "\x00" + dedupID
	}
	return dedupID
}

// duplicateOf finds the send that m repeats.
func (q *queue) duplicateOf(m *message, now time.Time) *duplicate {
	if !q.fifo {
		return nil
	}
	return q.dedup.find(q.dedupKey(m.groupID, m.dedupID), now)
}

func (d *deduplication) find(key string, now time.Time) *duplicate {
	for len(d.order) > 0 && !d.order[0].until.After(now) {
		if d.byKey[d.order[0].key] == d.order[0] {
			delete(d.byKey, d.order[0].key)
		}
		d.order[0] = nil
		d.order = d.order[1:]
	}
	if e := d.byKey[key]; e != nil && e.until.After(now) {
		return e
	}
	return nil
}

func (d *deduplication) add(key string, m *message, until time.Time) {
	if d.byKey == nil {
		d.byKey = map[string]*duplicate{}
	}
	e := &duplicate{key: key, id: m.id, sequence: m.sequence, until: until}
	d.byKey[key] = e
	d.order = append(d.order, e)
}

// sequenceNumber is the next of a queue-wide rising series with gaps: twenty
// digits, beyond what 64 bits hold, as AWS's are.
func (s *Server) sequenceNumber() string {
	s.serial++
	return fmt.Sprintf("18849496%012d", 460_467_000_000+256*s.serial)
}

// attempt is what a receive with a ReceiveRequestAttemptId has returned.
type attempt struct {
	id         string
	deliveries []delivery
	changes    []int
	until      time.Time
}

// attempts remembers those of the last five minutes.
type attempts struct {
	byID  map[string]*attempt
	order []*attempt
}

func (l *attempts) find(id string, now time.Time) *attempt {
	for len(l.order) > 0 && !l.order[0].until.After(now) {
		if l.byID[l.order[0].id] == l.order[0] {
			delete(l.byID, l.order[0].id)
		}
		l.order[0] = nil
		l.order = l.order[1:]
	}
	return l.byID[id]
}

func (l *attempts) add(id string, got []delivery, until time.Time) {
	a := &attempt{id: id, deliveries: got, until: until}
	for _, d := range got {
		a.changes = append(a.changes, d.m.changes)
	}
	if l.byID == nil {
		l.byID = map[string]*attempt{}
	}
	l.byID[id] = a
	l.order = append(l.order, a)
}

// replay answers a repeated attempt with the same messages and handles, hidden
// anew, as long as all of them are in flight from that receive and untouched.
func (s *Server) replay(q *queue, p *poll, at time.Time) ([]delivery, bool) {
	a := q.attempts.find(p.attemptID, at)
	if a == nil {
		return nil, false
	}
	for i, d := range a.deliveries {
		m := q.messages[d.m.serial]
		if m != d.m || m.state != InFlight || m.receipt != d.receipt || m.changes != a.changes[i] {
			return nil, false
		}
	}
	visibility := p.hide(q)
	for _, d := range a.deliveries {
		s.setState(q, d.m, InFlight, at.Add(visibility))
		s.emit(q, d.m, VisibilityChanged, at, d.handle, visibility)
	}
	return a.deliveries, true
}
