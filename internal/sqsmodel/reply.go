package sqsmodel

import (
	"encoding/base64"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// reply is the answer to a call that worked.
type reply interface {
	appendJSON(b []byte) []byte
	note(c *Call) // what the recorded Call says about it
}

type empty struct{}

func (empty) appendJSON(b []byte) []byte { return append(b, "{}"...) }
func (empty) note(*Call)                 {}

// object is a flat JSON object of strings, for the rarer answers.
type object []member

type member struct {
	name string
	json func(b []byte) []byte
}

func (o object) note(*Call) {}

func (o object) appendJSON(b []byte) []byte {
	b = append(b, '{')
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, m.name)
		b = append(b, ':')
		b = m.json(b)
	}
	return append(b, '}')
}

func text(name, value string) member {
	return member{name, func(b []byte) []byte { return appendString(b, value) }}
}

func number(name string, value int64) member {
	return member{name, func(b []byte) []byte { return strconv.AppendInt(b, value, 10) }}
}

func texts(name string, values []string) member {
	return member{name, func(b []byte) []byte {
		b = append(b, '[')
		for i, v := range values {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, v)
		}
		return append(b, ']')
	}}
}

func objects(name string, values []object) member {
	return member{name, func(b []byte) []byte {
		b = append(b, '[')
		for i, v := range values {
			if i > 0 {
				b = append(b, ',')
			}
			b = v.appendJSON(b)
		}
		return append(b, ']')
	}}
}

func textMap(name string, values map[string]string) member {
	return member{name, func(b []byte) []byte {
		var o object
		for _, k := range sortedKeys(values) {
			o = append(o, text(k, values[k]))
		}
		return o.appendJSON(b)
	}}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sent is the answer to one message sent, alone or in a batch.
type sent struct {
	id, md5, attrsMD5, systemMD5, sequence string
}

func (r sent) note(c *Call) { c.MessageIDs = append(c.MessageIDs, r.id) }

func (r sent) appendJSON(b []byte) []byte { return append(r.appendMembers(append(b, '{'), ""), '}') }

func (r sent) appendMembers(b []byte, comma string) []byte {
	field := func(name, v string) {
		if v != "" {
			b = append(b, comma...)
			b = append(b, '"')
			b = append(b, name...)
			b = append(b, `":`...)
			b = appendString(b, v)
			comma = ","
		}
	}
	field("MD5OfMessageBody", r.md5)
	field("MD5OfMessageAttributes", r.attrsMD5)
	field("MD5OfMessageSystemAttributes", r.systemMD5)
	field("MessageId", r.id)
	field("SequenceNumber", r.sequence)
	return b
}

// batch is the answer to a batch: each entry succeeded or failed by itself.
type batch struct {
	succeeded []batchEntry
	failed    []batchFailure
}

type batchEntry struct {
	id   string
	sent *sent // of a SendMessageBatch
}

type batchFailure struct {
	id, code, message string
	senderFault       bool
}

func (r *batch) note(c *Call) {
	c.FailedEntries = len(r.failed)
	for _, e := range r.succeeded {
		if e.sent != nil {
			e.sent.note(c)
		}
	}
}

func (r *batch) appendJSON(b []byte) []byte {
	b = append(b, `{"Successful":[`...)
	for i, e := range r.succeeded {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"Id":`...), e.id)
		if e.sent != nil {
			b = e.sent.appendMembers(b, ",")
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if len(r.failed) == 0 {
		return append(b, '}')
	}
	b = append(b, `,"Failed":[`...)
	for i, e := range r.failed {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"Id":`...), e.id)
		b = appendString(append(b, `,"Code":`...), e.code)
		b = appendString(append(b, `,"Message":`...), e.message)
		b = strconv.AppendBool(append(b, `,"SenderFault":`...), e.senderFault)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// received is the answer to ReceiveMessage.
type received struct {
	deliveries []delivery
	names      nameFilter
	senderID   string
	corrupt    func(messageID string) bool
}

func (r *received) note(c *Call) {
	c.Messages = len(r.deliveries)
	for _, d := range r.deliveries {
		c.MessageIDs = append(c.MessageIDs, d.m.id)
		c.ReceiptHandles = append(c.ReceiptHandles, d.handle)
	}
}

func (r *received) appendJSON(b []byte) []byte {
	if len(r.deliveries) == 0 {
		return append(b, "{}"...)
	}
	b = append(b, `{"Messages":[`...)
	for i, d := range r.deliveries {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.appendMessage(b, d)
	}
	return append(b, "]}"...)
}

func (r *received) appendMessage(b []byte, d delivery) []byte {
	sum := d.m.md5
	if r.corrupt != nil && r.corrupt(d.m.id) {
		sum = "00000000000000000000000000000000"
	}
	b = appendString(append(b, `{"MessageId":`...), d.m.id)
	b = appendString(append(b, `,"ReceiptHandle":`...), d.handle)
	b = appendString(append(b, `,"MD5OfBody":`...), sum)
	b = appendString(append(b, `,"Body":`...), d.m.body)
	b = r.names.appendSystem(b, d, r.senderID)
	b = r.names.appendAttributes(b, d.m)
	return append(b, '}')
}

func appendAttribute(b []byte, v types.MessageAttributeValue) []byte {
	b = append(b, '{')
	if v.StringValue != nil {
		b = appendString(append(b, `"StringValue":`...), *v.StringValue)
		b = append(b, ',')
	}
	if v.BinaryValue != nil {
		b = append(b, `"BinaryValue":"`...)
		b = base64.StdEncoding.AppendEncode(b, v.BinaryValue)
		b = append(b, `",`...)
	}
	b = appendString(append(b, `"DataType":`...), value(v.DataType))
	return append(b, '}')
}

// appendString writes a JSON string.
func appendString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[from:i]...), "\ufffd"...)
				from = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
