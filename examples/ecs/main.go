// Command ecs settles invoices from an SQS queue, as a service on ECS with Fargate Spot would: each invoice once, large ones
// through S3, every stop within the time that ECS gives. template.yaml deploys it.
//
// Environment:
//
//	QUEUE_URL     the queue to work; required
//	TABLE         the DynamoDB table for what was done already; required
//	BUCKET        the S3 bucket with payloads that are too large for a message; required
//	STOP_TIMEOUT  the container's stopTimeout, such as 120s; default 30s, ECS's own
//	CONCURRENCY   invoices at once; default 10
//
// With -health it asks a running one how it is, for the container's health check.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
)

const healthAddress = "127.0.0.1:8080"

func main() {
	health := flag.Bool("health", false, "ask the running service how it is")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	do := serve
	if *health {
		do = ask
	}
	if err := do(log); err != nil {
		log.Error("ecs", "error", err)
		os.Exit(1)
	}
}

// settings are what the environment says.
type settings struct {
	queueURL, table, bucket string
	stopTimeout             time.Duration
	concurrency             int
}

func settingsFrom(getenv func(string) string) (s settings, err error) {
	var errs []error
	required := func(name string) string {
		value := getenv(name)
		if value == "" {
			errs = append(errs, fmt.Errorf("%s isn't set", name))
		}
		return value
	}
	s = settings{queueURL: required("QUEUE_URL"), table: required("TABLE"), bucket: required("BUCKET"), stopTimeout: interruption.ECSStopTimeout, concurrency: 10}
	if v := getenv("STOP_TIMEOUT"); v != "" {
		if s.stopTimeout, err = time.ParseDuration(v); err != nil || s.stopTimeout < 5*time.Second {
			errs = append(errs, fmt.Errorf("STOP_TIMEOUT is %q: must be a duration of 5s or more, such as 120s", v))
		}
	}
	if v := getenv("CONCURRENCY"); v != "" {
		if s.concurrency, err = strconv.Atoi(v); err != nil {
			errs = append(errs, fmt.Errorf("CONCURRENCY is %q: must be a number", v))
		}
	}
	return s, errors.Join(errs...)
}

// keyPrefix is where the payloads of this queue are; the bucket's lifecycle rule and the task role name it too.
const keyPrefix = "invoices/"

// newWorker puts together what the service needs. Payloads come first, because the key of what was done already is in them.
func newWorker(s settings, queue *sqs.Client, table *dynamodb.Client, objects *s3.Client, log *slog.Logger) (*worker.Worker, error) {
	store, err := idempotency.NewDynamoStore(table, s.table, idempotency.DynamoConfig{})
	if err != nil {
		return nil, err
	}
	payloads, err := extended.New(queue, objects, extended.Config{Bucket: s.bucket, KeyPrefix: keyPrefix, Logger: log})
	if err != nil {
		return nil, err
	}
	return worker.New(payloads.ForWorker(), s.queueURL, worker.JSON(settle), worker.Config{
		Concurrency:  s.concurrency,
		DrainTimeout: s.stopTimeout, // the interruption's deadline, which is a little before the kill, bounds it
		Middleware: []worker.Middleware{
			payloads.Middleware(),
			idempotency.Middleware(store, idempotency.Config{Key: idempotency.JSONField("invoice"), Logger: log}),
		},
		Logger: log,
	})
}

func serve(log *slog.Logger) error {
	s, err := settingsFrom(os.Getenv)
	if err != nil {
		return err
	}
	ctx, stop := interruption.Watch(context.Background(), interruption.ECS(s.stopTimeout))
	defer stop()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return fmt.Errorf("AWS configuration: %w", err)
	}
	w, err := newWorker(s, sqs.NewFromConfig(cfg), dynamodb.NewFromConfig(cfg), s3.NewFromConfig(cfg), log)
	if err != nil {
		return err
	}
	protection, err := interruption.NewTaskProtection(interruption.ProtectionConfig{Logger: log}, w)
	if err != nil {
		return err
	}
	answers := &http.Server{Addr: healthAddress, Handler: healthOf(w), ReadHeaderTimeout: time.Second}
	go func() {
		if err := answers.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the health check can't be answered", "error", err)
		}
	}()
	defer answers.Close()
	var protecting sync.WaitGroup
	protecting.Go(func() { _ = protection.Run(ctx) }) // returns nil: what fails there stops nothing
	err = w.Run(ctx)
	stop() // ends the protection too, if the worker gave up by itself
	protecting.Wait()
	return err
}

// healthOf answers 503 when the worker can't receive. It stays healthy while handlers are slow and while it drains.
func healthOf(w *worker.Worker) http.Handler {
	return http.HandlerFunc(func(res http.ResponseWriter, _ *http.Request) {
		if err := w.Healthy(); err != nil && !errors.Is(err, worker.ErrBreakerOpen) { // a new task would not mend a dependency
			http.Error(res, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

func ask(*slog.Logger) error {
	client := http.Client{Timeout: 3 * time.Second}
	res, err := client.Get("http://" + healthAddress)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("unhealthy: %s", res.Status)
	}
	return nil
}
