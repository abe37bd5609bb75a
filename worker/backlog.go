package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Backlog is what a queue has to do, and what its workers can do, at one moment.
type Backlog struct {
	At time.Time

	// Visible, InFlight and Delayed are SQS's approximate counts; Total is their sum. Messages in flight are part of the
	// work that workers are there for: a scaler that looks at the visible ones alone takes the last worker away while it runs
	// the last message.
	Visible, InFlight, Delayed, Total int
	// DeadLettered is what is in the dead-letter queue; negative when there is none, or its attributes may not be read.
	DeadLettered int

	// Workers is how many workers run, as [BacklogConfig.Workers] says; 0 when it isn't known.
	Workers int
	// PerWorker is Total for each of them; Total itself when there is none or it isn't known.
	PerWorker float64
	// AcceptablePerWorker is how many messages one worker can work off within [BacklogConfig.AcceptableLatency], by its
	// Concurrency and the mean time its handlers took of late. 0 as long as no handler has run.
	AcceptablePerWorker float64
	// Load is PerWorker as a part of AcceptablePerWorker: at 1 the backlog takes exactly the acceptable latency. 0 when either
	// isn't known.
	Load float64
}

// BacklogConfig tunes a [BacklogPublisher]. The zero value measures once a minute, for OpenTelemetry alone.
type BacklogConfig struct {
	// Interval is the time between measurements, each a GetQueueAttributes (two with a dead-letter queue), which SQS bills.
	// From 5 s to 1 h; default 1 minute, which is how often target tracking looks.
	Interval time.Duration
	// AcceptableLatency is how long a message may wait until it is worked. From 1 s to 14 days; default 5 minutes.
	AcceptableLatency time.Duration
	// Workers tells how many workers of this queue run, from the service's running count or the group's instances in
	// service. Default: unknown, and each worker publishes itself as one; see [BacklogPublisher].
	Workers func(context.Context) (int, error)
	// EMF takes the measurement as one line of CloudWatch's embedded metric format, of which the CloudWatch agent, ECS's
	// awslogs driver and Lambda make metrics: os.Stdout usually. Default none.
	EMF io.Writer
	// Namespace is the metrics' namespace in CloudWatch. Up to 255 characters of A-Z a-z 0-9 . - _ / # : and not beginning
	// with "AWS/"; default "SQSWorker".
	Namespace string
}

// DefaultNamespace is the namespace of the metrics in CloudWatch, see [BacklogConfig].
const DefaultNamespace = "SQSWorker"

func (c BacklogConfig) withDefaults() (BacklogConfig, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("worker: BacklogConfig."+format, args...))
	}
	if c.Interval != 0 && (c.Interval < 5*time.Second || c.Interval > time.Hour) {
		bad("Interval is %v: must be from 5s to 1h", c.Interval)
	}
	if c.AcceptableLatency != 0 && (c.AcceptableLatency < time.Second || c.AcceptableLatency > 14*24*time.Hour) {
		bad("AcceptableLatency is %v: must be from 1s to 336h (14 days)", c.AcceptableLatency)
	}
	if !validNamespace(c.Namespace) {
		bad("Namespace is %q: must be up to 255 of A-Z a-z 0-9 . - _ / # : and not begin with AWS/", c.Namespace)
	}
	setDefault(&c.Interval, time.Minute)
	setDefault(&c.AcceptableLatency, 5*time.Minute)
	setDefault(&c.Namespace, DefaultNamespace)
	return c, errors.Join(errs...)
}

func validNamespace(name string) bool {
	for _, r := range name {
		if !(r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_/#:", r)) {
			return false
		}
	}
	return len(name) <= 255 && !strings.HasPrefix(name, "AWS/")
}

// BacklogPublisher measures a queue's backlog for each of its workers, as AWS advises to scale by, and publishes it: as gauges
// to the worker's MeterProvider, and in CloudWatch's embedded metric format.
//
// Metrics in CloudWatch have the dimension QueueName: Backlog, BacklogVisible, BacklogInFlight, BacklogDelayed, Workers and, as
// far as they are known, BacklogPerWorker, AcceptableBacklogPerWorker, BacklogLoad and DeadLettered. Track BacklogLoad with a target of
// 1, by its average: the workers then have as much to do as they can do within the acceptable latency, also when handlers get
// slower. If [BacklogConfig.Workers] isn't set, each worker publishes Workers 1: track the metric math MAX(Backlog) / SUM(Workers)
// over one Interval, with the acceptable backlog as target.
//
// The role needs sqs:GetQueueAttributes on the queue, and on the dead-letter queue for DeadLettered.
type BacklogPublisher struct {
	w   *Worker
	cfg BacklogConfig

	mu   sync.Mutex
	last Backlog
}

// NewBacklogPublisher returns a publisher for a worker's queue; it makes no call. The error names everything that is wrong with
// the configuration.
func NewBacklogPublisher(w *Worker, cfg BacklogConfig) (*BacklogPublisher, error) {
	cfg, err := cfg.withDefaults()
	if w == nil {
		err = errors.Join(errors.New("worker: no worker to publish the backlog of"), err)
	}
	if err != nil {
		return nil, err
	}
	return &BacklogPublisher{w: w, cfg: cfg}, nil
}

// Run publishes until ctx ends, and returns nil then. A measurement that fails is logged and tried again at the next
// interval; gauges that are older than two intervals are not reported. Run it beside [Worker.Run], on the same context: a worker
// that drains takes no part in working off a backlog.
func (p *BacklogPublisher) Run(ctx context.Context) error {
	stop, err := p.observe()
	if err != nil {
		return err
	}
	defer stop()
	log := p.w.cfg.Logger.With("worker", p.w.cfg.Name)
	failures := 0
	tick := time.NewTicker(p.cfg.Interval)
	defer tick.Stop()
	for {
		err := p.publish(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			failures = 0
		} else if failures++; failures&(failures-1) == 0 {
			log.Warn("the backlog can't be published, trying again at the next interval", "failures", failures, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *BacklogPublisher) publish(ctx context.Context) error {
	b, err := p.Measure(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.last = b
	p.mu.Unlock()
	if p.cfg.EMF == nil {
		return nil
	}
	line, err := p.emf(b)
	if err == nil {
		_, err = p.cfg.EMF.Write(append(line, '\n')) // at once: lines of a shared standard output mustn't mix
	}
	if err != nil {
		return fmt.Errorf("worker: writing the backlog in the embedded metric format: %w", err)
	}
	return nil
}

// Measure measures once, for those who publish by themselves.
func (p *BacklogPublisher) Measure(ctx context.Context) (Backlog, error) {
	attributes, err := p.attributes(ctx, p.w.queueURL)
	if err != nil {
		return Backlog{}, fmt.Errorf("worker: the backlog of %s: %s", p.w.queueURL, describe(err))
	}
	b := Backlog{At: time.Now(), DeadLettered: -1}
	for name, to := range map[types.QueueAttributeName]*int{
		types.QueueAttributeNameApproximateNumberOfMessages:           &b.Visible,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible: &b.InFlight,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed:    &b.Delayed,
	} {
		if *to, err = strconv.Atoi(attributes[string(name)]); err != nil {
			return Backlog{}, fmt.Errorf("worker: the backlog of %s: the server doesn't tell %s", p.w.queueURL, name)
		}
	}
	b.Total = b.Visible + b.InFlight + b.Delayed
	if url, ok := p.w.deadLetterURL(attributes); ok {
		if dead, err := p.attributes(ctx, url); err == nil {
			if n, err := strconv.Atoi(dead[string(types.QueueAttributeNameApproximateNumberOfMessages)]); err == nil {
				b.DeadLettered = n
			}
		}
	}
	if p.cfg.Workers != nil {
		if b.Workers, err = p.cfg.Workers(ctx); err != nil {
			return Backlog{}, fmt.Errorf("worker: the backlog of %s: the number of workers: %w", p.w.queueURL, err)
		}
	}
	p.divide(&b)
	return b, nil
}

// divide computes what follows from the counts.
func (p *BacklogPublisher) divide(b *Backlog) {
	b.PerWorker = float64(b.Total) / float64(max(b.Workers, 1))
	if mean := p.w.Stats().MeanHandling; mean > 0 {
		b.AcceptablePerWorker = float64(p.cfg.AcceptableLatency) / float64(mean) * float64(p.w.Concurrency())
	}
	if b.AcceptablePerWorker > 0 && p.cfg.Workers != nil {
		b.Load = b.PerWorker / b.AcceptablePerWorker
	}
}

func (p *BacklogPublisher) attributes(ctx context.Context, queueURL string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := p.w.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &queueURL, AttributeNames: []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed, types.QueueAttributeNameRedrivePolicy,
	}}, p.w.otherOptions...)
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

// deadLetterURL is the URL of the dead-letter queue, which is in the same account and Region.
func (w *Worker) deadLetterURL(attributes map[string]string) (string, bool) {
	policy, err := redrivePolicyOf(attributes)
	if err != nil || policy.DeadLetterTargetArn == "" {
		return "", false
	}
	name := policy.DeadLetterTargetArn[strings.LastIndexByte(policy.DeadLetterTargetArn, ':')+1:]
	return strings.TrimSuffix(w.queueURL, queueName(w.queueURL)) + name, true
}

// emfMetric is one metric of a line in the embedded metric format.
type emfMetric struct {
	Name string
	Unit string
}

// emf is a measurement as one line.
func (p *BacklogPublisher) emf(b Backlog) ([]byte, error) {
	values := map[string]any{"QueueName": queueName(p.w.queueURL), "Worker": p.w.cfg.Name}
	metrics := []emfMetric{}
	add := func(name, unit string, value any) {
		values[name] = value
		metrics = append(metrics, emfMetric{name, unit})
	}
	add("Backlog", "Count", b.Total)
	add("BacklogVisible", "Count", b.Visible)
	add("BacklogInFlight", "Count", b.InFlight)
	add("BacklogDelayed", "Count", b.Delayed)
	if p.cfg.Workers == nil {
		add("Workers", "Count", 1)
	} else {
		add("Workers", "Count", b.Workers)
		add("BacklogPerWorker", "Count", b.PerWorker)
		if b.AcceptablePerWorker > 0 {
			add("BacklogLoad", "None", b.Load)
		}
	}
	if b.AcceptablePerWorker > 0 {
		add("AcceptableBacklogPerWorker", "Count", b.AcceptablePerWorker)
	}
	if b.DeadLettered >= 0 {
		add("DeadLettered", "Count", b.DeadLettered)
	}
	values["_aws"] = map[string]any{
		"Timestamp": b.At.UnixMilli(),
		"CloudWatchMetrics": []any{map[string]any{
			"Namespace": p.cfg.Namespace, "Dimensions": [][]string{{"QueueName"}}, "Metrics": metrics,
		}},
	}
	return json.Marshal(values)
}

// BacklogMetricNames are the names of the metrics that a [BacklogPublisher] writes for CloudWatch.
func BacklogMetricNames() []string {
	return []string{"Backlog", "BacklogVisible", "BacklogInFlight", "BacklogDelayed", "Workers", "BacklogPerWorker", "AcceptableBacklogPerWorker", "BacklogLoad", "DeadLettered"}
}

var backlogMetrics = []Metric{
	{"sqsworker.backlog.messages", KindGauge, "{message}", "Messages in the queue, by SQS's approximate counts. Every worker that publishes reports the same: take one, not the sum.", []string{string(stateKey)}},
	{"sqsworker.backlog.per_worker", KindGauge, "{message}", "Messages in the queue for each running worker.", nil},
	{"sqsworker.backlog.acceptable_per_worker", KindGauge, "{message}", "Messages that one worker can work off within the acceptable latency.", nil},
	{"sqsworker.backlog.load", KindGauge, "1", "Backlog per worker as a part of the acceptable one: scale out above 1.", nil},
	{"sqsworker.backlog.dead_lettered", KindGauge, "{message}", "Messages in the dead-letter queue.", nil},
}

// observe has the last measurement reported whenever the worker's MeterProvider collects.
func (p *BacklogPublisher) observe() (stop func(), err error) {
	provider := p.w.cfg.Telemetry.meterProvider()
	if provider == nil {
		return func() {}, nil
	}
	meter := provider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	gauges, all := make([]metric.Float64ObservableGauge, len(backlogMetrics)), make([]metric.Observable, len(backlogMetrics))
	for i, m := range backlogMetrics {
		if gauges[i], err = meter.Float64ObservableGauge(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Description)); err != nil {
			return nil, fmt.Errorf("worker: the gauge %s: %w", m.Name, err)
		}
		all[i] = gauges[i]
	}
	own := p.w.own()
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		p.report(func(gauge int, value float64, more ...attribute.KeyValue) {
			o.ObserveFloat64(gauges[gauge], value, metric.WithAttributes(append(own[:len(own):len(own)], more...)...))
		})
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("worker: the backlog's gauges: %w", err)
	}
	return func() { _ = registration.Unregister() }, nil
}

// report tells what is known and not too old.
func (p *BacklogPublisher) report(to func(gauge int, value float64, more ...attribute.KeyValue)) {
	p.mu.Lock()
	b := p.last
	p.mu.Unlock()
	if b.At.IsZero() || time.Since(b.At) > 2*p.cfg.Interval {
		return
	}
	to(0, float64(b.Visible), stateKey.String("visible"))
	to(0, float64(b.InFlight), stateKey.String("in_flight"))
	to(0, float64(b.Delayed), stateKey.String("delayed"))
	if p.cfg.Workers != nil {
		to(1, b.PerWorker)
	}
	if b.AcceptablePerWorker > 0 {
		to(2, b.AcceptablePerWorker)
		if p.cfg.Workers != nil {
			to(3, b.Load)
		}
	}
	if b.DeadLettered >= 0 {
		to(4, float64(b.DeadLettered))
	}
}
