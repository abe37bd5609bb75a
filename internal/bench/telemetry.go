package bench

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sqsworker/sqsworker/worker"
)

// The telemetry scenario: what traces and metrics cost. It is the throughput scenario: first handlers that do nothing, which makes
// the cost as visible as it can be, then handlers that take 10 ms: the worker without telemetry, with OpenTelemetry's API and
// nothing behind it, and with its SDK, whose exporters here take everything and do nothing with it.

func newOursAPI(a assignment, j *jobs) (subject, error) {
	return newOursWith(a, j, worker.Telemetry{TracerProvider: otel.GetTracerProvider(), MeterProvider: otel.GetMeterProvider()})
}

func newOursMetrics(a assignment, j *jobs) (subject, error) {
	return newOursWith(a, j, worker.Telemetry{MeterProvider: sdkMeters()})
}

// newOursSampled traces one message in ten, as services with this much to do usually are set.
func newOursSampled(a assignment, j *jobs) (subject, error) {
	return newOursWith(a, j, worker.Telemetry{TracerProvider: sdkTraces(sdktrace.TraceIDRatioBased(0.1)), MeterProvider: sdkMeters()})
}

func newOursSDK(a assignment, j *jobs) (subject, error) {
	return newOursWith(a, j, worker.Telemetry{TracerProvider: sdkTraces(sdktrace.AlwaysSample()), MeterProvider: sdkMeters()})
}

func sdkTraces(sampler sdktrace.Sampler) *sdktrace.TracerProvider {
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}), sdktrace.WithSampler(sdktrace.ParentBased(sampler)))
}

func sdkMeters() *metric.MeterProvider {
	return metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(nowhereMetrics{}, metric.WithInterval(time.Second))))
}

// nowhere is where spans go.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// nowhereMetrics is where metrics go.
type nowhereMetrics struct{}

func (nowhereMetrics) Temporality(k metric.InstrumentKind) metricdata.Temporality {
	return metric.DefaultTemporalitySelector(k)
}
func (nowhereMetrics) Aggregation(k metric.InstrumentKind) metric.Aggregation {
	return metric.DefaultAggregationSelector(k)
}
func (nowhereMetrics) Export(context.Context, *metricdata.ResourceMetrics) error { return nil }
func (nowhereMetrics) ForceFlush(context.Context) error                          { return nil }
func (nowhereMetrics) Shutdown(context.Context) error                            { return nil }

func (d *director) telemetry(ctx context.Context) error {
	for _, takes := range []time.Duration{0, 10 * time.Millisecond} {
		if err := d.telemetryWith(ctx, takes); err != nil {
			return err
		}
	}
	return nil
}

// telemetryWith compares with handlers that take so long.
func (d *director) telemetryWith(ctx context.Context, takes time.Duration) error {
	const concurrency = 100
	latency := d.Latencies[0]
	entrants := []entrant{}
	for _, c := range []struct{ name, contestant string }{
		{"off", "ours"}, {"API, no provider behind it", "ours-api"}, {"SDK, metrics", "ours-metrics"},
		{"SDK, metrics and a tenth of the traces", "ours-sampled"}, {"SDK, metrics and every trace", "ours-sdk"},
	} {
		e := entrant{name: c.name, assigned: assignment{Contestant: c.contestant, Concurrency: concurrency, Prefetch: concurrency, Job: job{Takes: takes}}}
		if _, err := (calibration{d, ctx, latency, concurrency}).try(&e, pick(d, 300, 15_000)); err != nil {
			return err
		}
		entrants = append(entrants, e)
	}
	for round := range d.Rounds {
		for i := range entrants {
			e := &entrants[(round+i)%len(entrants)]
			e.assigned.CPUProfile, e.assigned.AllocProfile = d.profilePaths("telemetry", takes.String(), e.assigned.Contestant, fmt.Sprint(round+1))
			s, err := d.sprint(ctx, latency, e.assigned, e.messages)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			e.runs = append(e.runs, s)
		}
	}
	d.printTelemetry(latency, takes, entrants)
	return nil
}

func (d *director) printTelemetry(latency, takes time.Duration, entrants []entrant) {
	t := table{
		title: fmt.Sprintf("telemetry: handlers of %v, %v a call, concurrency %d", takes, latency, entrants[0].assigned.Concurrency), left: 1,
		head: []string{"telemetry", "messages/s", "CPU µs/msg", "allocs/msg", "rate/off", "CPU/off"},
	}
	off, metrics, every := &entrants[0], &entrants[2], &entrants[4]
	for i := range entrants {
		e := &entrants[i]
		cell := func(f func(sprint) float64) string { return figure(median(e.of(f))) }
		t.add(e.name, cell(byRate), cell(byCPU), cell(func(s sprint) float64 { return s.allocs }),
			fmt.Sprintf("%.2f", medianRatio(e.of(byRate), off.of(byRate))), fmt.Sprintf("%.2f", medianRatio(e.of(byCPU), off.of(byCPU))))
	}
	t.note("The server shares the machine: where it is the bottleneck, rates differ less than CPU does.")
	t.print(d.out)
	d.atLeast(0.95, medianRatio(metrics.of(byRate), off.of(byRate)), "", "throughput with metrics / without, handlers of %v", takes)
	d.atLeast(0.95, medianRatio(every.of(byRate), off.of(byRate)), "", "throughput with metrics and every trace / without, handlers of %v", takes)
}
