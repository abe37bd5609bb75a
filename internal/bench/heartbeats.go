package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The heartbeats scenario: jobs that take longer than their messages stay invisible. Both contestants run at the same
// time, because they sleep most of it.

// longJobs is what one contestant made of them.
type longJobs struct {
	again, lapsed, calls, left int64
	took                       time.Duration
	err                        error
}

func (d *director) heartbeats(ctx context.Context) error {
	n, concurrency := pick(d, 20, 200), pick(d, 10, 50)
	takes, visibility := pick(d, 1500*time.Millisecond, 12*time.Second), pick(d, 1, 5)
	assignments := []assignment{
		{Contestant: "raw", Receives: concurrency / 10, Attributes: d.RawAttributes},
		{Contestant: "ours"},
	}
	results := make([]longJobs, len(assignments))
	var both sync.WaitGroup
	for i, a := range assignments {
		a.Concurrency, a.Job = concurrency, job{Takes: takes, Names: true}
		both.Go(func() { results[i] = d.longJobs(ctx, a, n, visibility) })
	}
	both.Wait()
	t := table{
		title: fmt.Sprintf("heartbeats: %d jobs of %v, visibility %d s, concurrency %d", n, takes, visibility, concurrency), left: 1,
		head: []string{"contestant", "second runs", "lapsed leases", "extension calls", "undeleted", "seconds"},
	}
	for i, r := range results {
		t.add(assignments[i].Contestant, fmt.Sprint(r.again), fmt.Sprint(r.lapsed), fmt.Sprint(r.calls), fmt.Sprint(r.left), figure(r.took.Seconds()))
	}
	t.print(d.out)
	ours := results[1]
	d.atMost(0, float64(ours.again), "", "second runs of %d jobs of %v at visibility %d s", n, takes, visibility)
	d.atMost(0, float64(ours.lapsed), "", "lapsed leases in it")
	d.atMost(pick(d, 20.0, 120), float64(ours.calls), "", "extension calls in it")
	if ours.left > 0 {
		ours.err = errors.Join(ours.err, fmt.Errorf("bench: ours left %d messages", ours.left))
	}
	return errors.Join(results[0].err, ours.err)
}

// longJobs runs one contestant; one that never gets done is stopped after a while, which is no error.
func (d *director) longJobs(ctx context.Context, a assignment, n, visibility int) (res longJobs) {
	sqs, c, err := startBoth(ctx, 12*time.Millisecond, map[string]string{"VisibilityTimeout": fmt.Sprint(visibility)}, a)
	if err != nil {
		return longJobs{err: err}
	}
	defer sqs.end()
	defer c.end()
	if res.err = sqs.fill(n); res.err != nil {
		return res
	}
	began := time.Now()
	if _, res.err = c.say("go"); res.err != nil {
		return res
	}
	_ = sqs.awaitDeleted(pick(d, 15*time.Second, 150*time.Second)) // what is left is in the table
	res.took = time.Since(began)
	r, err := c.say("mark")
	if err != nil {
		return longJobs{err: err}
	}
	t, err := sqs.tallyQueue()
	res.again, res.lapsed, res.left = r.Again, t.Expired, int64(n)-t.Deleted
	res.calls = t.Calls["ChangeMessageVisibility"] + t.Calls["ChangeMessageVisibilityBatch"]
	res.err = err
	return res
}
