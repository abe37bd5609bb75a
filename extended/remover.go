package extended

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

const (
	// removeMost is the most that one DeleteObjects takes.
	removeMost = 1000
	// removeLinger is how long an object waits for others to be removed with.
	removeLinger = 100 * time.Millisecond
)

// remover gathers objects to be removed into DeleteObjects calls. It has no goroutine: the first who comes waits for
// the others, takes what has gathered and makes the call; they wait for its result.
type remover struct {
	p *payloads

	mu      sync.Mutex
	pending []*removal
	full    chan struct{} // of the leader that gathers; closed when a call's worth is there. nil without a leader
}

type removal struct {
	at   Pointer
	done chan error // gets one result
}

// errLeft: who would have made the call has gone. Try again.
var errLeft = errors.New("extended: the removal was given up")

func newRemover(p *payloads) *remover { return &remover{p: p} }

// remove removes one object, along with others, until ctx ends.
func (r *remover) remove(ctx context.Context, at Pointer) error {
	for {
		err := r.join(ctx, at)
		if ctx.Err() != nil && err != nil {
			return context.Cause(ctx)
		}
		if !errors.Is(err, errLeft) {
			return err
		}
	}
}

func (r *remover) join(ctx context.Context, at Pointer) error {
	x := &removal{at, make(chan error, 1)}
	r.mu.Lock()
	r.pending = append(r.pending, x)
	lead := r.full == nil
	if lead {
		r.full = make(chan struct{})
	}
	full := r.full
	if len(r.pending) >= removeMost {
		close(full)
		r.full = nil // whoever comes next leads the next call
	}
	batch := r.pending
	if r.full == nil {
		r.pending = nil
	}
	r.mu.Unlock()
	if len(batch) >= removeMost && !lead {
		r.call(ctx, batch)
	} else if lead {
		r.lead(ctx, full)
	}
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lead waits for company and makes the call, unless the batch filled up and was taken.
func (r *remover) lead(ctx context.Context, full chan struct{}) {
	timer := time.NewTimer(removeLinger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-full:
		return
	case <-ctx.Done():
	}
	r.mu.Lock()
	if r.full != full {
		r.mu.Unlock()
		return
	}
	batch := r.pending
	r.pending, r.full = nil, nil
	r.mu.Unlock()
	r.call(ctx, batch)
}

// call removes a batch and tells everybody. If the caller's own context ended, the others are told to try again.
func (r *remover) call(ctx context.Context, batch []*removal) {
	pointers := make([]Pointer, len(batch))
	for i, x := range batch {
		pointers[i] = x.at
	}
	errs := r.p.deleteObjects(ctx, pointers)
	for i, x := range batch {
		if ctx.Err() != nil && errs[i] != nil {
			errs[i] = errLeft
		}
		x.done <- errs[i]
	}
}

// deleteObjects makes one call for each bucket, and returns each object's result.
func (p *payloads) deleteObjects(ctx context.Context, pointers []Pointer) []error {
	errs := make([]error, len(pointers))
	byBucket := map[string][]int{}
	for i, at := range pointers {
		byBucket[at.Bucket] = append(byBucket[at.Bucket], i)
	}
	for bucket, indexes := range byBucket {
		in := &s3.DeleteObjectsInput{
			Bucket: &bucket, ExpectedBucketOwner: p.owner(pointers[indexes[0]]), Delete: &s3types.Delete{Quiet: aws.Bool(true)},
		}
		keys := map[string]bool{}
		for _, i := range indexes {
			if key := pointers[i].Key; !keys[key] {
				keys[key] = true
				in.Delete.Objects = append(in.Delete.Objects, s3types.ObjectIdentifier{Key: aws.String(key)})
			}
		}
		p.stats.removeCalls.Add(1)
		out, err := p.s3.DeleteObjects(ctx, in)
		for _, i := range indexes {
			errs[i] = removalError(pointers[i], out, err)
		}
	}
	return errs
}

// removalError is one object's result. That it didn't exist is none: S3 says so itself.
func removalError(at Pointer, out *s3.DeleteObjectsOutput, err error) error {
	if err != nil {
		if status(err) == 403 {
			err = fmt.Errorf("%w: allow s3:DeleteObject, or set Config.KeepPayloads", err)
		}
		return failed("delete", at, err)
	}
	failure := slices.IndexFunc(out.Errors, func(e s3types.Error) bool { return aws.ToString(e.Key) == at.Key })
	if failure < 0 || aws.ToString(out.Errors[failure].Code) == "NoSuchKey" {
		return nil
	}
	e := out.Errors[failure]
	return failed("delete", at, fmt.Errorf("%s: %s", aws.ToString(e.Code), aws.ToString(e.Message)))
}

// removed counts a removal.
func (p *payloads) removed(err error) {
	if err != nil {
		p.stats.removeFailures.Add(1)
		return
	}
	p.stats.removed.Add(1)
}

// removeAll removes the objects of messages that SQS has deleted, those in places that may be reached. Failures are
// counted and logged: nobody can do anything about them but the lifecycle rule.
func (p *payloads) removeAll(ctx context.Context, pointers []Pointer) {
	if p.cfg.KeepPayloads {
		return
	}
	pointers = slices.DeleteFunc(pointers, func(at Pointer) bool {
		err := p.cfg.allowed(at)
		if err != nil {
			p.stats.refused.Add(1)
			p.cfg.Logger.Warn("a deleted message's payload is not ours to remove", "error", err)
		}
		return err != nil
	})
	if len(pointers) == 0 {
		return
	}
	ctx, cancel := afterwards(ctx)
	defer cancel()
	for _, err := range p.deleteObjects(ctx, pointers) {
		p.removed(err)
		if err != nil {
			p.cfg.Logger.Warn("a deleted message's payload couldn't be removed: left to the bucket's lifecycle rule", "error", err)
		}
	}
}
