package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestPeekShowsEachMessageOnceAndGivesAllBack(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		ids := w.dead(source, 25)
		seen := map[string]int{}
		for item, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{}) {
			w.ok(err)
			seen[item.ID]++
			if item.SourceARN != arn("work") || item.SourceURL() != source || item.Reason != nil || item.ReceiveCount != 4 || item.Original() != item.ID {
				t.Errorf("%+v", *item)
			}
			if left, age := item.Left(), item.Age(); left+age != 14*24*time.Hour || age <= 0 {
				t.Errorf("age %v, left %v", age, left)
			}
		}
		for _, id := range ids {
			if seen[id] != 1 {
				t.Errorf("%s was shown %d times", id, seen[id])
			}
		}
		w.mustHold(dead, 25)
	})
}

// However long it takes at each, nobody else gets it; when the loop ends, at once.
func TestMessagesAreHeldWhileOneLooks(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 3)
		n := 0
		for _, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{Visibility: 10 * time.Second}) {
			w.ok(err)
			time.Sleep(10 * time.Minute)
			if st := w.Queue(dead); st.Visible != 0 || st.InFlight != 3 {
				t.Errorf("%d visible", st.Visible)
			}
			if n++; n == 2 {
				break
			}
		}
		w.mustHold(dead, 3)
		for _, m := range w.Queue(dead).Messages {
			if m.ReceiveCount != 4 {
				t.Errorf("receive count %d: each look is one receive", m.ReceiveCount)
			}
		}
	})
}

func TestPeekStopsAtItsLimitAndReceivesNoMore(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 30)
		before := w.CountEvents(sqsmodel.Received)
		if items := w.look(dead, dlq.PeekConfig{Limit: 13}); len(items) != 13 {
			t.Errorf("%d shown", len(items))
		}
		if n := w.CountEvents(sqsmodel.Received) - before; n != 13 {
			t.Errorf("%d received", n)
		}
		w.mustHold(dead, 30)
	})
}

func TestPeekDeletesWhatItIsToldTo(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 3)
		var kept *dlq.Item
		for item, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{}) {
			w.ok(err)
			if item.Body != "body 1" {
				kept = item
				continue
			}
			w.ok(item.Delete(context.Background()))
			if err := item.Delete(context.Background()); !errors.Is(err, dlq.ErrNotHeld) {
				t.Errorf("twice: %v", err)
			}
		}
		w.mustHold(dead, 2)
		if err := kept.Delete(context.Background()); !errors.Is(err, dlq.ErrNotHeld) {
			t.Errorf("after the loop: %v", err)
		}
		w.mustHold(dead, 2)
	})
}

func TestPeekEndsWithItsContextAndWithWhatCannotPass(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 20)
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		enough := errors.New("enough")
		var last error
		n := 0
		for item, err := range dlq.Peek(ctx, w.client, dead, dlq.PeekConfig{}) {
			if last = err; item == nil {
				continue
			}
			if n++; n == 10 {
				cancel(enough)
			}
		}
		if !errors.Is(last, enough) {
			t.Errorf("ended with %v", last)
		}
		w.mustHold(dead, 20)

		w.Inject(sqsmodel.Fault{Action: "ReceiveMessage", Times: 3, Code: "ServiceUnavailable"})
		if n := len(w.look(dead, dlq.PeekConfig{})); n != 20 {
			t.Errorf("%d shown after failures that passed", n)
		}
		w.Inject(sqsmodel.Fault{Action: "ReceiveMessage", Code: "AccessDeniedException"})
		for item, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{}) {
			if item != nil || err == nil || !strings.Contains(err.Error(), "allow sqs:ReceiveMessage on "+dead) {
				t.Errorf("%v, %v", item, err)
			}
		}
	})
}

func TestAGarbledBodyIsSaidToBe(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		ids := w.dead(source, 3)
		w.Inject(sqsmodel.Fault{Action: "ReceiveMessage", CorruptMD5: func(id string) bool { return id == ids[1] }})
		n := 0
		for item, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{}) {
			n++
			if errors.Is(err, dlq.ErrCorrupt) != (item.ID == ids[1]) {
				t.Errorf("%s: %v", item.ID, err)
			}
		}
		if n != 3 {
			t.Errorf("%d shown", n)
		}
	})
}

// payloads is what *extended.Client is to Peek.
type payloads map[string]string

func (p payloads) Open(_ context.Context, m *types.Message) (io.ReadCloser, error) {
	for pointer, payload := range p {
		if *m.Body == pointer && m.MessageAttributes["SQSLargePayloadSize"].StringValue != nil {
			return io.NopCloser(strings.NewReader(payload)), nil
		}
	}
	return nil, errors.New("foreign")
}

const pointer = `["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k"}]`

func TestPayloadsInS3AreReadByWhoeverCan(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.send(&sqs.SendMessageInput{QueueUrl: &source, MessageBody: aws.String(pointer), MessageAttributes: map[string]types.MessageAttributeValue{
			"SQSLargePayloadSize": {DataType: aws.String("Number"), StringValue: aws.String("11")}}})
		w.send(&sqs.SendMessageInput{QueueUrl: &source, MessageBody: aws.String("small")})
		w.deadLetter(source)
		var got []string
		for item, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{Payloads: payloads{pointer: "large thing"}}) {
			w.ok(err)
			r, err := item.Payload(context.Background())
			w.ok(err)
			b, err := io.ReadAll(r)
			w.ok(err)
			got = append(got, fmt.Sprintf("%v %s", item.Extended, b))
		}
		if !slices.Equal(got, []string{"true large thing", "false small"}) {
			t.Errorf("%q", got)
		}
		for item, err := range dlq.Peek(context.Background(), w.client, dead, dlq.PeekConfig{}) {
			w.ok(err)
			if _, err := item.Payload(context.Background()); errors.Is(err, dlq.ErrNoPayloads) != item.Extended {
				t.Error(err)
			}
		}
	})
}

func TestPrintingAnItemShowsNothingOfItsContents(t *testing.T) {
	i := &dlq.Item{ID: "7", Body: "secret"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(verb, i); strings.Contains(s, "secret") || !strings.Contains(s, "7") {
			t.Errorf("%s: %s", verb, s)
		}
	}
	if s := i.LogValue().String(); strings.Contains(s, "secret") {
		t.Error(s)
	}
}

func TestBadPeekConfigurationIsAnErrorOfTheLoop(t *testing.T) {
	n := 0
	for _, err := range dlq.Peek(context.Background(), nil, "dead", dlq.PeekConfig{Limit: -1, Visibility: 1500 * time.Millisecond}) {
		n++
		for _, word := range []string{"client", "Limit is -1", "Visibility is 1.5s", "queue URL"} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v doesn't say %q", err, word)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d rounds", n)
	}
}
