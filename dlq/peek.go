package dlq

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// PeekClient is what [Peek] calls. *sqs.Client has it. It needs sqs:ReceiveMessage, sqs:ChangeMessageVisibility and
// sqs:GetQueueAttributes on the dead-letter queue, sqs:DeleteMessage for [Item.Delete], and kms:Decrypt on its key; on the key of the
// source, too, for what was moved from there.
type PeekClient interface {
	receiveClient
	attributesClient
	DeleteMessageBatch(context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error)
}

// maxHeld is how many messages are held at once at most: SQS allows about 120,000 in flight, and an empty answer is all that it says at
// the limit.
const maxHeld = 100_000

// PeekConfig tunes [Peek]. The zero value is ready for production.
type PeekConfig struct {
	// Limit is how many messages are looked at. From 1 to 100,000, all of which are held until the end; default 100.
	Limit int
	// Visibility is for how long messages stay invisible if this process dies. Whole seconds from 10 s to 12 h; default 1 minute.
	Visibility time.Duration
	// Payloads reads payloads that are in S3, for [Item.Payload]. Default none: bodies are as they are.
	Payloads Payloads
	// Logger takes a warning when messages can't be held or given back. Default slog.Default().
	Logger *slog.Logger
}

func (c PeekConfig) withDefaults() (PeekConfig, error) {
	var errs []error
	if c.Limit < 0 || c.Limit > maxHeld {
		errs = append(errs, fmt.Errorf("dlq: PeekConfig.Limit is %d: must be from 1 to %d", c.Limit, maxHeld))
	}
	errs = append(errs, checkVisibility("PeekConfig", c.Visibility))
	setDefault(&c.Limit, 100)
	setDefault(&c.Visibility, time.Minute)
	setDefault(&c.Logger, slog.Default())
	return c, errors.Join(errs...)
}

func checkVisibility(config string, v time.Duration) error {
	if v != 0 && (v < 10*time.Second || v > 12*time.Hour || v%time.Second != 0) {
		return fmt.Errorf("dlq: %s.Visibility is %v: must be whole seconds from 10s to 12h0m0s", config, v)
	}
	return nil
}

// Peek looks at the messages of a dead-letter queue: each once, in the order in which SQS hands them out, until there are no more or
// PeekConfig.Limit is reached. The messages stay invisible to others while the loop runs, however long it takes at each; when it
// ends, by itself or by a break, they are given back, but for those that were deleted.
//
//	for item, err := range dlq.Peek(ctx, client, queueURL, dlq.PeekConfig{}) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(item.ID, item.Reason, item.Left())
//	}
//
// Each look is a receive: it raises the receive count, and on a standard queue a message that was received three times or more goes behind the
// others. There is no other way to see a message. Held messages are missing from ApproximateNumberOfMessagesVisible, so that an alarm
// on it may end, and start again.
//
// An error comes with a nil item and ends the loop, but for [ErrCorrupt], which comes with its item. On a FIFO queue SQS keeps back what is behind a
// held message in its group, beyond the ten that a receive takes: of a longer group only the first ones are seen.
func Peek(ctx context.Context, c PeekClient, queueURL string, cfg PeekConfig) iter.Seq2[*Item, error] {
	return func(yield func(*Item, error) bool) {
		p, err := newPeek(ctx, c, queueURL, cfg)
		if err != nil {
			yield(nil, err)
			return
		}
		defer p.end()
		p.loop(ctx, yield)
	}
}

type peek struct {
	client PeekClient
	cfg    PeekConfig
	holder *holder
}

func newPeek(ctx context.Context, c PeekClient, queueURL string, cfg PeekConfig) (*peek, error) {
	cfg, err := cfg.withDefaults()
	if isNil(c) {
		err = errors.Join(errNoClient, err)
	}
	if err = errors.Join(err, checkURL(queueURL)); err != nil {
		return nil, err
	}
	q, err := readQueue(ctx, c, queueURL)
	if err != nil {
		return nil, explain(err, "GetQueueAttributes", queueURL)
	}
	h, err := newHolder(c, q, cfg.Visibility, 16, cfg.Logger)
	if err != nil {
		return nil, err
	}
	return &peek{client: c, cfg: cfg, holder: h}, nil
}

func (p *peek) loop(ctx context.Context, yield func(*Item, error) bool) {
	seen := map[string]bool{}
	for left := p.cfg.Limit; left > 0; {
		got, none, err := p.holder.receive(ctx, min(left, batchSize))
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			yield(nil, err)
			return
		}
		if none {
			return
		}
		for _, m := range got {
			if seen[m.item.ID] { // its first lease was lost
				continue
			}
			seen[m.item.ID] = true
			left--
			m.item.payloads, m.item.delete = p.cfg.Payloads, p.delete
			var err error
			if m.corrupt {
				err = fmt.Errorf("%w: message %s", ErrCorrupt, m.item.ID)
			}
			if !yield(m.item, err) {
				return
			}
		}
	}
}

func (p *peek) end() {
	if failed := p.holder.releaseAll(); failed > 0 {
		p.cfg.Logger.Warn("messages that were looked at could not be given back: they come back when their visibility ends",
			"queue", nameOf(p.holder.url), "messages", failed, "visibility", p.cfg.Visibility)
	}
	p.holder.close()
}

// ErrNotHeld says that a message isn't held any more: the loop has ended, or its lease was lost.
var ErrNotHeld = errors.New("dlq: the message isn't held any more")

// Delete deletes the message from the dead-letter queue, for good. It works while the loop of [Peek] that yielded it runs; not for the
// items of a redrive.
func (i *Item) Delete(ctx context.Context) error {
	if i.delete == nil {
		return fmt.Errorf("%w: message %s", ErrNotHeld, i.ID)
	}
	return i.delete(ctx, i.held)
}

func (p *peek) delete(ctx context.Context, m *held) error {
	if m.lease.Err() != nil {
		return fmt.Errorf("%w: message %s", ErrNotHeld, m.item.ID)
	}
	out, err := p.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: &p.holder.url,
		Entries:  []types.DeleteMessageBatchRequestEntry{{Id: entryID(0), ReceiptHandle: ptr(m.lease.Handle())}},
	})
	if err == nil && len(out.Failed) > 0 {
		err = entryError(out.Failed[0])
	}
	if err != nil {
		return explain(err, "DeleteMessage", p.holder.url)
	}
	_ = m.lease.Settle()
	p.holder.forget(m)
	return nil
}
