package extended

import (
	"context"
	"errors"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SendMessageBatch sends up to ten messages. Payloads above [Config.Threshold] go through S3; so do the largest others until
// the batch is within [Config.BatchLimit], or it is split ([Config.Fit]; also when nothing is left that could go through S3).
//
// One entry's trouble is its own, as with SQS: an entry that SQS would refuse or whose payload couldn't be stored is in
// Failed, and the others are sent. In Failed, the Codes InvalidMessage (sender's fault) and PayloadNotStored are this
// package's. An entry that SQS refused loses its object again; one that failed inside SQS, or in a call whose answer was lost,
// keeps it, because it may have been accepted: see [Stats].Orphans.
func (c *Client) SendMessageBatch(ctx context.Context, in *sqs.SendMessageBatchInput, optFns ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error) {
	if in == nil {
		return c.Client.SendMessageBatch(ctx, in, optFns...)
	}
	if err := invalidBatch(in.Entries); err != nil {
		return nil, err
	}
	b := c.newBatch(ctx, c.tracedBatch(ctx, in), optFns)
	b.fit()
	b.store(ctx)
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), b.abandon(ctx))
	}
	return b.send(ctx)
}

// batch is one SendMessageBatch on its way.
type batch struct {
	c         *Client
	in        *sqs.SendMessageBatchInput
	optFns    []func(*sqs.Options)
	threshold int
	items     []*item
	out       sqs.SendMessageBatchOutput
}

// item is one entry of a batch.
type item struct {
	entry     types.SendMessageBatchRequestEntry // as it was given
	size      int                                // as it will be sent
	throughS3 bool
	stored    bool
	at        Pointer
	failed    bool
}

func (c *Client) newBatch(ctx context.Context, in *sqs.SendMessageBatchInput, optFns []func(*sqs.Options)) *batch {
	queueURL := aws.ToString(in.QueueUrl)
	b := &batch{c: c, in: in, optFns: optFns, threshold: c.threshold(ctx, queueURL), items: make([]*item, len(in.Entries))}
	for i, e := range in.Entries {
		x := &item{entry: e, size: len(aws.ToString(e.MessageBody)) + attributesSize(e.MessageAttributes)}
		b.items[i] = x
		m := outgoing{aws.ToString(e.MessageBody), e.MessageAttributes, e.DelaySeconds, isFIFO(queueURL)}
		through, err := c.route(ctx, queueURL, &m)
		if err != nil {
			b.fail(x, "InvalidMessage", err.Error(), true)
		} else if through {
			b.offload(x)
		}
	}
	return b
}

func (b *batch) offload(x *item) {
	x.throughS3 = true
	x.size = b.c.pointerSize(x.entry.MessageAttributes, int64(len(aws.ToString(x.entry.MessageBody))))
}

func (b *batch) fail(x *item, code, message string, senderFault bool) {
	x.failed = true
	b.out.Failed = append(b.out.Failed, types.BatchResultErrorEntry{Id: x.entry.Id, Code: &code, Message: &message, SenderFault: senderFault})
}

func (b *batch) total() (n int) {
	for _, x := range b.items {
		if !x.failed {
			n += x.size
		}
	}
	return n
}

// fit sends the largest bodies through S3 until the batch is small enough.
func (b *batch) fit() {
	for b.c.payloads.cfg.Fit == FitOffload && b.total() > b.c.payloads.cfg.BatchLimit {
		x := b.largest()
		if x == nil {
			return // nothing left that would make it smaller: it will be split
		}
		b.offload(x)
	}
}

func (b *batch) largest() (found *item) {
	for _, x := range b.items {
		n := len(aws.ToString(x.entry.MessageBody))
		switch {
		case x.failed || x.throughS3 || len(x.entry.MessageAttributes) >= maxAttributes:
		case b.c.pointerSize(x.entry.MessageAttributes, int64(n)) >= x.size:
		case found == nil || n > len(aws.ToString(found.entry.MessageBody)):
			found = x
		}
	}
	return found
}

// store puts the payloads, side by side.
func (b *batch) store(ctx context.Context) {
	var wait sync.WaitGroup
	errs := make([]error, len(b.items))
	for i, x := range b.items {
		if x.throughS3 && !x.failed {
			wait.Go(func() { x.at, errs[i] = b.c.payloads.put(ctx, *x.entry.MessageBody) })
		}
	}
	wait.Wait()
	for i, x := range b.items {
		switch {
		case !x.throughS3 || x.failed:
		case errs[i] != nil:
			b.fail(x, "PayloadNotStored", errs[i].Error(), errors.Is(errs[i], ErrTooLarge))
		default:
			x.stored = true
		}
	}
}

// abandon removes what was stored for a batch that won't be sent.
func (b *batch) abandon(ctx context.Context) error {
	var errs []error
	for _, x := range b.items {
		if x.stored {
			errs = append(errs, b.c.payloads.compensate(ctx, x.at))
		}
	}
	return errors.Join(errs...)
}

// send makes the call, or several if the batch doesn't fit into one.
func (b *batch) send(ctx context.Context) (*sqs.SendMessageBatchOutput, error) {
	sent := false
	for rest := b.remaining(); len(rest) > 0; rest = b.remaining() {
		n, size := 0, 0
		for n < len(rest) && (n == 0 || size+rest[n].size <= b.c.payloads.cfg.BatchLimit) {
			size += rest[n].size
			n++
		}
		err := b.call(ctx, rest[:n])
		if err != nil && !sent {
			return nil, errors.Join(err, b.abandon(ctx)) // nothing was sent: it is the whole call's failure
		}
		if err != nil {
			b.failRest(ctx, rest[n:], err)
			break
		}
		sent = true
	}
	return &b.out, nil
}

// remaining are the entries that have no result yet.
func (b *batch) remaining() (rest []*item) {
	for _, x := range b.items {
		if !x.failed && !b.succeeded(x) {
			rest = append(rest, x)
		}
	}
	return rest
}

func (b *batch) succeeded(x *item) bool {
	for _, s := range b.out.Successful {
		if aws.ToString(s.Id) == aws.ToString(x.entry.Id) {
			return true
		}
	}
	return false
}

// failRest reports the entries that weren't sent because a call before them failed.
func (b *batch) failRest(ctx context.Context, rest []*item, err error) {
	for _, x := range rest {
		if x.stored {
			_ = b.c.payloads.compensate(ctx, x.at) // counted and logged
			x.stored = false
		}
		b.fail(x, callCode(err), "not sent, because an earlier part of the batch failed: "+err.Error(), false)
	}
}

func callCode(err error) string {
	if c := code(err); c != "" {
		return c
	}
	return "CallFailed"
}

// call sends entries in one SendMessageBatch and sees to each one's result. If the whole call fails after others have been
// made, its entries are reported as failed.
func (b *batch) call(ctx context.Context, items []*item) error {
	in := *b.in
	in.Entries = make([]types.SendMessageBatchRequestEntry, len(items))
	for i, x := range items {
		in.Entries[i] = b.wire(x)
	}
	var watch attempts
	out, err := b.c.Client.SendMessageBatch(ctx, &in, watch.options(b.optFns)...)
	if err != nil {
		for _, x := range items {
			if x.stored {
				err = errors.Join(err, b.c.payloads.notSent(ctx, x.at, watch.mayHaveBeenTaken()))
				x.stored = false
			}
			b.fail(x, callCode(err), err.Error(), false)
		}
		return err
	}
	b.results(ctx, items, out)
	b.out.ResultMetadata = out.ResultMetadata
	return nil
}

// wire is an entry as it is sent.
func (b *batch) wire(x *item) types.SendMessageBatchRequestEntry {
	e := x.entry
	if !x.stored {
		return e
	}
	form := b.c.payloads.cfg.Form
	e.MessageBody = aws.String(form.body(x.at))
	e.MessageAttributes = with(e.MessageAttributes, form.attribute(), form.size(x.at.Size))
	if isFIFO(aws.ToString(b.in.QueueUrl)) && e.MessageDeduplicationId == nil {
		e.MessageDeduplicationId = aws.String(deduplicationID(*x.entry.MessageBody))
	}
	return e
}

func (b *batch) results(ctx context.Context, items []*item, out *sqs.SendMessageBatchOutput) {
	byID := map[string]*item{}
	for _, x := range items {
		byID[aws.ToString(x.entry.Id)] = x
	}
	for _, s := range out.Successful {
		x := byID[aws.ToString(s.Id)]
		delete(byID, aws.ToString(s.Id))
		if x != nil && x.stored {
			s.MD5OfMessageBody = bodyMD5(*x.entry.MessageBody)
			s.MD5OfMessageAttributes = attributesMD5(x.entry.MessageAttributes)
		}
		b.out.Successful = append(b.out.Successful, s)
	}
	for _, f := range out.Failed {
		if x := byID[aws.ToString(f.Id)]; x != nil {
			delete(byID, aws.ToString(f.Id))
			x.failed = true
			if x.stored {
				_ = b.c.payloads.notSent(ctx, x.at, !f.SenderFault) // counted and logged
			}
		}
		b.out.Failed = append(b.out.Failed, f)
	}
	for _, x := range byID { // an answer without this entry
		if x.stored {
			_ = b.c.payloads.notSent(ctx, x.at, true)
		}
		b.fail(x, "NoResult", "SQS answered the batch but not this entry", false)
	}
}
