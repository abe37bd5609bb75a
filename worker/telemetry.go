package worker

import (
	"context"
	"errors"
	"math"
	"net"
	"net/url"
	"reflect"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// scope is the instrumentation scope of everything that the library reports.
const scope = "github.com/sqsworker/sqsworker/worker"

// Telemetry is where a worker's traces and metrics go, by OpenTelemetry's conventions for messaging and SQS.
//
// With nothing set, they go to OpenTelemetry's global providers, if the program has set any by the time [Worker.Run] is
// called; otherwise there is no telemetry, at no cost. Switch it off where globals are set with the providers of
// go.opentelemetry.io/otel/trace/noop and go.opentelemetry.io/otel/metric/noop.
//
// Spans, by name; each has the queue's name and URL, the server's address and, when it failed, error.type:
//
//   - "receive QUEUE" (client): a ReceiveMessage that brought messages or failed, with links to the producers' spans. Empty
//     receives make no spans: an idle worker makes three a minute.
//   - "process QUEUE" (consumer): a handler's run, from its start to its return, with message id, receive count and outcome,
//     and an event for each renewal of the lease and each retry in process. The handler's context carries it.
//   - "delete QUEUE" (client): a DeleteMessageBatch, with links to the process spans of its messages.
//   - "change_visibility QUEUE" (client): a ChangeMessageVisibilityBatch that gives messages back, with the same links.
//
// A producer's span is found in the W3C attributes of the message (or whatever Propagator reads), and if there are none in
// its X-Ray header, AWSTraceHeader; [Inject] writes both.
type Telemetry struct {
	// TracerProvider makes the tracer. Default: the global one.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the meter. Default: the global one. [Metrics] lists what it gets.
	MeterProvider metric.MeterProvider
	// Propagator reads the producer's context from the message attributes that it names. Default: the global one if one
	// is set, otherwise propagation.TraceContext. The attributes are received whatever [Config.MessageAttributes] says.
	Propagator propagation.TextMapPropagator

	// ParentFromMessage makes the process span a child of the producer's span, in the producer's trace, instead of the root of
	// a trace of its own with a link to it. It is easier to read where each message is handled once and soon; messages that
	// are retried for days, or fan out, make traces that no backend shows well, and the producer's sampling decides for the
	// worker. Default: links, as the conventions advise.
	ParentFromMessage bool

	// GroupAttribute puts the MessageGroupId on process spans and on the metrics of handlers' runs. A group id can name a
	// customer, and each value is a time series of its own: only for queues with few groups. Default: nowhere.
	GroupAttribute bool

	// RequestPrice is what a million requests cost, for the metric of the estimated cost. From 0 to 1,000; default 0.40 for
	// standard queues and 0.50 for FIFO queues: USD in us-east-1, beyond the free tier.
	RequestPrice float64
}

// validate is called with the rest of the configuration.
func (v *violations) telemetry(t Telemetry) {
	if !(t.RequestPrice >= 0 && t.RequestPrice <= 1000) { // not so for NaN
		v.add("Telemetry.RequestPrice is %v: must be from 0 (the default) to 1000, for a million requests", t.RequestPrice)
	}
}

func (t Telemetry) price(fifo bool) float64 {
	switch {
	case t.RequestPrice > 0:
		return t.RequestPrice / 1e6
	case fifo:
		return 0.50 / 1e6
	}
	return 0.40 / 1e6
}

// tracerProvider is the provider to use; nil for no traces.
func (t Telemetry) tracerProvider() trace.TracerProvider {
	p := t.TracerProvider
	if p == nil {
		p = otel.GetTracerProvider()
		if isPlaceholder(p) {
			return nil
		}
	}
	switch p.(type) {
	case tracenoop.TracerProvider, *tracenoop.TracerProvider:
		return nil
	}
	return p
}

// meterProvider is the provider to use; nil for no metrics.
func (t Telemetry) meterProvider() metric.MeterProvider {
	p := t.MeterProvider
	if p == nil {
		p = otel.GetMeterProvider()
		if isPlaceholder(p) {
			return nil
		}
	}
	switch p.(type) {
	case metricnoop.MeterProvider, *metricnoop.MeterProvider:
		return nil
	}
	return p
}

// isPlaceholder tells the API's own global provider, which waits for a real one to be set and does nothing until then, from
// a real one. The API has no question for it; if the package were renamed, the placeholder would be called for nothing, no
// more.
func isPlaceholder(provider any) bool {
	t := reflect.TypeOf(provider)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t != nil && t.PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

// propagator is the one to use.
func (t Telemetry) propagator() propagation.TextMapPropagator {
	return orDefaultPropagator(t.Propagator)
}

func orDefaultPropagator(p propagation.TextMapPropagator) propagation.TextMapPropagator {
	if p != nil {
		return p
	}
	if p = otel.GetTextMapPropagator(); len(p.Fields()) > 0 {
		return p
	}
	return propagation.TraceContext{}
}

// telemetry is what a run reports to. It is nil when nobody listens, and every method of a nil one returns at once, so that
// the hooks in the worker's files cost a comparison.
type telemetry struct {
	cfg        Telemetry
	tracer     trace.Tracer // nil: no traces
	propagator propagation.TextMapPropagator
	meters     *meters // nil: no metrics
	errors     *errorTypes

	queue  string
	common []attribute.KeyValue // of every span and every metric of the conventions
	url    attribute.KeyValue   // of every span

	names           [operations]string // of spans
	starts          [operations][]trace.SpanStartOption
	asRoot, asChild []trace.SpanStartOption // of process spans
}

// newTelemetry makes what a run of w reports to.
func (w *Worker) newTelemetry() *telemetry {
	tracers, meters := w.cfg.Telemetry.tracerProvider(), w.cfg.Telemetry.meterProvider()
	if tracers == nil && meters == nil {
		return nil
	}
	t := &telemetry{cfg: w.cfg.Telemetry, propagator: w.cfg.Telemetry.propagator(), errors: newErrorTypes(), queue: queueName(w.queueURL)}
	t.common, t.url = destination(w.queueURL)
	if tracers != nil {
		t.tracer = tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))
		t.prepare()
	}
	if meters != nil {
		meter := meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
		t.meters = newMeters(meter, t.common, w.own(), func(err error) {
			w.cfg.Logger.Warn("a metric can't be had from the MeterProvider", "worker", w.cfg.Name, "error", err)
		})
		w.readings.register(meter, w)
	}
	return t
}

// own are the attributes of the worker's own metrics.
func (w *Worker) own() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingDestinationName(queueName(w.queueURL)), workerNameKey.String(w.cfg.Name)}
}

// destination are the attributes that say which queue it is.
func destination(queueURL string) (common []attribute.KeyValue, queue attribute.KeyValue) {
	common = []attribute.KeyValue{semconv.MessagingSystemAWSSQS, semconv.MessagingDestinationName(queueName(queueURL))}
	if u, err := url.Parse(queueURL); err == nil && u.Hostname() != "" {
		common = append(common, semconv.ServerAddress(u.Hostname()))
		if port, err := net.LookupPort("tcp", u.Port()); err == nil && u.Port() != "" {
			common = append(common, semconv.ServerPort(port))
		}
	}
	return common, semconv.AWSSQSQueueURL(queueURL)
}

// receivable are the names of message attributes to ask for, those that the propagator reads among them.
func (t *telemetry) receivable(names []string) []string {
	if t == nil || t.tracer == nil {
		return names
	}
	for _, n := range names {
		if n == "All" || n == ".*" {
			return names
		}
	}
	return append(append([]string{}, names...), t.propagator.Fields()...)
}

// errorType is the value of error.type for a failed call: the code of SQS, or the kind of failure where SQS gave none.
func (t *telemetry) errorType(err error) attribute.KeyValue {
	var api smithy.APIError
	switch {
	case errors.Is(err, context.Canceled):
		return semconv.ErrorTypeKey.String("canceled")
	case errors.As(err, &api):
		return t.errors.bounded(api.ErrorCode()) // as SQS's query code where there is one, which is what the conventions show
	}
	return t.errors.bounded(heartbeat.Code(err))
}

// failureType is the value of error.type for a handler's failure: the outcome where it says more than the error does,
// otherwise the code of the AWS error or the Go type of the error that caused it.
func (t *telemetry) failureType(o outcome) attribute.KeyValue {
	var (
		panicked *panicError
		api      smithy.APIError
	)
	switch {
	case o.kind != failed:
		return semconv.ErrorTypeKey.String(o.kind.String())
	case errors.As(o.err, &panicked):
		return semconv.ErrorTypeKey.String("panic")
	case errors.Is(o.err, errCorrupt):
		return semconv.ErrorTypeKey.String("corrupt")
	case errors.Is(o.err, ErrHandlerTimeout), errors.Is(o.err, context.DeadlineExceeded):
		return semconv.ErrorTypeKey.String("timeout")
	case errors.As(o.err, &api):
		return t.errors.bounded(api.ErrorCode())
	}
	return t.errors.bounded(semconv.ErrorType(innermost(o.err)).Value.AsString())
}

// innermost takes away what this package put around a handler's error.
func innermost(err error) error {
	for {
		switch e := err.(type) {
		case *permanentError:
			err = e.err
		case *retryAfterError:
			err = e.err
		case *unavailableError:
			err = e.err
		default:
			return err
		}
	}
}

// mostErrorTypes bounds the values of error.type that one worker reports: further ones are "_OTHER".
const mostErrorTypes = 50

// errorTypes keeps the cardinality of error.type bounded, whatever an error says of itself.
type errorTypes struct {
	mu    sync.Mutex
	known map[string]bool
}

func newErrorTypes() *errorTypes { return &errorTypes{known: map[string]bool{}} }

func (e *errorTypes) bounded(name string) attribute.KeyValue {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == "" || !e.known[name] && len(e.known) >= mostErrorTypes {
		return semconv.ErrorTypeOther
	}
	e.known[name] = true
	return semconv.ErrorTypeKey.String(name)
}

// operation is a call of SQS as the conventions name it. AWS has no shorter names for them, so these are the verbs of its
// API.
type operation int

const (
	opReceive operation = iota
	opProcess
	opDelete
	opVisibility
	opSend
	operations
)

func (o operation) name() string {
	return [...]string{"receive", "process", "delete", "change_visibility", "send"}[o]
}

func (o operation) kind() attribute.KeyValue {
	return [...]attribute.KeyValue{semconv.MessagingOperationTypeReceive, semconv.MessagingOperationTypeProcess,
		semconv.MessagingOperationTypeSettle, semconv.MessagingOperationTypeSettle, semconv.MessagingOperationTypeSend}[o]
}

// attributes are those of an operation's spans and metrics, less those of the queue.
func (o operation) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingOperationName(o.name()), o.kind()}
}

// brief is an error's text, at most as long as a span should carry.
func brief(err error) string { return shorten(err.Error(), 300) }

func shorten(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// seconds as the conventions want durations.
func seconds[T ~int64](d T) float64 { return float64(d) / 1e9 }

// billed is how many requests SQS bills for a payload: one for each 64 KiB begun.
func billed(bytes int) int64 {
	return int64(max(1, math.Ceil(float64(bytes)/(64<<10))))
}

// sizeOf is what messages count on the bill.
func sizeOf(messages []types.Message) (bytes int) {
	for i := range messages {
		bytes += len(aws.ToString(messages[i].Body)) + attributesSize(messages[i].MessageAttributes)
	}
	return bytes
}
