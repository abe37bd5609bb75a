package extended

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/worker"
)

type payloadsKey struct{}

var errNoMiddleware = errors.New("extended: the message's payload is in S3, and this context isn't of a handler under extended.Middleware: add it to the worker's Config.Middleware")

// Open returns a message's payload as a stream, whether it is in S3 or in the message; ctx is the handler's, and ends the
// stream when it ends. The stream must be closed; it isn't for concurrent use.
//
// What is up to [Config.PartSize] is fetched at once. What is larger is fetched in parts, PartsInFlight at a time and never
// more than two parts further ahead of the reader, so that memory is (PartsInFlight + 2) × PartSize whatever its size; that much of
// [Config.MemoryBudget] is the stream's until it is closed, and Open waits for it. A handler that
// opens a second stream before it has closed the first can wait for itself: give the budget room for both, or a timeout.
//
// The last Read returns io.EOF only if all that was declared has come and S3's checksum of the whole object fits, where S3 has
// one; else it returns [ErrSize] or [ErrChecksum]. Don't act on a payload for good before its end was seen. Errors are
// outcomes, as [Client.Middleware] describes: return them, wrapped or not.
func Open(ctx context.Context, m *worker.Message) (io.ReadCloser, error) {
	at, found, err := readPointer(m.Body, m.Attributes)
	if err == nil && !found {
		return io.NopCloser(strings.NewReader(m.Body)), nil
	}
	p, ok := ctx.Value(payloadsKey{}).(*payloads)
	if !ok {
		return nil, errNoMiddleware
	}
	r, err := p.openCounted(ctx, at, err)
	if err != nil {
		return nil, verdict(err)
	}
	return r, nil
}

// PointerOf tells where a message's payload is, and how large: of a message that was received with [Config.Stream]. False
// when the payload is in Body. The pointer hasn't been checked against the configuration; Open does that.
func PointerOf(m *worker.Message) (Pointer, bool) {
	at, found, err := readPointer(m.Body, m.Attributes)
	return at, found && err == nil
}

// Open is the function [Open] for messages that were received with [Client.ReceiveMessage] and [Config.Stream].
func (c *Client) Open(ctx context.Context, m *sqstypes.Message) (io.ReadCloser, error) {
	at, found, err := readPointer(aws.ToString(m.Body), m.MessageAttributes)
	if err == nil && !found {
		return io.NopCloser(strings.NewReader(aws.ToString(m.Body))), nil
	}
	return c.payloads.openCounted(ctx, at, err)
}

func (p *payloads) openCounted(ctx context.Context, at Pointer, err error) (io.ReadCloser, error) {
	var r io.ReadCloser
	if err == nil {
		err = p.check(at, p.cfg.MaxPayload, "Config.MaxPayload")
	}
	if err == nil {
		r, err = p.open(ctx, at)
	}
	p.count(err)
	return r, err
}

// open takes the stream's room and starts it.
func (p *payloads) open(ctx context.Context, at Pointer) (io.ReadCloser, error) {
	room := at.Size
	if parts := (at.Size + p.cfg.PartSize - 1) / p.cfg.PartSize; parts > 1 {
		room = min(parts, int64(p.cfg.PartsInFlight)+readAhead) * p.cfg.PartSize
	}
	if err := p.budget.acquire(ctx, room); err != nil {
		return nil, failed("get", at, err)
	}
	release := sync.OnceFunc(func() { p.budget.release(room) })
	var r io.ReadCloser
	var err error
	if at.Size <= p.cfg.PartSize {
		r, err = p.openSmall(ctx, at, release)
	} else {
		r, err = p.openLarge(ctx, at, release)
	}
	if err != nil {
		release()
		return nil, err
	}
	return r, nil
}

// openSmall fetches all of it: it can then be tried again, and is known to be right before the first byte is read.
func (p *payloads) openSmall(ctx context.Context, at Pointer, release func()) (io.ReadCloser, error) {
	body, err := p.load(ctx, at)
	if err != nil {
		return nil, err
	}
	return &small{strings.NewReader(body), release}, nil
}

type small struct {
	*strings.Reader
	release func()
}

func (s *small) Close() error {
	s.Reader = strings.NewReader("")
	s.release()
	return nil
}

func (p *payloads) openLarge(ctx context.Context, at Pointer, release func()) (io.ReadCloser, error) {
	head, err := p.head(ctx, at)
	if err != nil {
		return nil, failed("get", at, err)
	}
	return p.newDownload(ctx, at, aws.ToString(head.ETag), wholeSum(head), release), nil
}

// head asks for the object's size, version and checksum.
func (p *payloads) head(ctx context.Context, at Pointer) (*s3.HeadObjectOutput, error) {
	out, err := p.s3.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &at.Bucket, Key: &at.Key, ChecksumMode: s3types.ChecksumModeEnabled, ExpectedBucketOwner: p.owner(at),
	})
	if err != nil && status(err) == 404 {
		err = p.whichIsMissing(ctx, at, err)
	}
	if err != nil {
		return nil, explain(err)
	}
	if n := aws.ToInt64(out.ContentLength); n != at.Size {
		return nil, fmt.Errorf("%w: declared %d, the object has %d", ErrSize, at.Size, n)
	}
	return out, nil
}

// whichIsMissing asks again in a way that gets an answer with a body: the one to a HEAD has none, and doesn't tell a
// missing object from a missing bucket.
func (p *payloads) whichIsMissing(ctx context.Context, at Pointer, err error) error {
	in := p.getInput(at)
	in.Range = aws.String("bytes=0-0")
	out, again := p.s3.GetObject(ctx, in, quiet)
	if again == nil {
		_ = out.Body.Close()
		return fmt.Errorf("the object came while it was asked for: %v", err)
	}
	return again
}
