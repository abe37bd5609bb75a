package heartbeat

import (
	"container/heap"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go/middleware"
)

// batcher gathers leases that are due into calls of ten: a full batch leaves at once, another one when its
// first lease has waited long enough. The lease that ends first goes first.
type batcher struct {
	h       *Heartbeat
	options []func(*sqs.Options)

	mu      sync.Mutex
	due     byDeadline
	calling int
	closed  bool
	timer   *time.Timer
	leaveAt time.Time // when timer fires; zero when it isn't set
}

func (b *batcher) init(h *Heartbeat) {
	b.h = h
	b.options = []func(*sqs.Options){func(o *sqs.Options) {
		// Our own retries end with the lease, see each entry, and don't share the client's retry quota.
		o.Retryer = aws.NopRetryer{}
	}}
}

// submit queues a lease for the next call.
func (b *batcher) submit(l *Lease, leaveBy time.Time) {
	deadline := l.Deadline()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	l.leaveBy = leaveBy
	b.due.push(l, deadline)
	b.leaveLocked()
}

// hurry lets a lease that is queued already leave at once.
func (b *batcher) hurry(l *Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.index >= 0 {
		l.leaveBy = time.Now()
		b.leaveLocked()
	}
}

// withdraw takes a lease out of the queue; what is in a call already stays in it.
func (b *batcher) withdraw(l *Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.index >= 0 {
		heap.Remove(&b.due, l.index)
	}
}

func (b *batcher) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.stopTimerLocked()
}

// leaveLocked starts every call that should leave now and sets the timer for the rest.
func (b *batcher) leaveLocked() {
	now := time.Now()
	for !b.closed && b.calling < b.h.cfg.MaxCalls && len(b.due) > 0 {
		if len(b.due) < BatchSize && b.firstLeaveLocked().After(now) {
			break
		}
		leases := make([]*Lease, 0, BatchSize)
		for len(b.due) > 0 && len(leases) < BatchSize {
			leases = append(leases, heap.Pop(&b.due).(dueLease).lease)
		}
		b.calling++
		b.h.calls.Add(1)
		go b.call(leases)
	}
	b.setTimerLocked(now)
}

// firstLeaveLocked is the earliest leaveBy; it is asked for only while fewer than a batch wait.
func (b *batcher) firstLeaveLocked() time.Time {
	first := b.due[0].lease.leaveBy
	for _, d := range b.due[1:] {
		if d.lease.leaveBy.Before(first) {
			first = d.lease.leaveBy
		}
	}
	return first
}

func (b *batcher) setTimerLocked(now time.Time) {
	if b.closed || len(b.due) == 0 || b.calling >= b.h.cfg.MaxCalls {
		b.stopTimerLocked() // nothing to wait for, or a call's end will look again
		return
	}
	at := b.firstLeaveLocked()
	if b.timer != nil && b.leaveAt.Equal(at) {
		return
	}
	b.stopTimerLocked()
	b.leaveAt = at
	b.h.calls.Add(1)
	var timer *time.Timer
	timer = time.AfterFunc(at.Sub(now), func() {
		defer b.h.calls.Done()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.timer == timer { // a newer one may have been set while this one waited for the mutex
			b.timer, b.leaveAt = nil, time.Time{}
		}
		b.leaveLocked()
	})
	b.timer = timer
}

func (b *batcher) stopTimerLocked() {
	if b.timer != nil && b.timer.Stop() {
		b.h.calls.Done()
		b.timer, b.leaveAt = nil, time.Time{}
	}
}

// entry is one lease in a call, with what was asked for it.
type entry struct {
	lease      *Lease
	generation int
	seconds    int
	final      bool
	want       bool
	result     error
	whole      bool // result is the whole call's: with others in it, it says nothing about this handle
	answered   bool
}

// call sends one batch and tells each lease how it went.
func (b *batcher) call(leases []*Lease) {
	defer b.h.calls.Done()
	done := make(chan struct{})
	sent := time.Now()
	entries, earliest := b.enter(leases, sent, done)
	if len(entries) > 0 {
		b.send(entries, sent, earliest)
		for i := range entries {
			entries[i].lease.settleEntry(&entries[i], sent)
		}
		b.noteOutage(entries)
	}
	close(done)
	b.mu.Lock()
	b.calling--
	b.leaveLocked()
	b.mu.Unlock()
}

// enter builds the entries of those leases that still want a change.
func (b *batcher) enter(leases []*Lease, now time.Time, done chan struct{}) ([]entry, time.Time) {
	entries := make([]entry, 0, len(leases))
	var earliest time.Time
	for _, l := range leases {
		e, deadline, ok := l.enter(now, done)
		if !ok {
			continue
		}
		if earliest.IsZero() || deadline.Before(earliest) {
			earliest = deadline
		}
		entries = append(entries, e)
	}
	return entries, earliest
}

// enter claims the lease for a call, unless there is nothing to ask for (any more).
func (l *Lease) enter(now time.Time, done chan struct{}) (e entry, deadline time.Time, ok bool) {
	l.mu.Lock()
	if l.ended != nil {
		l.mu.Unlock()
		return e, deadline, false
	}
	asked := l.h.cfg.Visibility
	switch {
	case l.final != nil: // rounded up: half a second's delay must not become none
		asked = (l.final.visibility + time.Second - 1).Truncate(time.Second)
	case l.want > 0:
		asked = l.want
	}
	if room := l.ceiling.Sub(now) - l.h.cfg.ceilingSlack(); asked > room {
		asked = max(room, 0)
	}
	e = entry{lease: l, generation: l.generation, seconds: int(asked / time.Second), final: l.final != nil, want: l.want > 0}
	gain := now.Add(time.Duration(e.seconds) * time.Second).Sub(l.deadline)
	if !e.final && gain < l.leastGain(e.want) {
		// It would be shortened, or the ceiling leaves nothing to add: what is there is all there is.
		l.pending = false
		answer := func() {}
		if e.want {
			answer = l.answerLocked(nil)
		} else {
			l.ceiling = l.deadline
		}
		l.mu.Unlock()
		answer()
		l.poke()
		return e, deadline, false
	}
	l.inCall = done
	deadline = l.deadline
	l.mu.Unlock()
	return e, deadline, true
}

// leastGain keeps the last renewals before the ceiling from creeping up to it in tiny steps.
func (l *Lease) leastGain(asked bool) time.Duration {
	if asked || l.h.cfg.Interval == Never {
		return time.Nanosecond
	}
	return min(time.Second, l.h.cfg.Interval/2)
}

// send makes the call and notes each entry's result.
func (b *batcher) send(entries []entry, sent, earliest time.Time) {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &b.h.queueURL, Entries: make([]types.ChangeMessageVisibilityBatchRequestEntry, len(entries))}
	for i := range entries {
		// Positions as ids: the same message can be in a batch twice.
		in.Entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(entries[i].lease.Handle()), VisibilityTimeout: int32(entries[i].seconds),
		}
	}
	ctx, cancel := context.WithTimeout(b.h.ctx, attemptTimeout(earliest.Sub(sent)))
	ctx, done := b.observe(ctx, entries)
	out, err := b.h.client.ChangeMessageVisibilityBatch(ctx, in, b.options...)
	cancel()
	b.h.count.calls.Add(1)
	b.h.count.entries.Add(int64(len(entries)))
	if err != nil {
		for i := range entries {
			entries[i].result, entries[i].whole = err, len(entries) > 1
		}
		done(middleware.Metadata{}, err)
		return
	}
	readAnswer(out, entries)
	done(out.ResultMetadata, nil)
}

// readAnswer notes how each entry of an answered call went.
func readAnswer(out *sqs.ChangeMessageVisibilityBatchOutput, entries []entry) {
	for _, ok := range out.Successful {
		if i, valid := position(ok.Id, len(entries)); valid {
			entries[i].answered = true
		}
	}
	for _, f := range out.Failed {
		if i, valid := position(f.Id, len(entries)); valid {
			entries[i].answered = true
			entries[i].result = &EntryError{Code: aws.ToString(f.Code), Message: aws.ToString(f.Message), SenderFault: f.SenderFault}
		}
	}
	for i := range entries {
		if !entries[i].answered {
			entries[i].result = errNoAnswer
		}
	}
}

var errNoAnswer = errors.New("heartbeat: SQS answered the batch but not this entry")

func position(id *string, entries int) (int, bool) {
	i, err := strconv.Atoi(aws.ToString(id))
	return i, err == nil && i >= 0 && i < entries
}

// attemptTimeout lets a call that hangs be tried again while the lease lasts, but gives a slow one the
// time that it may need.
func attemptTimeout(remaining time.Duration) time.Duration {
	return min(max(remaining/2, 500*time.Millisecond), 10*time.Second, max(remaining, time.Millisecond))
}

// settleEntry applies the answer to one entry.
func (l *Lease) settleEntry(e *entry, sent time.Time) {
	answer, lost := l.applyEntry(e, sent)
	if lost != nil {
		l.lose(lost)
	}
	if answer != nil {
		answer()
	}
	l.poke()
}

func (l *Lease) applyEntry(e *entry, sent time.Time) (answer func(), lost error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inCall = nil
	l.pending = false
	if l.ended != nil {
		return nil, nil
	}
	verdict := Transient
	if e.result != nil && !e.whole && e.generation == l.generation {
		verdict = Judge(e.result)
	}
	switch {
	case e.result == nil && e.final:
		l.endLocked(ErrSettled)
		tell := l.answerLocked(nil)
		return func() { l.cancel(ErrSettled); tell() }, nil
	case e.result == nil:
		l.renewedLocked(e, sent)
		if e.want {
			return l.takeWantLocked(nil), nil
		}
	case verdict == Lost:
		return nil, lostError(l.id, e.result)
	case verdict == Ceiling && e.seconds > 0:
		l.ceiling = l.deadline
		if e.final {
			l.final.visibility = 0 // what is left is too little to wait for: give it back now
		}
		if e.want {
			return l.takeWantLocked(ErrCeiling), nil
		}
	default:
		l.h.count.failed.Add(1)
		l.retryLocked(e.result)
		if given := sent.Add(time.Duration(e.seconds) * time.Second); e.final && unanswered(e.result) && given.Before(l.deadline) {
			// It may have been given back, and be somebody else's from then on. On a standard queue a second
			// release by this handle would take it away from them.
			l.deadline = given
		}
	}
	return nil, nil
}

// renewedLocked: a lease counts from when its call was sent.
func (l *Lease) renewedLocked(e *entry, sent time.Time) {
	l.h.count.renewed.Add(1)
	l.h.observeMargin(time.Until(l.deadline))
	l.failures, l.retryAt, l.lastErr = 0, time.Time{}, nil
	if until := sent.Add(time.Duration(e.seconds) * time.Second); until.After(l.deadline) && e.generation == l.generation {
		l.granted, l.deadline = sent, until
	}
}

// takeWantLocked answers whoever asked for an extension.
func (l *Lease) takeWantLocked(err error) func() {
	done := l.wantDone
	l.want, l.wantDone = 0, nil
	if done == nil {
		return nil
	}
	return func() { done <- err }
}

func lostError(id string, reason error) error {
	return &lost{id: id, reason: reason}
}

// lost is ErrLost with SQS's own reason kept for errors.As.
type lost struct {
	id     string
	reason error
}

func (e *lost) Error() string {
	return ErrLost.Error() + ": message " + e.id + ": SQS refused the receipt handle: " + Code(e.reason)
}
func (e *lost) Unwrap() []error { return []error{ErrLost, e.reason} }

// noteOutage logs when calls begin to fail as a whole, and when they work again.
func (b *batcher) noteOutage(entries []entry) {
	failed := true
	var err error
	for i := range entries {
		if err = entries[i].result; err == nil || (!entries[i].whole && Judge(err) != Transient) {
			failed = false
			break
		}
	}
	if b.h.ctx.Err() != nil || b.h.failing.Swap(failed) == failed {
		return
	}
	if failed {
		b.h.log.Warn("visibility renewals are failing; trying again until the leases end", "queue", b.h.queueURL, "error", Code(err))
	} else {
		b.h.log.Info("visibility renewals work again", "queue", b.h.queueURL)
	}
}

// dueLease fixes the deadline that orders it: the lease's own may move while it waits.
type dueLease struct {
	lease    *Lease
	deadline time.Time
}

type byDeadline []dueLease

func (q *byDeadline) push(l *Lease, deadline time.Time) { heap.Push(q, dueLease{l, deadline}) }

func (q byDeadline) Len() int           { return len(q) }
func (q byDeadline) Less(i, j int) bool { return q[i].deadline.Before(q[j].deadline) }
func (q byDeadline) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].lease.index, q[j].lease.index = i, j
}

func (q *byDeadline) Push(x any) {
	d := x.(dueLease)
	d.lease.index = len(*q)
	*q = append(*q, d)
}

func (q *byDeadline) Pop() any {
	old := *q
	d := old[len(old)-1]
	old[len(old)-1] = dueLease{}
	*q = old[:len(old)-1]
	d.lease.index = -1
	return d
}
