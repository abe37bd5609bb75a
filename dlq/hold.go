package dlq

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// receiveClient is what holding messages takes.
type receiveClient interface {
	heartbeat.Client
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
}

// ErrCorrupt says that a message's body doesn't match the digest that SQS sent with it.
var ErrCorrupt = errors.New("dlq: the body doesn't match its MD5: it was garbled on its way here")

const (
	batchSize = 10
	// receiveWait is short: an empty answer to a long poll has asked all of SQS's servers however long it waited. It is well below any
	// visibility that is asked for, so that a lease counted from the request never ends before it is here.
	receiveWait = 2 * time.Second
)

// holder receives messages of one queue and keeps each invisible until somebody says what becomes of it. Safe for concurrent use.
type holder struct {
	client     receiveClient
	url        string
	retention  time.Duration
	visibility time.Duration
	heartbeat  *heartbeat.Heartbeat
	options    []func(*sqs.Options)

	mu   sync.Mutex
	byID map[string]*held
}

// held is one received message under its lease.
type held struct {
	item    *Item
	newest  int    // receive count of the newest receipt
	group   string // its message group here, whatever an edit makes of it
	lease   *heartbeat.Lease
	corrupt bool
}

func newHolder(c receiveClient, q *queue, visibility time.Duration, connections int, log *slog.Logger) (*holder, error) {
	hb, err := heartbeat.New(c, q.url, heartbeat.Config{Visibility: visibility, Logger: log})
	if err != nil {
		return nil, err
	}
	return &holder{
		client: c, url: q.url, retention: q.retention(), visibility: visibility, heartbeat: hb,
		options: callOptions(c, connections), byID: map[string]*held{},
	}, nil
}

// callOptions turn retries off and, with the SDK's own HTTP client, keep as many idle connections as there are calls at once: it
// keeps ten by itself.
func callOptions(c any, connections int) []func(*sqs.Options) {
	options := []func(*sqs.Options){once}
	configured, ok := c.(interface{ Options() sqs.Options })
	if !ok {
		return options
	}
	client, ok := configured.Options().HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		return options
	}
	tuned := client.WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = max(t.MaxIdleConnsPerHost, connections)
		if t.MaxIdleConns != 0 {
			t.MaxIdleConns = max(t.MaxIdleConns, connections)
		}
	})
	return append(options, func(o *sqs.Options) { o.HTTPClient = tuned })
}

// receive makes one receive of up to most messages. The call isn't broken off when ctx ends: SQS may have handed out messages to it.
// Failures that can pass are tried again, as often as maxTries says. none says that SQS had nothing to give; an empty result without it is
// messages that are held already, delivered twice.
func (h *holder) receive(ctx context.Context, most int) (got []*held, none bool, err error) {
	for failures := 1; ctx.Err() == nil; failures++ {
		requested := time.Now()
		out, err := h.call(ctx, most)
		if err == nil {
			return h.take(out.Messages, requested), len(out.Messages) == 0, nil
		}
		if !isPassing(err) || failures == maxTries {
			return nil, false, explain(err, "ReceiveMessage", h.url)
		}
		again(ctx, failures)
	}
	return nil, true, nil
}

func (h *holder) call(ctx context.Context, most int) (*sqs.ReceiveMessageOutput, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiveWait+10*time.Second)
	defer cancel()
	return h.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &h.url, MaxNumberOfMessages: int32(most), WaitTimeSeconds: int32(receiveWait / time.Second),
		VisibilityTimeout:           int32(h.visibility / time.Second),
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}, append(h.options, unverified)...)
}

// take puts received messages under their leases. One that is held already was delivered twice: its lease takes over the newer handle,
// which alone is sure to delete it. Of two receives that were under way together, the receive count tells which was the later one.
func (h *holder) take(messages []types.Message, requested time.Time) (got []*held) {
	for i := range messages {
		raw := &messages[i]
		receipt := heartbeat.Receipt{
			MessageID: aws.ToString(raw.MessageId), Handle: aws.ToString(raw.ReceiptHandle), RequestedAt: requested,
		}
		item := newItem(raw, h.url, h.retention)
		if m := h.hold(item, receipt); m != nil {
			m.corrupt = garbled(raw)
			got = append(got, m)
		}
	}
	return got
}

// hold takes a message into the books, unless it is held already: then it returns nil.
func (h *holder) hold(item *Item, receipt heartbeat.Receipt) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.byID[item.ID]; m != nil {
		if item.ReceiveCount < m.newest && m.lease.Err() == nil {
			return nil
		}
		if m.lease.Adopt(receipt) {
			m.newest = item.ReceiveCount
			return nil
		}
	}
	m := &held{item: item, newest: item.ReceiveCount, group: item.GroupID}
	item.held = m
	_, m.lease = h.heartbeat.Hold(context.Background(), receipt)
	h.byID[item.ID] = m
	return m
}

// garbled tells whether the body doesn't match SQS's digest of it. A server that sends none can't be checked.
func garbled(m *types.Message) bool {
	if m.MD5OfBody == nil {
		return false
	}
	sum := md5.Sum([]byte(aws.ToString(m.Body)))
	return !strings.EqualFold(hex.EncodeToString(sum[:]), *m.MD5OfBody)
}

// count is how many are held.
func (h *holder) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byID)
}

// settle ends the lease of a message that is about to be deleted. It reports the newest receipt handle and when the lease would have
// ended; an error when it has been lost before.
func (h *holder) settle(m *held) (handle string, until time.Time, err error) {
	until = m.lease.Deadline()
	err = m.lease.Settle()
	return m.lease.Handle(), until, err
}

// forget takes a message out of the books whose lease is over.
func (h *holder) forget(m *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byID[m.item.ID] == m {
		delete(h.byID, m.item.ID)
	}
}

// releaseAll makes everything that is held visible to others at once, waits for SQS's answers, and reports how many messages couldn't be
// given back: those come back when their visibility ends.
func (h *holder) releaseAll() (failed int) {
	h.mu.Lock()
	all := make([]*held, 0, len(h.byID))
	for _, m := range h.byID {
		all = append(all, m)
	}
	clear(h.byID)
	h.mu.Unlock()
	return release(all)
}

func release(all []*held) (failed int) {
	answers := make(chan error, len(all))
	for _, m := range all {
		m.lease.Release(0, func(err error) { answers <- err })
	}
	for range all {
		if err := <-answers; err != nil {
			failed++
		}
	}
	return failed
}

func (h *holder) close() { h.heartbeat.Close() }
