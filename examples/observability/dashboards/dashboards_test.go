package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sqsworker/sqsworker/worker"
)

func TestTheFilesAreWhatTheCodeWrites(t *testing.T) {
	if err := run(".", true); err != nil {
		t.Error(err)
	}
}

func TestAMetricThatDoesNotExistFails(t *testing.T) {
	for name, ask := range map[string]func(*queries){
		"a metric":                         func(q *queries) { q.series("sqsworker.leases.found", "") },
		"an attribute":                     func(q *queries) { q.series("sqsworker.leases.lost", "", is("sqsworker.reason", "x")) },
		"an attribute to group by":         func(q *queries) { q.quantile(0.5, "sqsworker.message.age", "1m", []string{"error.type"}) },
		"one in a search":                  func(q *queries) { q.search("sqsworker.nothing", "Sum") },
		"one of the backlog in CloudWatch": func(q *queries) { q.backlog("BacklogForward") },
	} {
		q := &queries{}
		ask(q)
		if len(q.wrong) != 1 {
			t.Errorf("%s: %d mistakes were found, want 1", name, len(q.wrong))
		}
	}
}

func TestWhatAnOperatorLooksForIsShown(t *testing.T) {
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	shown := string(all["grafana.json"]) + string(all["alerts.yaml"])
	quiet := map[string]bool{ // shown by another one, or only of use when something is looked into
		"sqsworker.api.requests": true, "sqsworker.receives.open": true, "sqsworker.leases.at_ceiling": true, "sqsworker.handler.panics": true, "sqsworker.handler.overdue": true,
		"sqsworker.handler.retries": true, "sqsworker.handler.late_results": true, "sqsworker.dead_letter.failures": true, "sqsworker.after_delete.failures": true,
		"sqsworker.payloads": true, "sqsworker.payload.memory": true, "sqsworker.payload.waiting": true,
		"sqsworker.breaker.opened": true, "sqsworker.backlog.per_worker": true, "sqsworker.backlog.acceptable_per_worker": true,
	}
	for _, m := range allMetrics() {
		if !quiet[m.Name] && !strings.Contains(shown, promMetric(m)) {
			t.Errorf("%s is on no dashboard", m.Name)
		}
	}
}

// TestMetricsAreCalledWhatTheExporterForPrometheusCallsThem makes an instrument of each and scrapes it.
func TestMetricsAreCalledWhatTheExporterForPrometheusCallsThem(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)).Meter("test")
	for _, m := range allMetrics() {
		var err error
		ctx := context.Background()
		switch m.Kind {
		case worker.KindHistogram:
			var h metric.Float64Histogram
			h, err = meter.Float64Histogram(m.Name, metric.WithUnit(m.Unit))
			h.Record(ctx, 1)
		case worker.KindCounter:
			var c metric.Float64Counter
			c, err = meter.Float64Counter(m.Name, metric.WithUnit(m.Unit))
			c.Add(ctx, 1)
		case worker.KindUpDownCounter:
			var c metric.Float64UpDownCounter
			c, err = meter.Float64UpDownCounter(m.Name, metric.WithUnit(m.Unit))
			c.Add(ctx, 1)
		default:
			var g metric.Float64Gauge
			g, err = meter.Float64Gauge(m.Name, metric.WithUnit(m.Unit))
			g.Record(ctx, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	scraped, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range scraped {
		names[f.GetName()] = true
	}
	for _, m := range allMetrics() {
		if !names[promMetric(m)] {
			t.Errorf("%s isn't called %s by the exporter: %v", m.Name, promMetric(m), names)
		}
	}
}

func TestDashboardsAreWellFormed(t *testing.T) {
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"grafana.json", "cloudwatch.json", "cloudwatch-alarms.json"} {
		if !json.Valid(all[name]) {
			t.Errorf("%s is no JSON", name)
		}
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ H, W, X, Y int }
		}
	}
	if err := json.Unmarshal(all["grafana.json"], &dashboard); err != nil {
		t.Fatal(err)
	}
	for i, a := range dashboard.Panels {
		if a.GridPos.X+a.GridPos.W > 24 {
			t.Errorf("panel %q reaches beyond the dashboard", a.Title)
		}
		for _, b := range dashboard.Panels[:i] {
			p, r := a.GridPos, b.GridPos
			if a.ID == b.ID || p.X < r.X+r.W && r.X < p.X+p.W && p.Y < r.Y+r.H && r.Y < p.Y+p.H {
				t.Errorf("panels %q and %q overlap, or share an id", a.Title, b.Title)
			}
		}
	}
}

func TestPrometheusTakesTheRulesAndTheQueries(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("there is no promtool here: apt-get install prometheus")
	}
	if out, err := exec.Command(promtool, "check", "rules", "alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	// As rules, so that promtool parses them.
	rules := &strings.Builder{}
	rules.WriteString("groups:\n  - name: panels\n    rules:\n")
	for _, expr := range regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllStringSubmatch(string(all["grafana.json"]), -1) {
		var text string
		if err := json.Unmarshal([]byte(expr[1]), &text); err != nil {
			t.Fatal(err)
		}
		rules.WriteString("      - record: panel\n        expr: " + quoted(strings.ReplaceAll(text, "$__rate_interval", "5m")) + "\n        labels:\n          n: '" + strings.Repeat("x", rules.Len()%97) + "'\n")
	}
	path := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", "--lint=none", path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
