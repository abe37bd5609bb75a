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
	q := x.queue
	if q.fifo {
		s.delayAgain(q)
	}
	q.modified = x.now
	s.touch(q) // the retention may have changed
	return empty{}, nil
}

// delayAgain: on a FIFO queue a new delay also holds for the messages that are
// delayed already, on a standard queue only for the next ones.
func (s *Server) delayAgain(q *queue) {
	for _, m := range q.messages {
		if m.state == Delayed {
			s.setState(q, m, Delayed, m.sentAt.Add(q.settings.delay))
		}
	}
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
	if merged["KmsMasterKeyId"] != "" {
		if values["SqsManagedSseEnabled"] == "true" {
			return fail("InvalidAttributeName", "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.")
		}
		delete(merged, "SqsManagedSseEnabled")
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
		if err := checkFIFOAttribute(q, name, v); err != nil {
			return err
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

func checkFIFOAttribute(q *queue, name, v string) *apiError {
	switch name {
	case "FifoQueue":
		if q.fifo && v != "true" {
			return fail("InvalidAttributeValue", "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.")
		}
	case "DeduplicationScope", "FifoThroughputLimit":
		if !q.fifo {
			return fail("InvalidAttributeName", "You can specify the %s only when FifoQueue is set to true.", name)
		}
	}
	if !q.fifo && (name == "FifoQueue" || name == "ContentBasedDeduplication") {
		return fail("InvalidAttributeName", "Unknown Attribute %s.", name)
	}
	return nil
}

// redrivePolicy is the attribute's JSON; AWS takes maxReceiveCount as a number
// or a string.
type redrivePolicy struct {
	DeadLetterTargetArn string          `json:"deadLetterTargetArn"`
	MaxReceiveCount     json.RawMessage `json:"maxReceiveCount"`
}

const defaultMaxReceives = 10

func parseRedrivePolicy(v string) (arn string, receives int, ok bool) {
	var p redrivePolicy
	if json.Unmarshal([]byte(v), &p) != nil {
		return "", 0, false
	}
	if len(p.MaxReceiveCount) == 0 {
		return p.DeadLetterTargetArn, defaultMaxReceives, true
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
	if !ok {
		return refuse("Redrive policy is not a valid JSON map.")
	}
	if arn == "" {
		return refuse("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
	}
	if strings.Count(arn, ":") != 5 || !strings.HasPrefix(arn, "arn:") {
		return refuse("Invalid value for deadLetterTargetArn.")
	}
	if receives < 1 || receives > 1000 {
		return refuse("Invalid value for maxReceiveCount: " + strconv.Itoa(receives) + ", valid values are from 1 to 1000 both inclusive.")
	}
	if s.cfg.AnyRedrivePolicy {
		return nil
	}
	target := s.byARN(arn)
	if target == nil {
		return refuse("Dead letter target does not exist.")
	}
	if target == q {
		return refuse("Dead letter target cannot be the source queue itself.")
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

func parseAllowPolicy(v string) (p allowPolicy, reason string) {
	var in struct {
		RedrivePermission string   `json:"redrivePermission"`
		SourceQueueArns   []string `json:"sourceQueueArns"`
	}
	if v == "" {
		return p, ""
	}
	if json.Unmarshal([]byte(v), &in) != nil {
		return p, "Amazon SQS can't create the redrive allow policy, as it’s in an unsupported format."
	}
	n := len(in.SourceQueueArns)
	switch in.RedrivePermission {
	case "allowAll", "denyAll":
		if n > 0 {
			reason = "Amazon SQS can't create the redrive allow policy. To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
		}
	case "byQueue":
		if n == 0 {
			reason = "Amazon SQS can't create the redrive allow policy. When you specify the byQueue permission type, you must also specify one or more sourceQueueArns values."
		} else if n > 10 {
			reason = "Amazon SQS can't create the redrive allow policy. You can specify up to 10 source queue ARNs."
		}
	default:
		reason = "Amazon SQS can't create the redrive allow policy, as it’s in an unsupported format."
	}
	return allowPolicy{in.RedrivePermission, in.SourceQueueArns}, reason
}

func checkAllowPolicy(v string) *apiError {
	if _, reason := parseAllowPolicy(v); reason != "" {
		return invalidValue(v, "RedriveAllowPolicy", reason)
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
