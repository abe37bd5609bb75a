package extended

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

const (
	maxAttributes = 10  // of a message, the reserved one included
	maxDelay      = 900 // seconds
)

// outgoing is a message to be sent, whichever call it came with.
type outgoing struct {
	body       string
	attributes map[string]types.MessageAttributeValue
	delay      int32
	fifo       bool
}

// invalid lists what SQS would refuse about a message, all of it. A body that goes through S3 may have any characters.
func (m *outgoing) invalid(throughS3 bool) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.body == "" {
		add("the body is empty: SQS takes 1 byte or more")
	}
	if at := badCharacter(m.body); !throughS3 && at >= 0 {
		add("the body has a character at byte %d that SQS refuses: it takes valid UTF-8 of #x9, #xA, #xD, #x20 to #xD7FF, #xE000 to #xFFFD, #x10000 to #x10FFFF; encode it, or send it through S3 with Config.AlwaysS3", at)
	}
	errs = append(errs, m.invalidDelay(), m.invalidAttributes(throughS3))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

func (m *outgoing) invalidDelay() error {
	switch {
	case m.delay < 0 || m.delay > maxDelay:
		return fmt.Errorf("DelaySeconds is %d: SQS takes 0 to %d; for a later time, schedule the message with EventBridge Scheduler (a one-time schedule whose target is the queue)", m.delay, maxDelay)
	case m.delay != 0 && m.fifo:
		return fmt.Errorf("DelaySeconds is %d: a FIFO queue takes no delay for a single message; set the queue's DelaySeconds", m.delay)
	}
	return nil
}

func (m *outgoing) invalidAttributes(throughS3 bool) error {
	var errs []error
	most, why := maxAttributes, ""
	if throughS3 {
		most, why = maxAttributes-1, " for a message that goes through S3, because one is reserved"
	}
	if n := len(m.attributes); n > most {
		errs = append(errs, fmt.Errorf("the message has %d attributes: SQS takes at most %d%s", n, most, why))
	}
	for _, name := range slices.Sorted(maps.Keys(m.attributes)) {
		if err := invalidName(name); err != nil {
			errs = append(errs, fmt.Errorf("attribute %.100q: %w", name, err))
		}
		if err := invalidValue(m.attributes[name]); err != nil {
			errs = append(errs, fmt.Errorf("attribute %.100q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func invalidName(name string) error {
	lower := strings.ToLower(name)
	switch {
	case isReserved(name):
		return errors.New("the name is reserved for pointers")
	case name == "" || len(name) > 256:
		return fmt.Errorf("the name has %d characters: must have from 1 to 256", len(name))
	case strings.HasPrefix(lower, "aws.") || strings.HasPrefix(lower, "amazon."):
		return errors.New(`the name must not begin with "AWS." or "Amazon."`)
	case name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, ".."):
		return errors.New("the name must not begin or end with a period, nor have two in a row")
	case strings.IndexFunc(name, func(r rune) bool { return r == '/' || !isKeyCharacter(r) }) >= 0:
		return errors.New("the name must be of a-z A-Z 0-9 _ - . only")
	}
	return nil
}

func invalidValue(value types.MessageAttributeValue) error {
	dataType := aws.ToString(value.DataType)
	kind, _, _ := strings.Cut(dataType, ".")
	switch {
	case len(dataType) > 256:
		return fmt.Errorf("the data type has %d characters: must have at most 256", len(dataType))
	case kind == "Binary":
		if len(value.BinaryValue) == 0 {
			return errors.New("the value is empty: a Binary attribute needs a BinaryValue")
		}
	case kind != "String" && kind != "Number":
		return fmt.Errorf("the data type is %.50q: must be String, Number or Binary, with a label after a period if need be", dataType)
	case aws.ToString(value.StringValue) == "":
		return fmt.Errorf("the value is empty: a %s attribute needs a StringValue", kind)
	case badCharacter(*value.StringValue) >= 0:
		return errors.New("the value has a character that SQS refuses")
	}
	return nil
}

// badCharacter is where the first character is that SQS refuses, or -1.
func badCharacter(s string) int {
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i // not UTF-8: the SDK would replace it without a word
			}
		case r == 0x9 || r == 0xA || r == 0xD:
		case r < 0x20 || r > 0xFFFD && r < 0x10000:
			return i
		}
	}
	return -1
}

// invalidBatch checks what concerns a batch as a whole.
func invalidBatch(entries []types.SendMessageBatchRequestEntry) error {
	var errs []error
	if n := len(entries); n < 1 || n > 10 {
		errs = append(errs, fmt.Errorf("the batch has %d entries: SQS takes 1 to 10", n))
	}
	seen := map[string]bool{}
	for i, e := range entries {
		id := aws.ToString(e.Id)
		switch bad := strings.IndexFunc(id, func(r rune) bool { return r == '.' || r == '/' || !isKeyCharacter(r) }); {
		case id == "" || len(id) > 80 || bad >= 0:
			errs = append(errs, fmt.Errorf("entry %d has the Id %.90q: must be 1 to 80 characters of a-z A-Z 0-9 _ -", i, id))
		case seen[id]:
			errs = append(errs, fmt.Errorf("entry %d has the Id %q of another: must be distinct", i, id))
		}
		seen[id] = true
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
