package worker

import (
	"crypto/rand"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// poller decides when to receive, how much, and how many receives are open at once; each receive runs in a goroutine
// of its own and reports back.
//
// An idle worker keeps one long poll open. Every receive that brings something lets one more be open, up to one for
// each ten slots; every empty one closes one. So there is always a receive waiting when messages trickle in, and no
// more than one when they don't.
type poller struct {
	r       *run
	results chan receipt
	open    int // receives under way
	width   int // receives that may be under way

	failures  int       // failed receives in a row; those that were open together count as one
	failedAt  time.Time // the last of them
	resumeAt  time.Time // back-off after them
	lingering time.Time // since when a receive waits for a fuller batch
	orphaned  []attempt // receives of a FIFO queue whose answers were lost, to be repeated

	everReceived bool
	health       pollHealth
}

// receipt is how one receive went.
type receipt struct {
	attempt attempt
	sent    time.Time
	got     int
	err     error
}

// attempt is one receive to make.
type attempt struct {
	slots int
	probe bool
	id    string    // ReceiveRequestAttemptId: FIFO queues only
	until time.Time // how long SQS remembers the id
}

// attemptMemory is how long SQS remembers a ReceiveRequestAttemptId (five minutes), with some time to send it.
const attemptMemory = 5*time.Minute - 15*time.Second

// pollHealth is what others read of the poller.
type pollHealth struct {
	open     atomic.Int64
	failures atomic.Int64
	lastOK   atomic.Int64 // unix nanoseconds
	lastErr  atomic.Pointer[pollFailure]
	full     atomic.Bool // no free slot: not polling is right
}

type pollFailure struct {
	err  error
	kind failureKind
}

func receivesAtMost(slots int) int { return (slots + maxReceive - 1) / maxReceive }

func newPoller(r *run) *poller {
	p := &poller{r: r, width: 1, results: make(chan receipt, r.slots.size())}
	p.health.lastOK.Store(time.Now().UnixNano())
	return p
}

// loop receives until stop is closed, then waits for the open receives to end.
func (p *poller) loop(stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := p.next()
		timer.Reset(wait)
		select {
		case <-stop:
			p.finish()
			return
		case res := <-p.results:
			p.learn(res)
		case <-p.r.slots.freed:
		case <-timer.C:
		}
	}
}

// finish takes the results of the receives that were open at the stop.
func (p *poller) finish() {
	for p.open > 0 {
		p.learn(<-p.results)
	}
}

const forever = 365 * 24 * time.Hour

// next starts the receives that may start now, and returns how long to wait before looking again if nothing happens.
func (p *poller) next() time.Duration {
	for p.open < p.width {
		if wait := time.Until(p.resumeAt); wait > 0 {
			return wait
		}
		probe, wait := p.r.breaker.gate()
		if wait > 0 {
			return wait
		}
		a, wait := p.reserve(probe)
		if a.slots == 0 {
			return wait
		}
		if a.probe = probe; probe {
			p.r.breaker.probing()
		}
		p.open++
		p.health.open.Store(int64(p.open))
		sent := time.Now()
		go func() {
			growStack()
			got, err := p.r.receive(a)
			p.results <- receipt{a, sent, got, err}
		}()
	}
	return forever
}

// reserve takes the slots for one receive.
func (p *poller) reserve(probe bool) (attempt, time.Duration) {
	want := min(maxReceive, p.r.slots.size())
	if probe || p.r.registry.troubled() {
		want = 1
	}
	if !p.r.fifo {
		n, wait := p.slots(want)
		return attempt{slots: n}, wait
	}
	p.orphaned = slices.DeleteFunc(p.orphaned, func(a attempt) bool { return time.Now().After(a.until) })
	if len(p.orphaned) > 0 && !probe {
		a := p.orphaned[0]
		n, wait := p.slots(a.slots)
		if n < a.slots {
			p.r.slots.give(n)
			return attempt{}, max(wait, time.Millisecond)
		}
		p.orphaned = p.orphaned[1:]
		return a, 0
	}
	n, wait := p.slots(want)
	return attempt{slots: n, id: rand.Text(), until: time.Now().Add(attemptMemory)}, wait
}

// slots takes slots for a receive: as many as are wanted if it can. With fewer free it waits a little for handlers to finish, because
// a receive costs the same for one message as for ten; but only for a small part of what a handler takes, so that
// free slots don't stand idle.
func (p *poller) slots(want int) (n int, wait time.Duration) {
	s := p.r.slots
	ok, free := s.take(want)
	full := !ok && free == 0 && p.open == 0
	if p.health.full.Swap(full) && !full {
		p.health.lastOK.Store(time.Now().UnixNano()) // it wasn't receiving, and rightly so
	}
	switch {
	case ok:
		n = want
	case free == 0:
		p.lingering = time.Time{}
		return 0, forever
	case p.lingering.IsZero():
		p.lingering = time.Now()
		return 0, p.linger()
	default:
		if wait = p.linger() - time.Since(p.lingering); wait > 0 {
			return 0, wait
		}
		if ok, _ = s.take(free); !ok {
			return 0, time.Millisecond // nobody else takes slots; unreachable, and harmless
		}
		n = free
	}
	p.lingering = time.Time{}
	return n, 0
}

// linger is a tenth of the mean handling time, from 2 to 100 ms.
func (p *poller) linger() time.Duration {
	mean := time.Duration(p.r.stats.meanHandling.Load())
	return min(max(mean/10, 2*time.Millisecond), 100*time.Millisecond)
}

// learn adjusts to how a receive went.
func (p *poller) learn(res receipt) {
	p.open--
	p.health.open.Store(int64(p.open))
	if res.err != nil {
		if res.attempt.probe {
			p.r.breaker.probed()
		}
		if res.attempt.id != "" && ambiguous(res.err) {
			p.orphaned = append(p.orphaned, res.attempt)
		}
		p.failed(res)
		return
	}
	if p.failures > 0 {
		p.r.log.Info("receiving works again", "failed_receives", p.failures)
	}
	p.everReceived = true
	p.failures, p.resumeAt = 0, time.Time{}
	p.health.failures.Store(0)
	p.health.lastErr.Store(nil)
	p.health.lastOK.Store(time.Now().UnixNano())
	if res.got > 0 {
		p.r.stats.filledReceives.Add(1)
		p.width = min(p.width+1, p.widest())
		return
	}
	p.r.stats.emptyReceives.Add(1)
	p.width = max(p.width-1, 1)
	if p.r.cfg.WaitTime == ShortPoll {
		p.resumeAt = time.Now().Add(emptyShortPollPause)
	}
}

// widest is one receive for each ten slots; for each slot while receives ask for one message.
func (p *poller) widest() int {
	if p.r.registry.troubled() {
		return p.r.slots.size()
	}
	return receivesAtMost(p.r.slots.size())
}

// emptyShortPollPause keeps short polling from being a busy loop on the bill.
const emptyShortPollPause = 100 * time.Millisecond

// failed backs off: one receive at a time, at growing distances. It never ends the worker, except for a denied first
// receive, which is a deployment that can't work.
func (p *poller) failed(res receipt) {
	if p.r.polling.Err() != nil {
		p.r.stats.abortedReceives.Add(1)
		return
	}
	err, kind := res.err, failureOf(res.err)
	p.r.stats.receiveErrors.Add(1)
	if kind == overLimit {
		p.r.stats.overLimit.Add(1)
	}
	p.width = 1
	if p.failures > 0 && !res.sent.After(p.failedAt) {
		return // it was open when another one failed, and broke with it: one connection, one failure
	}
	p.failures++
	p.failedAt = time.Now()
	p.resumeAt = p.failedAt.Add(receiveBackoff(p.failures))
	p.health.failures.Store(int64(p.failures))
	p.health.lastErr.Store(&pollFailure{err, kind})
	p.logFailure(err, kind)
	if kind == denied && !p.everReceived {
		p.r.giveUp(err)
	}
}

// receiveBackoff doubles from 100 ms to 20 s, jittered over its upper half.
func receiveBackoff(failures int) time.Duration {
	d := min(100*time.Millisecond<<min(failures-1, 20), 20*time.Second)
	return d/2 + mathrand.N(d/2+1)
}

// logFailure logs the first of a row of failures, and then each power of two.
func (p *poller) logFailure(err error, kind failureKind) {
	if p.failures&(p.failures-1) != 0 {
		return
	}
	log := p.r.log.Warn
	if kind == denied || kind == gone {
		log = p.r.log.Error
	}
	log("receiving fails, trying again", "failed_receives", p.failures, "kind", kind.String(), "error", describe(err), "next_in", time.Until(p.resumeAt).Round(time.Millisecond))
}
