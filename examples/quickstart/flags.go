package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// options are the flags, and what follows from them.
type options struct {
	input       string
	messages    int
	workers     int
	concurrency int
	visibility  time.Duration
	handleTime  time.Duration
	heartbeat   time.Duration // worker.Config.HeartbeatInterval
	crash       bool
	shortPoll   bool
	idempotency bool
	queueURL    string
	verbose     bool

	wait    time.Duration  // worker.Config.WaitTime
	backoff worker.Backoff // worker.Config.Backoff
	logger  *slog.Logger   // worker.Config.Logger
	idle    time.Duration  // how long the workers stay when the queue is empty
}

const (
	defaultVisibility = 3 * time.Second
	// sceneWait is WaitTime on the in-process queue. An idle worker that is told to stop lets its open long poll end by
	// itself, because SQS may have handed it messages already; with the default of 20 s, which is right for a service,
	// this program would sit there for up to 20 s at its end.
	sceneWait   = 2 * time.Second
	maxMessages = 100_000
)

func newFlagSet(o *options, heartbeat, once *string) *flag.FlagSet {
	f := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	f.SetOutput(io.Discard) // one line instead, in run
	f.StringVar(&o.input, "input", "", "send the lines of this `file` (- for standard input) instead of the built-in orders.jsonl: an order as\n"+
		`{"order":4521,"amount":500}, or an S3 event notification, one a line. With "attachment":2097152 an
order carries one of that size`)
	f.IntVar(&o.messages, "messages", 0, "send `N` generated orders more")
	f.IntVar(&o.workers, "workers", 2, "`N` workers; with 2 or more, one is told to stop half-way")
	f.IntVar(&o.concurrency, "concurrency", 5, "each worker runs `N` handlers at once, and holds as many messages again ready")
	f.DurationVar(&o.visibility, "visibility", 0, "visibility timeout, in whole seconds: how long a message stays with a worker that shows no\n"+
		"sign of life (default 3s; on a real queue, the queue's own)")
	f.DurationVar(&o.handleTime, "handle-time", 5*time.Second, "how long a slow message takes; others take a twentieth of it")
	f.StringVar(heartbeat, "heartbeat", "on", "on: the visibility is renewed at a third of it; off: a message is held for its visibility\n"+
		"and no longer; or the `interval` between renewals, such as 500ms")
	f.BoolVar(&o.crash, "crash", false, "half-way, kill a worker instead of stopping it (SIGKILL to a real process), and time how\n"+
		"long its messages take to come back: try it with -visibility 1s, 30s and 12h")
	f.BoolVar(&o.shortPoll, "short-poll", false, "poll without waiting, and run the same with long polls beside it, to show what those save")
	f.StringVar(once, "idempotency", "on", "on: an order is handled once, however often it is sent or delivered; off: each time it is\ndelivered, to see what happens then")
	f.StringVar(&o.queueURL, "queue-url", "", "work the queue at this `URL` with the default AWS configuration (AWS_ENDPOINT_URL too) until\n"+
		"interrupted. What is handled is deleted from it")
	f.BoolVar(&o.verbose, "v", false, "show the workers' own log on standard error")
	return f
}

const helpHead = `quickstart: sqsworker on an SQS in this process, or on a real queue with -queue-url.

It sends messages, works them, stops a worker half-way, and counts at the server what became of each message.
Exit status: 0 all well; 1 something was lost, run twice without cause or charged twice; 2 it couldn't start.

`

const helpTail = `
This duplicates work: slow messages outlive their visibility, and another worker gets them meanwhile:
  quickstart -heartbeat=off -visibility 2s -handle-time 5s
These don't: the visibility is renewed while a message is worked on, or it is long enough:
  quickstart -visibility 2s -handle-time 5s
  quickstart -heartbeat=off -visibility 30s -handle-time 5s
This charges customers twice: an order that is sent twice is two messages to SQS:
  quickstart -idempotency=off
But a long visibility makes a dead worker's messages wait:
  quickstart -crash -visibility 1s
  quickstart -crash -visibility 30s
`

func printHelp(w io.Writer) {
	f := newFlagSet(&options{}, new(string), new(string))
	fmt.Fprint(w, helpHead)
	f.SetOutput(w)
	f.PrintDefaults()
	fmt.Fprint(w, helpTail)
}

// parseFlags reads the command line. log takes the workers' log when it is asked for.
func parseFlags(args []string, log io.Writer) (options, error) {
	var o options
	var heartbeat, once string
	f := newFlagSet(&o, &heartbeat, &once)
	if err := f.Parse(args); err != nil {
		return o, err
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: everything is a flag, see -h", f.Arg(0))
	}
	var err error
	if o.heartbeat, err = parseHeartbeat(heartbeat); err != nil {
		return o, err
	}
	if o.idempotency = once == "on"; !o.idempotency && once != "off" {
		return o, fmt.Errorf("-idempotency is %q: must be on or off", once)
	}
	if err := o.validate(given); err != nil {
		return o, err
	}
	o.fill(given, log)
	return o, nil
}

func parseHeartbeat(value string) (time.Duration, error) {
	switch value {
	case "on":
		return 0, nil
	case "off":
		return worker.NoHeartbeat, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 50*time.Millisecond {
		return 0, fmt.Errorf("-heartbeat is %q: must be on, off, or a time from 50ms on", value)
	}
	return d, nil
}

func (o options) validate(given map[string]bool) error {
	switch {
	case o.messages < 0 || o.messages > maxMessages:
		return fmt.Errorf("-messages is %d: must be from 0 to %d", o.messages, maxMessages)
	case o.workers < 1 || o.workers > 100:
		return fmt.Errorf("-workers is %d: must be from 1 to 100", o.workers)
	case o.concurrency < 1 || o.concurrency > 10_000:
		return fmt.Errorf("-concurrency is %d: must be from 1 to 10000", o.concurrency)
	case given["visibility"] && (o.visibility < time.Second || o.visibility > 12*time.Hour || o.visibility%time.Second != 0):
		return fmt.Errorf("-visibility is %v: must be whole seconds from 1s to 12h, because SQS counts it in seconds", o.visibility)
	case o.handleTime < 0 || o.handleTime > time.Hour:
		return fmt.Errorf("-handle-time is %v: must be from 0s to 1h", o.handleTime)
	case o.heartbeat > 0 && o.queueURL == "" && o.heartbeat > o.sceneVisibility()*3/4:
		return fmt.Errorf("-heartbeat is %v: must be at most three quarters of -visibility, %v, so that there is time to try again", o.heartbeat, o.sceneVisibility())
	case o.crash && o.workers < 2:
		return errors.New("-crash needs a second worker that takes over: -workers must be 2 or more")
	case o.crash && o.shortPoll:
		return errors.New("-crash and -short-poll are two different lessons: take one at a time")
	case o.queueURL == "" && given["queue-url"]:
		return errors.New("-queue-url is empty: must be a queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
	}
	if o.queueURL != "" {
		for _, name := range []string{"input", "messages", "crash", "idempotency"} {
			if given[name] {
				return fmt.Errorf("-%s is for the in-process queue: leave it out with -queue-url, which only works what is in the queue", name)
			}
		}
	}
	return nil
}

func (o options) sceneVisibility() time.Duration {
	if o.visibility == 0 {
		return defaultVisibility
	}
	return o.visibility
}

// fill sets what follows from the flags.
func (o *options) fill(given map[string]bool, log io.Writer) {
	o.logger = slog.New(slog.DiscardHandler)
	if o.verbose || o.queueURL != "" { // an operator of a real queue should see it
		o.logger = slog.New(slog.NewTextHandler(log, nil))
	}
	switch {
	case o.queueURL == "":
		o.visibility = o.sceneVisibility()
		o.wait = sceneWait
		o.backoff = worker.Backoff{Min: time.Second, Max: time.Second} // not 2 s to 15 min: nobody wants to watch that
	case !given["workers"]:
		o.workers = 1
	}
	if o.shortPoll {
		o.wait = worker.ShortPoll
		o.idle = 5 * time.Second
	}
}

// oneLine makes one line of an error, so that a mistake never looks like a crash.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
