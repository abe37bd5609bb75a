package main

import "fmt"

// OpenTelemetry's metrics come to CloudWatch through the collector's awsemf exporter, with namespace SQSWorker; those of
// BacklogPublisher are in the same one. AWS/SQS are SQS's own. SEARCH finds a metric whatever further dimensions it has.

// namespace is that of worker.DefaultNamespace.
const namespace = "SQSWorker"

func (q *queries) search(name, statistic string, conditions ...where) string {
	var attributes []string
	filter := ""
	for _, c := range conditions {
		attributes = append(attributes, c.attribute)
		filter += fmt.Sprintf(` "%s"="%s"`, c.attribute, c.value)
	}
	q.metric(name, attributes...)
	return fmt.Sprintf(`SEARCH('Namespace="%s" MetricName="%s" "messaging.destination.name"="${Queue}"%s', '%s', 60)`, namespace, name, filter, statistic)
}

type widget struct {
	title   string
	metrics []any
	view    string
}

func expression(text, label string) any { return []any{object{"expression": text, "label": label}} }

func widgets(q *queries) []widget {
	own := func(name, statistic, label string) any {
		return []any{"AWS/SQS", name, "QueueName", "${Queue}", object{"stat": statistic, "label": label}}
	}
	backlog := func(name, statistic string) any {
		return []any{namespace, q.backlog(name), "QueueName", "${Queue}", object{"stat": statistic, "label": name}}
	}
	return []widget{
		{"Messages in the queue", []any{own("ApproximateNumberOfMessagesVisible", "Maximum", "visible"), own("ApproximateNumberOfMessagesNotVisible", "Maximum", "in flight"), own("ApproximateNumberOfMessagesDelayed", "Maximum", "delayed")}, "timeSeries"},
		{"Age of the oldest message", []any{own("ApproximateAgeOfOldestMessage", "Maximum", "seconds")}, "timeSeries"},
		{"In the dead-letter queue", []any{[]any{"AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", "${DeadLetterQueue}", object{"stat": "Maximum", "label": "messages"}}}, "singleValue"},
		{"Backlog for each worker", []any{backlog("BacklogPerWorker", "Average"), backlog("AcceptableBacklogPerWorker", "Average")}, "timeSeries"},
		{"Backlog load: scale out above 1", []any{backlog("BacklogLoad", "Average")}, "timeSeries"},
		{"Workers", []any{expression(q.search("sqsworker.workers", "Sum", is("sqsworker.state", "running")), "running"), expression(q.search("sqsworker.workers", "Sum", is("sqsworker.state", "healthy")), "healthy")}, "timeSeries"},
		{"Handlers' runs, p99", []any{expression(q.search("messaging.process.duration", "p99"), "")}, "timeSeries"},
		{"Held, by what happens to them", []any{expression(q.search("sqsworker.messages.held", "Sum"), "")}, "timeSeries"},
		{"Given back, by reason", []any{expression(q.search("sqsworker.messages.released", "Sum"), "")}, "timeSeries"},
		{"Leases lost", []any{expression("SUM("+q.search("sqsworker.leases.lost", "Sum")+")", "lost")}, "timeSeries"},
		{"Least lease left", []any{expression("MIN("+q.search("sqsworker.lease.margin", "Minimum")+")", "seconds")}, "timeSeries"},
		{"Open breakers", []any{expression("SUM("+q.search("sqsworker.breaker.state", "Maximum", is("sqsworker.breaker.state", "open"))+")", "open")}, "timeSeries"},
		{"Failed deletes, by code", []any{expression(q.search("sqsworker.delete.failures", "Sum"), "")}, "timeSeries"},
		{"Calls of SQS", []any{expression(q.search("sqsworker.api.calls", "Sum"), "")}, "timeSeries"},
		{"Estimated cost", []any{expression("SUM("+q.search("sqsworker.api.cost", "Sum")+")", "USD")}, "timeSeries"},
	}
}

// cloudWatch is the body of a dashboard, for "aws cloudwatch put-dashboard" once ${Queue}, ${DeadLetterQueue} and
// ${AWS::Region} are replaced, or for Fn::Sub in CloudFormation.
func cloudWatch(q *queries) []byte {
	var all []any
	for i, w := range widgets(q) {
		all = append(all, object{"type": "metric", "x": i % 3 * 8, "y": i / 3 * 6, "width": 8, "height": 6, "properties": object{
			"title": w.title, "region": "${AWS::Region}", "view": w.view, "period": 60, "stacked": false, "metrics": w.metrics,
		}})
	}
	return pretty(object{"widgets": all})
}

// cloudWatchAlarms is a CloudFormation template.
func cloudWatchAlarms(q *queries) []byte {
	parameter := func(description string) object { return object{"Type": "String", "Description": description} }
	alarm := func(description string, threshold float64, comparison string, periods int, missing string, metric object) object {
		properties := object{"AlarmDescription": description, "Threshold": threshold, "ComparisonOperator": comparison, "EvaluationPeriods": periods,
			"TreatMissingData": missing, "AlarmActions": []any{object{"Ref": "Topic"}}, "OKActions": []any{object{"Ref": "Topic"}}}
		for k, v := range metric {
			properties[k] = v
		}
		return object{"Type": "AWS::CloudWatch::Alarm", "Properties": properties}
	}
	own := func(metric, queue string) object {
		return object{"Namespace": "AWS/SQS", "MetricName": metric, "Statistic": "Maximum", "Period": 60, "Dimensions": []any{object{"Name": "QueueName", "Value": object{"Ref": queue}}}}
	}
	worker := func(metric, statistic string) object {
		q.metric(metric)
		return object{"Namespace": namespace, "MetricName": metric, "Statistic": statistic, "Period": 60, "Dimensions": []any{object{"Name": "messaging.destination.name", "Value": object{"Ref": "Queue"}}}}
	}
	denied := object{"Namespace": namespace, "MetricName": q.metric("messaging.client.operation.duration", "error.type").Name, "Statistic": "SampleCount", "Period": 60,
		"Dimensions": []any{object{"Name": "messaging.destination.name", "Value": object{"Ref": "Queue"}}, object{"Name": "error.type", "Value": "AccessDenied"}}}
	q.metric("sqsworker.breaker.state", "sqsworker.breaker.state")
	breaker := object{"Namespace": namespace, "MetricName": "sqsworker.breaker.state", "Statistic": "Maximum", "Period": 60,
		"Dimensions": []any{object{"Name": "messaging.destination.name", "Value": object{"Ref": "Queue"}}, object{"Name": "sqsworker.breaker.state", "Value": "open"}}}
	return pretty(object{
		"AWSTemplateFormatVersion": "2010-09-09",
		"Description":              "Alarms on an SQS queue and its workers. Those on SQSWorker need the collector's awsemf exporter with the dimension sets of README.md.",
		"Parameters": object{
			"Queue": parameter("Name of the queue"), "DeadLetterQueue": parameter("Name of its dead-letter queue"), "Topic": parameter("ARN of the SNS topic that is told"),
			"OldestAge": object{"Type": "Number", "Default": 3600, "Description": "Age of the oldest message, in seconds, that is too much"},
		},
		"Resources": object{
			"DeadLetterQueueNotEmpty": alarm("Messages are in the dead-letter queue. Automatic moves don't count as sent messages, so this looks at what is there.", 0, "GreaterThanThreshold", 1, "notBreaching", own("ApproximateNumberOfMessagesVisible", "DeadLetterQueue")),
			"OldestMessage": func() object {
				a := alarm("The oldest message is too old. On a standard queue, one that was received three times doesn't count any more.", 0, "GreaterThanThreshold", 5, "notBreaching", own("ApproximateAgeOfOldestMessage", "Queue"))
				a["Properties"].(object)["Threshold"] = object{"Ref": "OldestAge"}
				return a
			}(),
			"LeasesLost":  alarm("Messages were lost while they were handled, and come again.", 0, "GreaterThanThreshold", 1, "notBreaching", worker("sqsworker.leases.lost", "Sum")),
			"LeaseMargin": alarm("A lease is about to be lost.", 3, "LessThanThreshold", 2, "notBreaching", worker("sqsworker.lease.margin", "Minimum")),
			"BreakerOpen": alarm("Workers don't receive, because something they depend on is down.", 0, "GreaterThanThreshold", 2, "notBreaching", breaker),
			"CallsDenied": alarm("AWS denies calls on the queue.", 0, "GreaterThanThreshold", 5, "notBreaching", denied),
		},
	})
}
