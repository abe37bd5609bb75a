package extended

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// ReceiveMessage receives messages with their payloads as Body, and receipt handles that carry the pointers: give them
// back to this client (or to Java's) as they are. It asks for the reserved attributes whatever MessageAttributeNames says, and
// takes them out of the answer; digests are of what is returned.
//
// A message whose payload can't be had is left out, never deleted, and told to [Config.OnUnreadable]; the others are
// returned. It comes back when its visibility ends, and goes to the dead-letter queue in the end. On a FIFO queue the later
// messages of its group are left out with it. With [Config.IgnoreMissing], one whose object doesn't exist is deleted.
//
// Payloads of one receive are loaded side by side, up to [Config.MemoryBudget] together: messages beyond it are given
// back at once. The time counts against the visibility: if the input sets VisibilityTimeout, what isn't there after a third
// of it is left out. With [Config.Stream], messages keep their pointers, for [Client.Open].
func (c *Client) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, optFns ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	if in == nil {
		return c.Client.ReceiveMessage(ctx, in, optFns...)
	}
	ask := *in
	ask.MessageAttributeNames = withNames(in.MessageAttributeNames)
	addedGroup := !c.deferred && isFIFO(aws.ToString(in.QueueUrl)) && withGroup(&ask)
	out, err := c.Client.ReceiveMessage(ctx, &ask, optFns...)
	if err != nil || c.deferred {
		return out, err
	}
	r := &received{c: c, in: in, optFns: optFns, messages: make([]*incoming, len(out.Messages))}
	for i := range out.Messages {
		r.messages[i] = &incoming{raw: out.Messages[i]}
	}
	r.resolve(ctx)
	out.Messages = r.result(ctx, addedGroup)
	return out, nil
}

// withNames asks for the reserved attributes too.
func withNames(names []string) []string {
	if slices.Contains(names, "All") || slices.Contains(names, ".*") {
		return names
	}
	return append(slices.Clip(slices.Clone(names)), reservedAttributes[:]...)
}

//lint:file-ignore SA1019 callers may use AttributeNames still, and what they ask for is what they get

// withGroup asks for the message group, without which a message can't be left out in order. It reports whether the caller
// hadn't asked.
func withGroup(ask *sqs.ReceiveMessageInput) bool {
	const all, group = types.QueueAttributeNameAll, types.MessageSystemAttributeNameMessageGroupId
	if slices.Contains(ask.AttributeNames, all) || slices.Contains(ask.AttributeNames, types.QueueAttributeName(group)) ||
		slices.Contains(ask.MessageSystemAttributeNames, types.MessageSystemAttributeNameAll) || slices.Contains(ask.MessageSystemAttributeNames, group) {
		return false
	}
	if len(ask.AttributeNames) > 0 { // the deprecated way: one way in one call
		ask.AttributeNames = append(slices.Clone(ask.AttributeNames), types.QueueAttributeName(group))
		return true
	}
	ask.MessageSystemAttributeNames = append(slices.Clone(ask.MessageSystemAttributeNames), group)
	return true
}

// received are the messages of one receive.
type received struct {
	c        *Client
	in       *sqs.ReceiveMessageInput
	optFns   []func(*sqs.Options)
	messages []*incoming
}

// incoming is one of them.
type incoming struct {
	raw   types.Message // as SQS returned it
	at    Pointer
	found bool // it has a pointer
	body  string
	err   error
}

// errNoRoom: Config.MemoryBudget is used up by the messages before it.
var errNoRoom = errors.New("extended: no room in Config.MemoryBudget for the payloads of this receive")

// resolve loads the payloads, each on its own.
func (r *received) resolve(ctx context.Context) {
	p := r.c.payloads
	if v := r.in.VisibilityTimeout; v > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(v)*time.Second/3)
		defer cancel()
	}
	var wait sync.WaitGroup
	loading := int64(0)
	for _, m := range r.messages {
		m.at, m.found, m.err = readPointer(aws.ToString(m.raw.Body), m.raw.MessageAttributes)
		if m.err == nil && m.found {
			most, field := r.most()
			m.err = p.check(m.at, most, field)
		}
		switch {
		case m.err != nil:
			p.count(m.err)
		case !m.found || p.cfg.Stream:
		case loading > 0 && loading+m.at.Size > p.cfg.MemoryBudget:
			m.err = errNoRoom
		default:
			loading += m.at.Size
			wait.Go(func() {
				m.body, m.err = p.load(ctx, m.at)
				p.count(m.err)
			})
		}
	}
	wait.Wait()
}

func (r *received) most() (int64, string) {
	if cfg := &r.c.payloads.cfg; cfg.Stream {
		return cfg.MaxPayload, "Config.MaxPayload"
	}
	return r.c.payloads.cfg.MaxBody, "Config.MaxBody"
}

// result is what the caller gets. What it doesn't is seen to.
func (r *received) result(ctx context.Context, dropGroup bool) []types.Message {
	fifo := isFIFO(aws.ToString(r.in.QueueUrl))
	broken := map[string]bool{} // groups with a message left out
	whole := make([]types.Message, 0, len(r.messages))
	var giveBack []*incoming
	for _, m := range r.messages {
		group := m.raw.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
		switch {
		case fifo && broken[group]:
			r.c.payloads.stats.leftOut.Add(1)
		case m.err == nil:
			whole = append(whole, r.restored(m, dropGroup))
		case errors.Is(m.err, ErrMissing) && r.c.payloads.cfg.IgnoreMissing && r.discard(ctx, m):
		default:
			broken[group] = true
			r.leaveOut(ctx, m)
			if errors.Is(m.err, errNoRoom) {
				giveBack = append(giveBack, m)
			}
		}
	}
	r.giveBack(ctx, giveBack)
	return whole
}

// restored is the message as its sender meant it.
func (r *received) restored(m *incoming, dropGroup bool) types.Message {
	out := m.raw
	if dropGroup {
		delete(out.Attributes, string(types.MessageSystemAttributeNameMessageGroupId))
	}
	if !m.found {
		return out
	}
	out.ReceiptHandle = aws.String(embed(m.at, aws.ToString(m.raw.ReceiptHandle)))
	if r.c.payloads.cfg.Stream {
		return out
	}
	out.Body = &m.body
	out.MessageAttributes = withoutReserved(m.raw.MessageAttributes)
	if m.raw.MD5OfBody != nil {
		out.MD5OfBody = bodyMD5(m.body)
	}
	out.MD5OfMessageAttributes = attributesMD5(out.MessageAttributes)
	return out
}

func (r *received) leaveOut(ctx context.Context, m *incoming) {
	p := r.c.payloads
	p.stats.leftOut.Add(1)
	if errors.Is(m.err, errNoRoom) {
		return // nothing is wrong with it
	}
	p.cfg.Logger.Warn("a received message was left out because its payload couldn't be had: it comes back when its visibility ends",
		"message", aws.ToString(m.raw.MessageId), "permanent", permanent(m.err), "error", m.err)
	if p.cfg.OnUnreadable != nil {
		p.cfg.OnUnreadable(ctx, aws.ToString(r.in.QueueUrl), m.raw, m.err)
	}
}

// discard deletes a message whose object is known not to exist.
func (r *received) discard(ctx context.Context, m *incoming) bool {
	_, err := r.c.Client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: r.in.QueueUrl, ReceiptHandle: m.raw.ReceiptHandle})
	if err != nil {
		m.err = fmt.Errorf("%w; deleting the message: %w", m.err, err)
	}
	return err == nil
}

// giveBack makes messages visible again for whom there was no room; on a FIFO queue in one call, so that order is kept.
func (r *received) giveBack(ctx context.Context, messages []*incoming) {
	if len(messages) == 0 {
		return
	}
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: r.in.QueueUrl}
	for i, m := range messages {
		id := aws.String(fmt.Sprint(i))
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: id, ReceiptHandle: m.raw.ReceiptHandle})
	}
	ctx, cancel := afterwards(ctx)
	defer cancel()
	if _, err := r.c.Client.ChangeMessageVisibilityBatch(ctx, in); err != nil {
		r.c.payloads.cfg.Logger.Warn("messages whose payloads were too much for Config.MemoryBudget couldn't be given back: they come back when their visibility ends",
			"messages", len(messages), "error", strings.TrimSpace(code(err)))
	}
}
