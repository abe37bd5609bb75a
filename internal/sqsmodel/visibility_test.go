package sqsmodel_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

const (
	gone    = "Reason: Message does not exist or is not available for visibility timeout change."
	expired = "Reason: The receipt handle has expired."
)

func TestVisibilityEndsOnTheDot(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "m")
		first := a.one(url)
		time.Sleep(30*time.Second - 1)
		a.bodies(a.receive(url))
		time.Sleep(time.Nanosecond)
		second := a.one(url)
		if *first.MessageId != *second.MessageId || *first.ReceiptHandle == *second.ReceiptHandle {
			t.Errorf("got %v after %v", second, first)
		}
		if second.Attributes["ApproximateReceiveCount"] != "2" ||
			second.Attributes["ApproximateFirstReceiveTimestamp"] != first.Attributes["ApproximateFirstReceiveTimestamp"] {
			t.Errorf("attributes %v after %v", second.Attributes, first.Attributes)
		}
		a.events(sqsmodel.Expired, 1)
	})
}

func TestVisibilityChangeCountsFromTheCall(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "m")
		m := a.one(url)
		time.Sleep(20 * time.Second)
		a.ok(a.change(url, m, 15)) // not 10 s left + 15
		time.Sleep(15*time.Second - 1)
		a.state(url, 0, 1, 0)
		time.Sleep(time.Nanosecond)
		a.state(url, 1, 0, 0)
		a.one(url) // the next receive has the queue's own 30 s again
		if d := time.Until(a.s.Queue(url).Messages[0].VisibleAt); d != 30*time.Second {
			t.Errorf("hidden for %v", d)
		}
	})
}

func TestChangeOfAnExpiredStandardMessage(t *testing.T) {
	story := func(mode sqsmodel.ExpiredVisibility, check func(a *account, url string, err error)) func(*testing.T) {
		return func(t *testing.T) {
			inBubble(t, sqsmodel.Config{ExpiredVisibility: mode}, func(a *account) {
				url := a.queue("work")
				a.send(url, "m")
				m := a.one(url)
				time.Sleep(30 * time.Second)
				check(a, url, a.change(url, m, 60))
			})
		}
	}
	t.Run("has no effect", story(sqsmodel.ExpiredVisibilityNoop, func(a *account, url string, err error) {
		a.ok(err)
		a.state(url, 1, 0, 0)
	}))
	t.Run("hides it again", story(sqsmodel.ExpiredVisibilityApplies, func(a *account, url string, err error) {
		a.ok(err)
		a.state(url, 0, 1, 0)
	}))
	t.Run("fails", story(sqsmodel.ExpiredVisibilityFails, func(a *account, url string, err error) {
		a.refused(err, "AWS.SimpleQueueService.MessageNotInflight", "")
		a.state(url, 1, 0, 0)
	}))
}

func TestStaleHandleReleasesTheNewerHolder(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "m")
		stale := a.one(url)
		time.Sleep(30 * time.Second)
		a.one(url)
		a.ok(a.change(url, stale, 0))
		a.state(url, 1, 0, 0)
		a.one(url)
		a.ok(a.change(url, stale, 500)) // and a stale heartbeat hides it for longer
		time.Sleep(499 * time.Second)
		a.state(url, 0, 1, 0)
	})
}

func TestDeleteOfAStandardMessage(t *testing.T) {
	t.Run("works after its visibility ended", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work")
			a.send(url, "m")
			m := a.one(url)
			time.Sleep(time.Minute)
			a.ok(a.delete(url, m))
			a.state(url, 0, 0, 0)
			a.ok(a.delete(url, m)) // twice
			a.refused(a.change(url, m, 30), "InvalidParameterValue", gone)
			a.events(sqsmodel.Deleted, 1)
		})
	})
	for mode, left := range map[sqsmodel.SupersededDelete]int{sqsmodel.SupersededDeleteNoop: 1, sqsmodel.SupersededDeleteApplies: 0} {
		t.Run("with a replaced handle is accepted", func(t *testing.T) {
			inBubble(t, sqsmodel.Config{SupersededDelete: mode}, func(a *account) {
				url := a.queue("work")
				a.send(url, "m")
				stale := a.one(url)
				time.Sleep(time.Minute)
				a.one(url)
				a.ok(a.delete(url, stale))
				a.state(url, 0, left, 0)
			})
		})
	}
}

func TestFIFOHandleDiesWithItsVisibility(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1")
		m := a.one(url)
		a.ok(a.change(url, m, 40))
		time.Sleep(39 * time.Second)
		a.ok(a.change(url, m, 40)) // extended in time: it lives on
		time.Sleep(40 * time.Second)
		a.refused(a.delete(url, m), "InvalidParameterValue", "Value "+*m.ReceiptHandle+" for parameter ReceiptHandle is invalid. "+expired)
		a.refused(a.change(url, m, 30), "InvalidParameterValue", gone)
		newer := a.one(url)
		a.refused(a.delete(url, m), "InvalidParameterValue", expired)
		a.refused(a.change(url, m, 0), "InvalidParameterValue", gone)
		a.ok(a.delete(url, newer))
		a.ok(a.delete(url, newer)) // twice
		a.refused(a.change(url, newer, 30), "InvalidParameterValue", gone)
	})
}

func TestLostHandleHasAnotherCodeInABatch(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "b/1")
		lost := a.receive(url)[0]
		time.Sleep(time.Minute)
		live := a.receive(url)[1]
		del, err := a.c.DeleteMessageBatch(a.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: []types.DeleteMessageBatchRequestEntry{
			{Id: aws.String("0"), ReceiptHandle: lost.ReceiptHandle},
			{Id: aws.String("1"), ReceiptHandle: aws.String("garbage")},
			{Id: aws.String("2"), ReceiptHandle: live.ReceiptHandle},
		}})
		a.ok(err)
		if len(del.Successful) != 1 || *del.Successful[0].Id != "2" || len(del.Failed) != 2 {
			t.Fatalf("got %+v", del)
		}
		if f := del.Failed[0]; *f.Id != "0" || *f.Code != "ReceiptHandleIsInvalid" || *f.Message != "The receipt handle has expired" || !f.SenderFault {
			t.Errorf("expired: %s %s", *f.Code, *f.Message)
		}
		if f := del.Failed[1]; *f.Code != "ReceiptHandleIsInvalid" || *f.Message != `The input receipt handle "garbage" is not a valid receipt handle.` {
			t.Errorf("garbage: %s %s", *f.Code, *f.Message)
		}
		cmv, err := a.c.ChangeMessageVisibilityBatch(a.Context(), &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: aws.String("0"), ReceiptHandle: lost.ReceiptHandle, VisibilityTimeout: 10},
			{Id: aws.String("1"), ReceiptHandle: live.ReceiptHandle, VisibilityTimeout: 10},
		}})
		a.ok(err)
		for _, f := range cmv.Failed {
			if *f.Code != "ReceiptHandleIsInvalid" || !f.SenderFault {
				t.Errorf("got %s %s", *f.Code, *f.Message)
			}
		}
		if len(cmv.Failed) != 2 {
			t.Errorf("got %+v", cmv)
		}
	})
}

func TestGarbageHandleIsInvalid(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, other := a.queue("work"), a.queue("other")
		a.send(other, "m")
		foreign := a.one(other)
		for _, h := range []string{"x", *foreign.ReceiptHandle, (*foreign.ReceiptHandle)[:35] + "!", "AQEB" + (*foreign.ReceiptHandle)[5:] + "A"} {
			m := types.Message{ReceiptHandle: &h}
			text := `The input receipt handle "` + h + `" is not a valid receipt handle.`
			err := a.delete(url, m)
			a.refused(err, "ReceiptHandleIsInvalid", text)
			a.status(err, 404)
			a.refused(a.change(url, m, 1), "ReceiptHandleIsInvalid", text)
		}
	})
}

func TestTwelveHourCeiling(t *testing.T) {
	const beyond = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "m")
		m := a.one(url, visibility(43200))
		time.Sleep(11 * time.Hour)
		a.ok(a.change(url, m, 3600))
		err := a.change(url, m, 3601)
		a.refused(err, "InvalidParameterValue", "Value 3601 for parameter VisibilityTimeout is invalid. Reason: "+beyond)
		a.status(err, 400)
		out, err := a.c.ChangeMessageVisibilityBatch(a.Context(), &sqs.ChangeMessageVisibilityBatchInput{
			QueueUrl: &url,
			Entries:  []types.ChangeMessageVisibilityBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 7200}},
		})
		a.ok(err)
		if f := out.Failed; len(f) != 1 || *f[0].Code != "InvalidParameterValue" || !f[0].SenderFault {
			t.Errorf("in a batch: %+v", f)
		}
		a.state(url, 0, 1, 0) // a refused change changes nothing
		time.Sleep(time.Hour)
		a.state(url, 1, 0, 0)
		a.refused(a.change(url, types.Message{ReceiptHandle: m.ReceiptHandle}, 43201), "InvalidParameterValue", "Must be between 0 and 43200, if provided.")
	})
}

func TestCeilingClock(t *testing.T) {
	const hold = 20 * time.Second
	extend := func(a *account, url string, m types.Message) error { return a.change(url, m, 16) }
	for name, tc := range map[string]struct {
		ceiling sqsmodel.Ceiling
		ok      bool // 16 s more at the second receive, 5 s after the first one
	}{
		"per receive":        {sqsmodel.CeilingPerReceive, true},
		"from the request":   {sqsmodel.CeilingFromRequest, true},
		"from first receive": {sqsmodel.CeilingFromFirstReceive, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, sqsmodel.Config{MaxHold: hold, Ceiling: tc.ceiling}, func(a *account) {
				url := a.queue("work")
				a.send(url, "m")
				a.one(url, visibility(5))
				time.Sleep(5 * time.Second)
				m := a.one(url, visibility(10))
				if err := extend(a, url, m); (err == nil) != tc.ok {
					t.Errorf("got %v", err)
				}
			})
		})
	}
	t.Run("a poll's wait counts only from the request", func(t *testing.T) {
		for ceiling, ok := range map[sqsmodel.Ceiling]bool{sqsmodel.CeilingPerReceive: true, sqsmodel.CeilingFromRequest: false} {
			inBubble(t, sqsmodel.Config{MaxHold: hold, Ceiling: ceiling}, func(a *account) {
				url := a.queue("work", "DelaySeconds", "10")
				a.send(url, "m")
				if err := extend(a, url, a.one(url, wait(20))); (err == nil) != ok {
					t.Errorf("%v: got %v", ceiling, err)
				}
			})
		}
	})
	t.Run("its text has the scaled limit", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{MaxHold: hold}, func(a *account) {
			url := a.queue("work")
			a.send(url, "m")
			a.refused(a.change(url, a.one(url), 21), "InvalidParameterValue", "beyond the limit [20 seconds]")
		})
	})
}

func TestVisibilityTimeoutIsRequiredInAChange(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		status, h, body := a.raw("ChangeMessageVisibility", `{"QueueUrl":"`+url+`","ReceiptHandle":"x"}`)
		if status != 400 || h.Get("x-amzn-query-error") != "MissingParameter;Sender" {
			t.Errorf("%d %v %s", status, h, body)
		}
	})
}
