package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// MaxCommitItems is how many items [Claim.Commit] takes: DynamoDB takes 100 in a transaction, and the completion is one.
const MaxCommitItems = 99

var (
	errNoTransactions = errors.New("idempotency: commit: the store has no transactions: use a *DynamoStore, or a *MemoryStore with Transact")
	errCommitting     = errors.New("idempotency: commit: another Commit of this claim is under way")
)

// commitState is what a claim knows of its commits.
type commitState struct {
	n         int  // commits begun
	underWay  bool // one at a time: the record can't tell whose completion it has
	ambiguous bool // one has had no answer
}

// Commit makes the writes in items and the completion of the record in one transaction: all of it happens or none, and it
// never happens again for this key. It is the only effect that is exactly once. items are up to 99 writes of the store's own
// AWS account and Region, as for TransactWriteItems, and may have conditions.
//
// After Commit the message is completed, whatever the handler returns. What DynamoDB refuses because of items is an error that
// wraps *types.TransactionCanceledException, with reasons in the order of items; the claim is still held then, and Commit may
// be called again. [ErrClaimLost]: another attempt has taken over, and nothing was written. [ErrCommitted]: an earlier call has
// been committed, perhaps one whose answer was lost. Any other error: it isn't known; return it, and the message's next attempt
// finds out. Conflicts with other transactions and throttling are tried again until ctx or the lease ends.
func (c *Claim) Commit(ctx context.Context, items ...types.TransactWriteItem) error {
	return c.commit(ctx, nil, items)
}

// CommitResult is [Claim.Commit] with the result that [Do] shall return for duplicates; it is kept as JSON.
func (c *Claim) CommitResult(ctx context.Context, result any, items ...types.TransactWriteItem) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("idempotency: commit: the result can't be encoded: %w", err)
	}
	return c.commit(ctx, encoded, items)
}

func (c *Claim) commit(ctx context.Context, result []byte, items []types.TransactWriteItem) error {
	store, ok := c.g.store.(Transactor)
	if !ok {
		return errNoTransactions
	}
	if len(items) > MaxCommitItems {
		return fmt.Errorf("idempotency: commit: %d items: must be at most %d, because a transaction has at most 100 and the completion is one", len(items), MaxCommitItems)
	}
	token, err := c.beginCommit()
	if err != nil {
		return err
	}
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	call, cancel := context.WithDeadline(ctx, lease)
	defer cancel()
	completion := c.completion(result)
	return c.endCommit(completion, store.CompleteTx(call, c.id, c.owner, token, completion, items))
}

// unsureOfCommit tells whether a commit had no answer, and none has been answered since.
func (c *Claim) unsureOfCommit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tx.ambiguous
}

func (c *Claim) beginCommit() (token string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.tx.underWay:
		return "", errCommitting
	case c.stage == complete:
		return "", ErrCommitted
	case c.stage == gone:
		return "", c.why
	case c.stage == settling:
		return "", lost("the work has returned")
	}
	c.tx.underWay = true
	c.tx.n++
	return c.owner + "-" + strconv.Itoa(c.tx.n%1000), nil // DynamoDB takes 36 characters
}

func (c *Claim) endCommit(completion Completion, err error) error {
	refused, isRefused := refusal(err)
	c.mu.Lock()
	c.tx.underWay = false
	unsure := c.tx.ambiguous
	var cancelled *types.TransactionCanceledException
	var api smithy.APIError
	switch {
	case err == nil:
	case isRefused && refused.Status == Completed && refused.Owner == c.owner:
	case isRefused:
		defer c.mu.Unlock()
		if c.stage == held {
			return c.loseLocked(lost("another attempt took over before the commit"))
		}
		return lost("another attempt took over before the commit")
	case errors.As(err, &cancelled), errors.As(err, &api) && api.ErrorCode() == "ValidationException":
		c.mu.Unlock()
		return fmt.Errorf("idempotency: commit: %w", err)
	default:
		c.tx.ambiguous = true
		c.mu.Unlock()
		c.g.count.storeErrors.Add(1)
		return storeError("commit", err)
	}
	c.mu.Unlock()
	c.completed(completion)
	if isRefused && unsure {
		return ErrCommitted
	}
	return nil
}
