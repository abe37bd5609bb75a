package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/worker"
)

// queries makes queries from metrics, and notes those that don't exist.
type queries struct {
	wrong []error
}

// allMetrics are those of a worker and of payloads in S3.
func allMetrics() []worker.Metric { return append(worker.Metrics(), extended.Metrics()...) }

// metric finds a metric by the name that the worker's table has, and checks the attributes that it is asked for.
func (q *queries) metric(name string, attributes ...string) worker.Metric {
	all := allMetrics()
	i := slices.IndexFunc(all, func(m worker.Metric) bool { return m.Name == name })
	if i < 0 {
		q.wrong = append(q.wrong, fmt.Errorf("there is no metric %s", name))
		return worker.Metric{Name: name}
	}
	known := slices.Clone(all[i].Attributes)
	if !slices.Contains(known, "sqsworker.payload.bucket") {
		known = append(known, "messaging.destination.name", "sqsworker.worker.name")
	}
	for _, a := range attributes {
		if !slices.Contains(known, a) {
			q.wrong = append(q.wrong, fmt.Errorf("metric %s has no attribute %s: it has %s", name, a, strings.Join(known, ", ")))
		}
	}
	return all[i]
}

// backlog checks the name of a metric that BacklogPublisher writes for CloudWatch.
func (q *queries) backlog(name string) string {
	if !slices.Contains(worker.BacklogMetricNames(), name) {
		q.wrong = append(q.wrong, fmt.Errorf("BacklogPublisher writes no metric %s for CloudWatch", name))
	}
	return name
}

// where is a condition on an attribute, with one of Prometheus's operators.
type where struct{ attribute, operator, value string }

func is(attribute, value string) where      { return where{attribute, "=", value} }
func matches(attribute, value string) where { return where{attribute, "=~", value} }

// onQueue is the queue that the dashboard is set to.
var onQueue = matches("messaging.destination.name", "$queue")

// series is a metric as Prometheus selects it: with the suffix that its exporter adds, and "_bucket", "_count" or "_sum" of
// histograms.
func (q *queries) series(name, part string, conditions ...where) string {
	var attributes, terms []string
	for _, c := range conditions {
		attributes = append(attributes, c.attribute)
		terms = append(terms, fmt.Sprintf("%s%s%q", promName(c.attribute), c.operator, c.value))
	}
	m := q.metric(name, attributes...)
	selector := promMetric(m) + part
	if len(terms) > 0 {
		selector += "{" + strings.Join(terms, ",") + "}"
	}
	return selector
}

// rate is a counter's growth for each second.
func (q *queries) rate(name string, conditions ...where) string {
	return "rate(" + q.series(name, "", conditions...) + "[$__rate_interval])"
}

// quantile is one of a histogram's, by attributes if any are named.
func (q *queries) quantile(of float64, name, window string, by []string, conditions ...where) string {
	q.metric(name, by...)
	grouped := []string{"le"}
	for _, a := range by {
		grouped = append(grouped, promName(a))
	}
	return fmt.Sprintf("histogram_quantile(%v, sum by (%s) (rate(%s[%s])))", of, strings.Join(grouped, ", "), q.series(name, "_bucket", conditions...), window)
}

func promName(name string) string { return strings.ReplaceAll(name, ".", "_") }

// promMetric is a metric's name as OpenTelemetry's exporter for Prometheus writes it.
func promMetric(m worker.Metric) string {
	name := promName(m.Name)
	switch m.Unit {
	case "s":
		name += "_seconds"
	case "By":
		name += "_bytes"
	case "1":
		if m.Kind == worker.KindGauge {
			name += "_ratio"
		}
	}
	if m.Kind == worker.KindCounter {
		name += "_total"
	}
	return name
}
