package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// forceShortPoll puts "WaitTimeSeconds":0 into a receive. The SDK leaves a zero out, and SQS then uses the
// queue's own wait time, so without this nobody could short-poll a queue that is set to long polling.
func forceShortPoll(o *sqs.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		// First in the Build step: the body has just been serialized, its length not yet been taken.
		return stack.Build.Add(middleware.BuildMiddlewareFunc("sqsworker:ShortPoll", addZeroWait), middleware.Before)
	})
}

func addZeroWait(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (
	out middleware.BuildOutput, md middleware.Metadata, err error,
) {
	req, ok := in.Request.(*smithyhttp.Request)
	if !ok {
		return out, md, fmt.Errorf("worker: the receive isn't an HTTP request but %T: short polling can't be forced with this client", in.Request)
	}
	if in.Request, err = zeroWaitBody(req); err != nil {
		return out, md, err
	}
	return next.HandleBuild(ctx, in)
}

func zeroWaitBody(req *smithyhttp.Request) (*smithyhttp.Request, error) {
	body, err := io.ReadAll(req.GetStream())
	if err != nil {
		return nil, fmt.Errorf("worker: reading the receive request: %w", err)
	}
	body = bytes.TrimSpace(body)
	if len(body) < 2 || body[0] != '{' {
		return nil, fmt.Errorf("worker: the receive request isn't JSON: short polling can't be forced with this client")
	}
	comma := ","
	if bytes.Equal(body, []byte("{}")) {
		comma = ""
	}
	patched := append([]byte(`{"WaitTimeSeconds":0`+comma), body[1:]...)
	return req.SetStream(bytes.NewReader(patched))
}
