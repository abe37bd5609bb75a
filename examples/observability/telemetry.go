package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sqsworker/sqsworker/worker"
)

// telemetry is where traces and metrics go.
type telemetry struct {
	registry *prometheus.Registry
	ends     []func(context.Context) error
}

// setUpTelemetry sets OpenTelemetry's global providers, which the worker uses from its Run on. Metrics can always be scraped by
// Prometheus; over OTLP both go out if an endpoint is set, by the environment variables that OpenTelemetry specifies.
func setUpTelemetry(ctx context.Context) (*telemetry, error) {
	t := &telemetry{registry: prometheus.NewRegistry()}
	service, err := resource.Merge(resource.Default(), resource.NewSchemaless(attribute.String("service.name", "orders-worker")))
	if err != nil {
		return nil, fmt.Errorf("the service's resource: %w", err)
	}
	scrape, err := otelprometheus.New(otelprometheus.WithRegisterer(t.registry))
	if err != nil {
		return nil, fmt.Errorf("the exporter for Prometheus: %w", err)
	}
	meters := []metric.Option{metric.WithResource(service), metric.WithReader(scrape), metric.WithView(longJobs())}
	traces := []sdktrace.TracerProviderOption{sdktrace.WithResource(service)} // WithSampler(ParentBased(TraceIDRatioBased(0.1))) where there is much to do
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		spans, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("the exporter of traces: %w", err)
		}
		numbers, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("the exporter of metrics: %w", err)
		}
		traces = append(traces, sdktrace.WithBatcher(spans))
		meters = append(meters, metric.WithReader(metric.NewPeriodicReader(numbers)))
	}
	meterProvider, tracerProvider := metric.NewMeterProvider(meters...), sdktrace.NewTracerProvider(traces...)
	otel.SetMeterProvider(meterProvider)
	otel.SetTracerProvider(tracerProvider)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	t.ends = []func(context.Context) error{tracerProvider.Shutdown, meterProvider.Shutdown}
	return t, nil
}

// longJobs widens the buckets of handlers' runs, which by the conventions end at 10 s.
func longJobs() metric.View {
	name := "messaging.process.duration"
	for _, m := range worker.Metrics() {
		if m.Name == name {
			return metric.NewView(metric.Instrument{Name: name}, metric.Stream{Aggregation: metric.AggregationExplicitBucketHistogram{
				Boundaries: []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600},
			}})
		}
	}
	panic("there is no metric " + name)
}

// shutdown sends what is left.
func (t *telemetry) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var errs []error
	for _, end := range t.ends {
		errs = append(errs, end(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		slog.Warn("the last traces and metrics could not be sent", "error", err)
	}
}
