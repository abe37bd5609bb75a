package extended

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/sqsworker/sqsworker/worker"
)

// Why a payload can't be had, or a message not be sent. Test for them with errors.Is.
var (
	// ErrMissing: there is no such object. It was removed with an earlier delivery of this message, expired by a lifecycle
	// rule shorter than the queues' retention, or deleted by somebody. No retry mends it.
	ErrMissing = errors.New("extended: the payload isn't in S3")
	// ErrForeign: the pointer names a place that isn't in [Config.Bucket] under [Config.KeyPrefix], nor in [Config.Allow].
	// S3 wasn't called.
	ErrForeign = errors.New("extended: the pointer leads outside of the configured places")
	// ErrMalformed: the message has the reserved attribute, but its body is no pointer, or the attribute no size.
	ErrMalformed = errors.New("extended: malformed pointer")
	// ErrTooLarge: the payload is larger than [Config.MaxBody] or [Config.MaxPayload] allows, or a message's attributes
	// alone are larger than SQS takes.
	ErrTooLarge = errors.New("extended: too large")
	// ErrSize: the object isn't as large as the message declares, or a [Sized] payload brought another number of bytes.
	ErrSize = errors.New("extended: the payload hasn't the declared size")
	// ErrChecksum: what arrived isn't what S3 stored, or S3 stored something else than what was sent.
	ErrChecksum = errors.New("extended: the payload's checksum doesn't match")
	// ErrInvalid: SQS would refuse the message; no call was made.
	ErrInvalid = errors.New("extended: invalid message")
)

// PayloadError says which payload couldn't be had or stored.
type PayloadError struct {
	// Op is "get", "put" or "delete".
	Op string
	Pointer
	// Err is one of this package's errors, S3's own, or the context's.
	Err error
}

func (e *PayloadError) Error() string {
	return fmt.Sprintf("extended: %s s3://%.100s/%.200s: %v", e.Op, e.Bucket, e.Key, e.Err)
}

func (e *PayloadError) Unwrap() error { return e.Err }

// OrphanError is an object that was stored for a message that wasn't sent, or may not have been, and that is still
// there. It comes joined with the send's own error. The lifecycle rule removes it.
type OrphanError struct {
	Pointer
	// Err is why: the deletion's failure, or ErrUncertain.
	Err error
}

func (e *OrphanError) Error() string {
	return fmt.Sprintf("extended: s3://%s/%s was stored and is left to the lifecycle rule: %v", e.Bucket, e.Key, e.Err)
}

func (e *OrphanError) Unwrap() error { return e.Err }

// ErrUncertain, in an [OrphanError]: SQS may have accepted the message although its answer didn't arrive. Its object is kept,
// because a message without its payload would be lost.
var ErrUncertain = errors.New("extended: SQS may have accepted the message")

// permanent tells the failures that no retry will mend.
func permanent(err error) bool {
	for _, kind := range []error{ErrMissing, ErrForeign, ErrMalformed, ErrTooLarge, ErrSize} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// verdict makes a payload's failure the outcome of its message: permanent, or a plain failure that is retried with the
// worker's back-off. Not Unavailable: S3 answers 403 for a missing object too, and one message's bad object must not stop
// a worker.
func verdict(err error) error {
	if permanent(err) {
		return worker.Permanent(err)
	}
	return err
}

// missing reads S3's 404: the object, not the bucket. A missing bucket is a mistake in a deployment, and other messages'
// failure as much as this one's.
func missing(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorCode() == "NoSuchKey"
}

// status is the HTTP status of an answer, 0 when there was none.
func status(err error) int {
	var r *awshttp.ResponseError
	if errors.As(err, &r) && r.Response != nil {
		return r.HTTPStatusCode()
	}
	return 0
}

// explain adds what to do about S3's error.
func explain(err error) error {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return err
	}
	switch {
	case missing(err):
		return fmt.Errorf("%w: %w", ErrMissing, err)
	case api.ErrorCode() == "InvalidObjectState":
		return fmt.Errorf("%w: the object is archived; restore it, or choose another StorageClass", err)
	case status(err) == 403:
		return fmt.Errorf("%w: allow s3:GetObject and kms:Decrypt; without s3:ListBucket, S3 answers so for a missing object too", err)
	}
	return err
}

func failed(op string, p Pointer, err error) error {
	return &PayloadError{Op: op, Pointer: p, Err: err}
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return aws.String(s)
}
