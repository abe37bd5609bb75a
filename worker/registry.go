package worker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// registry knows every message that this worker holds, by MessageId. SQS may deliver a message again while it is
// held, and after it was completed: the registry decides what a receive of a known message means, in one place
// and under one mutex.
type registry struct {
	fifo      bool // order decides: what is known of a message counts when its turn comes, not when it arrives
	mu        sync.Mutex
	held      map[string]*delivery
	completed memory[afterDelete]    // whose handler succeeded and whose delete didn't, with what waits for it
	excused   memory[int]            // how often they were given back without a failure
	replaced  map[*delivery]struct{} // FIFO: still running without a lease, while the message has come again
	trouble   map[string]time.Time   // groups whose head failed, and until when that counts
}

func newRegistry(fifo bool) *registry {
	return &registry{fifo: fifo, held: map[string]*delivery{}, completed: newMemory[afterDelete](remembered), excused: newMemory[int](remembered), trouble: map[string]time.Time{}, replaced: map[*delivery]struct{}{}}
}

// admission is what to do with a received message.
type admission int

const (
	admitRun    admission = iota // it is new: run it
	admitDelete                  // it was completed before: delete it, don't run it
	admitAdopt                   // it runs here: its delivery has taken over the newer receipt handle
	admitQueue                   // its handler still runs although its lease was lost: wait for what that returns
)

// admit registers a received message and starts its lease, unless a delivery that runs has adopted its receipt. It hands
// back the older delivery of the message that is being given back, if there is one.
func (g *registry) admit(d *delivery, handle string) (what admission, older *delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := d.id
	known := g.held[id]
	excused, _ := g.excused.get(id)
	d.message.Attempt = max(d.receives-excused, 1)
	_, completed := g.completed.get(id)
	switch {
	case g.fifo && known == nil:
	case known == nil && completed, known != nil && known.stage == deleting && !g.fifo:
		d.stage = deleting
		what = admitDelete
	case known != nil && (known.stage == waiting || known.stage == running) && d.receives < max(known.receives, known.newest) && known.lease.Err() == nil:
		return admitAdopt, nil // two receives were open and the older one's answer came last: its handle is stale
	case known != nil && (known.stage == waiting || known.stage == running):
		if known.lease.Adopt(d.receipt(handle)) {
			known.newest = d.receives
			return admitAdopt, nil
		}
		if known.stage == running && !g.fifo {
			return g.queueLocked(known, d, handle), nil
		}
	}
	if known != nil && known.stage == running {
		g.replaced[known] = struct{}{}
	}
	d.hold(handle) // under the mutex: another receive of this message may adopt it the moment it is registered
	if known == nil || known.stage != abandoned {
		g.held[id] = d
	}
	if known != nil && (known.stage == waiting || known.stage == releasing) {
		older = known
	}
	return what, older
}

func (g *registry) queueLocked(known, d *delivery, handle string) admission {
	if s := known.successor; s != nil {
		if s.lease.Adopt(d.receipt(handle)) {
			return admitAdopt
		}
		d.run.slots.give(1) // the one that waited lost its lease too; this one takes its place
	}
	d.hold(handle)
	known.successor = d
	return admitQueue
}

// start moves a waiting delivery to running; or to deleting, and reports false, when the message was completed before.
func (g *registry) start(d *delivery) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, completed := g.completed.get(d.id); completed {
		d.stage = deleting
		return false
	}
	d.stage, d.started = running, time.Now()
	return true
}

// finish moves a running delivery on. It reports false when the drain has given it back already, and hands over
// the newer receive of the same message, if one waits.
func (g *registry) finish(d *delivery, to stage) (successor *delivery, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d.stage == abandoned {
		return nil, false
	}
	d.stage = to
	delete(g.replaced, d)
	successor, d.successor = d.successor, nil
	if successor != nil {
		successor.stage = waiting
		if to == deleting {
			successor.stage = deleting
		}
		g.held[d.id] = successor
	}
	return successor, true
}

// giveUp marks what was taken from those that wait, to be given back: it takes over no newer receive any more.
func (g *registry) giveUp(taken []*delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range taken {
		d.stage = releasing
	}
}

// complete moves a failed delivery to deleting: it is in the dead-letter sink.
func (g *registry) complete(d *delivery) {
	g.mu.Lock()
	d.stage = deleting
	g.mu.Unlock()
}

// abandon marks every delivery that is still running, and returns them; a newer receive that waits for one is among
// what it says is held.
func (g *registry) abandon() []*delivery {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*delivery
	for _, d := range g.held {
		if d.stage == running {
			d.stage = abandoned
			all = append(all, d)
		}
	}
	for d := range g.replaced {
		d.stage = abandoned
		all = append(all, d)
	}
	return all
}

// afterDelete is what runs once a message is deleted.
type afterDelete []func(context.Context) error

// forget drops a delivery that is settled. A completed one whose delete didn't get through is remembered, so that
// its next delivery is deleted and not run. When the message was deleted, forget returns what may run now.
func (g *registry) forget(d *delivery, undeleted bool) (after afterDelete) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := d.id
	switch {
	case undeleted:
		waiting, _ := g.completed.get(id)
		g.completed.put(id, slices.Concat(waiting, d.message.takeAfterDelete()))
	case d.stage == deleting:
		after, _ = g.completed.get(id)
		after = slices.Concat(after, d.message.takeAfterDelete())
		g.completed.remove(id)
		g.excused.remove(id)
	}
	if g.held[id] == d {
		delete(g.held, id)
	}
	return after
}

func (g *registry) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held)
}

// troubled tells whether a group's head has failed and may come back with messages behind it. While it may, receives ask for
// one message: SQS would fill them with the rest of the group, whose receive counts would rise to the dead-letter queue's
// without a single run.
func (g *registry) troubled() bool {
	if !g.fifo {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(g.trouble, func(_ string, until time.Time) bool { return now.After(until) })
	return len(g.trouble) > 0
}

// setTrouble notes that a group's head failed and comes back by a time; the zero time ends the trouble.
func (g *registry) setTrouble(d *delivery, until time.Time) {
	if !g.fifo {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.IsZero() {
		delete(g.trouble, d.group)
	} else {
		g.trouble[d.group] = until
	}
}

// excuse notes that a message is given back without having failed: its receive shall not count as an attempt.
func (g *registry) excuse(d *delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, _ := g.excused.get(d.id)
	g.excused.put(d.id, n+1)
}

// ids names everything that is held.
func (g *registry) ids() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.held))
}

// leases are those of everything that is held.
func (g *registry) leases() []*heartbeat.Lease {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*heartbeat.Lease, 0, len(g.held))
	for _, d := range g.held {
		if d.stage == waiting || d.stage == running {
			all = append(all, d.lease)
		}
	}
	return all
}

// leastLeft is the least time that is left of a lease; false when nothing is held.
func (g *registry) leastLeft() (least time.Duration, ok bool) {
	for _, l := range g.leases() {
		if left := time.Until(l.Deadline()); !ok || left < least {
			least, ok = left, true
		}
	}
	return least, ok
}
