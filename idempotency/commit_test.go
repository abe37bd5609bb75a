package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/worker"
)

// add is an effect that shows how often it happened.
func add(table, key string) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &table, Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: key}},
		UpdateExpression: aws.String("SET n = if_not_exists(n, :zero) + :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":zero": &types.AttributeValueMemberN{Value: "0"}, ":one": &types.AttributeValueMemberN{Value: "1"}},
	}}
}

func effects(t *testing.T, d *dynamo, key string) string {
	t.Helper()
	out, err := d.client().GetItem(context.Background(), &dynamodb.GetItemInput{TableName: aws.String("effects"), Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: key}}})
	must(t, err)
	if n, ok := out.Item["n"].(*types.AttributeValueMemberN); ok {
		return n.Value
	}
	return "0"
}

// committing runs f under a claim of key "k".
func committing(t *testing.T, d *dynamo, f func(ctx context.Context, c *idempotency.Claim) error) (*idempotency.DynamoStore, error) {
	t.Helper()
	store := d.newTable(t, testTable)
	d.newTable(t, "effects")
	g := newGuard(t, store, idempotency.Config{})
	_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(ctx context.Context) (int, error) {
		c, _ := idempotency.FromContext(ctx)
		return 0, f(ctx, c)
	})
	return store, err
}

func TestCommitIsTheEffectAndTheOutcomeInOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		store, err := committing(t, d, func(ctx context.Context, c *idempotency.Claim) error {
			if err := c.CommitResult(ctx, receipt{9, "paid"}, add("effects", "a"), add("effects", "b")); err != nil {
				return err
			}
			if err := c.Commit(ctx, add("effects", "a")); !errors.Is(err, idempotency.ErrCommitted) {
				t.Errorf("a second Commit: %v, want ErrCommitted", err)
			}
			time.Sleep(5 * time.Minute) // works on; nothing is to be renewed any more
			if ctx.Err() != nil {
				t.Errorf("cancelled after its commit: %v", context.Cause(ctx))
			}
			return errors.New("too late for that")
		})
		if err != nil {
			t.Errorf("an error after the commit came through: %v", err)
		}
		if r := get(t, store, "#k"); r.Status != idempotency.Completed || string(r.Result) != `{"Number":9,"Text":"paid"}` {
			t.Errorf("record %+v", r)
		}
		if a, b := effects(t, d, "a"), effects(t, d, "b"); a != "1" || b != "1" {
			t.Errorf("effects %s, %s: want 1, 1", a, b)
		}
		if n := d.count("UpdateItem"); n != 1 {
			t.Errorf("%d updates, want the claim alone", n)
		}
		got, err := idempotency.Do(t.Context(), newGuard(t, store, idempotency.Config{}), idempotency.Call{Key: "k"}, func(context.Context) (receipt, error) { return receipt{}, errors.New("ran") })
		if err != nil || got.Number != 9 {
			t.Errorf("replayed %v, %v", got, err)
		}
	})
}

func TestACommitWhoseAnswerIsLostHappensOnce(t *testing.T) {
	for name, c := range map[string]struct {
		times int // answers lost; the SDK tries four times
		ok    bool
	}{"once": {1, true}, "for good": {4, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDynamo()
				store, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
					d.inject(fault{op: "TransactWriteItems", times: c.times, dropAfter: true})
					err := claim.Commit(ctx, add("effects", "a"))
					if (err == nil) != c.ok {
						t.Errorf("Commit returned %v", err)
					}
					return err
				})
				if err != nil { // if the handler returns it, the record shows that it went through
					t.Errorf("got %v", err)
				}
				if n, r := effects(t, d, "a"), get(t, store, "#k"); n != "1" || r.Status != idempotency.Completed {
					t.Errorf("%s effects, record %+v", n, r)
				}
			})
		})
	}
}

// The second time around, the caller's own condition fails, because the first time it was met.
func TestACommitWhoseAnswerIsLostIsNotTakenForOneThatItsItemsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			d.inject(fault{op: "TransactWriteItems", times: 1, dropAfter: true})
			once := add("effects", "a")
			once.Update.ConditionExpression = aws.String("attribute_not_exists(id)")
			err := claim.Commit(ctx, once)
			if err != nil {
				t.Errorf("Commit returned %v", err)
			}
			return err
		})
		if err != nil || effects(t, d, "a") != "1" {
			t.Errorf("got %v, %s effects", err, effects(t, d, "a"))
		}
	})
}

func TestACommitAfterOneWithoutAnAnswerSaysWhichOneItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			d.inject(fault{op: "TransactWriteItems", times: 4, dropAfter: true}) // the SDK's four attempts
			if err := claim.Commit(ctx, add("effects", "a")); err == nil {
				t.Error("a commit without an answer succeeded")
			}
			if err := claim.Commit(ctx, add("effects", "b")); !errors.Is(err, idempotency.ErrCommitted) {
				t.Errorf("the second commit returned %v, want ErrCommitted", err)
			}
			return nil
		})
		if a, b := effects(t, d, "a"), effects(t, d, "b"); err != nil || a != "1" || b != "0" {
			t.Errorf("got %v, effects %s and %s: want 1 and 0", err, a, b)
		}
	})
}

func TestACommitWithoutAnAnswerThatTheHandlerIgnoresIsNotPaintedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		store, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			remove := d.inject(fault{op: "TransactWriteItems", dropBefore: true})
			_ = claim.Commit(ctx, add("effects", "a"))
			remove()
			return nil
		})
		var failed *idempotency.StoreError
		if !errors.As(err, &failed) || failed.Op != "commit" {
			t.Errorf("got %v, want the commit's StoreError", err)
		}
		if r := get(t, store, "#k"); r.Status != idempotency.InProgress || r.Owner != "" {
			t.Errorf("record %+v: must be open for the next attempt", r)
		}
	})
}

func TestWhatTheCallersItemsRefuseIsTheCallersToHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			bad := add("effects", "b")
			bad.Update.ConditionExpression = aws.String("attribute_exists(id)")
			err := claim.Commit(ctx, add("effects", "a"), bad)
			var cancelled *types.TransactionCanceledException
			if !errors.As(err, &cancelled) || aws.ToString(cancelled.CancellationReasons[1].Code) != "ConditionalCheckFailed" {
				t.Fatalf("got %v, want the cancelled transaction with its second item to blame", err)
			}
			if worker.OutcomeOf(ctx, err) != worker.OutcomeFailed {
				t.Errorf("it is %v to the worker", worker.OutcomeOf(ctx, err))
			}
			if n := effects(t, d, "a"); n != "0" {
				t.Errorf("%s effects of a cancelled transaction", n)
			}
			return claim.Commit(ctx, add("effects", "a")) // another way
		})
		if err != nil || effects(t, d, "a") != "1" {
			t.Errorf("got %v, %s effects", err, effects(t, d, "a"))
		}
	})
}

func cancelledBecause(codes ...string) fault {
	var reasons []string
	for _, c := range codes {
		reasons = append(reasons, fmt.Sprintf(`{"Code":%q}`, c))
	}
	return fault{op: "TransactWriteItems", code: "TransactionCanceledException", times: 3,
		body: `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled","CancellationReasons":[` + strings.Join(reasons, ",") + `]}`}
}

func TestATransactionThatOnlyConflictsOrIsThrottledIsTriedAgain(t *testing.T) {
	for name, f := range map[string]fault{
		"conflict with our record": cancelledBecause("None", "TransactionConflict"),
		"conflict with an item":    cancelledBecause("TransactionConflict", "None"),
		"throughput":               cancelledBecause("ProvisionedThroughputExceeded", "TransactionConflict"),
		"throttled":                cancelledBecause("None", "ThrottlingError"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDynamo()
				_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
					d.inject(f)
					return claim.Commit(ctx, add("effects", "a"))
				})
				if err != nil || effects(t, d, "a") != "1" || d.count("TransactWriteItems") != 4 {
					t.Errorf("got %v after %d calls, %s effects", err, d.count("TransactWriteItems"), effects(t, d, "a"))
				}
			})
		})
	}
	t.Run("a real reason among them ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newDynamo()
			_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
				d.inject(cancelledBecause("ValidationError", "TransactionConflict"))
				return claim.Commit(ctx, add("effects", "a"))
			})
			if err == nil || d.count("TransactWriteItems") != 1 {
				t.Errorf("got %v after %d calls, want the error after 1", err, d.count("TransactWriteItems"))
			}
		})
	})
}

func TestACommitOfAnAttemptThatWasOvertakenWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		store, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			s, err := idempotency.NewDynamoStore(d.client(), testTable, idempotency.DynamoConfig{})
			must(t, err)
			must(t, s.Release(ctx, "#k", claim.Owner(), idempotency.PutOff))
			mustAcquire(t, s, request("#k", "intruder", time.Minute))
			err = claim.Commit(ctx, add("effects", "a"))
			if !errors.Is(err, idempotency.ErrClaimLost) || !errors.Is(context.Cause(ctx), idempotency.ErrClaimLost) {
				t.Errorf("Commit returned %v, the context's cause is %v", err, context.Cause(ctx))
			}
			if again := claim.Commit(ctx, add("effects", "a")); !errors.Is(again, idempotency.ErrClaimLost) {
				t.Errorf("again: %v", again)
			}
			return nil
		})
		if !errors.Is(err, idempotency.ErrClaimLost) {
			t.Errorf("got %v", err)
		}
		if n, r := effects(t, d, "a"), get(t, store, "#k"); n != "0" || r.Owner != "intruder" {
			t.Errorf("%s effects, record %+v", n, r)
		}
	})
}

func TestCommitTakesAtMost99Items(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		items := make([]types.TransactWriteItem, 100)
		for i := range items {
			items[i] = add("effects", fmt.Sprint(i))
		}
		_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			if err := claim.Commit(ctx, items...); err == nil || !strings.Contains(err.Error(), "at most 99") {
				t.Errorf("100 items: %v", err)
			}
			return claim.Commit(ctx, items[:99]...)
		})
		if err != nil || effects(t, d, "98") != "1" {
			t.Errorf("99 items: %v", err)
		}
	})
}

func TestAMemoryStoreCommitsThroughTransact(t *testing.T) {
	refuse := errors.New("no stock")
	var got [][]types.TransactWriteItem
	store := &idempotency.MemoryStore{}
	g := newGuard(t, store, idempotency.Config{})
	run := func() error {
		_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(ctx context.Context) (struct{}, error) {
			c, _ := idempotency.FromContext(ctx)
			return struct{}{}, c.Commit(ctx, add("effects", "a"))
		})
		return err
	}
	if err := run(); err == nil || !strings.Contains(err.Error(), "Transact") {
		t.Errorf("without Transact: %v", err)
	}
	store.Transact = func(context.Context, []types.TransactWriteItem) error { return refuse }
	if err := run(); !errors.Is(err, refuse) {
		t.Errorf("got %v", err)
	}
	store.Transact = func(_ context.Context, items []types.TransactWriteItem) error { got = append(got, items); return nil }
	if err := run(); err != nil || len(got) != 1 || len(got[0]) != 1 {
		t.Errorf("got %v, %v", err, got)
	}
	if err := run(); err != nil || len(got) != 1 {
		t.Errorf("a duplicate: %v, %d transactions", err, len(got))
	}
}

func TestARenewalThatMeetsACommitOnItsWayBackIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			d.inject(fault{op: "TransactWriteItems", holdAfter: 25 * time.Second}) // renewals come after 10 s and 20 s
			err := claim.Commit(ctx, add("effects", "a"))
			if err != nil || ctx.Err() != nil {
				t.Errorf("Commit returned %v, the context's cause is %v", err, context.Cause(ctx))
			}
			return err
		})
		if err != nil || effects(t, d, "a") != "1" {
			t.Errorf("got %v, %s effects", err, effects(t, d, "a"))
		}
	})
}

func TestOneCommitAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		_, err := committing(t, d, func(ctx context.Context, claim *idempotency.Claim) error {
			d.inject(fault{op: "TransactWriteItems", hold: time.Second})
			results := make(chan error, 2)
			for _, key := range []string{"a", "b"} {
				go func() { results <- claim.Commit(ctx, add("effects", key)) }()
			}
			first, second := <-results, <-results
			if first == nil || second != nil {
				t.Errorf("got %v and then %v, want one refused at once and one committed", first, second)
			}
			return second
		})
		if a, b := effects(t, d, "a"), effects(t, d, "b"); err != nil || a+b != "10" && a+b != "01" {
			t.Errorf("got %v, effects %s and %s: want one of them", err, a, b)
		}
	})
}
