package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sqsworker/sqsworker/worker"
)

// Middleware is [New] and [Guard.Middleware] in one, for those who need nothing else of the Guard. worker.New reports what is
// wrong with the configuration.
func Middleware(store Store, cfg Config) worker.Middleware {
	g, err := New(store, cfg)
	return func(next worker.Handler) worker.Handler { return &guarded{g: g, next: next, misconfigured: err} }
}

// guarded is a handler behind a Guard.
type guarded struct {
	g             *Guard
	next          worker.Handler
	misconfigured error
}

// Check implements [worker.Checker].
func (h *guarded) Check() error { return h.misconfigured }

// Handle implements [worker.Handler].
func (h *guarded) Handle(ctx context.Context, m *worker.Message) error {
	if h.misconfigured != nil {
		return worker.Unavailable(h.misconfigured)
	}
	return h.g.handle(ctx, m, h.next)
}

// Middleware runs the handler only for work that hasn't been done; it is a [worker.Middleware]. List it after middleware that
// makes the body what Config.Key and Config.Payload read. It sets [worker.Message.Attempt] to one more than the failures that
// the record counts, which all workers share, and the back-off goes by that.
//
// A handler's result decides about the claim: nil and [worker.ErrDuplicate] complete it. [worker.Permanent],
// [worker.RetryAfter], a panic and any other error give it up and count as a failure; a permanent one too, so that the message
// runs again when it comes back from a dead-letter queue. [worker.Snooze] gives it up and counts as nothing. An error after
// [worker.ErrShutdown] or a lost lease, and [worker.Unavailable], count as an interruption.
//
// Where there is no lease, as under [worker.NewLambda], the claim lasts for Config.Lease and is renewed by itself.
func (g *Guard) Middleware(next worker.Handler) worker.Handler {
	return &guarded{g: g, next: next}
}

func (g *Guard) handle(ctx context.Context, m *worker.Message, next worker.Handler) error {
	id, payload, err := g.identify(m)
	if err != nil {
		return worker.Permanent(err)
	}
	begin := func(c *Claim) { m.Attempt = c.failures + 1 }
	done, err := g.once(ctx, id, payload, begin, func(ctx context.Context) ([]byte, error) { return nil, next.Handle(ctx, m) })
	if done != nil {
		return worker.ErrDuplicate
	}
	return err
}

// identify tells which work a message is, and what it must have in common with the others that are the same.
func (g *Guard) identify(m *worker.Message) (id, payload string, err error) {
	key, err := g.cfg.Key(m)
	if err == nil && key == "" {
		err = errors.New("Config.Key returned none")
	}
	if err != nil {
		return "", "", fmt.Errorf("idempotency: no key: %w", err)
	}
	compared, err := g.cfg.Payload(m)
	if err != nil {
		return "", "", fmt.Errorf("idempotency: nothing to compare: %w", err)
	}
	namespace := g.cfg.Namespace
	if namespace == "" {
		namespace = m.QueueURL[strings.LastIndexByte(m.QueueURL, '/')+1:]
	}
	return recordID(namespace, key), payloadHash(compared), nil
}
