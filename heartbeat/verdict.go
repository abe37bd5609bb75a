package heartbeat

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/aws/smithy-go"
)

// Causes with which a held message's context ends.
var (
	// ErrLost says that the lease can't be kept: SQS refused the receipt handle, or the visibility ran
	// out before a renewal got through. Somebody else may have the message; write nothing for it.
	ErrLost = errors.New("heartbeat: message lease lost")
	// ErrCeiling says that the message has been held for nearly as long as SQS allows (12 hours from
	// the receive). The lease still holds for [Config.CeilingMargin]: stop, and give the message back.
	ErrCeiling = errors.New("heartbeat: message held for as long as SQS allows")
	// ErrSettled is the cause after the holder itself ended the lease.
	ErrSettled = errors.New("heartbeat: lease settled")
	// ErrSuperseded is what the holder hears who gave a message back, when it was received again before that got through.
	ErrSuperseded = errors.New("heartbeat: message received again")
)

// EntryError is one entry's failure in a batch call that as a whole succeeded. The SDK doesn't make
// errors of these; a caller that doesn't look takes a failed entry for a success.
type EntryError struct {
	Code        string
	Message     string
	SenderFault bool
}

// Error doesn't repeat the message: SQS puts receipt handles into it.
func (e *EntryError) Error() string {
	fault := "SQS"
	if e.SenderFault {
		fault = "sender"
	}
	return fmt.Sprintf("%s (fault: %s)", e.Code, fault)
}

// Verdict is what a failed write for a receipt handle means.
type Verdict int

const (
	// Transient: it may work when tried again.
	Transient Verdict = iota
	// Lost: the receipt handle is no longer good. Trying again is of no use.
	Lost
	// Ceiling: the message can't be held any longer, but what was granted stands.
	Ceiling
)

// Judge tells what an error of ChangeMessageVisibility or DeleteMessage, of the whole call or an
// [EntryError], means for the handle. SQS doesn't model the two most important ones: the ceiling and an
// expired handle share the code InvalidParameterValue, and only the text tells them apart.
func Judge(err error) Verdict {
	code, text := codeAndText(err)
	switch {
	case code == "":
		return Transient
	case strings.Contains(text, "beyond the limit"):
		return Ceiling
	case is(code, "ReceiptHandleIsInvalid"), is(code, "MessageNotInflight"):
		return Lost
	case is(code, "InvalidParameterValue"), is(code, "InvalidParameterValueException"):
		for _, sign := range []string{"ReceiptHandle", "receipt handle", "does not exist", "not available for visibility"} {
			if strings.Contains(text, sign) {
				return Lost
			}
		}
	}
	return Transient
}

// is compares an error code in both of its forms: JSON protocol ("MessageNotInflight") and query
// protocol ("AWS.SimpleQueueService.MessageNotInflight"), which SQS sends along and the SDK prefers.
func is(code, name string) bool {
	return code == name || strings.TrimPrefix(code, "AWS.SimpleQueueService.") == name
}

// unanswered tells whether SQS may have done what was asked although the call failed: no answer came, and it wasn't the
// connection that could not be made.
func unanswered(err error) bool {
	if code, _ := codeAndText(err); code != "" {
		return false
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false
	}
	var dns *net.DNSError
	return !errors.As(err, &dns)
}

func codeAndText(err error) (code, text string) {
	var entry *EntryError
	if errors.As(err, &entry) {
		return entry.Code, entry.Message
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode(), api.ErrorMessage()
	}
	return "", ""
}

// Code is the error code of a failed call or entry, or the kind of failure where SQS gave none;
// safe to log and to count by.
func Code(err error) string {
	if code, _ := codeAndText(err); code != "" {
		return strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "Timeout"
	}
	return "ConnectionFailed"
}
