package dlq_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// audit returns what an auditor finds.
func (w *world) audit(url string, cfg dlq.AuditConfig) dlq.Findings {
	w.t.Helper()
	a, err := dlq.NewAuditor(w.client, cfg)
	w.ok(err)
	found, err := a.Audit(context.Background(), url)
	w.ok(err)
	return found
}

// mustFind: these findings, each once, and no others; each says what is so and what to do.
func mustFind(t *testing.T, found dlq.Findings, want ...dlq.Code) {
	t.Helper()
	left := map[dlq.Code]int{}
	for _, code := range want {
		left[code]++
	}
	for i, f := range found {
		left[f.Code]--
		if f.Seen == "" || f.Advice == "" || f.Queue == "" || f.Severity < dlq.Info {
			t.Errorf("incomplete: %+v", f)
		}
		if i > 0 && f.Severity > found[i-1].Severity {
			t.Error("the worst isn't first")
		}
	}
	for code, n := range left {
		if n != 0 {
			t.Errorf("finding %s is missing %d times (negative: too many) in %v", code, n, found)
		}
	}
}

func TestNothingIsFoundAboutAQueueThatIsSetUpWell(t *testing.T) {
	bubble(t, func(w *world) {
		source, _ := w.pair()
		found, err := dlq.Audit(context.Background(), w.client, source)
		w.ok(err)
		mustFind(t, found)
		if found.Worst() != 0 {
			t.Error(found.Worst())
		}
	})
}

// Each finding, with its condition made at the server.
func TestEachSettingThatWillHurtIsFound(t *testing.T) {
	type setting struct {
		make     func(w *world) (url string)
		cfg      dlq.AuditConfig
		want     []dlq.Code
		severity dlq.Severity
		seen     string
	}
	dead := func(w *world, pairs ...string) {
		w.queue("dead", append([]string{"MessageRetentionPeriod", "1209600"}, pairs...)...)
	}
	work := func(w *world, pairs ...string) string {
		return w.queue("work", append([]string{"ReceiveMessageWaitTimeSeconds", "20"}, pairs...)...)
	}
	with := func(n int) func(w *world) string {
		return func(w *world) string {
			dead(w)
			return work(w, "RedrivePolicy", policy("dead", n))
		}
	}
	each(t, map[string]setting{
		"no redrive policy": {
			make: func(w *world) string { return work(w) }, want: []dlq.Code{dlq.NoRedrivePolicy}, severity: dlq.Warning, seen: "comes back until it expires",
		},
		"it is itself a dead-letter queue": {
			make: func(w *world) string { _, dead := w.pair(); return dead }, want: []dlq.Code{dlq.IsDeadLetterQueue}, severity: dlq.Info, seen: "work",
		},
		"maxReceiveCount 1":  {make: with(1), want: []dlq.Code{dlq.MaxReceiveCountOne}, severity: dlq.Critical, seen: "is 1"},
		"maxReceiveCount 2":  {make: with(2), want: []dlq.Code{dlq.MaxReceiveCountLow}, severity: dlq.Warning, seen: "is 2"},
		"maxReceiveCount 3":  {make: with(3)},
		"maxReceiveCount 10": {make: with(10)},
		"maxReceiveCount 11": {make: with(11), want: []dlq.Code{dlq.MaxReceiveCountHigh}, severity: dlq.Warning, seen: "is 11"},
		"maxReceiveCount left": {make: func(w *world) string {
			dead(w)
			return work(w, "RedrivePolicy", `{"deadLetterTargetArn":"`+arn("dead")+`"}`)
		}},
		"maxReceiveCount text": {make: func(w *world) string {
			dead(w)
			return work(w, "RedrivePolicy", `{"deadLetterTargetArn":"`+arn("dead")+`","maxReceiveCount":"1"}`)
		}, want: []dlq.Code{dlq.MaxReceiveCountOne}, severity: dlq.Critical},
		"the dead-letter queue was deleted": {
			make: func(w *world) string {
				source, dead := w.pair()
				_, err := w.client.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: &dead})
				w.ok(err)
				return source
			}, want: []dlq.Code{dlq.Missing}, severity: dlq.Critical, seen: arn("dead"),
		},
		"the allow policy was changed to deny all": {
			make: func(w *world) string {
				source, dead := w.pair()
				_, err := w.client.SetQueueAttributes(context.Background(), &sqs.SetQueueAttributesInput{QueueUrl: &dead, Attributes: attributes("RedriveAllowPolicy", `{"redrivePermission":"denyAll"}`)})
				w.ok(err)
				return source
			}, want: []dlq.Code{dlq.RedriveDenied}, severity: dlq.Critical, seen: "denyAll",
		},
		"the allow policy lists others": {
			make: func(w *world) string {
				source, dead := w.pair()
				_, err := w.client.SetQueueAttributes(context.Background(), &sqs.SetQueueAttributesInput{QueueUrl: &dead, Attributes: attributes("RedriveAllowPolicy", `{"redrivePermission":"byQueue","sourceQueueArns":["`+arn("other")+`"]}`)})
				w.ok(err)
				return source
			}, want: []dlq.Code{dlq.RedriveDenied}, severity: dlq.Critical, seen: arn("work"),
		},
		"retention as long as the source's": {
			make: func(w *world) string {
				w.queue("dead", "MessageRetentionPeriod", "345600")
				return work(w, "RedrivePolicy", policy("dead", 5))
			}, want: []dlq.Code{dlq.RetentionTrap}, severity: dlq.Critical, seen: "4 days",
		},
		"retention longer, but not 14 days": {
			make: func(w *world) string {
				w.queue("dead", "MessageRetentionPeriod", "345601")
				return work(w, "RedrivePolicy", policy("dead", 5))
			}, want: []dlq.Code{dlq.ShortRetention}, severity: dlq.Info, seen: "first sending",
		},
		"a FIFO queue's retention is no trap, its order is one": {
			make: func(w *world) string {
				w.queue("dead.fifo", "MessageRetentionPeriod", "60")
				return w.queue("work.fifo", "ReceiveMessageWaitTimeSeconds", "20", "RedrivePolicy", policy("dead.fifo", 5))
			}, want: []dlq.Code{dlq.ShortRetention, dlq.FIFOOrder}, severity: dlq.Info,
		},
		"a dead-letter queue with a redrive policy": {
			make: func(w *world) string {
				w.queue("further")
				dead(w, "RedrivePolicy", policy("further", 2))
				return work(w, "RedrivePolicy", policy("dead", 5))
			}, want: []dlq.Code{dlq.Chained}, severity: dlq.Warning, seen: "further",
		},
		"short polls": {
			make: func(w *world) string {
				dead(w)
				return w.queue("work", "RedrivePolicy", policy("dead", 5))
			}, want: []dlq.Code{dlq.ShortPolling}, severity: dlq.Warning,
		},
		"visibility below the handler timeout, without heartbeats": {
			make: with(5), cfg: dlq.AuditConfig{HandlerTimeout: 30 * time.Second, NoHeartbeats: true}, want: []dlq.Code{dlq.VisibilityShort}, severity: dlq.Critical, seen: "30s",
		},
		"visibility above the handler timeout": {make: with(5), cfg: dlq.AuditConfig{HandlerTimeout: 29 * time.Second, NoHeartbeats: true}},
		"with heartbeats":                      {make: with(5), cfg: dlq.AuditConfig{HandlerTimeout: time.Hour}},
	}, func(w *world, c setting) {
		found := w.audit(c.make(w), c.cfg)
		mustFind(w.t, found, c.want...)
		if found.Worst() != c.severity {
			w.t.Errorf("severity %v, want %v", found.Worst(), c.severity)
		}
		if len(found) > 0 && !strings.Contains(found[0].Seen, c.seen) {
			w.t.Errorf("%q doesn't say %q", found[0].Seen, c.seen)
		}
		w.mustChangeNothing()
	})
}

// mustChangeNothing: no message was touched.
func (w *world) mustChangeNothing() {
	w.t.Helper()
	for _, e := range w.Journal() {
		w.t.Errorf("%v of %s happened", e.Kind, e.MessageID)
	}
}

// AWS refuses to set these; other servers do, and then no message is ever moved.
func TestADeadLetterQueueOfAnotherTypeAccountOrRegionIsFound(t *testing.T) {
	for code, target := range map[dlq.Code]string{
		dlq.OtherType: arn("dead.fifo"), dlq.OtherAccount: "arn:aws:sqs:us-east-1:210987654321:dead", dlq.OtherRegion: "arn:aws:sqs:eu-west-1:123456789012:dead",
	} {
		t.Run(string(code), func(t *testing.T) {
			bubbleAt(t, sqsmodel.Config{AnyRedrivePolicy: true}, func(w *world) {
				w.queue("dead.fifo")
				url := w.queue("work", "ReceiveMessageWaitTimeSeconds", "20", "RedrivePolicy", `{"deadLetterTargetArn":"`+target+`","maxReceiveCount":5}`)
				found := w.audit(url, dlq.AuditConfig{})
				mustFind(t, found, code)
				if found.Worst() != dlq.Critical {
					t.Error(found.Worst())
				}
			})
		})
	}
}

// The evidence expires: on a standard queue the message is 3 days old when it comes, and its 4 days go on.
func TestMessagesThatExpireSoonAreNamedOldestFirst(t *testing.T) {
	bubble(t, func(w *world) {
		dead := w.queue("dead", "MessageRetentionPeriod", "345600")
		source := w.queue("work", "ReceiveMessageWaitTimeSeconds", "20", "RedrivePolicy", policy("dead", 1))
		old := w.MustSend(source, "old")
		time.Sleep(3 * 24 * time.Hour)
		fresh := w.MustSend(source, "fresh")
		time.Sleep(2 * time.Hour)
		w.deadLetter(source)
		found := w.audit(source, dlq.AuditConfig{Soon: 23 * time.Hour})
		soon := found.Of(dlq.ExpiringSoon)
		if len(soon) != 1 || len(soon[0].Expiring) != 1 || soon[0].Expiring[0].ID != old[0] || len(found.Of(dlq.RetentionTrap)) != 1 || len(found.Of(dlq.Waiting)) != 1 {
			t.Fatalf("found %v", found)
		}
		if left := soon[0].Expiring[0].Left; left < 21*time.Hour || left > 22*time.Hour {
			t.Errorf("%v left", left)
		}
		all := w.audit(source, dlq.AuditConfig{Soon: 14 * 24 * time.Hour}).Of(dlq.ExpiringSoon)[0].Expiring
		if len(all) != 2 || all[0].ID != old[0] || all[1].ID != fresh[0] {
			t.Errorf("%+v", all)
		}
		w.mustHold(dead, 2) // given back
		time.Sleep(22 * time.Hour)
		w.mustHold(dead, 1)
		if n := len(w.audit(source, dlq.AuditConfig{Look: dlq.NoLook}).Of(dlq.ExpiringSoon)); n != 0 {
			t.Error("looked though it was not to")
		}
	})
}

func TestEachMissingPermissionIsNamedWithItsResource(t *testing.T) {
	type denial struct {
		action, queue, want, resource string
		operator                      bool
	}
	url := func(name string) string { return "https://sqs.us-east-1.amazonaws.com/123456789012/" + name }
	each(t, map[string]denial{
		"reading the queue":                  {action: "GetQueueAttributes", queue: "work", want: "sqs:GetQueueAttributes", resource: url("work")},
		"reading the dead-letter queue":      {action: "GetQueueAttributes", queue: "dead", want: "sqs:GetQueueAttributes", resource: arn("dead")},
		"deleting":                           {action: "DeleteMessage", queue: "work", want: "sqs:DeleteMessage", resource: arn("work")},
		"heartbeats":                         {action: "ChangeMessageVisibility", queue: "work", want: "sqs:ChangeMessageVisibility", resource: arn("work")},
		"looking":                            {action: "ReceiveMessage", queue: "dead", want: "sqs:ReceiveMessage", resource: arn("dead")},
		"operator: deleting":                 {action: "DeleteMessage", queue: "dead", want: "sqs:DeleteMessage", resource: arn("dead"), operator: true},
		"operator: heartbeats":               {action: "ChangeMessageVisibility", queue: "dead", want: "sqs:ChangeMessageVisibility", resource: arn("dead"), operator: true},
		"operator: sending back":             {action: "SendMessageBatch", queue: "work", want: "sqs:SendMessage", resource: arn("work"), operator: true},
		"operator: move tasks":               {action: "ListMessageMoveTasks", want: "sqs:ListMessageMoveTasks", resource: arn("dead"), operator: true},
		"operator: whose dead-letter queue?": {action: "ListDeadLetterSourceQueues", queue: "dead", want: "sqs:ListDeadLetterSourceQueues", resource: arn("dead"), operator: true},
	}, func(w *world, c denial) {
		source, _ := w.pair()
		w.dead(source, 1)
		w.Inject(sqsmodel.Fault{Action: c.action, Queue: c.queue, Code: "AccessDeniedException"})
		found := w.audit(source, dlq.AuditConfig{Operator: c.operator}).Of(dlq.PermissionMissing)
		if len(found) != 1 || !strings.Contains(found[0].Seen, c.want+" on "+c.resource) || !strings.Contains(found[0].Advice, "allow "+c.want) {
			w.t.Errorf("found %v", found)
		}
		if !c.operator && c.action != "ReceiveMessage" && c.queue == "dead" {
			return
		}
		if probed := w.audit(source, dlq.AuditConfig{Operator: c.operator, NoProbes: true, Look: dlq.NoLook}).Of(dlq.PermissionMissing); len(probed) > 0 && c.action != "GetQueueAttributes" {
			w.t.Errorf("tried though it was not to: %v", probed)
		}
	})
}

func TestAnAuditOfAQueueThatDoesNotExistIsAnError(t *testing.T) {
	bubble(t, func(w *world) {
		found, err := dlq.Audit(context.Background(), w.client, "https://sqs.us-east-1.amazonaws.com/123456789012/nowhere")
		if err == nil || len(found) != 0 || !strings.Contains(err.Error(), "Region") {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

func TestBadAuditConfigurationNamesEveryField(t *testing.T) {
	_, err := dlq.NewAuditor(nil, dlq.AuditConfig{HandlerTimeout: 13 * time.Hour, Look: 20_000, Soon: time.Second})
	for _, word := range []string{"client", "HandlerTimeout is 13h", "Look is 20000", "Soon is 1s"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v doesn't say %q", err, word)
		}
	}
}

// The worker's start: logged, each finding once, and no message touched.
func TestAWorkerLogsTheAuditAtItsStart(t *testing.T) {
	bubble(t, func(w *world) {
		source := w.queue("work", "VisibilityTimeout", "60")
		dead := w.queue("dead", "MessageRetentionPeriod", "345600")
		w.MustSend(dead, "waiting")
		_, err := w.client.SetQueueAttributes(context.Background(), &sqs.SetQueueAttributesInput{QueueUrl: &source, Attributes: attributes("RedrivePolicy", policy("dead", 1))})
		w.ok(err)
		w.Inject(sqsmodel.Fault{Action: "DeleteMessage", Queue: "work", Code: "AccessDeniedException"})
		auditor, err := dlq.NewAuditor(w.client, dlq.AuditConfig{})
		w.ok(err)
		work, err := worker.New(w.client, source, worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil }), worker.Config{
			Audit: auditor, HandlerTimeout: 2 * time.Minute, HeartbeatInterval: worker.NoHeartbeat, Logger: slog.New(w.log),
		})
		w.ok(err)
		ctx, stop := context.WithTimeout(context.Background(), time.Hour)
		defer stop()
		if err := work.Run(ctx); err != nil {
			t.Error(err)
		}
		for _, code := range []dlq.Code{dlq.MaxReceiveCountOne, dlq.RetentionTrap, dlq.VisibilityShort, dlq.Waiting, dlq.PermissionMissing} {
			if n := len(w.log.with("level=WARN", "finding="+string(code))); n != 1 {
				t.Errorf("%s logged %d times", code, n)
			}
		}
		if n := len(w.log.with("finding=" + string(dlq.ShortPolling))); n != 0 {
			t.Error("short polls logged, though a worker says how long it waits")
		}
		if st := w.Queue(dead).Messages; len(st) != 1 || st[0].ReceiveCount != 0 {
			t.Error("the message was received")
		}
	})
}

func TestFindingsAreReadableAsJSON(t *testing.T) {
	in := dlq.Findings{{Code: dlq.NoRedrivePolicy, Severity: dlq.Critical, Queue: "work", Seen: "s", Advice: "a"}}
	b, err := json.Marshal(in)
	if err != nil || !strings.Contains(string(b), `"severity":"critical"`) {
		t.Errorf("%s, %v", b, err)
	}
	var out dlq.Findings
	if err := json.Unmarshal(b, &out); err != nil || out[0].Severity != dlq.Critical {
		t.Errorf("%+v, %v", out, err)
	}
	var s dlq.Severity
	if err := s.UnmarshalText([]byte("bad")); err == nil || errors.Is(err, nil) {
		t.Error("a severity that doesn't exist was read")
	}
}
