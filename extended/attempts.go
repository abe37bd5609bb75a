package extended

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// attempts watches each attempt of one SDK call. The call's error is that of its last attempt: a refusal can come after
// an attempt whose answer was lost, and which SQS took.
type attempts struct{ uncertain atomic.Bool }

// mayHaveBeenTaken reports, of a call that failed, whether SQS may have done it all the same.
func (a *attempts) mayHaveBeenTaken() bool { return a.uncertain.Load() }

// options returns the caller's options for the call, and this watch.
func (a *attempts) options(optFns []func(*sqs.Options)) []func(*sqs.Options) {
	watch := middleware.DeserializeMiddlewareFunc("sqsworker:Attempts", a.observe)
	return append(optFns[:len(optFns):len(optFns)], func(o *sqs.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Deserialize.Add(watch, middleware.After) // next to the transport
		})
	})
}

func (a *attempts) observe(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
	out middleware.DeserializeOutput, md middleware.Metadata, err error,
) {
	out, md, err = next.HandleDeserialize(ctx, in)
	response, answered := out.RawResponse.(*smithyhttp.Response)
	switch {
	case err != nil:
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" { // not even connected
			a.uncertain.Store(true)
		}
	case !answered || response.StatusCode >= 500 || response.StatusCode < 300:
		a.uncertain.Store(true) // if it was taken and the call fails all the same, its answer couldn't be read
	}
	return out, md, err
}
