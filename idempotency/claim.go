package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// Claim is an attempt's right to do the work of one key. [FromContext] has it. Its methods are safe for concurrent use.
type Claim struct {
	g        *Guard
	id       string
	owner    string
	payload  string
	inWorker bool

	fence                             int64
	attempts, failures, interruptions int

	mu        sync.Mutex
	stage     claimStage
	lease     time.Time // when the record's lease ends
	lapse     *time.Timer
	cancel    context.CancelCauseFunc // the work's context
	why       error                   // of stage gone
	returned  bool                    // the work has
	extending *extension              // the renewal under way
	tx        commitState
}

// claimStage is how far a claim has come.
type claimStage int

const (
	held     claimStage = iota
	settling            // the work has returned: no more renewals
	complete            // the outcome is recorded
	gone                // another attempt has the record
)

// extension is one renewal of the record.
type extension struct {
	cancel context.CancelFunc
	done   chan struct{}
}

type claimKey struct{}

// FromContext returns the claim under which a handler, or the function given to [Do], runs: the innermost one.
func FromContext(ctx context.Context) (*Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(*Claim)
	return c, ok
}

// Key is the same for every attempt at this work and no other: 64 hexadecimal digits that don't show what they are made of.
// Pass it to other services as their idempotency key or client token, and they will know a second attempt too.
func (c *Claim) Key() string { return stableKey(c.id) }

// Fence is greater than that of every earlier attempt at this work. A resource that keeps the greatest one it has seen, and
// refuses writes with a smaller one, takes none of an attempt that was overtaken.
func (c *Claim) Fence() int64 { return c.fence }

// Failures is how often the work has failed since it was first tried, anywhere.
func (c *Claim) Failures() int { return c.failures }

// Interruptions is how often it was begun and ended by a stop, a lost lease or a dependency that was down.
func (c *Claim) Interruptions() int { return c.interruptions }

// Vanished is how often it was begun and never heard of again: a crash, a lease that ran out.
func (c *Claim) Vanished() int { return max(c.attempts-1-c.failures-c.interruptions, 0) }

// claimed takes over what the store says.
func (c *Claim) claimed(r Record) {
	c.g.count.claimed.Add(1)
	c.fence, c.attempts, c.failures, c.interruptions = r.Fence, r.Attempts, r.Failures, r.Interruptions
}

// run does the work and settles the record by its result.
func (c *Claim) run(ctx context.Context, work func(context.Context) ([]byte, error)) (done *Record, err error) {
	working, cancel := context.WithCancelCause(context.WithValue(ctx, claimKey{}, c))
	defer cancel(nil)
	stop := c.keepRenewed(ctx, cancel)
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			stop()
			c.unfinished(ctx, Failed)
		}
	}()
	result, err := work(working)
	stop()
	done, err = c.settle(working, result, err)
	returned = true
	return done, err
}

// settle writes what became of the work. ctx is the context that the work had.
func (c *Claim) settle(ctx context.Context, result []byte, err error) (*Record, error) {
	outcome := worker.OutcomeOf(ctx, err)
	switch stage, why := c.now(); {
	case stage == complete:
		c.noteIgnored(err)
		return nil, nil
	case c.unsureOfCommit(): // to complete the record now could keep that commit from happening
		if err == nil {
			err = storeError("commit", errors.New("it had no answer, and the handler went on as if it had"))
		}
	case outcome == worker.OutcomeSucceeded, outcome == worker.OutcomeDuplicate:
		done, failure := c.complete(ctx, result)
		if failure != nil {
			err = failure
		}
		return done, err
	case stage == gone:
		c.g.count.lost.Add(1)
		return nil, errors.Join(why, err)
	}
	if c.unfinished(ctx, c.ended(ctx, outcome)) {
		c.noteIgnored(err)
		return nil, nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrClaimLost) && !errors.Is(err, worker.ErrLeaseLost) {
		err = errors.Join(cause, err) // whatever it says, it was overtaken by time
	}
	return nil, err
}

// ended says how the record counts an attempt.
func (c *Claim) ended(ctx context.Context, outcome worker.Outcome) Ended {
	switch outcome {
	case worker.OutcomeSnoozed:
		return PutOff
	case worker.OutcomeInterrupted, worker.OutcomeUnavailable, worker.OutcomeLost:
		return Interrupted
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, worker.ErrLeaseLost) || cause != nil && !c.inWorker {
		return Interrupted
	}
	return Failed
}

// noteIgnored: what was committed stays committed, whatever the handler says afterwards.
func (c *Claim) noteIgnored(err error) {
	if err != nil {
		c.g.cfg.Logger.Warn("idempotency: an error after the commit is not a failure of the message", "error", err)
	}
}

func (c *Claim) now() (claimStage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stage, c.why
}

// Bounds of the writes after the work, which must not end with its context.
const (
	completeAtMost = time.Minute     // if the lease is longer
	settleGrace    = 2 * time.Second // once the work's context has ended, or the lease
)

// settleContext outlives the work's context, for as long as the lease lasts.
func (c *Claim) settleContext(ctx context.Context) (context.Context, context.CancelFunc) {
	now := time.Now()
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	end := later(earlier(lease, now.Add(completeAtMost)), now.Add(settleGrace))
	settling, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	unhook := context.AfterFunc(ctx, func() { // a stop doesn't wait a minute for a table that is down
		timer := time.NewTimer(settleGrace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-settling.Done():
		}
	})
	return settling, func() { unhook(); cancel() }
}

// complete records the outcome. Until that has succeeded the message must not be deleted.
func (c *Claim) complete(ctx context.Context, result []byte) (*Record, error) {
	settling, cancel := c.settleContext(ctx)
	defer cancel()
	completion := c.completion(result)
	for failures := 0; ; failures++ {
		call, done := context.WithTimeout(settling, c.g.cfg.CallTimeout)
		err := c.g.store.Complete(call, c.id, c.owner, completion)
		done()
		if err == nil {
			c.completed(completion)
			return nil, nil
		}
		if refused, ok := refusal(err); ok {
			return c.completionRefused(refused, completion)
		}
		c.g.count.storeErrors.Add(1)
		if !pause(settling, failures) {
			return nil, storeError("complete", err)
		}
	}
}

func (c *Claim) completion(result []byte) Completion {
	completion := Completion{Result: result, Expires: time.Now().Add(c.g.cfg.Retention)}
	if len(result) > c.g.cfg.MaxResult {
		completion.Result, completion.Omitted = nil, len(result)
	}
	return completion
}

// completionRefused: it isn't this attempt's record any more, unless it is its own completion whose answer was lost.
func (c *Claim) completionRefused(r Record, completion Completion) (*Record, error) {
	switch {
	case r.Status == Completed && r.Owner == c.owner:
		c.completed(completion)
		return nil, nil
	case r.Status == Completed: // another attempt's outcome is the outcome
		return c.g.completedBefore(r, c.payload)
	}
	c.g.count.lost.Add(1)
	return nil, lost("another attempt took over before the completion: its outcome counts")
}

// completed: the outcome is recorded, and is this attempt's.
func (c *Claim) completed(completion Completion) {
	c.mu.Lock()
	c.stage = complete
	c.mu.Unlock()
	c.g.count.completed.Add(1)
	c.g.cache.put(Record{ID: c.id, Status: Completed, Payload: c.payload, Result: completion.Result, Omitted: completion.Omitted, Expires: completion.Expires})
}

// unfinished gives the claim up, so that the next attempt need not wait for the lease to end. It reports true if it turns out
// that the record was completed by this attempt: a commit whose answer was lost.
func (c *Claim) unfinished(ctx context.Context, how Ended) (done bool) {
	switch how {
	case Failed:
		c.g.count.failed.Add(1)
	case Interrupted:
		c.g.count.interrupted.Add(1)
	case PutOff:
		c.g.count.putOff.Add(1)
	}
	return c.release(ctx, how)
}

func (c *Claim) release(ctx context.Context, how Ended) (done bool) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.g.cfg.CallTimeout, settleGrace))
	defer cancel()
	err := c.g.store.Release(call, c.id, c.owner, how)
	if err == nil {
		return false
	}
	if refused, ok := refusal(err); ok {
		return refused.Status == Completed && refused.Owner == c.owner
	}
	c.g.count.storeErrors.Add(1)
	c.g.cfg.Logger.Debug("idempotency: a claim could not be given up: it ends with its lease", "error", err)
	return false
}

// pause waits before another try, less than a second; false when there is no time left.
func pause(ctx context.Context, failures int) bool {
	timer := time.NewTimer(backoff(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// String names the claim without its key.
func (c *Claim) String() string { return "claim " + c.Key()[:12] }

// Format is String for every verb: %+v must not print a key.
func (c *Claim) Format(f fmt.State, _ rune) { fmt.Fprint(f, c.String()) }
