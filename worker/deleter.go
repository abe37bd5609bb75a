package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// deleter gathers completed messages into DeleteMessageBatch calls: a full batch leaves at once, another one after a
// short linger. It sees each entry's result; what failed in passing is tried again, and between two attempts the message's
// lease is renewed: one that came back would be received, here or elsewhere, and each receive takes it nearer to the
// dead-letter queue.
type deleter struct {
	r      *run
	linger time.Duration
	outage deleteOutage

	mu       sync.Mutex
	pending  []*deletion
	timer    *time.Timer
	hurrying bool // the drain: nothing lingers
}

// deletion is one completed message on its way to being deleted.
type deletion struct {
	delivery *delivery
	lease    *heartbeat.Lease // the one that was settled last
	handle   string
	deadline time.Time // of its lease: later, the handle may be stale
	since    time.Time
	failures int
}

func newDeleter(r *run) *deleter {
	linger := r.cfg.DeleteLinger
	switch linger {
	case 0:
		linger = min(100*time.Millisecond, r.visibility/20)
	case NoLinger:
		linger = 0
	}
	return &deleter{r: r, linger: linger}
}

func (q *deleter) add(x *deletion) {
	q.mu.Lock()
	q.pending = append(q.pending, x)
	full := len(q.pending) >= maxReceive
	now := full || q.hurrying || q.linger == 0 || time.Until(x.deadline) < 2*q.linger
	var batch []*deletion
	switch {
	case now:
		batch = q.takeLocked()
	case q.timer == nil:
		q.timer = time.AfterFunc(q.linger, q.flush)
	}
	q.mu.Unlock()
	if batch != nil {
		go q.call(batch)
	}
}

// takeLocked takes everything that is pending: at most ten, because ten leave at once.
func (q *deleter) takeLocked() []*deletion {
	batch := q.pending
	q.pending = nil
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	return batch
}

// flush sends what is pending.
func (q *deleter) flush() {
	q.mu.Lock()
	batch := q.takeLocked()
	q.mu.Unlock()
	if len(batch) > 0 {
		q.call(batch)
	}
}

// hurry ends all lingering.
func (q *deleter) hurry() {
	q.mu.Lock()
	q.hurrying = true
	batch := q.takeLocked()
	q.mu.Unlock()
	if len(batch) > 0 {
		go q.call(batch) // the drain has a schedule to keep
	}
}

// call makes one DeleteMessageBatch, in a goroutine of its own, and sees to each entry's result.
func (q *deleter) call(batch []*deletion) {
	growStack()
	deadline := batch[0].deadline
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &q.r.w.queueURL, Entries: make([]types.DeleteMessageBatchRequestEntry, len(batch))}
	for i, x := range batch {
		if x.deadline.Before(deadline) {
			deadline = x.deadline
		}
		// Positions as ids: one message can be in a batch twice, with two handles.
		in.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: &positions[i], ReceiptHandle: &x.handle}
	}
	ctx, cancel := context.WithTimeout(q.r.settling, attemptTimeout(time.Until(deadline)))
	ctx, done := q.r.tell.deleting(ctx, batch)
	out, err := q.r.client.DeleteMessageBatch(ctx, in, q.r.otherOptions...)
	cancel()
	q.r.stats.deleteCalls.Add(1)
	results := make([]error, len(batch))
	for i := range results {
		results[i] = errUnanswered
		if err != nil {
			results[i] = &callError{err, len(batch)}
		}
	}
	if err == nil {
		readResults(out, results)
	}
	done(out, results, err)
	q.outage.note(q.r, err)
	for i, x := range batch {
		q.result(x, results[i])
	}
}

// positions are the ids of batch entries.
var positions = func() (ids [maxReceive]string) {
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	return ids
}()

var errUnanswered = errors.New("worker: SQS answered the batch but not this entry")

// callError is a failure of a whole batch call: with several entries in it, it says nothing about one handle.
type callError struct {
	err     error
	entries int
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

func readResults(out *sqs.DeleteMessageBatchOutput, results []error) {
	for _, ok := range out.Successful {
		if i, err := strconv.Atoi(aws.ToString(ok.Id)); err == nil && i >= 0 && i < len(results) {
			results[i] = nil
		}
	}
	for _, f := range out.Failed {
		if i, err := strconv.Atoi(aws.ToString(f.Id)); err == nil && i >= 0 && i < len(results) {
			results[i] = &heartbeat.EntryError{Code: aws.ToString(f.Code), Message: aws.ToString(f.Message), SenderFault: f.SenderFault}
		}
	}
}

// result settles one entry, or sends it again.
func (q *deleter) result(x *deletion, err error) {
	if err == nil {
		q.r.stats.deleteLag.observe(time.Since(x.since))
		q.r.deleted(x.delivery, nil)
		return
	}
	q.r.stats.deleteFailures.Add(1)
	var whole *callError
	lost := heartbeat.Judge(err) == heartbeat.Lost && !(errors.As(err, &whole) && whole.entries > 1)
	if lost || q.r.settling.Err() != nil {
		q.r.deleted(x.delivery, err)
		return
	}
	x.failures++
	go q.retry(x, err)
}

// retry adds a deletion again after its back-off, or gives it up when settling is over or the lease could not be kept.
func (q *deleter) retry(x *deletion, failure error) {
	wait := deleteBackoff(x.failures, time.Until(x.deadline))
	if passes(failure) {
		x.lease = q.r.heartbeat.Resume(x.lease)
	} else if time.Until(x.deadline) <= wait { // this entry's own fault, and of a kind we don't know: its lease isn't prolonged for it
		q.r.deleted(x.delivery, failure)
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.r.settling.Done():
	}
	x.deadline = x.lease.Deadline()
	if x.lease.Settle() != nil || !time.Now().Before(x.deadline) || q.r.settling.Err() != nil {
		q.r.deleted(x.delivery, failure)
		return
	}
	q.add(x)
}

// passes tells whether a failed delete may work once SQS, the network or the permissions are well again.
func passes(err error) bool {
	var entry *heartbeat.EntryError
	return !errors.As(err, &entry) || !entry.SenderFault || strings.Contains(strings.ToLower(entry.Code), "throttl")
}

// deleteBackoff doubles from 50 ms to 5 s, and leaves time for a few more attempts before the lease ends.
func deleteBackoff(failures int, remaining time.Duration) time.Duration {
	d := max(min(50*time.Millisecond<<min(failures-1, 10), 5*time.Second, remaining/4), 5*time.Millisecond)
	return d/2 + rand.N(d/2+1)
}

// attemptTimeout lets a call that hangs be tried again while the lease lasts, but gives a slow one the time it needs.
func attemptTimeout(remaining time.Duration) time.Duration {
	return min(max(remaining/2, 500*time.Millisecond), 10*time.Second, max(remaining, time.Millisecond))
}
