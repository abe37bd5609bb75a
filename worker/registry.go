package worker

import (
	"maps"
	"slices"
	"sync"
)

// registry knows every message that this worker holds, by MessageId. SQS may deliver a message again while it is
// held, and after it was completed: the registry decides what a receive of a known message means, in one place
// and under one mutex.
type registry struct {
	mu        sync.Mutex
	held      map[string]*delivery
	completed memory[struct{}] // whose handler succeeded and whose delete didn't
	excused   memory[int]      // how often they were given back without a failure
}

func newRegistry() *registry {
	return &registry{held: map[string]*delivery{}, completed: newMemory[struct{}](remembered), excused: newMemory[int](remembered)}
}

// admission is what to do with a received message.
type admission int

const (
	admitRun    admission = iota // it is new: run it
	admitDelete                  // it was completed before: delete it, don't run it
	admitAdopt                   // it runs here: its delivery has taken over the newer receipt handle
	admitQueue                   // its handler still runs although its lease was lost: wait for what that returns
)

// admit registers a received message and starts its lease, unless a delivery that runs has adopted its receipt.
func (g *registry) admit(d *delivery, handle string) admission {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := d.message.ID
	known := g.held[id]
	what := admitRun
	excused, _ := g.excused.get(id)
	d.message.Attempt = max(d.message.ReceiveCount-excused, 1)
	_, completed := g.completed.get(id)
	switch {
	case known == nil && completed, known != nil && known.stage == deleting:
		d.stage = deleting
		what = admitDelete
	case known != nil && (known.stage == waiting || known.stage == running):
		if known.lease.Adopt(d.receipt(handle)) {
			return admitAdopt
		}
		if known.stage == running {
			return g.queueLocked(known, d, handle)
		}
	}
	d.hold(handle) // under the mutex: another receive of this message may adopt it the moment it is registered
	if known == nil || known.stage != abandoned {
		g.held[id] = d
	}
	return what
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

// start moves a waiting delivery to running.
func (g *registry) start(d *delivery) {
	g.mu.Lock()
	d.stage = running
	g.mu.Unlock()
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
	successor, d.successor = d.successor, nil
	if successor != nil {
		successor.stage = waiting
		if to == deleting {
			successor.stage = deleting
		}
		g.held[d.message.ID] = successor
	}
	return successor, true
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
	return all
}

// forget drops a delivery that is settled. A completed one whose delete didn't get through is remembered, so that
// its next delivery is deleted and not run.
func (g *registry) forget(d *delivery, undeleted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := d.message.ID
	switch {
	case undeleted:
		g.completed.put(id, struct{}{})
	case d.stage == deleting:
		g.completed.remove(id)
		g.excused.remove(id)
	}
	if g.held[id] == d {
		delete(g.held, id)
	}
}

func (g *registry) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held)
}

// excuse notes that a message is given back without having failed: its receive shall not count as an attempt.
func (g *registry) excuse(d *delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, _ := g.excused.get(d.message.ID)
	g.excused.put(d.message.ID, n+1)
}

// ids names everything that is held.
func (g *registry) ids() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.held))
}
