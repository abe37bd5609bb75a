package bench

import (
	"context"
	"fmt"
	"time"
)

// The stop scenario: a worker that holds a thousand messages is told to stop. Half of them are in handlers that go on
// until they are cancelled, the others wait. Everything has to be given back before Run returns.

// stopRun is the figures of one run.
type stopRun struct{ total, wait, waiting, left, again float64 }

func (d *director) stop(ctx context.Context) error {
	half := pick(d, 50, 500)
	t := table{
		title: fmt.Sprintf("stop: %d running until cancelled, %d prefetched, 12ms a call", half, half), left: 1,
		head: []string{"DrainTimeout", "stop to return s", "of it configured wait s", "rest s", "prefetched visible after s", "left in flight", "received again"},
	}
	for _, noDrain := range []bool{true, false} {
		runs, err := d.stops(ctx, half, noDrain)
		if err != nil {
			return err
		}
		name := drainTimeout.String()
		if noDrain {
			name = "NoDrain"
		}
		col := func(f func(stopRun) float64) []float64 { return each(runs, f) }
		rest := col(func(r stopRun) float64 { return r.total - r.wait })
		left := col(func(r stopRun) float64 { return r.left })
		t.add(name, figure(median(col(func(r stopRun) float64 { return r.total }))), figure(median(col(func(r stopRun) float64 { return r.wait }))),
			figure(median(rest)), figure(median(col(func(r stopRun) float64 { return r.waiting }))),
			figure(percentile(left, 100)), figure(median(col(func(r stopRun) float64 { return r.again }))))
		d.atMost(2, median(rest), " s", "stopping %d held messages, %s, beyond the configured wait", 2*half, name)
		d.atMost(0, percentile(left, 100), "", "left in flight by it, most of any round")
	}
	t.note("The configured wait is the time until the first handler's context ends. Handlers return at once then, so that")
	t.note("nothing of CancelGrace (%v) is used up. Medians; left in flight is the worst round's.", cancelGrace)
	t.print(d.out)
	return nil
}

func (d *director) stops(ctx context.Context, half int, noDrain bool) ([]stopRun, error) {
	var runs []stopRun
	for range d.Rounds {
		r, err := d.stopOnce(ctx, half, noDrain)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

func (d *director) stopOnce(ctx context.Context, half int, noDrain bool) (stopRun, error) {
	a := assignment{Contestant: "ours", Concurrency: half, Prefetch: half, Job: job{UntilCancel: true}, NoDrain: noDrain}
	sqs, c, err := startBoth(ctx, 12*time.Millisecond, nil, a)
	if err != nil {
		return stopRun{}, err
	}
	defer sqs.end()
	defer c.end()
	if err := sqs.fill(2 * half); err != nil {
		return stopRun{}, err
	}
	if _, err := c.say("go"); err != nil {
		return stopRun{}, err
	}
	if err := awaitHeld(sqs, c, half); err != nil {
		return stopRun{}, err
	}
	released := make(chan time.Duration, 1)
	go func() { released <- timeUntilReleased(sqs, int64(half)) }()
	r, err := c.say("stop")
	if err != nil {
		return stopRun{}, err
	}
	t, err := sqs.tallyQueue()
	if err != nil {
		return stopRun{}, err
	}
	if r.RunError != "" {
		return stopRun{}, fmt.Errorf("bench: Run returned: %s", r.RunError)
	}
	if lost := 2*half - t.Visible - t.InFlightNow; lost != 0 {
		return stopRun{}, fmt.Errorf("bench: %d messages are neither visible nor in flight after the stop", lost)
	}
	return stopRun{
		total: r.StopTook.Seconds(), wait: r.CancelledAt.Seconds(), waiting: (<-released).Seconds(),
		left: float64(t.InFlightNow), again: float64(t.Received) - float64(2*half),
	}, nil
}

// awaitHeld waits until half of the messages run and the other half wait.
func awaitHeld(sqs *sqsProcess, c *contestant, half int) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		t, err := sqs.tally()
		if err != nil {
			return err
		}
		r, err := c.say("mark")
		if err != nil {
			return err
		}
		if t.InFlight == int64(2*half) && r.Running == int64(half) {
			time.Sleep(100 * time.Millisecond) // the last answers are on their way
			return nil
		}
	}
	return fmt.Errorf("bench: %d messages were not all held after 20s", 2*half)
}

// timeUntilReleased is how long it takes until n messages have been given back; the handlers' own come later.
func timeUntilReleased(sqs *sqsProcess, n int64) time.Duration {
	began := time.Now()
	for time.Since(began) < 20*time.Second {
		t, err := sqs.tally()
		if err != nil || t.Released >= n {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(began)
}
