package heartbeat_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/heartbeat"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// scene is one queue with a heartbeat, in a bubble.
type scene struct {
	t      *testing.T
	server *sqsmodel.Server
	client *sqs.Client
	queue  string
	beat   *heartbeat.Heartbeat
	log    *bytes.Buffer

	mu      sync.Mutex
	expired int // visibility timeouts that ran out at the server
}

func inBubble(t *testing.T, model sqsmodel.Config, visibility time.Duration, cfg heartbeat.Config, story func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sc := &scene{t: t, server: sqsmodel.New(model), log: &bytes.Buffer{}}
		sc.server.OnEvent(func(e sqsmodel.Event) {
			if e.Kind == sqsmodel.Expired {
				sc.mu.Lock()
				sc.expired++
				sc.mu.Unlock()
			}
		})
		sc.client = sc.server.Client()
		attrs := map[string]string{"VisibilityTimeout": fmt.Sprint(int(visibility / time.Second))}
		name := "jobs"
		sc.queue = sc.server.MustCreateQueue(name, attrs)
		if cfg.Visibility == 0 {
			cfg.Visibility = visibility
		}
		cfg.Logger = slog.New(slog.NewTextHandler(sc.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		beat, err := heartbeat.New(sc.client, sc.queue, cfg)
		if err != nil {
			t.Fatal(err)
		}
		sc.beat = beat
		defer beat.Close()
		story(sc)
	})
}

// receive sends n messages and receives them, ten at a time.
func (sc *scene) receive(n int) []heartbeat.Receipt {
	sc.t.Helper()
	for i := range n {
		sc.server.MustSend(sc.queue, fmt.Sprint("job ", i))
	}
	var receipts []heartbeat.Receipt
	for len(receipts) < n {
		at := time.Now()
		out, err := sc.client.ReceiveMessage(sc.t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &sc.queue, MaxNumberOfMessages: 10})
		if err != nil || len(out.Messages) == 0 {
			sc.t.Fatalf("received %d of %d: %v", len(receipts), n, err)
		}
		for _, m := range out.Messages {
			receipts = append(receipts, heartbeat.Receipt{MessageID: *m.MessageId, Handle: *m.ReceiptHandle, RequestedAt: at})
		}
	}
	return receipts
}

// pause lets virtual time pass and everything that is due in it happen.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (sc *scene) holdOne() (context.Context, *heartbeat.Lease) {
	return sc.beat.Hold(sc.t.Context(), sc.receive(1)[0])
}

func (sc *scene) calls() int { return int(sc.server.Count("ChangeMessageVisibilityBatch")) }

func (sc *scene) lapsed() int {
	sc.server.Queue(sc.queue) // let it notice
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.expired
}

func (sc *scene) visible() int { return sc.server.Queue(sc.queue).Visible }

func TestHeldMessageStaysInvisibleForHours(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		pause(3 * time.Hour)
		if ctx.Err() != nil || sc.lapsed() != 0 {
			t.Fatalf("context: %v, lapsed: %d", context.Cause(ctx), sc.lapsed())
		}
		if got, most := sc.calls(), 3*3600/10; got < 3*3600/11 || got > most {
			t.Errorf("%d renewals in three hours, want one every 10 s of 30 s, and up to a second more: %d", got, most)
		}
		if err := lease.Settle(); err != nil {
			t.Error(err)
		}
		if !errors.Is(context.Cause(ctx), heartbeat.ErrSettled) {
			t.Errorf("cause after settling: %v", context.Cause(ctx))
		}
	})
}

func TestRenewalLeavesAtAThirdAndNotBefore(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 60*time.Second, heartbeat.Config{}, func(sc *scene) {
		_, lease := sc.holdOne()
		defer lease.Settle()
		pause(20*time.Second - time.Millisecond)
		if sc.calls() != 0 {
			t.Fatal("renewed before a third of the visibility")
		}
		pause(time.Second + 2*time.Millisecond) // a lone renewal waits up to a second for company
		if sc.calls() != 1 {
			t.Fatalf("%d calls after a third of the visibility, want 1", sc.calls())
		}
	})
}

func TestTheLeaseCountsFromTheReceiveRequestNotFromItsAnswer(t *testing.T) {
	inBubble(t, sqsmodel.Config{Latency: 3 * time.Second}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		receipt := sc.receive(1)[0]
		_, lease := sc.beat.Hold(sc.t.Context(), receipt)
		defer lease.Settle()
		if got := lease.Deadline().Sub(receipt.RequestedAt); got != 30*time.Second {
			t.Errorf("lease of %v from the request, want 30s", got)
		}
	})
}

func TestRenewalsThatComeDueTogetherLeaveInBatchesOfTen(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		for _, r := range sc.receive(25) {
			_, lease := sc.beat.Hold(sc.t.Context(), r)
			defer lease.Settle()
		}
		pause(12 * time.Second)
		if sc.calls() != 3 {
			t.Errorf("%d calls for 25 messages, want 3", sc.calls())
		}
		for _, c := range sc.server.Calls() {
			if c.Action == "ChangeMessageVisibilityBatch" && c.Entries > 10 {
				t.Errorf("a call of %d entries", c.Entries)
			}
		}
	})
}

func TestAVisibilityOfOneSecondIsHeld(t *testing.T) {
	inBubble(t, sqsmodel.Config{Latency: 200 * time.Millisecond}, time.Second, heartbeat.Config{}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		pause(5 * time.Minute)
		if ctx.Err() != nil || sc.lapsed() != 0 {
			t.Fatalf("context: %v, lapsed: %d", context.Cause(ctx), sc.lapsed())
		}
		lease.Settle()
	})
}

func TestARenewalNeverShortensWhatTheQueueGave(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 600*time.Second, heartbeat.Config{Visibility: 30 * time.Second}, func(sc *scene) {
		receipt := sc.receive(1)[0]
		receipt.Visibility = 600 * time.Second
		_, lease := sc.beat.Hold(sc.t.Context(), receipt)
		defer lease.Settle()
		pause(575 * time.Second)
		if sc.calls() != 0 {
			t.Fatal("a lease of ten minutes was renewed to 30 s while more than that was left")
		}
		pause(20 * time.Minute)
		if sc.lapsed() != 0 {
			t.Fatal("lapsed")
		}
	})
}

func TestAnExtensionByTheHandlerIsHonouredAndNotShortened(t *testing.T) {
	inBubble(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		defer lease.Settle()
		if err := lease.Extend(ctx, 2*time.Hour); err != nil {
			t.Fatal(err)
		}
		before := sc.calls()
		pause(119 * time.Minute)
		if got := sc.calls() - before; got != 0 {
			t.Errorf("%d renewals during one long lease", got)
		}
		pause(time.Hour)
		if sc.lapsed() != 0 || ctx.Err() != nil {
			t.Errorf("renewals didn't go on after the long lease: %v", context.Cause(ctx))
		}
	})
}

func TestExtensionsOfOneMessageByManyGoroutinesAllReturn(t *testing.T) {
	inBubble(t, sqsmodel.Config{Latency: 12 * time.Millisecond}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		defer lease.Settle()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := lease.Extend(ctx, time.Duration(i+1)*time.Minute); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if left := time.Until(lease.Deadline()); left < 19*time.Minute {
			t.Errorf("%v left, want 20 minutes", left)
		}
	})
}

func TestTheHolderIsToldBeforeTheCeilingAndStillHoldsTheMessageThen(t *testing.T) {
	for _, perReceive := range []bool{true, false} {
		model := sqsmodel.Config{MaxHold: 20 * time.Second}
		cfg := heartbeat.Config{MaxHold: 20 * time.Second}
		if !perReceive {
			model, cfg = sqsmodel.Config{}, heartbeat.Config{} // the real twelve hours
		}
		inBubble(t, model, 6*time.Second, cfg, func(sc *scene) {
			ctx, lease := sc.holdOne()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), heartbeat.ErrCeiling) {
				t.Fatalf("cause: %v", context.Cause(ctx))
			}
			if lease.Err() != nil || sc.visible() != 0 {
				t.Fatal("told too late: the message isn't held any more")
			}
			var released error = errors.New("unanswered")
			lease.Release(0, func(err error) { released = err })
			pause(time.Second)
			if released != nil || sc.visible() != 1 {
				t.Errorf("giving back at the ceiling: %v, visible %d", released, sc.visible())
			}
			for _, c := range sc.server.Calls() {
				if c.FailedEntries > 0 {
					t.Errorf("asked SQS for more than the ceiling allows")
				}
			}
		})
	}
}

func TestAnEarlierCeilingAtTheServerIsNotALostLease(t *testing.T) {
	inBubble(t, sqsmodel.Config{MaxHold: 15 * time.Second}, 6*time.Second, heartbeat.Config{}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), heartbeat.ErrCeiling) || lease.Err() != nil {
			t.Fatalf("cause %v, lease %v", context.Cause(ctx), lease.Err())
		}
		if left := time.Until(lease.Deadline()); left <= 0 {
			t.Error("told when nothing was left")
		}
		lease.Settle()
	})
}

func TestEveryFormOfALostLeaseEndsTheContextOnceAndStopsTheRenewals(t *testing.T) {
	for _, form := range []sqsmodel.EntryError{
		{Code: "ReceiptHandleIsInvalid", Message: "The input receipt handle is invalid.", SenderFault: true},
		{Code: "ReceiptHandleIsInvalid", Message: "The receipt handle has expired", SenderFault: true},
		{Code: "MessageNotInflight", SenderFault: true},
		{Code: "AWS.SimpleQueueService.MessageNotInflight", SenderFault: true},
		{Code: "InvalidParameterValue", Message: "Value x for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", SenderFault: true},
		{Code: "InvalidParameterValue", Message: "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", SenderFault: true},
	} {
		inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
			sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError { return &form }})
			ctx, lease := sc.holdOne()
			<-ctx.Done()
			var entry *heartbeat.EntryError
			if cause := context.Cause(ctx); !errors.Is(cause, heartbeat.ErrLost) || !errors.As(cause, &entry) || entry.Code != form.Code {
				t.Errorf("%s: cause %v", form.Code, cause)
			}
			pause(time.Hour)
			if sc.calls() != 1 {
				t.Errorf("%s: %d calls for a dead handle", form.Code, sc.calls())
			}
			if !errors.Is(lease.Settle(), heartbeat.ErrLost) || sc.beat.Stats().Lost != 1 {
				t.Errorf("%s: lost %d times", form.Code, sc.beat.Stats().Lost)
			}
			if strings.Contains(sc.log.String(), "ERROR") || strings.Contains(sc.log.String(), lease.Handle()) {
				t.Errorf("%s: log: %s", form.Code, sc.log)
			}
		})
	}
}

func TestFailuresThatPassAreRetriedWhileTheLeaseLasts(t *testing.T) {
	for _, fault := range []sqsmodel.Fault{
		{Code: "RequestThrottled"}, {Code: "KmsThrottled"}, {Code: "ThrottlingException", Status: 400}, {Code: "InternalFailure", Status: 500},
		{Code: "AccessDeniedException", Status: 403}, {DropBefore: true}, {DropAfter: true}, {Stall: true},
		{FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "InternalError"}
		}},
		{FailEntries: func(sqsmodel.Call, int, string, string) *sqsmodel.EntryError {
			return &sqsmodel.EntryError{Code: "KMS.ThrottlingException", SenderFault: true}
		}},
	} {
		inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
			fault.Action, fault.Times = "ChangeMessageVisibilityBatch", 3
			sc.server.Inject(fault)
			ctx, lease := sc.holdOne()
			defer lease.Settle()
			pause(10 * time.Minute)
			if ctx.Err() != nil || sc.lapsed() != 0 {
				t.Errorf("%+v: %v, lapsed %d", fault, context.Cause(ctx), sc.lapsed())
			}
		})
	}
}

func TestAnOutageLongerThanTheLeaseLosesItInTimeAndIsTwoLogLines(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		remove := sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Code: "InternalFailure", Status: 500})
		receipt := sc.receive(1)[0]
		ctx, lease := sc.beat.Hold(sc.t.Context(), receipt)
		<-ctx.Done()
		if held := time.Since(receipt.RequestedAt); held != 30*time.Second {
			t.Errorf("told after %v, want the moment when the visibility ends", held)
		}
		if !strings.Contains(context.Cause(ctx).Error(), "InternalFailure") {
			t.Errorf("the cause doesn't say why: %v", context.Cause(ctx))
		}
		lease.Settle()
		if n := sc.calls(); n < 4 || n > 60 {
			t.Errorf("%d attempts in 20 s, want at least 4 and no storm", n)
		}
		remove()
		_, again := sc.holdOne()
		pause(12 * time.Second)
		again.Settle()
		if n := strings.Count(sc.log.String(), "\n"); n != 2 {
			t.Errorf("%d log lines, want two:\n%s", n, sc.log)
		}
	})
}

func TestSettleWaitsForARenewalInFlight(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Hold: 3 * time.Second})
		_, lease := sc.holdOne()
		pause(12 * time.Second) // the renewal is on its way
		began := time.Now()
		if err := lease.Settle(); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited == 0 || waited > 3*time.Second {
			t.Errorf("settled after %v", waited)
		}
		before := sc.calls()
		pause(time.Hour)
		if sc.calls() != before {
			t.Error("renewed after Settle")
		}
	})
}

func TestAReleaseIsTheLastWordEvenBehindASlowRenewal(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Times: 1, Hold: 3 * time.Second})
		_, lease := sc.holdOne()
		pause(12 * time.Second)
		var at time.Time
		lease.Release(0, func(err error) {
			if err != nil {
				t.Error(err)
			}
			at = time.Now()
		})
		pause(5 * time.Second)
		if at.IsZero() || sc.visible() != 1 {
			t.Fatalf("released at %v, visible %d", at, sc.visible())
		}
	})
}

func TestAReleaseIsRetriedAndMayDelay(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Times: 2, DropBefore: true})
		_, lease := sc.holdOne()
		lease.Release(90*time.Second+time.Millisecond, nil)
		pause(89 * time.Second)
		if sc.visible() != 0 {
			t.Fatal("visible too soon")
		}
		pause(4 * time.Second)
		if sc.visible() != 1 {
			t.Fatal("not visible after the delay")
		}
	})
}

func TestADelayBeyondTheCeilingIsCutToIt(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		_, lease := sc.holdOne()
		pause(11 * time.Hour)
		var err error = errors.New("unanswered")
		lease.Release(3*time.Hour, func(e error) { err = e })
		pause(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		pause(time.Hour + time.Minute)
		if sc.visible() != 1 {
			t.Error("not back after the ceiling")
		}
	})
}

func TestWhatRidesAlongIsRenewedFirstAndItsLossEndsTheLease(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		taken := errors.New("claim taken over")
		claims, renewals := 0, 0
		lease.OnRenew(func(_ context.Context, until time.Time) error {
			if sc.calls() != renewals {
				t.Error("the visibility was renewed before the claim, or without it")
			}
			if until.Before(time.Now().Add(30 * time.Second)) {
				t.Error("the claim would end before the visibility")
			}
			switch claims++; claims {
			case 2:
				return errors.New("table throttled") // passes
			case 5:
				return fmt.Errorf("%w: %w", heartbeat.ErrLost, taken)
			}
			renewals++
			return nil
		})
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, heartbeat.ErrLost) || !errors.Is(cause, taken) {
			t.Errorf("cause: %v", cause)
		}
		lease.Settle()
		if claims != 5 || sc.calls() != 3 || sc.lapsed() != 0 {
			t.Errorf("%d renewals of the claim, %d of the visibility, %d lapsed", claims, sc.calls(), sc.lapsed())
		}
	})
}

func TestANewerReceiptIsAdopted(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		receipt := sc.receive(1)[0]
		ctx, lease := sc.beat.Hold(sc.t.Context(), receipt)
		sc.server.Duplicate("jobs", receipt.MessageID)
		at := time.Now()
		out, err := sc.client.ReceiveMessage(sc.t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &sc.queue})
		if err != nil || len(out.Messages) != 1 {
			t.Fatal(err, out)
		}
		if !lease.Adopt(heartbeat.Receipt{MessageID: receipt.MessageID, Handle: *out.Messages[0].ReceiptHandle, RequestedAt: at}) {
			t.Fatal("not adopted")
		}
		pause(time.Hour)
		if ctx.Err() != nil || lease.Handle() != aws.ToString(out.Messages[0].ReceiptHandle) {
			t.Errorf("context %v", context.Cause(ctx))
		}
		lease.Settle()
		if lease.Adopt(receipt) {
			t.Error("adopted after the end")
		}
	})
}

func TestWithRenewalsOffTheHolderIsToldWhenTheVisibilityEnds(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{Interval: heartbeat.Never}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		pause(30*time.Second - time.Nanosecond)
		if ctx.Err() != nil {
			t.Fatal("too early")
		}
		pause(time.Nanosecond)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), heartbeat.ErrLost) || sc.calls() != 0 {
			t.Errorf("cause %v, %d calls", context.Cause(ctx), sc.calls())
		}
		lease.Settle()
	})
}

func TestTheEndOfTheCallersContextEndsTheHandlersButNotTheLease(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		parent, cancel := context.WithCancel(sc.t.Context())
		ctx, lease := sc.beat.Hold(parent, sc.receive(1)[0])
		cancel()
		<-ctx.Done()
		pause(5 * time.Minute)
		if lease.Err() != nil || sc.lapsed() != 0 {
			t.Errorf("lease %v, lapsed %d", lease.Err(), sc.lapsed())
		}
		lease.Settle()
	})
}

func TestCloseWritesNothingAndLeavesNothing(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Stall: true})
		ctx, lease := sc.holdOne()
		pause(12 * time.Second)
		sc.beat.Close() // the bubble's end tells whether a goroutine is left
		<-ctx.Done()
		var err error
		lease.Release(0, func(e error) { err = e })
		if err == nil {
			t.Error("a release after Close said that it went well")
		}
		_, late := sc.beat.Hold(sc.t.Context(), heartbeat.Receipt{Handle: "late"})
		late.Settle()
	})
}

func TestTenThousandLeasesDueInOneInstantAreRenewedInTime(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		const n = 10_000
		var leases []*heartbeat.Lease
		for _, r := range sc.receive(n) {
			_, l := sc.beat.Hold(sc.t.Context(), r)
			leases = append(leases, l)
		}
		sc.server.ResetCounts()
		sc.server.SetLatency(200 * time.Millisecond)
		const intervals = 6
		pause(intervals * 10 * time.Second)
		if got, most := sc.calls(), intervals*n/10; got > most {
			t.Errorf("%d calls in %d intervals, want at most one per ten messages and interval: %d", got, intervals, most)
		}
		if sc.lapsed() != 0 || sc.beat.Stats().Lost != 0 {
			t.Errorf("lapsed %d, lost %d", sc.lapsed(), sc.beat.Stats().Lost)
		}
		for _, l := range leases {
			l.Settle()
		}
	})
}

func TestASettledLeaseIsTakenUpAgainWhereItStood(t *testing.T) {
	inBubble(t, sqsmodel.Config{MaxHold: 10 * time.Minute}, 30*time.Second, heartbeat.Config{MaxHold: 10 * time.Minute}, func(sc *scene) {
		ctx, lease := sc.holdOne()
		pause(25 * time.Second)
		deadline := lease.Deadline()
		if err := lease.Settle(); err != nil {
			t.Fatal(err)
		}
		pause(2 * time.Second)
		resumed := sc.beat.Resume(lease)
		if !resumed.Deadline().Equal(deadline) || resumed.Handle() != lease.Handle() {
			t.Errorf("it ends at %v, want %v", resumed.Deadline(), deadline)
		}
		pause(5 * time.Minute)
		if err := resumed.Err(); err != nil || sc.lapsed() != 0 || sc.visible() != 0 {
			t.Errorf("it wasn't kept: %v, %d lapsed", err, sc.lapsed())
		}
		if !errors.Is(context.Cause(ctx), heartbeat.ErrSettled) {
			t.Errorf("the holder's context: %v", context.Cause(ctx))
		}
		if n := sc.beat.Stats().Held; n != 1 {
			t.Errorf("%d held, want 1", n)
		}
		pause(6 * time.Minute) // over the ceiling, which counts from the receive
		if err := resumed.Settle(); !errors.Is(err, heartbeat.ErrLost) || sc.lapsed() != 1 {
			t.Errorf("beyond the ceiling: %v, %d lapsed", err, sc.lapsed())
		}
	})
}

func TestALeaseThatHasRunOutIsNotTakenUpAgain(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		_, lease := sc.holdOne()
		pause(5 * time.Second)
		lease.Settle()
		pause(time.Minute)
		before := sc.calls()
		if err := sc.beat.Resume(lease).Settle(); !errors.Is(err, heartbeat.ErrLost) {
			t.Errorf("Settle says %v, want ErrLost", err)
		}
		if sc.calls() != before {
			t.Error("a stale handle was used")
		}
	})
}

// Calls may take a quarter of the visibility.
func TestSlowCallsKeepAShortLease(t *testing.T) {
	for _, visibility := range []time.Duration{2 * time.Second, 5 * time.Second, 30 * time.Second} {
		inBubble(t, sqsmodel.Config{}, visibility, heartbeat.Config{}, func(sc *scene) {
			sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", HoldAfter: visibility / 4})
			for _, r := range sc.receive(25) {
				sc.beat.Hold(context.Background(), r)
			}
			pause(3 * time.Minute)
			if s := sc.beat.Stats(); s.Lost != 0 || s.Failed != 0 || sc.lapsed() != 0 {
				t.Errorf("visibility %v, calls of %v: %d lost, %d attempts failed, %d lapsed", visibility, visibility/4, s.Lost, s.Failed, sc.lapsed())
			}
		})
	}
}

func TestCloseEndsEveryLeaseAndAnswersEveryRelease(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, 30*time.Second, heartbeat.Config{}, func(sc *scene) {
		receipts := sc.receive(5)
		var contexts []context.Context
		var leases []*heartbeat.Lease
		for _, r := range receipts {
			ctx, l := sc.beat.Hold(context.Background(), r)
			contexts, leases = append(contexts, ctx), append(leases, l)
		}
		leases[0].Settle()
		pause(12 * time.Second) // renewed once
		sc.server.Inject(sqsmodel.Fault{Action: "ChangeMessageVisibilityBatch", Code: "ServiceUnavailable"})
		answer := make(chan error, 1)
		leases[1].Release(0, func(err error) { answer <- err })
		pause(time.Second)
		sc.beat.Close()
		for i, ctx := range contexts {
			if !errors.Is(context.Cause(ctx), heartbeat.ErrSettled) {
				t.Errorf("the context of lease %d ended with %v", i, context.Cause(ctx))
			}
		}
		select {
		case err := <-answer:
			if !errors.Is(err, heartbeat.ErrSettled) {
				t.Errorf("the release heard %v", err)
			}
		default:
			t.Error("the release heard nothing")
		}
		if n := sc.beat.Stats().Held; n != 0 {
			t.Errorf("%d held after Close", n)
		}
	})
}
