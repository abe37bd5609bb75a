package worker

import "context"

// Outcome is how the worker reads what a handler returned. Middleware that keeps an account of its own (failures, a lock, an
// idempotency record) asks [OutcomeOf], so that both accounts say the same.
type Outcome int

const (
	OutcomeSucceeded   = Outcome(succeeded)   // nil
	OutcomeDuplicate   = Outcome(duplicate)   // [ErrDuplicate]
	OutcomeFailed      = Outcome(failed)      // [Permanent], [RetryAfter], any other error: counted as a failure
	OutcomeSnoozed     = Outcome(snoozed)     // [Snooze]
	OutcomeInterrupted = Outcome(interrupted) // an error after the context had ended with [ErrShutdown]
	OutcomeUnavailable = Outcome(unavailable) // [Unavailable]
	OutcomeLost        = Outcome(lost)        // [ErrLeaseLost]
)

func (o Outcome) String() string { return kind(o).String() }

// OutcomeOf reads a handler's result. ctx is the context that the handler was given.
func OutcomeOf(ctx context.Context, err error) Outcome { return Outcome(outcomeOf(ctx, err).kind) }
