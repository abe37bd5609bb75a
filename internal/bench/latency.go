package bench

import (
	"context"
	"fmt"
	"time"
)

// The latency scenario: messages trickle in, 500 a second, and each should be in a handler's hands soon. Measured from
// the send to the handler's start, both by this machine's clock.

const (
	trickle            = 500 // messages a second
	latencyConcurrency = 100
)

// trickleRun is the figures of one run.
type trickleRun struct{ p50, p99, calls, cpu float64 }

func (d *director) latency(ctx context.Context) error {
	for _, latency := range d.Latencies {
		if err := d.latencyAt(ctx, latency); err != nil {
			return fmt.Errorf("%v: %w", latency, err)
		}
	}
	return nil
}

func (d *director) latencyAt(ctx context.Context, latency time.Duration) error {
	assignments := []assignment{
		{Contestant: "raw", Receives: latencyConcurrency / 10, Attributes: d.RawAttributes},
		{Contestant: "ours"},
	}
	runs := make([][]trickleRun, len(assignments))
	for round := range pick(d, 1, 2*d.Rounds) { // a tail needs more than one bad moment to be one
		for i := range assignments {
			which := (round + i) % len(assignments)
			r, err := d.trickle(ctx, latency, assignments[which])
			if err != nil {
				return fmt.Errorf("%s: %w", assignments[which].Contestant, err)
			}
			runs[which] = append(runs[which], r)
		}
	}
	d.printLatency(latency, runs[0], runs[1])
	return nil
}

// trickle runs one contestant for a while.
func (d *director) trickle(ctx context.Context, latency time.Duration, a assignment) (trickleRun, error) {
	a.Concurrency, a.Job = latencyConcurrency, job{Stamped: true}
	sqs, c, err := startBoth(ctx, latency, nil, a)
	if err != nil {
		return trickleRun{}, err
	}
	defer sqs.end()
	defer c.end()
	if _, err := c.say("go"); err != nil {
		return trickleRun{}, err
	}
	time.Sleep(500 * time.Millisecond) // it is polling
	before, err := sqs.tally()
	if err != nil {
		return trickleRun{}, err
	}
	n := trickle * pick(d, 1, 8)
	if err := sqs.feed(n, trickle); err != nil {
		return trickleRun{}, err
	}
	if err := sqs.awaitDeleted(time.Minute); err != nil {
		return trickleRun{}, err
	}
	r, err := c.say("mark")
	if err != nil {
		return trickleRun{}, err
	}
	after, err := sqs.tally()
	return trickleRun{
		p50: milliseconds(r.P50), p99: milliseconds(r.P99),
		calls: float64(after.Calls[""]-before.Calls[""]) / float64(n), cpu: float64(r.Used.CPU.Microseconds()) / float64(n),
	}, err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (d *director) printLatency(latency time.Duration, raw, ours []trickleRun) {
	t := table{
		title: fmt.Sprintf("latency: %d messages/s, %v a call, concurrency %d, send to handler start", trickle, latency, latencyConcurrency), left: 1,
		head: []string{"contestant", "p50 ms", "p99 ms", "calls/msg", "CPU µs/msg"},
	}
	figures := []func(trickleRun) float64{
		func(r trickleRun) float64 { return r.p50 }, func(r trickleRun) float64 { return r.p99 },
		func(r trickleRun) float64 { return r.calls }, func(r trickleRun) float64 { return r.cpu },
	}
	rows := [3][]string{{"raw"}, {"ours"}, {"ours / raw"}}
	var ratio []float64
	for _, f := range figures {
		r, o := each(raw, f), each(ours, f)
		rows[0], rows[1] = append(rows[0], figure(median(r))), append(rows[1], figure(median(o)))
		ratio = append(ratio, medianRatio(o, r))
		rows[2] = append(rows[2], spread(ratios(o, r)))
	}
	t.rows = rows[:]
	t.print(d.out)
	d.atMost(1.1, ratio[0], "", "p50 / raw's at %d messages/s, %v", trickle, latency)
	d.atMost(1.1, ratio[1], "", "p99 / raw's at %d messages/s, %v", trickle, latency)
	d.below(1, ratio[2], "", "calls / raw's at %d messages/s, %v", trickle, latency)
}

func each[T any](all []T, f func(T) float64) []float64 {
	values := make([]float64, len(all))
	for i, v := range all {
		values[i] = f(v)
	}
	return values
}
