package extended_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestOneUnreadablePayloadDoesntFailAReceive(t *testing.T) {
	type unreadable struct {
		send func(w *world, c *extended.Client)
		want error
	}
	each(t, map[string]unreadable{
		"missing": {func(w *world, c *extended.Client) { w.sendRaw(pointerTo(bucket, prefix+"none"), reserved(1)) }, extended.ErrMissing},
		"denied": {func(w *world, c *extended.Client) {
			w.s3.put(bucket, prefix+"x", "x")
			w.sendRaw(pointerTo(bucket, prefix+"x"), reserved(1))
			w.s3.fails(fault{op: "GetObject", key: prefix + "x", status: 403, code: "AccessDenied"})
		}, nil},
		"throttled": {func(w *world, c *extended.Client) {
			w.sendRaw(pointerTo(bucket, prefix+"x"), reserved(1))
			w.s3.fails(fault{op: "GetObject", key: prefix + "x", status: 503, code: "SlowDown"})
		}, nil},
		"foreign":   {func(w *world, c *extended.Client) { w.sendRaw(pointerTo(foreign, prefix+"x"), reserved(1)) }, extended.ErrForeign},
		"malformed": {func(w *world, c *extended.Client) { w.sendRaw(`["x"]`, reserved(1)) }, extended.ErrMalformed},
		"lies about its size": {func(w *world, c *extended.Client) {
			w.s3.put(bucket, prefix+"x", "xxx")
			w.sendRaw(pointerTo(bucket, prefix+"x"), reserved(1))
		}, extended.ErrSize},
		"above the cap": {func(w *world, c *extended.Client) { w.sendRaw(pointerTo(bucket, prefix+"x"), reserved(1<<40)) }, extended.ErrTooLarge},
	}, func(w *world, u unreadable) {
		var told []error
		c := w.client(extended.Config{OnUnreadable: func(_ context.Context, queueURL string, m types.Message, err error) {
			if queueURL != w.url || strings.Contains(*m.ReceiptHandle, "s3Key") {
				w.t.Errorf("told about %s, %s", queueURL, *m.ReceiptHandle)
			}
			told = append(told, err)
		}})
		good := []string{w.send(c, "small"), w.send(c, large(300_000))}
		u.send(w, c)
		good = append(good, w.send(c, large(300_001)))
		var ids []string
		for _, m := range w.receive(c) {
			ids = append(ids, *m.MessageId)
		}
		if !slices.Equal(ids, good) {
			w.t.Errorf("received %d messages, want the three good ones", len(ids))
		}
		if len(told) != 1 || u.want != nil && !errors.Is(told[0], u.want) || c.Stats().LeftOut != 1 {
			w.t.Errorf("told %v", told)
		}
		if w.left() != 4 || w.Queue(w.url).InFlight != 4 {
			w.t.Errorf("%d messages left, want all, until deleted or visible again", w.left())
		}
	})
}

func TestNoS3CallHappensForAForeignPlace(t *testing.T) {
	// On receive, on open and on delete, single and batch, with the client and in a worker.
	foreigners := map[string]extended.Pointer{
		"another bucket":         {Bucket: foreign, Key: prefix + "x"},
		"another prefix":         {Bucket: bucket, Key: "x"},
		"up and out":             {Bucket: bucket, Key: prefix + "../secrets/x"},
		"a dot":                  {Bucket: bucket, Key: prefix + "./x"},
		"the bucket's other way": {Bucket: "PAYLOADS", Key: prefix + "x"},
	}
	each(t, foreigners, func(w *world, at extended.Pointer) {
		for _, stream := range []bool{false, true} {
			c := w.client(extended.Config{Stream: stream})
			w.sendRaw(pointerTo(at.Bucket, at.Key), reserved(1))
			m := w.receiveRaw()
			if _, err := c.Open(context.Background(), &m); !errors.Is(err, extended.ErrForeign) {
				w.t.Errorf("opened: %v", err)
			}
			w.sendRaw(pointerTo(at.Bucket, at.Key), reserved(1))
			if got := w.receive(c); len(got) > 0 {
				w.t.Errorf("received %v", got)
			}
			handle := aws.String(extended.Embed(at, *m.ReceiptHandle))
			if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: handle}); err != nil {
				w.t.Errorf("delete: %v", err)
			}
			out, err := c.DeleteMessageBatch(context.Background(), &sqs.DeleteMessageBatchInput{QueueUrl: &w.url, Entries: []types.DeleteMessageBatchRequestEntry{{Id: aws.String("x"), ReceiptHandle: handle}}})
			if err != nil || len(out.Successful) != 1 {
				w.t.Errorf("delete: %v", err)
			}
			if w.CountEvents(sqsmodel.Deleted) == 0 {
				w.t.Error("the message itself wasn't deleted")
			}
		}
		if n := len(w.s3.called("")); n > 0 {
			w.t.Errorf("%d S3 calls", n)
		}
	})
}

func TestPlacesThatAreAllowedAreRead(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Allow: []extended.Location{{Bucket: foreign, KeyPrefix: "in/"}}})
		w.s3.put(foreign, "in/x", "x")
		w.sendRaw(pointerTo(foreign, "in/x"), reserved(1))
		got := w.receive(c)
		if len(got) != 1 || *got[0].Body != "x" {
			t.Fatalf("received %d", len(got))
		}
		if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: got[0].ReceiptHandle}); err != nil {
			t.Fatal(err)
		}
		if keys := w.s3.keys(foreign); len(keys) > 0 {
			t.Errorf("left: %v", keys)
		}
	})
}

func TestAnObjectIsRemovedOnlyAfterSQSConfirmedTheDeletion(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		for i := range 4 {
			w.send(c, large(300_000+i))
		}
		got := w.receive(c)
		entries := make([]types.DeleteMessageBatchRequestEntry, len(got))
		for i, m := range got {
			entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: m.ReceiptHandle}
		}
		objects := 4
		w.OnEvent(func(e sqsmodel.Event) {
			if e.Kind == sqsmodel.Deleted && len(w.s3.keys(bucket)) != objects {
				t.Error("an object went before its message")
			}
		})
		remove := w.Inject(sqsmodel.Fault{Action: "DeleteMessageBatch", FailEntries: func(_ sqsmodel.Call, i int, _, handle string) *sqsmodel.EntryError {
			if strings.Contains(handle, "s3Key") {
				t.Error("SQS got an embedded handle")
			}
			if i == 2 {
				return &sqsmodel.EntryError{Code: "InternalError"}
			}
			return nil
		}})
		out, err := c.DeleteMessageBatch(context.Background(), &sqs.DeleteMessageBatchInput{QueueUrl: &w.url, Entries: entries})
		if err != nil || len(out.Failed) != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		if keys := w.s3.keys(bucket); len(keys) != 1 || !strings.Contains(*got[2].ReceiptHandle, keys[0]) {
			t.Errorf("objects %v, want the one whose message is still there", keys)
		}
		if n := len(w.s3.called("DeleteObjects")); n != 1 {
			t.Errorf("%d DeleteObjects calls", n)
		}
		remove()
		objects = 1
		remove = w.Inject(sqsmodel.Fault{Action: "DeleteMessage", Code: "AccessDeniedException"})
		in := &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: got[2].ReceiptHandle}
		if _, err := c.DeleteMessage(context.Background(), in); err == nil || len(w.s3.keys(bucket)) != 1 {
			t.Errorf("%v; objects %v", err, w.s3.keys(bucket))
		}
		remove()
		if _, err := c.DeleteMessage(context.Background(), in); err != nil || len(w.s3.keys(bucket)) != 0 || w.left() != 0 {
			t.Errorf("%v; objects %v, %d messages", err, w.s3.keys(bucket), w.left())
		}
	})
}

func TestARemovalThatFailsIsCountedAndNotTheDeletions(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		w.s3.fails(fault{op: "DeleteObjects", status: 403, code: "AccessDenied"})
		if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: w.receive(c)[0].ReceiptHandle}); err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.RemoveFailures != 1 || w.left() != 0 || !strings.Contains(w.log.String(), "s3:DeleteObject") {
			t.Errorf("%+v\n%s", s, w.log)
		}
	})
}

func TestPayloadsAreKeptOnRequest(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{KeepPayloads: true})
		w.send(c, large(300_000))
		if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: w.receive(c)[0].ReceiptHandle}); err != nil {
			t.Error(err)
		}
		if w.left() != 0 || len(w.s3.keys(bucket)) != 1 {
			t.Errorf("%d messages, %d objects", w.left(), len(w.s3.keys(bucket)))
		}
	})
}

func TestVisibilityChangesSendTheRawHandle(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		handle := w.receive(c)[0].ReceiptHandle
		if _, err := c.ChangeMessageVisibility(context.Background(), &sqs.ChangeMessageVisibilityInput{QueueUrl: &w.url, ReceiptHandle: handle, VisibilityTimeout: 100}); err != nil {
			t.Fatal(err)
		}
		out, err := c.ChangeMessageVisibilityBatch(context.Background(), &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &w.url, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: aws.String("a"), ReceiptHandle: handle, VisibilityTimeout: 200},
		}})
		if err != nil || len(out.Successful) != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		for _, call := range w.Calls() {
			if len(call.ReceiptHandles) > 0 && strings.Contains(call.ReceiptHandles[0], "s3Key") {
				t.Errorf("%s sent an embedded handle", call.Action)
			}
		}
		if left := time.Until(w.Queue(w.url).Messages[0].VisibleAt); left != 200*time.Second {
			t.Errorf("visible in %v", left)
		}
	})
}

func TestAMissingObjectIsIgnoredOnlyOnRequestAndOnlyWhenCertain(t *testing.T) {
	type missing struct {
		fault fault
		left  int
	}
	each(t, map[string]missing{
		"missing":   {fault{}, 0},
		"denied":    {fault{op: "GetObject", status: 403, code: "AccessDenied"}, 1},
		"throttled": {fault{op: "GetObject", status: 503, code: "SlowDown"}, 1},
		"no bucket": {fault{op: "GetObject", status: 404, code: "NoSuchBucket"}, 1},
	}, func(w *world, m missing) {
		c := w.client(extended.Config{IgnoreMissing: true})
		w.sendRaw(pointerTo(bucket, prefix+"none"), reserved(1))
		if m.fault.op != "" {
			w.s3.fails(m.fault)
		}
		if got := w.receive(c); len(got) != 0 || w.left() != m.left {
			w.t.Errorf("received %d, %d left", len(got), w.left())
		}
	})
}

func TestFIFOOrderIsKeptWhenAPayloadCantBeHad(t *testing.T) {
	bubble(t, func(w *world) {
		w.url = w.MustCreateQueue("work.fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "10"})
		c := w.client(extended.Config{})
		send := func(group, body string) {
			in := w.input(body)
			in.MessageGroupId = &group
			if _, err := c.SendMessage(context.Background(), in); err != nil {
				t.Fatal(err)
			}
		}
		send("a", "a1")
		send("a", large(300_000))
		send("a", "a3")
		send("b", "b1")
		w.s3.fails(fault{op: "GetObject", status: 403, code: "AccessDenied"})
		var bodies []string
		for range 3 { // within the visibility, however often we ask
			for _, m := range w.receive(c) {
				if len(m.Attributes) > 0 {
					t.Errorf("attributes that weren't asked for: %v", m.Attributes)
				}
				bodies = append(bodies, *m.Body)
			}
		}
		slices.Sort(bodies)
		if !slices.Equal(bodies, []string{"a1", "b1"}) {
			t.Errorf("received %d", len(bodies))
		}
	})
}

func TestAReceivesPayloadsStayWithinTheBudget(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{MemoryBudget: 1 << 20})
		for range 5 {
			w.send(c, large(400_000))
		}
		if got := w.receive(c); len(got) != 2 {
			t.Errorf("received %d payloads of 400 kB into 1 MiB", len(got))
		}
		if q := w.Queue(w.url); q.Visible != 3 {
			t.Errorf("%d given back, want the three that had no room", q.Visible)
		}
		if got := w.receive(c); len(got) != 2 {
			t.Errorf("then received %d", len(got))
		}
		one := w.client(extended.Config{MemoryBudget: 1000})
		if got := w.receive(one); len(got) != 1 {
			t.Errorf("received %d into a budget below one payload", len(got))
		}
	})
}

func TestASlowPayloadIsGivenUpWhileItsMessageIsStillHeld(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, "small")
		w.send(c, large(300_000))
		w.s3.fails(fault{op: "GetObject", hold: time.Hour})
		began := time.Now()
		out, err := c.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &w.url, MaxNumberOfMessages: 10, VisibilityTimeout: 30})
		if took := time.Since(began); err != nil || len(out.Messages) != 1 || took != 10*time.Second {
			t.Errorf("%v, %d messages after %v", err, len(out.Messages), took)
		}
	})
}

func TestABodyThatBreaksOffIsAskedForAgain(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		w.s3.fails(fault{op: "GetObject", times: 1, cutAt: 100_000})
		if got := w.receive(c); len(got) != 1 || len(*got[0].Body) != 300_000 {
			t.Errorf("received %d", len(got))
		}
	})
}

func TestAPayloadThatWasGarbledIsNotReturned(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, large(300_000))
		w.s3.answersWith("AAAAAA==") // a CRC-32 that isn't this payload's
		if got := w.receive(c); len(got) != 0 || c.Stats().FetchFailures != 1 || !strings.Contains(w.log.String(), "checksum") {
			t.Errorf("received %d, %+v\n%s", len(got), c.Stats(), w.log)
		}
	})
}

func TestReservedAttributesAreAskedForAndTakenOut(t *testing.T) {
	each(t, map[string][]string{"none": nil, "some": {"a", "b.*"}, "all": {"All"}, "dot star": {".*"}}, func(w *world, names []string) {
		for _, form := range []extended.Form{extended.FormJava2, extended.FormExtendedPayloadSize} {
			c := w.client(extended.Config{AlwaysS3: true, Form: form})
			in := w.input("body")
			in.MessageAttributes = map[string]types.MessageAttributeValue{"a": text("v")}
			if _, err := c.SendMessage(context.Background(), in); err != nil {
				w.t.Fatal(err)
			}
			out, err := c.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &w.url, MessageAttributeNames: names})
			if err != nil || len(out.Messages) != 1 {
				w.t.Fatal(err)
			}
			m := out.Messages[0]
			if want := min(len(names), 1); *m.Body != "body" || len(m.MessageAttributes) != want || (m.MD5OfMessageAttributes != nil) != (want == 1) {
				w.t.Errorf("attributes %v", m.MessageAttributes)
			}
		}
	})
}

func TestMessagesReceivedForStreamingKeepTheirPointers(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Stream: true})
		w.send(c, large(300_000))
		w.send(c, "small")
		w.s3.forgetCalls()
		got := w.receive(c)
		if len(got) != 2 || len(w.s3.called("")) > 0 {
			t.Fatalf("received %d, %d S3 calls", len(got), len(w.s3.called("")))
		}
		for i, want := range []int{300_000, 5} {
			r, err := c.Open(context.Background(), &got[i])
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(r); err != nil || len(body) != want {
				t.Errorf("read %d, %v", len(body), err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: got[i].ReceiptHandle}); err != nil {
				t.Error(err)
			}
		}
		if w.left() > 0 || len(w.s3.keys(bucket)) > 0 || c.Stats().InMemory != 0 {
			t.Errorf("%d messages, %v, %+v", w.left(), w.s3.keys(bucket), c.Stats())
		}
	})
}

func TestACancelledReceiveReturnsWhatIsThere(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.send(c, "small")
		w.send(c, large(300_000))
		w.s3.fails(fault{op: "GetObject", hold: time.Hour})
		ctx, cancel := context.WithCancel(context.Background())
		go func() { synctest.Wait(); cancel() }()
		out, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &w.url, MaxNumberOfMessages: 10})
		if err != nil || len(out.Messages) != 1 {
			t.Errorf("%v", err)
		}
	})
}
