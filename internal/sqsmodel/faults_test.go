package sqsmodel_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestFaultMatchesByActionQueueAndCondition(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, other := a.queue("work"), a.queue("other")
		body := aws.String("m")
		remove := a.s.Inject(sqsmodel.Fault{
			Action: "SendMessage", Queue: "work", Code: "RequestThrottled",
			Match: func(c sqsmodel.Call) bool {
				return strings.HasPrefix(*c.Input.(*sqs.SendMessageInput).MessageBody, "m")
			},
			Skip: 1, Times: 2,
		})
		throttled := func(url string) bool {
			err := a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: body})
			if err != nil {
				a.refused(err, "RequestThrottled", "")
				a.status(err, 403)
			}
			return err != nil
		}
		got := []bool{throttled(url), throttled(other), throttled(url), throttled(url), throttled(url)}
		for i, want := range []bool{false, false, true, true, false} {
			if got[i] != want {
				t.Errorf("call %d: throttled %v", i, got[i])
			}
		}
		body = aws.String("x")
		forever := a.s.Inject(sqsmodel.Fault{Code: "InternalFailure"})
		if err := a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: body}); err == nil {
			t.Error("no error")
		} else {
			a.status(err, 500)
		}
		forever()
		remove()
		a.send(url, "m")
	})
}

func TestErrorsHaveTheTypeCodeAndStatusOfSQS(t *testing.T) {
	for _, tc := range []struct {
		name, code string
		status     int
		is         func(error) bool
	}{
		{"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400, isA[*types.QueueDoesNotExist]},
		{"AWS.SimpleQueueService.NonExistentQueue", "AWS.SimpleQueueService.NonExistentQueue", 400, isA[*types.QueueDoesNotExist]},
		{"ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404, isA[*types.ReceiptHandleIsInvalid]},
		{"MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400, isA[*types.MessageNotInflight]},
		{"OverLimit", "OverLimit", 403, isA[*types.OverLimit]},
		{"RequestThrottled", "RequestThrottled", 403, isA[*types.RequestThrottled]},
		{"ThrottlingException", "ThrottlingException", 400, isA[*smithy.GenericAPIError]},
		{"KmsThrottled", "KMS.ThrottlingException", 400, isA[*types.KmsThrottled]},
		{"KmsAccessDenied", "KMS.AccessDeniedException", 400, isA[*types.KmsAccessDenied]},
		{"KmsDisabled", "KMS.DisabledException", 400, isA[*types.KmsDisabled]},
		{"KmsInvalidState", "KMS.InvalidStateException", 400, isA[*types.KmsInvalidState]},
		{"KmsNotFound", "KMS.NotFoundException", 400, isA[*types.KmsNotFound]},
		{"KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException", 400, isA[*types.KmsInvalidKeyUsage]},
		{"KmsOptInRequired", "KMS.OptInRequired", 403, isA[*types.KmsOptInRequired]},
		{"PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403, isA[*types.PurgeQueueInProgress]},
		{"QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400, isA[*types.QueueDeletedRecently]},
		{"QueueNameExists", "QueueAlreadyExists", 400, isA[*types.QueueNameExists]},
		{"UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400, isA[*types.UnsupportedOperation]},
		{"InvalidAddress", "InvalidAddress", 404, isA[*types.InvalidAddress]},
		{"InvalidSecurity", "InvalidSecurity", 403, isA[*types.InvalidSecurity]},
		{"ResourceNotFoundException", "ResourceNotFoundException", 404, isA[*types.ResourceNotFoundException]},
		{"InvalidParameterValue", "InvalidParameterValue", 400, isA[*smithy.GenericAPIError]},
		{"AccessDeniedException", "AccessDenied", 403, isA[*smithy.GenericAPIError]},
		{"ExpiredToken", "ExpiredToken", 403, isA[*smithy.GenericAPIError]},
		{"InternalFailure", "InternalFailure", 500, isA[*smithy.GenericAPIError]},
		{"ServiceUnavailable", "ServiceUnavailable", 503, isA[*smithy.GenericAPIError]},
		{"Whatever", "Whatever", 400, isA[*smithy.GenericAPIError]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, sqsmodel.Config{}, func(a *account) {
				url := a.queue("work")
				a.s.Inject(sqsmodel.Fault{Action: "ReceiveMessage", Code: tc.name})
				_, err := a.tryReceive(a.Context(), url)
				a.refused(err, tc.code, "")
				a.status(err, tc.status)
				if !tc.is(err) {
					t.Errorf("got %T: %v", err, err)
				}
			})
		})
	}
}

func isA[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func TestFaultTextAndStatusCanBeSet(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.s.Inject(sqsmodel.Fault{Code: "Teapot", Message: "short and stout", Status: 418})
		_, err := a.tryReceive(a.Context(), url)
		a.refused(err, "Teapot", "short and stout")
		a.status(err, 418)
	})
}

func TestWithoutQueryHeaderTheCodeIsTheShapesName(t *testing.T) {
	inBubble(t, sqsmodel.Config{NoQueryErrorHeader: true}, func(a *account) {
		_, err := a.tryReceive(a.Context(), "https://x/123456789012/missing")
		a.refused(err, "QueueDoesNotExist", "")
		if !isA[*types.QueueDoesNotExist](err) {
			t.Errorf("got %v", err)
		}
	})
}

func TestHoldDelaysTheCallAndHoldAfterItsAnswer(t *testing.T) {
	inBubble(t, sqsmodel.Config{Latency: time.Second}, func(a *account) {
		url := a.queue("work")
		a.s.SetLatency(2 * time.Second)
		a.s.Inject(sqsmodel.Fault{Action: "SendMessage", Hold: 3 * time.Second, HoldAfter: 5 * time.Second})
		start := time.Now()
		time.AfterFunc(5*time.Second-1, func() { a.state(url, 0, 0, 0) })
		time.AfterFunc(5*time.Second+1, func() { a.state(url, 1, 0, 0) })
		a.send(url, "m")
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestHeldCallEndsWithItsContext(t *testing.T) {
	for name, f := range map[string]sqsmodel.Fault{
		"hold": {Hold: time.Hour}, "hold after": {HoldAfter: time.Hour}, "stall": {Stall: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, sqsmodel.Config{}, func(a *account) {
				url := a.queue("work")
				f.Action = "SendMessage"
				a.s.Inject(f)
				ctx, cancel := context.WithTimeout(a.Context(), time.Second)
				defer cancel()
				_, err := a.c.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m")})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				applied := 0
				if name == "hold after" {
					applied = 1
				}
				a.state(url, applied, 0, 0)
				calls := a.s.Calls()
				if c := calls[len(calls)-1]; c.Err != "Canceled" || c.Done.Sub(c.At) != time.Second {
					t.Errorf("recorded %+v", c)
				}
			})
		})
	}
}

func TestDroppedConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		fault   sqsmodel.Fault
		applied int
	}{
		"before": {sqsmodel.Fault{DropBefore: true}, 0},
		"after":  {sqsmodel.Fault{DropAfter: true}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, sqsmodel.Config{}, func(a *account) {
				url := a.queue("work")
				tc.fault.Action, tc.fault.Times = "SendMessage", 1
				a.s.Inject(tc.fault)
				err := a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m")})
				if !isA[*net.OpError](err) {
					t.Errorf("got %v", err)
				}
				a.state(url, tc.applied, 0, 0)
				retrying := a.s.Client() // its default retryer sees a connection error
				a.s.Inject(tc.fault)
				if _, err := retrying.SendMessage(a.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m")}); err != nil {
					t.Error(err)
				}
				a.state(url, 2*tc.applied+1, 0, 0)
			})
		})
	}
}

func TestEntriesOfABatchFailByScript(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "0", "1", "2", "3")
		got := a.receive(url)
		a.s.Inject(sqsmodel.Fault{
			Action: "DeleteMessageBatch", Times: 1,
			FailEntries: func(c sqsmodel.Call, i int, id, handle string) *sqsmodel.EntryError {
				switch {
				case c.Entries != 4 || handle != *got[i].ReceiptHandle:
					t.Errorf("entry %d of %d: %q", i, c.Entries, handle)
				case i == 1:
					return &sqsmodel.EntryError{Code: "InternalError", Message: "try again"}
				case id == "e2":
					return &sqsmodel.EntryError{Code: "ReceiptHandleIsInvalid", SenderFault: true, ApplyAnyway: true}
				}
				return nil
			},
		})
		var entries []types.DeleteMessageBatchRequestEntry
		for i, m := range got {
			entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String("e" + string(rune('0'+i))), ReceiptHandle: m.ReceiptHandle})
		}
		out, err := a.c.DeleteMessageBatch(a.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: entries})
		a.ok(err)
		if len(out.Successful) != 2 || len(out.Failed) != 2 || *out.Failed[0].Code != "InternalError" || out.Failed[0].SenderFault || !out.Failed[1].SenderFault {
			t.Errorf("got %+v", out)
		}
		a.state(url, 0, 1, 0) // 1 is left; 2 was deleted though it says otherwise
		calls := a.s.Calls()
		if c := calls[len(calls)-1]; c.FailedEntries != 2 || c.Entries != 4 || c.Err != "" {
			t.Errorf("recorded %+v", c)
		}
	})
}

func TestEntriesOfASendFailByBody(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.s.Inject(sqsmodel.Fault{FailEntries: func(_ sqsmodel.Call, _ int, _, body string) *sqsmodel.EntryError {
			if body == "bad" {
				return &sqsmodel.EntryError{Code: "ServiceUnavailable"}
			}
			return nil
		}})
		out, err := a.c.SendMessageBatch(a.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("a"), MessageBody: aws.String("bad")}, {Id: aws.String("b"), MessageBody: aws.String("good")},
		}})
		a.ok(err)
		if len(out.Failed) != 1 || *out.Failed[0].Id != "a" {
			t.Errorf("got %+v", out)
		}
		a.bodies(a.receive(url), "good")
	})
}

func TestOneWrongDigestFailsTheWholeReceive(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		ids := a.send(url, "1", "2")
		a.s.Inject(sqsmodel.Fault{CorruptMD5: func(id string) bool { return id == ids[1] }})
		if got, err := a.tryReceive(a.Context(), url); err == nil {
			t.Errorf("got %v", got)
		}
		a.state(url, 0, 2, 0)
	})
}

func TestFaultsAddUp(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.s.Inject(sqsmodel.Fault{Hold: time.Second})
		a.s.Inject(sqsmodel.Fault{Hold: time.Second, Code: "OverLimit"})
		a.s.Inject(sqsmodel.Fault{Code: "InternalFailure"})
		start := time.Now()
		_, err := a.tryReceive(a.Context(), url)
		a.refused(err, "OverLimit", "")
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("took %v", d)
		}
	})
}
