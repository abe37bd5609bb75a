package dlq

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// ReasonAttribute is the message attribute into which a [Sink] writes why it was given a message: a String of JSON, see [Reason]. It is
// one attribute and not eight, because SQS takes ten, and most belong to the sender. A redrive by the mover takes it off again.
const ReasonAttribute = "sqsworker.DeadLetter"

// Reason is why a message was dead-lettered, as a worker saw it. SQS itself notes nothing about messages that its redrive policy
// moves. Anybody who may send to the dead-letter queue can write one: believe it as much as them.
type Reason struct {
	// Error is the handler's error; cut when it is long.
	Error string `json:"error"`
	// Attempts is how often handlers had tried, as [worker.Message.Attempt] counts, and Receives how often SQS had handed it out.
	Attempts int `json:"attempts"`
	Receives int `json:"receives"`
	// SentAt is when the original was sent, FirstAt when it was received for the first time, LastAt when it was given up.
	SentAt  time.Time `json:"sent,omitzero"`
	FirstAt time.Time `json:"first,omitzero"`
	LastAt  time.Time `json:"last"`
	// Worker is the name of the worker that gave it up.
	Worker string `json:"worker,omitempty"`
	// ID is the original's MessageId. The same one on two messages says that they are copies of each other.
	ID string `json:"id"`
	// QueueURL is where the original was.
	QueueURL string `json:"queue"`
	// DeduplicationID is the original's, on a FIFO queue.
	DeduplicationID string `json:"dedup,omitempty"`
}

// readReason takes the reason off a message's attributes. An attribute that can't be read is the sender's, and stays.
func readReason(attributes map[string]types.MessageAttributeValue) (*Reason, map[string]types.MessageAttributeValue) {
	value, ok := attributes[ReasonAttribute]
	if !ok {
		return nil, attributes
	}
	r := &Reason{}
	if json.Unmarshal([]byte(aws.ToString(value.StringValue)), r) != nil {
		return nil, attributes
	}
	rest := make(map[string]types.MessageAttributeValue, len(attributes))
	for name, value := range attributes {
		if name != ReasonAttribute {
			rest[name] = value
		}
	}
	return r, rest
}

// attribute writes the reason in at most room bytes (name and type included), cutting the error's text; false when even that doesn't fit.
func (r Reason) attribute(room int) (types.MessageAttributeValue, bool) {
	room -= len(ReasonAttribute) + len("String")
	text := cleaned(r.Error)
	for {
		r.Error = text
		b, err := json.Marshal(r)
		if err != nil {
			return types.MessageAttributeValue{}, false
		}
		over := len(b) - room
		if over <= 0 {
			return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(string(b))}, true
		}
		if text == "" {
			return types.MessageAttributeValue{}, false
		}
		text = cut(text, max(0, len(text)-over-len(ellipsis)))
	}
}

const ellipsis = "…"

// cut shortens a text to about n bytes, between two characters; to nothing when only the ellipsis would be left.
func cut(s string, n int) string {
	if n <= 0 {
		return ""
	}
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	if n == 0 {
		return ""
	}
	return s[:n] + ellipsis
}

// cleaned replaces what SQS refuses in an attribute. JSON escapes control characters, but not these.
func cleaned(s string) string {
	out := make([]rune, 0, len(s))
	for _, c := range s { // invalid UTF-8 comes as U+FFFD
		if c == 0xFFFE || c == 0xFFFF {
			c = utf8.RuneError
		}
		out = append(out, c)
	}
	return string(out)
}
