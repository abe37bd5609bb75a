package extended_test

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func (w *world) input(body string) *sqs.SendMessageInput {
	return &sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: &body}
}

func TestAMessageGoesThroughS3OnlyAboveTheThreshold(t *testing.T) {
	attribute := map[string]types.MessageAttributeValue{"name": text("value")}
	const counted = len("name") + len("String") + len("value")
	type sizes struct {
		threshold, body int
		attributes      map[string]types.MessageAttributeValue
		throughS3       bool
	}
	each(t, map[string]sizes{
		"at the default":                {0, 262_144, nil, false},
		"above the default":             {0, 262_145, nil, true},
		"attributes at the default":     {0, 262_144 - counted, attribute, false},
		"attributes above the default":  {0, 262_144 - counted + 1, attribute, true},
		"at a higher one":               {1_048_576, 1_048_576, nil, false},
		"above the highest":             {1_048_576, 1_048_577, nil, true},
		"at the queue's":                {extended.QueueLimit, 65_536, nil, false},
		"above the queue's":             {extended.QueueLimit, 65_537, nil, true},
		"attributes above the queue's":  {extended.QueueLimit, 65_536 - counted + 1, attribute, true},
		"a small one, but all go to S3": {-2, 1, nil, true},
	}, func(w *world, c sizes) {
		w.url = w.MustCreateQueue("sized", map[string]string{"MaximumMessageSize": "1048576"})
		if c.threshold == extended.QueueLimit {
			w.url = w.MustCreateQueue("limited", map[string]string{"MaximumMessageSize": "65536"})
		}
		cfg := extended.Config{Threshold: c.threshold}
		if c.threshold == -2 {
			cfg = extended.Config{AlwaysS3: true}
		}
		client := w.client(cfg)
		body := large(c.body)
		in := w.input(body)
		in.MessageAttributes = c.attributes
		out, err := client.SendMessage(context.Background(), in)
		if err != nil {
			w.t.Fatal(err)
		}
		if got := len(w.s3.keys(bucket)) == 1; got != c.throughS3 {
			w.t.Errorf("through S3: %v", got)
		}
		if sum := md5.Sum([]byte(body)); *out.MD5OfMessageBody != hex.EncodeToString(sum[:]) {
			w.t.Error("the answer's digest isn't the body's")
		}
		got := w.receive(client)
		if len(got) != 1 || *got[0].Body != body || len(got[0].MessageAttributes) != len(c.attributes) || *got[0].MD5OfBody != *out.MD5OfMessageBody ||
			aws.ToString(got[0].MD5OfMessageAttributes) != aws.ToString(out.MD5OfMessageAttributes) {
			w.t.Errorf("received %d messages", len(got))
		}
	})
}

func TestDigestsAreTheOnesSQSWouldGive(t *testing.T) {
	bubble(t, func(w *world) {
		attributes := map[string]types.MessageAttributeValue{
			"b": text("text"), "a": number(1), "c.x": {DataType: aws.String("Binary.gzip"), BinaryValue: []byte{0, 1, 2}},
		}
		plain, err := w.Client().SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: aws.String("body"), MessageAttributes: attributes})
		if err != nil {
			t.Fatal(err)
		}
		c := w.client(extended.Config{AlwaysS3: true})
		in := w.input("body")
		in.MessageAttributes = attributes
		out, err := c.SendMessage(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		batch, err := c.SendMessageBatch(context.Background(), &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: []types.SendMessageBatchRequestEntry{{Id: aws.String("x"), MessageBody: in.MessageBody, MessageAttributes: attributes}}})
		if err != nil || len(batch.Successful) != 1 {
			t.Fatal(err, batch)
		}
		for _, sums := range [][2]*string{{out.MD5OfMessageBody, out.MD5OfMessageAttributes}, {batch.Successful[0].MD5OfMessageBody, batch.Successful[0].MD5OfMessageAttributes}} {
			if *sums[0] != *plain.MD5OfMessageBody || *sums[1] != *plain.MD5OfMessageAttributes {
				t.Errorf("digests %s %s, SQS has %s %s", *sums[0], *sums[1], *plain.MD5OfMessageBody, *plain.MD5OfMessageAttributes)
			}
		}
	})
}

func TestObjectsAreStoredAsConfigured(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{
			KMSKeyID: "alias/k", BucketKey: true, StorageClass: s3types.StorageClassStandardIa, ExpectedBucketOwner: "123456789012",
			Tags: map[string]string{"team": "a&b", "x y": "ü"},
		})
		w.send(c, large(300_000))
		if _, err := c.Send(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url}, strings.NewReader(large(12<<20))); err != nil {
			t.Fatal(err)
		}
		for _, op := range []string{"PutObject", "CreateMultipartUpload"} {
			h := w.s3.called(op)[0].header
			tags, _ := url.ParseQuery(h.Get("X-Amz-Tagging"))
			if h.Get("X-Amz-Server-Side-Encryption") != "aws:kms" || h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "alias/k" ||
				h.Get("X-Amz-Server-Side-Encryption-Bucket-Key-Enabled") != "true" ||
				h.Get("X-Amz-Storage-Class") != "STANDARD_IA" || tags.Get("team") != "a&b" || tags.Get("x y") != "ü" {
				t.Errorf("%s: %v", op, h)
			}
		}
		for _, m := range w.receive(c) {
			if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: m.ReceiptHandle}); err != nil {
				t.Fatal(err)
			}
		}
		for _, call := range w.s3.called("") {
			if call.header.Get("X-Amz-Expected-Bucket-Owner") != "123456789012" {
				t.Errorf("%s names no bucket owner", call.op)
			}
		}
		for _, key := range w.s3.keys(bucket) {
			if !strings.HasPrefix(key, prefix) {
				t.Errorf("key %s", key)
			}
		}
	})
}

func TestWhatSQSWouldRefuseIsRefusedBeforeAnyCall(t *testing.T) {
	many := func(n int) map[string]types.MessageAttributeValue {
		all := map[string]types.MessageAttributeValue{}
		for i := range n {
			all[fmt.Sprint("a", i)] = text("v")
		}
		return all
	}
	one := func(name string, v types.MessageAttributeValue) map[string]types.MessageAttributeValue {
		return map[string]types.MessageAttributeValue{name: v}
	}
	type refused struct {
		in   sqs.SendMessageInput
		fifo bool
		want []string
	}
	body := aws.String("body")
	big := aws.String(large(300_000))
	each(t, map[string]refused{
		"no body":              {in: sqs.SendMessageInput{}, want: []string{"body is empty"}},
		"eleven attributes":    {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: many(11)}, want: []string{"11 attributes", "at most 10"}},
		"ten and the reserved": {in: sqs.SendMessageInput{MessageBody: big, MessageAttributes: many(10)}, want: []string{"10 attributes", "at most 9"}},
		"reserved":             {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("ExtendedPayloadSize", number(1))}, want: []string{"reserved"}},
		"aws name":             {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("aWs.x", number(1))}, want: []string{"AWS."}},
		"dots":                 {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a..b", number(1))}, want: []string{"period"}},
		"name characters":      {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a/b", number(1))}, want: []string{"a-z A-Z 0-9"}},
		"empty value":          {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a", text(""))}, want: []string{"empty"}},
		"empty binary":         {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a", types.MessageAttributeValue{DataType: aws.String("Binary")})}, want: []string{"empty"}},
		"no type":              {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a", types.MessageAttributeValue{StringValue: body})}, want: []string{"data type"}},
		"value characters":     {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a", text("\x00"))}, want: []string{"character"}},
		"control character":    {in: sqs.SendMessageInput{MessageBody: aws.String("ab\x01")}, want: []string{"byte 2", "refuses"}},
		"not UTF-8":            {in: sqs.SendMessageInput{MessageBody: aws.String("a\xff")}, want: []string{"byte 1"}},
		"U+FFFE":               {in: sqs.SendMessageInput{MessageBody: aws.String("\uFFFE")}, want: []string{"byte 0"}},
		"long delay":           {in: sqs.SendMessageInput{MessageBody: body, DelaySeconds: 901}, want: []string{"901", "EventBridge Scheduler"}},
		"negative delay":       {in: sqs.SendMessageInput{MessageBody: body, DelaySeconds: -1}, want: []string{"-1"}},
		"delay on FIFO":        {in: sqs.SendMessageInput{MessageBody: body, DelaySeconds: 5}, fifo: true, want: []string{"FIFO"}},
		"all at once":          {in: sqs.SendMessageInput{MessageBody: aws.String("\x00"), DelaySeconds: 901, MessageAttributes: one(".a", text(""))}, want: []string{"refuses", "EventBridge", "period", "empty"}},
		"attributes alone":     {in: sqs.SendMessageInput{MessageBody: body, MessageAttributes: one("a", text(large(1_048_576)))}, want: []string{"attributes and pointer", "1048576"}},
	}, func(w *world, c refused) {
		if c.fifo {
			w.url = w.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true"})
		}
		client := w.client(extended.Config{})
		c.in.QueueUrl = &w.url
		_, err := client.SendMessage(context.Background(), &c.in)
		if !errors.Is(err, extended.ErrInvalid) && !errors.Is(err, extended.ErrTooLarge) {
			w.t.Fatalf("%v", err)
		}
		batch, batchErr := client.SendMessageBatch(context.Background(), &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("x"), MessageBody: c.in.MessageBody, MessageAttributes: c.in.MessageAttributes, DelaySeconds: c.in.DelaySeconds},
		}})
		if batchErr != nil || len(batch.Failed) != 1 || !batch.Failed[0].SenderFault || *batch.Failed[0].Code != "InvalidMessage" {
			w.t.Fatalf("batch: %v, %v", batch, batchErr)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) || !strings.Contains(*batch.Failed[0].Message, want) {
				w.t.Errorf("%q isn't in %q, %q", want, err, *batch.Failed[0].Message)
			}
		}
		if n := w.Count("") + int64(len(w.s3.called(""))); n > 0 {
			w.t.Errorf("%d calls", n)
		}
	})
}

func TestABatchIsCheckedAsAWhole(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		for name, entries := range map[string][]types.SendMessageBatchRequestEntry{
			"empty": {}, "eleven": w.entries(slices.Repeat([]string{"b"}, 11)...),
			"same ids": append(w.entries("a"), w.entries("b")...), "id": {{Id: aws.String("a b"), MessageBody: aws.String("b")}}, "no id": {{MessageBody: aws.String("b")}},
		} {
			if _, err := c.SendMessageBatch(context.Background(), &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: entries}); !errors.Is(err, extended.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := w.Count(""); n > 0 {
			t.Errorf("%d calls", n)
		}
	})
}

func (w *world) entries(bodies ...string) (entries []types.SendMessageBatchRequestEntry) {
	for i, b := range bodies {
		entries = append(entries, types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: aws.String(b)})
	}
	return entries
}

func (w *world) sendBatch(c *extended.Client, entries []types.SendMessageBatchRequestEntry) *sqs.SendMessageBatchOutput {
	w.t.Helper()
	out, err := c.SendMessageBatch(context.Background(), &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: entries})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestABatchAboveTheLimitSendsItsLargestThroughS3(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{BatchLimit: 262_144})
		out := w.sendBatch(c, w.entries(large(90_000), large(200_000), large(200_000), "small"))
		if len(out.Successful) != 4 || w.Count("SendMessageBatch") != 1 {
			t.Fatalf("%+v in %d calls", out, w.Count("SendMessageBatch"))
		}
		if n := len(w.s3.keys(bucket)); n != 2 {
			t.Errorf("%d objects, want the two that don't fit", n)
		}
		sizes := map[int]int{}
		for _, m := range w.receive(c) {
			sizes[len(*m.Body)]++
		}
		if sizes[200_000] != 2 || sizes[90_000] != 1 || sizes[5] != 1 {
			t.Errorf("received %v", sizes)
		}
	})
}

func TestABatchsAttributesAndOurOwnCount(t *testing.T) {
	// Each entry is exactly its share of the limit; one byte more, and one of them goes through S3. Those that go add the
	// reserved attribute and a pointer.
	bubble(t, func(w *world) {
		c := w.client(extended.Config{BatchLimit: 10_000})
		entry := func(id string, n int) types.SendMessageBatchRequestEntry {
			return types.SendMessageBatchRequestEntry{Id: &id, MessageBody: aws.String(large(n - len("aStringv"))), MessageAttributes: map[string]types.MessageAttributeValue{"a": text("v")}}
		}
		w.sendBatch(c, []types.SendMessageBatchRequestEntry{entry("0", 5000), entry("1", 5000)})
		if n := len(w.s3.keys(bucket)); n != 0 {
			t.Errorf("%d objects for a batch that fits", n)
		}
		w.sendBatch(c, []types.SendMessageBatchRequestEntry{entry("0", 5000), entry("1", 5001)})
		if n := len(w.s3.keys(bucket)); n != 1 {
			t.Errorf("%d objects for a batch that is one byte too large", n)
		}
	})
}

func TestABatchAtSQSsOwnLimitIsTaken(t *testing.T) {
	// Pointers, attributes and all: nothing that we send is refused by SQS.
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Threshold: extended.MaxMessage})
		for over := range 3 {
			var bodies []string
			for i := range 10 {
				bodies = append(bodies, large(104_857+over*i*97))
			}
			entries := w.entries(bodies...)
			for i := range entries {
				entries[i].MessageAttributes = map[string]types.MessageAttributeValue{"n": number(i)}
			}
			if out := w.sendBatch(c, entries); len(out.Successful) != 10 {
				t.Fatalf("%+v", out.Failed)
			}
		}
	})
}

func TestABatchIsSplitOnRequest(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{BatchLimit: 262_144, Fit: extended.FitSplit})
		out := w.sendBatch(c, w.entries(large(200_000), large(200_000), large(300_000), large(60_000)))
		if len(out.Successful) != 4 || w.Count("SendMessageBatch") != 2 {
			t.Errorf("%d sent in %d calls", len(out.Successful), w.Count("SendMessageBatch"))
		}
		if n := len(w.s3.keys(bucket)); n != 1 {
			t.Errorf("%d objects, want only the one above the threshold", n)
		}
		w.ResetCounts()
		w.Inject(sqsmodel.Fault{Action: "SendMessageBatch", Skip: 1, Code: "AccessDeniedException"})
		out = w.sendBatch(c, w.entries(large(200_000), large(200_000), large(300_000)))
		if len(out.Successful) != 1 || len(out.Failed) != 2 || out.Failed[0].SenderFault {
			t.Errorf("%d sent, failed %+v", len(out.Successful), out.Failed)
		}
		if n := len(w.s3.keys(bucket)); n != 1 {
			t.Errorf("%d objects, want the refused one's removed", n)
		}
	})
}

func TestABatchOfLargeAttributesIsSplitWhateverWasAsked(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Threshold: extended.MaxMessage})
		entries := w.entries("a", "b", "c")
		for i := range entries {
			entries[i].MessageAttributes = map[string]types.MessageAttributeValue{"big": text(large(250_000)), "more": text(large(250_000))}
		}
		if out := w.sendBatch(c, entries); len(out.Successful) != 3 || w.Count("SendMessageBatch") != 2 {
			t.Errorf("%+v in %d calls", out, w.Count("SendMessageBatch"))
		}
		if n := len(w.s3.keys(bucket)); n > 0 {
			t.Errorf("%d objects, for bodies that are smaller than a pointer", n)
		}
	})
}

func TestOneEntrysTroubleIsItsOwn(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.s3.fails(fault{op: "PutObject", times: 1, status: 403, code: "AccessDenied"})
		out := w.sendBatch(c, w.entries("good", large(300_000), "bad\x00", "good too"))
		if len(out.Successful) != 2 || len(out.Failed) != 2 {
			t.Fatalf("%+v", out)
		}
		codes := []string{*out.Failed[0].Code, *out.Failed[1].Code}
		slices.Sort(codes)
		if !slices.Equal(codes, []string{"InvalidMessage", "PayloadNotStored"}) || w.left() != 2 {
			t.Errorf("codes %v, %d messages", codes, w.left())
		}
	})
}

func TestARefusedMessageLosesItsObject(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"denied":    {Code: "AccessDeniedException"},
		"throttled": {Code: "RequestThrottled"},
		"no queue":  {Code: "QueueDoesNotExist"},
	}, func(w *world, f sqsmodel.Fault) {
		c := w.client(extended.Config{})
		w.Inject(f)
		_, err := c.SendMessage(context.Background(), w.input(large(300_000)))
		var api smithy.APIError
		if !errors.As(err, &api) {
			w.t.Fatalf("%v", err)
		}
		if _, err := c.SendMessageBatch(context.Background(), &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: w.entries(large(300_000), large(400_000))}); !errors.As(err, &api) {
			w.t.Fatalf("%v", err)
		}
		if _, err := c.Send(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url}, strings.NewReader(large(6<<20))); !errors.As(err, &api) {
			w.t.Fatalf("%v", err)
		}
		if keys := w.s3.keys(bucket); len(keys) > 0 {
			w.t.Errorf("objects left: %v", keys)
		}
		if s := c.Stats(); s.Stored != 4 || s.Compensated != 4 || s.Orphans != 0 {
			w.t.Errorf("%+v", s)
		}
	})
}

func TestAMessageThatSQSMayHaveTakenKeepsItsObject(t *testing.T) {
	each(t, map[string][]sqsmodel.Fault{
		"the answer was lost":                      {{DropAfter: true}},
		"SQS failed inside":                        {{Code: "InternalFailure"}},
		"the answer was lost, the retry throttled": {{DropAfter: true, Times: 1}, {Code: "RequestThrottled"}},
		"the answer was lost, the retry denied":    {{DropAfter: true, Times: 1}, {Code: "AccessDeniedException"}},
	}, func(w *world, faults []sqsmodel.Fault) {
		c := w.client(extended.Config{})
		for i, f := range faults {
			f.Skip = i
			w.Inject(f)
		}
		_, err := c.SendMessage(context.Background(), w.input(large(300_000)))
		var orphan *extended.OrphanError
		if !errors.As(err, &orphan) || !errors.Is(err, extended.ErrUncertain) || orphan.Bucket != bucket {
			w.t.Fatalf("%v", err)
		}
		if keys := w.s3.keys(bucket); len(keys) != 1 || keys[0] != orphan.Key {
			w.t.Errorf("objects: %v", keys)
		}
		if s := c.Stats(); s.Compensated != 0 || s.Orphans != 1 {
			w.t.Errorf("%+v", s)
		}
	})
}

func TestOnlyEntriesThatSQSRefusedLoseTheirObjects(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.Inject(sqsmodel.Fault{Action: "SendMessageBatch", FailEntries: func(_ sqsmodel.Call, i int, _, _ string) *sqsmodel.EntryError {
			return []*sqsmodel.EntryError{nil, {Code: "InvalidMessageContents", SenderFault: true}, {Code: "InternalError", ApplyAnyway: true}}[i]
		}})
		out := w.sendBatch(c, w.entries(large(300_000), large(300_001), large(300_002)))
		if len(out.Successful) != 1 || len(out.Failed) != 2 {
			t.Fatalf("%+v", out)
		}
		got := w.receive(c)
		if s := c.Stats(); len(got) != 2 || s.Compensated != 1 || s.Orphans != 1 || len(w.s3.keys(bucket)) != 2 {
			t.Errorf("received %d, %d objects, %+v", len(got), len(w.s3.keys(bucket)), s)
		}
	})
}

func TestAnObjectThatCantBeTakenBackIsReported(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.Inject(sqsmodel.Fault{Code: "AccessDeniedException"})
		w.s3.fails(fault{op: "DeleteObject", status: 403, code: "AccessDenied"})
		_, err := c.SendMessage(context.Background(), w.input(large(300_000)))
		var orphan *extended.OrphanError
		if !errors.As(err, &orphan) || errors.Is(err, extended.ErrUncertain) || !strings.Contains(w.log.String(), orphan.Key) {
			t.Errorf("%v\nlog: %s", err, w.log)
		}
	})
}

func TestACancelledSendLeavesNoObject(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		ctx, cancel := context.WithCancel(context.Background())
		go func() { synctest.Wait(); cancel() }()
		w.s3.fails(fault{op: "PutObject", key: "/", times: 1, hold: 1 << 40})
		_, err := c.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: w.entries(large(300_000), large(300_000), "small")})
		if !errors.Is(err, context.Canceled) || len(w.s3.keys(bucket)) > 0 || w.left() > 0 {
			t.Errorf("%v; %d objects, %d messages", err, len(w.s3.keys(bucket)), w.left())
		}
	})
}

func TestAPutWhoseAnswerWasLostIsTakenBack(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.s3.fails(fault{op: "PutObject", lose: true})
		_, err := c.SendMessage(context.Background(), w.input(large(300_000)))
		var payload *extended.PayloadError
		if !errors.As(err, &payload) || payload.Op != "put" || len(w.s3.keys(bucket)) > 0 || w.left() > 0 {
			t.Errorf("%v; objects %v, %d messages", err, w.s3.keys(bucket), w.left())
		}
	})
}

func TestFIFODeduplicationGoesByThePayload(t *testing.T) {
	bubble(t, func(w *world) {
		w.url = w.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
		c := w.client(extended.Config{})
		body := large(300_000)
		in := w.input(body)
		in.MessageGroupId = aws.String("g")
		first, err := c.SendMessage(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.SendMessage(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		entry := w.entries(body, large(300_001))
		entry[0].MessageGroupId, entry[1].MessageGroupId = aws.String("g"), aws.String("g")
		batch := w.sendBatch(c, entry)
		stream, err := c.Send(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url, MessageGroupId: aws.String("g")}, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if *again.MessageId != *first.MessageId || *batch.Successful[0].MessageId != *first.MessageId || *stream.MessageId != *first.MessageId || w.Queue(w.url).Visible != 2 {
			t.Errorf("%d messages", w.Queue(w.url).Visible)
		}
		sum := sha256.Sum256([]byte(body))
		if id := w.Queue(w.url).Messages[0].DeduplicationID; id != hex.EncodeToString(sum[:]) {
			t.Errorf("deduplication id %s", id)
		}
		in.MessageDeduplicationId = aws.String("mine")
		if own, err := c.SendMessage(context.Background(), in); err != nil || *own.MessageId == *first.MessageId {
			t.Errorf("the caller's own id wasn't used: %v", err)
		}
	})
}

func TestTheCallersInputIsNotChanged(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{AlwaysS3: true})
		in := w.input("body")
		in.MessageAttributes = map[string]types.MessageAttributeValue{"a": text("v")}
		batch := &sqs.SendMessageBatchInput{QueueUrl: &w.url, Entries: w.entries("body")}
		batch.Entries[0].MessageAttributes = in.MessageAttributes
		receive := &sqs.ReceiveMessageInput{QueueUrl: &w.url, MessageAttributeNames: make([]string, 0, 10), MaxNumberOfMessages: 10}
		if _, err := c.SendMessage(context.Background(), in); err != nil {
			t.Fatal(err)
		}
		w.sendBatch(c, batch.Entries)
		out, err := c.ReceiveMessage(context.Background(), receive)
		if err != nil || len(out.Messages) != 2 {
			t.Fatal(err)
		}
		del := &sqs.DeleteMessageBatchInput{QueueUrl: &w.url, Entries: []types.DeleteMessageBatchRequestEntry{{Id: aws.String("a"), ReceiptHandle: out.Messages[0].ReceiptHandle}}}
		handle := *out.Messages[0].ReceiptHandle
		if _, err := c.DeleteMessageBatch(context.Background(), del); err != nil {
			t.Fatal(err)
		}
		if *in.MessageBody != "body" || len(in.MessageAttributes) != 1 || *batch.Entries[0].MessageBody != "body" ||
			len(receive.MessageAttributeNames) != 0 || *del.Entries[0].ReceiptHandle != handle {
			t.Error("an input was changed")
		}
	})
}

func TestAQueueThatDoesntTellItsLimitIsTakenToBeSmall(t *testing.T) {
	bubble(t, func(w *world) {
		remove := w.Inject(sqsmodel.Fault{Action: "GetQueueAttributes", Code: "AccessDeniedException"})
		c := w.client(extended.Config{Threshold: extended.QueueLimit})
		w.send(c, large(262_145))
		w.send(c, large(262_144))
		if n := len(w.s3.keys(bucket)); n != 1 || w.Count("GetQueueAttributes") != 1 {
			t.Errorf("%d objects, asked %d times", n, w.Count("GetQueueAttributes"))
		}
		remove()
	})
}
