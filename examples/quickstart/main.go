// Command quickstart shows in a quarter of a minute what sqsworker does. It starts an SQS in this process, makes a
// queue with a dead-letter queue, sends it orders and S3 event notifications, and lets two workers work them. Some
// messages take longer than their visibility timeout, some fail once, some always fail, some orders come twice or with an
// attachment that SQS doesn't take, and half-way one of the workers is told to stop. At the end it counts, at the server,
// what became of every message and what it would have cost.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -h
//
// With -queue-url it runs the same worker on a real queue. Reading order: newWorker below, shop.handle in shop.go (the
// handler), middleware.go (each order once, attachments through S3), then scene.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sqsworker/sqsworker/worker"
)

// newWorker is all that a service has to write to work a queue. Everything in Config is optional; middleware.go shows
// what Middleware is good for.
func newWorker(client worker.Client, queueURL, name string, o options, middleware ...worker.Middleware) (*worker.Worker, error) {
	handler := worker.HandlerFunc(shop{slow: o.handleTime}.handle)
	return worker.New(client, queueURL, handler, worker.Config{
		Name:              name,
		Concurrency:       o.concurrency,
		Prefetch:          o.concurrency, // as many again are held ready, so that there is something to give back at the stop
		WaitTime:          o.wait,
		Visibility:        o.visibility,
		HeartbeatInterval: o.heartbeat,
		Backoff:           o.backoff,
		Middleware:        middleware,
		Logger:            o.logger,
	})
}

func main() {
	if spec, ok := os.LookupEnv(processVariable); ok { // a worker of -crash: a process that can be killed
		os.Exit(runProcess(spec, os.Stdin, os.Stdout, os.Stderr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal stops in good order, a second one kills
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitOK          = 0
	exitBad         = 1 // something was lost, run twice without cause or charged twice
	exitUsage       = 2 // a bad flag, file, line or queue: nothing was run
	exitInterrupted = 130
)

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(stdout)
		return exitOK
	}
	status := exitUsage
	if err == nil {
		switch {
		case o.queueURL != "":
			status, err = runRealQueue(ctx, o, stdout)
		case o.shortPoll:
			status, err = runBoth(ctx, o, stdin, stdout)
		default:
			status, err = runScene(ctx, o, stdin, stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "quickstart: %s\n", oneLine(err))
	}
	return status
}
