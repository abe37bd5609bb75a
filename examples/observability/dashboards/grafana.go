package main

import (
	"encoding/json"
	"fmt"
)

// panel is one of Grafana's, with what it asks Prometheus for.
type panel struct {
	title, about string
	kind         string // "timeseries" or "stat"
	unit         string // Grafana's name of it
	width        int    // of 24
	targets      []target
	red          *float64 // from this value on it is red; with a stat, from the other side if reversed
	reversed     bool
	stacked      bool
}

type target struct{ expr, legend string }

func at(v float64) *float64 { return &v }

// rows are the dashboard, from what matters first.
func rows(q *queries) []struct {
	title  string
	panels []panel
} {
	duration, process := "messaging.client.operation.duration", "messaging.process.duration"
	failed := []where{onQueue, matches("sqsworker.outcome", "failed|unavailable|lost")}
	return []struct {
		title  string
		panels []panel
	}{
		{"Is all well?", []panel{
			{title: "Workers that are well", kind: "stat", unit: "percentunit", width: 4, red: at(1), reversed: true, about: "Healthy ones as a part of those that run.",
				targets: []target{{"sum(" + q.series("sqsworker.workers", "", onQueue, is("sqsworker.state", "healthy")) + ") / sum(" + q.series("sqsworker.workers", "", onQueue, is("sqsworker.state", "running")) + ")", ""}}},
			{title: "In the dead-letter queue", kind: "stat", unit: "short", width: 4, red: at(1), about: "Needs a BacklogPublisher.",
				targets: []target{{"max(" + q.series("sqsworker.backlog.dead_lettered", "", onQueue) + ")", ""}}},
			{title: "Leases lost, last hour", kind: "stat", unit: "short", width: 4, red: at(1), about: "Each message comes back, and may have been run twice.",
				targets: []target{{"sum(increase(" + q.series("sqsworker.leases.lost", "", onQueue) + "[1h]))", ""}}},
			{title: "Least lease left", kind: "stat", unit: "s", width: 4, red: at(5), reversed: true, about: "Of any message held now. Near zero, leases are about to be lost.",
				targets: []target{{"min(" + q.series("sqsworker.lease.margin", "", onQueue) + ")", ""}}},
			{title: "Open breakers", kind: "stat", unit: "short", width: 4, red: at(1), about: "Workers that don't receive because a dependency is down.",
				targets: []target{{"sum(" + q.series("sqsworker.breaker.state", "", onQueue, matches("sqsworker.breaker.state", "open|probing")) + ")", ""}}},
			{title: "Backlog load", kind: "stat", unit: "percentunit", width: 4, red: at(1.5), about: "Backlog per worker as a part of what can be worked off within the acceptable latency. Needs a BacklogPublisher that knows the number of workers.",
				targets: []target{{"max(" + q.series("sqsworker.backlog.load", "", onQueue) + ")", ""}}},
		}},
		{"Messages", []panel{
			{title: "Messages a second", kind: "timeseries", unit: "ops", width: 8, targets: []target{
				{"sum(" + q.rate("messaging.client.consumed.messages", onQueue) + ")", "received"},
				{"sum(" + q.rate("sqsworker.messages.settled", onQueue, is("sqsworker.result", "deleted")) + ")", "deleted"},
				{"sum(rate(" + q.series(process, "_count", failed...) + "[$__rate_interval]))", "failed"}}},
			{title: "Runs by outcome, a second", kind: "timeseries", unit: "ops", width: 8, stacked: true, targets: []target{
				{"sum by (sqsworker_outcome) (rate(" + q.series(process, "_count", onQueue, matches("sqsworker.outcome", ".+")) + "[$__rate_interval]))", "{{sqsworker_outcome}}"}}},
			{title: "Failures by type, a second", kind: "timeseries", unit: "ops", width: 8, stacked: true, targets: []target{
				{"sum by (error_type) (rate(" + q.series(process, "_count", onQueue, matches("error.type", ".+")) + "[$__rate_interval]))", "{{error_type}}"}}},
			{title: "Age when the handler starts", kind: "timeseries", unit: "s", width: 8, about: "From the sending of the message.", targets: []target{
				{q.quantile(0.5, "sqsworker.message.age", "$__rate_interval", nil, onQueue), "median"}, {q.quantile(0.99, "sqsworker.message.age", "$__rate_interval", nil, onQueue), "p99"}}},
			{title: "Handlers' runs", kind: "timeseries", unit: "s", width: 8, targets: []target{
				{q.quantile(0.5, process, "$__rate_interval", nil, onQueue), "median"}, {q.quantile(0.99, process, "$__rate_interval", nil, onQueue), "p99"}}},
			{title: "Backlog", kind: "timeseries", unit: "short", width: 8, stacked: true, about: "Needs a BacklogPublisher.", targets: []target{
				{"max by (sqsworker_state) (" + q.series("sqsworker.backlog.messages", "", onQueue, matches("sqsworker.state", ".+")) + ")", "{{sqsworker_state}}"}}},
		}},
		{"Workers", []panel{
			{title: "Held, by what happens to them", kind: "timeseries", unit: "short", width: 8, stacked: true, targets: []target{
				{"sum by (sqsworker_state) (" + q.series("sqsworker.messages.held", "", onQueue, matches("sqsworker.state", ".+")) + ")", "{{sqsworker_state}}"},
				{"sum(" + q.series("sqsworker.slots.free", "", onQueue) + ")", "slots free"}}},
			{title: "Wait for a handler", kind: "timeseries", unit: "s", width: 8, about: "From the message's arrival at the worker. Long waits: less Prefetch, or more Concurrency.", targets: []target{
				{q.quantile(0.5, "sqsworker.message.wait", "$__rate_interval", nil, onQueue), "median"}, {q.quantile(0.99, "sqsworker.message.wait", "$__rate_interval", nil, onQueue), "p99"}}},
			{title: "Given back, by reason, a second", kind: "timeseries", unit: "ops", width: 8, stacked: true, targets: []target{
				{"sum by (sqsworker_reason) (" + q.rate("sqsworker.messages.released", onQueue, matches("sqsworker.reason", ".+")) + ")", "{{sqsworker_reason}}"}}},
			{title: "Duplicates, a second", kind: "timeseries", unit: "ops", width: 8, about: "Deliveries of messages that are held here already, or were completed before.", targets: []target{
				{"sum by (sqsworker_reason) (" + q.rate("sqsworker.messages.suppressed", onQueue, matches("sqsworker.reason", "held|completed")) + ")", "{{sqsworker_reason}}"}}},
			{title: "Least lease left, by worker", kind: "timeseries", unit: "s", width: 8, targets: []target{
				{"min by (sqsworker_worker_name) (" + q.series("sqsworker.lease.margin", "", onQueue) + ")", "{{sqsworker_worker_name}}"}}},
			{title: "Leases lost, and failed renewals, a second", kind: "timeseries", unit: "ops", width: 8, targets: []target{
				{"sum(" + q.rate("sqsworker.leases.lost", onQueue) + ")", "lost"},
				{"sum(" + q.rate("sqsworker.lease.renewals", onQueue, is("sqsworker.result", "failed")) + ")", "failed renewals"}}},
		}},
		{"SQS and its bill", []panel{
			{title: "Calls that failed, a second", kind: "timeseries", unit: "ops", width: 8, stacked: true, targets: []target{
				{"sum by (messaging_operation_name, error_type) (rate(" + q.series(duration, "_count", onQueue, matches("error.type", ".+"), matches("messaging.operation.name", ".+")) + "[$__rate_interval]))", "{{messaging_operation_name}} {{error_type}}"}}},
			{title: "Delete lag", kind: "timeseries", unit: "s", width: 8, about: "From the handler's end until SQS confirmed the deletion.", targets: []target{
				{q.quantile(0.5, "sqsworker.delete.lag", "$__rate_interval", nil, onQueue), "median"}, {q.quantile(0.99, "sqsworker.delete.lag", "$__rate_interval", nil, onQueue), "p99"}}},
			{title: "Failed deletes by code, a second", kind: "timeseries", unit: "ops", width: 8, stacked: true, targets: []target{
				{"sum by (error_type) (" + q.rate("sqsworker.delete.failures", onQueue, matches("error.type", ".+")) + ")", "{{error_type}}"}}},
			{title: "Calls for each message", kind: "timeseries", unit: "short", width: 8, about: "0.2 and a little is as good as it gets: ten messages for a receive and ten for a delete.", targets: []target{
				{"sum by (sqsworker_call) (" + q.rate("sqsworker.api.calls", onQueue, matches("sqsworker.call", ".+")) + ") / scalar(sum(" + q.rate("sqsworker.messages.settled", onQueue, is("sqsworker.result", "deleted")) + "))", "{{sqsworker_call}}"}}},
			{title: "Messages in a receive, and in a delete", kind: "timeseries", unit: "short", width: 8, targets: []target{
				{"sum(rate(" + q.series("sqsworker.receive.messages", "_sum", onQueue) + "[$__rate_interval])) / sum(rate(" + q.series("sqsworker.receive.messages", "_count", onQueue) + "[$__rate_interval]))", "receive"},
				{"sum(rate(" + q.series("sqsworker.delete.messages", "_sum", onQueue) + "[$__rate_interval])) / sum(rate(" + q.series("sqsworker.delete.messages", "_count", onQueue) + "[$__rate_interval]))", "delete"}}},
			{title: "Estimated cost, a day at this rate", kind: "timeseries", unit: "currencyUSD", width: 8, about: "Requests alone, by Telemetry.RequestPrice.", targets: []target{
				{"86400 * sum(" + q.rate("sqsworker.api.cost", onQueue) + ")", "USD"}}},
			{title: "Payloads through S3", kind: "timeseries", unit: "Bps", width: 8, about: "Of the extended client, by direction.", targets: []target{
				{"sum by (sqsworker_payload_direction) (" + q.rate("sqsworker.payload.io", matches("sqsworker.payload.direction", ".+")) + ")", "{{sqsworker_payload_direction}}"}}},
			{title: "Receives by result, a second", kind: "timeseries", unit: "ops", width: 8, stacked: true, targets: []target{
				{"sum by (sqsworker_result) (" + q.rate("sqsworker.receives", onQueue, matches("sqsworker.result", ".+")) + ")", "{{sqsworker_result}}"}}},
			{title: "Drains", kind: "timeseries", unit: "s", width: 8, about: "How long they took, by how they ended. Incomplete ones left messages to their visibility.", targets: []target{
				{q.quantile(0.99, "sqsworker.drain.duration", "1h", []string{"sqsworker.drain.result"}, onQueue), "{{sqsworker_drain_result}}"}}},
		}},
	}
}

type object = map[string]any

// grafana is the dashboard as Grafana imports it.
func grafana(q *queries) []byte {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []any
	id, y := 0, 0
	for _, row := range rows(q) {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": row.title, "collapsed": false, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}, "panels": []any{}})
		x, height := 0, 8
		y++
		for _, p := range row.panels {
			if p.kind == "stat" {
				height = 4
			}
			if x+p.width > 24 {
				x, y = 0, y+height
			}
			id++
			panels = append(panels, p.json(id, object{"h": height, "w": p.width, "x": x, "y": y}, source))
			x += p.width
		}
		y += height
	}
	queues := "label_values(" + q.series("sqsworker.workers", "") + ", messaging_destination_name)"
	return pretty(object{
		"title": "sqsworker", "uid": "sqsworker", "tags": []string{"sqs", "sqsworker"}, "schemaVersion": 39, "version": 1, "editable": true,
		"refresh": "30s", "time": object{"from": "now-3h", "to": "now"}, "timezone": "browser", "graphTooltip": 1,
		"templating": object{"list": []any{
			object{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			object{"name": "queue", "label": "Queue", "type": "query", "datasource": source, "definition": queues, "query": object{"query": queues, "refId": "queues"},
				"refresh": 2, "includeAll": true, "multi": true, "allValue": ".*", "sort": 1, "current": object{"text": "All", "value": "$__all"}},
		}},
		"panels": panels,
	})
}

func (p panel) json(id int, place, source object) object {
	targets := make([]any, len(p.targets))
	for i, t := range p.targets {
		targets[i] = object{"refId": string(rune('A' + i)), "datasource": source, "editorMode": "code", "expr": t.expr, "legendFormat": t.legend, "range": p.kind != "stat", "instant": p.kind == "stat"}
	}
	defaults := object{"unit": p.unit, "min": 0, "thresholds": p.thresholds()}
	options := object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	if p.kind == "stat" {
		options = object{"colorMode": "value", "graphMode": "none", "reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}}
	} else {
		custom := object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false, "stacking": object{"mode": "none"}}
		if p.stacked {
			custom["stacking"], custom["fillOpacity"] = object{"mode": "normal", "group": "A"}, 40
		}
		defaults["custom"] = custom
	}
	return object{"id": id, "type": p.kind, "title": p.title, "description": p.about, "gridPos": place, "datasource": source,
		"targets": targets, "fieldConfig": object{"defaults": defaults, "overrides": []any{}}, "options": options}
}

func (p panel) thresholds() object {
	steps := []any{object{"color": "green", "value": nil}}
	switch {
	case p.red != nil && p.reversed:
		steps = []any{object{"color": "red", "value": nil}, object{"color": "green", "value": *p.red}}
	case p.red != nil:
		steps = append(steps, object{"color": "red", "value": *p.red})
	}
	return object{"mode": "absolute", "steps": steps}
}

func pretty(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("dashboards: %v", err)) // these are our own maps
	}
	return append(text, '\n')
}
