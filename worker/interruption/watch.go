package interruption

import (
	"context"
	"sync"
	"time"
)

// Source tells of one kind of interruption.
type Source interface {
	// Start begins to watch and returns at once. It calls report for each notice, from any goroutine, until ctx ends or stop is
	// called. stop waits until nothing of the source runs any more.
	Start(ctx context.Context, report func(Notice)) (stop func())
}

// Func is a source of your own: it watches until ctx ends, or until there is nothing more to watch for.
type Func func(ctx context.Context, report func(Notice))

// Start calls f in a goroutine.
func (f Func) Start(ctx context.Context, report func(Notice)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx, report)
	}()
	return func() { cancel(); <-done }
}

// Watch returns a context that ends when the first source has something to report, with a [*Cause] as its cause, or when
// parent ends. When Watch returns, signals are already being caught. Sources that are nil are left out.
//
// Deadlines that this package's sources report lie before the kill by a tenth of the time that was left, at most 5 s, so
// that the program has time to end after the worker has.
//
// After the first notice sources go on, because a second one may leave less time; they end when parent ends or stop is
// called. Call stop when the workers have returned, and before os.Exit: it ends the context, waits for the sources, and
// [AutoScalingConfig.Complete] is called by it. Calling it again does nothing.
func Watch(parent context.Context, sources ...Source) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	watching, end := context.WithCancel(parent)
	w := &watch{cancel: cancel}
	var stops []func()
	for _, s := range sources {
		if s != nil {
			stops = append(stops, s.Start(watching, w.report))
		}
	}
	return ctx, sync.OnceFunc(func() {
		end()
		for _, stop := range stops {
			stop()
		}
		cancel(context.Canceled)
	})
}

// watch is the context of one Watch, about to end.
type watch struct {
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	cause *Cause
}

func (w *watch) report(n Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause != nil {
		w.cause.add(n)
		return
	}
	w.cause = newCause(n)
	w.cancel(w.cause)
}

// before is the deadline for a kill at a time: a tenth of what is left before it, at most 5 s.
func before(kill, now time.Time) time.Time {
	return kill.Add(-min(max(kill.Sub(now), 0)/10, 5*time.Second))
}
