package interruption

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Notice is what a source has learnt: that this process is going away.
type Notice struct {
	// Source says where it comes from: "SIGTERM", "EC2 Spot", …
	Source string
	// Action says what will happen: "terminate", "stop", …
	Action string
	// Deadline is by when the worker must be done; the kill comes a little later (see [Watch]). The zero time says that it isn't
	// known: the worker's DrainTimeout alone counts.
	Deadline time.Time
}

func (n Notice) String() string {
	if n.Deadline.IsZero() {
		return n.Source + ": " + n.Action
	}
	return fmt.Sprintf("%s: %s, done by %s", n.Source, n.Action, n.Deadline.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// Cause is why a context of [Watch] ended; get it with
//
//	var cause *interruption.Cause
//	if errors.As(context.Cause(ctx), &cause) { … }
//
// Its methods are safe for concurrent use.
type Cause struct {
	mu        sync.Mutex
	notices   []Notice
	deadline  time.Time
	tightened chan struct{}
}

func newCause(n Notice) *Cause {
	return &Cause{notices: []Notice{n}, deadline: n.Deadline, tightened: make(chan struct{})}
}

// Error names the notices in the order in which they came.
func (c *Cause) Error() string {
	notices := c.Notices()
	parts := make([]string, len(notices))
	for i, n := range notices {
		parts[i] = n.String()
	}
	return "interruption: " + strings.Join(parts, "; then ")
}

// Source is the first notice's.
func (c *Cause) Source() string { return c.Notices()[0].Source }

// Action is the first notice's.
func (c *Cause) Action() string { return c.Notices()[0].Action }

// Notices are those that counted so far: the one that ended the context, and each that made the deadline earlier.
func (c *Cause) Notices() []Notice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Notice(nil), c.notices...)
}

// Deadline is the earliest of all notices so far, the zero time while none has one.
func (c *Cause) Deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline
}

// Tightened returns a channel that is closed when Deadline next becomes earlier.
func (c *Cause) Tightened() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tightened
}

// add takes a further notice. One that doesn't make the deadline earlier says nothing new.
func (c *Cause) add(n Notice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.Deadline.IsZero() || !c.deadline.IsZero() && !n.Deadline.Before(c.deadline) {
		return
	}
	c.notices = append(c.notices, n)
	c.deadline = n.Deadline
	close(c.tightened)
	c.tightened = make(chan struct{})
}
