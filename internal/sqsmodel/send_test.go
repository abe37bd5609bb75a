package sqsmodel_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func str(v string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &v}
}

func (a *account) sendInput(in *sqs.SendMessageInput) error {
	_, err := a.c.SendMessage(a.Context(), in)
	return err
}

func TestBodyArrivesAsItWasSent(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		for _, body := range []string{
			"plain", `{"json": "with \"quotes\" and \\ backslashes"}`, "tab\tnewline\nreturn\r", "</script>&<>", "grüße 世界 🎉", "\u2028\u2029\x7f\ufffd",
		} {
			a.send(url, body)
			if m := a.one(url); *m.Body != body {
				t.Errorf("got %q, want %q", *m.Body, body)
			}
		}
	})
}

func TestCharactersOutsideTheSetAreRefused(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		for _, bad := range []string{"\x00", "\x08", "\x0b", "\x1f", "\ufffe", "\uffff"} {
			body := "a" + bad
			a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}), "InvalidMessageContents", "#x10000 to #x10FFFF")
		}
		out, err := a.c.SendMessageBatch(a.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("good"), MessageBody: aws.String("m")}, {Id: aws.String("bad"), MessageBody: aws.String("\x00")},
		}})
		a.ok(err)
		if len(out.Successful) != 1 || len(out.Failed) != 1 || *out.Failed[0].Id != "bad" || *out.Failed[0].Code != "InvalidMessageContents" {
			t.Errorf("in a batch only that entry fails: %+v", out)
		}
	})
}

func TestEmptyBodyIsAMissingParameter(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("")}), "MissingParameter", "The request must contain the parameter MessageBody.")
	})
}

func TestSizeCountsAttributesToo(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		const limit = 1_048_576
		url := a.queue("work")
		attrs := map[string]types.MessageAttributeValue{"name": str("value")} // 4 + 6 + 5
		fits := strings.Repeat("x", limit-15)
		trace := map[string]types.MessageSystemAttributeValue{"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1")}}
		a.ok(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: &fits, MessageAttributes: attrs, MessageSystemAttributes: trace}))
		over := fits + "x"
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: &over, MessageAttributes: attrs}),
			"InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.")
		small := a.queue("small", "MaximumMessageSize", "1024")
		body := strings.Repeat("x", 1025)
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &small, MessageBody: &body}), "InvalidParameterValue", "Message must be shorter than 1024 bytes.")
	})
}

func TestBatchRules(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		send := func(entries ...types.SendMessageBatchRequestEntry) error {
			_, err := a.c.SendMessageBatch(a.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
			return err
		}
		entry := func(id, body string) types.SendMessageBatchRequestEntry {
			return types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &body}
		}
		const ns = "AWS.SimpleQueueService."
		a.refused(send([]types.SendMessageBatchRequestEntry{}...), ns+"EmptyBatchRequest", "There should be at least one SendMessageBatchRequestEntry in the request.")
		var eleven []types.SendMessageBatchRequestEntry
		for i := range 11 {
			eleven = append(eleven, entry(fmt.Sprint(i), "m"))
		}
		a.refused(send(eleven...), ns+"TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent 11.")
		a.refused(send(entry("a", "m"), entry("a", "m")), ns+"BatchEntryIdsNotDistinct", "Id a repeated.")
		for _, id := range []string{"", "a:b", "a b", strings.Repeat("x", 81)} {
			a.refused(send(entry(id, "m")), ns+"InvalidBatchEntryId", "It can be at most 80 letters long.")
		}
		half := strings.Repeat("x", 1<<19)
		a.refused(send(entry("a", half), entry("b", half+"x")), ns+"BatchRequestTooLong", "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.")
		a.ok(send(entry("a", half), entry("b", half)))
		a.state(url, 2, 0, 0)
	})
}

func TestBatchRulesHoldForDeletesAndVisibilityChanges(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "m")
		h := a.one(url).ReceiptHandle
		_, err := a.c.DeleteMessageBatch(a.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: []types.DeleteMessageBatchRequestEntry{
			{Id: aws.String("a"), ReceiptHandle: h}, {Id: aws.String("a"), ReceiptHandle: h},
		}})
		a.refused(err, "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id a repeated.")
		_, err = a.c.ChangeMessageVisibilityBatch(a.Context(), &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{}})
		a.refused(err, "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one ChangeMessageVisibilityBatchRequestEntry in the request.")
		_, err = a.c.DeleteMessageBatch(a.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: []types.DeleteMessageBatchRequestEntry{
			{Id: aws.String("a"), ReceiptHandle: h}, {Id: aws.String("b"), ReceiptHandle: h},
		}})
		a.ok(err) // one handle twice is fine
	})
}

func TestDelay(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work", "DelaySeconds", "10")
		a.send(url, "queue's")
		a.ok(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("own"), DelaySeconds: 5}))
		if status, _, body := a.raw("SendMessage", `{"QueueUrl":"`+url+`","MessageBody":"none","DelaySeconds":0}`); status != 200 {
			t.Fatal(body)
		}
		a.state(url, 1, 0, 2)
		a.bodies(a.receive(url), "none")
		time.Sleep(5*time.Second - 1)
		a.bodies(a.receive(url))
		time.Sleep(time.Nanosecond)
		a.bodies(a.receive(url), "own")
		a.ok(a.set(url, "DelaySeconds", "100")) // not for what is there already
		time.Sleep(5 * time.Second)
		a.bodies(a.receive(url), "queue's")
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), DelaySeconds: 901}),
			"InvalidParameterValue", "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.")
	})
}

func TestAttributesArriveWithTheDigestThatAWSComputes(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		attrs := map[string]types.MessageAttributeValue{"General": str("Kenobi"), "Hello": str("There"), "Help.Me": str("Me")}
		out, err := a.c.SendMessage(a.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("msg"), MessageAttributes: attrs})
		a.ok(err)
		if *out.MD5OfMessageAttributes != "4c360f3fdafd970e05fae2f149d997f5" || *out.MD5OfMessageBody != "6e2baaf3b97dbeef01c0043275f9a0e7" {
			t.Errorf("sent: %s %s", *out.MD5OfMessageBody, *out.MD5OfMessageAttributes)
		}
		names := func(n ...string) receiveOption {
			return func(in *sqs.ReceiveMessageInput) { in.MessageAttributeNames = n }
		}
		for _, tc := range []struct { // digests as AWS answered them
			names receiveOption
			want  []string
			md5   string
		}{
			{names(), nil, ""},
			{names("All"), []string{"General", "Hello", "Help.Me"}, "4c360f3fdafd970e05fae2f149d997f5"},
			{names(".*"), []string{"General", "Hello", "Help.Me"}, "4c360f3fdafd970e05fae2f149d997f5"},
			{names("Foo", "Help"), nil, ""},
			{names("Hello", "General"), []string{"General", "Hello"}, "fca026605781cb4126a1e9044df24232"},
			{names("Foo", "Hello"), []string{"Hello"}, "a311262e065454b75da111d535b8dacd"},
			{names("Hel.*"), []string{"Hello", "Help.Me"}, "83fee93c1bcd8b9a5a923ffacdc636c7"},
		} {
			m := a.one(url, tc.names)
			want := map[string]types.MessageAttributeValue{}
			for _, n := range tc.want {
				want[n] = attrs[n]
			}
			ignore := cmpopts.IgnoreUnexported(types.MessageAttributeValue{})
			if d := cmp.Diff(want, m.MessageAttributes, ignore, cmpopts.EquateEmpty()); d != "" || aws.ToString(m.MD5OfMessageAttributes) != tc.md5 {
				t.Errorf("%v: md5 %s, diff %s", tc.want, aws.ToString(m.MD5OfMessageAttributes), d)
			}
			a.ok(a.change(url, m, 0))
		}
	})
}

func TestAttributeTypesAndTheirSuffixes(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		attrs := map[string]types.MessageAttributeValue{
			"s": {DataType: aws.String("String.uuid"), StringValue: aws.String("x")},
			"n": {DataType: aws.String("Number.int"), StringValue: aws.String("-1.5e3")},
			"b": {DataType: aws.String("Binary.png"), BinaryValue: []byte{0, 1, 255}},
		}
		a.ok(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), MessageAttributes: attrs}))
		if d := cmp.Diff(attrs, a.one(url).MessageAttributes, cmpopts.IgnoreUnexported(types.MessageAttributeValue{})); d != "" {
			t.Error(d)
		}
	})
}

func TestAttributeRules(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		eleven := map[string]types.MessageAttributeValue{}
		for i := range 11 {
			eleven[fmt.Sprint("n", i)] = str("v")
		}
		typed := func(dataType string, v types.MessageAttributeValue) map[string]types.MessageAttributeValue {
			v.DataType = &dataType
			return map[string]types.MessageAttributeValue{"n": v}
		}
		named := func(n string) map[string]types.MessageAttributeValue {
			return map[string]types.MessageAttributeValue{n: str("v")}
		}
		value := types.MessageAttributeValue{StringValue: aws.String("v")}
		for _, tc := range []struct {
			attrs map[string]types.MessageAttributeValue
			text  string
		}{
			{eleven, "Number of message attributes [11] exceeds the allowed maximum [10]."},
			{named("AWS.x"), "they cannot start or end with '.'."},
			{named("amazon.x"), "they cannot start or end with '.'."},
			{named(".x"), "they cannot start or end with '.'."},
			{named("x."), "they cannot start or end with '.'."},
			{named("x..y"), "hyphens and underscores. "},
			{named("x y"), "hyphens and underscores. "},
			{named(strings.Repeat("x", 257)), "must be shorter than 256 Bytes"},
			{named(""), "must be shorter than 256 Bytes"},
			{typed("", value), "Missing required parameter DataType"},
			{typed("Text", value), `must be prefixed with "String", "Binary", or "Number", but was: Text`},
			{typed("String", types.MessageAttributeValue{StringValue: aws.String("")}), "Message (user) attribute 'n' must contain a non-empty value of type 'String'."},
			{typed("String", types.MessageAttributeValue{StringValue: aws.String("\x01")}), "#x10000 to #x10FFFF"},
			{typed("Binary", value), "must contain a non-empty value of type 'Binary'."},
			{typed("Number", value), "Can't cast the value of message (user) attribute 'n' to a number."},
		} {
			err := a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), MessageAttributes: tc.attrs})
			a.refused(err, "InvalidParameterValue", tc.text)
		}
	})
}

func TestTraceHeaderIsAnAttributeOfEachMessageOrTheCalls(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		own := map[string]types.MessageSystemAttributeValue{"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1-own")}}
		out, err := a.c.SendMessage(a.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), MessageSystemAttributes: own})
		a.ok(err)
		if aws.ToString(out.MD5OfMessageSystemAttributes) == "" {
			t.Error("no MD5OfMessageSystemAttributes")
		}
		if got := a.one(url).Attributes["AWSTraceHeader"]; got != "Root=1-own" {
			t.Errorf("got %q", got)
		}
		req := newRequest(a, "SendMessage", `{"QueueUrl":"`+url+`","MessageBody":"m"}`)
		req.Header.Set("X-Amzn-Trace-Id", "Root=1-header")
		if _, err := a.s.Do(req); err != nil {
			t.Fatal(err)
		}
		if got := a.one(url).Attributes["AWSTraceHeader"]; got != "Root=1-header" {
			t.Errorf("got %q", got)
		}
		bad := map[string]types.MessageSystemAttributeValue{"SenderId": {DataType: aws.String("String"), StringValue: aws.String("me")}}
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), MessageSystemAttributes: bad}), "InvalidParameterValue", "")
	})
}

func TestSystemAttributesComeAsAsked(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		sentAt := time.Now()
		a.send(url, "m")
		time.Sleep(time.Second)
		m := a.one(url)
		want := map[string]string{
			"SenderId": "123456789012", "ApproximateReceiveCount": "1",
			"SentTimestamp":                    fmt.Sprint(sentAt.UnixMilli()),
			"ApproximateFirstReceiveTimestamp": fmt.Sprint(time.Now().UnixMilli()),
		}
		if d := cmp.Diff(want, m.Attributes); d != "" {
			t.Error(d)
		}
		a.ok(a.change(url, m, 0))
		m = a.one(url, func(in *sqs.ReceiveMessageInput) {
			in.MessageSystemAttributeNames = nil
			//lint:ignore SA1019 deprecated, and still answered
			in.AttributeNames = []types.QueueAttributeName{"ApproximateReceiveCount"}
		})
		if d := cmp.Diff(map[string]string{"ApproximateReceiveCount": "2"}, m.Attributes); d != "" {
			t.Error(d)
		}
		a.ok(a.change(url, m, 0))
		m = a.one(url, func(in *sqs.ReceiveMessageInput) { in.MessageSystemAttributeNames = nil })
		if len(m.Attributes) != 0 {
			t.Errorf("unasked: %v", m.Attributes)
		}
	})
}

func TestFairQueueGroupIsReturnedAndOrdersNothing(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		for _, body := range []string{"1", "2"} {
			a.ok(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageGroupId: aws.String("tenant")}))
		}
		if m := a.one(url); m.Attributes["MessageGroupId"] != "tenant" {
			t.Errorf("got %v", m.Attributes)
		}
		a.bodies(a.receive(url), "2") // though the first is in flight
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), MessageGroupId: aws.String("a b")}),
			"InvalidParameterValue", "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.")
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("m"), MessageDeduplicationId: aws.String("x")}),
			"InvalidParameterValue", "The request includes a parameter that is not valid for this queue type.")
	})
}
