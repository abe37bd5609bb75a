package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

const topic = "arn:aws:sns:eu-west-1:123456789012:orders"

// envelope is what SNS puts into a queue without raw message delivery; change may be nil.
func envelope(message string, change func(map[string]any)) string {
	e := map[string]any{
		"Type": "Notification", "MessageId": "sns-1", "TopicArn": topic, "Subject": "hello", "Message": message,
		"Timestamp": "2026-11-30T12:00:00.000Z", "SignatureVersion": "1", "Signature": "c2ln", "SigningCertURL": "https://x", "UnsubscribeURL": "https://y",
		"MessageAttributes": map[string]any{
			"type":  map[string]any{"Type": "String", "Value": "order.paid"},
			"count": map[string]any{"Type": "Number", "Value": "12"},
			"list":  map[string]any{"Type": "String.Array", "Value": `["a"]`},
			"blob":  map[string]any{"Type": "Binary", "Value": "AQID"},
		},
	}
	if change != nil {
		change(e)
	}
	body, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return string(body)
}

func TestEnvelopeOfAConfiguredTopicIsOpened(t *testing.T) {
	var seen *worker.Message
	var n worker.SNSNotification
	h := worker.SNS("arn:aws:sns:eu-west-1:123456789012:other", topic)(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		seen = m
		n, _ = worker.SNSNotificationFrom(ctx)
		return nil
	}))
	m := &worker.Message{ID: "sqs-1", Body: envelope(`{"number": 7}`, nil), ReceiveCount: 4, Attempt: 2, GroupID: "g",
		Attributes: map[string]types.MessageAttributeValue{"own": stringAttribute("x"), "type": stringAttribute("sqs")}}
	if err := h.Handle(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	if seen.Body != `{"number": 7}` || seen.ID != "sqs-1" || seen.ReceiveCount != 4 || seen.Attempt != 2 || seen.GroupID != "g" {
		t.Errorf("the handler saw %q of message %q, receive %d, attempt %d, group %q", seen.Body, seen.ID, seen.ReceiveCount, seen.Attempt, seen.GroupID)
	}
	for name, want := range map[string]string{"type": "order.paid", "count": "12", "list": `["a"]`, "own": "x"} {
		if got := seen.Attribute(name); got != want {
			t.Errorf("attribute %s is %q, want %q", name, got, want)
		}
	}
	if got := seen.Attributes["blob"]; string(got.BinaryValue) != "\x01\x02\x03" || *got.DataType != "Binary" || got.StringValue != nil {
		t.Errorf("the binary attribute is %v", got.BinaryValue)
	}
	want := worker.SNSNotification{MessageID: "sns-1", TopicARN: topic, Subject: "hello", PublishedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	if n != want {
		t.Errorf("the notification is %+v", n)
	}
	if m.Attribute("type") != "sqs" || !strings.Contains(m.Body, "TopicArn") {
		t.Error("the received message was changed")
	}
}

func TestEverythingButEnvelopesOfConfiguredTopicsPassesThrough(t *testing.T) {
	for name, body := range map[string]string{
		"raw delivery":                     `{"number": 7}`,
		"not JSON":                         `TopicArn "Type":"Notification"`,
		"empty":                            ``,
		"another topic":                    envelope("inner", func(e map[string]any) { e["TopicArn"] = "arn:aws:sns:eu-west-1:999999999999:orders" }),
		"a topic like it":                  envelope("inner", func(e map[string]any) { e["TopicArn"] = topic + "-2" }),
		"its own TopicArn field":           `{"TopicArn": "` + topic + `", "Type": 5}`,
		"its own Type":                     `{"TopicArn": "` + topic + `", "Type": "order"}`,
		"an envelope in an array":          `[` + envelope("inner", nil) + `]`,
		"the topic as an object":           `{"Type": "Notification", "TopicArn": {"arn": "` + topic + `"}}`,
		"an envelope without its own type": envelope("inner", func(e map[string]any) { delete(e, "Type") }),
	} {
		t.Run(name, func(t *testing.T) {
			m := &worker.Message{ID: "m", Body: body}
			var seen *worker.Message
			h := worker.SNS(topic)(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				if _, ok := worker.SNSNotificationFrom(ctx); ok {
					t.Error("there is a notification")
				}
				seen = m
				return nil
			}))
			if err := h.Handle(context.Background(), m); err != nil || seen != m {
				t.Errorf("got %v, the handler saw %v", err, seen)
			}
		})
	}
}

func TestUnreadableEnvelopeIsPermanentAndSaysWhere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(map[string]any)
		err    string
	}{
		"no message":             {func(e map[string]any) { delete(e, "Message") }, "field Message is missing"},
		"message isn't a string": {func(e map[string]any) { e["Message"] = map[string]any{"secret": 1} }, "field Message, at byte"},
		"bad time":               {func(e map[string]any) { e["Timestamp"] = "secret" }, "field Timestamp, at byte"},
		"bad base64": {func(e map[string]any) {
			e["MessageAttributes"] = map[string]any{"secret": map[string]any{"Type": "Binary", "Value": "secret!"}}
		}, "field MessageAttributes.*.Value is Binary and not base64"},
		"confirmation": {func(e map[string]any) {
			e["Type"], e["SubscribeURL"] = "SubscriptionConfirmation", "https://secret"
		}, "confirm by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			err := handleBody(worker.SNS(topic)(worker.HandlerFunc(func(context.Context, *worker.Message) error {
				t.Error("the handler was called")
				return nil
			})), envelope("inner", c.change))
			if !isPermanent(err) || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

func TestTopicsThatAreNoARNsAreRefused(t *testing.T) {
	q := newQueue(t)
	for _, arns := range [][]string{{}, {"orders"}, {topic, "arn:aws:sqs:eu-west-1:123456789012:orders"}, {"arn:aws:sns:eu-west-1::orders"}} {
		if _, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Middleware: []worker.Middleware{worker.SNS(arns...)}}); err == nil {
			t.Errorf("%q: no error", arns)
		}
	}
}

// A message whose body was unpacked is still the message that was received.

func TestACopyWithAnotherBodyKeepsEverythingElse(t *testing.T) {
	var m worker.Message
	v := reflect.ValueOf(&m).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.CanSet() {
			switch f.Interface().(type) {
			case string:
				f.SetString(v.Type().Field(i).Name)
			case int:
				f.SetInt(int64(i + 1))
			case time.Time:
				f.Set(reflect.ValueOf(time.Unix(int64(i), 0)))
			default:
				f.Set(reflect.ValueOf(map[string]types.MessageAttributeValue{"a": stringAttribute("b")}))
			}
		}
	}
	c := reflect.ValueOf(m.WithBody("other")).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		switch {
		case !field.IsExported():
		case field.Name == "Body":
			if c.Field(i).String() != "other" {
				t.Errorf("the copy's body is %v", c.Field(i))
			}
		case !reflect.DeepEqual(v.Field(i).Interface(), c.Field(i).Interface()):
			t.Errorf("%s is %v in the copy, want %v", field.Name, c.Field(i), v.Field(i))
		}
	}
}

func TestACopyPrintsAsItsMessage(t *testing.T) {
	m := &worker.Message{ID: "m-1", Body: "secret", ReceiveCount: 2}
	c := m.WithBody("more secret").WithBody("secret still")
	if got := fmt.Sprintf("%v %+v %s", c, c, c); got != "message m-1 message m-1 message m-1" {
		t.Errorf("printed %q", got)
	}
	var text strings.Builder
	slog.New(slog.NewTextHandler(&text, nil)).Info("x", "message", c)
	if s := text.String(); strings.Contains(s, "secret") || !strings.Contains(s, "message.id=m-1") || !strings.Contains(s, "message.receive_count=2") {
		t.Errorf("logged %q", s)
	}
}

func TestWhatAnUnpackedMessageAddsIsRunAfterItsDeletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.MustSend(q.url, envelope("inner", nil))
		after := 0
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.AfterDelete(func(context.Context) error { after++; return nil })
			m.WithBody("again").AfterDelete(func(context.Context) error { after += 10; return nil })
			return nil
		}), worker.Config{Middleware: []worker.Middleware{worker.SNS(topic)}})
		q.mustEmpty(time.Minute)
		w.mustStop()
		if after != 11 {
			t.Errorf("after the deletion: %d, want 11", after)
		}
	})
}

func TestAttemptSetInsideAnEnvelopeCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		id := q.MustSend(q.url, envelope("inner", nil))[0]
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.Attempt = 6 // an idempotency record knows of failures elsewhere
			return errors.New("failed")
		}), worker.Config{Middleware: []worker.Middleware{worker.SNS(topic)}, Backoff: worker.Backoff{Min: time.Second, Max: time.Hour}})
		time.Sleep(time.Second)
		if left := time.Until(q.message(id).VisibleAt); left < 14*time.Second || left > 33*time.Second {
			t.Errorf("the message stays away for %v, want the sixth step, 16 s to 32 s", left)
		}
		w.mustStop()
		q.mustHaveHappened(sqsmodel.Deleted, 0)
	})
}
