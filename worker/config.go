package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// Values that switch something off, where zero means the default.
const (
	// ShortPoll as [Config.WaitTime]: receives return at once and ask only some of the servers. SQS bills each
	// of them; an idle worker makes ten a second instead of three a minute.
	ShortPoll time.Duration = -1
	// NoHeartbeat as [Config.HeartbeatInterval]: a message is held for its visibility and no longer.
	NoHeartbeat time.Duration = heartbeat.Never
	// NoLinger as [Config.DeleteLinger]: every delete leaves at once, alone if need be.
	NoLinger time.Duration = -1
	// NoDrain as [Config.DrainTimeout]: at the stop, running handlers are cancelled at once, and after CancelGrace an
	// open receive is broken off, which can leave messages invisible.
	NoDrain time.Duration = -1
	// NoRetries as [Config.Retries]: a failed message is given back at once, on a FIFO queue too.
	NoRetries = -1
	// NoGrace as [Config.CancelGrace]: a cancelled handler isn't waited for.
	NoGrace time.Duration = -1
)

// Config tunes a [Worker]. The zero value is ready for production.
type Config struct {
	// Name tells this worker from others in logs. Default: the queue's name.
	Name string

	// Concurrency is how many handlers run at once. From 1 to 100,000; default 10. A worker never holds more
	// messages than it has free slots (and Prefetch): what it holds, others can't work on.
	Concurrency int

	// Prefetch is how many more messages are held, under lease, so that a slot never waits for a receive. From 0
	// (the default) to 100,000. It raises the throughput of short jobs; with long ones it only keeps messages
	// from idle workers. In flight are at most Concurrency + Prefetch, and what waits for its delete.
	Prefetch int

	// TenantConcurrency is how many handlers one tenant (message group) of a standard queue may have at once; tenants take turns,
	// and as many more of a tenant's messages may wait. What comes beyond that is given back for 1 to 5 s, at the price of a receive
	// more on its count: set it where one tenant's work must not take every slot, and maxReceiveCount well above the default. From
	// 1 to 100,000; default 0, no cap. A FIFO queue runs one message of a group at a time anyway.
	TenantConcurrency int

	// WaitTime is how long a receive waits for a message: WaitTimeSeconds. Whole seconds from 1 s to 20 s, or
	// [ShortPoll]; default 20 s, the longest that SQS takes and the cheapest. It is cut to what DrainTimeout
	// leaves, so that an open receive can end by itself when the worker stops: a receive that is broken off can
	// leave messages invisible.
	WaitTime time.Duration

	// Visibility is how long a message stays invisible after a receive and after each renewal: how soon others get
	// it when this process dies. Whole seconds from 1 s to 12 h; default: the queue's own.
	Visibility time.Duration

	// HeartbeatInterval is the time between renewals of a held message. Default: a third of the visibility, see
	// [heartbeat.Config]; [NoHeartbeat] turns renewals off.
	HeartbeatInterval time.Duration

	// MaxHold is how long one receive of a message is held at most, waiting and running together. From 2 s to 12 h,
	// which is the default and the ceiling of SQS. The handler's context ends before it, with cause
	// [heartbeat.ErrCeiling].
	MaxHold time.Duration

	// HandlerTimeout ends a handler's context after that time, with cause [ErrHandlerTimeout]; what the handler then
	// returns decides. From 1 ms to 12 h; default none. One that doesn't return is reported and keeps its lease.
	HandlerTimeout time.Duration

	// Retries is how often a handler that failed is called again in process, its message held all the while, before the
	// message is given back. From 1 to 100, or [NoRetries]. Default: none on a standard queue; 2 on a FIFO queue, where giving
	// back one message gives back all that are held behind it, at the price of a receive more on their counts. A handler that
	// returned [Permanent], [RetryAfter], [Snooze] or [Unavailable] isn't called again.
	Retries int
	// RetryDelay is the wait before the first retry in process; each further one waits twice as long. From 1 ms to 1 h;
	// default 1 s.
	RetryDelay time.Duration

	// Backoff is how long a failed message stays away.
	Backoff Backoff

	// Breaker is what happens when something that handlers depend on is down.
	Breaker Breaker

	// DeadLetter takes the messages of handlers that return [Permanent]; the message is deleted after it was taken. Default
	// none: such a message comes back after Backoff.Max, until the queue's redrive policy moves it.
	DeadLetter DeadLetterer

	// Audit looks at the queue's settings at each start and logs what will hurt one day, such as dlq.NewAuditor. Default: the worker's own
	// few checks.
	Audit Auditor

	// DrainTimeout is the time from the end of Run's context until Run returns, all told: running handlers go on for
	// it less CancelGrace and a reserve for settling (a fifth, at most 2 s). From 2 s to 12 h, or [NoDrain]; default
	// 25 s, because ECS and Kubernetes kill 30 s after SIGTERM unless told otherwise.
	DrainTimeout time.Duration

	// CancelGrace is how long a handler has to return after the drain cancelled its context. Up to DrainTimeout, or
	// [NoGrace]; default 5 s, at most a fourth of DrainTimeout.
	CancelGrace time.Duration

	// DeleteLinger is how long a delete waits for others to fill its batch of ten. From 1 ms to 5 s, or [NoLinger];
	// default 100 ms, at most a twentieth of the visibility. Longer makes fewer calls, and more messages that come
	// again when the process dies.
	DeleteLinger time.Duration

	// MessageAttributes are the names to receive, as in ReceiveMessage's MessageAttributeNames ("All", "prefix.*").
	// Default: all.
	MessageAttributes []string

	// Telemetry is where traces and metrics go. Default: to OpenTelemetry's global providers, if the program has set them.
	Telemetry Telemetry

	// SenderID asks SQS for the sender's IAM id too, for Message.SenderID. Default false: it is long, and costs its share of
	// every receive.
	SenderID bool

	// Middleware wraps the handler; the first listed is the outermost.
	Middleware []Middleware

	// Logger takes what an operator should read. Default slog.Default(). Never in it: message bodies, receipt
	// handles, credentials.
	Logger *slog.Logger
}

// Backoff is exponential: the n-th failure keeps the message away for a random time between the (n−1)-th step
// and the n-th, where the first step is Min and each is twice the one before, up to Max. So gaps grow, and
// messages that failed together don't come back together. It is measured from the failure and cut to what is
// left of the 12 hours that SQS lets a receive be held.
type Backoff struct {
	// Min is the first step. From 1 s to 12 h; default 2 s.
	Min time.Duration
	// Max is the last one. From Min to 12 h; default 15 minutes.
	Max time.Duration
}

const (
	maxConcurrency = 100_000
	maxWait        = 20 * time.Second
)

// withDefaults returns the configuration with every zero field filled in, or all its mistakes.
func (c Config) withDefaults() (Config, error) {
	if err := c.validate(); err != nil {
		return c, err
	}
	setDefault(&c.Concurrency, 10)
	setDefault(&c.WaitTime, maxWait)
	setDefault(&c.MaxHold, heartbeat.MaxVisibility)
	setDefault(&c.Backoff.Min, atMost(2*time.Second, c.Backoff.Max))
	setDefault(&c.Backoff.Max, max(15*time.Minute, c.Backoff.Min))
	setDefault(&c.RetryDelay, time.Second)
	c.Breaker = c.Breaker.withDefaults()
	setDefault(&c.DrainTimeout, 25*time.Second)
	if c.DrainTimeout == NoDrain {
		setDefault(&c.CancelGrace, 5*time.Second)
	}
	setDefault(&c.CancelGrace, min(5*time.Second, c.DrainTimeout/4))
	if c.CancelGrace == NoGrace {
		c.CancelGrace = 0
	}
	if len(c.MessageAttributes) == 0 {
		c.MessageAttributes = []string{"All"}
	}
	setDefault(&c.Logger, slog.Default())
	return c, nil
}

// atMost is a default that keeps below a bound that may not be set.
func atMost(d, bound time.Duration) time.Duration {
	if bound > 0 {
		return min(d, bound)
	}
	return d
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate reports every mistake, not the first one.
func (c Config) validate() error {
	v := &violations{}
	v.count("Concurrency", c.Concurrency, 1, maxConcurrency)
	v.count("Prefetch", c.Prefetch, 0, maxConcurrency)
	v.count("TenantConcurrency", c.TenantConcurrency, 1, maxConcurrency)
	v.seconds("WaitTime", c.WaitTime, time.Second, maxWait, ShortPoll, "worker.ShortPoll")
	v.seconds("Visibility", c.Visibility, time.Second, heartbeat.MaxVisibility, 0, "")
	v.between("MaxHold", c.MaxHold, 2*time.Second, heartbeat.MaxVisibility, 0, "")
	v.between("HandlerTimeout", c.HandlerTimeout, time.Millisecond, heartbeat.MaxVisibility, 0, "")
	v.between("Backoff.Min", c.Backoff.Min, time.Second, heartbeat.MaxVisibility, 0, "")
	v.between("Backoff.Max", c.Backoff.Max, time.Second, heartbeat.MaxVisibility, 0, "")
	if c.Retries != NoRetries {
		v.count("Retries", c.Retries, 1, 100)
	}
	v.between("RetryDelay", c.RetryDelay, time.Millisecond, time.Hour, 0, "")
	v.breaker(c.Breaker)
	v.between("DrainTimeout", c.DrainTimeout, 2*time.Second, 12*time.Hour, NoDrain, "worker.NoDrain")
	v.between("CancelGrace", c.CancelGrace, time.Millisecond, 12*time.Hour, NoGrace, "worker.NoGrace")
	v.between("DeleteLinger", c.DeleteLinger, time.Millisecond, 5*time.Second, NoLinger, "worker.NoLinger")
	v.telemetry(c.Telemetry)
	v.together(c)
	for i, m := range c.Middleware {
		if m == nil {
			v.add("Middleware[%d] is nil: remove it", i)
		}
	}
	return errors.Join(v.errs...)
}

// violations collects what is wrong with a configuration.
type violations struct{ errs []error }

func (v *violations) add(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("worker: Config."+format, args...))
}

func (v *violations) count(field string, value, least, most int) {
	if value != 0 && (value < least || value > most) {
		v.add("%s is %d: must be from %d to %d", field, value, least, most)
	}
}

func (v *violations) between(field string, value, least, most, off time.Duration, offName string) {
	if value == 0 || (offName != "" && value == off) {
		return
	}
	if value < least || value > most {
		v.add("%s is %v: must be from %v to %v%s", field, value, least, most, orName(offName))
	}
}

func (v *violations) seconds(field string, value, least, most, off time.Duration, offName string) {
	if value > 0 && value%time.Second != 0 {
		v.add("%s is %v: must be whole seconds from %v to %v%s, because SQS counts it in seconds", field, value, least, most, orName(offName))
		return
	}
	v.between(field, value, least, most, off, offName)
}

func orName(name string) string {
	if name == "" {
		return ""
	}
	return ", or " + name
}

func (v *violations) breaker(b Breaker) {
	v.between("Breaker.Pause", b.Pause, time.Second, time.Hour, 0, "")
	v.between("Breaker.MaxPause", b.MaxPause, time.Second, heartbeat.MaxVisibility, 0, "")
	if b.Pause > 0 && b.MaxPause > 0 && b.MaxPause < b.Pause {
		v.add("Breaker.MaxPause is %v: must be at least Breaker.Pause, %v", b.MaxPause, b.Pause)
	}
	if !(b.FailureRate >= 0 && b.FailureRate <= 1) { // not so for NaN
		v.add("Breaker.FailureRate is %v: must be from 0 (off) to 1", b.FailureRate)
	}
	v.between("Breaker.Window", b.Window, time.Second, time.Hour, 0, "")
	v.count("Breaker.MinResults", b.MinResults, 1, 1_000_000)
}

// together checks fields that depend on each other.
func (v *violations) together(c Config) {
	if c.Backoff.Min > 0 && c.Backoff.Max > 0 && c.Backoff.Max < c.Backoff.Min {
		v.add("Backoff.Max is %v: must be at least Backoff.Min, %v", c.Backoff.Max, c.Backoff.Min)
	}
	drain := c.DrainTimeout
	setDefault(&drain, 25*time.Second)
	if c.CancelGrace > 0 && drain > 0 && c.CancelGrace > drain*4/5 {
		v.add("CancelGrace is %v: must be at most four fifths of DrainTimeout, %v", c.CancelGrace, drain)
	}
	switch interval := c.HeartbeatInterval; {
	case interval == 0:
	case interval == NoHeartbeat:
		if total := c.handlingAtMost(c.Retries); c.Visibility > 0 && total >= c.Visibility {
			v.add("HandlerTimeout is %v, with Retries and their delays %v: with heartbeats off that must be less than Visibility, %v, or a message is handled twice at the same time", c.HandlerTimeout, total, c.Visibility)
		}
	case interval < 50*time.Millisecond:
		v.add("HeartbeatInterval is %v: must be from 50ms to three quarters of the visibility, or worker.NoHeartbeat", interval)
	case c.Visibility > 0 && interval > c.Visibility*3/4:
		v.add("HeartbeatInterval is %v: must be at most three quarters of Visibility, %v", interval, c.Visibility*3/4)
	case interval > 9*time.Hour:
		v.add("HeartbeatInterval is %v: must be at most 9h, three quarters of the longest visibility", interval)
	}
}

// handlingAtMost is how long a handler that keeps to its timeout can have a message: all its calls, and the waits between
// them. Zero when there is no timeout.
func (c Config) handlingAtMost(retries int) time.Duration {
	if c.HandlerTimeout == 0 {
		return 0
	}
	setDefault(&c.RetryDelay, time.Second)
	total := c.HandlerTimeout
	for try := 1; try <= min(retries, 100); try++ {
		total += longestRetryDelay(c.RetryDelay, try) + c.HandlerTimeout
	}
	return total
}

// retries is Retries with its default, which depends on the queue.
func (c Config) retries(fifo bool) int {
	switch {
	case c.Retries == NoRetries:
		return 0
	case c.Retries == 0 && fifo:
		return 2
	}
	return c.Retries
}

// settleReserve is the part of a drain that is kept for the last deletes and releases.
func settleReserve(budget time.Duration) time.Duration { return min(2*time.Second, budget/5) }

// waitTime is WaitTime, cut so that an open receive ends by itself before the drain does.
func (c Config) waitTime() time.Duration {
	if c.WaitTime == ShortPoll || c.DrainTimeout == NoDrain {
		return c.WaitTime
	}
	const transit = 500 * time.Millisecond // a receive takes longer than its wait
	room := c.DrainTimeout - settleReserve(c.DrainTimeout) - transit
	return max(time.Second, min(c.WaitTime, room.Truncate(time.Second)))
}
