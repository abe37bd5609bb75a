package worker

import (
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Most of what a worker counts it counts anyway, for Stats. These metrics are read from there when the MeterProvider collects,
// so that they cost nothing in between.

// observedMetric is a metric that is read when it is asked for.
type observedMetric struct {
	Metric
	readings []reading
}

// reading is one time series of it.
type reading struct {
	value string // of the attribute; empty when the metric has none
	of    func(*sample) (float64, bool)
}

// sample is what there is to read from.
type sample struct {
	Stats
	price     float64
	working   bool          // Run is under way
	healthy   bool          // and all is well
	margin    time.Duration // least time left of a lease that is held
	hasMargin bool
}

// Attributes that tell the series of a metric apart.
const (
	stateKey   = attribute.Key("sqsworker.state")
	reasonKey  = attribute.Key("sqsworker.reason")
	resultKey  = attribute.Key("sqsworker.result")
	callKey    = attribute.Key("sqsworker.call")
	breakerKey = attribute.Key("sqsworker.breaker.state")
)

func counted(of func(*sample) int64) func(*sample) (float64, bool) {
	return func(s *sample) (float64, bool) { return float64(of(s)), true }
}

// present is for values that only a running worker has.
func present(of func(*sample) int) func(*sample) (float64, bool) {
	return func(s *sample) (float64, bool) {
		if !s.working {
			return 0, true
		}
		return float64(of(s)), true
	}
}

func one(of func(*sample) bool) func(*sample) (float64, bool) {
	return func(s *sample) (float64, bool) {
		if of(s) {
			return 1, true
		}
		return 0, true
	}
}

func inBreaker(state BreakerState) reading {
	return reading{state.String(), one(func(s *sample) bool { return s.working && s.Breaker == state })}
}

func count(name, unit, description string, of func(*sample) int64) observedMetric {
	return observedMetric{Metric{name, KindCounter, unit, description, nil}, []reading{{"", counted(of)}}}
}

func by(m Metric, key attribute.Key, readings ...reading) observedMetric {
	m.Attributes = []string{string(key)}
	return observedMetric{m, readings}
}

var observed = []observedMetric{
	by(Metric{"sqsworker.messages.held", KindUpDownCounter, "{message}", "Messages that this worker holds, which are in flight at SQS, by what happens to them.", nil}, stateKey,
		reading{"waiting", present(func(s *sample) int { return s.Waiting })},
		reading{"running", present(func(s *sample) int { return s.Running })},
		reading{"settling", present(func(s *sample) int { return s.Unsettled })}),
	{Metric{"sqsworker.slots.free", KindUpDownCounter, "{message}", "Messages that may still be received.", nil}, []reading{{"", present(func(s *sample) int { return s.FreeSlots })}}},
	{Metric{"sqsworker.receives.open", KindUpDownCounter, "{call}", "Receives that wait for messages.", nil}, []reading{{"", present(func(s *sample) int { return s.OpenReceives })}}},
	by(Metric{"sqsworker.receives", KindCounter, "{call}", "Receives that came to an end, by result. over_limit ones were refused because too many messages are in flight.", nil}, resultKey,
		reading{"messages", counted(func(s *sample) int64 { return s.FilledReceives })},
		reading{"empty", counted(func(s *sample) int64 { return s.EmptyReceives })},
		reading{"failed", counted(func(s *sample) int64 { return s.ReceiveErrors - s.OverLimit })},
		reading{"over_limit", counted(func(s *sample) int64 { return s.OverLimit })},
		reading{"aborted", counted(func(s *sample) int64 { return s.AbortedReceives })}),
	by(Metric{"sqsworker.messages.suppressed", KindCounter, "{message}", "Deliveries that were not run: of messages held here already, completed before, or corrupt on arrival.", nil}, reasonKey,
		reading{"held", counted(func(s *sample) int64 { return s.Duplicates })},
		reading{"completed", counted(func(s *sample) int64 { return s.Suppressed })},
		reading{"corrupt", counted(func(s *sample) int64 { return s.Corrupt })}),
	by(Metric{"sqsworker.messages.settled", KindCounter, "{message}", "Messages that are off this worker's hands for good: deleted, of them dead-lettered, or completed but not deleted.", nil}, resultKey,
		reading{"deleted", counted(func(s *sample) int64 { return s.Deleted })},
		reading{"dead_lettered", counted(func(s *sample) int64 { return s.DeadLettered })},
		reading{"undeleted", counted(func(s *sample) int64 { return s.Undeleted })}),
	by(Metric{"sqsworker.messages.released", KindCounter, "{message}", "Messages given back, by reason; could_not of them come back when their visibility ends.", nil}, reasonKey,
		reading{"failed", counted(func(s *sample) int64 { return s.Retried })},
		reading{"snoozed", counted(func(s *sample) int64 { return s.Snoozed })},
		reading{"unavailable", counted(func(s *sample) int64 { return s.Unavailable })},
		reading{"interrupted", counted(func(s *sample) int64 { return s.Interrupted })},
		reading{"unstarted", counted(func(s *sample) int64 { return s.ReleasedUnstarted })},
		reading{"tenant", counted(func(s *sample) int64 { return s.TenantSurplus })},
		reading{"could_not", counted(func(s *sample) int64 { return s.ReleaseFailures })}),
	count("sqsworker.messages.near_limit", "{message}", "Messages that the redrive policy takes next time, though not every receive was a failure.", func(s *sample) int64 { return s.NearLimit }),
	{Metric{"sqsworker.lease.margin", KindGauge, "s", "Least time left of any lease held now. Near zero, leases are about to be lost.", nil}, []reading{{"", func(s *sample) (float64, bool) {
		return seconds(s.margin), s.working && s.hasMargin
	}}}},
	by(Metric{"sqsworker.lease.renewals", KindCounter, "{renewal}", "Renewals of leases, and releases, by how SQS answered; failed ones were tried again.", nil}, resultKey,
		reading{"confirmed", counted(func(s *sample) int64 { return s.Heartbeat.Renewed })},
		reading{"failed", counted(func(s *sample) int64 { return s.Heartbeat.Failed })}),
	count("sqsworker.leases.lost", "{lease}", "Leases lost: the messages come back, and may be run twice.", func(s *sample) int64 { return s.Lost }),
	count("sqsworker.leases.at_ceiling", "{lease}", "Messages held for as long as SQS allows.", func(s *sample) int64 { return s.Heartbeat.Ceilings }),
	count("sqsworker.handler.panics", "{panic}", "Handlers that panicked.", func(s *sample) int64 { return s.Panics }),
	count("sqsworker.handler.overdue", "{handler}", "Handlers that hadn't returned well after their timeout.", func(s *sample) int64 { return s.Overdue }),
	count("sqsworker.handler.retries", "{retry}", "Handlers called again in process.", func(s *sample) int64 { return s.RetriedInProcess }),
	count("sqsworker.handler.late_results", "{result}", "Handlers that returned after a drain had given their messages back.", func(s *sample) int64 { return s.LateResults }),
	count("sqsworker.dead_letter.failures", "{message}", "Messages that the dead-letter sink did not take; given back.", func(s *sample) int64 { return s.DeadLetterFailures }),
	count("sqsworker.after_delete.failures", "{failure}", "Functions to run after a deletion that failed.", func(s *sample) int64 { return s.AfterDeleteFailures }),
	by(Metric{"sqsworker.breaker.state", KindUpDownCounter, "{worker}", "1 for the state that the breaker is in.", nil}, breakerKey,
		inBreaker(BreakerClosed), inBreaker(BreakerOpen), inBreaker(BreakerProbing)),
	count("sqsworker.breaker.opened", "{event}", "How often the breaker opened.", func(s *sample) int64 { return s.BreakerOpened }),
	by(Metric{"sqsworker.workers", KindUpDownCounter, "{worker}", "Workers that run, and those of them that are healthy.", nil}, stateKey,
		reading{"running", one(func(s *sample) bool { return s.working })},
		reading{"healthy", one(func(s *sample) bool { return s.working && s.healthy })}),
	by(Metric{"sqsworker.api.calls", KindCounter, "{call}", "Calls of SQS. Divided by the messages deleted: calls per message.", nil}, callKey,
		reading{"receive", counted(func(s *sample) int64 { return s.Receives })},
		reading{"delete", counted(func(s *sample) int64 { return s.DeleteCalls })},
		reading{"change_visibility", counted(func(s *sample) int64 { return s.Heartbeat.Calls })}),
	count("sqsworker.api.requests", "{request}", "Requests that SQS bills for these calls: one for each 64 KiB begun of what a call carries.", func(s *sample) int64 { return s.BilledRequests }),
	{Metric{"sqsworker.api.cost", KindCounter, "{USD}", "Estimated price of these requests, by Telemetry.RequestPrice.", nil}, []reading{{"", func(s *sample) (float64, bool) {
		return float64(s.BilledRequests) * s.price, true
	}}}},
}

// readings reads a worker's metrics from its current run. Counters go on over runs: what ended runs counted is kept.
//
// Callbacks are registered once and stay registered after Run has returned, so that a last export sees how the drain ended.
// They hold the worker weakly, and go when it does.
type readings struct {
	mu    sync.Mutex
	run   *run
	ended map[*reading]float64
	once  sync.Once
}

func (x *readings) begin(r *run) {
	x.mu.Lock()
	x.run = r
	x.mu.Unlock()
}

// end keeps what a run has counted.
func (x *readings) end(r *run) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.run != r {
		return // it never came to work
	}
	s := r.sample()
	x.run = nil
	if x.ended == nil {
		x.ended = map[*reading]float64{}
	}
	for i := range observed {
		for j := range observed[i].readings {
			if at := &observed[i].readings[j]; observed[i].Kind == KindCounter {
				v, _ := at.of(&s)
				x.ended[at] += v
			}
		}
	}
}

// observe reports every reading.
func (x *readings) observe(report func(metric, reading int, value float64)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := sample{}
	if x.run != nil {
		s = x.run.sample()
	}
	for i := range observed {
		for j := range observed[i].readings {
			at := &observed[i].readings[j]
			if v, ok := at.of(&s); ok {
				report(i, j, v+x.ended[at])
			}
		}
	}
}

// sample reads a run.
func (r *run) sample() sample {
	s := sample{Stats: r.snapshot(), price: r.cfg.Telemetry.price(r.fifo), working: !r.over.Load()}
	s.healthy = s.working && r.w.Healthy() == nil
	s.margin, s.hasMargin = r.registry.leastLeft()
	return s
}

// register makes the instruments of a worker and has them read whenever the provider collects.
func (x *readings) register(m metric.Meter, w *Worker) { x.once.Do(func() { x.registerOnce(m, w) }) }

func (x *readings) registerOnce(m metric.Meter, w *Worker) {
	instruments, options := make([]metric.Float64Observable, len(observed)), make([][][]metric.ObserveOption, len(observed))
	all := make([]metric.Observable, 0, len(observed))
	own := w.own()
	for i := range observed {
		o := &observed[i]
		instrument, err := o.instrument(m)
		if err != nil {
			w.cfg.Logger.Warn("a metric can't be had from the MeterProvider", "worker", w.cfg.Name, "error", err)
			continue
		}
		instruments[i], all = instrument, append(all, instrument)
		options[i] = o.options(own)
	}
	weakly := weak.Make(x)
	registration, err := m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		if x := weakly.Value(); x != nil {
			x.observe(func(metric, reading int, value float64) {
				if instruments[metric] != nil {
					to.ObserveFloat64(instruments[metric], value, options[metric][reading]...)
				}
			})
		}
		return nil
	}, all...)
	if err != nil {
		w.cfg.Logger.Warn("metrics can't be had from the MeterProvider", "worker", w.cfg.Name, "error", err)
		return
	}
	runtime.AddCleanup(x, func(r metric.Registration) { _ = r.Unregister() }, registration)
}

func (o *observedMetric) instrument(m metric.Meter) (metric.Float64Observable, error) {
	switch o.Kind {
	case KindCounter:
		return m.Float64ObservableCounter(o.Name, metric.WithUnit(o.Unit), metric.WithDescription(o.Description))
	case KindUpDownCounter:
		return m.Float64ObservableUpDownCounter(o.Name, metric.WithUnit(o.Unit), metric.WithDescription(o.Description))
	}
	return m.Float64ObservableGauge(o.Name, metric.WithUnit(o.Unit), metric.WithDescription(o.Description))
}

// options are the attributes of each reading.
func (o *observedMetric) options(own []attribute.KeyValue) [][]metric.ObserveOption {
	all := make([][]metric.ObserveOption, len(o.readings))
	for j, at := range o.readings {
		attributes := append([]attribute.KeyValue{}, own...)
		if at.value != "" {
			attributes = append(attributes, attribute.String(o.Attributes[0], at.value))
		}
		all[j] = []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}
	}
	return all
}
