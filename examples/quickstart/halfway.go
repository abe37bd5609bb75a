package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// stopOrKill is what happens half-way: a worker is told to stop, or is killed.
func (s *scene) stopOrKill(c *contestant, now counts) {
	c.stopped = true
	if s.victim != nil {
		s.kill(c, now)
		return
	}
	st := c.worker.Stats()
	s.out.say("half-way, %d of %d: %s is told to stop; it gives back what it hasn't started and finishes the %d that run",
		now.done(), now.sent, c.name, st.Running)
	c.stop()
}

// tellComeback tells, once, how the messages came back that were given back or lost to the crash.
func (s *scene) tellComeback() {
	if !s.halfway || s.toldBack {
		return
	}
	if s.victim != nil {
		s.toldBack = s.tellAfterCrash()
		return
	}
	select {
	case <-s.workers[1].done:
		s.toldBack = s.tellAfterStop(s.workers[1])
	default: // it may still give something back
	}
}

func (s *scene) tellAfterCrash() bool {
	received := s.ledger.since(sqsmodel.Received, s.crashed, s.crashedAt)
	if received.back < received.messages {
		return false
	}
	visible := s.ledger.since(sqsmodel.Expired, s.crashed, s.crashedAt)
	if received.messages > 0 {
		s.out.say("the %d messages became visible again %s to %s after the kill, when their visibility ran out; after %s others had taken up all of them",
			received.messages, seconds(visible.soonest), seconds(visible.farthest), seconds(received.farthest))
	}
	return true
}

func (s *scene) tellAfterStop(c *contestant) bool {
	released := s.ledger.pickedUp()
	if released.back < released.messages {
		return false
	}
	text := fmt.Sprintf("%s has stopped; it had released %d messages", c.name, released.messages)
	if released.messages > 0 {
		text += fmt.Sprintf(", and within %v others had them", released.farthest.Round(time.Millisecond))
	}
	var incomplete *worker.DrainError
	switch {
	case errors.As(c.err, &incomplete):
		text += fmt.Sprintf("; %d it could neither delete nor release", len(incomplete.Unsettled))
	case c.err != nil:
		text += ": " + oneLine(c.err)
	}
	s.out.say("%s", text)
	return true
}

// kill kills the worker's process: no signal handler, no release, no delete.
func (s *scene) kill(c *contestant, now counts) {
	s.victim.kill()
	s.crashedAt = time.Now()
	<-c.done
	running := s.ledger.kill(c.name, s.crashedAt)
	s.crashed = s.heldByTheDead()
	s.out.say("half-way, %d of %d: %s, process %d, is killed (SIGKILL) with %d messages, %d of them running; nobody tells SQS",
		now.done(), now.sent, c.name, s.victim.pid(), len(s.crashed), running)
}

// heldByTheDead are the messages that SQS still believes to be with the killed process.
func (s *scene) heldByTheDead() (ids []string) {
	for _, m := range s.server.Queue(s.queueURL).Messages {
		if m.State == sqsmodel.InFlight && s.victim.received(m.Handle) && !s.ledger.failedLast(m.ID) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// onlyTheDeadHold tells whether all that is left is with the killed process, or waits for it (an order that it works, sent
// twice), for longer than anybody wants to watch.
func (s *scene) onlyTheDeadHold(now counts) bool {
	soonest := time.Time{}
	for _, m := range s.server.Queue(s.queueURL).Messages {
		if m.State != sqsmodel.InFlight || !s.victim.received(m.Handle) && !s.ledger.putOff(m.ID) {
			return false
		}
		if soonest.IsZero() || m.VisibleAt.Before(soonest) {
			soonest = m.VisibleAt
		}
	}
	wait := time.Until(soonest)
	if soonest.IsZero() || wait <= patience {
		return false
	}
	s.out.say("everything else is done, but %d messages are still invisible: the first comes back in %v", now.sent-now.done(), wait.Round(time.Second))
	return true
}

func seconds(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
