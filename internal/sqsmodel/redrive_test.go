package sqsmodel_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestMessageIsDeadLetteredByTheReceiveAfterTheLastOneAllowed(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.withDLQ("work", 2)
		a.ok(a.sendInput(&sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: aws.String("bad"),
			MessageAttributes: map[string]types.MessageAttributeValue{"n": str("v")},
			MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
				"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1")},
			},
		}))
		id := a.s.Queue(url).Messages[0].ID
		for range 2 {
			a.one(url)
			time.Sleep(30 * time.Second)
		}
		a.send(url, "good")
		a.state(url, 2, 0, 0) // expired twice, and still here
		a.bodies(a.receive(url), "good")
		a.state(dlq, 1, 0, 0)
		m := a.one(dlq)
		if *m.MessageId != id || m.Attributes["ApproximateReceiveCount"] != "3" || m.Attributes["DeadLetterQueueSourceArn"] != arn("work") ||
			m.Attributes["AWSTraceHeader"] != "Root=1" || *m.MessageAttributes["n"].StringValue != "v" {
			t.Errorf("got %v %v", *m.MessageId, m.Attributes)
		}
		a.events(sqsmodel.DeadLettered, 1)
	})
}

func TestReceivesCountThoughNobodySawTheMessage(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.withDLQ("work", 1)
		a.send(url, "m")
		a.s.Inject(sqsmodel.Fault{Action: "ReceiveMessage", Times: 1, DropAfter: true})
		if _, err := a.tryReceive(a.Context(), url); err == nil {
			t.Fatal("no error")
		}
		time.Sleep(30 * time.Second)
		a.bodies(a.receive(url))
		a.state(dlq, 1, 0, 0)
	})
}

func TestStandardDLQKeepsTheAgeAndFIFORestartsIt(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		std, stdDLQ := a.withDLQ("work", 1)
		fifo, fifoDLQ := a.withDLQ("work.fifo", 1)
		for _, q := range []string{stdDLQ, fifoDLQ} {
			a.ok(a.set(q, "MessageRetentionPeriod", "600"))
		}
		a.send(std, "m")
		a.sendGroup(fifo, "a/1")
		a.one(std)
		a.one(fifo)
		time.Sleep(5 * time.Minute)
		a.bodies(a.receive(std))
		a.bodies(a.receive(fifo))
		a.state(stdDLQ, 1, 0, 0)
		a.state(fifoDLQ, 1, 0, 0)
		time.Sleep(5 * time.Minute)
		a.state(stdDLQ, 0, 0, 0)
		a.state(fifoDLQ, 1, 0, 0)
	})
}

func TestFIFODeadLetterHasItsMessageIDAsDeduplicationID(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.withDLQ("work.fifo", 1)
		a.sendGroup(url, "a/1", "a/2")
		got := a.receive(url, atMost(1))
		a.ok(a.change(url, got[0], 0))
		a.bodies(a.receive(url), "a/2") // the successor follows in the same call
		m := a.one(dlq)
		if m.Attributes["MessageDeduplicationId"] != *m.MessageId || m.Attributes["MessageGroupId"] != "a" {
			t.Errorf("got %v", m.Attributes)
		}
	})
}

func TestDeadLetterEndsALongPollOnItsQueue(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.withDLQ("work", 1)
		a.send(url, "m")
		a.one(url, visibility(4))
		time.AfterFunc(6*time.Second, func() { a.receive(url) })
		start := time.Now()
		a.bodies(a.receive(dlq, wait(20)), "m")
		if d := time.Since(start); d != 6*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestPolicyWhoseTargetIsGoneDoesNothing(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.withDLQ("work", 1)
		a.send(url, "m")
		_, err := a.c.DeleteQueue(a.Context(), &sqs.DeleteQueueInput{QueueUrl: &dlq})
		a.ok(err)
		for range 3 {
			a.one(url)
			time.Sleep(30 * time.Second)
		}
	})
}

func TestPoliciesInACircleEnd(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		x, y := a.queue("x"), a.queue("y")
		a.ok(a.set(x, "RedrivePolicy", redrive("y", 1)))
		a.ok(a.set(y, "RedrivePolicy", redrive("x", 1)))
		a.send(x, "m")
		a.ok(a.change(x, a.one(x), 0))
		go func() { _, _ = a.tryReceive(a.Context(), y, wait(20)) }()
		time.Sleep(time.Second)
		a.receive(x, wait(5)) // comes back, or not: the model only must not hang
	})
}

func TestRedrivePolicyRules(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		a.queue("dlq")
		a.queue("dlq.fifo")
		url := a.queue("work")
		for policy, text := range map[string]string{
			`{"deadLetterTargetArn":"dummy","maxReceiveCount":42}`: "Value {\"deadLetterTargetArn\":\"dummy\",\"maxReceiveCount\":42} for parameter RedrivePolicy is invalid. Reason: Invalid value for deadLetterTargetArn.",
			redrive("missing", 1):   "Reason: Dead letter target does not exist.",
			redrive("dlq", 0):       "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive.",
			redrive("dlq", 1001):    "Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive.",
			redrive("dlq.fifo", 1):  "Dead-letter queue must be same type of queue as the source.",
			redrive("work", 1):      "Dead letter target cannot be the source queue itself.",
			`{"maxReceiveCount":3}`: "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
			`nonsense`:              "Redrive policy is not a valid JSON map.",
		} {
			a.refused(a.set(url, "RedrivePolicy", policy), "InvalidParameterValue", text)
		}
		a.ok(a.set(url, "RedrivePolicy", `{"deadLetterTargetArn":"`+arn("dlq")+`","maxReceiveCount":"3"}`)) // a string is fine
		a.ok(a.set(url, "RedrivePolicy", ""))
		a.send(url, "m")
		for range 5 {
			a.ok(a.change(url, a.one(url), 0))
		}
	})
}

func TestRedriveAllowPolicy(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		dlq, url, other := a.queue("dlq"), a.queue("work"), a.queue("other")
		a.ok(a.set(dlq, "RedriveAllowPolicy", `{"redrivePermission":"denyAll"}`))
		a.refused(a.set(url, "RedrivePolicy", redrive("dlq", 1)), "InvalidParameterValue", "Redrive permission to the dead-letter queue denied.")
		a.ok(a.set(dlq, "RedriveAllowPolicy", `{"redrivePermission":"byQueue","sourceQueueArns":["`+arn("work")+`"]}`))
		a.ok(a.set(url, "RedrivePolicy", redrive("dlq", 1)))
		a.refused(a.set(other, "RedrivePolicy", redrive("dlq", 1)), "InvalidParameterValue", "denied.")
		a.ok(a.set(dlq, "RedriveAllowPolicy", `{"redrivePermission":"allowAll"}`))
		a.ok(a.set(other, "RedrivePolicy", redrive("dlq", 1)))
		a.refused(a.set(dlq, "RedriveAllowPolicy", `{"redrivePermission":"byQueue"}`), "InvalidParameterValue", "you must also specify one or more sourceQueueArns values.")
		a.refused(a.set(dlq, "RedriveAllowPolicy", `{"redrivePermission":"allowAll","sourceQueueArns":["x"]}`), "InvalidParameterValue", "you must set redrivePermission to byQueue.")
		out, err := a.c.ListDeadLetterSourceQueues(a.Context(), &sqs.ListDeadLetterSourceQueuesInput{QueueUrl: &dlq})
		a.ok(err)
		if len(out.QueueUrls) != 2 || out.QueueUrls[0] != other || out.QueueUrls[1] != url {
			t.Errorf("sources %v", out.QueueUrls)
		}
	})
}

func TestAnyRedrivePolicyIsTakenAndMovesNothing(t *testing.T) {
	for name, target := range map[string]string{
		"missing": arn("nowhere"), "another type": arn("dead.fifo"),
		"another account": "arn:aws:sqs:us-east-1:210987654321:dead", "another Region": "arn:aws:sqs:eu-west-1:123456789012:dead",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, sqsmodel.Config{AnyRedrivePolicy: true}, func(a *account) {
				a.queue("dead")
				a.queue("dead.fifo")
				url := a.queue("work", "RedrivePolicy", `{"deadLetterTargetArn":"`+target+`","maxReceiveCount":1}`)
				a.send(url, "m")
				for range 3 {
					a.bodies(a.receive(url), "m")
					time.Sleep(30 * time.Second)
				}
				a.events(sqsmodel.DeadLettered, 0)
			})
		})
	}
}
