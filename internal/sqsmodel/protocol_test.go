package sqsmodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestRequestsThatAreNone(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		for _, tc := range []struct{ action, body, shape string }{
			{"Dance", "{}", "UnknownOperationException"},
			{"", "", "UnknownOperationException"},
			{"SendMessage", "{", "SerializationException"},
			{"SendMessage", `{"QueueUrl":5}`, "SerializationException"},
			{"SendMessage", `[]`, "SerializationException"},
			{"SendMessage", ``, "MissingRequiredParameterException"},
			{"ReceiveMessage", `{"QueueUrl":"https://x/123456789012/y"}`, "QueueDoesNotExist"},
		} {
			status, header, body := a.raw(tc.action, tc.body)
			var e struct {
				Type    string `json:"__type"`
				Message string `json:"message"`
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if status != 400 || e.Type != "com.amazonaws.sqs#"+tc.shape || header.Get("x-amzn-RequestId") == "" ||
				header.Get("Content-Type") != "application/x-amz-json-1.0" {
				t.Errorf("%s %s: %d %v %s", tc.action, tc.body, status, header, body)
			}
		}
	})
}

func TestContextThatIsOverFailsTheCallAsHTTPDoes(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		u := a.queue("work")
		cause := errors.New("because")
		ctx, cancel := context.WithCancelCause(a.Context())
		cancel(cause)
		req := newRequest(a, "SendMessage", `{"QueueUrl":"`+u+`","MessageBody":"m"}`).WithContext(ctx)
		res, err := a.s.Do(req)
		if ue := new(url.Error); res != nil || !errors.As(err, &ue) || !errors.Is(err, cause) {
			t.Errorf("got %v, %v", res, err)
		}
		a.state(u, 0, 0, 0)
		if _, err := a.tryReceive(ctx, u); !errors.Is(err, context.Canceled) { // the SDK's own
			t.Errorf("got %v", err)
		}
	})
}

func TestServerSpeaksOverASocket(t *testing.T) {
	s := sqsmodel.New(sqsmodel.Config{Latency: time.Millisecond})
	srv := httptest.NewServer(s)
	defer srv.Close()
	c := sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: &srv.URL, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
		}),
	})
	u := s.MustCreateQueue("work", nil)
	s.MustSend(u, "m")
	ctx := t.Context()
	out, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &u})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("got %v, %v", out, err)
	}
	_, err = c.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("missing")})
	if !isA[*types.QueueDoesNotExist](err) {
		t.Errorf("got %v", err)
	}
	s.Inject(sqsmodel.Fault{Action: "DeleteMessage", DropAfter: true, Times: 1})
	if _, err = c.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &u, ReceiptHandle: out.Messages[0].ReceiptHandle}); err == nil {
		t.Error("no error from a connection that was dropped")
	}
	if n := len(s.Queue(u).Messages); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &u, WaitTimeSeconds: 20}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	for s.Queue(u).OpenPolls > 0 {
		time.Sleep(time.Millisecond) // the server sees the disconnect a little later
	}
}

func TestCallsAreRecorded(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		u := a.queue("work")
		ids := a.send(u, "1", "2")
		start := time.Now()
		got := a.receive(u, wait(20), visibility(9))
		a.ok(a.change(u, got[0], 17))
		a.receive(u, wait(3))
		_ = a.sendInput(&sqs.SendMessageInput{QueueUrl: aws.String(u + "x"), MessageBody: aws.String("m")})
		calls := a.s.Calls()[3:]
		if len(calls) != 4 {
			t.Fatalf("recorded %+v", calls)
		}
		r := calls[0]
		if r.Action != "ReceiveMessage" || r.Queue != "work" || !r.At.Equal(start) || r.Messages != 2 || r.MaxMessages != 10 || r.WaitSeconds != 20 ||
			strings.Join(r.MessageIDs, " ") != strings.Join(ids, " ") || r.ReceiptHandles[1] != *got[1].ReceiptHandle || r.VisibilityTimeouts[0] != 9 {
			t.Errorf("receive %+v", r)
		}
		if in, ok := r.Input.(*sqs.ReceiveMessageInput); !ok || in.WaitTimeSeconds != 20 || *in.QueueUrl != u {
			t.Errorf("input %+v", r.Input)
		}
		if c := calls[1]; c.VisibilityTimeouts[0] != 17 || c.ReceiptHandles[0] != *got[0].ReceiptHandle {
			t.Errorf("change %+v", c)
		}
		if c := calls[2]; c.Done.Sub(c.At) != 3*time.Second {
			t.Errorf("poll %+v", c)
		}
		if c := calls[3]; c.Err != "AWS.SimpleQueueService.NonExistentQueue" || c.Queue != "workx" {
			t.Errorf("failure %+v", c)
		}
		if n, all := a.s.Count("ReceiveMessage"), a.s.Count(""); n != 2 || all != 7 {
			t.Errorf("counted %d of %d", n, all)
		}
		a.s.ResetCounts()
		a.s.RecordCalls(false)
		a.send(u, "m")
		if n := a.s.Count("SendMessage"); n != 1 || len(a.s.Calls()) != 0 {
			t.Errorf("counted %d, recorded %d", n, len(a.s.Calls()))
		}
	})
}

func TestEventsTellTheWholeStory(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		u, _ := a.withDLQ("work", 2)
		var mu sync.Mutex
		var live []sqsmodel.EventKind
		remove := a.s.OnEvent(func(e sqsmodel.Event) {
			a.s.Queue("work") // a listener may look at the server
			mu.Lock()
			defer mu.Unlock()
			live = append(live, e.Kind)
		})
		a.send(u, "m")
		m := a.one(u)
		a.ok(a.change(u, m, 20))
		time.Sleep(20 * time.Second)
		a.ok(a.change(u, a.one(u), 0))
		a.receive(u)
		want := []sqsmodel.EventKind{sqsmodel.Sent, sqsmodel.Received, sqsmodel.VisibilityChanged, sqsmodel.Expired, sqsmodel.Received, sqsmodel.VisibilityChanged, sqsmodel.DeadLettered}
		events := a.s.Journal()
		if len(events) != len(want) || len(live) != len(want) {
			t.Fatalf("journal %v, live %v", events, live)
		}
		for i, e := range events {
			if e.Kind != want[i] || live[i] != want[i] || e.Queue != "work" || e.MessageID != *m.MessageId {
				t.Errorf("event %d: %+v, live %v, want %v", i, e, live[i], want[i])
			}
		}
		if e := events[2]; e.VisibilityTimeout != 20*time.Second || e.Handle != *m.ReceiptHandle || e.ReceiveCount != 1 {
			t.Errorf("change %+v", e)
		}
		if e := events[3]; e.At.Sub(events[2].At) != 20*time.Second || e.Handle != *m.ReceiptHandle {
			t.Errorf("expiry %+v", e)
		}
		remove()
		a.send(u, "m")
		if len(live) != len(want) {
			t.Error("a removed listener was called")
		}
	})
}

func TestConveniencesAreNoCalls(t *testing.T) {
	inBubble(t, sqsmodel.Config{Latency: time.Hour}, func(a *account) {
		start := time.Now()
		u := a.s.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true"})
		if ids := a.s.MustSend(u, "1", "2"); len(ids) != 2 || ids[0] == ids[1] {
			t.Error(ids)
		}
		a.s.MustSendGroup(u, "g", "3", "4")
		groups := map[string]bool{}
		for _, m := range a.s.Queue("work.fifo").Messages {
			groups[m.GroupID] = true
		}
		if len(groups) != 3 || a.s.Count("") != 0 || time.Since(start) != 0 {
			t.Errorf("groups %v, %d calls", groups, a.s.Count(""))
		}
		if st := a.s.Queue("missing"); st.Name != "" {
			t.Errorf("got %+v", st)
		}
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		a.s.MustCreateQueue("not a name", nil)
	})
}

func TestTwoHundredThousandMessagesAreInFlight(t *testing.T) {
	inBubble(t, sqsmodel.Config{InFlightLimit: 1_000_000}, func(a *account) {
		a.s.RecordJournal(false)
		a.s.RecordCalls(false)
		u := a.queue("work")
		const n = manyMessages
		bodies := make([]string, n)
		for i := range bodies {
			bodies[i] = "m"
		}
		a.s.MustSend(u, bodies...)
		body := `{"QueueUrl":"` + u + `","MaxNumberOfMessages":10}`
		for range n / 10 {
			res, err := a.s.Do(newRequest(a, "ReceiveMessage", body))
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatal(res, err)
			}
		}
		a.state(u, 0, n, 0)
		time.Sleep(30 * time.Second)
		a.state(u, n, 0, 0)
	})
}
