package extended

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	tmtypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Sized is a payload whose length is known beforehand, such as an HTTP request's body with its Content-Length. [Client.Send]
// then fails with [ErrSize], and sends no message, when another number of bytes comes.
type Sized struct {
	io.Reader
	Size int64
}

// Send sends a message whose payload is read from r, up to [Config.MaxPayload], in memory of (PartsInFlight + 2) × PartSize. The input is SendMessage's, without a body.
//
// A payload that is small enough for SQS, and of characters that SQS takes, is sent in the message itself, unless
// [Config.AlwaysS3] is set; all else goes to S3 in parts, and the message is sent when S3 has confirmed all of it: the bytes
// and their CRC-32. If r fails, ctx ends or SQS refuses the message, the upload is aborted or the object removed again.
// A Read that blocks isn't interrupted.
//
// MD5OfMessageBody isn't in the answer for a payload that went through S3. On a FIFO queue, a message without a
// deduplication id gets the payload's SHA-256, at the cost of computing it.
func (c *Client) Send(ctx context.Context, in *sqs.SendMessageInput, r io.Reader, optFns ...func(*sqs.Options)) (*sqs.SendMessageOutput, error) {
	switch {
	case in == nil || r == nil:
		return nil, fmt.Errorf("%w: Send needs an input and a payload", ErrInvalid)
	case in.MessageBody != nil:
		return nil, fmt.Errorf("%w: the input has a MessageBody: Send takes the payload from its reader; use SendMessage", ErrInvalid)
	}
	in = c.traced(ctx, in)
	queueURL := aws.ToString(in.QueueUrl)
	threshold := c.threshold(ctx, queueURL)
	m := outgoing{body: "-", attributes: in.MessageAttributes, delay: in.DelaySeconds, fifo: isFIFO(queueURL)}
	if err := m.invalid(false); err != nil {
		return nil, err
	}
	source := c.payloads.newSource(ctx, r)
	if !c.payloads.cfg.AlwaysS3 {
		head, err := io.ReadAll(io.LimitReader(source, int64(max(threshold-attributesSize(in.MessageAttributes), 0))+1))
		if err != nil {
			return nil, source.failure(err)
		}
		if len(head) > 0 && len(head)+attributesSize(in.MessageAttributes) <= threshold && badCharacter(string(head)) < 0 {
			return c.sendInline(ctx, in, source, string(head), optFns)
		}
		source.unread(head)
	}
	return c.sendStream(ctx, in, source, threshold, optFns)
}

// sendInline sends what turned out to be small.
func (c *Client) sendInline(ctx context.Context, in *sqs.SendMessageInput, source *source, body string, optFns []func(*sqs.Options)) (*sqs.SendMessageOutput, error) {
	if err := source.complete(); err != nil {
		return nil, err
	}
	message := *in
	message.MessageBody = &body
	return c.Client.SendMessage(ctx, &message, optFns...)
}

func (c *Client) sendStream(ctx context.Context, in *sqs.SendMessageInput, source *source, threshold int, optFns []func(*sqs.Options)) (*sqs.SendMessageOutput, error) {
	m := outgoing{body: "-", attributes: in.MessageAttributes}
	if err := m.invalid(true); err != nil { // once more: one attribute less
		return nil, err
	}
	if err := c.pointerFits(in.MessageAttributes, c.payloads.cfg.MaxPayload, threshold); err != nil {
		return nil, err
	}
	if isFIFO(aws.ToString(in.QueueUrl)) && in.MessageDeduplicationId == nil {
		source.hash(sha256.New())
	}
	at, err := c.payloads.upload(ctx, source)
	if err != nil {
		return nil, err
	}
	return c.sendPointer(ctx, in, at, source.sha256, optFns)
}

// abortTime bounds the calls that undo an upload whose context has ended.
const abortTime = 30 * time.Second

// upload stores a stream. Whatever it fails with, nothing is left of it, as far as S3 can be reached.
func (p *payloads) upload(ctx context.Context, r *source) (Pointer, error) {
	at := Pointer{Bucket: p.cfg.Bucket, Key: p.cfg.newKey()}
	sums := p.sums()
	in := &transfermanager.UploadObjectInput{
		Bucket: &at.Bucket, Key: &at.Key, Body: r,
		ServerSideEncryption: tmtypes.ServerSideEncryption(p.cfg.Encryption), SSEKMSKeyID: optional(p.cfg.KMSKeyID), BucketKeyEnabled: p.bucketKey(),
		StorageClass: tmtypes.StorageClass(p.cfg.StorageClass), Tagging: p.tagging(), ExpectedBucketOwner: optional(p.cfg.ExpectedBucketOwner),
	}
	if sums == aws.RequestChecksumCalculationWhenSupported {
		in.ChecksumAlgorithm, in.ChecksumType = tmtypes.ChecksumAlgorithmCrc32, tmtypes.ChecksumTypeFullObject
	}
	out, err := p.transfers(sums).UploadObject(ctx, in)
	at.Size = r.n
	if err == nil {
		err = r.complete()
	}
	if err == nil && out.ChecksumType == tmtypes.ChecksumTypeFullObject && out.ChecksumCRC32 != nil && *out.ChecksumCRC32 != r.crc32() {
		err = fmt.Errorf("%w: sent %s, S3 has %s", ErrChecksum, r.crc32(), *out.ChecksumCRC32)
	}
	if err != nil {
		p.stats.storeFailures.Add(1)
		err = failed("put", at, explainPut(r.failure(err)))
		return at, errors.Join(err, p.undoPut(ctx, at, err))
	}
	p.stats.stored.Add(1)
	p.stats.storedBytes.Add(at.Size)
	return at, nil
}

// sums is when checksums are sent: as the S3 client is set, because a server that doesn't know them refuses the upload.
func (p *payloads) sums() aws.RequestChecksumCalculation {
	if c, ok := p.s3.(interface{ Options() s3.Options }); ok && c.Options().RequestChecksumCalculation == aws.RequestChecksumCalculationWhenRequired {
		return aws.RequestChecksumCalculationWhenRequired
	}
	return aws.RequestChecksumCalculationWhenSupported
}

func (p *payloads) transfers(sums aws.RequestChecksumCalculation) *transfermanager.Client {
	return transfermanager.New(p.s3, func(o *transfermanager.Options) {
		o.PartSizeBytes = p.cfg.PartSize
		o.MultipartUploadThreshold = p.cfg.PartSize // so that it doesn't buffer more than a part before it decides
		o.Concurrency = p.cfg.PartsInFlight
		o.FailTimeout = abortTime // without it, a cancelled upload would not be aborted
		o.RequestChecksumCalculation = sums
		o.GetObjectType = tmtypes.GetObjectRanges // parts are as large as their writer made them: up to all of the object
		o.MaxUploadParts = maxParts
	})
}

// source is a payload on its way to S3. It ends with the context, counts, sums, and stops at the cap.
type source struct {
	ctx    context.Context
	r      io.Reader
	n      int64
	most   int64
	sized  int64 // -1: not said
	crc    uint32
	sha    hash.Hash
	ahead  []byte // read, but not taken
	failed error  // ours or the reader's, which the SDK would wrap
}

func (p *payloads) newSource(ctx context.Context, r io.Reader) *source {
	s := &source{ctx: ctx, r: r, most: p.cfg.MaxPayload, sized: -1}
	switch sized := r.(type) {
	case Sized:
		s.sized = sized.Size
	case *Sized:
		s.sized = sized.Size
	}
	return s
}

func (s *source) Read(p []byte) (int, error) {
	if len(s.ahead) > 0 {
		n := copy(p, s.ahead)
		s.ahead = s.ahead[n:]
		return n, nil // counted when it was first read
	}
	if s.ctx.Err() != nil {
		return 0, s.fail(context.Cause(s.ctx))
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.crc = crc32.Update(s.crc, crc32.IEEETable, p[:n])
	if s.sha != nil {
		s.sha.Write(p[:n])
	}
	switch {
	case s.n > s.most:
		return n, s.fail(fmt.Errorf("%w: more than Config.MaxPayload, %d bytes", ErrTooLarge, s.most))
	case s.sized >= 0 && s.n > s.sized:
		return n, s.fail(fmt.Errorf("%w: declared %d, more came", ErrSize, s.sized))
	case err != nil && err != io.EOF:
		return n, s.fail(fmt.Errorf("extended: reading the payload: %w", err))
	}
	return n, err
}

func (s *source) fail(err error) error {
	s.failed = err
	return err
}

// failure is the payload's own error, if that is what ended the upload.
func (s *source) failure(err error) error {
	if s.failed != nil {
		return s.failed
	}
	return err
}

// unread puts back what was read to see how long it is.
func (s *source) unread(head []byte) { s.ahead = head }

// hash has a SHA-256 made of all of it, what was put back included.
func (s *source) hash(h hash.Hash) {
	h.Write(s.ahead)
	s.sha = h
}

func (s *source) sha256() string { return hex.EncodeToString(s.sha.Sum(nil)) }

// complete checks that all came that was declared.
func (s *source) complete() error {
	if s.sized >= 0 && s.n != s.sized {
		return s.fail(fmt.Errorf("%w: declared %d, %d came", ErrSize, s.sized, s.n))
	}
	return nil
}

// crc32 is as S3 writes it.
func (s *source) crc32() string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, s.crc))
}
