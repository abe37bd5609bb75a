package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func all(*dlq.Item) bool { return true }

// mustHaveOnce: so many different messages are in the queue, each once, by their bodies.
func (w *world) mustHaveOnce(queue string, n int) {
	w.t.Helper()
	times := map[string]int{}
	for _, b := range w.bodies(queue) {
		times[b]++
	}
	if len(times) != n {
		w.t.Errorf("%s has %d different messages, want %d", queue, len(times), n)
	}
	for b, k := range times {
		if k != 1 {
			w.t.Errorf("%q is there %d times", b, k)
		}
	}
}

func TestTheMoverMovesWhatTheFilterChoosesAndLeavesTheRest(t *testing.T) {
	bubbleAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 1000)
		results := map[dlq.Outcome]int{}
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{
			Filter:    func(i *dlq.Item) bool { return strings.HasSuffix(i.Body, "7") },
			OnMessage: func(r dlq.Result) { results[r.Outcome]++ },
		})
		w.ok(err)
		if r.Via != dlq.Mover || r.Received != 1000 || r.Moved != 100 || r.Skipped != 900 || results[dlq.Moved] != 100 || results[dlq.Skipped] != 900 || len(r.Duplicates) != 0 || r.Remaining.Visible != 900 {
			t.Errorf("%+v, %v", r, results)
		}
		w.mustHaveOnce(source, 100)
		w.mustHold(dead, 900)
	})
}

// A redriven message has its body, attributes, trace header and tenant, and a new id, age and count.
func TestTheMoverCopiesTheMessageAsItIs(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		attrs := map[string]types.MessageAttributeValue{
			"text": text("v"), "number": {DataType: aws.String("Number.int"), StringValue: aws.String("7")}, "bytes": {DataType: aws.String("Binary"), BinaryValue: []byte{0, 1, 255}},
			"SQSLargePayloadSize": {DataType: aws.String("Number"), StringValue: aws.String("300000")},
		}
		id := w.send(&sqs.SendMessageInput{QueueUrl: &source, MessageBody: aws.String(pointer), MessageAttributes: attrs, MessageGroupId: aws.String("tenant"),
			MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1-2")}}})
		w.deadLetter(source)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover})
		if err != nil || r.Moved != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		out, err := w.client.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &source, MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"}})
		w.ok(err)
		m := out.Messages[0]
		if *m.Body != pointer || m.Attributes["AWSTraceHeader"] != "Root=1-2" || m.Attributes["MessageGroupId"] != "tenant" || m.Attributes["ApproximateReceiveCount"] != "1" || *m.MessageId == id || len(m.MessageAttributes) != 4 {
			t.Errorf("%v %v", m.Attributes, m.MessageAttributes)
		}
		for name, v := range attrs {
			got := m.MessageAttributes[name]
			if *got.DataType != *v.DataType || aws.ToString(got.StringValue) != aws.ToString(v.StringValue) || !slices.Equal(got.BinaryValue, v.BinaryValue) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
}

func TestMessagesAreEditedOnTheirWay(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 5)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Edit: func(_ context.Context, i *dlq.Item) error {
			switch i.Body {
			case "body 0":
				return errors.New("can't be repaired")
			case "body 1":
				i.Body = ""
			case "body 2":
				i.Attributes = attribute("SQSLargePayloadSize", "1") // now a pointer, whose body was changed
				i.Body = "x"
			default:
				i.Body = "repaired " + i.Body
				i.Attributes = attribute("repaired", "yes")
			}
			return nil
		}})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 2 || r.Failed != 3 || len(r.Failures) != 3 {
			t.Errorf("%+v, %v", r, err)
		}
		if got := slices.Sorted(slices.Values(w.bodies(source))); !slices.Equal(got, []string{"repaired body 3", "repaired body 4"}) {
			t.Errorf("%q", got)
		}
		w.mustHold(dead, 3)
	})
}

func TestADryRunMovesNothingAndTellsWhatItWould(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 30)
		reset := &resets{}
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{DryRun: true, Filter: func(i *dlq.Item) bool { return i.Body != "body 3" }, Reset: reset})
		if err != nil || r.WouldMove != 29 || r.Skipped != 1 || r.Moved != 0 || len(reset.got) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if n := w.Count("SendMessageBatch") + w.Count("DeleteMessageBatch"); n != 0 {
			t.Errorf("%d writes", n)
		}
		w.mustHold(dead, 30)
		w.mustHold(source, 0)
	})
}

func TestNoMoreThanTheLimitIsMoved(t *testing.T) {
	for _, limit := range []int{1, 7, 10, 33} {
		bubble(t, func(w *world) {
			source, dead := w.pair()
			w.dead(source, 50)
			r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Limit: limit})
			if err != nil || r.Moved != int64(limit) {
				t.Errorf("limit %d: %+v, %v", limit, r, err)
			}
			w.mustHold(source, limit)
			w.mustHold(dead, 50-limit)
		})
	}
}

// One whose destination refuses it stays; the others go.
func TestAMessageIsDeletedOnlyAfterItsSendingWasConfirmed(t *testing.T) {
	type failure struct {
		fault  sqsmodel.Fault
		moved  int64
		failed int64
		twice  int // may be at the destination twice
	}
	fourth := func(e sqsmodel.EntryError) func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
		return func(_ sqsmodel.Call, _ int, _, body string) *sqsmodel.EntryError {
			if body == "body 4" {
				return &e
			}
			return nil
		}
	}
	each(t, map[string]failure{
		"entry refused":                  {fault: sqsmodel.Fault{FailEntries: fourth(sqsmodel.EntryError{Code: "InvalidMessageContents", SenderFault: true})}, moved: 9, failed: 1},
		"entry fails again and again":    {fault: sqsmodel.Fault{FailEntries: fourth(sqsmodel.EntryError{Code: "InternalError"})}, moved: 9, failed: 1, twice: 1},
		"entry fails once":               {fault: sqsmodel.Fault{Times: 1, FailEntries: fourth(sqsmodel.EntryError{Code: "InternalError"})}, moved: 10, twice: 1},
		"entry throttled once":           {fault: sqsmodel.Fault{Times: 1, FailEntries: fourth(sqsmodel.EntryError{Code: "ThrottlingException", SenderFault: true})}, moved: 10},
		"entry applied, reported failed": {fault: sqsmodel.Fault{Times: 1, FailEntries: fourth(sqsmodel.EntryError{Code: "InternalError", ApplyAnyway: true})}, moved: 10, twice: 1},
		"call throttled":                 {fault: sqsmodel.Fault{Times: 3, Code: "RequestThrottled"}, moved: 10},
		"KMS throttled":                  {fault: sqsmodel.Fault{Times: 3, Code: "KmsThrottled"}, moved: 10},
		"call fails":                     {fault: sqsmodel.Fault{Times: 2, Code: "InternalFailure"}, moved: 10, twice: 10},
		"connection broken before":       {fault: sqsmodel.Fault{Times: 1, DropBefore: true}, moved: 10, twice: 10},
		"answer lost":                    {fault: sqsmodel.Fault{Times: 1, DropAfter: true}, moved: 10, twice: 10},
	}, func(w *world, c failure) {
		source, dead := w.pair()
		w.dead(source, 10)
		c.fault.Action = "SendMessageBatch"
		w.Inject(c.fault)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover})
		if errors.Is(err, dlq.ErrIncomplete) != (c.failed > 0) || r.Moved != c.moved || r.Failed != c.failed || len(r.Duplicates) != c.twice {
			w.t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, int(c.failed))
		w.mustNameDuplicates(source, r)
		if c.failed > 0 && !strings.Contains(err.Error(), r.Failures[0].ID) {
			w.t.Errorf("%v names nobody", err)
		}
	})
}

// mustNameDuplicates: every message that is at the destination twice is named, by one of its new ids.
func (w *world) mustNameDuplicates(queue string, reports ...*dlq.RedriveReport) {
	w.t.Helper()
	named := map[string]bool{}
	for _, r := range reports {
		for _, d := range r.Duplicates {
			named[d.NewID] = true
		}
	}
	byBody := map[string][]string{}
	for _, m := range w.Queue(queue).Messages {
		byBody[m.Body] = append(byBody[m.Body], m.ID)
	}
	for body, ids := range byBody {
		if len(ids) > 1 && !slices.ContainsFunc(ids, func(id string) bool { return named[id] }) {
			w.t.Errorf("%q is there %d times and isn't named", body, len(ids))
		}
	}
}

// The destination goes away, or can't be written to any more, in the middle: the run ends with why, and every message is in one of the queues.
func TestADestinationThatFailsInTheMiddleLosesNothing(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"deleted": {Code: "QueueDoesNotExist"}, "denied": {Code: "AccessDeniedException"}, "key disabled": {Code: "KmsDisabled"},
		"unavailable for good": {Code: "ServiceUnavailable"}, "hanging": {Stall: true},
	}, func(w *world, fault sqsmodel.Fault) {
		source, dead := w.pair()
		w.dead(source, 200)
		fault.Action, fault.Skip = "SendMessageBatch", 7
		w.Inject(fault)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover, Destination: source})
		if err == nil || errors.Is(err, dlq.ErrIncomplete) || !strings.Contains(err.Error(), "SendMessage") {
			w.t.Errorf("%+v, %v", r, err)
		}
		if r.Moved != 70 {
			w.t.Errorf("moved %d", r.Moved)
		}
		w.mustHaveOnce(source, 70)
		time.Sleep(time.Minute)
		w.mustHold(dead, 130)
	})
}

// With each message's own source, one that is gone is no reason not to move the others.
func TestASourceThatIsGoneKeepsOnlyItsOwnMessages(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		other := w.queue("other", "RedrivePolicy", policy("dead", 1))
		w.dead(source, 5)
		w.dead(other, 5)
		_, err := w.client.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: &other})
		w.ok(err)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 5 || r.Failed != 5 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(source, 5)
		w.mustHold(dead, 5)
	})
}

func TestWhatCannotBeDeletedIsNamedAndDeletedByTheNextRun(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 20)
		var ids sync.Map // of receipt handles
		stop := w.OnEvent(func(e sqsmodel.Event) {
			if e.Kind == sqsmodel.Received {
				ids.Store(e.Handle, e.MessageID)
			}
		})
		defer stop()
		refuse := w.Inject(sqsmodel.Fault{Action: "DeleteMessageBatch", FailEntries: func(_ sqsmodel.Call, _ int, _, handle string) *sqsmodel.EntryError {
			if id, _ := ids.Load(handle); id == nil || id.(string) < "8" {
				return &sqsmodel.EntryError{Code: "InternalError"}
			}
			return nil
		}})
		journal := w.journal(filepath.Join(t.TempDir(), "journal"))
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Journal: journal})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 20 || len(r.Undeleted) == 0 {
			t.Errorf("%+v, %v", r, err)
		}
		refuse()
		time.Sleep(2 * time.Minute)
		left := len(w.Queue(dead).Messages)
		if left != len(r.Undeleted) {
			t.Errorf("%d are left, %d named", left, len(r.Undeleted))
		}
		r, err = w.redrive(context.Background(), dead, dlq.RedriveConfig{Journal: journal})
		if err != nil || r.AlreadyMoved != int64(left) || r.Moved != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 0)
		w.mustHaveOnce(source, 20)
	})
}

// A redrive that learns afterwards that it may not delete has made a copy of everything.
func TestARedriveThatMayNotDeleteOrHoldBeginsNothing(t *testing.T) {
	each(t, map[string]string{"delete": "DeleteMessage", "hold": "ChangeMessageVisibility"}, func(w *world, action string) {
		source, dead := w.pair()
		w.dead(source, 20)
		w.Inject(sqsmodel.Fault{Action: action + "Batch", Code: "AccessDeniedException"})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover})
		if r != nil || err == nil || !strings.Contains(err.Error(), "allow sqs:"+action+" on "+dead) {
			w.t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 20)
		w.mustHold(source, 0)
	})
}

// Renewals fail and the filter is slow: what can't be held isn't sent, since somebody else may have it, and isn't tried for ever.
func TestWhatCannotBeHeldIsNotSent(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 3)
		w.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Code: "ServiceUnavailable"})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Visibility: 10 * time.Second, Filter: func(*dlq.Item) bool { time.Sleep(6 * time.Second); return true }})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved+r.Failed != 3 || r.Failed == 0 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHaveOnce(source, int(r.Moved))
		time.Sleep(time.Minute)
		w.mustHold(dead, int(r.Failed))
	})
}

// A lost answer to a delete, a standard queue that delivers twice, deletes that are slow: still once.
func TestDuplicateDeliveriesAreMovedOnce(t *testing.T) {
	bubbleAt(t, sqsmodel.Config{DuplicateRate: 0.2, Latency: 12 * time.Millisecond, Seed: 7}, func(w *world) {
		source, dead := w.queue("work", "RedrivePolicy", ""), w.queue("dead")
		w.MustSend(dead, numbered(300)...)
		w.Inject(sqsmodel.Fault{Action: "DeleteMessageBatch", Skip: 2, Times: 10, DropAfter: true})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{AnyQueue: true, Destination: source, Filter: func(i *dlq.Item) bool { return i.Body != "body 5" }})
		w.ok(err)
		if r.Received != 300 || r.Moved != 299 || len(r.Undeleted) != 0 {
			t.Errorf("%+v", r)
		}
		w.mustHaveOnce(source, 299)
		time.Sleep(2 * time.Minute)
		w.mustHold(dead, 1)
	})
}

// A message that fails again during the redrive comes back, and isn't moved round in a circle.
func TestWhatComesBackIsNotMovedAgain(t *testing.T) {
	bubbleAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, func(w *world) {
		dead := w.queue("dead", "MessageRetentionPeriod", "1209600")
		source := w.queue("work", "RedrivePolicy", policy("dead", 1), "VisibilityTimeout", "1")
		w.dead(source, 40)
		sink := w.sink(dead, dlq.SinkConfig{})
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var consumer sync.WaitGroup
		consumer.Go(func() { // fails every message: the redrive policy takes some back, a sink the others
			wk, err := worker.New(w.client, source, worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
				if strings.HasSuffix(m.Body, "3") {
					return worker.Permanent(errors.New("bad"))
				}
				return worker.RetryAfter(0, errors.New("bad"))
			}), worker.Config{DeadLetter: sink, Logger: slog.New(w.log)})
			w.ok(err)
			_ = wk.Run(ctx)
		})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all, Rate: 10})
		stop()
		consumer.Wait()
		if err != nil || r.Moved != 40 || r.Returned == 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if n := len(w.Queue(dead).Messages) + len(w.Queue(source).Messages); n != 40 {
			t.Errorf("%d messages in the world", n)
		}
	})
}

// The limit of 100 a second, in every second and on the whole.
func TestTheRateIsHeldWithinFivePercent(t *testing.T) {
	for _, c := range []struct{ rate, messages int }{{100, 10_000}, {7, 100}, {1, 20}, {1000, 10_000}} {
		t.Run(fmt.Sprintf("%d per second", c.rate), func(t *testing.T) {
			bubbleAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, func(w *world) {
				source, dead := w.pair()
				w.MustSend(dead, numbered(c.messages)...)
				began := time.Now()
				r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Rate: c.rate, Filter: all, Destination: source})
				if err != nil || r.Moved != int64(c.messages) {
					t.Fatalf("%+v, %v", r, err)
				}
				var at []time.Time
				for _, call := range w.Calls() {
					if call.Action == "SendMessageBatch" && call.Queue == "work" {
						for range call.Entries {
							at = append(at, call.At)
						}
					}
				}
				slices.SortFunc(at, time.Time.Compare)
				took := at[len(at)-1].Sub(at[0])
				got := float64(len(at)-1) / took.Seconds()
				t.Logf("%d messages in %v: %.1f a second, limit %d", len(at), took.Round(time.Millisecond), got, c.rate)
				if got < 0.95*float64(c.rate) || got > 1.05*float64(c.rate) {
					t.Errorf("the rate was %.1f, want %d", got, c.rate)
				}
				if most := mostIn(at, 10*time.Second); most > c.rate*10*105/100+10 {
					t.Errorf("%d in ten seconds", most)
				}
				if time.Since(began) > took+10*time.Second {
					t.Errorf("took %v altogether", time.Since(began))
				}
				w.mustHaveOnce(source, c.messages)
			})
		})
	}
}

// mostIn is the largest number of moments within any window.
func mostIn(at []time.Time, window time.Duration) (most int) {
	from := 0
	for to := range at {
		for at[to].Sub(at[from]) >= window {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

// Cancelled in the middle: within ten seconds it is over, everything is in one of the queues, and nothing is in flight.
func TestACancelledRedriveGivesBackWhatItHolds(t *testing.T) {
	bubbleAt(t, sqsmodel.Config{Latency: 50 * time.Millisecond}, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 1000)
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		enough := errors.New("enough")
		time.AfterFunc(time.Second, func() { cancel(enough) })
		began := time.Now()
		r, err := w.redrive(ctx, dead, dlq.RedriveConfig{Filter: all, Rate: 200})
		if !errors.Is(err, enough) || r.Moved < 100 || r.Moved > 300 {
			t.Errorf("%+v, %v", r, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		w.mustHaveOnce(source, int(r.Moved))
		w.mustHold(dead, 1000-int(r.Moved))
	})
}

// A stop while SQS doesn't answer.
func TestACancelledRedriveDoesNotWaitForASendThatHangs(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 50)
		w.Inject(sqsmodel.Fault{Action: "SendMessageBatch", Skip: 1, Stall: true})
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		began := time.Now()
		r, err := w.redrive(ctx, dead, dlq.RedriveConfig{Filter: all})
		if !errors.Is(err, context.DeadlineExceeded) || r.Moved != 10 || len(r.Duplicates) == 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
		w.mustHold(dead, 40)
		w.mustHold(source, 10)
	})
}

// Redriven at once, within five minutes of its sending; two with equal bodies are two; order and groups are kept.
func TestFIFOMessagesAreNotSwallowedAndKeepTheirOrder(t *testing.T) {
	for _, content := range []string{"false", "true"} {
		t.Run("content-based deduplication "+content, func(t *testing.T) {
			bubbleAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, func(w *world) {
				source, dead := w.pairOf(".fifo", "ContentBasedDeduplication", content)
				for i := range 35 {
					for _, g := range []string{"a", "b", "c"} {
						body := fmt.Sprintf("%s %d", g, i)
						if i < 2 {
							body = g + " equal"
						}
						w.send(&sqs.SendMessageInput{QueueUrl: &source, MessageBody: &body, MessageGroupId: &g, MessageDeduplicationId: aws.String(fmt.Sprintf("%s-%d", g, i))})
					}
				}
				w.deadLetter(source)
				order := map[string][]string{}
				for _, m := range w.Queue(dead).Messages {
					order[m.GroupID] = append(order[m.GroupID], m.Body)
				}
				r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all})
				if err != nil || r.Moved != 105 {
					t.Fatalf("%+v, %v", r, err)
				}
				w.mustHold(source, 105)
				w.mustHold(dead, 0)
				got := map[string][]string{}
				for _, m := range w.Queue(source).Messages {
					got[m.GroupID] = append(got[m.GroupID], m.Body)
				}
				for g := range order {
					if !slices.Equal(order[g], got[g]) {
						t.Errorf("group %s: %q became %q", g, order[g], got[g])
					}
				}
			})
		})
	}
}

// The deduplication id is made of the MessageId: the second sending of the same message is swallowed, and no duplicate is named.
func TestALostAnswerMakesNoDuplicateOnAFIFOQueue(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pairOf(".fifo")
		w.dead(source, 20)
		w.Inject(sqsmodel.Fault{Action: "SendMessageBatch", Times: 1, DropAfter: true})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all})
		if err != nil || r.Moved != 20 || len(r.Duplicates) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHaveOnce(source, 20)
	})
}

// One that can't be sent keeps back those behind it in its group, and nobody else.
func TestAFailedMessageKeepsBackItsFIFOGroup(t *testing.T) {
	type failure struct {
		fault sqsmodel.Fault
		edit  func(context.Context, *dlq.Item) error
	}
	each(t, map[string]failure{
		"refused by the destination": {fault: sqsmodel.Fault{Action: "SendMessageBatch", FailEntries: func(_ sqsmodel.Call, _ int, _, body string) *sqsmodel.EntryError {
			if body == "a 2" {
				return &sqsmodel.EntryError{Code: "InvalidMessageContents", SenderFault: true}
			}
			return nil
		}}},
		"not edited": {edit: func(_ context.Context, i *dlq.Item) error {
			if i.Body == "a 2" {
				return errors.New("no")
			}
			return nil
		}},
	}, func(w *world, c failure) {
		source, dead := w.pairOf(".fifo")
		for _, g := range []string{"a", "b"} {
			for i := range 5 {
				w.MustSendGroup(source, g, fmt.Sprintf("%s %d", g, i))
			}
		}
		w.deadLetter(source)
		if c.fault.Action != "" {
			w.Inject(c.fault)
		}
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all, Edit: c.edit})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 7 || r.Failed != 1 || r.HeldBack != 2 {
			w.t.Errorf("%+v, %v", r, err)
		}
		if got := w.bodies(dead); !slices.Equal(got, []string{"a 2", "a 3", "a 4"}) {
			w.t.Errorf("left %q", got)
		}
	})
}

// resets is a consumer's idempotency records.
type resets struct {
	mu   sync.Mutex
	got  map[string]string // body → queue
	fail string
}

func (r *resets) Reset(_ context.Context, m *worker.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Body == r.fail {
		return errors.New("table unavailable")
	}
	if r.got == nil {
		r.got = map[string]string{}
	}
	r.got[m.Body] = m.QueueURL
	if m.ID != "" {
		return errors.New("it has an id")
	}
	return nil
}

// The record is reset before the message can be received again; without a reset the message isn't sent.
func TestIdempotencyRecordsAreResetBeforeTheMessageIsSent(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 12)
		records := &resets{fail: "body 5"}
		stop := w.OnEvent(func(e sqsmodel.Event) {
			if e.Kind != sqsmodel.Sent || e.Queue != "work" {
				return
			}
			records.mu.Lock()
			defer records.mu.Unlock()
			if len(records.got) == 0 {
				t.Error("sent before the reset")
			}
		})
		defer stop()
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Reset: records})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 11 || r.Failed != 1 || len(records.got) != 11 || records.got["body 3"] != source {
			t.Errorf("%+v, %v, %v", r, err, records.got)
		}
		if got := w.bodies(dead); !slices.Equal(got, []string{"body 5"}) {
			t.Errorf("left %q", got)
		}
	})
}

// Lists of one call: at most ten, and 1 MiB together.
func TestLargeMessagesShareNoCall(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		for i := range 6 {
			w.MustSend(source, fmt.Sprint(i)+strings.Repeat("x", 400_000))
		}
		w.deadLetter(source)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all})
		if err != nil || r.Moved != 6 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHaveOnce(source, 6)
	})
}

func TestAGarbledMessageStaysWhereItIs(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		ids := w.dead(source, 5)
		w.Inject(sqsmodel.Fault{Action: "ReceiveMessage", CorruptMD5: func(id string) bool { return id == ids[2] }})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 4 || r.Failed != 1 || r.Failures[0].ID != ids[2] {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 1)
	})
}

// While the rate keeps messages waiting, and filters think, nobody else gets them.
func TestMessagesAreHeldUntilTheirTurn(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 40)
		before := w.CountEvents(sqsmodel.Expired)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{
			Rate: 1, Visibility: 10 * time.Second, Filter: func(i *dlq.Item) bool { time.Sleep(3 * time.Second); return true },
		})
		if err != nil || r.Moved != 40 || r.Received != 40 {
			t.Errorf("%+v, %v", r, err)
		}
		if n := w.CountEvents(sqsmodel.Expired) - before; n != 0 {
			t.Errorf("%d leases lapsed", n)
		}
		w.mustHaveOnce(source, 40)
	})
}

func TestTheMoversProgressEndsWithTheWholeCount(t *testing.T) {
	bubbleAt(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 300)
		var heard []dlq.Progress
		_, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Filter: all, Rate: 50, ProgressInterval: 500 * time.Millisecond, Progress: func(p dlq.Progress) { heard = append(heard, p) }})
		w.ok(err)
		if n := len(heard); n < 10 || heard[n-1].Moved != 300 || heard[4].ToMove != 300 || heard[4].PerSecond < 40 || heard[4].PerSecond > 60 || heard[4].Left < 3*time.Second {
			t.Errorf("%d: %+v", n, heard)
		}
	})
}

// journal opens a journal that is closed when the test ends.
func (w *world) journal(path string) *dlq.FileJournal {
	w.t.Helper()
	j, err := dlq.OpenJournal(path)
	w.ok(err)
	w.t.Cleanup(func() { _ = j.Close() })
	return j
}

// An edited payload that was in S3.
func TestAPayloadInS3CanBeReplacedByItsText(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.send(&sqs.SendMessageInput{QueueUrl: &source, MessageBody: aws.String(pointer), MessageAttributes: map[string]types.MessageAttributeValue{
			"SQSLargePayloadSize": {DataType: aws.String("Number"), StringValue: aws.String("11")}}})
		w.deadLetter(source)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Payloads: payloads{pointer: "large thing"}, Edit: func(ctx context.Context, i *dlq.Item) error {
			body, err := i.Payload(ctx)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(body)
			i.Body = strings.ToUpper(string(b))
			i.Attributes = maps.Clone(i.Attributes)
			delete(i.Attributes, "SQSLargePayloadSize")
			return err
		}})
		if err != nil || r.Moved != 1 || !slices.Equal(w.bodies(source), []string{"LARGE THING"}) {
			t.Errorf("%+v, %v, %q", r, err, w.bodies(source))
		}
	})
}

// SQS hands out no more than 120,000: an empty answer would look like the end of the queue.
func TestARedriveThatLeavesTooMuchEndsWithAnErrorInsteadOfAnEmptyAnswer(t *testing.T) {
	defer dlq.HoldAtMost(100)()
	bubbleAt(t, sqsmodel.Config{InFlightLimit: 150}, func(w *world) {
		source, dead := w.pair()
		w.MustSend(dead, numbered(500)...)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Destination: source, Batches: 1, Filter: func(i *dlq.Item) bool { return i.Body == "body 3" }})
		if !errors.Is(err, dlq.ErrTooManyHeld) || r.Moved != 1 || r.Skipped < 99 || r.Skipped > 110 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 499)
	})
}

// What is left of a FIFO group keeps back what is behind it, and the report says that something remains.
func TestWhatIsBehindALeftFIFOMessageRemains(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pairOf(".fifo")
		for i := range 15 {
			w.MustSendGroup(dead, "a", fmt.Sprint("a ", i))
		}
		w.MustSendGroup(dead, "b", "b 0")
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Destination: source, Filter: func(i *dlq.Item) bool { return i.Body != "a 0" }})
		if err != nil || r.Moved != 10 || r.Skipped != 1 || r.Remaining.Visible != 6 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 6)
	})
}
