package worker

import (
	"errors"
)

func (k kind) String() string {
	return [...]string{"succeeded", "duplicate", "failed", "snoozed", "interrupted", "unavailable", "lost"}[k]
}

// logOutcome logs what an operator should read about a handler's result.
func (r *run) logOutcome(d *delivery, o outcome) {
	var panicked *panicError
	switch {
	case errors.As(o.err, &panicked):
		r.stats.panics.Add(1)
		r.log.Error("handler panicked", "message", d, "panic", panicked.value, "stack", string(panicked.stack))
	case o.kind == failed:
		r.log.Warn("handler failed", "message", d, "error", o.err)
	}
}
