package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func stringAttribute(value string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
}

// names records which handler was called.
type names []string

func (n *names) handler(name string) worker.Handler {
	return worker.HandlerFunc(func(context.Context, *worker.Message) error {
		*n = append(*n, name)
		return nil
	})
}

func TestRouterGoesByTypeAndRefusesWhatItDoesNotKnow(t *testing.T) {
	var called names
	byField := worker.Router{By: worker.ByJSONField("header", "type"), Ignore: []string{"ping"}, Routes: map[string]worker.Handler{
		"order.created": called.handler("created"), "order.paid": called.handler("paid"),
	}}
	withFallback := byField
	withFallback.Fallback = called.handler("fallback")
	body := func(typ string) string { return `{"noise": ["type"], "header": {"id": 1, "type": ` + typ + `}}` }
	cases := map[string]struct {
		router worker.Router
		body   string
		called string
		err    string // in its text; empty: success
	}{
		"known":                     {byField, body(`"order.paid"`), "paid", ""},
		"ignored by name":           {byField, body(`"ping"`), "", ""},
		"ignored, with fallback":    {withFallback, body(`"ping"`), "", ""},
		"unknown":                   {byField, body(`"order.deleted"`), "", `no handler for messages of type "order.deleted"`},
		"other case":                {byField, body(`"Order.Paid"`), "", `no handler`},
		"unknown, with fallback":    {withFallback, body(`"order.deleted"`), "fallback", ""},
		"no type":                   {byField, `{"header": {}}`, "", "the message has no type"},
		"null type":                 {byField, body(`null`), "", "the message has no type"},
		"empty type":                {byField, body(`""`), "", "the message has no type"},
		"no type, with fallback":    {withFallback, `{}`, "fallback", ""},
		"the last of two counts":    {byField, `{"header":{"type":"x"},"header":{"type":"order.created"}}`, "created", ""},
		"type isn't a string":       {byField, body(`17`), "", "permanent: worker: the body can't be read as JSON object with a type: field header.type, at byte 48, is a number, must be a string"},
		"in something else":         {byField, `{"header": "order.paid"}`, "", "permanent: worker: the body can't be read as JSON object with a type: field header, at byte 11, is a string, must be an object"},
		"not JSON":                  {byField, `order.paid`, "", "permanent: "},
		"not JSON, with fallback":   {withFallback, ``, "", "permanent: "},
		"an array":                  {byField, ` [1]`, "", "permanent: "},
		"unprintable type":          {byField, body(`"x\nlevel=ERROR\u001b[2J"`), "", "type (with characters that a type shouldn't have)"},
		"a whole document for type": {byField, body(`"` + strings.Repeat("y", 5000) + `"`), "", "type (of 5000 bytes)"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			called = nil
			err := handleBody(c.router, c.body)
			if (c.err == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if got := strings.Join(called, ","); got != c.called {
				t.Errorf("called %q, want %q", got, c.called)
			}
			var unknown *worker.UnknownTypeError
			if errors.As(err, &unknown) && (isPermanent(err) || len(unknown.Known) != 2) {
				t.Errorf("an unknown type must come back, and say what is known: %v, %v", err, unknown.Known)
			}
		})
	}
}

func TestRouterGoesByAttribute(t *testing.T) {
	var called names
	r := &worker.Router{By: worker.ByAttribute("type"), Routes: map[string]worker.Handler{"a": called.handler("a")}}
	m := &worker.Message{Body: "not JSON", Attributes: map[string]types.MessageAttributeValue{"type": stringAttribute("a"), "kind": stringAttribute("b")}}
	if err := r.Handle(context.Background(), m); err != nil || len(called) != 1 {
		t.Errorf("got %v, called %v", err, called)
	}
	r.By = worker.ByAttribute("kind")
	if err := r.Handle(context.Background(), m); err == nil {
		t.Error("an unknown type succeeded")
	}
}

func TestRouterMistakesAreReportedTogether(t *testing.T) {
	q := newQueue(t)
	_, err := worker.New(q.Client(), q.url, worker.Router{
		Routes: map[string]worker.Handler{"": worker.HandlerFunc(succeed), "a": nil, "b": worker.HandlerFunc(succeed), "c": worker.Router{By: worker.ByAttribute("x")}},
		Ignore: []string{"b", ""},
	}, worker.Config{})
	for _, text := range []string{"Router.By is missing", "handler for the empty type", `Routes["a"] is nil`, `Ignore has "b"`, "Ignore has the empty type", "Routes is empty"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q isn't in %v", text, err)
		}
	}
	for name, r := range map[string]worker.Router{
		"no field":     {By: worker.ByJSONField(), Fallback: worker.HandlerFunc(succeed)},
		"no attribute": {By: worker.ByAttribute(""), Fallback: worker.HandlerFunc(succeed)},
		"no By":        {Fallback: worker.HandlerFunc(succeed)},
	} {
		if err := handleBody(r, `{}`); err == nil {
			t.Errorf("%s: a message was handled", name)
		}
	}
}

func TestUnknownTypeIsNeverDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3)
		for _, typ := range []string{"known", "unknown", "ignored"} {
			if _, err := q.Client().SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: &typ,
				MessageAttributes: map[string]types.MessageAttributeValue{"type": stringAttribute(typ)}}); err != nil {
				t.Fatal(err)
			}
		}
		w := q.start(worker.Router{By: worker.ByAttribute("type"), Ignore: []string{"ignored"},
			Routes: map[string]worker.Handler{"known": worker.HandlerFunc(succeed)}}, worker.Config{})
		q.mustEmpty(time.Hour)
		w.mustStop()
		q.mustHaveHappened(sqsmodel.Deleted, 2)
		q.mustHaveHappened(sqsmodel.DeadLettered, 1)
		if dead := q.Queue(testDLQ).Messages; len(dead) != 1 || dead[0].Body != "unknown" || dead[0].ReceiveCount < 3 {
			t.Errorf("in the dead-letter queue: %+v", dead)
		}
	})
}
