package bench

import (
	"context"
	"fmt"
	"time"
)

// calibration finds what makes the throughput contestants comparable: how many receives saturate the machine, how many
// messages that holds, and how many messages make a run of the wanted length.
type calibration struct {
	d           *director
	ctx         context.Context
	latency     time.Duration
	concurrency int
}

const (
	mostReceives = 256
	leastGain    = 1.05 // doubling the receives must bring this much, or they are enough
)

// entrants are raw, raw-wide, ours and ours without prefetch, in this order.
func (c calibration) entrants() ([]entrant, error) {
	base := max(c.concurrency/10, 1)
	raw, err := c.rawWith(base)
	if err != nil {
		return nil, err
	}
	wide, held, err := c.widen(raw)
	if err != nil {
		return nil, err
	}
	raw.name, wide.name = "raw", "raw-wide"
	ours, err := c.oursWithin(held, wide)
	if err != nil {
		return nil, err
	}
	bare := entrant{name: "ours-noprefetch", assigned: ours.assigned}
	bare.assigned.Prefetch = 0
	if _, err = c.try(&bare, raw.messages/3); err != nil {
		return nil, err
	}
	return []entrant{raw, wide, ours, bare}, nil
}

func (c calibration) rawWith(receives int) (entrant, error) {
	e := entrant{name: fmt.Sprintf("raw with %d receives", receives), assigned: assignment{
		Contestant: "raw", Concurrency: c.concurrency, Receives: receives, Attributes: c.d.RawAttributes,
	}}
	_, err := c.try(&e, c.guess(receives))
	return e, err
}

// guess is how many messages a third of a run may take: each open receive brings ten per call, up to what two cores
// are known to do.
func (c calibration) guess(receives int) int {
	rate := min(10*float64(receives)/(c.latency+time.Millisecond).Seconds(), 30_000)
	return max(int(rate*c.d.Window.Seconds()/3), 100)
}

// try makes two short runs, so that one disturbance doesn't decide, and sizes the full run by the better.
func (c calibration) try(e *entrant, messages int) (best sprint, err error) {
	for range pick(c.d, 1, 2) {
		s, err := c.d.sprint(c.ctx, c.latency, e.assigned, max(messages, 100))
		if err != nil {
			return best, fmt.Errorf("calibrating %s: %w", e.name, err)
		}
		held := max(best.held, s.held)
		if s.rate > best.rate {
			best = s
		}
		best.held = held
	}
	e.messages = max(int(best.rate*c.d.Window.Seconds()), 100)
	e.runs = nil
	e.best = best
	return best, nil
}

// widen doubles the open receives until that no longer helps.
func (c calibration) widen(from entrant) (wide entrant, held float64, err error) {
	wide = from
	for receives := 2 * from.assigned.Receives; receives <= mostReceives; receives *= 2 {
		next, err := c.rawWith(receives)
		if err != nil {
			return wide, 0, err
		}
		if next.best.rate < leastGain*wide.best.rate {
			break
		}
		wide = next
	}
	return wide, wide.best.held, nil
}

// oursWithin chooses Prefetch: as many receives open as raw-wide has, and no more messages in flight than it. Peaks
// differ from run to run, so it gives way in small steps.
func (c calibration) oursWithin(held float64, wide entrant) (entrant, error) {
	e := entrant{name: "ours", assigned: assignment{Contestant: "ours", Concurrency: c.concurrency}}
	slots := max(10*wide.assigned.Receives, c.concurrency)
	for range 6 {
		e.assigned.Prefetch = slots - c.concurrency
		s, err := c.try(&e, wide.messages/3)
		if err != nil {
			return e, err
		}
		if s.held <= held || slots <= c.concurrency {
			break
		}
		slots = max(int(float64(slots)*max(held/s.held, 0.9)), c.concurrency)
	}
	return e, nil
}
