package extended

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// S3 is what this package calls. *s3.Client satisfies it.
type S3 interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error)
	DeleteObject(context.Context, *s3.DeleteObjectInput, ...func(*s3.Options)) (*s3.DeleteObjectOutput, error)
	DeleteObjects(context.Context, *s3.DeleteObjectsInput, ...func(*s3.Options)) (*s3.DeleteObjectsOutput, error)
	CreateMultipartUpload(context.Context, *s3.CreateMultipartUploadInput, ...func(*s3.Options)) (*s3.CreateMultipartUploadOutput, error)
	UploadPart(context.Context, *s3.UploadPartInput, ...func(*s3.Options)) (*s3.UploadPartOutput, error)
	CompleteMultipartUpload(context.Context, *s3.CompleteMultipartUploadInput, ...func(*s3.Options)) (*s3.CompleteMultipartUploadOutput, error)
	AbortMultipartUpload(context.Context, *s3.AbortMultipartUploadInput, ...func(*s3.Options)) (*s3.AbortMultipartUploadOutput, error)
	ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error)
}

// Client is an *sqs.Client whose messages may be up to 2 GiB: SendMessage, SendMessageBatch, ReceiveMessage, DeleteMessage,
// DeleteMessageBatch, ChangeMessageVisibility and ChangeMessageVisibilityBatch take and return what they do in the SDK, with
// payloads in S3 behind them; all other methods are the SDK's own. Options for a call are passed on to the SDK.
//
// It is safe for concurrent use. It starts no goroutine that outlives a call.
type Client struct {
	*sqs.Client
	payloads *payloads
	limits   *limits
	deferred bool
}

var _ worker.Client = (*Client)(nil)

// New returns a client; it makes no call. The error names everything that is wrong with the configuration.
func New(q *sqs.Client, objects S3, cfg Config) (*Client, error) {
	var errs []error
	if q == nil {
		errs = append(errs, errors.New("extended: no SQS client: pass an *sqs.Client"))
	}
	p, err := newPayloads(objects, cfg)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return &Client{Client: q, payloads: p, limits: &limits{known: map[string]limit{}}}, nil
}

// Middleware is [Client.Middleware] for a service that only consumes, and gives its worker a plain *sqs.Client. The worker
// must receive the attributes SQSLargePayloadSize and ExtendedPayloadSize, as it does unless its MessageAttributes are set.
// What is wrong with the configuration, worker.New reports.
func Middleware(objects S3, cfg Config) worker.Middleware {
	p, err := newPayloads(objects, cfg)
	if err != nil {
		return func(next worker.Handler) worker.Handler { return &handler{next: next, wrong: err} }
	}
	return p.middleware
}

// ForWorker is this client for a worker that has [Client.Middleware]: ReceiveMessage asks for the reserved attributes and
// leaves payloads to the middleware. Everything else is as before; configuration, budget and counts are shared.
func (c *Client) ForWorker() *Client {
	w := *c
	w.deferred = true
	return &w
}

// Middleware fetches the payload of each message for the handlers inside it, in the message's own slot and lease.
//
// They get a copy of the message with the payload as Body, without the reserved attribute (with [Config.Stream], the
// message as it was received, for [Open]). Its memory is [Config.MemoryBudget]'s until the handler has returned. What goes
// wrong is the outcome of this message: [ErrMissing], [ErrForeign], [ErrMalformed], [ErrTooLarge] and [ErrSize] are
// permanent; a denied, throttled or broken call is a failure that is retried with the worker's back-off. Nothing of it
// deletes the message, unless [Config.IgnoreMissing] says so.
//
// When the handler succeeded (or returned [worker.ErrDuplicate]) and SQS has confirmed the deletion, the object is removed,
// in DeleteObjects calls of up to 1,000, unless [Config.KeepPayloads] is set. A failure is counted and left to the
// lifecycle rule. The object of a message that was permanently failed is kept: its copy in a dead-letter queue needs it.
//
// List it outside of middleware that reads bodies; what is outside of it (say, an idempotency record by message id, which
// saves fetching what was completed before) sees the pointer.
func (c *Client) Middleware() worker.Middleware { return c.payloads.middleware }

// Stats are counts since the client was made, and how things stand now.
func (c *Client) Stats() Stats { return c.payloads.snapshot() }
