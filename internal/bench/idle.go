package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The idle scenario: nothing to do. What is billed is receives; a 20 s long poll makes three a minute. Every case runs
// at the same time, because none of them uses the machine.

// idleCase is one worker that has nothing to do.
type idleCase struct {
	assigned assignment
	burst    int // messages that it worked off before
	receives float64
	err      error
}

func (d *director) idle(ctx context.Context) error {
	var cases []*idleCase
	for _, burst := range []int{0, 1000} {
		for _, concurrency := range []int{10, 100} {
			cases = append(cases,
				&idleCase{burst: burst, assigned: assignment{Contestant: "raw", Concurrency: concurrency, Receives: concurrency / 10, Attributes: d.RawAttributes}},
				&idleCase{burst: burst, assigned: assignment{Contestant: "ours", Concurrency: concurrency}})
		}
	}
	var all sync.WaitGroup
	for _, c := range cases {
		all.Go(func() { c.receives, c.err = d.idleReceives(ctx, c) })
	}
	all.Wait()
	t := table{title: "idle: receives a minute", head: []string{"contestant", "concurrency", "before", "receives/minute"}, left: 1}
	var errs []error
	for _, c := range cases {
		before := "nothing"
		if c.burst > 0 {
			before = fmt.Sprintf("%d messages", c.burst)
		}
		t.add(c.assigned.Contestant, fmt.Sprint(c.assigned.Concurrency), before, figure(c.receives))
		if c.assigned.Contestant == "ours" {
			d.atMost(3, c.receives, "", "receives a minute when idle, concurrency %d, after %s", c.assigned.Concurrency, before)
		}
		errs = append(errs, c.err)
	}
	settle, window := d.idleTimes()
	t.note("Counted for %v of real time, %v after the last message.", window, settle)
	t.print(d.out)
	return errors.Join(errs...)
}

// idleTimes: the receives that a burst left open have ended after the first; the second is three long polls.
func (d *director) idleTimes() (settle, window time.Duration) {
	return pick(d, 100*time.Millisecond, 25*time.Second), pick(d, time.Second, time.Minute)
}

func (d *director) idleReceives(ctx context.Context, c *idleCase) (float64, error) {
	sqs, contestant, err := startBoth(ctx, 12*time.Millisecond, nil, c.assigned)
	if err != nil {
		return 0, err
	}
	defer sqs.end()
	defer contestant.end()
	if err := sqs.fill(c.burst); err != nil {
		return 0, err
	}
	if _, err := contestant.say("go"); err != nil {
		return 0, err
	}
	if err := sqs.awaitDeleted(time.Minute); err != nil {
		return 0, err
	}
	settle, window := d.idleTimes()
	time.Sleep(settle)
	before, err := sqs.tally()
	if err != nil {
		return 0, err
	}
	time.Sleep(window)
	after, err := sqs.tally()
	return float64(after.Calls["ReceiveMessage"]-before.Calls["ReceiveMessage"]) / window.Minutes(), err
}
