package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func (w *world) sink(dead string, cfg dlq.SinkConfig) *dlq.Sink {
	w.t.Helper()
	cfg.Logger = slog.New(w.log)
	s, err := dlq.NewSink(w.client, dead, cfg)
	w.ok(err)
	return s
}

// work runs a worker over a queue for a while.
func (w *world) work(url string, h worker.HandlerFunc, cfg worker.Config, d time.Duration) worker.Stats {
	w.t.Helper()
	cfg.Logger = slog.New(w.log)
	wk, err := worker.New(w.client, url, h, cfg)
	w.ok(err)
	ctx, stop := context.WithTimeout(context.Background(), d)
	defer stop()
	w.ok(wk.Run(ctx))
	return wk.Stats()
}

// look returns what Peek shows.
func (w *world) look(url string, cfg dlq.PeekConfig) (items []*dlq.Item) {
	w.t.Helper()
	cfg.Logger = slog.New(w.log)
	for item, err := range dlq.Peek(context.Background(), w.client, url, cfg) {
		w.ok(err)
		items = append(items, item)
	}
	return items
}

func TestWhatIsPermanentlyFailedIsCopiedWithItsReasonAndThenDeleted(t *testing.T) {
	for _, suffix := range []string{"", ".fifo"} {
		t.Run("work"+suffix, func(t *testing.T) {
			bubble(t, func(w *world) {
				source, dead := w.pairOf(suffix)
				in := &sqs.SendMessageInput{QueueUrl: &source, MessageBody: aws.String("order 7"), MessageGroupId: aws.String("customer"),
					MessageAttributes:       map[string]types.MessageAttributeValue{"type": text("order")},
					MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1-2")}}}
				if suffix != "" {
					in.MessageDeduplicationId = aws.String("original")
				}
				id := w.send(in)
				sent := time.Now()
				time.Sleep(time.Minute)
				failures := 0
				s := w.work(source, func(_ context.Context, m *worker.Message) error {
					if failures++; failures == 1 {
						return worker.RetryAfter(10*time.Second, errors.New("first try"))
					}
					return worker.Permanent(errors.New("no such customer"))
				}, worker.Config{DeadLetter: w.sink(dead, dlq.SinkConfig{Worker: "orders-1"})}, time.Minute)
				if s.DeadLettered != 1 || s.Deleted != 1 {
					t.Errorf("%+v", s)
				}
				w.mustHold(source, 0)
				items := w.look(dead, dlq.PeekConfig{})
				if len(items) != 1 {
					t.Fatalf("%d copies", len(items))
				}
				i, r := items[0], items[0].Reason
				if i.Body != "order 7" || i.GroupID != "customer" || i.TraceHeader != "Root=1-2" || len(i.Attributes) != 1 || *i.Attributes["type"].StringValue != "order" || i.ID == id || i.SourceARN != "" {
					t.Errorf("copied %+v", *i)
				}
				if r == nil || r.Error != "no such customer" || r.Attempts != 2 || r.Receives != 2 || r.Worker != "orders-1" || r.ID != id || r.QueueURL != source ||
					!r.SentAt.Equal(sent.Truncate(time.Millisecond)) || r.FirstAt.Sub(sent) < time.Minute || r.LastAt.Sub(r.FirstAt) < 10*time.Second {
					t.Errorf("reason %+v", r)
				}
				if i.Original() != id || i.SourceURL() != source || (suffix != "" && r.DeduplicationID != "original") {
					t.Errorf("original %s, source %s", i.Original(), i.SourceURL())
				}
				// The copy has its whole retention before it.
				if left := i.Left(); left < 13*24*time.Hour {
					t.Errorf("%v left", left)
				}
			})
		})
	}
}

// The message is deleted only after the copy is confirmed: whatever goes wrong, it is in one of the queues.
func TestNothingIsLostWhenTheCopyFails(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"refused":     {Code: "AccessDeniedException"},
		"unavailable": {Code: "ServiceUnavailable"},
		"answer lost": {DropAfter: true},
		"hanging":     {Stall: true},
		"no queue":    {Code: "QueueDoesNotExist"},
	}, func(w *world, fault sqsmodel.Fault) {
		source, dead := w.pair()
		id := w.MustSend(source, "bad")[0]
		fault.Action, fault.Times = "SendMessage", 4 // one attempt with all of the SDK's, and one more
		w.Inject(fault)
		w.work(source, func(context.Context, *worker.Message) error { return worker.Permanent(errors.New("bad")) },
			worker.Config{DeadLetter: w.sink(dead, dlq.SinkConfig{}), Backoff: worker.Backoff{Max: 10 * time.Second}}, 5*time.Minute)
		w.mustHold(source, 0)
		items := w.look(dead, dlq.PeekConfig{})
		if len(items) == 0 {
			w.t.Fatal("lost")
		}
		for _, i := range items { // copies name their original
			if i.Original() != id {
				w.t.Errorf("copy of %s", i.Original())
			}
		}
		if len(items) > 1 && !fault.DropAfter {
			w.t.Errorf("%d copies", len(items))
		}
	})
}

func TestASecondCopyToAFIFOQueueIsSwallowed(t *testing.T) {
	bubble(t, func(w *world) {
		_, dead := w.pairOf(".fifo")
		s := w.sink(dead, dlq.SinkConfig{})
		m := &worker.Message{ID: "m-1", Body: "x", QueueURL: "https://sqs.us-east-1.amazonaws.com/123456789012/work.fifo", GroupID: "g", DeduplicationID: "d"}
		w.ok(s.DeadLetter(context.Background(), m, errors.New("bad")))
		w.ok(s.DeadLetter(context.Background(), m, errors.New("bad")))
		w.mustHold(dead, 1)
		other := &worker.Message{ID: "m-2", Body: "x", QueueURL: m.QueueURL, GroupID: "g", DeduplicationID: "d2"} // an equal body is another message
		w.ok(s.DeadLetter(context.Background(), other, errors.New("bad")))
		w.mustHold(dead, 2)
	})
}

// Ten attributes, or a message that is as large as it may be: it is safe without its reason, which is then in the log.
func TestAReasonTakesNoMoreThanTheRoomThatThereIs(t *testing.T) {
	const limit = 4096
	type room struct {
		attributes, body int
		reason           bool
		cut              bool
	}
	each(t, map[string]room{
		"plenty":                {body: 10, reason: true},
		"nine attributes":       {attributes: 9, body: 10, reason: true},
		"ten attributes":        {attributes: 10, body: 10},
		"room for a part":       {body: limit - 600, reason: true, cut: true},
		"room for no text":      {body: limit - 330, reason: true, cut: true},
		"no room":               {body: limit - 20},
		"exactly full":          {body: limit},
		"nine and nearly full":  {attributes: 9, body: limit - 600 - 9*9, reason: true, cut: true},
		"nine and full of body": {attributes: 9, body: limit - 9*9},
	}, func(w *world, c room) {
		dead := w.queue("dead", "MaximumMessageSize", fmt.Sprint(limit))
		m := &worker.Message{ID: "0123", QueueURL: "https://sqs.us-east-1.amazonaws.com/123456789012/work", Attempt: 3, Body: strings.Repeat("x", c.body), Attributes: map[string]types.MessageAttributeValue{}}
		for i := range c.attributes {
			m.Attributes[fmt.Sprintf("a%d", i)] = text("v") // 2 + 6 + 1 bytes
		}
		s := w.sink(dead, dlq.SinkConfig{})
		long := "ü\x00\uFFFF\xff <&>" + strings.Repeat("é", 500) + " the end"
		w.ok(s.DeadLetter(context.Background(), m, errors.New(long)))
		i := w.look(dead, dlq.PeekConfig{})[0]
		if (i.Reason != nil) != c.reason || i.Body != m.Body || len(i.Attributes) != c.attributes {
			w.t.Fatalf("reason %+v, %d attributes", i.Reason, len(i.Attributes))
		}
		if c.reason && strings.HasSuffix(i.Reason.Error, "the end") == c.cut {
			w.t.Errorf("error %q", i.Reason.Error)
		}
		if n := len(w.log.with("no room for its reason", "attempts=3")); (n == 1) == c.reason {
			w.t.Errorf("%d log lines", n)
		}
		if strings.Contains(w.log.String(), "xxxxx") {
			w.t.Error("the body is in the log")
		}
		if st := s.Stats(); st.Sent != 1 || st.WithoutReason == 1 == c.reason {
			w.t.Errorf("%+v", st)
		}
	})
}

func TestAMessageTooLargeForTheDeadLetterQueueSaysWhatToDo(t *testing.T) {
	bubble(t, func(w *world) {
		dead := w.queue("dead", "MaximumMessageSize", "1024")
		err := w.sink(dead, dlq.SinkConfig{}).DeadLetter(context.Background(), &worker.Message{ID: "1", QueueURL: "https://x/1/work", Body: strings.Repeat("x", 2000)}, errors.New("bad"))
		if err == nil || !strings.Contains(err.Error(), "MaximumMessageSize") || strings.Contains(err.Error(), "xxx") {
			t.Error(err)
		}
	})
}

func TestASinksOwnReasonIsReplacedAndASendersIsKept(t *testing.T) {
	bubble(t, func(w *world) {
		dead := w.queue("dead")
		s := w.sink(dead, dlq.SinkConfig{Describe: func(error) string { return "described" }})
		m := &worker.Message{ID: "1", QueueURL: "https://x/1/work", Body: "b", Attributes: map[string]types.MessageAttributeValue{
			dlq.ReasonAttribute: text(`{"error":"the first time","id":"0","queue":"q","last":"2026-01-01T00:00:00Z"}`)}}
		w.ok(s.DeadLetter(context.Background(), m, errors.New("secret")))
		m = &worker.Message{ID: "2", QueueURL: "https://x/1/work", Body: "b", Attributes: map[string]types.MessageAttributeValue{dlq.ReasonAttribute: text("somebody else's")}}
		w.ok(s.DeadLetter(context.Background(), m, nil))
		items := w.look(dead, dlq.PeekConfig{})
		if r := items[0].Reason; r == nil || r.Error != "described" || r.ID != "1" || len(items[0].Attributes) != 0 {
			t.Errorf("%+v", r)
		}
		if items[1].Reason != nil || *items[1].Attributes[dlq.ReasonAttribute].StringValue != "somebody else's" {
			t.Errorf("%+v", items[1].Attributes)
		}
	})
}

func TestASinkIntoItsOwnQueueIsRefused(t *testing.T) {
	bubble(t, func(w *world) {
		dead := w.queue("dead")
		err := w.sink(dead, dlq.SinkConfig{}).DeadLetter(context.Background(), &worker.Message{ID: "1", QueueURL: dead, Body: "b"}, errors.New("bad"))
		if err == nil || len(w.Queue(dead).Messages) != 0 {
			t.Error(err)
		}
	})
	if _, err := dlq.NewSink(nil, "dead", dlq.SinkConfig{}); err == nil || !strings.Contains(err.Error(), "client") || !strings.Contains(err.Error(), "queue URL") {
		t.Error(err)
	}
}
