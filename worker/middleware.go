package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// layer is a handler that is wrapped around another one.
type layer struct {
	name   string
	next   Handler
	wrong  error // in its own configuration
	handle HandlerFunc
}

func (l *layer) check(cfg *Config) error {
	if l.next == nil {
		return errors.Join(l.wrong, fmt.Errorf("worker: %s wraps no handler", l.name))
	}
	return errors.Join(l.wrong, checkHandler(l.next, cfg))
}

func (l *layer) Handle(ctx context.Context, m *Message) error {
	if l.wrong != nil || l.next == nil {
		return l.check(nil)
	}
	return l.handle(ctx, m)
}

// Timeout is middleware that ends the handler's context after d, from 1 ms to 12 h, with cause [ErrHandlerTimeout]; for
// one handler of a [Router], say, where [Config.HandlerTimeout] is for all. What the handler then returns decides: an error
// is a failure, whose text says that it was the timeout. A handler that ignores its context goes on.
func Timeout(d time.Duration) Middleware {
	var wrong error
	if d < time.Millisecond || d > heartbeat.MaxVisibility {
		wrong = fmt.Errorf("worker: Timeout is %v: must be from 1ms to %v", d, heartbeat.MaxVisibility)
	}
	return func(next Handler) Handler {
		return &layer{"Timeout", next, wrong, func(ctx context.Context, m *Message) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrHandlerTimeout)
			defer cancel()
			err := next.Handle(ctx, m)
			if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), ErrHandlerTimeout) && !errors.Is(err, ErrHandlerTimeout) {
				return &timeoutError{d, err}
			}
			return err
		}}
	}
}

// timeoutError says which deadline it was.
type timeoutError struct {
	after time.Duration
	err   error
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("%v after %v: %v", ErrHandlerTimeout, e.after, e.err)
}
func (e *timeoutError) Unwrap() []error { return []error{ErrHandlerTimeout, e.err} }

// Logging is middleware that logs one line when a handler is done with a message: the message's id and receive count, how
// it ended, how long it took, and the error if there is one. Nothing of the body or its attributes.
//
// The worker by itself logs failures and panics, so this is for those who want a line for every message. logger is
// slog.Default() if nil. Put it outermost, so that it sees what the worker sees.
func Logging(logger *slog.Logger, level slog.Level) Middleware {
	return func(next Handler) Handler {
		return &layer{"Logging", next, nil, func(ctx context.Context, m *Message) (err error) {
			log := logger
			if log == nil {
				log = slog.Default()
			}
			began, ended := time.Now(), "ended its goroutine"
			defer func() {
				if v := recover(); v != nil {
					logHandled(ctx, log, level, m, "panicked", time.Since(began), nil)
					panic(v) // the worker's to settle
				}
				logHandled(ctx, log, level, m, ended, time.Since(began), err)
			}()
			err = next.Handle(ctx, m)
			ended = outcomeName(ctx, err)
			return err
		}}
	}
}

func logHandled(ctx context.Context, log *slog.Logger, level slog.Level, m *Message, ended string, took time.Duration, err error) {
	attrs := []slog.Attr{slog.Any("message", m), slog.String("outcome", ended), slog.Duration("took", took)}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	log.LogAttrs(ctx, level, "message handled", attrs...)
}

// outcomeName is what an operator calls a handler's result.
func outcomeName(ctx context.Context, err error) string {
	var (
		panicked  *panicError
		permanent *permanentError
	)
	o := outcomeOf(ctx, err)
	switch {
	case o.kind != failed:
		return o.kind.String()
	case errors.As(err, &panicked):
		return "panicked"
	case errors.As(err, &permanent):
		return "failed permanently"
	}
	return o.kind.String()
}

// Recover is middleware that makes a panic of the handler an error, for the middleware outside of it. Without it, the
// worker does the same at the outermost place: a panic is always a failure of its message alone.
//
// decide may turn it into an outcome, such as [Permanent] for a panic that would repeat itself; it gets what recover
// returned, and the stack. If it is nil, or returns nil, the panic is a failure. However it decides, the worker counts and
// logs a panic.
func Recover(decide func(ctx context.Context, m *Message, value any, stack []byte) error) Middleware {
	return func(next Handler) Handler {
		return &layer{"Recover", next, nil, func(ctx context.Context, m *Message) (err error) {
			defer func() {
				v := recover()
				if v == nil {
					return
				}
				panicked := &panicError{v, debug.Stack()}
				err = panicked
				if decide == nil {
					return
				}
				if decided := decide(ctx, m, v, panicked.stack); decided != nil {
					err = &decidedPanic{decided, panicked}
				}
			}()
			return next.Handle(ctx, m)
		}}
	}
}

// decidedPanic is a panic with the outcome that somebody chose for it.
type decidedPanic struct {
	outcome  error
	panicked *panicError
}

func (e *decidedPanic) Error() string   { return e.outcome.Error() }
func (e *decidedPanic) Unwrap() []error { return []error{e.outcome, e.panicked} }
