package idempotency

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

var (
	// ErrClaimLost: another attempt has claimed the record, or the claim could not be renewed. It wraps [worker.ErrLeaseLost].
	// It is the cause with which the work's context ends, and what becomes of a completion that came too late.
	ErrClaimLost = fmt.Errorf("idempotency: claim lost: %w", worker.ErrLeaseLost)
	// ErrCommitted: [Claim.Commit] after the record was completed.
	ErrCommitted = errors.New("idempotency: committed before")
	// ErrNoResult: the record was completed without a result, by a middleware or by [Claim.Commit], and [Do] has none to return.
	ErrNoResult = errors.New("idempotency: completed before, without a result: give Commit's result with CommitResult")
)

// InProgressError: another attempt holds the claim. In a worker it is a [worker.Snooze] until the claim would be over.
type InProgressError struct {
	// Until is when the claim ends unless it is renewed, clock differences included.
	Until  time.Time
	snooze error
}

func inProgress(until time.Time) *InProgressError {
	remaining := max(time.Until(until), 0)
	return &InProgressError{Until: until, snooze: worker.Snooze(remaining + time.Second + rand.N(time.Second+remaining/10))}
}

func (e *InProgressError) Error() string {
	return fmt.Sprintf("idempotency: in progress elsewhere until %s unless it is renewed there", e.Until.Format(time.RFC3339))
}

// Unwrap makes it a [worker.Snooze].
func (e *InProgressError) Unwrap() error { return e.snooze }

// MismatchError: the key was used for another payload. It comes inside a [worker.Permanent].
type MismatchError struct {
	// Key is the record's.
	Key string
}

func (e *MismatchError) Error() string {
	return "idempotency: another payload was completed under the same key: make the key tell them apart, or compare only the fields that matter (Config.Payload)"
}

// ResultOmittedError: completed before, but the result was too large to be kept.
type ResultOmittedError struct {
	// Size is its size in bytes.
	Size int
}

func (e *ResultOmittedError) Error() string {
	return fmt.Sprintf("idempotency: completed before; its result of %d bytes was too large to keep: store it elsewhere and return where", e.Size)
}

// StoreError: the store could not be asked, or gave no answer. In a worker it is [worker.Unavailable].
type StoreError struct {
	// Op is what was tried: acquire, extend, complete, release, commit.
	Op          string
	err         error
	unavailable error
}

func storeError(op string, err error) *StoreError {
	return &StoreError{Op: op, err: err, unavailable: worker.Unavailable(err)}
}

func (e *StoreError) Error() string { return "idempotency: " + e.Op + ": " + e.err.Error() }

// Unwrap makes it [worker.Unavailable], which wraps the store's error.
func (e *StoreError) Unwrap() error { return e.unavailable }

func lost(why string) error { return fmt.Errorf("%w: %s", ErrClaimLost, why) }
