package worker

import (
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// readBody hides from net/http that a receive's body can write itself (io.WriterTo), so that it is read instead.
//
// The SDK closes the request's body as soon as the answer's header arrives, and from then on smithy's WriteTo reports
// io.EOF. If net/http hasn't come round to the last read of the body by then, because the answer was quick or the CPU is
// throttled, it takes that for a failed write and closes the connection under the answer: "use of closed network
// connection", and the ten messages in it stay invisible for a whole visibility. Read reports the end as it should.
// (smithy-go v1.28.9, transport/http/internal/io/safe.go.)
func readBody(o *sqs.Options) {
	o.HTTPClient = bodyReader{o.HTTPClient}
}

type bodyReader struct{ client sqs.HTTPClient }

// Unwrap is the client that does the work.
func (c bodyReader) Unwrap() sqs.HTTPClient { return c.client }

func (c bodyReader) Do(req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = struct{ io.ReadCloser }{req.Body} // the request is this attempt's own
	}
	return c.client.Do(req)
}
