package idempotency

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Status is how far a record has come.
type Status string

const (
	InProgress Status = "INPROGRESS"
	Completed  Status = "COMPLETED"
)

// Record is what a store keeps for one key.
type Record struct {
	// ID names it.
	ID string
	// Status is empty when there is no record.
	Status Status
	// Owner is the token of the attempt that claimed it last, empty after that attempt gave it up.
	Owner string
	// Fence grows with every claim: a resource that remembers the highest one it saw can refuse the others.
	Fence int64
	// Lease is when a claim ends unless it is extended; zero after it was given up and in a completed record.
	Lease time.Time
	// Expires is when the record is forgotten: the end of the retention.
	Expires time.Time
	// Payload is the hash of what the key's message says.
	Payload string
	// Result is the encoded result of a completed record; nil when it has none.
	Result []byte
	// Omitted is the size of a result that was too large to keep.
	Omitted int

	// Attempts counts the claims since the last completion, Failures and Interruptions those that said how they ended. What is
	// left of them is running or ended without a word: a crash, a lost lease.
	Attempts, Failures, Interruptions int
}

// Claimable tells whether another attempt may claim the record at a moment: there is none, its retention is over, or its lease
// has been over for longer than clocks may differ.
func (r Record) Claimable(now time.Time, skew time.Duration) bool {
	return r.Status == "" || !r.Expires.IsZero() && r.Expires.Unix() < now.Unix() ||
		r.Status == InProgress && r.Lease.UnixMilli() < now.Add(-skew).UnixMilli()
}

// heldBy tells whether the record is in progress by this attempt: the condition of every write after the claim.
func (r Record) heldBy(owner string) bool { return r.Status == InProgress && r.Owner == owner }

// RefusedError is a store's answer when the condition of a write didn't hold. Nothing was written.
type RefusedError struct {
	// Record is what the store has instead; its Status is empty when it has none.
	Record Record
}

func (e *RefusedError) Error() string {
	if e.Record.Status == "" {
		return "idempotency: write refused: there is no record"
	}
	return "idempotency: write refused: the record is " + string(e.Record.Status)
}

// AcquireRequest claims a record.
type AcquireRequest struct {
	ID      string
	Owner   string        // random, of this attempt
	Payload string        // hash
	Lease   time.Time     // until when
	Expires time.Time     // end of the retention
	Skew    time.Duration // how much the clocks of workers may differ
}

// Ended is how an attempt ended that didn't complete its record.
type Ended int

const (
	// Failed counts as a failure.
	Failed Ended = iota
	// Interrupted counts as an interruption: a stop, a lost lease, a dependency that is down.
	Interrupted
	// PutOff doesn't count at all: the attempt is taken back.
	PutOff
)

// Store keeps the records. [DynamoStore] is the one for production, [MemoryStore] the one for tests and for a single process.
// Each method is one atomic, conditional write; what it refuses is a [*RefusedError], any other error means that it isn't known
// whether the write was made. Safe for concurrent use.
type Store interface {
	// Acquire claims the record if it is [Record.Claimable]: status InProgress, this owner, lease, expiry and payload, the
	// fence one more (from the time in milliseconds on), attempts one more, no result. It returns the record as it then is.
	Acquire(context.Context, AcquireRequest) (Record, error)
	// Extend sets lease and expiry, if the record is in progress by this owner.
	Extend(ctx context.Context, id, owner string, lease, expires time.Time) error
	// Complete sets status Completed with result (or the size of one that is omitted) and expiry and ends the lease, if the
	// record is in progress by this owner. The counts start anew.
	Complete(ctx context.Context, id, owner string, c Completion) error
	// Release ends the lease and takes the owner away, if the record is in progress by this owner.
	Release(ctx context.Context, id, owner string, how Ended) error
}

// Completion is what a completed record says.
type Completion struct {
	Result  []byte // encoded; nil for none
	Omitted int    // instead of Result: the size of one that was too large
	Expires time.Time
}

// Transactor is a [Store] that can complete a record and make writes of the caller's in one transaction.
type Transactor interface {
	// CompleteTx is Complete, and items, or neither. token is the same for calls that are the same transaction. If it is the
	// record that refuses, the error is a [*RefusedError]; what refuses among items is in the error that the store got.
	CompleteTx(ctx context.Context, id, owner, token string, c Completion, items []types.TransactWriteItem) error
}
