// Command lambda charges orders from an SQS queue, as an AWS Lambda function or as a service of its own: the handler is the
// same.
//
// In Lambda, behind an SQS trigger with ReportBatchItemFailures (see template.yaml), it is called by the runtime. With
// QUEUE_URL set it works that queue itself, until SIGTERM.
//
// Environment:
//
//	PAYMENTS_URL  where a charge is POSTed to; required
//	QUEUE_URL     outside of Lambda, the queue to work
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// newHandler is what becomes of a message, wherever it runs.
func newHandler(p payments) worker.Handler {
	return worker.Router{
		By:     worker.ByAttribute("type"),
		Routes: map[string]worker.Handler{"order.placed": worker.JSON(p.charge)},
		Ignore: []string{"order.viewed"},
	}
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(log); err != nil {
		log.Error("lambda", "error", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	p, err := newPayments(os.Getenv("PAYMENTS_URL"))
	if err != nil {
		return err
	}
	inLambda, queueURL := os.Getenv("AWS_LAMBDA_RUNTIME_API") != "", os.Getenv("QUEUE_URL")
	switch {
	case inLambda:
		return serveLambda(newHandler(p), log)
	case queueURL != "":
		return serveQueue(newHandler(p), queueURL, log)
	}
	return errors.New("set QUEUE_URL to work a queue; inside of Lambda AWS_LAMBDA_RUNTIME_API is set")
}

// serveLambda doesn't return but when the function's environment ends.
func serveLambda(h worker.Handler, log *slog.Logger) error {
	function, err := worker.NewLambda(h, worker.LambdaConfig{Logger: log})
	if err != nil {
		return err
	}
	lambda.Start(function)
	return nil
}

func serveQueue(h worker.Handler, queueURL string, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return fmt.Errorf("AWS configuration: %w", err)
	}
	w, err := worker.New(sqs.NewFromConfig(cfg), queueURL, h, worker.Config{Logger: log})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}
