package dlq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// once turns the SDK's retries off for a call. A repeated send whose first answer was lost makes a duplicate, and only who repeats it
// can name it.
func once(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }

// unverified turns off the SDK's MD5 check, which fails a whole receive for one bad body. Each body is checked here instead.
func unverified(o *sqs.Options) { o.DisableMessageChecksumValidation = true }

// codeOf is SQS's error code without the query protocol's prefix; empty when SQS didn't answer.
func codeOf(err error) string {
	var entry *heartbeat.EntryError
	if errors.As(err, &entry) {
		return strings.TrimPrefix(entry.Code, "AWS.SimpleQueueService.")
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return strings.TrimPrefix(api.ErrorCode(), "AWS.SimpleQueueService.")
	}
	return ""
}

// describe is an error as it may be shown: SQS puts receipt handles and policies into some of its messages.
func describe(err error) string {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return err.Error()
	}
	code, text := codeOf(err), api.ErrorMessage()
	if text == "" || strings.Contains(strings.ToLower(text), "receipt") {
		return code
	}
	return code + ": " + text
}

func isDenied(err error) bool {
	switch codeOf(err) {
	case "AccessDenied", "AccessDeniedException", "AuthorizationError":
		return true
	}
	return isKMS(err)
}

// isKMS: the key is missing, disabled, or not allowed; throttling by KMS passes.
func isKMS(err error) bool {
	code := codeOf(err)
	return (strings.HasPrefix(code, "KMS.") || strings.HasPrefix(code, "Kms")) && !strings.Contains(code, "Thrott")
}

// isHopeless tells whether every other call would fail likewise: permissions, keys, credentials, a queue that doesn't exist.
func isHopeless(err error) bool {
	switch codeOf(err) {
	case "InvalidSecurity", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch",
		"InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken", "OptInRequired", "AuthFailure":
		return true
	}
	return isDenied(err) || isMissing(err)
}

func isMissing(err error) bool {
	switch codeOf(err) {
	case "NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException", "InvalidAddress":
		return true
	}
	return false
}

// isPassing tells whether the call may work when it is made again: throttling, KMS throttling, 5xx, a broken connection.
func isPassing(err error) bool {
	code := codeOf(err)
	switch code {
	case "":
		return !errors.Is(err, context.Canceled)
	case "RequestThrottled", "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException", "KmsThrottled",
		"KMS.ThrottlingException", "InternalFailure", "InternalError", "InternalServerError", "ServiceUnavailable", "OverLimit":
		return true
	}
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorFault() == smithy.FaultServer
}

// maxTries bounds the attempts at one call whose failures can pass: about half a minute all told.
const maxTries = 8

// again waits before the next attempt: exponential from 100 ms to 8 s, jittered over the step. False when the context ends first.
func again(ctx context.Context, failures int) bool {
	step := min(100*time.Millisecond<<min(failures-1, 10), 8*time.Second)
	timer := time.NewTimer(step/2 + rand.N(step/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// permissionError is a denied call, with what to allow.
func permissionError(action, resource string, err error) error {
	return fmt.Errorf("%w: allow %s on %s, and kms:Decrypt and kms:GenerateDataKey on its key if it has one", err, action, resource)
}

// explain says what was being done, to which queue, and what to do about it.
func explain(err error, action, resource string) error {
	switch {
	case err == nil:
		return nil
	case isDenied(err):
		err = permissionError("sqs:"+action, resource, err)
	case isMissing(err):
		err = fmt.Errorf("%w: check the name, the account, and that the client's Region is the queue's", err)
	}
	return fmt.Errorf("dlq: %s on %s: %w", action, resource, err)
}
