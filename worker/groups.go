package worker

import (
	"slices"
	"strings"
)

// groups is a FIFO queue's backlog: one message of a group at a time, in order; groups side by side.
//
// A group takes one slot however many of its messages are held: SQS fills a receive from one group as far as it can, and
// if each message took a slot, a few long groups would keep all others out. So a worker of a FIFO queue runs up to
// Concurrency groups, and may hold up to ten messages for each.
//
// A group's next message is ready only once its predecessor was deleted. When one fails, the rest of the group is given
// back unstarted (stop), and what SQS delivers of the group meanwhile waits until that is done (restart).
type groups struct {
	byID  map[string]*group
	order []*group // those whose head may start, first come first served
	held  int      // messages waiting in all groups
}

// group is the held part of one message group.
type group struct {
	id      string
	queue   []*delivery // not started, in order
	head    *delivery   // the one that runs or is being settled
	stopped bool        // it is being given back
	later   []*delivery // arrived since it was stopped
}

func newGroups() *groups { return &groups{byID: map[string]*group{}} }

func (g *groups) push(d *delivery) bool {
	g.held++
	known := g.byID[d.group]
	switch {
	case known == nil:
		known = &group{id: d.group, queue: []*delivery{d}}
		g.byID[known.id] = known
		g.order = append(g.order, known)
		return true
	case known.stopped:
		known.later = insert(known.later, d)
	default:
		known.queue = insert(known.queue, d)
		if known.head == nil && len(known.queue) == 1 {
			g.order = append(g.order, known)
		}
	}
	return false
}

// insert keeps the order of the group; messages come in order, so it appends but for a redelivery.
func insert(queue []*delivery, d *delivery) []*delivery {
	i := len(queue)
	for i > 0 && CompareSequenceNumbers(queue[i-1].message.SequenceNumber, d.message.SequenceNumber) > 0 {
		i--
	}
	return slices.Insert(queue, i, d)
}

func (g *groups) pop() *delivery {
	if len(g.order) == 0 {
		return nil
	}
	next := g.order[0]
	g.order = slices.Delete(g.order, 0, 1)
	d := next.queue[0]
	next.head = d
	next.queue = slices.Delete(next.queue, 0, 1)
	g.held--
	return d
}

func (g *groups) ready() int { return len(g.order) }
func (g *groups) size() int  { return g.held }

func (g *groups) takeAll() (all []*delivery, slots int) {
	for id, x := range g.byID {
		all = append(append(all, x.queue...), x.later...)
		x.queue, x.later = nil, nil
		if x.head == nil {
			delete(g.byID, id)
			slots++
		}
	}
	g.order, g.held = nil, 0
	return all, slots
}

// stop takes the messages that wait behind d, because d failed or its lease was lost. They must not run before it. It does
// nothing when the group has gone on without d: who tells of a lost lease may come late.
func (g *groups) stop(d *delivery) (tail []*delivery) {
	x := g.byID[d.group]
	if x == nil || x.head != d || x.stopped {
		return nil
	}
	x.stopped = true
	tail, x.queue = x.queue, nil
	g.held -= len(tail)
	g.order = slices.DeleteFunc(g.order, func(o *group) bool { return o == x })
	return tail
}

// release lets the group go on after d was deleted, or was given back with everything behind it. It reports whether the
// group is done, and its slot free.
func (g *groups) release(d *delivery) (done bool) {
	x := g.byID[d.group]
	if x == nil || x.head != d {
		return false
	}
	x.head = nil
	if x.stopped {
		x.stopped = false
		x.queue, x.later = x.later, nil
	}
	if len(x.queue) == 0 {
		delete(g.byID, x.id)
		return true
	}
	g.order = append(g.order, x)
	return false
}

// CompareSequenceNumbers tells which of two messages of one group comes first: negative when a does. A SequenceNumber has
// 128 bits and more digits than an int64 holds, and isn't padded, so neither numbers of Go nor strings compare right. An
// empty one, of a server that gives none, is equal to everything.
func CompareSequenceNumbers(a, b string) int {
	if a == "" || b == "" {
		return 0
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
