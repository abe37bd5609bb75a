package interruption

import (
	"context"
	"fmt"

	"github.com/sqsworker/sqsworker/worker"
)

// Advice is what to do about a rebalance recommendation. The zero value is [Ignore].
type Advice struct {
	name  string
	drain bool
	act   func() error
}

var (
	// Ignore takes note of it in the log.
	Ignore = Advice{}
	// Drain takes it for an interruption without a deadline of its own: the worker drains within its DrainTimeout, and a Spot
	// notice that follows tightens that. Right where the group replaces the instance (Capacity Rebalancing).
	Drain = Advice{name: "drain", drain: true}
)

// Adjustable is a worker, as [worker.Worker] is: something whose concurrency can be lowered.
type Adjustable interface {
	Concurrency() int
	SetConcurrency(n int) error
}

// Shrink lowers the concurrency of the workers to n, from 1 on, so that less is under way when the notice comes, and new
// messages go to other instances. What runs goes on. A worker whose concurrency is lower already is left alone, and so is nil.
func Shrink(n int, workers ...Adjustable) Advice {
	return Advice{name: fmt.Sprintf("shrink to %d", n), act: func() error {
		for _, w := range workers {
			if own, ok := w.(*worker.Worker); w == nil || ok && own == nil || w.Concurrency() <= n {
				continue
			}
			if err := w.SetConcurrency(n); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (a Advice) String() string {
	if a.name == "" {
		return "ignore"
	}
	return a.name
}

// Rebalance watches for the recommendation to move away from this Spot instance, which says that its risk of
// interruption is elevated. It may come long before the Spot notice, together with it, or never; and no notice need follow.
func (m *EC2) Rebalance(a Advice) Source {
	return Func(func(ctx context.Context, report func(Notice)) {
		m.poll(ctx, "events/recommendations/rebalance", func(string) bool {
			m.cfg.Logger.Warn("EC2 recommends to move away from this Spot instance", "doing", a.String())
			if a.act != nil {
				if err := a.act(); err != nil {
					m.cfg.Logger.Error("a rebalance recommendation can't be followed", "doing", a.String(), "error", err)
				}
			}
			if a.drain {
				report(Notice{Source: "EC2 rebalance recommendation", Action: "drain"})
			}
			return true
		})
	})
}
