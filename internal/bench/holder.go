package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// holder is the subject of the hold scenario: it receives everything, then holds everything.
type holder struct {
	assigned assignment
	client   *sqs.Client

	before memory
	held   atomic.Pointer[heartbeat.Heartbeat] // once every lease is held

	mu       sync.Mutex
	receipts []heartbeat.Receipt
	failed   error
}

const (
	holderReceives    = 64  // open at once, to get the messages
	holderConnections = 512 // more than the renewals in flight at once
)

func newHold(a assignment, _ *jobs) (subject, error) {
	return &holder{assigned: a, client: newClient(a.Endpoint, holderConnections), receipts: make([]heartbeat.Receipt, 0, a.Leases)}, nil
}

func (h *holder) run(ctx context.Context) error {
	var pollers sync.WaitGroup
	for range holderReceives {
		pollers.Go(func() { h.receive(ctx) })
	}
	pollers.Wait()
	if h.failed != nil {
		return h.failed
	}
	beat, err := heartbeat.New(h.client, h.assigned.QueueURL, heartbeat.Config{Visibility: h.assigned.Visibility})
	if err != nil {
		return err
	}
	defer beat.Close()
	h.hold(ctx, beat)
	<-ctx.Done()
	return nil
}

// receive gets messages until there are enough. Their handles are what a holder has to keep anyway.
func (h *holder) receive(ctx context.Context) {
	for h.wants() {
		sent := time.Now()
		out, err := h.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &h.assigned.QueueURL, MaxNumberOfMessages: 10, WaitTimeSeconds: 1})
		h.mu.Lock()
		h.failed = errors.Join(h.failed, err)
		if err == nil {
			for _, m := range out.Messages {
				h.receipts = append(h.receipts, heartbeat.Receipt{MessageID: *m.MessageId, Handle: *m.ReceiptHandle, RequestedAt: sent})
			}
		}
		h.mu.Unlock()
	}
}

func (h *holder) wants() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.receipts) < h.assigned.Leases && h.failed == nil
}

// hold takes the leases, and measures what they take. Their contexts are kept with them, as a worker does.
func (h *holder) hold(ctx context.Context, beat *heartbeat.Heartbeat) {
	h.before = heldMemory()
	for _, r := range h.receipts {
		_, _ = beat.Hold(ctx, r)
	}
	h.held.Store(beat)
}

func (h *holder) describe(r *report) {
	beat := h.held.Load()
	if beat == nil {
		return
	}
	r.Memory = heldMemory().minus(h.before)
	s := beat.Stats()
	r.Notes["held"], r.Notes["lost"], r.Notes["failed renewals"] = s.Held, s.Lost, s.Failed
	r.Notes["least margin ms"] = s.LeastMargin.Milliseconds()
}
