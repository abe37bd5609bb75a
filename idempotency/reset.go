package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sqsworker/sqsworker/worker"
)

// Forgetter is a [Store] that can let a completed record's retention end at once, for work that shall be done again.
// Both stores of this package are.
type Forgetter interface {
	// Forget ends the retention of a record that is Completed; any other is a [*RefusedError].
	Forget(ctx context.Context, id string) error
}

// long ago, but not zero: an expired record can be claimed anew, and DynamoDB may delete it.
var longAgo = time.Unix(1, 0)

// Forget implements [Forgetter].
func (s *DynamoStore) Forget(ctx context.Context, id string) error {
	_, err := s.update(ctx, id, write{"#st = :done", "SET #exp = :ttl",
		map[string]string{"#st": attrStatus, "#exp": attrExpires},
		map[string]types.AttributeValue{":done": str(string(Completed)), ":ttl": num(longAgo.Unix())},
	}, types.ReturnValueNone)
	return err
}

// Forget implements [Forgetter].
func (s *MemoryStore) Forget(ctx context.Context, id string) error {
	_, err := s.update(ctx, id, func(r Record) bool { return r.Status == Completed }, func(r *Record) error {
		r.Expires = longAgo
		return nil
	})
	return err
}

// Reset makes a message's work be done again although it was completed: before a redrive, say, of messages whose handler has
// been mended. Without it, a redriven message with a business key that was completed is deleted without a run. It does nothing when
// there is no record, and fails when the work is under way. Other processes that have the record in their cache
// ([Config.CacheSize]) go on answering from it.
//
// The key is what [Config.Key] makes of the message. A redrive gives it a new MessageId: with [MessageID] as the key there is
// nothing to reset.
func (g *Guard) Reset(ctx context.Context, m *worker.Message) error {
	store, ok := g.store.(Forgetter)
	if !ok {
		return fmt.Errorf("idempotency: a %T can't forget records: implement idempotency.Forgetter", g.store)
	}
	id, _, err := g.identify(m)
	if err != nil {
		return err
	}
	err = store.Forget(ctx, id)
	g.cache.remove(id)
	var refused *RefusedError
	switch {
	case !errors.As(err, &refused):
		return err
	case refused.Record.Status == "":
		return nil
	}
	return fmt.Errorf("idempotency: reset of %s: the work is under way: %w", id, err)
}
