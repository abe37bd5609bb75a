// Command sqsdlq audits, repairs, looks at and redrives SQS dead-letter queues.
//
//	sqsdlq audit orders
//	sqsdlq ensure orders --dry-run
//	sqsdlq peek orders-dlq --limit 20
//	sqsdlq redrive orders-dlq --rate 100
//	sqsdlq redrive orders-dlq --match 'timeout' --limit 50 --journal redrive.journal
//	sqsdlq cancel orders-dlq
//	sqsdlq purge orders-dlq
//	sqsdlq alarm orders-dlq
//
// Queues are named by name, URL or ARN. Credentials and Region are the AWS SDK's: environment, shared files, --profile, --region.
// On a terminal it prints tables and a progress bar, otherwise JSON, one object a line; --output chooses.
//
// Exit codes:
//
//	0    done
//	1    failed
//	2    wrong usage
//	3    audit: findings at or above --fail-on; ensure --dry-run: there is something to change
//	4    refused, nothing was done: what AWS or safety forbids, or the question was answered with no
//	5    redrive: came to its end, and not everything could be moved
//	130  interrupted
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sqsworker/sqsworker/dlq"
)

const (
	exitFailed     = 1
	exitUsage      = 2
	exitFindings   = 3
	exitRefused    = 4
	exitIncomplete = 5
	exitInterrupt  = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, newTerminal(os.Stdin, os.Stdout, os.Stderr), os.Args[1:]))
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, t *terminal, args []string) int {
	root := newRoot(t)
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := root.ExecuteContext(ctx)
	code := exitCode(ctx, err)
	if err != nil && !errors.Is(err, errQuiet) {
		fmt.Fprintln(t.err, "sqsdlq:", err)
	}
	return code
}

var (
	// errQuiet: everything has been said.
	errQuiet    = errors.New("")
	errFindings = fmt.Errorf("%wfindings", errQuiet)
	errDeclined = errors.New("not confirmed: nothing was done")
	errUsage    = errors.New("usage")
)

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string        { return e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == errUsage }

func exitCode(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		return exitInterrupt
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errFindings):
		return exitFindings
	case errors.Is(err, errDeclined), errors.Is(err, dlq.ErrRefused), errors.Is(err, dlq.ErrNoTask):
		return exitRefused
	case errors.Is(err, dlq.ErrIncomplete):
		return exitIncomplete
	}
	return exitFailed
}
