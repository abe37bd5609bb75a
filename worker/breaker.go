package worker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Breaker tunes what happens when something that handlers depend on is down. Without it, every message would be received,
// fail, come back and fail again, until the queue's maxReceiveCount has moved good messages to the dead-letter queue.
//
// One [Unavailable] opens it: receiving stops, and what is held and not started is given back for the time of the pause. After
// the pause one message at a time is tried; when one is handled, the breaker closes and the worker goes on. A try that
// meets Unavailable again doubles the pause.
type Breaker struct {
	// Pause is how long it stays open at first. From 1 s to 1 h; default 30 s.
	Pause time.Duration
	// MaxPause bounds the doubling. From Pause to 12 h; default 5 minutes, at least Pause.
	MaxPause time.Duration
	// FailureRate opens it too, when more than this part of the results in Window were failures of any kind. From 0 to 1;
	// default 0, which is off: many failures alone don't tell whether the messages are bad or the world is.
	FailureRate float64
	// Window is what FailureRate is taken over. From 1 s to 1 h; default 1 minute.
	Window time.Duration
	// MinResults is how many results Window must have for FailureRate to count. From 1 to 1,000,000; default 20.
	MinResults int
}

func (b Breaker) withDefaults() Breaker {
	setDefault(&b.Pause, atMost(30*time.Second, b.MaxPause))
	setDefault(&b.MaxPause, max(5*time.Minute, b.Pause))
	setDefault(&b.Window, time.Minute)
	setDefault(&b.MinResults, 20)
	return b
}

// BreakerState is where a worker's [Breaker] stands.
type BreakerState int

const (
	BreakerClosed  BreakerState = iota // all is well
	BreakerOpen                        // not receiving
	BreakerProbing                     // trying one message at a time
)

func (s BreakerState) String() string { return [...]string{"closed", "open", "probing"}[s] }

// MarshalText makes the state readable in JSON.
func (s BreakerState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *BreakerState) UnmarshalText(text []byte) error {
	for _, known := range []BreakerState{BreakerClosed, BreakerOpen, BreakerProbing} {
		if known.String() == string(text) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("worker: breaker state %q: must be closed, open or probing", text)
}

// ErrBreakerOpen is what Healthy says while the breaker isn't closed.
var ErrBreakerOpen = errors.New("worker: a dependency is unavailable, the breaker is open")

// breaker is the live form. Results come from executors, questions from the poller.
type breaker struct {
	r   *run
	cfg Breaker

	mu       sync.Mutex
	state    BreakerState
	byRate   bool // opened by the failure rate
	pause    time.Duration
	resumeAt time.Time
	probe    bool // a probing receive or its message is under way
	results  window
	lastErr  error
}

func newBreaker(r *run) *breaker {
	return &breaker{r: r, cfg: r.cfg.Breaker, results: newWindow(r.cfg.Breaker.Window)}
}

// gate tells the poller whether to receive: as much as it likes, one message as a probe, or not before wait is over.
func (b *breaker) gate() (probe bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case BreakerOpen:
		if wait = time.Until(b.resumeAt); wait > 0 {
			return false, wait
		}
		b.state = BreakerProbing
		b.r.log.Info("breaker: trying one message")
		fallthrough
	case BreakerProbing:
		if b.probe {
			return true, forever // its end wakes the poller
		}
		return true, 0
	}
	return false, 0
}

// probing marks that a probing receive is sent; probed that it brought nothing to run.
func (b *breaker) probing() { b.setProbe(true) }
func (b *breaker) probed()  { b.setProbe(false) }

func (b *breaker) setProbe(on bool) {
	b.mu.Lock()
	b.probe = on
	b.mu.Unlock()
}

// forgive ends a probe whose message came to no result.
func (b *breaker) forgive(d *delivery) {
	if d.probe {
		b.setProbe(false)
	}
}

// result learns from a handler's result. It reports whether the breaker has just opened.
func (b *breaker) result(d *delivery, o outcome) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	bad := o.kind == failed || o.kind == unavailable
	if o.kind != interrupted && o.kind != snoozed && o.kind != lost {
		b.results.add(now, bad)
	}
	if d.probe {
		b.probe = false
		return b.probeResultLocked(now, o)
	}
	switch {
	case b.state != BreakerClosed:
	case o.kind == unavailable:
		b.openLocked(now, b.cfg.Pause, false, o.err)
		return true
	case bad && b.cfg.FailureRate > 0 && b.results.rateAbove(now, b.cfg.FailureRate, b.cfg.MinResults):
		b.openLocked(now, b.cfg.Pause, true, fmt.Errorf("more than %.0f %% of results in %v were failures, the last one: %w", 100*b.cfg.FailureRate, b.cfg.Window, o.err))
		return true
	}
	return false
}

// probeResultLocked: a probe that got to the handler's own verdict shows that the dependency is back.
func (b *breaker) probeResultLocked(now time.Time, o outcome) (opened bool) {
	switch {
	case b.state != BreakerProbing || o.kind == interrupted:
	case o.kind == unavailable || (b.byRate && o.kind == failed):
		b.openLocked(now, min(2*b.pause, b.cfg.MaxPause), b.byRate, o.err)
		return true
	case o.kind == snoozed || o.kind == lost: // says nothing
	default:
		b.state = BreakerClosed
		b.results = newWindow(b.cfg.Window)
		b.r.log.Info("breaker: closed, receiving again")
	}
	return false
}

func (b *breaker) openLocked(now time.Time, pause time.Duration, byRate bool, err error) {
	b.state, b.byRate, b.pause, b.lastErr = BreakerOpen, byRate, pause, err
	b.resumeAt = now.Add(pause)
	b.r.stats.breakerOpened.Add(1)
	b.r.log.Warn("breaker: open, not receiving", "for", pause, "error", err)
}

// delay is how long a message stays away that comes back because the breaker is open: beyond the pause, and spread, so
// that messages don't all come back to a dependency that has just recovered.
func (b *breaker) delay() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := max(time.Until(b.resumeAt), time.Second)
	return left + rand.N(max(b.pause, time.Second))
}

// isOpen tells whether only probes may run.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state != BreakerClosed
}

func (b *breaker) snapshot() (BreakerState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.lastErr
}

// window counts results over a sliding time, in tenths of it.
type window struct {
	tenth   time.Duration
	buckets [10]struct {
		at       int64 // which tenth since the epoch
		bad, all int
	}
}

func newWindow(length time.Duration) window { return window{tenth: max(length/10, time.Millisecond)} }

func (w *window) add(now time.Time, bad bool) {
	at := now.UnixNano() / int64(w.tenth)
	b := &w.buckets[at%int64(len(w.buckets))]
	if b.at != at {
		b.at, b.bad, b.all = at, 0, 0
	}
	b.all++
	if bad {
		b.bad++
	}
}

func (w *window) rateAbove(now time.Time, rate float64, least int) bool {
	at := now.UnixNano() / int64(w.tenth)
	bad, all := 0, 0
	for _, b := range w.buckets {
		if b.at > at-int64(len(w.buckets)) {
			bad, all = bad+b.bad, all+b.all
		}
	}
	return all >= least && float64(bad) > rate*float64(all)
}
