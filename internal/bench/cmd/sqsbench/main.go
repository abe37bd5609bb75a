// Command sqsbench measures the worker side by side with a loop over the raw SDK, against an SQS of its own.
//
//	go run ./internal/bench/cmd/sqsbench [-only throughput,latency] [-latency 1ms,12ms] [-rounds 3] [-quick]
//
// It exits 1 when something broke, and 0 otherwise, whatever the figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/sqsworker/sqsworker/internal/bench"
)

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case bench.ServeCommand:
			exit(bench.Serve(os.Stdin, os.Stdout))
		case bench.ContestCommand:
			exit(bench.Contest(os.Stdin, os.Stdout))
		}
	}
	options, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(bench.Run(ctx, options, os.Stdout))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "sqsbench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func parse(args []string) (o bench.Options, err error) {
	f := flag.NewFlagSet("sqsbench", flag.ExitOnError)
	latencies := f.String("latency", "1ms,12ms", "what each SQS call takes, at least 1ms; several, separated by commas")
	concurrencies := f.String("concurrency", "10,100", "handlers at once in the throughput scenario")
	only := f.String("only", "", "scenarios, separated by commas (default all): "+strings.Join(bench.Scenarios(), ", "))
	f.StringVar(&o.RawAttributes, "raw-attributes", "same", "the attributes that the raw loop asks for: same (as the worker), all, none")
	f.IntVar(&o.Rounds, "rounds", 3, "rounds of each contestant, alternating; the throughput scenario makes five short ones of each")
	f.DurationVar(&o.Window, "window", 600*time.Millisecond, "about what one throughput run takes")
	f.BoolVar(&o.Quick, "quick", false, "small numbers: to see that everything runs, not how fast; one round")
	f.StringVar(&o.ProfileDir, "cpuprofile", "", "directory for CPU and allocation profiles of each throughput contestant")
	_ = f.Parse(args) // exits by itself
	if o.Latencies, err = each(*latencies, time.ParseDuration); err != nil {
		return o, fmt.Errorf("sqsbench: -latency: %w", err)
	}
	if o.Concurrencies, err = each(*concurrencies, strconv.Atoi); err != nil {
		return o, fmt.Errorf("sqsbench: -concurrency: %w", err)
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if o.Quick {
		o.Rounds, o.Window, o.Latencies = 1, 200*time.Millisecond, o.Latencies[:1]
	}
	return o, nil
}

// each parses a list separated by commas.
func each[T any](list string, parse func(string) (T, error)) (all []T, err error) {
	for _, s := range strings.Split(list, ",") {
		v, err := parse(strings.TrimSpace(s))
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}
