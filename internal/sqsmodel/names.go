package sqsmodel

import (
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// nameFilter says which attributes a receive returns.
type nameFilter struct {
	system map[string]bool
	user   []string
}

var systemNames = []string{
	"SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SequenceNumber",
	"MessageDeduplicationId", "MessageGroupId", "AWSTraceHeader", "DeadLetterQueueSourceArn",
}

func newNameFilter(in *receiveInput) nameFilter {
	f := nameFilter{user: in.MessageAttributeNames}
	want := func(name string) {
		if f.system == nil {
			f.system = map[string]bool{}
		}
		f.system[name] = true
	}
	for _, n := range in.MessageSystemAttributeNames {
		want(string(n))
	}
	//lint:ignore SA1019 deprecated, and still answered
	for _, n := range in.AttributeNames {
		want(string(n))
	}
	return f
}

func (f nameFilter) appendSystem(b []byte, d delivery, senderID string) []byte {
	if len(f.system) == 0 {
		return b
	}
	n, open := 0, len(b)
	b = append(b, `,"Attributes":{`...)
	for _, name := range systemNames {
		if !f.system["All"] && !f.system[name] {
			continue
		}
		v := systemValue(d, name, senderID)
		if v == "" {
			continue
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		b = appendString(b, name)
		b = append(b, ':')
		b = appendString(b, v)
	}
	if n == 0 {
		return b[:open]
	}
	return append(b, '}')
}

func systemValue(d delivery, name, senderID string) string {
	switch name {
	case "SenderId":
		return senderID
	case "SentTimestamp":
		return strconv.FormatInt(d.m.sentAt.UnixMilli(), 10)
	case "ApproximateReceiveCount":
		return strconv.Itoa(d.receives)
	case "ApproximateFirstReceiveTimestamp":
		return strconv.FormatInt(d.firstReceived.UnixMilli(), 10)
	case "SequenceNumber":
		return d.m.sequence
	case "MessageDeduplicationId":
		return d.m.dedupID
	case "MessageGroupId":
		return d.m.groupID
	case "AWSTraceHeader":
		return d.m.trace
	}
	return d.m.sourceID
}

func (f nameFilter) appendAttributes(b []byte, m *message) []byte {
	if len(f.user) == 0 || len(m.attrs) == 0 {
		return b
	}
	picked := map[string]types.MessageAttributeValue{}
	for name, v := range m.attrs {
		if f.wants(name) {
			picked[name] = v
		}
	}
	if len(picked) == 0 {
		return b
	}
	sum := m.attrsMD5
	if len(picked) < len(m.attrs) {
		sum = md5OfAttributes(picked)
	}
	b = appendString(append(b, `,"MD5OfMessageAttributes":`...), sum)
	b = append(b, `,"MessageAttributes":{`...)
	for i, name := range sortedKeys(picked) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, name)
		b = append(b, ':')
		b = appendAttribute(b, picked[name])
	}
	return append(b, '}')
}

func (f nameFilter) wants(name string) bool {
	for _, w := range f.user {
		if w == name || w == "All" || w == ".*" {
			return true
		}
		if prefix, ok := strings.CutSuffix(w, ".*"); ok && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
