package worker

import "context"

// Handler works on one message. What it returns decides what becomes of the message:
//
//   - nil: it is deleted;
//   - [Permanent], [RetryAfter], [Snooze], [Unavailable], [ErrDuplicate]: as those say;
//   - any other error: a failure; the message comes back after [Config.Backoff].
//
// A panic is a failure too. Handlers run concurrently. The context ends when the message can't be held any longer
// ([ErrLeaseLost], [heartbeat.ErrCeiling]), when [Config.HandlerTimeout] is over, or late in a drain ([ErrShutdown]);
// context.Cause tells which. A handler that ignores it goes on, but its message may be somebody else's by then.
type Handler interface {
	Handle(context.Context, *Message) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(context.Context, *Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m *Message) error { return f(ctx, m) }

// DeadLetterer takes messages that are beyond help. It returns once the message is safe where it was sent to: the worker
// deletes it then. On an error the message stays and comes back. It is called concurrently.
type DeadLetterer interface {
	DeadLetter(ctx context.Context, m *Message, reason error) error
}

// Middleware wraps a handler. It may act before and after, replace the message that the handler sees, or not call
// the handler at all: what it returns is what counts. The message that the worker settles is the received one.
type Middleware func(Handler) Handler
