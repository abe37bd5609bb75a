package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func TestMessageHasEverythingThatSQSTells(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 1)
		sent := time.Now()
		out, err := q.Client().SendMessage(t.Context(), &sqs.SendMessageInput{
			QueueUrl: &q.url, MessageBody: aws.String("a body"), MessageGroupId: aws.String("tenant-7"),
			MessageAttributes: map[string]types.MessageAttributeValue{
				"tenant": {DataType: aws.String("String"), StringValue: aws.String("seven")},
				"blob":   {DataType: aws.String("Binary"), BinaryValue: []byte{1, 2, 3}},
			},
			MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
				"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1-5759e988-bd862e3fe1be46a994272793")},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		check := func(queue string, receives int, firstAt time.Time) worker.HandlerFunc {
			return func(_ context.Context, m *worker.Message) error {
				if m.ID != *out.MessageId || m.Body != "a body" || m.QueueURL != queue || m.GroupID != "tenant-7" || m.ReceiveCount != receives {
					t.Errorf("id %q, body %q, queue %q, group %q, receive %d", m.ID, m.Body, m.QueueURL, m.GroupID, m.ReceiveCount)
				}
				if m.Attribute("tenant") != "seven" || m.Attribute("blob") != "" || m.Attribute("missing") != "" || len(m.Attributes["blob"].BinaryValue) != 3 {
					t.Errorf("attributes %v", m.Attributes)
				}
				if !m.SentAt.Equal(sent) || !m.FirstReceivedAt.Equal(firstAt) || !m.ReceivedAt.Equal(time.Now()) {
					t.Errorf("sent %v, first received %v, received %v", m.SentAt, m.FirstReceivedAt, m.ReceivedAt)
				}
				if m.TraceHeader != "Root=1-5759e988-bd862e3fe1be46a994272793" || m.SenderID == "" {
					t.Errorf("trace %q, sender %q", m.TraceHeader, m.SenderID)
				}
				if fromDLQ := receives > 1; (m.DeadLetterSource == q.state().ARN) != fromDLQ {
					t.Errorf("dead-letter source %q", m.DeadLetterSource)
				}
				return errNo
			}
		}
		first := time.Now()
		a := q.start(check(q.url, 1, first), worker.Config{SenderID: true})
		eventually(t, time.Minute, "dead-lettered", func() bool { return len(q.Queue(testDLQ).Messages) == 1 })
		a.mustStop()
		dead := &fixture{Server: q.Server, t: t, url: q.Queue(testDLQ).URL}
		var r runs
		b := dead.start(r.handler(check(dead.url, 2, first)), worker.Config{SenderID: true})
		time.Sleep(time.Second)
		b.mustStop()
		if r.count() != 1 {
			t.Errorf("%d runs from the dead-letter queue", r.count())
		}
	})
}

func TestPrintedMessageShowsItsIDAndNothingOfItsContents(t *testing.T) {
	m := &worker.Message{ID: "5fea7756-0ea4-451a-a703-a558b933e274", Body: "hush", Attributes: map[string]types.MessageAttributeValue{
		"key": {DataType: aws.String("String"), StringValue: aws.String("hush")},
	}}
	packed := m.WithBody("hush again")
	embedded := struct{ *worker.Message }{m}
	for _, value := range []any{m, packed, embedded, []*worker.Message{m}, map[string]any{"m": m}, struct{ M any }{m}, fmt.Errorf("failed: %v", m)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if text := fmt.Sprintf(verb, value); strings.Contains(text, "hush") || strings.Contains(text, "68757368") {
				t.Errorf("%s of a %T prints %s", verb, value, text)
			}
		}
	}
	if text := fmt.Sprintf("%+v", m); !strings.Contains(text, m.ID) {
		t.Errorf("%%+v prints %q", text)
	}
	var text strings.Builder
	for _, h := range []slog.Handler{slog.NewTextHandler(&text, nil), slog.NewJSONHandler(&text, nil)} {
		slog.New(h).Info("got", "message", m, "packed", packed, slog.Group("g", slog.Any("m", m)))
	}
	if strings.Contains(text.String(), "hush") || !strings.Contains(text.String(), m.ID) {
		t.Errorf("logged %s", text.String())
	}
}

// Everything goes wrong at once, and SQS repeats handles in its texts: neither they, nor bodies, nor credentials are in
// any line of the log, in what Run returns or in what Healthy says.
func TestNothingSecretIsEverLogged(t *testing.T) {
	const (
		body, attribute = "hush-body", "hush-attribute"
		accessKey       = "AKIAHUSHACCESSKEY"
		secretKey       = "hush-secret-key"
		session         = "hush-session-token"
	)
	for _, quoteHandles := range []bool{false, true} {
		t.Run(fmt.Sprint("handles quoted: ", quoteHandles), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				q := newQueueWithDLQ(t, 20, "VisibilityTimeout", "5")
				client := q.Client(func(o *sqs.Options) {
					o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
						return aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey, SessionToken: session}, nil
					})
				})
				var mu sync.Mutex
				handles := map[string]bool{}
				q.OnEvent(func(e sqsmodel.Event) {
					mu.Lock()
					defer mu.Unlock()
					handles[e.Handle] = true
				})
				for i := range 100 {
					_, err := q.Client().SendMessage(t.Context(), &sqs.SendMessageInput{
						QueueUrl: &q.url, MessageBody: aws.String(fmt.Sprintf("%s-%d", body, i)),
						MessageAttributes: map[string]types.MessageAttributeValue{"k": {DataType: aws.String("String"), StringValue: aws.String(attribute)}},
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				n := 0
				noise := func(_ sqsmodel.Call, entry int, _, handle string) *sqsmodel.EntryError {
					mu.Lock()
					defer mu.Unlock()
					n++
					text := fmt.Sprintf(`The input receipt handle "%s" is not a valid receipt handle.`, handle)
					switch n % 5 {
					case 0:
						return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", Message: text, SenderFault: true}
					case 1:
						return &sqsmodel.EntryError{Code: "InternalError", Message: text}
					}
					return nil
				}
				for _, action := range []string{deleteBatch, visibilityBatch} {
					q.Inject(sqsmodel.Fault{Action: action, FailEntries: noise})
				}
				if quoteHandles {
					var pick string
					q.Inject(sqsmodel.Fault{
						Code: "InvalidParameterValueException", Message: "Value AQEBhush-handle for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
						Match: func(c sqsmodel.Call) bool {
							return c.Action != receiveMessage && c.Action != queueAttributes && pick == ""
						}, Skip: 3, Times: 40,
					})
					// As SQS answers a signature that doesn't fit: with the request as it saw it.
					q.Inject(sqsmodel.Fault{
						Action: receiveMessage, Code: "InvalidSignatureException", Skip: 10, Times: 10,
						Message: "The request signature we calculated does not match the signature you provided.\n\nThe Canonical String for this request should have been\n'POST\n/\n\nx-amz-security-token:" + session + "\n",
					})
				}
				q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "InternalFailure", Skip: 30, Times: 5})
				q.Inject(sqsmodel.Fault{Action: receiveMessage, CorruptMD5: func(id string) bool { return id[0] == '3' }, Times: 20})
				w := q.startWith(client, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
					if m.Attribute("k") != attribute || !strings.HasPrefix(m.Body, body) {
						t.Error("the handler doesn't see the contents")
					}
					m.AfterDelete(func(context.Context) error { return errNo })
					switch (int(m.ID[1]) + m.ReceiveCount) % 10 {
					case 0:
						return fmt.Errorf("handling %v: %w", m, errNo)
					case 1:
						panic(m)
					case 2:
						panic(fmt.Errorf("panic: %+v", m))
					case 3:
						runtime.Goexit()
					case 4:
						return worker.Permanent(errNo)
					case 5:
						time.Sleep(9 * time.Second)
						return worker.RetryAfter(time.Second, fmt.Errorf("%q", m))
					case 6:
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				}), worker.Config{Concurrency: 20, HandlerTimeout: 2 * time.Second, Retries: 1, DeadLetter: &sink{fail: func(context.Context) error { return errNo }}})
				var said []string
				for range 40 {
					time.Sleep(time.Second)
					if err := w.Healthy(); err != nil {
						said = append(said, fmt.Sprintf("%+v", err))
					}
				}
				q.Inject(sqsmodel.Fault{Stall: true})
				if err := w.stop(); err != nil {
					said = append(said, fmt.Sprintf("%+v", err))
				}
				said = append(said, w.log.atLeast(slog.LevelDebug)...)
				said = append(said, fmt.Sprintf("%+v %+v %#v", w.Worker, w.Stats(), w.Stats()))
				if s := w.Stats(); s.Failed == 0 || s.Panics == 0 || s.Lost == 0 || s.DeleteFailures == 0 || s.Corrupt == 0 || s.Overdue == 0 || s.AfterDeleteFailures == 0 || len(said) < 100 {
					t.Errorf("it wasn't noisy: %+v", s)
				}
				delete(handles, "")
				secrets := append(slices.Collect(maps.Keys(handles)), body, attribute, accessKey, secretKey, session, "hush-handle", "Canonical")
				for _, line := range said {
					for _, secret := range secrets {
						if strings.Contains(line, secret) {
							t.Fatalf("%q is in: %s", secret, line)
						}
					}
				}
			})
		})
	}
}

// A handler owns the message that it was given, and may change it while the worker reports on it.
func TestWorkerDoesNotDependOnWhatAHandlerMakesOfItsMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "5")
		ids := q.send(6)
		slices.Sort(ids)
		release := make(chan struct{})
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			body := m.Body
			for {
				m.ID, m.Body, m.QueueURL, m.GroupID = "other", "decoded", "elsewhere", "other"
				m.ReceiveCount, m.Attempt = m.ReceiveCount+1, 1
				select {
				case <-release:
					return nil
				case <-time.After(100 * time.Millisecond):
				}
				switch body {
				case "0":
					return nil
				case "1":
					return errNo
				case "2":
					panic("no")
				}
			}
		}), worker.Config{HandlerTimeout: time.Second, DrainTimeout: 5 * time.Second})
		time.Sleep(10 * time.Second) // the last three are overdue
		for _, id := range ids {
			if q.message(id).Body == "0" {
				t.Error("the first isn't deleted")
			}
		}
		err := w.stop()
		var drain *worker.DrainError
		if !errors.As(err, &drain) || len(drain.Running) < 3 {
			t.Fatalf("Run returned %v", err)
		}
		for _, id := range drain.Running {
			if !slices.Contains(ids, id) {
				t.Errorf("the error names %q", id)
			}
		}
		if lines := w.log.with("other"); len(lines) > 0 {
			t.Errorf("logged %q", lines[0])
		}
		if s := w.Stats(); s.Held != 0 || s.Overdue < 3 {
			t.Errorf("%d held, %d overdue", s.Held, s.Overdue)
		}
		close(release)
		time.Sleep(time.Second)
	})
}

// The same on a FIFO queue, where the group is what goes on or waits.
func TestGroupDoesNotDependOnWhatAHandlerMakesOfItsMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := &fixture{Server: sqsmodel.New(sqsmodel.Config{}), t: t}
		q.url = q.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true"})
		q.MustSendGroup(q.url, "a", "1", "2", "3")
		q.MustSendGroup(q.url, "b", "1", "2", "3")
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			m.GroupID, m.SequenceNumber = "other", "0"
			if m.Body == "2" && m.ReceiveCount == 1 {
				return errNo
			}
			return nil
		}), worker.Config{})
		eventually(t, 5*time.Minute, "the queue is empty", func() bool { return len(q.Queue("work.fifo").Messages) == 0 })
		w.mustStop()
	})
}
