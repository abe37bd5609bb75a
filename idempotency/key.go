package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sqsworker/sqsworker/worker"
)

// MessageID is SQS's own id as the key. It knows a message that SQS delivers again, and nothing else: a producer that sends
// again makes a new id, and so does a redrive from a dead-letter queue.
func MessageID(m *worker.Message) (string, error) { return m.ID, nil }

// DeduplicationID is MessageDeduplicationId as the key, for FIFO queues. SQS itself looks at it for five minutes; this does for
// the whole retention. A queue with content-based deduplication makes it from the body, so that two equal bodies are one.
func DeduplicationID(m *worker.Message) (string, error) {
	if m.DeduplicationID == "" {
		return "", errors.New("the message has no MessageDeduplicationId: is the queue a FIFO queue?")
	}
	return m.DeduplicationID, nil
}

// Attribute is a message attribute as the key: a String or a Number.
func Attribute(name string) KeyFunc {
	return func(m *worker.Message) (string, error) {
		if v := m.Attribute(name); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("the message has no attribute %q, or a binary one", name)
	}
}

// JSONField is a field of a JSON body as the key. path is a name, names joined by dots ("detail.order.id"), or a JSON Pointer
// ("/detail/order~1id/0"); an element of an array is its number. Strings are taken as they are, numbers as they are written
// (1 is not 1.0), objects and arrays as JSON with sorted names. Missing, null and empty are errors.
func JSONField(path string) KeyFunc {
	return func(m *worker.Message) (string, error) {
		doc, err := decode(m.Body)
		if err != nil {
			return "", err
		}
		v, ok := lookUp(doc, path)
		if !ok || v == nil {
			return "", fmt.Errorf("the body has no field %q", path)
		}
		s, err := text(v)
		if err == nil && s == "" {
			err = fmt.Errorf("the body's field %q is empty", path)
		}
		return s, err
	}
}

// Fields compares some fields of a JSON body, in paths as [JSONField] takes them, whatever the order of names and the white
// space. A missing field is like null.
func Fields(paths ...string) PayloadFunc {
	return func(m *worker.Message) ([]byte, error) {
		doc, err := decode(m.Body)
		if err != nil {
			return nil, err
		}
		values := make([]any, len(paths))
		for i, path := range paths {
			values[i], _ = lookUp(doc, path)
		}
		return json.Marshal(values)
	}
}

// AnyPayload compares nothing: the key alone decides.
func AnyPayload(*worker.Message) ([]byte, error) { return nil, nil }

func wholeBody(m *worker.Message) ([]byte, error) { return []byte(m.Body), nil }

// decode reads JSON with numbers as they are written. The errors don't quote the body.
func decode(body string) (any, error) {
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("the body isn't JSON: offset %d", d.InputOffset())
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("the body is more than one JSON value: offset %d", d.InputOffset())
	}
	return doc, nil
}

func lookUp(v any, path string) (any, bool) {
	var names []string
	if rest, ok := strings.CutPrefix(path, "/"); ok {
		names = strings.Split(rest, "/")
		for i, n := range names {
			names[i] = strings.ReplaceAll(strings.ReplaceAll(n, "~1", "/"), "~0", "~")
		}
	} else {
		names = strings.Split(path, ".")
	}
	for _, name := range names {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[name]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(x) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func text(v any) (string, error) {
	switch x := v.(type) {
	case string:
		return x, nil
	case json.Number:
		return x.String(), nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// maxID is the longest sort key that DynamoDB takes.
const maxID = 1024

// recordID is a record's key in the table. One that DynamoDB wouldn't take is hashed.
func recordID(namespace, key string) string {
	id := namespace + "#" + key
	if len(id) <= maxID && utf8.ValidString(key) {
		return id
	}
	sum := sha256.Sum256([]byte(key))
	return namespace + "#sha256:" + hex.EncodeToString(sum[:])
}

// noPayload is the hash of nothing to compare.
const noPayload = "-"

func payloadHash(payload []byte) string {
	if payload == nil {
		return noPayload
	}
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// samePayload compares hashes; one of nothing equals every other.
func samePayload(a, b string) bool { return a == b || a == noPayload || b == noPayload }

// stableKey is a record's key for other people's eyes: 64 characters that every API takes as an idempotency key or a client
// token, and that don't show what the key is made of.
func stableKey(id string) string {
	sum := sha256.Sum256([]byte("sqsworker/idempotency\x00" + id))
	return hex.EncodeToString(sum[:])
}
