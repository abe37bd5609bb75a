package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// The hold scenario: one process keeps a hundred thousand messages invisible through package heartbeat while every call
// takes 200 ms.

const slowCall = 200 * time.Millisecond

func (d *director) hold(ctx context.Context) error {
	leases, visibility := pick(d, 500, 100_000), pick(d, 3*time.Second, 30*time.Second)
	interval := heartbeat.DefaultInterval(visibility)
	a := assignment{Contestant: "hold", Leases: leases, Visibility: visibility}
	a.CPUProfile, a.AllocProfile = d.profilePaths("hold")
	sqs, c, err := startBoth(ctx, time.Millisecond, map[string]string{"VisibilityTimeout": fmt.Sprint(int(visibility.Seconds()))}, a)
	if err != nil {
		return err
	}
	defer sqs.end()
	defer c.end()
	if err := sqs.fill(leases); err != nil {
		return err
	}
	if _, err := c.say("go"); err != nil {
		return err
	}
	held, err := awaitLeases(c, leases)
	if err != nil {
		return err
	}
	if err := sqs.setLatency(slowCall); err != nil {
		return err
	}
	time.Sleep(interval)
	before, err := sqs.tally()
	if err != nil {
		return err
	}
	intervals := pick(d, int64(2), 6)
	time.Sleep(time.Duration(intervals) * interval)
	after, err := sqs.tallyQueue()
	if err != nil {
		return err
	}
	r, err := c.say("mark")
	if err != nil {
		return err
	}
	d.printHold(leases, interval, intervals, before, after, held, r)
	return nil
}

func awaitLeases(c *contestant, n int) (report, error) {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		r, err := c.say("mark")
		if err != nil || r.Notes["held"] == int64(n) {
			return r, err
		}
	}
	return report{}, fmt.Errorf("bench: %d leases were not all held after 2m", n)
}

func (d *director) printHold(leases int, interval time.Duration, intervals int64, before, after tally, atOnce, later report) {
	const action = "ChangeMessageVisibilityBatch"
	calls := float64(after.Calls[action]-before.Calls[action]) / float64(intervals)
	entries := float64(after.Extended-before.Extended) / float64(intervals)
	perLease := func(bytes int64) string { return figure(float64(bytes) / float64(leases)) }
	most := max(atOnce.Memory.Heap+atOnce.Memory.Stack, later.Memory.Heap+later.Memory.Stack)
	t := table{title: fmt.Sprintf("hold: %s leases, renewed every %v, %v a call", thousands(int64(leases)), interval, slowCall), head: []string{"figure", "value"}, left: 1}
	t.add("extension calls per interval", figure(calls))
	t.add("renewals per interval", figure(entries))
	t.add("renewals per call", figure(entries/calls))
	t.add("lapsed leases", fmt.Sprint(after.Expired))
	t.add("leases that the holder lost", fmt.Sprint(later.Notes["lost"]))
	t.add("least time left at a renewal, ms", fmt.Sprint(later.Notes["least margin ms"]))
	t.add("heap per lease at first, bytes", perLease(atOnce.Memory.Heap))
	t.add("stacks per lease at first, bytes", perLease(atOnce.Memory.Stack))
	t.add("heap per lease after renewals, bytes", perLease(later.Memory.Heap))
	t.add("stacks per lease after renewals, bytes", perLease(later.Memory.Stack))
	t.add("peak RSS, MiB", figure(float64(later.Used.PeakRSS)/(1<<20)))
	t.print(d.out)
	d.atMost(float64(leases)/heartbeat.BatchSize, calls, "", "extension calls per interval for %s leases", thousands(int64(leases)))
	d.atMost(0, float64(after.Expired), "", "lapsed leases in it")
	d.atMost(4096, float64(most)/float64(leases), " B", "memory per lease")
}
