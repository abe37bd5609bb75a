package heartbeat

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Client is the one call that a [Heartbeat] makes. *sqs.Client has it.
type Client interface {
	ChangeMessageVisibilityBatch(context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error)
}

// Receipt is what a receive granted for one message.
type Receipt struct {
	// MessageID only names the message in errors.
	MessageID string
	// Handle is the receipt handle.
	Handle string
	// RequestedAt is when the receive request was sent, by time.Now(): the lease counts from there.
	RequestedAt time.Time
	// Visibility is what the receive granted; zero means the Heartbeat's own visibility.
	Visibility time.Duration
	// Owner is whatever [Config.Observer] shall know the lease by.
	Owner any
}

// Heartbeat holds the leases of one queue's messages. It is safe for concurrent use.
type Heartbeat struct {
	client   Client
	queueURL string
	cfg      Config
	log      *slog.Logger
	reserve  time.Duration // what is left of a full lease when its renewal comes due

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	held   *Lease         // the first of those that are held; mu guards the list, for Close
	leases sync.WaitGroup // their goroutines
	calls  sync.WaitGroup // calls in flight, and the timer that starts them

	batch batcher
	count counters
	// failing is true from the first failed call until one succeeds, so that an outage is two log lines.
	failing atomic.Bool
}

type counters struct {
	held, calls, entries, renewed, failed, lost, ceilings atomic.Int64
	margin                                                atomic.Int64
}

// Stats counts since [New].
type Stats struct {
	Held     int64 // leases held now
	Calls    int64 // ChangeMessageVisibilityBatch calls sent
	Entries  int64 // entries in them: Entries/Calls is how full they were
	Renewed  int64 // renewals that SQS confirmed
	Failed   int64 // entries that failed and were tried again
	Lost     int64 // leases that ended with ErrLost
	Ceilings int64 // holders told by ErrCeiling
	// LeastMargin is the least time that was left of a lease when its renewal was confirmed;
	// negative when none was renewed yet. Near zero, leases are about to lapse.
	LeastMargin time.Duration
}

// New returns a Heartbeat for one queue. Every mistake in the configuration is in the error.
func New(c Client, queueURL string, cfg Config) (*Heartbeat, error) {
	cfg, err := cfg.withDefaults()
	if c == nil {
		err = errors.Join(errors.New("heartbeat: no client: pass an *sqs.Client"), err)
	}
	if queueURL == "" {
		err = errors.Join(errors.New("heartbeat: no queue URL"), err)
	}
	if err != nil {
		return nil, err
	}
	h := &Heartbeat{client: c, queueURL: queueURL, cfg: cfg, log: cfg.Logger, reserve: cfg.Visibility - cfg.Interval}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.count.margin.Store(int64(noMargin))
	h.batch.init(h)
	return h, nil
}

const noMargin = time.Duration(1<<63 - 1)

// Hold keeps one received message invisible until [Lease.Settle] or [Lease.Release], in a goroutine of its own, which is there
// while it has something to do: most messages are settled before a renewal is due, and never need one. One of them must be called. The context is derived from ctx and ends with cause
// [ErrLost], [ErrCeiling], or [ErrSettled]; the end of ctx itself ends the context but not the lease:
// a message stays held until it is settled. After [Heartbeat.Close] the lease is not renewed.
func (h *Heartbeat) Hold(ctx context.Context, r Receipt) (context.Context, *Lease) {
	if r.Visibility == 0 {
		r.Visibility = h.cfg.Visibility
	}
	if r.RequestedAt.IsZero() {
		r.RequestedAt = time.Now()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	l := &Lease{h: h, cancel: cancel, id: r.MessageID, owner: r.Owner, index: -1}
	h.count.held.Add(1)
	l.mu.Lock()
	l.grant(r)
	l.begin()
	h.enlist(l)
	l.mu.Unlock()
	return ctx, l
}

// Resume takes up again a lease that [Lease.Settle] has ended, as it stood then: its newest handle, its deadline, its ceiling.
// It is for a message that is done and could not be deleted yet: while the delete is tried again it stays invisible, instead of
// being received again and again until its receive count sends it to the dead-letter queue. Functions given to [Lease.OnRenew]
// aren't taken along. If the deadline has passed, the lease is lost at once.
func (h *Heartbeat) Resume(settled *Lease) *Lease {
	_, cancel := context.WithCancelCause(context.Background())
	settled.mu.Lock()
	l := &Lease{h: h, cancel: cancel, id: settled.id, owner: settled.owner, index: -1,
		handle: settled.handle, generation: settled.generation, granted: settled.granted,
		deadline: settled.deadline, ceiling: settled.ceiling, told: settled.told}
	settled.mu.Unlock()
	h.count.held.Add(1)
	l.mu.Lock()
	l.begin()
	h.enlist(l)
	l.mu.Unlock()
	return l
}

// enter counts a lease's goroutine; false after Close.
func (h *Heartbeat) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.leases.Add(1)
	return true
}

// enlist and delist keep the list of what is held.
func (h *Heartbeat) enlist(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.next = h.held; l.next != nil {
		l.next.previous = l
	}
	h.held = l
}

func (h *Heartbeat) delist(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.next != nil {
		l.next.previous = l.previous
	}
	if l.previous != nil {
		l.previous.next = l.next
	} else if h.held == l {
		h.held = l.next
	}
	l.next, l.previous = nil, nil
}

func (h *Heartbeat) first() *Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held
}

// Close ends what is still held without writing anything for it, breaks off calls in flight and waits
// for the goroutines. Settle or release everything first.
func (h *Heartbeat) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel()
	h.batch.close()
	for l := h.first(); l != nil; l = h.first() {
		l.finish(ErrSettled)
	}
	h.leases.Wait()
	h.calls.Wait()
}

// Stats returns the counts so far.
func (h *Heartbeat) Stats() Stats {
	margin := time.Duration(h.count.margin.Load())
	if margin == noMargin {
		margin = -1
	}
	return Stats{
		Held: h.count.held.Load(), Calls: h.count.calls.Load(), Entries: h.count.entries.Load(),
		Renewed: h.count.renewed.Load(), Failed: h.count.failed.Load(), Lost: h.count.lost.Load(),
		Ceilings: h.count.ceilings.Load(), LeastMargin: margin,
	}
}

func (h *Heartbeat) observeMargin(margin time.Duration) {
	for {
		least := h.count.margin.Load()
		if int64(margin) >= least || h.count.margin.CompareAndSwap(least, int64(margin)) {
			return
		}
	}
}
