package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go/middleware"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// Attributes of our own. Ours begin with "sqsworker.".
const (
	outcomeKey      = attribute.Key("sqsworker.outcome")       // what became of a message
	receiveCountKey = attribute.Key("sqsworker.receive_count") // ApproximateReceiveCount
	attemptKey      = attribute.Key("sqsworker.attempt")       // Message.Attempt
	failedCountKey  = attribute.Key("sqsworker.batch.failed_count")
	groupKey        = attribute.Key("sqsworker.message_group.id") // only with Telemetry.GroupAttribute
	workerNameKey   = attribute.Key("sqsworker.worker.name")      // Config.Name
)

// messageTrace is what is kept of a held message while there are traces.
type messageTrace struct {
	carried context.Context // what the producer sent along; nil if nothing
	process spanBox
}

// producer is the span that the message was sent in, if the message says so.
func (m *messageTrace) producer() trace.SpanContext {
	if m.carried == nil {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(m.carried)
}

// link is what another span says of this message: the span that processed it, or else the one that sent it.
func (m *messageTrace) link() (trace.Link, bool) {
	if m == nil {
		return trace.Link{}, false
	}
	at := m.producer()
	if span := m.process.get(); span != nil {
		at = span.SpanContext()
	}
	return trace.Link{SpanContext: at}, at.IsValid()
}

// traces are those of the messages of one receive; nil when there are none.
type traces []*messageTrace

func (t traces) of(i int) *messageTrace {
	if t == nil {
		return nil
	}
	return t[i]
}

// received reports a ReceiveMessage. What it returns belongs to the messages of the answer.
func (t *telemetry) received(sent time.Time, out *sqs.ReceiveMessageOutput, err error) traces {
	if t == nil {
		return nil
	}
	var messages []types.Message
	if err == nil {
		messages = out.Messages
	}
	t.meters.received(time.Since(sent), len(messages), err, t)
	if t.tracer == nil || err == nil && len(messages) == 0 {
		return nil
	}
	all := make(traces, len(messages))
	links := make([]trace.Link, 0, len(messages))
	for i := range messages {
		all[i] = &messageTrace{carried: extract(t.propagator, &messages[i])}
		if from := all[i].producer(); from.IsValid() {
			links = append(links, trace.Link{SpanContext: from})
		}
	}
	_, span := t.start(context.Background(), opReceive, trace.SpanKindClient, links, sent, semconv.MessagingBatchMessageCount(len(messages)))
	defer span.End()
	if err != nil {
		t.fail(span, t.errorType(err), describe(err))
		span.SetAttributes(requestID(middleware.Metadata{}, err)...)
		return all
	}
	span.SetAttributes(requestID(out.ResultMetadata, nil)...)
	return all
}

// start begins a span. One that begins a trace of its own has its reasons as links.
func (t *telemetry) start(ctx context.Context, op operation, kind trace.SpanKind, links []trace.Link, at time.Time, more ...attribute.KeyValue) (context.Context, trace.Span) {
	options := slices.Clone(t.starts[op])
	options = append(options, trace.WithNewRoot(), trace.WithSpanKind(kind), trace.WithAttributes(more...), trace.WithTimestamp(at))
	if len(links) > 0 {
		options = append(options, trace.WithLinks(links...))
	}
	return t.tracer.Start(ctx, t.names[op], options...)
}

// prepare makes what spans of an operation have in common, once: the run of every message needs it.
func (t *telemetry) prepare() {
	for op := range operations {
		t.names[op] = op.name() + " " + t.queue
		t.starts[op] = []trace.SpanStartOption{trace.WithAttributes(slices.Concat(t.common, []attribute.KeyValue{t.url}, op.attributes())...)}
	}
	asConsumer := trace.WithSpanKind(trace.SpanKindConsumer)
	t.asChild = append(slices.Clone(t.starts[opProcess]), asConsumer)
	t.asRoot = append(slices.Clone(t.asChild), trace.WithNewRoot())
}

func (t *telemetry) fail(span trace.Span, kind attribute.KeyValue, text string) {
	span.SetAttributes(kind)
	span.SetStatus(codes.Error, text)
}

// requestID is AWS's id of a call, as far as there was an answer.
func requestID(answer middleware.Metadata, err error) []attribute.KeyValue {
	id, _ := awsmiddleware.GetRequestIDMetadata(answer)
	var failed *awshttp.ResponseError
	if errors.As(err, &failed) {
		id = failed.ServiceRequestID()
	}
	if id == "" {
		return nil
	}
	return []attribute.KeyValue{semconv.AWSRequestID(id)}
}

// handling begins the span of a handler's run, and returns the context to run it in.
func (t *telemetry) handling(d *delivery) context.Context {
	if t == nil {
		return d.ctx
	}
	t.meters.handling(d)
	if t.tracer == nil || d.trace == nil {
		return d.ctx
	}
	ctx := d.ctx
	if d.trace.carried != nil {
		ctx = &carriedContext{ctx, d.trace.carried}
	}
	options := t.asRoot
	switch from := d.trace.producer(); {
	case !from.IsValid():
	case t.cfg.ParentFromMessage:
		options = t.asChild
	default:
		options = append(options[:len(options):len(options)], trace.WithLinks(trace.Link{SpanContext: from}))
	}
	ctx, span := t.tracer.Start(ctx, t.names[opProcess], options...)
	d.trace.process.put(span)
	return ctx
}

// describe puts onto the span of a handler's run what it was about, and how it ended: all at once and only if somebody
// records it, since this is done for every message.
func (t *telemetry) describe(span trace.Span, d *delivery, o outcome) {
	if !span.IsRecording() {
		return
	}
	attributes := append(make([]attribute.KeyValue, 0, 6), semconv.MessagingMessageID(d.id), receiveCountKey.Int(d.receives),
		attemptKey.Int(d.message.Attempt), outcomeKey.String(o.kind.String()))
	if t.cfg.GroupAttribute && d.message.GroupID != "" {
		attributes = append(attributes, groupKey.String(d.message.GroupID))
	}
	if o.kind == failed || o.kind == unavailable || o.kind == lost {
		attributes = append(attributes, t.failureType(o))
		span.SetStatus(codes.Error, brief(o.err))
	}
	span.SetAttributes(attributes...)
}

// carriedContext is a handler's context with what the producer sent along in front.
type carriedContext struct {
	context.Context
	carried context.Context
}

func (c *carriedContext) Value(key any) any {
	if v := c.carried.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// handled ends the span of a handler's run.
func (t *telemetry) handled(d *delivery, o outcome, took time.Duration) {
	if t == nil {
		return
	}
	t.meters.handled(d, o, took, t)
	if d.trace == nil {
		return
	}
	span := d.trace.process.get()
	if span == nil {
		return
	}
	t.describe(span, d, o)
	span.End()
}

// retrying notes that the handler is called again in process.
func (t *telemetry) retrying(d *delivery, try int, err error) {
	if t == nil || d.trace == nil {
		return
	}
	if span := d.trace.process.get(); span != nil {
		span.AddEvent("retry in process", trace.WithAttributes(attribute.Int("sqsworker.try", try), t.failureType(outcome{kind: failed, err: err})))
	}
}

// within puts what is done for a message after its handler returned under the handler's span.
func (t *telemetry) within(ctx context.Context, d *delivery) context.Context {
	if t == nil || d.trace == nil {
		return ctx
	}
	if span := d.trace.process.get(); span != nil {
		return trace.ContextWithSpan(ctx, span)
	}
	return ctx
}

// deleting reports a DeleteMessageBatch; done takes its results, one for each entry.
func (t *telemetry) deleting(ctx context.Context, batch []*deletion) (_ context.Context, done func(*sqs.DeleteMessageBatchOutput, []error, error)) {
	if t == nil {
		return ctx, func(*sqs.DeleteMessageBatchOutput, []error, error) {}
	}
	sent := time.Now()
	var span trace.Span
	if t.tracer != nil {
		links := make([]trace.Link, 0, len(batch))
		for _, x := range batch {
			if l, ok := x.delivery.trace.link(); ok {
				links = append(links, l)
			}
		}
		ctx, span = t.start(ctx, opDelete, trace.SpanKindClient, links, sent, semconv.MessagingBatchMessageCount(len(batch)))
	}
	return ctx, func(out *sqs.DeleteMessageBatchOutput, results []error, err error) {
		t.meters.deleted(batch, results, time.Since(sent), err, t)
		if span == nil {
			return
		}
		var answer middleware.Metadata
		if out != nil {
			answer = out.ResultMetadata
		}
		t.settled(span, answer, results, err)
	}
}

// settled ends the span of a call that settled several messages.
func (t *telemetry) settled(span trace.Span, answer middleware.Metadata, results []error, err error) {
	defer span.End()
	span.SetAttributes(requestID(answer, err)...)
	if err != nil {
		t.fail(span, t.errorType(err), describe(err))
		return
	}
	failures := 0
	for _, r := range results {
		if r == nil {
			continue
		}
		if failures++; failures == 1 { // the first one's, as there is one attribute for all
			t.fail(span, t.entryErrorType(r), "not all messages of the batch: "+heartbeat.Code(r))
		}
	}
	if failures > 0 {
		span.SetAttributes(failedCountKey.Int(failures))
	}
}

func (t *telemetry) entryErrorType(err error) attribute.KeyValue {
	return t.errors.bounded(heartbeat.Code(err))
}

// observer watches the heartbeat's calls; nil when nobody listens.
func (t *telemetry) observer() heartbeat.Observer {
	if t == nil {
		return nil
	}
	return t
}

// Calling implements [heartbeat.Observer]: renewals are events of the process span, releases make a span of the call.
func (t *telemetry) Calling(ctx context.Context, changes []heartbeat.Change) (context.Context, func(middleware.Metadata, error)) {
	sent := time.Now()
	var span trace.Span
	if links, releases := releaseLinks(changes); t.tracer != nil && releases {
		ctx, span = t.start(ctx, opVisibility, trace.SpanKindClient, links, sent, semconv.MessagingBatchMessageCount(len(changes)))
	}
	return ctx, func(answer middleware.Metadata, err error) {
		t.meters.called(opVisibility, time.Since(sent), err, t)
		results := make([]error, len(changes))
		for i, c := range changes {
			results[i] = c.Err
			if !c.Release {
				t.renewed(c)
			}
		}
		if span != nil {
			t.settled(span, answer, results, err)
		}
	}
}

func releaseLinks(changes []heartbeat.Change) (links []trace.Link, any bool) {
	for _, c := range changes {
		if !c.Release {
			continue
		}
		any = true
		if d, ok := c.Owner.(*delivery); ok {
			if l, ok := d.trace.link(); ok {
				links = append(links, l)
			}
		}
	}
	return links, any
}

// renewed notes a renewal on the span of the handler that it lets go on.
func (t *telemetry) renewed(c heartbeat.Change) {
	d, ok := c.Owner.(*delivery)
	if !ok || d.trace == nil {
		return
	}
	span := d.trace.process.get()
	if span == nil || !span.IsRecording() {
		return
	}
	if c.Err != nil {
		span.AddEvent("lease renewal failed", trace.WithAttributes(t.entryErrorType(c.Err), leaseLeftKey.Float64(seconds(c.Left))))
		return
	}
	span.AddEvent("lease renewed", trace.WithAttributes(visibilityKey.Float64(seconds(c.Visibility)), leaseLeftKey.Float64(seconds(c.Left))))
}

const (
	visibilityKey = attribute.Key("sqsworker.lease.visibility") // seconds that were asked for
	leaseLeftKey  = attribute.Key("sqsworker.lease.left")       // seconds that were left of the old lease when the answer came
)

// renewing puts what renews along with the lease under the handler's span.
func (t *telemetry) renewing(d *delivery, renew func(context.Context, time.Time) error) func(context.Context, time.Time) error {
	if t == nil || d.trace == nil {
		return renew
	}
	return func(ctx context.Context, until time.Time) error { return renew(t.within(ctx, d), until) }
}
