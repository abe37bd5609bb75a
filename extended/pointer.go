package extended

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Pointer is where a message's payload is.
type Pointer struct {
	Bucket, Key string
	// Size is the payload's length in bytes, as the sender declared it.
	Size int64
}

func (p Pointer) String() string {
	return fmt.Sprintf("s3://%s/%s (%d bytes)", p.Bucket, p.Key, p.Size)
}

// The reserved attributes: a message that has one of them has its payload in S3.
const (
	legacyAttribute = "SQSLargePayloadSize"
	modernAttribute = "ExtendedPayloadSize"
)

var reservedAttributes = [...]string{legacyAttribute, modernAttribute}

const (
	java2Class = "software.amazon.payloadoffloading.PayloadS3Pointer"
	java1Class = "com.amazon.sqs.javamessaging.MessageS3Pointer"
)

// attribute is the name of the reserved attribute in this form.
func (f Form) attribute() string {
	if f == FormExtendedPayloadSize {
		return modernAttribute
	}
	return legacyAttribute
}

func (f Form) class() string {
	if f == FormJava1 {
		return java1Class
	}
	return java2Class
}

// body writes a pointer as Java does: no white space, raw UTF-8, in this order.
func (f Form) body(p Pointer) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode([2]any{f.class(), struct { // strings always encode
		Bucket string `json:"s3BucketName"`
		Key    string `json:"s3Key"`
	}{p.Bucket, p.Key}})
	return strings.TrimSuffix(b.String(), "\n")
}

// size is the reserved attribute's value.
func (f Form) size(n int64) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("Number"), StringValue: aws.String(strconv.FormatInt(n, 10))}
}

// isReserved tells the attribute names that a sender can't use.
func isReserved(name string) bool { return name == legacyAttribute || name == modernAttribute }

// hasReserved reports whether a message says that its payload is in S3.
func hasReserved(attributes map[string]types.MessageAttributeValue) bool {
	for _, name := range reservedAttributes {
		if _, ok := attributes[name]; ok {
			return true
		}
	}
	return false
}

// withoutReserved is a copy without the reserved attributes; nil when nothing is left.
func withoutReserved(attributes map[string]types.MessageAttributeValue) map[string]types.MessageAttributeValue {
	var left map[string]types.MessageAttributeValue
	for name, value := range attributes {
		if isReserved(name) {
			continue
		}
		if left == nil {
			left = make(map[string]types.MessageAttributeValue, len(attributes))
		}
		left[name] = value
	}
	return left
}

// readPointer reads a received message. A body without a reserved attribute is just a body, whatever it looks like:
// found is false. An error is an ErrMalformed.
func readPointer(body string, attributes map[string]types.MessageAttributeValue) (p Pointer, found bool, err error) {
	if !hasReserved(attributes) {
		return p, false, nil
	}
	size, err := declaredSize(attributes)
	if err == nil {
		p, err = parsePointer(body)
	}
	if err != nil {
		return Pointer{}, true, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	p.Size = size
	return p, true, nil
}

// declaredSize reads the reserved attribute; a message that has both must say the same in both.
func declaredSize(attributes map[string]types.MessageAttributeValue) (int64, error) {
	size := int64(-1)
	for _, name := range reservedAttributes {
		value, ok := attributes[name]
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(aws.ToString(value.StringValue), 10, 62)
		if err != nil || aws.ToString(value.DataType) != "Number" {
			return 0, fmt.Errorf("the attribute %s isn't a size in bytes", name)
		}
		if size >= 0 && size != int64(n) {
			return 0, fmt.Errorf("%s and %s declare different sizes", legacyAttribute, modernAttribute)
		}
		size = int64(n)
	}
	return size, nil
}

// maxPointer bounds a pointer's text: a bucket or ARN, a key of 1,024 bytes with each character escaped, and a class.
const maxPointer = 16 << 10

// maxKey is S3's limit, in bytes.
const maxKey = 1024

// parsePointer judges the structure strictly and lets the class be. Its errors don't repeat the body.
func parsePointer(body string) (Pointer, error) {
	if len(body) > maxPointer {
		return Pointer{}, fmt.Errorf("the body has %d bytes, which is no pointer", len(body))
	}
	var parts []json.RawMessage
	if err := json.Unmarshal([]byte(body), &parts); err != nil || len(parts) != 2 {
		return Pointer{}, errors.New("the body isn't a pointer: want an array of a class and an object")
	}
	var class string
	var fields map[string]json.RawMessage // a struct would take "S3KEY" for "s3Key"
	if json.Unmarshal(parts[0], &class) != nil || class == "" || json.Unmarshal(parts[1], &fields) != nil {
		return Pointer{}, errors.New("the body isn't a pointer: want an array of a class and an object")
	}
	var bucket, key *string
	if json.Unmarshal(fields["s3BucketName"], &bucket) != nil || json.Unmarshal(fields["s3Key"], &key) != nil ||
		aws.ToString(bucket) == "" || aws.ToString(key) == "" {
		return Pointer{}, errors.New("the pointer has no s3BucketName or no s3Key")
	}
	if len(*key) > maxKey || !utf8.ValidString(*key) || strings.ContainsRune(*key, 0) {
		return Pointer{}, errors.New("the pointer's s3Key is no key that S3 knows")
	}
	return Pointer{Bucket: *bucket, Key: *key}, nil
}

// allowed holds a pointer against the places that may be reached. A key with a "." or ".." segment is never under a
// prefix: somebody on the way may resolve it.
func (c Config) allowed(p Pointer) error {
	if c.inside(Location{c.Bucket, c.KeyPrefix}, p) {
		return nil
	}
	for _, a := range c.Allow {
		if c.inside(a, p) {
			return nil
		}
	}
	return fmt.Errorf("%w: bucket %.100q, key %.100q: add the place to Config.Allow if its senders are to be believed", ErrForeign, p.Bucket, p.Key)
}

func (Config) inside(l Location, p Pointer) bool {
	if p.Bucket != l.Bucket || !strings.HasPrefix(p.Key, l.KeyPrefix) {
		return false
	}
	for segment := range strings.SplitSeq(p.Key, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// newKey is the prefix and a random UUID (version 4).
func (c Config) newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", c.KeyPrefix, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
