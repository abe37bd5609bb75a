package interruption

import (
	"errors"
	"time"
)

const (
	callGap    = time.Minute     // from one call to the next
	longestGap = 8 * time.Minute // after failures
	restPeriod = 5 * time.Minute // without protection, after AtMost
)

// step is what to do now.
type step int

const (
	wait step = iota
	putOn
	takeOff
)

// protectionState decides when to call the agent. It is a function of the times that it is told.
type protectionState struct {
	cfg       ProtectionConfig
	until     time.Time // until when the task is protected, as far as is known or to be feared
	since     time.Time // protected without a break since; zero when it isn't
	renewAt   time.Time
	lastBusy  time.Time
	restUntil time.Time // AtMost is over
	nextCall  time.Time
	failures  int // in a row
}

func (s *protectionState) on(now time.Time) bool { return now.Before(s.until) }

// decide is called again and again, busy or not.
func (s *protectionState) decide(now time.Time, busy bool) step {
	if busy {
		s.lastBusy = now
	}
	on := s.on(now)
	if s.cfg.AtMost != NoLimit && !s.since.IsZero() && now.Sub(s.since) >= s.cfg.AtMost && !now.Before(s.restUntil) {
		s.restUntil = now.Add(restPeriod)
	}
	if !on {
		s.since = time.Time{}
	}
	want := busy || on && now.Sub(s.lastBusy) < s.cfg.IdleAfter
	want = want && !now.Before(s.restUntil)
	switch {
	case now.Before(s.nextCall):
		return wait
	case want && (!on || !now.Before(s.renewAt)):
		return putOn
	case !want && on:
		return takeOff
	}
	return wait
}

// lasting is how long the protection shall last that is asked for now.
func (s *protectionState) lasting(now time.Time) time.Duration {
	d := s.cfg.ExpiresIn
	if s.cfg.AtMost == NoLimit {
		return d
	}
	left := s.cfg.AtMost
	if !s.since.IsZero() {
		left -= now.Sub(s.since)
	}
	return min(d, max((left+time.Minute-1).Truncate(time.Minute), time.Minute))
}

// learn takes the result of a call for protection that was to last for d; zero took it off.
func (s *protectionState) learn(now time.Time, d time.Duration, err error) {
	if err == nil {
		s.failures, s.nextCall = 0, now.Add(callGap)
		if d == 0 {
			s.until, s.since = time.Time{}, time.Time{}
			return
		}
		if s.since.IsZero() {
			s.since = now
		}
		s.until, s.renewAt = now.Add(d), now.Add(d/2)
		return
	}
	s.failures++
	s.nextCall = now.Add(min(callGap<<min(s.failures-1, 10), longestGap))
	var refused *ProtectionError
	if !errors.As(err, &refused) && d > 0 && s.until.Before(now.Add(d)) {
		s.until, s.renewAt = now.Add(d), now // it may have been put on: ask again, and take it off when idle
	}
}
