package sqsmodel

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

type allowPolicy struct {
	permission string // allowAll, denyAll, byQueue
	sources    []string
}

// bounds of the attributes that are numbers.
var bounds = map[string]struct{ min, max, initial int }{
	"DelaySeconds":                  {0, maxDelay, 0},
	"MaximumMessageSize":            {1024, maxMessageSize, maxMessageSize},
	"MessageRetentionPeriod":        {60, 1_209_600, 345_600},
	"ReceiveMessageWaitTimeSeconds": {0, maxWait, 0},
	"VisibilityTimeout":             {0, maxVisibility, 30},
	"KmsDataKeyReusePeriodSeconds":  {60, 86_400, 300},
}

// choices of the attributes that are words.
var choices = map[string][]string{
	"FifoQueue":                 {"true"},
	"ContentBasedDeduplication": {"true", "false"},
	"SqsManagedSseEnabled":      {"true", "false"},
	"DeduplicationScope":        {"queue", "messageGroup"},
	"FifoThroughputLimit":       {"perQueue", "perMessageGroupId"},
}

var fifoOnly = []string{"ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit", "FifoQueue"}

func (s *Server) createQueue(x *exchange, in *sqs.CreateQueueInput) (reply, error) {
	name := value(in.QueueName)
	if err := checkQueueName(name, in.Attributes); err != nil {
		return nil, err
	}
	if q := s.queues[name]; q != nil {
		for k, v := range in.Attributes {
			if q.attribute(k) != v {
				return nil, fail("QueueNameExists", "A queue already exists with the same name and a different value for attribute %s", k)
			}
		}
		return object{text("QueueUrl", q.url)}, nil
	}
	if at, ok := s.deleted[name]; ok && x.now.Before(at.Add(s.cfg.QueueDeletedWait)) {
		return nil, fail("QueueDeletedRecently")
	}
	q := s.newQueue(name, x.now)
	if err := s.setAttributes(q, in.Attributes); err != nil {
		return nil, err
	}
	for k, v := range in.Tags {
		q.tags[k] = v
	}
	delete(s.deleted, name)
	s.queues[name], s.byURL[q.url] = q, q
	return object{text("QueueUrl", q.url)}, nil
}

func checkQueueName(name string, attrs map[string]string) *apiError {
	if name == "" {
		return missing("QueueName")
	}
	base, fifo := strings.CutSuffix(name, ".fifo")
	if len(name) > 80 || base == "" || strings.IndexFunc(base, func(r rune) bool { return !wordRune(r) }) >= 0 ||
		fifo && attrs["FifoQueue"] != "true" {
		return fail("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	if !fifo && attrs["FifoQueue"] == "true" {
		return fail("InvalidParameterValue", "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix and be 1 to 80 in length.")
	}
	return nil
}

func (s *Server) getQueueURL(x *exchange, in *sqs.GetQueueUrlInput) (reply, error) {
	if value(in.QueueName) == "" {
		return nil, missing("QueueName")
	}
	owner := in.QueueOwnerAWSAccountId
	q := s.queues[*in.QueueName]
	if q == nil || owner != nil && *owner != s.cfg.AccountID {
		return nil, fail("QueueDoesNotExist")
	}
	return object{text("QueueUrl", q.url)}, nil
}

func (s *Server) getQueueAttributes(x *exchange, in *sqs.GetQueueAttributesInput) (reply, error) {
	values := map[string]string{}
	for _, n := range in.AttributeNames {
		name := string(n)
		if name == "All" {
			for _, each := range attributeNames {
				if v := x.queue.attribute(each); v != "" {
					values[each] = v
				}
			}
			continue
		}
		if !slices.Contains(attributeNames, name) {
			return nil, fail("InvalidAttributeName", "Unknown Attribute %s.", name)
		}
		if v := x.queue.attribute(name); v != "" {
			values[name] = v
		}
	}
	if len(values) == 0 {
		return empty{}, nil
	}
	return object{textMap("Attributes", values)}, nil
}

func (s *Server) setQueueAttributes(x *exchange, in *sqs.SetQueueAttributesInput) (reply, error) {
	if len(in.Attributes) == 0 {
		return nil, missing("Attribute.Name")
	}
	if err := s.setAttributes(x.queue, in.Attributes); err != nil {
		return nil, err
	}
	x.queue.modified = x.now
	s.touch(x.queue)
	return empty{}, nil
}

var attributeNames = []string{
	"Policy", "VisibilityTimeout", "MaximumMessageSize", "MessageRetentionPeriod", "ApproximateNumberOfMessages",
	"ApproximateNumberOfMessagesNotVisible", "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn",
	"ApproximateNumberOfMessagesDelayed", "DelaySeconds", "ReceiveMessageWaitTimeSeconds", "RedrivePolicy", "FifoQueue",
	"ContentBasedDeduplication", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "DeduplicationScope",
	"FifoThroughputLimit", "RedriveAllowPolicy", "SqsManagedSseEnabled",
}

// attribute is the value that GetQueueAttributes answers; "" = it has none.
func (q *queue) attribute(name string) string {
	switch name {
	case "ApproximateNumberOfMessages":
		return strconv.Itoa(q.count[Visible])
	case "ApproximateNumberOfMessagesNotVisible":
		return strconv.Itoa(q.count[InFlight])
	case "ApproximateNumberOfMessagesDelayed":
		return strconv.Itoa(q.count[Delayed])
	case "CreatedTimestamp":
		return strconv.FormatInt(q.created.Unix(), 10)
	case "LastModifiedTimestamp":
		return strconv.FormatInt(q.modified.Unix(), 10)
	case "QueueArn":
		return q.arn
	}
	if v, ok := q.attrs[name]; ok {
		return v
	}
	if b, ok := bounds[name]; ok && name != "KmsDataKeyReusePeriodSeconds" {
		return strconv.Itoa(b.initial)
	}
	switch {
	case name == "SqsManagedSseEnabled":
		return strconv.FormatBool(q.attrs["KmsMasterKeyId"] == "")
	case name == "KmsDataKeyReusePeriodSeconds" && q.attrs["KmsMasterKeyId"] != "":
		return "300"
	case !q.fifo:
	case name == "FifoQueue":
		return "true"
	case name == "ContentBasedDeduplication":
		return "false"
	case name == "DeduplicationScope":
		return "queue"
	case name == "FifoThroughputLimit":
		return "perQueue"
	}
	return ""
}

// setAttributes checks all values, then takes them; an empty policy removes it.
func (s *Server) setAttributes(q *queue, values map[string]string) *apiError {
	merged := map[string]string{}
	for k, v := range q.attrs {
		merged[k] = v
	}
	for _, name := range sortedKeys(values) {
		if err := s.checkAttribute(q, name, values[name]); err != nil {
			return err
		}
		if values[name] == "" {
			delete(merged, name)
		} else {
			merged[name] = values[name]
		}
	}
	if merged["FifoThroughputLimit"] == "perMessageGroupId" && merged["DeduplicationScope"] != "messageGroup" {
		return invalidValue("perMessageGroupId", "FifoThroughputLimit", "It can be set to perMessageGroupId only when DeduplicationScope is messageGroup.")
	}
	q.attrs = merged
	q.settings = q.parseSettings()
	return nil
}

func (s *Server) checkAttribute(q *queue, name, v string) *apiError {
	if b, ok := bounds[name]; ok {
		if n, err := strconv.Atoi(v); err != nil || n < b.min || n > b.max {
			return fail("InvalidAttributeValue", "Invalid value for the parameter %s.", name)
		}
		return nil
	}
	if words, ok := choices[name]; ok {
		if slices.Contains(fifoOnly, name) && !q.fifo {
			return fail("InvalidAttributeName", "Unknown Attribute %s.", name)
		}
		if !slices.Contains(words, v) {
			return fail("InvalidAttributeValue", "Invalid value for the parameter %s.", name)
		}
		return nil
	}
	switch name {
	case "RedrivePolicy":
		return s.checkRedrivePolicy(q, v)
	case "RedriveAllowPolicy":
		return checkAllowPolicy(v)
	case "Policy":
		if v != "" && !json.Valid([]byte(v)) {
			return fail("InvalidAttributeValue", "Invalid value for the parameter Policy.")
		}
		return nil
	case "KmsMasterKeyId":
		return nil
	}
	return fail("InvalidAttributeName", "Unknown Attribute %s.", name)
}

// redrivePolicy is the attribute's JSON; AWS takes maxReceiveCount as a number
// or a string.
type redrivePolicy struct {
	DeadLetterTargetArn string          `json:"deadLetterTargetArn"`
	MaxReceiveCount     json.RawMessage `json:"maxReceiveCount"`
}

func parseRedrivePolicy(v string) (arn string, receives int, ok bool) {
	var p redrivePolicy
	if json.Unmarshal([]byte(v), &p) != nil {
		return "", 0, false
	}
	n, err := strconv.Atoi(strings.Trim(string(p.MaxReceiveCount), `"`))
	return p.DeadLetterTargetArn, n, err == nil
}

func (s *Server) checkRedrivePolicy(q *queue, v string) *apiError {
	if v == "" {
		return nil
	}
	refuse := func(reason string) *apiError { return invalidValue(v, "RedrivePolicy", reason) }
	arn, receives, ok := parseRedrivePolicy(v)
	if !ok || arn == "" {
		return refuse("Redrive policy is not a valid JSON map.")
	}
	if receives < 1 || receives > 1000 {
		return refuse("Invalid value for maxReceiveCount: " + strconv.Itoa(receives) + ", valid values are from 1 to 1000 both inclusive.")
	}
	target := s.byARN(arn)
	if target == nil {
		return refuse("Dead letter target does not exist.")
	}
	if target.fifo != q.fifo {
		return refuse("Dead-letter queue must be same type of queue as the source.")
	}
	if !target.settings.allow.allows(q.arn) {
		return refuse("Redrive permission to the dead-letter queue denied.")
	}
	return nil
}

func (p allowPolicy) allows(sourceARN string) bool {
	switch p.permission {
	case "denyAll":
		return false
	case "byQueue":
		return slices.Contains(p.sources, sourceARN)
	}
	return true
}

func parseAllowPolicy(v string) (p allowPolicy, ok bool) {
	var in struct {
		RedrivePermission string   `json:"redrivePermission"`
		SourceQueueArns   []string `json:"sourceQueueArns"`
	}
	if v == "" {
		return p, true
	}
	if json.Unmarshal([]byte(v), &in) != nil {
		return p, false
	}
	n := len(in.SourceQueueArns)
	switch in.RedrivePermission {
	case "allowAll", "denyAll":
		ok = n == 0
	case "byQueue":
		ok = n >= 1 && n <= 10
	}
	return allowPolicy{in.RedrivePermission, in.SourceQueueArns}, ok
}

func checkAllowPolicy(v string) *apiError {
	if _, ok := parseAllowPolicy(v); !ok {
		return invalidValue(v, "RedriveAllowPolicy", "Amazon SQS can't create the redrive allow policy: redrivePermission is allowAll, denyAll, or byQueue with 1 to 10 sourceQueueArns.")
	}
	return nil
}

func (q *queue) parseSettings() settings {
	seconds := func(name string) time.Duration {
		n, _ := strconv.Atoi(q.attribute(name)) // checked when it was set
		return time.Duration(n) * time.Second
	}
	st := settings{
		visibility:   seconds("VisibilityTimeout"),
		delay:        seconds("DelaySeconds"),
		retention:    seconds("MessageRetentionPeriod"),
		wait:         seconds("ReceiveMessageWaitTimeSeconds"),
		contentDedup: q.attribute("ContentBasedDeduplication") == "true",
		groupDedup:   q.attribute("DeduplicationScope") == "messageGroup",
	}
	st.maxSize, _ = strconv.Atoi(q.attribute("MaximumMessageSize"))
	if v := q.attrs["RedrivePolicy"]; v != "" {
		st.deadLetterARN, st.maxReceives, _ = parseRedrivePolicy(v)
	}
	st.allow, _ = parseAllowPolicy(q.attrs["RedriveAllowPolicy"])
	return st
}
