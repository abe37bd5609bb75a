package idempotency

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// MemoryStore keeps records in this process: for tests, and for a program that is the only one and forgets its past when it ends.
// The zero value is ready. It behaves as [DynamoStore] does; both pass the same tests.
type MemoryStore struct {
	// Transact makes the writes of [Claim.Commit], or none of them, for tests of handlers that use it. An error refuses the
	// commit. It is called with the records locked and must not use the store. Default: Commit fails.
	Transact func(context.Context, []types.TransactWriteItem) error

	mu      sync.Mutex
	records map[string]Record
	sweepAt int // how many records there may be before expired ones are looked for
}

// update changes a record if a condition holds.
func (s *MemoryStore) update(ctx context.Context, id string, condition func(Record) bool, change func(*Record) error) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[id]
	if !condition(r) {
		return Record{}, &RefusedError{r}
	}
	r.ID = id
	if err := change(&r); err != nil {
		return Record{}, err
	}
	if s.records == nil {
		s.records = map[string]Record{}
	}
	s.records[id] = r
	s.sweepLocked()
	return r, nil
}

// sweepLocked removes expired records each time their number has doubled.
func (s *MemoryStore) sweepLocked() {
	if len(s.records) <= max(s.sweepAt, 1000) {
		return
	}
	now := time.Now()
	for id, r := range s.records {
		if r.Expires.Unix() < now.Unix() {
			delete(s.records, id)
		}
	}
	s.sweepAt = 2 * len(s.records)
}

// Acquire implements [Store].
func (s *MemoryStore) Acquire(ctx context.Context, r AcquireRequest) (Record, error) {
	now := time.Now()
	return s.update(ctx, r.ID, func(old Record) bool { return old.Claimable(now, r.Skew) }, func(n *Record) error {
		n.Status, n.Owner, n.Payload, n.Lease, n.Expires = InProgress, r.Owner, r.Payload, r.Lease, r.Expires
		if n.Fence == 0 {
			n.Fence = now.UnixMilli()
		}
		n.Fence++
		n.Attempts++
		n.Result, n.Omitted = nil, 0
		return nil
	})
}

// Extend implements [Store].
func (s *MemoryStore) Extend(ctx context.Context, id, owner string, lease, expires time.Time) error {
	_, err := s.update(ctx, id, ownedBy(owner), func(r *Record) error {
		r.Lease, r.Expires = lease, expires
		return nil
	})
	return err
}

// Complete implements [Store].
func (s *MemoryStore) Complete(ctx context.Context, id, owner string, c Completion) error {
	_, err := s.update(ctx, id, ownedBy(owner), func(r *Record) error { r.complete(c); return nil })
	return err
}

// CompleteTx implements [Transactor].
func (s *MemoryStore) CompleteTx(ctx context.Context, id, owner, _ string, c Completion, items []types.TransactWriteItem) error {
	if s.Transact == nil {
		return errNoTransactions
	}
	_, err := s.update(ctx, id, ownedBy(owner), func(r *Record) error {
		if err := s.Transact(ctx, items); err != nil {
			return fmt.Errorf("%w: %w", &types.TransactionCanceledException{Message: aws.String("Transact refused")}, err)
		}
		r.complete(c)
		return nil
	})
	return err
}

// Release implements [Store].
func (s *MemoryStore) Release(ctx context.Context, id, owner string, how Ended) error {
	_, err := s.update(ctx, id, ownedBy(owner), func(r *Record) error {
		r.Lease, r.Owner = time.Time{}, ""
		switch how {
		case Failed:
			r.Failures++
		case Interrupted:
			r.Interruptions++
		case PutOff:
			r.Attempts--
		}
		return nil
	})
	return err
}

// Get reads a record; one that doesn't exist has no Status.
func (s *MemoryStore) Get(_ context.Context, id string) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[id], nil
}

func (r *Record) complete(c Completion) {
	r.Status, r.Result, r.Omitted, r.Expires, r.Lease = Completed, c.Result, c.Omitted, c.Expires, time.Time{}
	r.Attempts, r.Failures, r.Interruptions = 0, 0, 0
}

func ownedBy(owner string) func(Record) bool {
	return func(r Record) bool { return r.heldBy(owner) }
}
