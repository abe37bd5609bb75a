package extended_test

import (
	"context"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/worker"
)

func TestEveryPayloadMetricIsReportedAndCountsBytes(t *testing.T) {
	bubble(t, func(w *world) {
		reader := sdkmetric.NewManualReader()
		c := w.client(extended.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
		w.send(c, large(300_000))
		stop := w.run(c.ForWorker(), c.Middleware(), func(context.Context, *worker.Message) error { return nil }, worker.Config{})
		time.Sleep(time.Minute)
		stop()
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		got := map[string]metricdata.Sum[int64]{}
		for _, s := range all.ScopeMetrics {
			for _, m := range s.Metrics {
				got[m.Name] = m.Data.(metricdata.Sum[int64])
			}
		}
		for _, m := range extended.Metrics() {
			sum, ok := got[m.Name]
			if !ok || sum.IsMonotonic != (m.Kind == worker.KindCounter) {
				t.Errorf("%s isn't reported as a %s", m.Name, m.Kind)
			}
			for _, p := range sum.DataPoints {
				if v, ok := p.Attributes.Value("sqsworker.payload.bucket"); !ok || v.AsString() != bucket || p.Attributes.Len() != len(m.Attributes) {
					t.Errorf("%s has attributes %v, want %v", m.Name, p.Attributes.ToSlice(), m.Attributes)
				}
				if m.Name == "sqsworker.payload.io" && p.Value != 300_000 {
					t.Errorf("%d bytes, want 300000: %v", p.Value, p.Attributes.ToSlice())
				}
			}
		}
		if len(got) != len(extended.Metrics()) {
			t.Errorf("%d metrics are reported, %d in the list", len(got), len(extended.Metrics()))
		}
	})
}
