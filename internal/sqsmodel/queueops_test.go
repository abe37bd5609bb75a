package sqsmodel_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func (a *account) create(name string, attrs map[string]string) error {
	_, err := a.c.CreateQueue(a.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: attrs})
	return err
}

func (a *account) attributes(url string, names ...types.QueueAttributeName) map[string]string {
	a.Helper()
	out, err := a.c.GetQueueAttributes(a.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names})
	a.ok(err)
	return out.Attributes
}

func TestCreateQueueIsIdempotentWithTheSameAttributes(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work", "DelaySeconds", "1")
		if url != "https://sqs.us-east-1.amazonaws.com/123456789012/work" {
			t.Error(url)
		}
		a.ok(a.create("work", map[string]string{"DelaySeconds": "1", "VisibilityTimeout": "30"}))
		a.ok(a.create("work", nil))
		err := a.create("work", map[string]string{"DelaySeconds": "2"})
		a.refused(err, "QueueAlreadyExists", "A queue already exists with the same name and a different value for attribute DelaySeconds")
	})
}

func TestQueueNames(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		fifo := map[string]string{"FifoQueue": "true"}
		const rule = "1 to 80 in length"
		a.ok(a.create(strings.Repeat("x", 80), nil))
		a.ok(a.create("Aa-_9", nil))
		a.ok(a.create("aa-_9", nil)) // case matters
		for _, name := range []string{strings.Repeat("x", 81), "a b", "a.b", "ü", "a/b", "a.fifo"} {
			a.refused(a.create(name, nil), "InvalidParameterValue", rule)
		}
		a.ok(a.create(strings.Repeat("x", 75)+".fifo", fifo))
		a.refused(a.create(strings.Repeat("x", 76)+".fifo", fifo), "InvalidParameterValue", rule)
		a.refused(a.create(".fifo", fifo), "InvalidParameterValue", rule)
		a.refused(a.create("a", fifo), "InvalidParameterValue", "must end with .fifo suffix and be 1 to 80 in length.")
		a.refused(a.create("", nil), "MissingParameter", "The request must contain the parameter QueueName.")
	})
}

func TestAttributeBounds(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		std, fifo := a.queue("work"), a.queue("work.fifo")
		for name, values := range map[string]struct{ good, bad []string }{
			"DelaySeconds":                  {[]string{"0", "900"}, []string{"-1", "901", "x"}},
			"MaximumMessageSize":            {[]string{"1024", "1048576"}, []string{"1023", "1048577"}},
			"MessageRetentionPeriod":        {[]string{"60", "1209600"}, []string{"59", "1209601"}},
			"ReceiveMessageWaitTimeSeconds": {[]string{"0", "20"}, []string{"-1", "21"}},
			"VisibilityTimeout":             {[]string{"0", "43200"}, []string{"-1", "43201", ""}},
			"KmsDataKeyReusePeriodSeconds":  {[]string{"60", "86400"}, []string{"59", "86401"}},
			"SqsManagedSseEnabled":          {[]string{"true", "false"}, []string{"maybe"}},
		} {
			for _, v := range values.good {
				a.ok(a.set(std, name, v))
				if got := a.attributes(std, types.QueueAttributeName(name))[name]; got != v && name != "KmsDataKeyReusePeriodSeconds" {
					t.Errorf("%s is %q, want %q", name, got, v)
				}
			}
			for _, v := range values.bad {
				a.refused(a.set(std, name, v), "InvalidAttributeValue", "Invalid value for the parameter "+name+".")
			}
		}
		a.refused(a.set(std, "Colour", "red"), "InvalidAttributeName", "Unknown Attribute Colour.")
		a.refused(a.set(std, "QueueArn", "x"), "InvalidAttributeName", "Unknown Attribute QueueArn.")
		a.refused(a.set(std, "FifoQueue", "true"), "InvalidAttributeName", "Unknown Attribute FifoQueue.")
		a.refused(a.set(std, "DeduplicationScope", "queue"), "InvalidAttributeName", "You can specify the DeduplicationScope only when FifoQueue is set to true.")
		a.refused(a.set(fifo, "FifoQueue", "false"), "InvalidAttributeValue", "Reason: Modifying queue type is not supported.")
		a.refused(a.set(fifo, "FifoThroughputLimit", "perMessageGroupId"), "InvalidParameterValue", "only when DeduplicationScope is messageGroup.")
		_, err := a.c.GetQueueAttributes(a.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &std, AttributeNames: []types.QueueAttributeName{"Colour"}})
		a.refused(err, "InvalidAttributeName", "Unknown Attribute Colour.")
	})
}

func TestAllAttributesOfAFreshQueue(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		now := fmt.Sprint(time.Now().Unix())
		want := map[string]string{
			"QueueArn": arn("work.fifo"), "ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0",
			"ApproximateNumberOfMessagesDelayed": "0", "CreatedTimestamp": now, "LastModifiedTimestamp": now, "DelaySeconds": "0",
			"VisibilityTimeout": "30", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600",
			"ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "true", "FifoQueue": "true",
			"ContentBasedDeduplication": "false", "DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue",
		}
		url := a.queue("work.fifo")
		if d := cmp.Diff(want, a.attributes(url, "All")); d != "" {
			t.Error(d)
		}
		if got := a.attributes(url); len(got) != 0 {
			t.Errorf("unasked: %v", got)
		}
		time.Sleep(time.Minute)
		a.ok(a.set(url, "VisibilityTimeout", "31"))
		if got := a.attributes(url, "LastModifiedTimestamp", "CreatedTimestamp"); got["LastModifiedTimestamp"] == now || got["CreatedTimestamp"] != now {
			t.Errorf("got %v", got)
		}
	})
}

func TestApproximateCounts(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "1", "2", "3")
		a.ok(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("4"), DelaySeconds: 10}))
		a.receive(url, atMost(2))
		got := a.attributes(url, "All")
		if got["ApproximateNumberOfMessages"] != "1" || got["ApproximateNumberOfMessagesNotVisible"] != "2" || got["ApproximateNumberOfMessagesDelayed"] != "1" {
			t.Errorf("got %v", got)
		}
	})
}

func TestOneKindOfEncryptionAtATime(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work", "KmsMasterKeyId", "testKeyId", "KmsDataKeyReusePeriodSeconds", "6000")
		want := map[string]string{"KmsMasterKeyId": "testKeyId", "KmsDataKeyReusePeriodSeconds": "6000", "SqsManagedSseEnabled": "false"}
		if d := cmp.Diff(want, a.attributes(url, "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")); d != "" {
			t.Error(d)
		}
		a.refused(a.set(url, "SqsManagedSseEnabled", "true"), "InvalidAttributeName", "You can either enable KMS SSE or SQS SSE.")
	})
}

func TestDeletedQueue(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "m")
		_, err := a.c.DeleteQueue(a.Context(), &sqs.DeleteQueueInput{QueueUrl: &url})
		a.ok(err)
		_, err = a.tryReceive(a.Context(), url)
		a.refused(err, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
		time.Sleep(time.Minute - 1)
		a.refused(a.create("work", nil), "AWS.SimpleQueueService.QueueDeletedRecently",
			"You must wait 60 seconds after deleting a queue before you can create another with the same name.")
		time.Sleep(time.Nanosecond)
		a.ok(a.create("work", nil))
		a.state(url, 0, 0, 0)
	})
}

func TestPurge(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		purge := func() error {
			_, err := a.c.PurgeQueue(a.Context(), &sqs.PurgeQueueInput{QueueUrl: &url})
			return err
		}
		a.send(url, "1", "2", "3")
		m := a.one(url)
		a.ok(purge())
		a.state(url, 0, 0, 0)
		a.events(sqsmodel.Purged, 3)
		a.ok(a.delete(url, m))
		err := purge()
		a.refused(err, "AWS.SimpleQueueService.PurgeQueueInProgress", "Only one PurgeQueue operation on work is allowed every 60 seconds.")
		a.status(err, 403)
		time.Sleep(time.Minute)
		a.ok(purge())
	})
}

func TestListQueuesByPage(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		for _, n := range []string{"b2", "a1", "b1", "b3"} {
			a.queue(n)
		}
		var got []string
		pages := sqs.NewListQueuesPaginator(a.c, &sqs.ListQueuesInput{QueueNamePrefix: aws.String("b"), MaxResults: aws.Int32(2)})
		for n := 0; pages.HasMorePages(); n++ {
			out, err := pages.NextPage(a.Context())
			a.ok(err)
			for _, u := range out.QueueUrls {
				got = append(got, fmt.Sprint(n, u[len(u)-2:]))
			}
		}
		if d := cmp.Diff([]string{"0b1", "0b2", "1b3"}, got); d != "" {
			t.Error(d)
		}
		out, err := a.c.ListQueues(a.Context(), &sqs.ListQueuesInput{})
		a.ok(err)
		if len(out.QueueUrls) != 4 || out.NextToken != nil {
			t.Errorf("got %v", out)
		}
		_, err = a.c.ListQueues(a.Context(), &sqs.ListQueuesInput{MaxResults: aws.Int32(1001)})
		a.refused(err, "InvalidParameterValue", "")
	})
}

func TestQueueURL(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		out, err := a.c.GetQueueUrl(a.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("work")})
		a.ok(err)
		if *out.QueueUrl != url {
			t.Error(*out.QueueUrl)
		}
		_, err = a.c.GetQueueUrl(a.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("missing")})
		a.refused(err, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
		a.send("http://127.0.0.1:4566/123456789012/work", "any host will do")
		for bad, code := range map[string]string{
			"https://sqs.eu-west-1.amazonaws.com/123456789012/work": "InvalidAddress", // another Region's
			"work":                        "InvalidAddress",
			"https://x":                   "InvalidAddress",
			"https://x/210987654321/work": "AWS.SimpleQueueService.NonExistentQueue",
		} {
			err := a.sendInput(&sqs.SendMessageInput{QueueUrl: &bad, MessageBody: aws.String("m")})
			a.refused(err, code, "")
		}
		status, h, _ := a.raw("SendMessage", `{"MessageBody":"m"}`)
		if status != 400 || h.Get("x-amzn-query-error") != "MissingParameter;Sender" {
			t.Error(status, h)
		}
	})
}

func TestTags(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		out, err := a.c.CreateQueue(a.Context(), &sqs.CreateQueueInput{QueueName: aws.String("work"), Tags: map[string]string{"a": "1"}})
		a.ok(err)
		url := out.QueueUrl
		_, err = a.c.TagQueue(a.Context(), &sqs.TagQueueInput{QueueUrl: url, Tags: map[string]string{"b": "2", "c": ""}})
		a.ok(err)
		_, err = a.c.UntagQueue(a.Context(), &sqs.UntagQueueInput{QueueUrl: url, TagKeys: []string{"a"}})
		a.ok(err)
		got, err := a.c.ListQueueTags(a.Context(), &sqs.ListQueueTagsInput{QueueUrl: url})
		a.ok(err)
		if d := cmp.Diff(map[string]string{"b": "2", "c": ""}, got.Tags); d != "" {
			t.Error(d)
		}
	})
}

func TestPermissions(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		add := func(label, action string) error {
			_, err := a.c.AddPermission(a.Context(), &sqs.AddPermissionInput{QueueUrl: &url, Label: &label, AWSAccountIds: []string{"111111111111"}, Actions: []string{action}})
			return err
		}
		remove := func(label string) error {
			_, err := a.c.RemovePermission(a.Context(), &sqs.RemovePermissionInput{QueueUrl: &url, Label: &label})
			return err
		}
		a.ok(add("first", "ReceiveMessage"))
		a.refused(add("first", "ReceiveMessage"), "InvalidParameterValue", "Value first for parameter Label is invalid. Reason: Already exists.")
		a.refused(add("other", "Dance"), "InvalidParameterValue", "")
		var policy struct {
			Statement []struct {
				Sid, Effect, Action, Resource string
				Principal                     struct{ AWS string }
			}
		}
		a.ok(json.Unmarshal([]byte(a.attributes(url, "Policy")["Policy"]), &policy))
		if st := policy.Statement; len(st) != 1 || st[0].Sid != "first" || st[0].Action != "SQS:ReceiveMessage" || st[0].Principal.AWS != "arn:aws:iam::111111111111:root" {
			t.Errorf("got %+v", st)
		}
		a.ok(remove("first"))
		a.refused(remove("first"), "InvalidParameterValue", "Value first for parameter Label is invalid. Reason: can't find label.")
		if got := a.attributes(url, "Policy"); len(got) != 0 {
			t.Errorf("got %v", got)
		}
	})
}
