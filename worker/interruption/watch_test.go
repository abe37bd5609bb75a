package interruption_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/worker/interruption"
)

// logbook keeps what was logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (b *logbook) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := strings.TrimSpace(b.text.String())
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// with counts the lines that contain all of some words.
func (b *logbook) with(words ...string) (n int) {
lines:
	for _, line := range b.lines() {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}

// planned is one notice of a test's source; after makes a source that reports notices at times after its start; a deadline is given as what it leaves from then on.
type planned struct {
	after, leaves time.Duration
	source        string
}

func after(plan ...planned) interruption.Source {
	return interruption.Func(func(ctx context.Context, report func(interruption.Notice)) {
		began := time.Now()
		for _, p := range plan {
			select {
			case <-time.After(time.Until(began.Add(p.after))):
			case <-ctx.Done():
				return
			}
			n := interruption.Notice{Source: p.source, Action: "test"}
			if p.leaves != 0 {
				n.Deadline = time.Now().Add(p.leaves)
			}
			report(n)
		}
	})
}

// each runs one bubble for each case.
func each[C any](t *testing.T, cases map[string]C, f func(t *testing.T, c C)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, cases[name]) }) })
	}
}

func causeOf(t *testing.T, ctx context.Context) *interruption.Cause {
	t.Helper()
	var cause *interruption.Cause
	if !errors.As(context.Cause(ctx), &cause) {
		t.Fatalf("the context's cause is %v", context.Cause(ctx))
	}
	return cause
}

func TestTheFirstNoticeEndsTheContextAndItsCauseSaysWhatAndByWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := interruption.Watch(context.Background(), nil,
			after(planned{10 * time.Second, time.Minute, "second"}), after(planned{5 * time.Second, 30 * time.Second, "first"}))
		defer stop()
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it ended after %v", took)
		}
		cause := causeOf(t, ctx)
		if cause.Source() != "first" || cause.Action() != "test" || !cause.Deadline().Equal(began.Add(35*time.Second)) {
			t.Errorf("the cause is %v, with a deadline in %v", cause, time.Until(cause.Deadline()))
		}
		if text := cause.Error(); text != "interruption: first: test, done by 2000-01-01T00:00:35.000Z" {
			t.Errorf("it says %q", text)
		}
		time.Sleep(time.Minute) // the second one leaves more time, and says nothing new
		if n := len(cause.Notices()); n != 1 || !cause.Deadline().Equal(began.Add(35*time.Second)) {
			t.Errorf("%d notices count, the deadline is %v", n, cause.Deadline())
		}
	})
}

func TestALaterNoticeCanOnlyMakeTheDeadlineEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := interruption.Watch(context.Background(), after(
			planned{0, 0, "rebalance"}, planned{10 * time.Second, 2 * time.Minute, "signal"}, planned{20 * time.Second, time.Hour, "late"},
			planned{30 * time.Second, 0, "none"}, planned{40 * time.Second, 20 * time.Second, "spot"}))
		defer stop()
		began := time.Now()
		<-ctx.Done()
		cause := causeOf(t, ctx)
		if !cause.Deadline().IsZero() {
			t.Errorf("there is a deadline: %v", cause.Deadline())
		}
		for _, want := range []struct{ at, deadline time.Duration }{{10 * time.Second, 130 * time.Second}, {40 * time.Second, time.Minute}} {
			<-cause.Tightened()
			if at := time.Since(began); at != want.at || !cause.Deadline().Equal(began.Add(want.deadline)) {
				t.Errorf("after %v the deadline is %v, want %v", at, cause.Deadline().Sub(began), want)
			}
		}
		if text := cause.Error(); !strings.Contains(text, "rebalance: test; then signal: test, done by") || !strings.Contains(text, "; then spot") || strings.Contains(text, "late") {
			t.Errorf("it says %q", text)
		}
	})
}

func TestWithoutAnInterruptionTheContextEndsWithItsParentOrStop(t *testing.T) {
	each(t, map[string]bool{"parent": true, "stop": false}, func(t *testing.T, parent bool) {
		why := errors.New("the parent is over")
		outer, cancel := context.WithCancelCause(context.Background())
		running := true
		ctx, stop := interruption.Watch(outer, interruption.Func(func(ctx context.Context, _ func(interruption.Notice)) {
			<-ctx.Done()
			time.Sleep(time.Second) // stop waits for it
			running = false
		}))
		if parent {
			cancel(why)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), why) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
		}
		stop()
		stop()
		if running {
			t.Error("stop returned before the source had ended")
		}
		if ctx.Err() == nil || !parent && !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		cancel(nil)
	})
}

func TestNoticesFromManySourcesAtOnceAreOneCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sources []interruption.Source
		for i := range 100 {
			sources = append(sources, after(planned{time.Second, time.Duration(100-i) * time.Second, "s"}))
		}
		ctx, stop := interruption.Watch(context.Background(), sources...)
		defer stop()
		<-ctx.Done()
		synctest.Wait()
		if left := time.Until(causeOf(t, ctx).Deadline()); left != time.Second {
			t.Errorf("%v are left, want the least of all", left)
		}
	})
}
