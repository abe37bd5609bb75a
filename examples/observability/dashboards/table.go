package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/worker"
)

// table is the page that lists every metric.
func table() []byte {
	b := &strings.Builder{}
	b.WriteString(`# Metrics

Every metric that the library reports, by OpenTelemetry's names and as its exporter for Prometheus writes them. This page is
generated from ` + "`worker.Metrics()` and `extended.Metrics()`, by `go run ./examples/observability/dashboards`" + `; a test holds it to them, and
another holds them to what a real SDK collects.

They go to OpenTelemetry's global MeterProvider if the program has set one before ` + "`Run`, or to `Config.Telemetry.MeterProvider`" + `. Without
one, none is kept and nothing is spent. Most are read from the worker's own counts when the provider collects; histograms are
told of each message or call.

How many time series there are is bounded whatever messages contain: outcomes, reasons and calls are fixed, a worker reports at
most 50 values of ` + "`error.type`" + ` and then ` + "`_OTHER`" + `, message ids are in none, and message groups only with ` + "`Telemetry.GroupAttribute`" + `. All but
those of payloads have ` + "`messaging.destination.name`, the queue's name; those that begin with `sqsworker.` also have `sqsworker.worker.name`, which is `Config.Name`" + `:
give workers of one queue in one process different names, or their gauges are each other's.

Buckets of durations end at 10 s for calls and handlers, as the conventions advise, and at four days for ages. Where handlers take
longer, widen theirs with a View, as [the example](../examples/observability/telemetry.go) does.

`)
	section(b, "A worker", worker.Metrics(), func(m worker.Metric) bool { return !strings.Contains(m.Name, ".backlog.") })
	section(b, "Its backlog, with a `BacklogPublisher`", worker.Metrics(), func(m worker.Metric) bool { return strings.Contains(m.Name, ".backlog.") })
	section(b, "Payloads in S3, of an `extended.Client`", extended.Metrics(), func(worker.Metric) bool { return true })
	b.WriteString("In CloudWatch's embedded metric format, a `BacklogPublisher` writes, with the dimension QueueName: " + strings.Join(worker.BacklogMetricNames(), ", ") + ".\n")
	return []byte(b.String())
}

func section(b *strings.Builder, title string, metrics []worker.Metric, which func(worker.Metric) bool) {
	fmt.Fprintf(b, "## %s\n\n| Metric | Prometheus | Kind, unit | What it is | Further attributes |\n|---|---|---|---|---|\n", title)
	for _, m := range metrics {
		if !which(m) {
			continue
		}
		attributes := slices.Clone(m.Attributes)
		for i, a := range attributes {
			attributes[i] = "`" + a + "`"
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s, %s | %s | %s |\n", m.Name, promMetric(m), m.Kind, m.Unit, m.Description, strings.Join(attributes, ", "))
	}
	b.WriteString("\n")
}
