// Command ec2spot works an SQS queue on EC2 Spot instances of an Auto Scaling group. template.yaml deploys it.
//
// Environment:
//
//	QUEUE_URL       the queue to work; required
//	CONCURRENCY     messages at once; default 10
//	STOP_TIMEOUT    the unit's TimeoutStopSec; default 90s, systemd's own
//	GROUP, HOOK     names of the Auto Scaling group and of its terminating lifecycle hook; without them the group waits for the
//	                hook's timeout
//	HOOK_TIMEOUT    the hook's heartbeat timeout; default 120s
//	ON_REBALANCE    what to do when EC2 recommends to move away: drain, shrink or ignore; default drain
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
	"github.com/sqsworker/sqsworker/worker/interruption/lifecycle"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)) // the journal has the time
	if err := run(log); err != nil {
		log.Error("ec2spot", "error", err)
		os.Exit(1)
	}
}

// settings are what the environment says.
type settings struct {
	queueURL                 string
	concurrency              int
	stopTimeout, hookTimeout time.Duration
	group, hook              string
	onRebalance              string
}

func settingsFrom(getenv func(string) string) (s settings, err error) {
	var errs []error
	duration := func(name string, otherwise time.Duration) time.Duration {
		v := getenv(name)
		if v == "" {
			return otherwise
		}
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			errs = append(errs, fmt.Errorf("%s is %q: must be a duration such as 120s", name, v))
		}
		return d
	}
	s = settings{
		queueURL: getenv("QUEUE_URL"), concurrency: 10, group: getenv("GROUP"), hook: getenv("HOOK"), onRebalance: getenv("ON_REBALANCE"),
		stopTimeout: duration("STOP_TIMEOUT", interruption.SystemdStopTimeout), hookTimeout: duration("HOOK_TIMEOUT", 2*time.Minute),
	}
	if s.queueURL == "" {
		errs = append(errs, errors.New("QUEUE_URL isn't set"))
	}
	if (s.group == "") != (s.hook == "") {
		errs = append(errs, errors.New("GROUP and HOOK must both be set, or neither"))
	}
	if v := getenv("CONCURRENCY"); v != "" {
		if s.concurrency, err = strconv.Atoi(v); err != nil {
			errs = append(errs, fmt.Errorf("CONCURRENCY is %q: must be a number", v))
		}
	}
	switch s.onRebalance {
	case "":
		s.onRebalance = "drain"
	case "drain", "shrink", "ignore":
	default:
		errs = append(errs, fmt.Errorf("ON_REBALANCE is %q: must be drain, shrink or ignore", s.onRebalance))
	}
	return s, errors.Join(errs...)
}

func run(log *slog.Logger) error {
	s, err := settingsFrom(os.Getenv)
	if err != nil {
		return err
	}
	cfg, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		return fmt.Errorf("AWS configuration: %w", err)
	}
	w, err := worker.New(sqs.NewFromConfig(cfg), s.queueURL, worker.HandlerFunc(work), worker.Config{
		Concurrency:  s.concurrency,
		DrainTimeout: 2 * time.Minute, // what the jobs would like; each interruption's own deadline bounds it
		Logger:       log,
	})
	if err != nil {
		return err
	}
	sources, err := s.sources(w, autoscaling.NewFromConfig(cfg), log)
	if err != nil {
		return err
	}
	ctx, stop := interruption.Watch(context.Background(), sources...)
	defer stop() // tells the group that this instance is done, if the group wants to terminate it
	return w.Run(ctx)
}

func (s settings) sources(w *worker.Worker, group lifecycle.Client, log *slog.Logger) ([]interruption.Source, error) {
	ec2, err := interruption.NewEC2(interruption.EC2Config{Logger: log})
	if err != nil {
		return nil, err
	}
	advice := map[string]interruption.Advice{
		"drain": interruption.Drain, "shrink": interruption.Shrink(max(s.concurrency/4, 1), w), "ignore": interruption.Ignore,
	}[s.onRebalance]
	scaling := interruption.AutoScalingConfig{Grace: s.hookTimeout}
	if s.group != "" {
		scaling.Complete = lifecycle.Complete(group, s.group, s.hook)
	}
	return []interruption.Source{
		interruption.Signals(s.stopTimeout), ec2.Spot(), ec2.Rebalance(advice), ec2.AutoScaling(scaling),
	}, nil
}

// work is a stand-in for yours: it takes ten seconds, in steps that it could save.
func work(ctx context.Context, m *worker.Message) error {
	for step := range 10 {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if at, stopping := worker.DrainDeadline(ctx); stopping && time.Until(at) < 2*time.Second {
			slog.InfoContext(ctx, "stopping: the next worker begins again", "message", m, "step", step)
			return worker.Snooze(0)
		}
	}
	return nil
}
