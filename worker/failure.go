package worker

import (
	"errors"
	"strings"

	"github.com/aws/smithy-go"
)

// failureKind sorts the errors of calls about the queue as a whole.
type failureKind int

const (
	passing   failureKind = iota // throttling, 5xx, a broken connection: it may work next time
	overLimit                    // too many messages in flight: others must delete first
	denied                       // credentials or permissions, KMS keys included: somebody must act
	gone                         // no such queue here
)

func (k failureKind) String() string {
	return [...]string{"passing", "over the in-flight limit", "denied", "no such queue"}[k]
}

// hopeless is why a run can't begin or go on, in a sentence of ours; SQS's own error is there for errors.As.
type hopeless struct {
	text  string
	cause error
}

func (e *hopeless) Error() string { return e.text }
func (e *hopeless) Unwrap() error { return e.cause }

// hopelessf describes err, then says what to do.
func (r *run) hopelessf(doing string, err error, advice string) error {
	return &hopeless{"worker: " + doing + " " + r.w.queueURL + ": " + describe(err) + ": " + advice, err}
}

// failureOf accepts both forms of each code: the JSON shape's and the query protocol's.
func failureOf(err error) failureKind {
	var api smithy.APIError
	if !errors.As(err, &api) {
		if strings.Contains(err.Error(), "failed to refresh cached credentials") || strings.Contains(err.Error(), "get identity") {
			return denied
		}
		return passing
	}
	code := strings.TrimPrefix(api.ErrorCode(), "AWS.SimpleQueueService.")
	switch code {
	case "OverLimit":
		return overLimit
	case "QueueDoesNotExist", "NonExistentQueue", "InvalidAddress", "ResourceNotFoundException":
		return gone
	case "AccessDenied", "AccessDeniedException", "InvalidSecurity", "ExpiredToken", "ExpiredTokenException",
		"InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
		"IncompleteSignature", "IncompleteSignatureException", "MissingAuthenticationToken",
		"MissingAuthenticationTokenException", "OptInRequired", "AuthFailure":
		return denied
	case "KmsThrottled", "KMS.ThrottlingException":
		return passing
	}
	if strings.HasPrefix(code, "Kms") || strings.HasPrefix(code, "KMS.") {
		return denied
	}
	return passing
}
