package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// Causes with which a handler's context ends.
var (
	// ErrShutdown: the worker is stopping and the time for running handlers is over. Return soon; an error returned
	// now isn't counted as a failure, the message goes back to the queue at once.
	ErrShutdown = errors.New("worker: shutting down")
	// ErrLeaseLost: the message can't be held any longer and may be somebody else's. Nothing that the handler
	// returns now is written to SQS. An error that wraps it, returned while the message is still held, says the same from
	// the other side: the handler (or middleware that holds a lease of its own) found that somebody else has the work. The
	// message is neither deleted nor given back, and comes again when its visibility ends. It is [heartbeat.ErrLost].
	ErrLeaseLost = heartbeat.ErrLost
	// ErrDuplicate, returned by a handler or by middleware, says that the message was completed before: it is deleted, and
	// counted as suppressed instead of succeeded.
	ErrDuplicate = errors.New("worker: completed before")
	// ErrHandlerTimeout: Config.HandlerTimeout is over.
	ErrHandlerTimeout = errors.New("worker: handler timeout")
)

type (
	permanentError  struct{ err error }
	retryAfterError struct {
		err   error
		after time.Duration
	}
	snoozeError      struct{ after time.Duration }
	unavailableError struct{ err error }
)

func (e *permanentError) Error() string   { return "permanent: " + e.err.Error() }
func (e *permanentError) Unwrap() error   { return e.err }
func (e *retryAfterError) Error() string  { return fmt.Sprintf("retry after %v: %v", e.after, e.err) }
func (e *retryAfterError) Unwrap() error  { return e.err }
func (e *snoozeError) Error() string      { return fmt.Sprintf("snooze for %v", e.after) }
func (e *unavailableError) Error() string { return "unavailable: " + e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// Permanent marks a failure that no retry will mend.
func Permanent(err error) error { return &permanentError{orUnknown(err)} }

// RetryAfter marks a failure whose message should be visible again after d, instead of after the back-off. It is
// rounded up to whole seconds and cut to what is left of the 12 hours that a receive can be held.
func RetryAfter(d time.Duration, err error) error { return &retryAfterError{orUnknown(err), max(d, 0)} }

// Snooze gives the message back without a failure: it is visible again after d; with 0 at once, for somebody else.
func Snooze(d time.Duration) error { return &snoozeError{max(d, 0)} }

// Unavailable marks a failure of something that the handler depends on, not of this message. It opens the [Breaker]; the
// message comes back once the dependency may be up again, and is not counted as failed.
func Unavailable(err error) error { return &unavailableError{orUnknown(err)} }

func orUnknown(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}

// kind is what becomes of a message.
type kind int

const (
	succeeded   kind = iota // delete it
	duplicate               // completed before: delete it
	failed                  // give it back, counted as a failure
	snoozed                 // give it back, not counted
	interrupted             // the drain cancelled its handler: give it back at once, not counted
	unavailable             // a dependency is down: give it back until the breaker lets it be tried, not counted
	lost                    // the handler found that it is somebody else's by now: write nothing, not counted
)

// outcome is a handler's result, read.
type outcome struct {
	kind kind
	// delay is how long the message stays away when the handler said so; negative means the back-off.
	delay time.Duration
	err   error
}

// plain tells whether an error is a failure that says nothing about what is to become of the message.
func plain(err error) bool {
	var (
		retry     *retryAfterError
		snooze    *snoozeError
		permanent *permanentError
		down      *unavailableError
	)
	return err != nil && !errors.Is(err, ErrDuplicate) && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, errGoexit) &&
		!errors.As(err, &retry) && !errors.As(err, &snooze) && !errors.As(err, &permanent) && !errors.As(err, &down)
}

// done tells whether the message is to be deleted.
func (o outcome) done() bool { return o.kind == succeeded || o.kind == duplicate }

// outcomeOf reads a handler's result. ctx is the context that the handler had.
func outcomeOf(ctx context.Context, err error) outcome {
	var (
		retry     *retryAfterError
		snooze    *snoozeError
		permanent *permanentError
		down      *unavailableError
	)
	switch {
	case err == nil:
		return outcome{kind: succeeded}
	case errors.Is(err, ErrDuplicate):
		return outcome{kind: duplicate}
	case errors.Is(err, ErrLeaseLost):
		return outcome{kind: lost, err: err}
	case errors.As(err, &snooze):
		return outcome{kind: snoozed, delay: snooze.after, err: err}
	case errors.As(err, &permanent):
		return outcome{kind: failed, delay: -1, err: err}
	case errors.As(err, &retry):
		return outcome{kind: failed, delay: retry.after, err: err}
	case errors.As(err, &down):
		return outcome{kind: unavailable, err: err}
	case errors.Is(context.Cause(ctx), ErrShutdown):
		return outcome{kind: interrupted, err: err}
	}
	return outcome{kind: failed, delay: -1, err: err}
}
