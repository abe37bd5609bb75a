package worker

import (
	"context"
	"io"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// plainBody hides from net/http that a receive's body can write itself (io.WriterTo).
//
// The SDK closes the request's body as soon as the answer's header arrives, and from then on smithy's WriteTo reports
// io.EOF. If net/http hasn't come round to the last read of the body by then, because the answer was quick or the CPU is
// throttled, it takes that for a failed write and closes the connection under the answer: "use of closed network
// connection", and the ten messages in it stay invisible for a whole visibility. Read, to which net/http falls back, reports
// the end as it should. (smithy-go v1.28.9, transport/http/internal/io/safe.go.)
func plainBody(o *sqs.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		// Last in the Finalize step: the body has been hashed and signed, which is cheaper while it can write itself.
		return stack.Finalize.Add(middleware.FinalizeMiddlewareFunc("sqsworker:PlainBody", hideWriterTo), middleware.After)
	})
}

func hideWriterTo(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
	if req, ok := in.Request.(*smithyhttp.Request); ok {
		if body, ok := req.GetStream().(io.ReadSeeker); ok {
			if plain, err := req.SetStream(struct{ io.ReadSeeker }{body}); err == nil {
				in.Request = plain
			}
		}
	}
	return next.HandleFinalize(ctx, in)
}
