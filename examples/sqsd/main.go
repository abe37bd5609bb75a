// Command sqsd stands in front of a program in any language and works an SQS queue for it: it POSTs each message to a local
// URL, with the headers of Elastic Beanstalk's daemon of that name, and deletes the message when the answer is 200.
// Anything else is a failure, no answer in time too, and the message comes back. Long polling, heartbeats, back-off and
// drain are the worker's.
//
//	sqsd -queue-url https://sqs.eu-west-1.amazonaws.com/123456789012/jobs -url http://localhost:8080/work
//
// AWS credentials and Region come from where the SDK looks for them. On SIGTERM it lets open requests end, gives back the
// rest, and exits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// options are the flags. Defaults are those of Elastic Beanstalk's daemon where it has them.
type options struct {
	queueURL        string
	url             string
	mimeType        string
	connections     int
	timeout         time.Duration
	visibility      time.Duration
	errorVisibility time.Duration
	drain           time.Duration
	taskPaths       bool
	health          string
}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("sqsd", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.queueURL, "queue-url", os.Getenv("SQSD_QUEUE_URL"), "`URL` of the queue; default is $SQSD_QUEUE_URL")
	f.StringVar(&o.url, "url", "http://localhost:80/", "`URL` that messages are POSTed to")
	f.StringVar(&o.mimeType, "mime-type", "application/json", "Content-Type of the requests")
	f.IntVar(&o.connections, "connections", 50, "requests at once, 1 to 10000")
	f.DurationVar(&o.timeout, "timeout", 299*time.Second, "how long the program has to answer, 1ms to 12h")
	f.DurationVar(&o.visibility, "visibility", 0, "visibility timeout of held messages, whole seconds; renewed until the answer (default the queue's own)")
	f.DurationVar(&o.errorVisibility, "error-visibility", 0, "how long a message stays away after a failure (default a growing back-off, from 2s)")
	f.DurationVar(&o.drain, "drain", 25*time.Second, "time from SIGTERM to the exit, at most; 1s to 12h")
	f.BoolVar(&o.taskPaths, "task-paths", true, "POST scheduled tasks to the path that their message names, on the same host")
	f.StringVar(&o.health, "health", "", "`address` to serve /healthz on, such as :8081 (default none)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, o.validate()
}

func (o options) validate() error {
	var errs []error
	if o.queueURL == "" {
		errs = append(errs, errors.New("-queue-url is missing"))
	}
	if o.connections < 1 || o.connections > 10_000 {
		errs = append(errs, fmt.Errorf("-connections is %d: must be from 1 to 10000", o.connections))
	}
	if o.timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("-timeout is %v: must be from 1ms to 12h", o.timeout))
	}
	if o.errorVisibility != 0 && (o.errorVisibility < time.Second || o.errorVisibility > 12*time.Hour) {
		errs = append(errs, fmt.Errorf("-error-visibility is %v: must be from 1s to 12h", o.errorVisibility))
	}
	if o.drain < time.Second {
		errs = append(errs, fmt.Errorf("-drain is %v: must be from 1s to 12h", o.drain))
	}
	if _, err := parseTarget(o.url); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// newWorker is the program but for where its client comes from.
func newWorker(client worker.Client, transport http.RoundTripper, o options, log *slog.Logger) (*worker.Worker, error) {
	target, err := parseTarget(o.url)
	if err != nil {
		return nil, err
	}
	return worker.New(client, o.queueURL, newPoster(target, transport, o, log), worker.Config{
		SenderID:       true,
		Concurrency:    o.connections,
		HandlerTimeout: o.timeout,
		Visibility:     o.visibility,
		DrainTimeout:   o.drain,
		Logger:         log,
	})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // the first signal drains, a second one kills
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run returns the exit status: 0 after a drain that left nothing behind, 1 if it couldn't work or left something, 2 for bad
// flags.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "sqsd: %v\n", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if err := work(ctx, o, log); err != nil {
		log.Error("sqsd", "error", err)
		return 1
	}
	return 0
}

func work(ctx context.Context, o options, log *slog.Logger) error {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return fmt.Errorf("AWS configuration: %w", err)
	}
	w, err := newWorker(sqs.NewFromConfig(cfg), newTransport(o.connections), o, log)
	if err != nil {
		return err
	}
	if o.health != "" {
		stop, err := serveHealth(o.health, w)
		if err != nil {
			return err
		}
		defer stop()
	}
	return w.Run(ctx)
}

// serveHealth answers 200 on /healthz while the worker does what it should, and 503 with the reason otherwise.
func serveHealth(address string, w *worker.Worker) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-health: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) {
		if err := w.Healthy(); err != nil {
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, "ok")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends with Close
	}()
	return func() {
		_ = server.Close()
		<-done
	}, nil
}
