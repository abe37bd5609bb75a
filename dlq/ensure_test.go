package dlq_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// settings of a queue, as SQS tells them.
func (w *world) settings(url string) map[string]string {
	w.t.Helper()
	out, err := w.client.GetQueueAttributes(context.Background(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{"All"}})
	w.ok(err)
	return out.Attributes
}

func (w *world) ensure(s dlq.Spec) *dlq.Ensured {
	w.t.Helper()
	e, err := dlq.Ensure(context.Background(), w.client, s)
	w.ok(err)
	return e
}

// writes are the calls that change queues.
func (w *world) writes() int64 { return w.Count("CreateQueue") + w.Count("SetQueueAttributes") }

func TestEnsureCreatesAQueueAboutWhichAnAuditHasNothingToSay(t *testing.T) {
	for _, name := range []string{"orders", "orders.fifo"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				e := w.ensure(dlq.Spec{Name: name, Tags: map[string]string{"team": "billing"}})
				deadName := "orders-dlq" + strings.TrimPrefix(name, "orders")
				dead, source := w.settings(e.DeadLetterQueueURL), w.settings(e.QueueURL)
				if source["RedrivePolicy"] != policy(deadName, 5) || source["ReceiveMessageWaitTimeSeconds"] != "20" ||
					dead["MessageRetentionPeriod"] != "1209600" || dead["ReceiveMessageWaitTimeSeconds"] != "20" ||
					dead["RedriveAllowPolicy"] != `{"redrivePermission":"byQueue","sourceQueueArns":["`+arn(name)+`"]}` {
					t.Errorf("made %v and %v", source, dead)
				}
				found := w.audit(e.QueueURL, dlq.AuditConfig{})
				if found.Worst() > dlq.Info {
					t.Errorf("found %v", found)
				}
				writes := w.writes()
				if again := w.ensure(dlq.Spec{Name: name}); len(again.Changes) != 0 || w.writes() != writes {
					t.Errorf("the second time: %v, %d writes", again.Changes, w.writes()-writes)
				}
			})
		})
	}
}

// A dry run tells exactly what the real one then does.
func TestADryRunShowsTheDifferenceAndMakesNone(t *testing.T) {
	each(t, map[string]func(w *world){
		"nothing there":         func(w *world) {},
		"queue without a DLQ":   func(w *world) { w.queue("orders") },
		"DLQ without the queue": func(w *world) { w.queue("orders-dlq") },
		"both, set up badly": func(w *world) {
			w.queue("other-dlq", "RedriveAllowPolicy", `{"redrivePermission":"allowAll"}`)
			w.queue("orders", "RedrivePolicy", policy("other-dlq", 1))
		},
	}, func(w *world, before func(*world)) {
		before(w)
		dry := w.ensure(dlq.Spec{Name: "orders", DryRun: true})
		if w.writes() != 0 || len(dry.Changes) == 0 {
			w.t.Fatalf("%d writes, %v", w.writes(), dry.Changes)
		}
		real := w.ensure(dlq.Spec{Name: "orders"})
		for i, c := range real.Changes {
			if i >= len(dry.Changes) {
				w.t.Errorf("not announced: %v", c)
				continue
			}
			if d := dry.Changes[i]; d != c && !strings.Contains(d.To, "(ARN of") {
				w.t.Errorf("announced %v, made %v", d, c)
			}
			if c.String() == "" {
				w.t.Error("no text")
			}
		}
		if len(w.ensure(dlq.Spec{Name: "orders", DryRun: true}).Changes) != 0 {
			w.t.Error("something is left to change")
		}
	})
}

func TestEnsureRepairsWhatHurtsAndLeavesWhatSomebodyChose(t *testing.T) {
	bubble(t, func(w *world) {
		// Another name, a count of 8, 10 s polls, 7 days in the source: all fine. The DLQ's 4 days, its 0 s polls and its open policy aren't.
		dead := w.queue("failures")
		other := w.queue("returns", "RedrivePolicy", policy("failures", 3))
		source := w.queue("orders", "RedrivePolicy", policy("failures", 8), "ReceiveMessageWaitTimeSeconds", "10", "MessageRetentionPeriod", "604800", "VisibilityTimeout", "77")
		e := w.ensure(dlq.Spec{Name: "orders"})
		changed := map[string]bool{}
		for _, c := range e.Changes {
			changed[c.Queue+" "+c.Attribute] = true
		}
		if len(changed) != 3 || !changed["failures MessageRetentionPeriod"] || !changed["failures ReceiveMessageWaitTimeSeconds"] || !changed["failures RedriveAllowPolicy"] {
			t.Errorf("changed %v", e.Changes)
		}
		if s := w.settings(source); s["RedrivePolicy"] != policy("failures", 8) || s["ReceiveMessageWaitTimeSeconds"] != "10" || s["MessageRetentionPeriod"] != "604800" || s["VisibilityTimeout"] != "77" {
			t.Errorf("%v", s)
		}
		if got := w.settings(dead)["RedriveAllowPolicy"]; !strings.Contains(got, arn("orders")) || !strings.Contains(got, arn("returns")) {
			t.Errorf("the other source lost its permission: %s", got)
		}
		_ = other
		w.ensure(dlq.Spec{Name: "orders", MaxReceiveCount: 4, Wait: 15 * time.Second, Retention: 24 * time.Hour, Visibility: time.Minute, DeadLetterRetention: 7 * 24 * time.Hour,
			Attributes: attributes("MaximumMessageSize", "4096")})
		if s := w.settings(source); s["RedrivePolicy"] != policy("failures", 4) || s["ReceiveMessageWaitTimeSeconds"] != "15" || s["MessageRetentionPeriod"] != "86400" || s["VisibilityTimeout"] != "60" || s["MaximumMessageSize"] != "4096" {
			t.Errorf("asked for, not made: %v", s)
		}
		if s := w.settings(dead); s["MessageRetentionPeriod"] != "604800" {
			t.Errorf("asked for, not made: %v", s)
		}
	})
}

func TestEnsureRepairsAPolicyThatNamesADeletedOrForbiddingQueue(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		_, err := w.client.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: &dead})
		w.ok(err)
		_, err = dlq.Ensure(context.Background(), w.client, dlq.Spec{Name: "work"})
		if err == nil || !strings.Contains(err.Error(), "60 s") {
			t.Errorf("a name that is still taken: %v", err)
		}
		time.Sleep(time.Minute)
		w.ensure(dlq.Spec{Name: "work"})
		_, err = w.client.SetQueueAttributes(context.Background(), &sqs.SetQueueAttributesInput{QueueUrl: &dead, Attributes: attributes("RedriveAllowPolicy", `{"redrivePermission":"denyAll"}`)})
		w.ok(err)
		w.ensure(dlq.Spec{Name: "work"})
		if found := w.audit(source, dlq.AuditConfig{}); found.Worst() > dlq.Info {
			t.Errorf("found %v", found)
		}
	})
}

// Half-way through, at every call: done again it comes to the same end.
func TestEnsureThatBrokeOffIsFinishedByTheNext(t *testing.T) {
	for calls := range 12 {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			bubble(t, func(w *world) {
				remove := w.Inject(sqsmodel.Fault{Skip: calls, Code: "AccessDeniedException"})
				_, err := dlq.Ensure(context.Background(), w.client, dlq.Spec{Name: "orders"})
				broke := err != nil
				remove()
				e := w.ensure(dlq.Spec{Name: "orders"})
				if found := w.audit(e.QueueURL, dlq.AuditConfig{}); found.Worst() > dlq.Info {
					t.Errorf("broke off: %v; found %v", broke, found)
				}
			})
		})
	}
}

func TestADeadLetterQueueOfElevenQueuesStaysOpenToAll(t *testing.T) {
	bubble(t, func(w *world) {
		w.queue("dead", "MessageRetentionPeriod", "1209600")
		for i := range 11 {
			w.queue(fmt.Sprintf("work-%d", i), "RedrivePolicy", policy("dead", 5))
		}
		e := w.ensure(dlq.Spec{Name: "work-0"})
		if len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "11 queues") || w.settings(e.DeadLetterQueueURL)["RedriveAllowPolicy"] != "" {
			t.Errorf("%+v", e)
		}
	})
}

func TestARetentionThatNoDeadLetterQueueCanExceedIsNoted(t *testing.T) {
	bubble(t, func(w *world) {
		if e := w.ensure(dlq.Spec{Name: "orders", Retention: 14 * 24 * time.Hour}); len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "lower Spec.Retention") {
			t.Errorf("%+v", e)
		}
	})
}

func TestBadSpecNamesEveryField(t *testing.T) {
	_, err := dlq.Ensure(context.Background(), nil, dlq.Spec{
		Name: "a b", DeadLetterQueue: "x.fifo", MaxReceiveCount: 1001, DeadLetterRetention: time.Second, Retention: 15 * 24 * time.Hour,
		Wait: 21 * time.Second, Visibility: 13 * time.Hour, Attributes: attributes("RedrivePolicy", "x"),
	})
	for _, word := range []string{"client", "Name is", "DeadLetterQueue is", "MaxReceiveCount is 1001", "DeadLetterRetention is 1s", "Retention is 360h", "Wait is 21s", "Visibility is 13h", "Attributes is RedrivePolicy"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v doesn't say %q", err, word)
		}
	}
}
