package sqsmodel

import (
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

const (
	maxMessageSize = 1 << 20 // since August 2025; 256 KiB before
	maxVisibility  = 43_200
	maxWait        = 20
	maxMessages    = 10
	maxDelay       = 900
	maxAttributes  = 10

	invalidCharacters = "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)

// messageSize counts as SQS does: body, and of each attribute name, type and
// value. The trace header is free.
func messageSize(body string, attrs map[string]types.MessageAttributeValue) int {
	n := len(body)
	for name, v := range attrs {
		n += len(name) + len(value(v.DataType)) + len(value(v.StringValue)) + len(v.BinaryValue)
	}
	return n
}

func checkCharacters(s string) *apiError {
	for _, r := range s {
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF {
			return fail("InvalidMessageContents")
		}
	}
	return nil
}

func checkAttributes(attrs map[string]types.MessageAttributeValue) *apiError {
	if len(attrs) > maxAttributes {
		return fail("InvalidParameterValue", "Number of message attributes [%d] exceeds the allowed maximum [%d].", len(attrs), maxAttributes)
	}
	for _, name := range sortedKeys(attrs) {
		if err := checkAttributeName(name); err != nil {
			return err
		}
		if err := checkAttributeValue(name, attrs[name]); err != nil {
			return err
		}
	}
	return nil
}

func checkAttributeName(name string) *apiError {
	lower := strings.ToLower(name)
	switch {
	case name == "" || len(name) > 256:
		return fail("InvalidParameterValue", "Message (user) attribute names must be shorter than 256 Bytes")
	case strings.IndexFunc(name, func(r rune) bool { return !wordRune(r) && r != '.' }) >= 0, strings.Contains(name, ".."):
		return fail("InvalidParameterValue", "Message (user) attributes name can only contain upper and lower score characters, digits, periods, hyphens and underscores. ")
	case strings.HasPrefix(lower, "aws.") || strings.HasPrefix(lower, "amazon.") || name[0] == '.' || name[len(name)-1] == '.':
		return fail("InvalidParameterValue", "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for internal use. Additionally, they cannot start or end with '.'.")
	}
	return nil
}

func checkAttributeValue(name string, v types.MessageAttributeValue) *apiError {
	dataType := value(v.DataType)
	base, _, _ := strings.Cut(dataType, ".")
	switch {
	case dataType == "":
		return fail("InvalidParameterValue", "Missing required parameter DataType")
	case base != "String" && base != "Number" && base != "Binary":
		return fail("InvalidParameterValue", `Type for parameter MessageAttributes.Attribute_name.DataType must be prefixed with "String", "Binary", or "Number", but was: %s`, dataType)
	case len(dataType) > 256:
		return fail("InvalidParameterValue", "Message (user) attribute types must be shorter than 256 Bytes")
	case len(v.StringListValues) > 0 || len(v.BinaryListValues) > 0:
		return fail("UnsupportedOperation", "Message attribute list values in SendMessage operation are not supported.")
	}
	if base == "Binary" {
		if len(v.BinaryValue) == 0 || v.StringValue != nil {
			return fail("InvalidParameterValue", "Message (user) attribute '%s' must contain a non-empty value of type 'Binary'.", name)
		}
		return nil
	}
	if value(v.StringValue) == "" || v.BinaryValue != nil {
		return fail("InvalidParameterValue", "Message (user) attribute '%s' must contain a non-empty value of type 'String'.", name)
	}
	if checkCharacters(*v.StringValue) != nil { // in an attribute it's another error than in a body
		return fail("InvalidParameterValue", invalidCharacters)
	}
	if base == "Number" {
		if _, err := strconv.ParseFloat(*v.StringValue, 64); err != nil {
			return fail("InvalidParameterValue", "Can't cast the value of message (user) attribute '%s' to a number.", name)
		}
	}
	return nil
}

const punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

func checkToken(name, s string) *apiError {
	if s == "" || len(s) > 128 || strings.IndexFunc(s, func(r rune) bool { return !wordRune(r) && !strings.ContainsRune(punctuation, r) }) >= 0 {
		return invalidValue(s, name, name+" can only include alphanumeric and punctuation characters. 1 to 128 in length.")
	}
	return nil
}

func checkAttemptID(q *queue, id string) *apiError {
	if !q.fifo {
		return invalidValue(id, "ReceiveRequestAttemptId", "The request includes a parameter that is not valid for this queue type.")
	}
	return checkToken("ReceiveRequestAttemptId", id)
}
