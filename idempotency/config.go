package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

const (
	// NoSkew as [Config.Skew]: all workers have the same clock, that is, all run in one process.
	NoSkew time.Duration = -1
	// DefaultRetention is longer than any message can live in a queue and then in its dead-letter queue, 14 days each.
	DefaultRetention = 30 * 24 * time.Hour
	// MaxResultSize is the most that fits into an item of 400 KB along with the rest.
	MaxResultSize = 384 << 10
)

// Config tunes a [Guard]. The zero value is ready for production, but think about Key: the default knows only SQS's own
// duplicates.
type Config struct {
	// Namespace keeps the keys of one use of a table from those of another. Without '#', at most 200 bytes. Default: for a
	// worker the name of the message's queue, so that two services can share a table; for [Do] none.
	Namespace string

	// Key tells which messages are the same work. Default [MessageID], which a producer's second send and a redrive from a
	// dead-letter queue change: better a [JSONField], an [Attribute], or on a FIFO queue [DeduplicationID]. A message without
	// a key is a [worker.Permanent] failure.
	Key KeyFunc

	// Payload is what two messages with the same key must have in common; if they don't, the second one is a [MismatchError].
	// Default: the whole body. [Fields] compares some of it; [AnyPayload] nothing. When it changes, messages in flight
	// meet records that were made the old way: change Namespace along with it, or only after the queue is empty.
	Payload PayloadFunc

	// Retention is how long a record is kept: a duplicate that comes later runs again. From 1 minute to 10 years; default
	// [DefaultRetention], 30 days. It must be longer than the message can live in the queue and in its dead-letter queue;
	// [Guard.CheckQueue] looks.
	Retention time.Duration

	// Skew is how much the clocks of workers may differ. A claim is taken over only when it has been over for longer. Up to 5
	// minutes, or [NoSkew]; default 2 s. Too short, and two workers may run at once (of which one completes); longer makes
	// the work of a dead worker wait.
	Skew time.Duration

	// Lease is how long a claim lasts without renewal, outside of a worker. In one it lasts as long as the message's visibility.
	// From 1 s to 12 h; default 30 s.
	Lease time.Duration

	// CallTimeout bounds one call of the store, the SDK's retries included. From 10 ms to 1 minute; default 5 s. The end of
	// the lease bounds it too.
	CallTimeout time.Duration

	// MaxResult is the largest encoded result that is kept; of a larger one only the size is. From 1 byte to [MaxResultSize],
	// which is the default. DynamoDB bills a write unit for each KB, also for a duplicate that meets the record.
	MaxResult int

	// CacheSize is how many completed keys are remembered in this process, so that their duplicates cost no call. Up to a
	// million; default 0, none. An entry takes about 300 bytes, and a result of up to 4 KiB more; larger ones aren't cached.
	CacheSize int

	// Logger takes what an operator should read. Default slog.Default(). Never in it: keys, payloads, results.
	Logger *slog.Logger
}

// withDefaults returns the configuration with every zero field filled in, or all its mistakes.
func (c Config) withDefaults() (Config, error) {
	if err := c.validate(); err != nil {
		return c, err
	}
	if c.Key == nil {
		c.Key = MessageID
	}
	if c.Payload == nil {
		c.Payload = wholeBody
	}
	setDefault(&c.Retention, DefaultRetention)
	setDefault(&c.Skew, 2*time.Second)
	if c.Skew == NoSkew {
		c.Skew = 0
	}
	setDefault(&c.Lease, 30*time.Second)
	setDefault(&c.CallTimeout, 5*time.Second)
	setDefault(&c.MaxResult, MaxResultSize)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate reports every mistake, not the first one.
func (c Config) validate() error {
	var errs []error
	bad := func(field string, value any, bound string) {
		errs = append(errs, fmt.Errorf("idempotency: Config.%s is %v: must be %s", field, value, bound))
	}
	between := func(field string, value, least, most time.Duration) {
		if value != 0 && (value < least || value > most) {
			bad(field, value, fmt.Sprintf("from %v to %v", least, most))
		}
	}
	if strings.Contains(c.Namespace, "#") || len(c.Namespace) > 200 {
		bad("Namespace", fmt.Sprintf("%q", c.Namespace), "at most 200 bytes without '#', which separates it from the key")
	}
	between("Retention", c.Retention, time.Minute, 10*365*24*time.Hour)
	if c.Skew != NoSkew && (c.Skew < 0 || c.Skew > 5*time.Minute) {
		bad("Skew", c.Skew, "from 0s to 5m0s, or idempotency.NoSkew")
	}
	between("Lease", c.Lease, time.Second, 12*time.Hour)
	between("CallTimeout", c.CallTimeout, 10*time.Millisecond, time.Minute)
	if c.MaxResult < 0 || c.MaxResult > MaxResultSize {
		bad("MaxResult", c.MaxResult, fmt.Sprintf("from 1 to %d bytes", MaxResultSize))
	}
	if c.CacheSize < 0 || c.CacheSize > 1_000_000 {
		bad("CacheSize", c.CacheSize, "from 0 to 1000000")
	}
	return errors.Join(errs...)
}

// KeyFunc tells which messages are the same work.
type KeyFunc func(*worker.Message) (string, error)

// PayloadFunc tells what two messages with the same key must have in common.
type PayloadFunc func(*worker.Message) ([]byte, error)
