package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Call says which work [Do] is to do once.
type Call struct {
	// Key tells it from other work in Config.Namespace. It must not be empty.
	Key string
	// Payload is what calls with the same key must have in common, or they get a [MismatchError]; nil compares nothing.
	Payload []byte
}

var errNoKey = errors.New("idempotency: Call.Key is empty: it must tell this work from other work")

// Do does f once and returns its result: f's own, or, when another call with the same key has completed, that one's, which was
// kept as JSON. Use it where there is no message, or where the result matters.
//
// The claim lasts for Config.Lease and is renewed meanwhile, by a goroutine that has ended when Do returns; in a worker's
// handler it lasts as long as the message's visibility and is renewed with it. f's context ends with a cause that wraps
// [ErrClaimLost] when the claim can't be kept, and has the [Claim].
//
// The errors: f's own, after which the work may be tried again; [*InProgressError], with the time after which it may be;
// [*MismatchError]; [*StoreError], when the store couldn't be asked or the result not be recorded, in which case the result is
// returned along with it; [ErrClaimLost] when f came too late, and nothing of it counts; [*ResultOmittedError] and [ErrNoResult]
// when it was completed before, without a result that could be kept. In a worker's handler they may be returned as they are:
// each says what is to become of the message.
func Do[T any](ctx context.Context, g *Guard, call Call, f func(context.Context) (T, error)) (T, error) {
	var result T
	if call.Key == "" {
		return result, errNoKey
	}
	done, err := g.once(ctx, recordID(g.cfg.Namespace, call.Key), payloadHash(call.Payload), nil, func(ctx context.Context) ([]byte, error) {
		var err error
		if result, err = f(ctx); err != nil {
			return nil, err
		}
		encoded, err := json.Marshal(result)
		if err != nil { // it is done; that counts
			g.cfg.Logger.Error("idempotency: a result can't be encoded and isn't kept", "type", fmt.Sprintf("%T", result), "error", err)
		}
		return encoded, nil
	})
	if done != nil {
		return decodeResult[T](done)
	}
	return result, err
}

func decodeResult[T any](r *Record) (result T, err error) {
	if _, empty := any(result).(struct{}); empty {
		return result, nil
	}
	switch {
	case r.Omitted > 0:
		return result, &ResultOmittedError{Size: r.Omitted}
	case r.Result == nil:
		return result, ErrNoResult
	}
	if err := json.Unmarshal(r.Result, &result); err != nil {
		return result, fmt.Errorf("idempotency: completed before, but its result doesn't fit into %T: %w", result, err)
	}
	return result, nil
}
