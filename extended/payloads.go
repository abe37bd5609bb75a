package extended

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Stats are what a [Client] has done. Counts only grow.
type Stats struct {
	// Now.
	InMemory int64 // bytes of Config.MemoryBudget in use
	Waiting  int   // messages and streams that wait for room in it

	Stored         int64 // payloads put
	StoredBytes    int64
	StoreFailures  int64 // payloads that couldn't be put
	Fetched        int64 // payloads loaded or opened
	FetchedBytes   int64 // of loaded ones, and of opened ones as far as they were read
	Missing        int64 // fetches that found no object
	LookAlikes     int64 // bodies in a worker that look like a pointer but have no reserved attribute: taken as bodies
	Refused        int64 // pointers that were malformed, foreign, too large, or lied about the size
	FetchFailures  int64 // all other failed fetches: denied, throttled, broken
	LeftOut        int64 // messages that ReceiveMessage left out, for whatever of these
	Removed        int64 // objects removed after their message's deletion
	RemoveFailures int64 // objects that couldn't be, left to the lifecycle rule
	RemoveCalls    int64 // DeleteObjects calls for them
	Compensated    int64 // objects removed because their message was refused
	Orphans        int64 // objects of messages that weren't sent, or perhaps weren't, left to the lifecycle rule
}

type counters struct {
	stored, storedBytes, storeFailures       atomic.Int64
	fetched, fetchedBytes                    atomic.Int64
	missing, refused, fetchFailures, leftOut atomic.Int64
	removed, removeFailures, removeCalls     atomic.Int64
	compensated, orphans, lookAlikes         atomic.Int64
}

// payloads is the S3 side: what is stored, fetched and removed.
type payloads struct {
	cfg     Config
	s3      S3
	budget  *budget
	remover *remover
	stats   counters
}

func newPayloads(objects S3, cfg Config) (*payloads, error) {
	cfg, err := cfg.withDefaults()
	if objects == nil {
		err = errors.Join(errors.New("extended: no S3 client: pass an *s3.Client"), err)
	}
	if err != nil {
		return nil, err
	}
	p := &payloads{cfg: cfg, s3: objects, budget: newBudget(cfg.MemoryBudget)}
	p.remover = newRemover(p)
	p.observe()
	return p, nil
}

func (p *payloads) snapshot() Stats {
	c := &p.stats
	s := Stats{
		Stored: c.stored.Load(), StoredBytes: c.storedBytes.Load(), StoreFailures: c.storeFailures.Load(),
		Fetched: c.fetched.Load(), FetchedBytes: c.fetchedBytes.Load(),
		Missing: c.missing.Load(), Refused: c.refused.Load(), FetchFailures: c.fetchFailures.Load(), LeftOut: c.leftOut.Load(),
		Removed: c.removed.Load(), RemoveFailures: c.removeFailures.Load(), RemoveCalls: c.removeCalls.Load(),
		LookAlikes: c.lookAlikes.Load(), Compensated: c.compensated.Load(), Orphans: c.orphans.Load(),
	}
	s.InMemory, s.Waiting = p.budget.now()
	return s
}

// put stores a payload that is in memory.
func (p *payloads) put(ctx context.Context, body string) (Pointer, error) {
	at := Pointer{Bucket: p.cfg.Bucket, Key: p.cfg.newKey(), Size: int64(len(body))}
	if at.Size > p.cfg.MaxPayload {
		p.stats.storeFailures.Add(1)
		return at, failed("put", at, fmt.Errorf("%w: %d bytes, Config.MaxPayload is %d", ErrTooLarge, at.Size, p.cfg.MaxPayload))
	}
	_, err := p.s3.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &at.Bucket, Key: &at.Key, Body: strings.NewReader(body), ContentLength: &at.Size,
		ServerSideEncryption: p.cfg.Encryption, SSEKMSKeyId: optional(p.cfg.KMSKeyID), BucketKeyEnabled: p.bucketKey(),
		StorageClass: p.cfg.StorageClass, Tagging: p.tagging(), ExpectedBucketOwner: optional(p.cfg.ExpectedBucketOwner),
	})
	if err != nil {
		p.stats.storeFailures.Add(1)
		err = failed("put", at, explainPut(err))
		return at, errors.Join(err, p.undoPut(ctx, at, err))
	}
	p.stats.stored.Add(1)
	p.stats.storedBytes.Add(at.Size)
	return at, nil
}

// explainPut adds what to do about S3's error.
func explainPut(err error) error {
	if status(err) == 403 {
		return fmt.Errorf("%w: allow s3:PutObject (s3:PutObjectTagging with Config.Tags), and kms:GenerateDataKey and kms:Decrypt on the key", err)
	}
	return err
}

// undoPut removes what a failed put may have left: its answer may be what was lost, and a retry's refusal (no such upload)
// the sign of it. Who may not write has left nothing.
func (p *payloads) undoPut(ctx context.Context, at Pointer, err error) error {
	if status(err) == 403 || code(err) == "NoSuchBucket" {
		return nil
	}
	return p.compensate(ctx, at)
}

func (p *payloads) bucketKey() *bool {
	if p.cfg.BucketKey {
		return aws.Bool(true)
	}
	return nil
}

func (p *payloads) tagging() *string {
	if len(p.cfg.Tags) == 0 {
		return nil
	}
	tags := url.Values{}
	for k, v := range p.cfg.Tags {
		tags.Set(k, v)
	}
	return aws.String(tags.Encode())
}

// cleanupTime bounds a removal that goes on after the caller's context has ended.
const cleanupTime = 10 * time.Second

// afterwards is a context for what has to be done even if the caller's has ended.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}

// compensate removes the object of a message that SQS refused. What can't be removed is reported.
func (p *payloads) compensate(ctx context.Context, at Pointer) error {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	_, err := p.s3.DeleteObject(ctx, &s3.DeleteObjectInput{
		Bucket: &at.Bucket, Key: &at.Key, ExpectedBucketOwner: optional(p.cfg.ExpectedBucketOwner),
	})
	if err != nil {
		return p.orphaned(at, err)
	}
	p.stats.compensated.Add(1)
	return nil
}

// orphaned reports an object that is left to the lifecycle rule.
func (p *payloads) orphaned(at Pointer, why error) error {
	p.stats.orphans.Add(1)
	p.cfg.Logger.Warn("a payload was stored for a message that wasn't sent, or may not have been: left to the bucket's lifecycle rule",
		"bucket", at.Bucket, "key", at.Key, "error", why)
	return &OrphanError{Pointer: at, Err: why}
}

// check holds a pointer against the places and the caps, before S3 is called.
func (p *payloads) check(at Pointer, most int64, field string) error {
	err := p.cfg.allowed(at)
	if err == nil && at.Size > most {
		err = fmt.Errorf("%w: %d bytes, %s is %d", ErrTooLarge, at.Size, field, most)
		if field == "Config.MaxBody" {
			err = fmt.Errorf("%w; raise it, or read the payload with Config.Stream and extended.Open", err)
		}
	}
	if err != nil {
		return failed("get", at, err)
	}
	return nil
}

// count notes how a fetch ended.
func (p *payloads) count(err error) {
	switch {
	case err == nil:
		p.stats.fetched.Add(1)
	case errors.Is(err, ErrMissing):
		p.stats.missing.Add(1)
	case permanent(err):
		p.stats.refused.Add(1)
	default:
		p.stats.fetchFailures.Add(1)
	}
}

// bodyAttempts is how often an object is asked for whose body broke off or was garbled. The SDK retries calls, not bodies.
const bodyAttempts = 3

// load fetches a payload into memory. The pointer has been checked.
func (p *payloads) load(ctx context.Context, at Pointer) (body string, err error) {
	for attempt := 1; ; attempt++ {
		var again bool
		body, again, err = p.tryLoad(ctx, at)
		if err == nil || !again || attempt == bodyAttempts || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return "", failed("get", at, err)
	}
	p.stats.fetchedBytes.Add(at.Size)
	return body, nil
}

func (p *payloads) tryLoad(ctx context.Context, at Pointer) (body string, again bool, err error) {
	out, err := p.s3.GetObject(ctx, p.getInput(at), quiet)
	if err != nil {
		return "", false, explain(err)
	}
	defer out.Body.Close()
	if n := aws.ToInt64(out.ContentLength); out.ContentLength != nil && n != at.Size {
		return "", false, fmt.Errorf("%w: declared %d, the object has %d", ErrSize, at.Size, n)
	}
	var b strings.Builder
	b.Grow(int(at.Size))
	// The SDK checks S3's checksum when it sees the end, so read up to it, and no further than one byte too far.
	n, err := io.Copy(&b, io.LimitReader(out.Body, at.Size+1))
	switch {
	case err != nil && strings.Contains(err.Error(), "checksum did not match"):
		return "", true, fmt.Errorf("%w: %w", ErrChecksum, err)
	case err != nil:
		return "", true, fmt.Errorf("reading the object: %w", err)
	case n > at.Size:
		return "", false, fmt.Errorf("%w: declared %d, the object has more", ErrSize, at.Size)
	case n < at.Size:
		return "", true, fmt.Errorf("reading the object: %w after %d of %d bytes", io.ErrUnexpectedEOF, n, at.Size)
	}
	return b.String(), false, nil
}

func (p *payloads) getInput(at Pointer) *s3.GetObjectInput {
	return &s3.GetObjectInput{
		Bucket: &at.Bucket, Key: &at.Key, ChecksumMode: s3types.ChecksumModeEnabled, ExpectedBucketOwner: p.owner(at),
	}
}

// owner is the expected one for our own bucket; what Config.Allow adds may be another account's.
func (p *payloads) owner(at Pointer) *string {
	if at.Bucket != p.cfg.Bucket {
		return nil
	}
	return optional(p.cfg.ExpectedBucketOwner)
}

// quiet keeps the SDK from logging, for each object, that a server has no checksum for it.
func quiet(o *s3.Options) { o.DisableLogOutputChecksumValidationSkipped = true }
