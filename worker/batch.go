package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// BatchConfig tunes [Batch] and [BatchJSON].
type BatchConfig struct {
	// Size is how many messages a batch has at most. From 1 to 10,000; default 10. Each takes one of the worker's slots
	// until the batch is done, so it must be at most [Config.Concurrency]; twice that lets one batch be gathered
	// while another one is worked on.
	Size int
	// Linger is how long a batch waits for more messages, from its first one. From 1 ms to 5 minutes; default 200 ms. The
	// messages are held meanwhile. A batch doesn't wait for it when no more can come: it has Size messages, every slot
	// is taken by a message in a batch, or the worker is stopping.
	Linger time.Duration
}

// BatchMessage is a message in a batch.
type BatchMessage struct {
	*Message
	ctx context.Context
}

// Context is that of this message: it ends when the message's lease is lost or another reason given at [Handler] applies to
// it, and functions such as [ExtendVisibility] take it. Look at it before an effect that can't be repeated: the others of
// the batch are still yours when this one isn't any more.
func (m BatchMessage) Context() context.Context { return m.ctx }

// BatchItem is a message in a batch with its decoded body.
type BatchItem[T any] struct {
	BatchMessage
	Value T
}

// Batch is a handler that gathers messages and works on several with one call of f, for databases and services that take
// many things at once. Each message is held under its own lease, settled by its own result, and counts as a message of
// its own everywhere.
//
// f returns a result for each message, in the order of the slice as f leaves it: nil, or an error as a [Handler] returns
// it. [AllResults] makes the same one for all. With too few or too many results, or if the slice no longer
// has the same messages, every message of the batch is a failure: nothing tells which succeeded. A panic fails the
// messages of its batch, and nothing else.
//
// f's context ends when those of all its messages have; it has no values of theirs, which may differ. On a FIFO queue a
// batch has at most one message of each group.
func Batch(cfg BatchConfig, f func(ctx context.Context, batch []BatchMessage) []error) Handler {
	b := &batcher[BatchMessage]{cfg: cfg.withDefaults(), given: cfg, f: f}
	b.item = func(ctx context.Context, m *Message) (BatchMessage, error) { return BatchMessage{m, ctx}, nil }
	b.message = func(item BatchMessage) BatchMessage { return item }
	return b
}

// BatchJSON is [Batch] for messages whose body is a T in JSON. A message that can't be decoded fails as with [JSON], and
// doesn't get into a batch.
func BatchJSON[T any](cfg BatchConfig, f func(ctx context.Context, batch []BatchItem[T]) []error) Handler {
	b := &batcher[BatchItem[T]]{cfg: cfg.withDefaults(), given: cfg, f: f}
	b.item = func(ctx context.Context, m *Message) (item BatchItem[T], err error) {
		item.BatchMessage = BatchMessage{m, ctx}
		if err := (JSONConfig{}).decode([]byte(m.Body), &item.Value, ""); err != nil {
			return item, Permanent(err)
		}
		return item, nil
	}
	b.message = func(item BatchItem[T]) BatchMessage { return item.BatchMessage }
	return b
}

// AllResults is err for each message of a batch: when they succeed or fail together, as in one transaction.
func AllResults[E any](batch []E, err error) []error {
	return slices.Repeat([]error{err}, len(batch))
}

const (
	maxBatch  = 10_000
	maxLinger = 5 * time.Minute
)

func (c BatchConfig) withDefaults() BatchConfig {
	setDefault(&c.Size, 10)
	setDefault(&c.Linger, 200*time.Millisecond)
	return c
}

// batcher gathers items, E being a message with or without a decoded body.
type batcher[E any] struct {
	cfg     BatchConfig
	given   BatchConfig // as the user wrote it
	f       func(context.Context, []E) []error
	item    func(context.Context, *Message) (E, error)
	message func(E) BatchMessage

	mu   sync.Mutex
	open map[*arrivals]*gathering[E] // the batch that is being gathered, for each run of a worker
}

// gathering is a batch, from its first message on.
type gathering[E any] struct {
	from   *arrivals
	full   chan struct{} // closed when it has Size messages
	hurry  chan struct{} // capacity 1: no more can come
	done   chan struct{} // closed when every member has its result
	sealed bool          // the batcher's mutex guards this and members: nobody joins or leaves any more

	members []*member[E]
}

type member[E any] struct {
	item   E
	result error
}

func (b *batcher[E]) check(cfg *Config) error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("worker: BatchConfig."+format, args...))
	}
	if b.f == nil {
		errs = append(errs, errors.New("worker: a batch handler has no function"))
	}
	if size := b.cfg.Size; size < 1 || size > maxBatch {
		add("Size is %d: must be from 1 to %d", b.given.Size, maxBatch)
	} else if cfg != nil && cfg.Concurrency > 0 && size > cfg.Concurrency {
		add("Size is %d: must be at most Config.Concurrency, %d, as each message of a batch takes a slot; set Concurrency to %d, or to %d for two batches side by side",
			size, cfg.Concurrency, size, 2*size)
	}
	linger := b.cfg.Linger
	if linger < time.Millisecond || linger > maxLinger {
		add("Linger is %v: must be from 1ms to %v", b.given.Linger, maxLinger)
	}
	if cfg != nil && cfg.HandlerTimeout > 0 && linger >= cfg.HandlerTimeout {
		add("Linger is %v: must be less than Config.HandlerTimeout, %v, which counts while a batch is gathered", linger, cfg.HandlerTimeout)
	}
	if cfg != nil && cfg.HeartbeatInterval == NoHeartbeat && cfg.Visibility > 0 && linger >= cfg.Visibility {
		add("Linger is %v: must be less than Config.Visibility, %v, because heartbeats are off", linger, cfg.Visibility)
	}
	return errors.Join(errs...)
}

// Handle puts the message into a batch and waits for its result.
func (b *batcher[E]) Handle(ctx context.Context, m *Message) error {
	if err := b.check(nil); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	item, err := b.item(ctx, m)
	if err != nil {
		return err
	}
	g, self := b.join(arrivalsFrom(ctx), item)
	select {
	case <-g.done:
		return self.result
	case <-ctx.Done():
	}
	if b.leave(g, self) {
		return context.Cause(ctx)
	}
	<-g.done // it is being worked on, and may succeed all the same
	return self.result
}

// join puts an item into the open batch, or into a new one.
func (b *batcher[E]) join(from *arrivals, item E) (*gathering[E], *member[E]) {
	self := &member[E]{item: item}
	b.mu.Lock()
	g := b.open[from]
	first := g == nil
	if first {
		g = &gathering[E]{from: from, full: make(chan struct{}), hurry: make(chan struct{}, 1), done: make(chan struct{})}
		if b.open == nil {
			b.open = map[*arrivals]*gathering[E]{}
		}
		b.open[from] = g
	}
	g.members = append(g.members, self)
	from.enter(g.hurry)
	if len(g.members) == b.cfg.Size {
		b.sealLocked(g)
		close(g.full)
	}
	b.mu.Unlock()
	if first {
		go b.run(g)
	}
	return g, self
}

// leave takes a member out of a batch that isn't being worked on yet.
func (b *batcher[E]) leave(g *gathering[E], self *member[E]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.sealed {
		return false
	}
	g.members = slices.DeleteFunc(g.members, func(m *member[E]) bool { return m == self })
	g.from.leave(1)
	if len(g.members) == 0 {
		b.sealLocked(g)
		close(g.full)
	}
	return true
}

func (b *batcher[E]) sealLocked(g *gathering[E]) {
	g.sealed = true
	g.from.gathered(g.hurry)
	if b.open[g.from] == g {
		delete(b.open, g.from)
	}
}

// run is a batch's goroutine: it waits until no more messages are to come, and calls the function. Its members wait for it.
func (b *batcher[E]) run(g *gathering[E]) {
	linger := time.NewTimer(b.cfg.Linger)
	defer linger.Stop()
	select {
	case <-g.full:
	case <-g.hurry:
	case <-g.from.stop():
	case <-linger.C:
	}
	b.mu.Lock()
	if !g.sealed {
		b.sealLocked(g)
	}
	members := g.members
	b.mu.Unlock()
	if len(members) == 0 {
		return // all have left
	}
	defer func() {
		g.from.leave(len(members))
		close(g.done)
	}()
	b.work(members)
}

// work calls the function and gives each member its result.
func (b *batcher[E]) work(members []*member[E]) {
	items := make([]E, len(members))
	contexts := make([]context.Context, len(members))
	byMessage := make(map[*Message]*member[E], len(members))
	for i, m := range members {
		items[i] = m.item
		contexts[i] = b.message(m.item).ctx
		byMessage[b.message(m.item).Message] = m
		m.result = errGoexit // unless it returns
	}
	ctx, stop := joinContexts(contexts)
	defer stop()
	defer func() {
		if v := recover(); v != nil {
			failAll(members, v)
		}
	}()
	results := b.f(ctx, items)
	if err := b.match(results, items, byMessage); err != nil {
		for _, m := range members {
			m.result = err
		}
	}
}

// match gives the results to the messages, by the order in which the function left them.
func (b *batcher[E]) match(results []error, items []E, byMessage map[*Message]*member[E]) error {
	if len(results) != len(items) {
		return fmt.Errorf("worker: the batch function returned %d results for %d messages: it must return one for each; worker.AllResults makes the same one for all", len(results), len(items))
	}
	left := len(byMessage)
	seen := make(map[*Message]bool, left)
	for _, item := range items {
		if m := b.message(item).Message; byMessage[m] != nil && !seen[m] {
			seen[m] = true
			left--
		}
	}
	if left > 0 {
		return fmt.Errorf("worker: the batch function took %d of %d messages out of its slice: results belong to the messages in it, in order; work on a copy of the slice", left, len(items))
	}
	for i, item := range items {
		byMessage[b.message(item).Message].result = results[i]
	}
	return nil
}

// failAll makes a panic the result of every member, with its stack in the first one's, so that it is logged once.
func failAll[E any](members []*member[E], v any) {
	stack := debug.Stack()
	for _, m := range members {
		m.result = &panicError{v, stack}
		stack = nil
	}
}

// batchContext is the context of several messages: it ends when all of theirs have.
type batchContext struct {
	context.Context
	deadline time.Time // the latest of theirs; zero if one has none
}

func (c *batchContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

func joinContexts(contexts []context.Context) (ctx context.Context, stop func()) {
	inner, cancel := context.WithCancelCause(context.Background())
	joined := &batchContext{Context: inner}
	var left atomic.Int64
	left.Store(int64(len(contexts)))
	stops := make([]func() bool, len(contexts))
	bounded := true
	for i, c := range contexts {
		at, ok := c.Deadline()
		bounded = bounded && ok
		if at.After(joined.deadline) {
			joined.deadline = at
		}
		stops[i] = context.AfterFunc(c, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(c))
			}
		})
	}
	if !bounded {
		joined.deadline = time.Time{}
	}
	return joined, func() {
		for _, s := range stops {
			s()
		}
		cancel(context.Canceled)
	}
}
