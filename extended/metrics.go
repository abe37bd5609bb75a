package extended

import (
	"context"
	"runtime"
	"slices"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sqsworker/sqsworker/worker"
)

const (
	bucketKey    = attribute.Key("sqsworker.payload.bucket") // Config.Bucket
	directionKey = attribute.Key("sqsworker.payload.direction")
	resultKey    = attribute.Key("sqsworker.result")
)

// Metrics lists what a [Client] or a [Middleware] reports to [Config.MeterProvider]. Each has the attribute
// sqsworker.payload.bucket, whose value is Config.Bucket, and none that a message could choose.
func Metrics() []worker.Metric {
	var all []worker.Metric
	for _, o := range observed {
		all = append(all, o.Metric)
	}
	return all
}

// observedMetric is a metric that is read from Stats when the provider collects: it costs nothing in between.
type observedMetric struct {
	worker.Metric
	key      attribute.Key
	readings []reading
}

type reading struct {
	value string
	of    func(*Stats) int64
}

var observed = []observedMetric{
	{worker.Metric{Name: "sqsworker.payload.io", Kind: worker.KindCounter, Unit: "By", Description: "Bytes of payloads stored in S3 and fetched from it.", Attributes: []string{string(bucketKey), string(directionKey)}}, directionKey, []reading{
		{"stored", func(s *Stats) int64 { return s.StoredBytes }}, {"fetched", func(s *Stats) int64 { return s.FetchedBytes }}}},
	{worker.Metric{Name: "sqsworker.payloads", Kind: worker.KindCounter, Unit: "{payload}", Description: "Payloads in S3, by what became of them. orphaned ones are left to the lifecycle rule.", Attributes: []string{string(bucketKey), string(resultKey)}}, resultKey, []reading{
		{"stored", func(s *Stats) int64 { return s.Stored }}, {"store_failed", func(s *Stats) int64 { return s.StoreFailures }},
		{"fetched", func(s *Stats) int64 { return s.Fetched }}, {"missing", func(s *Stats) int64 { return s.Missing }},
		{"refused", func(s *Stats) int64 { return s.Refused }}, {"fetch_failed", func(s *Stats) int64 { return s.FetchFailures }},
		{"removed", func(s *Stats) int64 { return s.Removed }}, {"remove_failed", func(s *Stats) int64 { return s.RemoveFailures }},
		{"orphaned", func(s *Stats) int64 { return s.Orphans }}}},
	{worker.Metric{Name: "sqsworker.payload.memory", Kind: worker.KindUpDownCounter, Unit: "By", Description: "Bytes of payloads in memory.", Attributes: []string{string(bucketKey)}}, "", []reading{
		{"", func(s *Stats) int64 { return s.InMemory }}}},
	{worker.Metric{Name: "sqsworker.payload.waiting", Kind: worker.KindUpDownCounter, Unit: "{payload}", Description: "Messages and streams that wait for room in memory.", Attributes: []string{string(bucketKey)}}, "", []reading{
		{"", func(s *Stats) int64 { return int64(s.Waiting) }}}},
}

// observe has the payloads' counts read whenever the provider collects, for as long as anybody uses them.
func (p *payloads) observe() {
	provider := p.cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider() // one that is set later on takes it over
	}
	meter := provider.Meter("github.com/sqsworker/sqsworker/extended")
	instruments, options := make([]metric.Int64Observable, len(observed)), make([][]metric.ObserveOption, len(observed))
	all := make([]metric.Observable, len(observed))
	for i := range observed {
		o := &observed[i]
		instrument, err := o.instrument(meter)
		if err != nil {
			p.cfg.Logger.Warn("a metric can't be had from the MeterProvider", "error", err)
			return
		}
		instruments[i], all[i], options[i] = instrument, instrument, o.options(p.cfg.Bucket)
	}
	weakly := weak.Make(p)
	registration, err := meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		p := weakly.Value()
		if p == nil {
			return nil
		}
		s := p.snapshot()
		for i := range observed {
			for j, r := range observed[i].readings {
				to.ObserveInt64(instruments[i], r.of(&s), options[i][j])
			}
		}
		return nil
	}, all...)
	if err != nil {
		p.cfg.Logger.Warn("metrics can't be had from the MeterProvider", "error", err)
		return
	}
	runtime.AddCleanup(p, func(r metric.Registration) { _ = r.Unregister() }, registration)
}

func (o *observedMetric) instrument(m metric.Meter) (metric.Int64Observable, error) {
	if o.Kind == worker.KindCounter {
		return m.Int64ObservableCounter(o.Name, metric.WithUnit(o.Unit), metric.WithDescription(o.Description))
	}
	return m.Int64ObservableUpDownCounter(o.Name, metric.WithUnit(o.Unit), metric.WithDescription(o.Description))
}

// options are the attributes of each reading.
func (o *observedMetric) options(bucket string) []metric.ObserveOption {
	all := make([]metric.ObserveOption, len(o.readings))
	for j, r := range o.readings {
		attributes := []attribute.KeyValue{bucketKey.String(bucket)}
		if r.value != "" {
			attributes = append(attributes, o.key.String(r.value))
		}
		all[j] = metric.WithAttributeSet(attribute.NewSet(slices.Clip(attributes)...))
	}
	return all
}
