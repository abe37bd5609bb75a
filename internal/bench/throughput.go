package bench

import (
	"context"
	"fmt"
	"time"
)

// The throughput scenario: handlers that do nothing, a queue that is full from the start. It runs until every message
// has been deleted; the rate is taken between a tenth and nine tenths of them, CPU, memory and calls
// after the first tenth.

// sprintsPerRound: on a shared machine, many short runs that alternate say more than a few long ones. What disturbs one
// contestant then disturbs its neighbour in time as well, and their ratio stays.
const sprintsPerRound = 5

// entrant is one contestant of the throughput scenario.
type entrant struct {
	name     string
	assigned assignment
	messages int    // of a full run
	best     sprint // of the short runs that calibrated it
	runs     []sprint
}

// sprint is the figures of one run.
type sprint struct {
	rate, cpu, calls, rss, allocs, bytes, held, serverCPU float64
	again                                                 int64 // received a second time
	notes                                                 map[string]int64
}

func (d *director) throughput(ctx context.Context) error {
	for _, latency := range d.Latencies {
		for _, concurrency := range d.Concurrencies {
			if err := d.throughputAt(ctx, latency, concurrency); err != nil {
				return fmt.Errorf("%v, concurrency %d: %w", latency, concurrency, err)
			}
		}
	}
	return nil
}

func (d *director) throughputAt(ctx context.Context, latency time.Duration, concurrency int) error {
	c := calibration{d, ctx, latency, concurrency}
	entrants, err := c.entrants()
	if err != nil {
		return err
	}
	for round := range pick(d, 1, sprintsPerRound*d.Rounds) {
		for i := range entrants {
			// Every round begins with another contestant: what the first one warms up isn't always the same's gain.
			e := &entrants[(round+i)%len(entrants)]
			e.assigned.CPUProfile, e.assigned.AllocProfile = d.profilePaths("throughput", latency.String(), fmt.Sprint(concurrency), e.name, fmt.Sprint(round+1))
			s, err := d.sprint(ctx, latency, e.assigned, e.messages)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			e.runs = append(e.runs, s)
		}
	}
	d.printThroughput(latency, concurrency, entrants)
	d.boundThroughput(latency, concurrency, entrants)
	return nil
}

// sprint runs one contestant over n messages.
func (d *director) sprint(ctx context.Context, latency time.Duration, a assignment, n int) (sprint, error) {
	sqs, c, err := startBoth(ctx, latency, nil, a)
	if err != nil {
		return sprint{}, err
	}
	defer sqs.end()
	defer c.end()
	if err := sqs.fill(n); err != nil {
		return sprint{}, err
	}
	if _, err := c.say("go"); err != nil {
		return sprint{}, err
	}
	before, err := lap(sqs, c)
	if err != nil {
		return sprint{}, err
	}
	if err := sqs.awaitDeleted(sprintLimit); err != nil {
		return sprint{}, err
	}
	r, err := c.say("mark")
	if err != nil {
		return sprint{}, err
	}
	after, err := sqs.tally()
	return newSprint(r, before, after), err
}

// sprintLimit is more than any run takes, even one in which an answer was lost and its messages came back after their
// visibility.
const sprintLimit = 2 * time.Minute

// lap lets a contestant start up and open its connections at its own expense, and counts what it uses from then on.
func lap(sqs *sqsProcess, c *contestant) (tally, error) {
	if err := sqs.awaitTenth(sprintLimit); err != nil {
		return tally{}, err
	}
	if _, err := c.say("lap"); err != nil {
		return tally{}, err
	}
	return sqs.tally()
}

func newSprint(r report, before, after tally) sprint {
	measured := float64(max(after.Deleted-before.Deleted, 1))
	return sprint{
		rate: after.rate(), cpu: float64(r.Used.CPU.Microseconds()) / measured, calls: float64(after.Calls[""]-before.Calls[""]) / measured,
		rss: float64(r.Used.PeakRSS) / (1 << 20), allocs: float64(r.Used.Mallocs) / measured, bytes: float64(r.Used.Bytes) / measured,
		held: float64(after.PeakInFlight), serverCPU: float64((after.CPU - before.CPU).Microseconds()) / measured,
		again: after.Received - after.Deleted, notes: r.Notes,
	}
}

// of collects one figure of every run.
func (e *entrant) of(figure func(sprint) float64) []float64 {
	all := make([]float64, len(e.runs))
	for i, r := range e.runs {
		all[i] = figure(r)
	}
	return all
}

func byRate(s sprint) float64  { return s.rate }
func byCPU(s sprint) float64   { return s.cpu }
func byCalls(s sprint) float64 { return s.calls }

func (d *director) printThroughput(latency time.Duration, concurrency int, entrants []entrant) {
	t := table{
		title: fmt.Sprintf("throughput: no-op handlers, %v a call, concurrency %d", latency, concurrency), left: 1,
		head: []string{"contestant", "messages/s", "CPU µs/msg", "calls/msg", "RSS MiB", "allocs/msg", "bytes/msg", "held", "rate/raw", "rate/wide", "CPU/raw", "CPU/wide", "server CPU µs/msg"},
	}
	raw, wide := &entrants[0], &entrants[1]
	for i := range entrants {
		e := &entrants[i]
		cell := func(f func(sprint) float64) string { return figure(median(e.of(f))) }
		ratio := func(o *entrant, f func(sprint) float64) string {
			return spread(ratios(e.of(f), o.of(f)))
		}
		t.add(e.name, cell(byRate), cell(byCPU), cell(byCalls),
			cell(func(s sprint) float64 { return s.rss }), cell(func(s sprint) float64 { return s.allocs }), cell(func(s sprint) float64 { return s.bytes }),
			cell(func(s sprint) float64 { return s.held }), ratio(raw, byRate), ratio(wide, byRate), ratio(raw, byCPU), ratio(wide, byCPU),
			cell(func(s sprint) float64 { return s.serverCPU }))
	}
	t.note("raw: %d receives open; raw-wide: %d; ours: Prefetch %d. The raw loop asks for attributes: %s.",
		raw.assigned.Receives, wide.assigned.Receives, entrants[2].assigned.Prefetch, raw.assigned.Attributes)
	for _, e := range entrants {
		for i, r := range e.runs {
			if r.again != 0 || len(r.notes) > 0 {
				t.note("%s, round %d: %d received again; %v", e.name, i+1, r.again, r.notes)
			}
		}
	}
	t.print(d.out)
}

func (d *director) boundThroughput(latency time.Duration, concurrency int, entrants []entrant) {
	wide, ours := &entrants[1], &entrants[2]
	at := fmt.Sprintf("%v, concurrency %d", latency, concurrency)
	d.atLeast(0.9, medianRatio(ours.of(byRate), wide.of(byRate)), "", "throughput / raw-wide's, %s", at)
	d.atMost(1.15, medianRatio(ours.of(byCPU), wide.of(byCPU)), "", "CPU per message / raw-wide's, %s", at)
	d.atMost(0.21, median(ours.of(byCalls)), "", "API calls per message, %s", at)
}
