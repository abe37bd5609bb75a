package sqsmodel_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// account is a model with an SDK client that tries once.
type account struct {
	*testing.T
	s *sqsmodel.Server
	c *sqs.Client
}

// inBubble runs a story in virtual time and then checks the model's structures.
func inBubble(t *testing.T, cfg sqsmodel.Config, story func(a *account)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAccount(t, cfg)
		story(a)
		if err := a.s.Consistent(); err != nil {
			t.Error(err)
		}
	})
}

func newAccount(t *testing.T, cfg sqsmodel.Config) *account {
	s := sqsmodel.New(cfg)
	return &account{t, s, s.Client(func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} })}
}

func (a *account) queue(name string, attrs ...string) string {
	a.Helper()
	m := map[string]string{}
	for i := 0; i < len(attrs); i += 2 {
		m[attrs[i]] = attrs[i+1]
	}
	if strings.HasSuffix(name, ".fifo") {
		m["FifoQueue"] = "true"
	}
	out, err := a.c.CreateQueue(a.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: m})
	if err != nil {
		a.Fatal(err)
	}
	return *out.QueueUrl
}

// withDLQ creates a queue and its dead-letter queue.
func (a *account) withDLQ(name string, maxReceives int, attrs ...string) (url, dlq string) {
	base, suffix := strings.CutSuffix(name, ".fifo")
	dlqName := base + "-dlq"
	if suffix {
		dlqName += ".fifo"
	}
	dlq = a.queue(dlqName)
	return a.queue(name, append(attrs, "RedrivePolicy", redrive(dlqName, maxReceives))...), dlq
}

func redrive(dlq string, maxReceives int) string {
	return fmt.Sprintf(`{"deadLetterTargetArn":"%s","maxReceiveCount":%d}`, arn(dlq), maxReceives)
}

func arn(name string) string { return "arn:aws:sqs:us-east-1:123456789012:" + name }

func (a *account) send(url string, bodies ...string) (ids []string) {
	a.Helper()
	for _, b := range bodies {
		out, err := a.c.SendMessage(a.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &b})
		if err != nil {
			a.Fatal(err)
		}
		ids = append(ids, *out.MessageId)
	}
	return ids
}

// sendGroup sends "group/dedup" strings, each also as the body.
func (a *account) sendGroup(url string, messages ...string) {
	a.Helper()
	for _, m := range messages {
		group, _, _ := strings.Cut(m, "/")
		if _, err := a.c.SendMessage(a.Context(), &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: &m, MessageGroupId: &group, MessageDeduplicationId: &m,
		}); err != nil {
			a.Fatal(err)
		}
	}
}

type receiveOption func(*sqs.ReceiveMessageInput)

func visibility(seconds int32) receiveOption {
	return func(in *sqs.ReceiveMessageInput) { in.VisibilityTimeout = seconds }
}

func wait(seconds int32) receiveOption {
	return func(in *sqs.ReceiveMessageInput) { in.WaitTimeSeconds = seconds }
}

func atMost(n int32) receiveOption {
	return func(in *sqs.ReceiveMessageInput) { in.MaxNumberOfMessages = n }
}

func attempt(id string) receiveOption {
	return func(in *sqs.ReceiveMessageInput) { in.ReceiveRequestAttemptId = &id }
}

// receive asks for up to ten messages with all their attributes.
func (a *account) receive(url string, opts ...receiveOption) []types.Message {
	a.Helper()
	out, err := a.tryReceive(a.Context(), url, opts...)
	if err != nil {
		a.Fatal(err)
	}
	return out
}

func (a *account) tryReceive(ctx context.Context, url string, opts ...receiveOption) ([]types.Message, error) {
	in := &sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: 10,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
		MessageAttributeNames:       []string{"All"},
	}
	for _, o := range opts {
		o(in)
	}
	out, err := a.c.ReceiveMessage(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Messages, nil
}

// one receives exactly one message.
func (a *account) one(url string, opts ...receiveOption) types.Message {
	a.Helper()
	got := a.receive(url, append(opts, atMost(1))...)
	if len(got) != 1 {
		a.Fatalf("received %d messages, want 1", len(got))
	}
	return got[0]
}

func (a *account) delete(url string, m types.Message) error {
	_, err := a.c.DeleteMessage(a.Context(), &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle})
	return err
}

func (a *account) change(url string, m types.Message, seconds int32) error {
	_, err := a.c.ChangeMessageVisibility(a.Context(), &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &url, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: seconds,
	})
	return err
}

func (a *account) set(url, name, value string) error {
	_, err := a.c.SetQueueAttributes(a.Context(), &sqs.SetQueueAttributesInput{
		QueueUrl: &url, Attributes: map[string]string{name: value},
	})
	return err
}

func (a *account) ok(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// refused checks an error's code and the end of its text.
func (a *account) refused(err error, code, text string) {
	a.Helper()
	var e smithy.APIError
	if !errors.As(err, &e) {
		a.Errorf("got error %v, want %s", err, code)
		return
	}
	if e.ErrorCode() != code || !strings.HasSuffix(e.ErrorMessage(), text) {
		a.Errorf("got %s: %s\nwant %s: …%s", e.ErrorCode(), e.ErrorMessage(), code, text)
	}
}

func (a *account) status(err error, want int) {
	a.Helper()
	var e *smithyhttp.ResponseError
	if !errors.As(err, &e) || e.HTTPStatusCode() != want {
		a.Errorf("got %v, want HTTP status %d", err, want)
	}
}

func (a *account) state(url string, visible, inFlight, delayed int) {
	a.Helper()
	q := a.s.Queue(url)
	if q.Visible != visible || q.InFlight != inFlight || q.Delayed != delayed {
		a.Errorf("queue %s has %d visible, %d in flight, %d delayed; want %d, %d, %d",
			q.Name, q.Visible, q.InFlight, q.Delayed, visible, inFlight, delayed)
	}
}

func (a *account) bodies(got []types.Message, want ...string) {
	a.Helper()
	var list []string
	for _, m := range got {
		list = append(list, *m.Body)
	}
	if strings.Join(list, " ") != strings.Join(want, " ") {
		a.Errorf("received %v, want %v", list, want)
	}
}

func (a *account) events(kind sqsmodel.EventKind, want int64) {
	a.Helper()
	if n := a.s.CountEvents(kind); n != want {
		a.Errorf("%d %v events, want %d", n, kind, want)
	}
}

// raw posts to the model as a client without an SDK does.
func (a *account) raw(action, body string) (status int, header http.Header, answer string) {
	a.Helper()
	res, err := a.s.Do(newRequest(a, action, body))
	if err != nil {
		a.Fatal(err)
	}
	return res.StatusCode, res.Header, readAll(a.T, res)
}

type typesMessage = types.Message

func newRequest(a *account, action, body string) *http.Request {
	a.Helper()
	req, err := http.NewRequestWithContext(a.Context(), http.MethodPost, "https://sqs.us-east-1.amazonaws.com/", strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	req.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	return req
}
