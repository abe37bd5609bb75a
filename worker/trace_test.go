package worker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// tracing is a real tracer provider that keeps every span in memory.
type tracing struct {
	t        *testing.T
	exporter *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
}

func newTracing(t *testing.T) *tracing {
	exporter := tracetest.NewInMemoryExporter()
	return &tracing{t, exporter, sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))}
}

func (x *tracing) config() worker.Telemetry { return worker.Telemetry{TracerProvider: x.provider} }

// named are the spans of a name that have ended.
func (x *tracing) named(name string) (found tracetest.SpanStubs) {
	for _, s := range x.exporter.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// only is the one span of a name.
func (x *tracing) only(name string) tracetest.SpanStub {
	x.t.Helper()
	found := x.named(name)
	if len(found) != 1 {
		x.t.Fatalf("%d spans are named %q, want 1; there are %v", len(found), name, x.names())
	}
	return found[0]
}

func (x *tracing) names() (all []string) {
	for _, s := range x.exporter.GetSpans() {
		all = append(all, s.Name)
	}
	return all
}

// produce sends one message from within a span.
func (x *tracing) produce(q *fixture, change func(*sqs.SendMessageInput)) (id string, from trace.SpanContext) {
	x.t.Helper()
	ctx, span := x.provider.Tracer("producer").Start(context.Background(), "checkout")
	defer span.End()
	in := &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String("a secret body")}
	if change != nil {
		change(in)
	}
	worker.Inject(ctx, in)
	out, err := q.Client().SendMessage(ctx, in)
	if err != nil {
		x.t.Fatal(err)
	}
	return *out.MessageId, span.SpanContext()
}

func mustHave(t *testing.T, s tracetest.SpanStub, want ...attribute.KeyValue) {
	t.Helper()
	have := attribute.NewSet(s.Attributes...)
	for _, w := range want {
		if got, ok := have.Value(w.Key); !ok || got.String() != w.Value.String() {
			t.Errorf("span %q: %s is %q, want %q", s.Name, w.Key, got.String(), w.Value.String())
		}
	}
}

func mustLinkTo(t *testing.T, s tracetest.SpanStub, want ...trace.SpanContext) {
	t.Helper()
	var got, wanted []string
	for _, l := range s.Links {
		got = append(got, l.SpanContext.TraceID().String()+l.SpanContext.SpanID().String())
	}
	for _, w := range want {
		wanted = append(wanted, w.TraceID().String()+w.SpanID().String())
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		t.Errorf("span %q links to %v, want %v", s.Name, got, wanted)
	}
}

func TestAMessagesLifeIsSpansByTheConventions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		id, from := x.produce(q, nil)
		w := q.start(takes(time.Second), worker.Config{Telemetry: x.config()})
		q.mustEmpty(time.Minute)
		w.mustStop()

		common := []attribute.KeyValue{
			semconv.MessagingSystemAWSSQS, semconv.MessagingDestinationName(testQueue), semconv.AWSSQSQueueURL(q.url),
			semconv.ServerAddress(strings.Split(strings.Split(q.url, "//")[1], "/")[0]),
		}
		receive, process, del := x.only("receive work"), x.only("process work"), x.only("delete work")
		for _, c := range []struct {
			span  tracetest.SpanStub
			kind  trace.SpanKind
			links []trace.SpanContext
			more  []attribute.KeyValue
		}{
			{receive, trace.SpanKindClient, []trace.SpanContext{from}, []attribute.KeyValue{
				semconv.MessagingOperationName("receive"), semconv.MessagingOperationTypeReceive, semconv.MessagingBatchMessageCount(1)}},
			{process, trace.SpanKindConsumer, []trace.SpanContext{from}, []attribute.KeyValue{
				semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess, semconv.MessagingMessageID(id),
				attribute.String("sqsworker.outcome", "succeeded"), attribute.Int("sqsworker.receive_count", 1), attribute.Int("sqsworker.attempt", 1)}},
			{del, trace.SpanKindClient, []trace.SpanContext{process.SpanContext}, []attribute.KeyValue{
				semconv.MessagingOperationName("delete"), semconv.MessagingOperationTypeSettle, semconv.MessagingBatchMessageCount(1)}},
		} {
			if c.span.SpanKind != c.kind {
				t.Errorf("span %q is %v, want %v", c.span.Name, c.span.SpanKind, c.kind)
			}
			if c.span.Parent.IsValid() {
				t.Errorf("span %q has a parent; it should have links", c.span.Name)
			}
			if c.span.Status.Code != codes.Unset {
				t.Errorf("span %q has status %v", c.span.Name, c.span.Status)
			}
			mustHave(t, c.span, append(common, c.more...)...)
			mustLinkTo(t, c.span, c.links...)
			set := attribute.NewSet(c.span.Attributes...)
			if _, ok := set.Value(semconv.AWSRequestIDKey); !ok && c.kind == trace.SpanKindClient {
				t.Errorf("span %q has no %s", c.span.Name, semconv.AWSRequestIDKey)
			}
			if c.span.InstrumentationScope.SchemaURL != semconv.SchemaURL {
				t.Errorf("span %q has schema %q", c.span.Name, c.span.InstrumentationScope.SchemaURL)
			}
		}
		if took := process.EndTime.Sub(process.StartTime); took != time.Second {
			t.Errorf("the process span took %v, want the handler's 1s", took)
		}
	})
}

func TestProcessIsAChildOfTheProducersSpanOnRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		_, from := x.produce(q, nil)
		q.send(1) // one that nobody traced
		cfg := x.config()
		cfg.ParentFromMessage = true
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: cfg})
		q.mustEmpty(time.Minute)
		w.mustStop()

		children := 0
		for _, s := range x.named("process work") {
			if s.Parent.SpanID() == from.SpanID() && s.SpanContext.TraceID() == from.TraceID() {
				children++
			} else if s.Parent.IsValid() {
				t.Errorf("a message without a producer's span got parent %v", s.Parent)
			}
		}
		if children != 1 {
			t.Errorf("%d process spans are children of the producer's, want 1", children)
		}
	})
}

func TestEmptyReceivesMakeNoSpans(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config()})
		time.Sleep(10 * time.Minute)
		w.mustStop()
		if n := x.names(); len(n) > 0 {
			t.Errorf("an idle worker made spans: %v", n)
		}
	})
}

func TestRenewalsAreEventsOfTheProcessSpan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t, "VisibilityTimeout", "30"), newTracing(t)
		x.produce(q, nil)
		w := q.start(takes(35*time.Second), worker.Config{Telemetry: x.config()})
		q.mustEmpty(time.Minute)
		w.mustStop()
		var events []string
		for _, e := range x.only("process work").Events {
			events = append(events, e.Name)
		}
		if want := slices.Repeat([]string{"lease renewed"}, 3); !slices.Equal(events, want) {
			t.Errorf("events are %v, want %v", events, want)
		}
		if n := x.named("change_visibility work"); len(n) > 0 {
			t.Errorf("%d spans for calls that only renewed", len(n))
		}
	})
}

func TestAReleaseIsASpanThatLinksToTheHandlersRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		x.produce(q, nil)
		w := q.start(returns(errors.New("no luck")), worker.Config{Telemetry: x.config(), Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		eventually(t, time.Minute, "a release", func() bool { return len(x.named("change_visibility work")) > 0 })
		w.mustStop()
		process, release := x.only("process work"), x.only("change_visibility work")
		mustLinkTo(t, release, process.SpanContext)
		mustHave(t, release, semconv.MessagingOperationName("change_visibility"), semconv.MessagingOperationTypeSettle, semconv.MessagingBatchMessageCount(1))
		mustHave(t, process, attribute.String("sqsworker.outcome", "failed"), semconv.ErrorTypeKey.String("*errors.errorString"))
		if process.Status.Code != codes.Error || process.Status.Description != "no luck" {
			t.Errorf("the process span's status is %v", process.Status)
		}
	})
}

func TestTheTypeOfAFailureIsOnItsSpan(t *testing.T) {
	each(t, map[string]struct {
		handler worker.HandlerFunc
		kind    string
	}{
		"a panic":                    {func(context.Context, *worker.Message) error { panic("ouch") }, "panic"},
		"a timeout":                  {takes(time.Minute), "timeout"},
		"permanent":                  {returns(worker.Permanent(fmt.Errorf("bad order: %w", errBadOrder{}))), "github.com/sqsworker/sqsworker/worker_test.errBadOrder"},
		"an AWS error":               {returns(&types.QueueDoesNotExist{}), "QueueDoesNotExist"},
		"a dependency":               {returns(worker.Unavailable(errors.New("database"))), "unavailable"},
		"one that says its own type": {returns(fmt.Errorf("paying: %w", errCard{})), "card_declined"},
	}, func(t *testing.T, c struct {
		handler worker.HandlerFunc
		kind    string
	}) {
		q, x := newQueue(t), newTracing(t)
		x.produce(q, nil)
		w := q.start(c.handler, worker.Config{Telemetry: x.config(), HandlerTimeout: time.Second, Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		eventually(t, time.Minute, "a run", func() bool { return len(x.named("process work")) > 0 })
		w.mustStop()
		mustHave(t, x.only("process work"), semconv.ErrorTypeKey.String(c.kind))
	})
}

type errBadOrder struct{}

func (errBadOrder) Error() string { return "no amount" }

type errCard struct{}

func (errCard) Error() string     { return "declined" }
func (errCard) ErrorType() string { return "card_declined" }

func TestAFailedCallsCodeIsOnItsSpan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Times: 1, Code: "AccessDeniedException"})
		x.produce(q, nil)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config()})
		<-w.done // denied at the first receive: it gives up
		receives := x.named("receive work")
		if len(receives) != 1 {
			t.Fatalf("spans: %v", x.names())
		}
		mustHave(t, receives[0], semconv.ErrorTypeKey.String("AccessDenied"), semconv.MessagingBatchMessageCount(0))
	})
}

func TestAFailedEntryOfABatchIsOnItsSpan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Times: 1, FailEntries: func(_ sqsmodel.Call, entry int, _, handle string) *sqsmodel.EntryError {
			if entry != 1 {
				return nil
			}
			return &sqsmodel.EntryError{Code: "InternalError", Message: "we had a problem with " + handle}
		}})
		q.send(2)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config()})
		q.mustEmpty(time.Minute)
		w.mustStop()
		deletes := x.named("delete work")
		if len(deletes) != 2 {
			t.Fatalf("spans: %v", x.names())
		}
		mustHave(t, deletes[0], semconv.ErrorTypeKey.String("InternalError"), attribute.Int("sqsworker.batch.failed_count", 1), semconv.MessagingBatchMessageCount(2))
		if deletes[0].Status.Code != codes.Error {
			t.Errorf("the span of a delete with a failed entry has status %v", deletes[0].Status)
		}
	})
}

func TestTheContextComesThroughWhenTheTenAttributesAreUsedUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		_, from := x.produce(q, func(in *sqs.SendMessageInput) { in.MessageAttributes = tenAttributes(10) })
		var attributes map[string]types.MessageAttributeValue
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			attributes = m.Attributes
			return nil
		}), worker.Config{Telemetry: x.config()})
		q.mustEmpty(time.Minute)
		w.mustStop()
		if len(attributes) != 10 || attributes["traceparent"].StringValue != nil {
			t.Errorf("the message arrived with attributes %v, want the producer's own ten", slices.Sorted(maps.Keys(attributes)))
		}
		mustLinkTo(t, x.only("receive work"), from)
	})
}

// tenAttributes are n attributes of the sender's.
func tenAttributes(n int) map[string]types.MessageAttributeValue {
	all := map[string]types.MessageAttributeValue{}
	for i := range n {
		all[fmt.Sprint("name", i)] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String("value")}
	}
	return all
}

func TestTheContextIsReceivedWhateverAttributesAreAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		_, from := x.produce(q, func(in *sqs.SendMessageInput) {
			in.MessageSystemAttributes = map[string]types.MessageSystemAttributeValue{"AWSTraceHeader": {
				DataType: aws.String("String"), StringValue: aws.String("Root=1-00000000-000000000000000000000001;Parent=0000000000000002;Sampled=1")}}
		})
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config(), MessageAttributes: []string{"tenant"}})
		q.mustEmpty(time.Minute)
		w.mustStop()
		mustLinkTo(t, x.only("receive work"), from) // W3C's before X-Ray's
	})
}

func TestWhatIsDoneForAMessageIsUnderItsProcessSpan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t, "VisibilityTimeout", "30"), newTracing(t)
		x.produce(q, nil)
		var mu sync.Mutex
		seen := map[string]trace.SpanContext{}
		note := func(what string, ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			seen[what] = trace.SpanContextFromContext(ctx)
		}
		sink := sinkFunc(func(ctx context.Context, _ *worker.Message, _ error) error { note("sink", ctx); return nil })
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			note("handler", ctx)
			m.AfterDelete(func(ctx context.Context) error { note("after the delete", ctx); return nil })
			if err := worker.OnRenew(ctx, func(ctx context.Context, _ time.Time) error { note("renewal", ctx); return nil }); err != nil {
				return err
			}
			time.Sleep(15 * time.Second)
			return worker.Permanent(errors.New("beyond help"))
		}), worker.Config{Telemetry: x.config(), DeadLetter: sink})
		q.mustEmpty(time.Minute)
		w.mustStop()
		process := x.only("process work")
		for _, what := range []string{"handler", "renewal", "sink", "after the delete"} {
			if seen[what].SpanID() != process.SpanContext.SpanID() {
				t.Errorf("%s: the span in its context is %v, want the process span", what, seen[what].SpanID())
			}
		}
	})
}

type sinkFunc func(context.Context, *worker.Message, error) error

func (f sinkFunc) DeadLetter(ctx context.Context, m *worker.Message, reason error) error {
	return f(ctx, m, reason)
}

func TestWhatTheProducerSentAlongReachesTheHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
		x.produce(q, func(in *sqs.SendMessageInput) {
			in.MessageAttributes = map[string]types.MessageAttributeValue{"baggage": {DataType: aws.String("String"), StringValue: aws.String("tenant=acme")}}
		})
		cfg := x.config()
		cfg.Propagator = both
		var got string
		var lease bool
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			carrier := propagation.MapCarrier{}
			propagation.Baggage{}.Inject(ctx, carrier)
			got = carrier["baggage"]
			_, lease = worker.LeaseDeadline(ctx)
			return nil
		}), worker.Config{Telemetry: cfg})
		q.mustEmpty(time.Minute)
		w.mustStop()
		if got != "tenant=acme" || !lease {
			t.Errorf("the handler's context carries baggage %q and a lease: %v", got, lease)
		}
	})
}

func TestNothingSecretIsInASpan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		x.produce(q, nil)
		q.Inject(sqsmodel.Fault{Action: visibilityBatch, Times: 1, FailEntries: func(_ sqsmodel.Call, _ int, _, handle string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", Message: "The input receipt handle " + handle + " is not a valid receipt handle.", SenderFault: true}
		}})
		w := q.start(returns(errors.New("no luck")), worker.Config{Telemetry: x.config()})
		time.Sleep(5 * time.Minute)
		_ = w.stop()
		var text strings.Builder
		for _, s := range x.exporter.GetSpans() {
			fmt.Fprintf(&text, "%s %v %v %v\n", s.Name, s.Attributes, s.Events, s.Status)
		}
		for _, e := range q.events("", sqsmodel.Received) {
			if strings.Contains(text.String(), e.Handle) {
				t.Errorf("a receipt handle is in a span:\n%s", text.String())
			}
		}
		if strings.Contains(text.String(), "a secret body") {
			t.Errorf("a body is in a span:\n%s", text.String())
		}
	})
}

func TestMessageGroupsAreOnSpansOnlyOnRequest(t *testing.T) {
	each(t, map[string]bool{"by default": false, "on request": true}, func(t *testing.T, on bool) {
		q, x := newQueue(t), newTracing(t)
		x.produce(q, func(in *sqs.SendMessageInput) { in.MessageGroupId = aws.String("acme") })
		cfg := x.config()
		cfg.GroupAttribute = on
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: cfg})
		q.mustEmpty(time.Minute)
		w.mustStop()
		if has := strings.Contains(fmt.Sprint(x.only("process work").Attributes), "acme"); has != on {
			t.Errorf("the group is on the span: %v, want %v", has, on)
		}
	})
}

func TestTheGlobalProviderIsUsedWhenTheProgramHasSetOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newTracing(t)
		otel.SetTracerProvider(x.provider)
		defer otel.SetTracerProvider(noop.NewTracerProvider())
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		off := newQueue(t)
		off.send(1)
		silent := off.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: worker.Telemetry{TracerProvider: noop.NewTracerProvider()}})
		q.send(1)
		q.mustEmpty(time.Minute)
		off.mustEmpty(time.Minute)
		w.mustStop()
		silent.mustStop()
		x.only("process work")
	})
}
