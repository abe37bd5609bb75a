package heartbeat

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Limits that SQS sets (quotas-messages and ChangeMessageVisibility in the SQS documentation).
const (
	// MaxVisibility is the longest visibility timeout that SQS takes.
	MaxVisibility = 12 * time.Hour
	// BatchSize is how many entries one ChangeMessageVisibilityBatch takes.
	BatchSize = 10
)

// Never as [Config.Interval] turns renewals off: a lease then ends when the visibility
// that came with the receive does, and its holder is told by [ErrLost].
const Never time.Duration = -1

// Config tunes a [Heartbeat]. The zero value is ready for production.
type Config struct {
	// Visibility is what each renewal asks for, counted from the renewal. It is also what a
	// [Receipt] without a visibility of its own is taken to hold. Whole seconds from 1 s to 12 h;
	// default 30 s, which is the default of SQS. Too short leaves no time to retry a failed
	// renewal, too long makes a crashed holder's messages wait.
	Visibility time.Duration

	// Interval is the time from one renewal to the next. Default: a third of Visibility, rounded
	// up to a whole second from 3 s on (60 s every 20 s, 30 s every 10 s, 5 s every 2 s). From
	// 50 ms to three quarters of Visibility, so that a failed renewal can be tried again; [Never]
	// turns renewals off.
	Interval time.Duration

	// MaxHold is how long one receive may be held, from the sending of the receive request.
	// Default and most 12 h, which is the ceiling of SQS; at least 2 s. A lower value bounds
	// how long a hanging handler can keep a message to itself.
	MaxHold time.Duration

	// CeilingMargin is how long before MaxHold the holder is told, by [ErrCeiling]. Default: half of
	// Visibility, at most one minute. At least zero ([NoMargin] says zero), at most half of MaxHold.
	CeilingMargin time.Duration

	// MaxCalls bounds the renewal calls in flight at once; only what is due is. Default 1,000: a hundred
	// thousand leases of 6 s that come due in the same instant are renewed in time at 200 ms a call. From 1
	// to 2,048 (the SDK's limit of connections to one host).
	MaxCalls int

	// Logger takes a warning when renewals begin to fail and a note when they work again; nothing
	// per message. Default slog.Default(). Receipt handles are never logged.
	Logger *slog.Logger

	// Observer is told of every call, for traces and metrics. Default none, which costs nothing.
	Observer Observer
}

// NoMargin as [Config.CeilingMargin] means none: the holder is told when the lease ends.
const NoMargin time.Duration = -1

// withDefaults returns the configuration with every zero field filled in, or all its mistakes.
func (c Config) withDefaults() (Config, error) {
	if c.Visibility == 0 {
		c.Visibility = 30 * time.Second
	}
	if c.Interval == 0 {
		c.Interval = DefaultInterval(c.Visibility)
	}
	if c.MaxHold == 0 {
		c.MaxHold = MaxVisibility
	}
	switch c.CeilingMargin {
	case 0:
		c.CeilingMargin = min(c.Visibility/2, time.Minute, c.MaxHold/2)
	case NoMargin:
		c.CeilingMargin = 0
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 1000
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, c.validate()
}

func (c Config) validate() error {
	var errs []error
	bad := func(field string, value any, bound string) {
		errs = append(errs, fmt.Errorf("heartbeat: Config.%s is %v: must be %s", field, value, bound))
	}
	if c.Visibility < time.Second || c.Visibility > MaxVisibility || c.Visibility%time.Second != 0 {
		bad("Visibility", c.Visibility, "whole seconds from 1s to 12h, because SQS counts visibility in seconds")
	}
	if most := c.Visibility * 3 / 4; c.Interval != Never && (c.Interval < 50*time.Millisecond || c.Interval > most) {
		bad("Interval", c.Interval, fmt.Sprintf("from 50ms to three quarters of Visibility (%v), or heartbeat.Never", most))
	}
	if c.MaxHold < 2*time.Second || c.MaxHold > MaxVisibility {
		bad("MaxHold", c.MaxHold, "from 2s to 12h, the ceiling that SQS sets from the receive on")
	}
	if c.CeilingMargin < 0 || c.CeilingMargin > c.MaxHold/2 {
		bad("CeilingMargin", c.CeilingMargin, fmt.Sprintf("from 0 (heartbeat.NoMargin) to half of MaxHold (%v)", c.MaxHold/2))
	}
	if c.MaxCalls < 1 || c.MaxCalls > 2048 {
		bad("MaxCalls", c.MaxCalls, "from 1 to 2048")
	}
	return errors.Join(errs...)
}

// DefaultInterval is the renewal interval for a visibility: a third of it, rounded up to a whole
// second where that costs little. SQS counts visibility in whole seconds, so a fraction of a second
// saved between renewals is a renewal for nothing; what remains is still half of the visibility
// or more for retries.
func DefaultInterval(visibility time.Duration) time.Duration {
	third := visibility / 3
	if third < time.Second {
		return third
	}
	return (third + time.Second - 1).Truncate(time.Second)
}

// gather is how long a renewal that is due may wait for others to share its call.
func (c Config) gather() time.Duration {
	return min(c.Visibility/20, time.Second)
}

// ceilingSlack keeps a renewal's own travel time from carrying it over the ceiling.
func (c Config) ceilingSlack() time.Duration {
	return min(c.MaxHold/20, 10*time.Second)
}
