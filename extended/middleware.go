package extended

import (
	"context"
	"errors"
	"strings"

	"github.com/sqsworker/sqsworker/worker"
)

// handler sees to the payloads of the messages that the handler inside it gets.
type handler struct {
	p     *payloads
	next  worker.Handler
	wrong error // in the configuration
}

func (p *payloads) middleware(next worker.Handler) worker.Handler { return &handler{p: p, next: next} }

// Check reports to [worker.New] what is wrong with the configuration.
func (h *handler) Check() error { return h.wrong }

// Handle implements [worker.Handler].
func (h *handler) Handle(ctx context.Context, m *worker.Message) error {
	if h.wrong != nil {
		return h.wrong
	}
	p := h.p
	ctx = context.WithValue(ctx, payloadsKey{}, p)
	at, found, err := readPointer(m.Body, m.Attributes)
	if err != nil {
		p.count(err)
		return verdict(err)
	}
	if !found {
		p.noteLookAlike(m)
		return h.next.Handle(ctx, m)
	}
	if p.cfg.Stream {
		err = h.next.Handle(ctx, m)
	} else {
		err = p.handleLoaded(ctx, m, at, h.next)
	}
	if (err == nil || errors.Is(err, worker.ErrDuplicate)) && !errors.Is(err, ErrMissing) {
		p.removeAfterDelete(m, at)
	}
	return err
}

// handleLoaded has the payload in memory while the handler runs.
func (p *payloads) handleLoaded(ctx context.Context, m *worker.Message, at Pointer, next worker.Handler) error {
	if err := p.check(at, p.cfg.MaxBody, "Config.MaxBody"); err != nil {
		p.count(err)
		return verdict(err)
	}
	if err := p.budget.acquire(ctx, at.Size); err != nil {
		return failed("get", at, err)
	}
	defer p.budget.release(at.Size)
	body, err := p.load(ctx, at)
	p.count(err)
	switch {
	case errors.Is(err, ErrMissing) && p.cfg.IgnoreMissing:
		return errors.Join(worker.ErrDuplicate, err)
	case err != nil:
		return verdict(err)
	}
	loaded := m.WithBody(body)
	loaded.Attributes = withoutReserved(m.Attributes)
	return next.Handle(ctx, loaded)
}

// removeAfterDelete has the object removed once SQS has confirmed the deletion. It is asked for only now: a message that was
// failed for good is deleted too, and its copy in a dead-letter queue points to the same object.
func (p *payloads) removeAfterDelete(m *worker.Message, at Pointer) {
	if p.cfg.KeepPayloads || p.cfg.allowed(at) != nil {
		return
	}
	m.AfterDelete(func(ctx context.Context) error {
		err := p.remover.remove(ctx, at)
		p.removed(err)
		return err
	})
}

// noteLookAlike says once that the worker may not be asking for the reserved attributes. The body stays a body.
func (p *payloads) noteLookAlike(m *worker.Message) {
	if len(m.Body) > maxPointer || !strings.Contains(m.Body, `"s3BucketName"`) {
		return
	}
	if at, err := parsePointer(m.Body); err != nil || p.cfg.allowed(at) != nil {
		return
	}
	if p.stats.lookAlikes.Add(1) == 1 {
		p.cfg.Logger.Warn("a message's body looks like a pointer, but has no reserved attribute: it is taken as it is; if the worker's MessageAttributes are set, add SQSLargePayloadSize and ExtendedPayloadSize, or give the worker Client.ForWorker",
			"message", m.ID)
	}
}
