package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/idempotency"
)

func TestConflictsThatTheSDKDoesNotRetryAreTriedAgainUntilTheContextEnds(t *testing.T) {
	for _, code := range []string{"TransactionConflictException", "ReplicatedWriteConflictException"} {
		synctest.Test(t, func(t *testing.T) {
			d := newDynamo()
			s := d.newTable(t, testTable)
			d.inject(fault{op: "UpdateItem", times: 3, code: code})
			mustAcquire(t, s, request("k", "a", time.Minute))
			if n := d.count("UpdateItem"); n != 4 {
				t.Errorf("%s: %d calls, want 4", code, n)
			}
			d.inject(fault{op: "UpdateItem", code: code})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			began := time.Now()
			if err := s.Extend(ctx, "k", "a", time.Now(), time.Now()); err == nil || time.Since(began) != 10*time.Second {
				t.Errorf("%s: got %v after %v, want an error when the context ends", code, err, time.Since(began))
			}
		})
	}
}

func TestOtherErrorsAreNotTriedAgainByTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		s := d.newTable(t, testTable)
		d.inject(fault{code: "ValidationException"})
		var refused *idempotency.RefusedError
		if _, err := s.Acquire(t.Context(), request("k", "a", time.Minute)); err == nil || errors.As(err, &refused) {
			t.Errorf("got %v", err)
		}
		if n := d.count("UpdateItem"); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

func TestTheSDKsRetriesEndWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDynamo()
		g := newGuard(t, d.newTable(t, testTable), idempotency.Config{Lease: time.Second, CallTimeout: time.Minute})
		d.inject(fault{code: "ThrottlingException"}) // the SDK waits up to a second, then two, then four
		began := time.Now()
		_, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: "k"}, func(context.Context) (int, error) { return 0, nil })
		if took := time.Since(began); err == nil || took > time.Second {
			t.Errorf("got %v after %v, want an error within the lease of 1s", err, took)
		}
	})
}

func TestAStoreSaysWhatItLacks(t *testing.T) {
	if _, err := idempotency.NewDynamoStore(nil, "", idempotency.DynamoConfig{PartitionKey: "a", SortKey: "a"}); err == nil {
		t.Error("accepted")
	} else {
		for _, want := range []string{"no client", "no table name", "must differ"} {
			if !contains(err, want) {
				t.Errorf("says nothing of %q: %v", want, err)
			}
		}
	}
}

func contains(err error, words string) bool {
	return err != nil && strings.Contains(err.Error(), words)
}
