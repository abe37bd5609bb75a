package sqsmodel

import (
	"errors"
	"fmt"
	"net/http"
)

// apiError is an error as SQS answers it: the JSON shape's name, the code that
// x-amzn-query-error carries, and the HTTP status.
type apiError struct {
	shape    string
	code     string
	message  string
	status   int
	receiver bool // the server's fault

	entryCode, entryMessage string // in a batch, where they differ
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func (e *apiError) orNil() error {
	if e == nil {
		return nil
	}
	return e
}

// known has the errors that SQS models, those that it doesn't model but answers,
// and the texts that they come with unless the call says more.
var known = func() map[string]apiError {
	const sqs = "AWS.SimpleQueueService."
	list := []apiError{
		{shape: "QueueDoesNotExist", code: sqs + "NonExistentQueue", message: "The specified queue does not exist."},
		{shape: "QueueNameExists", code: "QueueAlreadyExists"},
		{shape: "QueueDeletedRecently", code: sqs + "QueueDeletedRecently", message: "You must wait 60 seconds after deleting a queue before you can create another with the same name."},
		{shape: "PurgeQueueInProgress", code: sqs + "PurgeQueueInProgress", status: 403},
		{shape: "MessageNotInflight", code: sqs + "MessageNotInflight", message: "The specified message isn't in flight."},
		{shape: "UnsupportedOperation", code: sqs + "UnsupportedOperation"},
		{shape: "EmptyBatchRequest", code: sqs + "EmptyBatchRequest", message: "There should be at least one entry in the request."},
		{shape: "TooManyEntriesInBatchRequest", code: sqs + "TooManyEntriesInBatchRequest"},
		{shape: "BatchRequestTooLong", code: sqs + "BatchRequestTooLong"},
		{shape: "BatchEntryIdsNotDistinct", code: sqs + "BatchEntryIdsNotDistinct"},
		{shape: "InvalidBatchEntryId", code: sqs + "InvalidBatchEntryId", message: "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long."},
		{shape: "ReceiptHandleIsInvalid", code: "ReceiptHandleIsInvalid", status: 404},
		{shape: "OverLimit", code: "OverLimit", status: 403, message: "Too many messages are in flight."},
		{shape: "InvalidAttributeName", code: "InvalidAttributeName"},
		{shape: "InvalidAttributeValue", code: "InvalidAttributeValue"},
		{shape: "InvalidIdFormat", code: "InvalidIdFormat"},
		{shape: "InvalidMessageContents", code: "InvalidMessageContents", message: invalidCharacters},
		{shape: "InvalidAddress", code: "InvalidAddress", status: 404},
		{shape: "InvalidSecurity", code: "InvalidSecurity", status: 403, message: "The request was not made over HTTPS or did not use SigV4 for signing."},
		{shape: "ResourceNotFoundException", code: "ResourceNotFoundException", status: 404},
		{shape: "RequestThrottled", code: "RequestThrottled", status: 403, message: "Request is throttled."},
		{shape: "ThrottlingException", code: "ThrottlingException", message: "Rate exceeded"},
		{shape: "KmsAccessDenied", code: "KMS.AccessDeniedException", message: "The ciphertext refers to a customer master key that does not exist, does not exist in this region, or you are not allowed to access."},
		{shape: "KmsDisabled", code: "KMS.DisabledException", message: "The KMS key is disabled."},
		{shape: "KmsInvalidKeyUsage", code: "KMS.InvalidKeyUsageException", message: "The KMS key cannot be used for this operation."},
		{shape: "KmsInvalidState", code: "KMS.InvalidStateException", message: "The KMS key's state does not allow this operation."},
		{shape: "KmsNotFound", code: "KMS.NotFoundException", message: "The KMS key does not exist."},
		{shape: "KmsOptInRequired", code: "KMS.OptInRequired", status: 403, message: "The specified key policy isn't syntactically or semantically correct."},
		{shape: "KmsThrottled", code: "KMS.ThrottlingException", message: "Rate exceeded"},
		{shape: "InvalidParameterValueException", code: "InvalidParameterValue"},
		{shape: "MissingRequiredParameterException", code: "MissingParameter"},
		{shape: "AccessDeniedException", code: "AccessDenied", status: 403, message: "Access to the resource is denied."},
		{shape: "ExpiredTokenException", code: "ExpiredToken", status: 403, message: "The security token included in the request is expired"},
		{shape: "UnrecognizedClientException", code: "InvalidClientTokenId", status: 403, message: "The security token included in the request is invalid."},
		{shape: "InvalidSignatureException", code: "SignatureDoesNotMatch", status: 403, message: "The request signature we calculated does not match the signature you provided."},
		{shape: "UnknownOperationException", code: "InvalidAction", message: "The action or operation requested is not valid."},
		{shape: "SerializationException", code: "MalformedInput", message: "The request body is not valid."},
		{shape: "InternalFailure", code: "InternalFailure", status: 500, receiver: true, message: "The request processing has failed because of an unknown error, exception or failure."},
		{shape: "InternalError", code: "InternalError", status: 500, receiver: true, message: "We encountered an internal error. Please try again."},
		{shape: "ServiceUnavailable", code: "ServiceUnavailable", status: 503, receiver: true, message: "The service is unavailable. Please try again shortly."},
	}
	m := make(map[string]apiError, 2*len(list))
	for _, e := range list {
		if e.status == 0 {
			e.status = http.StatusBadRequest
		}
		m[e.shape] = e
		if _, taken := m[e.code]; !taken {
			m[e.code] = e
		}
	}
	m["AccessDenied"], m["InvalidParameterValue"] = m["AccessDeniedException"], m["InvalidParameterValueException"]
	return m
}()

// fail makes a known error, by shape or code, with a text of its own if given.
func fail(name string, text ...any) *apiError {
	e, ok := known[name]
	if !ok {
		e = apiError{shape: name, code: name, status: http.StatusBadRequest}
	}
	if len(text) > 0 {
		e.message = fmt.Sprintf(text[0].(string), text[1:]...)
	}
	return &e
}

func missing(parameter string) *apiError {
	return fail("MissingParameter", "The request must contain the parameter %s.", parameter)
}

func invalidValue(value any, parameter, reason string) *apiError {
	return fail("InvalidParameterValue", "Value %v for parameter %s is invalid. Reason: %s", value, parameter, reason)
}

func asAPIError(err error) *apiError {
	var e *apiError
	if errors.As(err, &e) {
		return e
	}
	return fail("InternalFailure", "%v", err)
}
