package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// delivery is one receive of one message on its way through the worker.
type delivery struct {
	id       string // of the message, and its receive count: the handler may change what it sees
	receives int
	group    string // its MessageGroupId
	message  Message
	run      *run
	lease    *heartbeat.Lease
	ctx      context.Context // ends with the lease
	granted  time.Time       // when the lease began
	handler  handlerContext  // what the handler is given
	deletion deletion        // once it was completed
	corrupt  bool            // the body doesn't match its MD5: it fails without a run
	probe    bool            // received to see whether a dependency is back
	trace    *messageTrace   // nil unless there are traces

	nearLimit bool // it has been said that its receive count nears the redrive limit
	// The registry's mutex guards these.
	stage     stage
	newest    int       // the receive count of a newer receipt that it has adopted
	started   time.Time // when its handler did
	successor *delivery // a newer receive of a message whose lease was lost while its handler runs on
}

// stage is how far a delivery has come.
type stage int

const (
	waiting   stage = iota // held, not started
	running                // its handler runs
	deleting               // its handler succeeded; never to be run again
	releasing              // given back
	abandoned              // given back while its handler still runs: the handler's result comes too late
)

func (d *delivery) receipt(handle string) heartbeat.Receipt {
	return heartbeat.Receipt{MessageID: d.id, Handle: handle, RequestedAt: d.granted, Visibility: d.run.visibility, Owner: d}
}

// LogValue names the message.
func (d *delivery) LogValue() slog.Value { return identity(d.id, d.receives) }

// hold starts the lease.
func (d *delivery) hold(handle string) {
	d.ctx, d.lease = d.run.heartbeat.Hold(d.run.handling, d.receipt(handle))
}
