package worker

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
)

// Metric is one metric that the library reports: what a dashboard or a View is made from.
type Metric struct {
	Name        string
	Kind        MetricKind
	Unit        string // UCUM, as OpenTelemetry has it
	Description string
	// Attributes are those that it has besides the queue's name and, for metrics of our own, sqsworker.worker.name.
	Attributes []string
}

// MetricKind is the kind of instrument that a metric is.
type MetricKind string

const (
	KindCounter       MetricKind = "counter"         // only grows
	KindUpDownCounter MetricKind = "up-down counter" // a count that adds up over workers
	KindGauge         MetricKind = "gauge"           // doesn't add up
	KindHistogram     MetricKind = "histogram"
)

// Metrics lists every metric of this package, those of the conventions first. How many time series there are is bounded: by
// the number of workers, of outcomes, reasons and calls, which are fixed, and of error types, of which a worker reports at
// most 50. Message ids are never among the attributes, and message groups only when [Telemetry.GroupAttribute] asks for them.
func Metrics() []Metric {
	all := slices.Clone(measured)
	for _, o := range observed {
		all = append(all, o.Metric)
	}
	return append(all, backlogMetrics...)
}

// Names of metrics that are measured as things happen.
const (
	metricWait          = "sqsworker.message.wait"
	metricAge           = "sqsworker.message.age"
	metricReceiveFill   = "sqsworker.receive.messages"
	metricDeleteFill    = "sqsworker.delete.messages"
	metricDeleteLag     = "sqsworker.delete.lag"
	metricDeleteFailure = "sqsworker.delete.failures"
	metricDrain         = "sqsworker.drain.duration"
)

var (
	conventionAttributes = []string{string(semconv.MessagingSystemKey), string(semconv.MessagingOperationNameKey), string(semconv.ServerAddressKey), string(semconv.ServerPortKey), string(semconv.ErrorTypeKey)}

	measured = []Metric{
		{messagingconv.ClientOperationDuration{}.Name(), KindHistogram, messagingconv.ClientOperationDuration{}.Unit(), "Duration of calls of SQS; of a receive, the wait for messages included.", append(slices.Clone(conventionAttributes), string(semconv.MessagingOperationTypeKey))},
		{messagingconv.ClientConsumedMessages{}.Name(), KindCounter, messagingconv.ClientConsumedMessages{}.Unit(), "Messages received, each delivery of one.", conventionAttributes[:4]},
		{messagingconv.ProcessDuration{}.Name(), KindHistogram, messagingconv.ProcessDuration{}.Unit(), "Duration of handlers' runs, with their retries in process.", append(slices.Clone(conventionAttributes), string(outcomeKey))},
		{metricWait, KindHistogram, "s", "Time from a message's arrival here until its handler started.", nil},
		{metricAge, KindHistogram, "s", "Time from the sending of a message until its handler started, by SQS's clock and ours.", nil},
		{metricReceiveFill, KindHistogram, "{message}", "Messages brought by a receive: 0 to 10.", nil},
		{metricDeleteFill, KindHistogram, "{message}", "Messages in a delete call: 1 to 10.", nil},
		{metricDeleteLag, KindHistogram, "s", "Time from a handler's end until SQS confirmed the deletion.", nil},
		{metricDeleteFailure, KindCounter, "{failure}", "Failed deletes of messages, tried again or not, by the code of the failure.", []string{string(semconv.ErrorTypeKey)}},
		{metricDrain, KindHistogram, "s", "Duration of drains; their count is the number of drains.", []string{string(drainResultKey)}},
	}
)

const drainResultKey = attribute.Key("sqsworker.drain.result") // complete, incomplete

// Bounds of the histograms: those that the conventions advise for calls and handlers, wider ones for what can take days.
var (
	conventionBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	receiveBounds    = []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	ageBounds        = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 4 * 24 * 3600}
)

// meters are the instruments that are told of things as they happen. Methods of a nil one do nothing.
type meters struct {
	operation messagingconv.ClientOperationDuration
	consumed  messagingconv.ClientConsumedMessages
	process   messagingconv.ProcessDuration
	wait, age metric.Float64Histogram
	receives  metric.Int64Histogram
	deletes   metric.Int64Histogram
	deleteLag metric.Float64Histogram
	failures  metric.Int64Counter
	drains    metric.Float64Histogram

	// Attribute sets are made once: making one costs more than recording with it.
	own        []attribute.KeyValue
	ownOption  []metric.RecordOption
	calls      [operations][]metric.RecordOption
	callAttrs  [operations][]attribute.KeyValue
	consumes   []metric.AddOption
	outcomes   [lost + 1][]metric.RecordOption // without an error
	processing []attribute.KeyValue
	background context.Context
}

// newMeters makes the instruments; one that can't be had is reported and does nothing.
func newMeters(m metric.Meter, common, own []attribute.KeyValue, bad func(error)) *meters {
	x := &meters{own: own, background: context.Background()}
	made := maker{m, bad}
	var err error
	if x.operation, err = messagingconv.NewClientOperationDuration(m, metric.WithExplicitBucketBoundaries(conventionBounds...)); err != nil {
		bad(err)
	}
	if x.consumed, err = messagingconv.NewClientConsumedMessages(m); err != nil {
		bad(err)
	}
	if x.process, err = messagingconv.NewProcessDuration(m, metric.WithExplicitBucketBoundaries(conventionBounds...)); err != nil {
		bad(err)
	}
	x.wait = made.seconds(metricWait, conventionBounds)
	x.age = made.seconds(metricAge, ageBounds)
	x.deleteLag = made.seconds(metricDeleteLag, conventionBounds)
	x.drains = made.seconds(metricDrain, ageBounds)
	x.receives = made.fill(metricReceiveFill)
	x.deletes = made.fill(metricDeleteFill)
	x.failures = made.counter(metricDeleteFailure)

	x.ownOption = record(own)
	for op := range operations {
		x.callAttrs[op] = slices.Concat(common, op.attributes())
		x.calls[op] = record(x.callAttrs[op])
	}
	named := append(slices.Clone(common), semconv.MessagingOperationName(opReceive.name()))
	x.consumes = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(named...))}
	x.processing = append(slices.Clone(common), semconv.MessagingOperationName(opProcess.name()))
	for k := range x.outcomes {
		x.outcomes[k] = record(append(slices.Clone(x.processing), outcomeKey.String(kind(k).String())))
	}
	return x
}

func record(attributes []attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}
}

// maker makes instruments by the table.
type maker struct {
	m   metric.Meter
	bad func(error)
}

func definition(name string) Metric {
	return measured[slices.IndexFunc(measured, func(m Metric) bool { return m.Name == name })]
}

func (k maker) seconds(name string, bounds []float64) metric.Float64Histogram {
	d := definition(name)
	h, err := k.m.Float64Histogram(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Description), metric.WithExplicitBucketBoundaries(bounds...))
	if err != nil {
		k.bad(err)
	}
	return h
}

func (k maker) fill(name string) metric.Int64Histogram {
	d := definition(name)
	h, err := k.m.Int64Histogram(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Description), metric.WithExplicitBucketBoundaries(receiveBounds...))
	if err != nil {
		k.bad(err)
	}
	return h
}

func (k maker) counter(name string) metric.Int64Counter {
	d := definition(name)
	c, err := k.m.Int64Counter(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Description))
	if err != nil {
		k.bad(err)
	}
	return c
}

// called notes one call of SQS.
func (x *meters) called(op operation, took time.Duration, err error, t *telemetry) {
	if x == nil {
		return
	}
	if err == nil {
		x.operation.Inst().Record(x.background, seconds(took), x.calls[op]...)
		return
	}
	x.operation.Inst().Record(x.background, seconds(took), record(append(slices.Clone(x.callAttrs[op]), t.errorType(err)))...)
}

// received notes a receive and what it brought.
func (x *meters) received(took time.Duration, messages int, err error, t *telemetry) {
	if x == nil {
		return
	}
	x.called(opReceive, took, err, t)
	if err != nil {
		return
	}
	x.receives.Record(x.background, int64(messages), x.ownOption...)
	if messages > 0 {
		x.consumed.Inst().Add(x.background, int64(messages), x.consumes...)
	}
}

// handling notes how long a message has waited, here and altogether.
func (x *meters) handling(d *delivery) {
	if x == nil {
		return
	}
	now := time.Now()
	x.wait.Record(x.background, seconds(now.Sub(d.message.ReceivedAt)), x.ownOption...)
	if !d.message.SentAt.IsZero() {
		x.age.Record(x.background, seconds(max(now.Sub(d.message.SentAt), 0)), x.ownOption...) // not below zero: SentAt is SQS's clock
	}
}

// handled notes a handler's run.
func (x *meters) handled(d *delivery, o outcome, took time.Duration, t *telemetry) {
	if x == nil {
		return
	}
	grouped := t.cfg.GroupAttribute && d.message.GroupID != ""
	wrong := o.kind == failed || o.kind == unavailable || o.kind == lost
	if !grouped && !wrong {
		x.process.Inst().Record(x.background, seconds(took), x.outcomes[o.kind]...)
		return
	}
	attributes := append(slices.Clone(x.processing), outcomeKey.String(o.kind.String()))
	if grouped {
		attributes = append(attributes, groupKey.String(d.message.GroupID))
	}
	if wrong {
		attributes = append(attributes, t.failureType(o))
	}
	x.process.Inst().Record(x.background, seconds(took), record(attributes)...)
}

// deleted notes a delete call and each of its results.
func (x *meters) deleted(batch []*deletion, results []error, took time.Duration, err error, t *telemetry) {
	if x == nil {
		return
	}
	x.called(opDelete, took, err, t)
	x.deletes.Record(x.background, int64(len(batch)), x.ownOption...)
	for i, failure := range results {
		if failure == nil {
			x.deleteLag.Record(x.background, seconds(time.Since(batch[i].since)), x.ownOption...)
			continue
		}
		x.failures.Add(x.background, 1, metric.WithAttributeSet(attribute.NewSet(append(slices.Clone(x.own), t.entryErrorType(failure))...)))
	}
}

// drained notes the end of a drain.
func (t *telemetry) drained(took time.Duration, complete bool) {
	if t == nil || t.meters == nil {
		return
	}
	result := "incomplete"
	if complete {
		result = "complete"
	}
	t.meters.drains.Record(t.meters.background, seconds(took), record(append(slices.Clone(t.meters.own), drainResultKey.String(result)))...)
}
