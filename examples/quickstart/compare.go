package main

import (
	"context"
	"fmt"
	"io"
)

// runBoth is the program with -short-poll: the same scene with short and with long polls, side by side, each with an
// SQS of its own. The one with short polls is told.
func runBoth(ctx context.Context, o options, stdin io.Reader, out io.Writer) (status int, err error) {
	messages, source, err := readInput(o.input, stdin)
	if err != nil {
		return exitUsage, err
	}
	long := o
	long.shortPoll, long.wait = false, sceneWait
	reports := make([]*report, 2)
	errs := make([]error, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reports[1], errs[1] = play(ctx, long, io.Discard, messages, source)
	}()
	reports[0], errs[0] = play(ctx, o, out, messages, source)
	<-done
	for _, err := range errs {
		if err != nil {
			return exitBad, err
		}
	}
	reports[0].print(out)
	printComparison(out, reports[0], reports[1])
	return max(reports[0].status(), reports[1].status()), nil
}

func play(ctx context.Context, o options, out io.Writer, messages []message, source string) (*report, error) {
	s, err := newScene(ctx, o, out)
	if err != nil {
		return nil, err
	}
	return s.run(ctx, append([]message(nil), messages...), source)
}

func printComparison(w io.Writer, short, long *report) {
	shortSum, longSum := total(short.usage), total(long.usage)
	shortReceives, longReceives := receives(short.usage), receives(long.usage)
	var t table
	t.row("WHAT LONG POLLS SAVE", "short polls", "long polls", "")
	t.row("receives", shortReceives.calls, longReceives.calls, "")
	t.row("of them empty", shortReceives.empty, longReceives.empty, "")
	t.row("all billed requests", shortSum.requests, longSum.requests, "")
	t.row("cost per million messages", dollars(perMillion(shortSum.requests, short.t.sent)), dollars(perMillion(longSum.requests, long.t.sent)), "")
	t.row("an idle worker, per month", dollars(idleShortPolls*dollarsPerRequest), dollars(idleLongPolls*dollarsPerRequest), "ten receives a second; three a minute")
	fmt.Fprintln(w)
	t.print(w)
}

func receives(all []usage) usage {
	for _, u := range all {
		if u.action == receiveAction {
			return u
		}
	}
	return usage{}
}
