// Package worker runs a pool of handlers over an SQS queue.
//
//	w, err := worker.New(sqs.NewFromConfig(cfg), queueURL, worker.HandlerFunc(handle), worker.Config{})
//	...
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
//	defer stop()
//	err = w.Run(ctx)
//
// It long-polls, keeps each message invisible while it waits and runs, deletes what succeeded, gives back what didn't,
// and when its context ends it stops without losing or stranding anything. What a handler returns decides what becomes of
// its message, see [Handler].
//
// # What it promises
//
//   - A message is deleted only after its handler returned nil (or after it was handed to a dead-letter sink).
//   - A message is never run while this worker knows that its lease is over, and nothing is written for it then.
//   - Never more messages are held than [Config.Concurrency] and [Config.Prefetch] say, and those that wait for their delete.
//   - Standard queues deliver at least once: a message can be run twice, here or elsewhere, when a process dies, a lease
//     can't be renewed, or SQS delivers it twice. Handlers must be idempotent.
//
// # Goroutines
//
// Data goes one way: receive, dispatch, run, settle. One poller decides when to receive; each receive is a goroutine
// (poller.go, receive.go). Messages wait in the dispatcher for one of at most Concurrency executors (dispatcher.go,
// executor.go). Each held message has a goroutine that renews its lease (package heartbeat). Results are settled by the
// deleter's calls and the heartbeat's (settle.go, deleter.go). drain.go ends them all, in order.
package worker
