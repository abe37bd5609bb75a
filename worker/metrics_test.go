package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// metering is a real meter provider that is read by hand.
type metering struct {
	t        *testing.T
	reader   *sdkmetric.ManualReader
	provider *sdkmetric.MeterProvider
}

func newMetering(t *testing.T) *metering {
	reader := sdkmetric.NewManualReader()
	return &metering{t, reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
}

func (x *metering) config() worker.Telemetry { return worker.Telemetry{MeterProvider: x.provider} }

// collect reads everything, by name.
func (x *metering) collect() map[string]metricdata.Metrics {
	x.t.Helper()
	var all metricdata.ResourceMetrics
	if err := x.reader.Collect(context.Background(), &all); err != nil {
		x.t.Fatal(err)
	}
	found := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// point is one time series: its value, or of a histogram its count and sum.
type point struct {
	attributes attribute.Set
	value, sum float64
}

func points(m metricdata.Metrics) (all []point) {
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Value), 0})
		}
	case metricdata.Sum[float64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, p.Value, 0})
		}
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, p.Value, 0})
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Count), p.Sum})
		}
	case metricdata.Histogram[int64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Count), float64(p.Sum)})
		}
	}
	return all
}

// value is the sum over those series of a metric that have an attribute of that value ("": over all).
func value(m metricdata.Metrics, attributeValue string) (sum float64) {
	for _, p := range points(m) {
		for _, kv := range p.attributes.ToSlice() {
			if attributeValue == "" || kv.Value.String() == attributeValue {
				sum += p.value
				break
			}
		}
	}
	return sum
}

func kindOf(m metricdata.Metrics) worker.MetricKind {
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		if d.IsMonotonic {
			return worker.KindCounter
		}
		return worker.KindUpDownCounter
	case metricdata.Sum[float64]:
		if d.IsMonotonic {
			return worker.KindCounter
		}
		return worker.KindUpDownCounter
	case metricdata.Gauge[float64]:
		return worker.KindGauge
	}
	return worker.KindHistogram
}

// TestEveryMetricOfTheTableIsReportedAndNoOther runs a worker through all that it can meet.
func TestEveryMetricOfTheTableIsReportedAndNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueueWithDLQ(t, 10), newMetering(t)
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Times: 1, Code: "InternalFailure"})
		q.send(3)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.Body == "1" && m.Attempt == 1 {
				return errors.New("no luck")
			}
			time.Sleep(time.Second)
			return nil
		}), worker.Config{Telemetry: x.config()})
		backlog, err := worker.NewBacklogPublisher(w.Worker, worker.BacklogConfig{Interval: 5 * time.Second, Workers: func(context.Context) (int, error) { return 1, nil }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		published := make(chan error, 1)
		go func() { published <- backlog.Run(ctx) }()
		time.Sleep(500 * time.Millisecond)
		during := x.collect() // while something is held: the lease margin
		q.mustEmpty(time.Minute)
		time.Sleep(10 * time.Second)
		running := x.collect() // while the backlog is published
		stop()
		if err := <-published; err != nil {
			t.Error(err)
		}
		w.mustStop()
		got := x.collect()
		for _, earlier := range []map[string]metricdata.Metrics{during, running} {
			for name, m := range earlier {
				if _, ok := got[name]; !ok {
					got[name] = m
				}
			}
		}
		for _, want := range worker.Metrics() {
			m, ok := got[want.Name]
			if !ok {
				t.Errorf("%s is in the table and isn't reported", want.Name)
				continue
			}
			delete(got, want.Name)
			if m.Unit != want.Unit || kindOf(m) != want.Kind {
				t.Errorf("%s is a %s in %q, the table says a %s in %q", m.Name, kindOf(m), m.Unit, want.Kind, want.Unit)
			}
			allowed := append(slices.Clone(want.Attributes), string(semconv.MessagingDestinationNameKey), "sqsworker.worker.name")
			for _, p := range points(m) {
				for _, kv := range p.attributes.ToSlice() {
					if !slices.Contains(allowed, string(kv.Key)) {
						t.Errorf("%s has attribute %s, which the table doesn't say", m.Name, kv.Key)
					}
				}
			}
		}
		if len(got) > 0 {
			t.Errorf("reported, and not in the table: %v", slices.Sorted(maps.Keys(got)))
		}
	})
}

func TestMetricsOfTheConventionsAreAsTheyShouldBe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueueWithDLQ(t, 10), newMetering(t)
		q.send(2)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.Body == "1" {
				return worker.Permanent(errBadOrder{})
			}
			time.Sleep(2 * time.Second)
			return nil
		}), worker.Config{Telemetry: x.config()})
		time.Sleep(10 * time.Second)
		w.mustStop()
		got := x.collect()

		host := semconv.ServerAddress("sqs.us-east-1.amazonaws.com")
		queue := []attribute.KeyValue{semconv.MessagingSystemAWSSQS, semconv.MessagingDestinationName(testQueue), host}
		for _, c := range []struct {
			name       string
			attributes []attribute.KeyValue
			value, sum float64
		}{
			{messagingconv.ClientConsumedMessages{}.Name(), append(queue, semconv.MessagingOperationName("receive")), 2, 0},
			{messagingconv.ProcessDuration{}.Name(), append(queue, semconv.MessagingOperationName("process"), attribute.String("sqsworker.outcome", "succeeded")), 1, 2},
			{messagingconv.ProcessDuration{}.Name(), append(queue, semconv.MessagingOperationName("process"), attribute.String("sqsworker.outcome", "failed"),
				semconv.ErrorTypeKey.String("github.com/sqsworker/sqsworker/worker_test.errBadOrder")), 1, 0},
			{messagingconv.ClientOperationDuration{}.Name(), append(queue, semconv.MessagingOperationName("delete"), semconv.MessagingOperationTypeSettle), 1, 0},
			{messagingconv.ClientOperationDuration{}.Name(), append(queue, semconv.MessagingOperationName("change_visibility"), semconv.MessagingOperationTypeSettle), 1, 0},
		} {
			found := false
			want := attribute.NewSet(c.attributes...)
			for _, p := range points(got[c.name]) {
				if p.attributes.Equals(&want) {
					found = true
					if p.value != c.value || p.sum != c.sum {
						t.Errorf("%s%v: count or value %v, sum %v; want %v, %v", c.name, c.attributes, p.value, p.sum, c.value, c.sum)
					}
				}
			}
			if !found {
				t.Errorf("%s has no series %v, but %v", c.name, c.attributes, points(got[c.name]))
			}
		}
	})
}

func TestOurMetricsCountWhatHappened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueueWithDLQ(t, 10, "VisibilityTimeout", "30"), newMetering(t)
		q.Inject(sqsmodel.Fault{Action: deleteBatch, Times: 1, FailEntries: func(_ sqsmodel.Call, _ int, _, _ string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "InternalError"}
		}})
		time.Sleep(time.Second)
		q.send(12)
		time.Sleep(10 * time.Second) // their age
		w := q.start(takes(20*time.Second), worker.Config{Name: "w1", Concurrency: 2, Prefetch: 10, Telemetry: x.config()})
		time.Sleep(5 * time.Second)
		mid := x.collect()
		for _, c := range []struct {
			name, attribute string
			want            float64
		}{
			{"sqsworker.messages.held", "running", 2}, {"sqsworker.messages.held", "waiting", 10}, {"sqsworker.messages.held", "settling", 0},
			{"sqsworker.slots.free", "", 0}, {"sqsworker.workers", "running", 1}, {"sqsworker.workers", "healthy", 1},
			{"sqsworker.breaker.state", "closed", 1}, {"sqsworker.breaker.state", "open", 0}, {"sqsworker.lease.margin", "", 25},
		} {
			if got := value(mid[c.name], c.attribute); got != c.want {
				t.Errorf("while running: %s{%s} is %v, want %v", c.name, c.attribute, got, c.want)
			}
		}
		q.mustEmpty(10 * time.Minute)
		time.Sleep(time.Minute)
		w.mustStop()
		s, end := w.Stats(), x.collect()
		for _, c := range []struct {
			name, attribute string
			want            float64
		}{
			{"sqsworker.messages.settled", "deleted", 12}, {"sqsworker.delete.failures", "InternalError", float64(s.DeleteFailures)},
			{"sqsworker.receives", "messages", float64(s.FilledReceives)}, {"sqsworker.receives", "empty", float64(s.EmptyReceives)},
			{"sqsworker.api.calls", "", float64(s.Receives + s.DeleteCalls + s.Heartbeat.Calls)}, {"sqsworker.api.calls", "receive", float64(len(q.finished(receiveMessage)))},
			{"sqsworker.api.requests", "", float64(s.BilledRequests)}, {"sqsworker.api.cost", "", float64(s.BilledRequests) * (0.40 / 1e6)},
			{"sqsworker.lease.renewals", "confirmed", float64(s.Heartbeat.Renewed)}, {"sqsworker.messages.held", "", 0}, {"sqsworker.workers", "", 0},
			{"sqsworker.drain.duration", "complete", 1}, {"sqsworker.message.wait", "", 12}, {"sqsworker.message.age", "w1", 12},
		} {
			if got := value(end[c.name], c.attribute); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("after the end: %s{%s} is %v, want %v", c.name, c.attribute, got, c.want)
			}
		}
		if s.DeleteFailures == 0 || s.Heartbeat.Renewed == 0 || s.FilledReceives == 0 {
			t.Fatalf("the scene didn't come about: %+v", s)
		}
		if age := points(end["sqsworker.message.age"])[0].sum; age < 12*10 {
			t.Errorf("the ages add up to %v s, want 10 s and more for each of 12", age)
		}
	})
}

func TestReleasesAndBreakerAreCountedByReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueueWithDLQ(t, 10), newMetering(t)
		q.send(1)
		w := q.start(returns(worker.Unavailable(errors.New("database"))), worker.Config{Telemetry: x.config(), Breaker: worker.Breaker{Pause: time.Hour}})
		time.Sleep(10 * time.Second)
		got := x.collect()
		for name, attribute := range map[string]string{"sqsworker.messages.released": "unavailable", "sqsworker.breaker.state": "open", "sqsworker.breaker.opened": ""} {
			if v := value(got[name], attribute); v != 1 {
				t.Errorf("%s{%s} is %v, want 1", name, attribute, v)
			}
		}
		if v := value(got["sqsworker.workers"], "healthy"); v != 0 {
			t.Errorf("a worker with an open breaker is reported healthy")
		}
		w.mustStop()
	})
}

func TestALargePayloadIsBilledAsSeveralRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10)
		body := make([]byte, 130<<10)
		for i := range body {
			body[i] = 'x'
		}
		q.MustSend(q.url, string(body))
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		q.mustEmpty(time.Minute)
		w.mustStop()
		s := w.Stats()
		if want := s.Receives + s.DeleteCalls + s.Heartbeat.Calls + 2; s.BilledRequests != want {
			t.Errorf("%d requests billed, want %d: 130 KiB are three", s.BilledRequests, want)
		}
	})
}

func TestCountersGoOnFromRunToRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newMetering(t)
		w, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config()})
		if err != nil {
			t.Fatal(err)
		}
		for round := range 2 {
			q.send(1)
			s := run(t, w, &logbook{})
			q.mustEmpty(time.Minute)
			s.mustStop()
			if got := value(x.collect()["sqsworker.messages.settled"], "deleted"); got != float64(round+1) {
				t.Errorf("after run %d: %v messages deleted", round+1, got)
			}
		}
	})
}

func TestErrorTypesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueue(t), newMetering(t)
		q.send(300)
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error { return errNamed(m.Body) }),
			worker.Config{Concurrency: 100, Telemetry: x.config(), Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		eventually(t, time.Minute, "all have failed", func() bool { return w.Stats().Failed == 300 })
		w.mustStop()
		series := len(points(x.collect()[messagingconv.ProcessDuration{}.Name()]))
		if series > 51 || series < 40 {
			t.Errorf("300 error types made %d series, want at most 51", series)
		}
	})
}

type errNamed string

func (e errNamed) Error() string     { return string(e) }
func (e errNamed) ErrorType() string { return "order " + string(e) }

func TestGroupsAndMessagesMakeNoSeries(t *testing.T) {
	each(t, map[string]bool{"by default": false, "groups on request": true}, func(t *testing.T, on bool) {
		q, x := newQueue(t), newMetering(t)
		for i := range 20 {
			if _, err := q.Client().SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String("b"), MessageGroupId: aws.String(fmt.Sprint("tenant", i))}); err != nil {
				t.Fatal(err)
			}
		}
		cfg := x.config()
		cfg.GroupAttribute = on
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: cfg})
		q.mustEmpty(time.Minute)
		w.mustStop()
		want := 1
		if on {
			want = 20
		}
		for name, m := range x.collect() {
			if n := len(points(m)); name == (messagingconv.ProcessDuration{}).Name() && n != want || n > 20 {
				t.Errorf("%s has %d series", name, n)
			}
		}
	})
}

// Not in a bubble: finalizers run outside of one.
func TestAWorkerThatIsDroppedIsNotReportedAnyMore(t *testing.T) {
	x := newMetering(t)
	func() {
		q := newQueue(t)
		w, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config(), WaitTime: time.Second, DrainTimeout: 2 * time.Second, Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, stop)
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if _, ok := x.collect()["sqsworker.workers"]; !ok {
			t.Fatal("a worker isn't reported after its run")
		}
	}()
	for range 100 {
		runtime.GC()
		if _, ok := x.collect()["sqsworker.workers"]; !ok {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a worker that nobody has any more is still held by the meter provider")
}

func TestRequestPriceIsChecked(t *testing.T) {
	q := newQueue(t)
	_, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Telemetry: worker.Telemetry{RequestPrice: -1}})
	if err == nil {
		t.Error("a negative price was accepted")
	}
}
