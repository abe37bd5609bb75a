package dlq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// mover is one redrive by our own hands. Its lanes are goroutines; each receives a batch, decides on it, sends and deletes, and
// begins anew. What isn't moved stays held until the end, or it would be received again.
type mover struct {
	*prepared
	holder *holder
	pace   *pace
	began  time.Time

	// Three lives, which end in this order.
	receives context.Context // nothing more is received: the limit is reached, or what ends sends
	stop     context.CancelCauseFunc
	sends    context.Context // nothing more is sent: the caller's context, or an error
	abort    context.CancelCauseFunc
	settling context.Context // what is being sent is given up

	lanes sync.WaitGroup

	mu        sync.Mutex
	running   int  // lanes
	quiet     bool // the last lane's last receive was empty
	err       error
	report    RedriveReport
	begun     int               // of RedriveConfig.Limit
	outcomes  map[string]bool   // ids that are counted
	sent      map[string]copied // ids that are at the destination
	unsure    map[string]bool   // ids that an earlier run was sending when it died
	produced  map[string]bool   // new ids
	undeleted map[string]int    // ids that are at the destination and could not be deleted here, and how often
	lost      map[string]int    // ids whose leases were lost before they could be sent, and how often
	targets   map[string]*target

	telling sync.Mutex
}

// copied is a message that is at the destination.
type copied struct {
	newID   string
	deleted bool // here
}

// settleTime is how long a mover whose context has ended goes on with what it is sending.
const settleTime = 10 * time.Second

// heldAtMost is maxHeld, and less in a test.
var heldAtMost = maxHeld

var (
	errDrained = errors.New("dlq: drained")
	errLimit   = errors.New("dlq: the limit is reached")
	// ErrTooManyHeld says that too much of a queue is left where it is for the rest to be seen.
	ErrTooManyHeld = fmt.Errorf("dlq: %d messages are held and SQS hands out no more than 120,000: move or delete what is left by Filter first", maxHeld)
)

func (p *prepared) runMover(ctx context.Context) (*RedriveReport, error) {
	m := &mover{
		prepared: p, pace: newPace(p.cfg.Rate), began: time.Now(),
		outcomes: map[string]bool{}, sent: map[string]copied{}, unsure: map[string]bool{}, produced: map[string]bool{}, undeleted: map[string]int{}, lost: map[string]int{},
		targets: map[string]*target{},
	}
	m.report = RedriveReport{Via: Mover, DryRun: p.cfg.DryRun, StartedAt: m.began}
	if err := m.tryPermissions(ctx); err != nil {
		return nil, err
	}
	if err := m.resume(ctx); err != nil {
		return nil, err
	}
	h, err := newHolder(p.client, p.dead, p.cfg.Visibility, p.cfg.Batches+16, p.cfg.Logger)
	if err != nil {
		return nil, err
	}
	m.holder = h
	defer h.close()
	m.sends, m.abort = context.WithCancelCause(ctx)
	defer m.abort(nil)
	m.receives, m.stop = context.WithCancelCause(m.sends)
	defer m.stop(nil)
	var cancel context.CancelFunc
	m.settling, cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.NewTimer(settleTime)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-m.settling.Done():
		}
	})()

	watched := m.watch()
	m.startLane()
	m.lanes.Wait()
	m.stop(errDrained)
	<-watched
	return m.end(ctx)
}

// tryPermissions finds out, with a receipt handle that doesn't exist, whether messages could be held, and deleted once they were sent: a
// redrive that learns it afterwards has made a copy of each.
func (m *mover) tryPermissions(ctx context.Context) error {
	handle := ptr("sqsworker-permission-probe")
	_, err := m.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: &m.dead.url, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{{Id: entryID(0), ReceiptHandle: handle, VisibilityTimeout: 30}},
	})
	if isDenied(err) {
		return explain(err, "ChangeMessageVisibility", m.dead.url)
	}
	if m.cfg.DryRun {
		return nil
	}
	_, err = m.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: &m.dead.url, Entries: []types.DeleteMessageBatchRequestEntry{{Id: entryID(0), ReceiptHandle: handle}},
	})
	if isDenied(err) {
		return explain(err, "DeleteMessage", m.dead.url)
	}
	return nil
}

// resume reads what earlier runs have noted.
func (m *mover) resume(ctx context.Context) error {
	if m.cfg.Journal == nil || m.cfg.DryRun {
		return nil
	}
	r := Redriven{Queue: m.dead.arn}
	if m.to != nil {
		r.Destination = m.to.arn
	}
	notes, err := m.cfg.Journal.Begin(ctx, r)
	if err != nil {
		return err
	}
	for id, n := range notes {
		switch n.State {
		case Sent:
			m.sent[id] = copied{newID: n.NewID}
			m.produced[n.NewID] = true
		case Sending:
			m.unsure[id] = true
		}
	}
	return nil
}

// lanesAtMost is Batches, or fewer where the rate needs fewer: what a lane holds while it waits for its turn, nobody else can have.
func (m *mover) lanesAtMost() int {
	if m.cfg.Rate == 0 {
		return m.cfg.Batches
	}
	return min(m.cfg.Batches, 2+m.cfg.Rate/30) // each manages 30 a second when its calls take a third of a second together
}

// startLane starts one more if there may be one.
func (m *mover) startLane() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running >= m.lanesAtMost() || m.receives.Err() != nil {
		return
	}
	m.running++
	m.lanes.Go(m.lane)
}

func (m *mover) lane() {
	defer func() {
		m.mu.Lock()
		m.running--
		m.mu.Unlock()
	}()
	for m.receives.Err() == nil {
		got, none, err := m.holder.receive(m.receives, batchSize)
		if err != nil {
			m.fail(err)
			return
		}
		if none {
			if m.drained() {
				return
			}
			continue
		}
		m.mu.Lock()
		m.quiet = false
		m.mu.Unlock()
		if len(got) == batchSize {
			m.startLane()
		}
		m.process(got)
		if m.holder.count() >= heldAtMost {
			m.fail(ErrTooManyHeld)
		}
	}
}

// drained tells a lane whose receive was empty whether to end. The last one asks twice.
func (m *mover) drained() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running > 1 || m.quiet {
		return true
	}
	m.quiet = true
	return false
}

// fail ends the redrive with an error, the first one.
func (m *mover) fail(err error) {
	m.mu.Lock()
	if m.err == nil {
		m.err = err
	}
	m.mu.Unlock()
	m.abort(err)
}

// watch reports progress until nothing more is received.
func (m *mover) watch() (done chan struct{}) {
	done = make(chan struct{})
	if m.cfg.Progress == nil {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		ticker := time.NewTicker(m.cfg.ProgressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				m.tell(func() { m.cfg.Progress(m.progress()) })
			case <-m.receives.Done():
				return
			}
		}
	}()
	return done
}

func (m *mover) progress() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &m.report
	return newProgress(Mover, max(m.dead.counts().Visible, r.Received), r.Moved+r.AlreadyMoved, r.done(), r.Failed, m.began)
}

// end gives back what is held and makes the report.
func (m *mover) end(ctx context.Context) (*RedriveReport, error) {
	notReleased := m.holder.releaseAll()
	after, stop := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer stop()
	m.report.Remaining = m.dead.counts()
	if q, err := readQueue(after, m.client, m.dead.url); err == nil {
		m.report.Remaining = q.counts()
	}
	m.mu.Lock()
	r := m.report
	err := m.err
	r.NotReleased = notReleased
	r.Undeleted = slices.Sorted(maps.Keys(m.undeleted))
	r.Took = time.Since(m.began)
	m.mu.Unlock()
	if m.cfg.Progress != nil {
		m.tell(func() { m.cfg.Progress(m.progress()) })
	}
	switch {
	case err != nil:
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case r.Failed+r.HeldBack > 0 || len(r.Undeleted) > 0:
		err = fmt.Errorf("%w: %d failed, %d stay behind those in their groups, %d were moved but not deleted", ErrIncomplete, r.Failed, r.HeldBack, len(r.Undeleted))
		if len(r.Failures) > 0 {
			err = fmt.Errorf("%w; the first one: message %s: %s", err, r.Failures[0].ID, r.Failures[0].Error)
		}
	}
	return &r, err
}

// record counts what became of a message, once, and tells whoever wants to hear it.
func (m *mover) record(res Result) {
	const maxFailures = 1000
	id := res.Item.ID
	m.mu.Lock()
	if m.outcomes[id] {
		m.mu.Unlock()
		return
	}
	m.outcomes[id] = true
	m.report.Received++
	*m.report.count(res.Outcome)++
	if res.Outcome == Failed && len(m.report.Failures) < maxFailures {
		m.report.Failures = append(m.report.Failures, Failure{ID: id, Error: describe(res.Err)})
	}
	m.mu.Unlock()
	if m.cfg.OnMessage != nil {
		m.tell(func() { m.cfg.OnMessage(res) })
	}
}

// tell calls one of the caller's functions, one at a time: they often write to the same place.
func (m *mover) tell(f func()) {
	m.telling.Lock()
	defer m.telling.Unlock()
	f()
}

// mayBeTwice names a message that may be at the destination twice.
func (m *mover) mayBeTwice(id, newID, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.report.Duplicates = append(m.report.Duplicates, Duplicate{ID: id, NewID: newID, Why: why})
}
