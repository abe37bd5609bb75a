package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sqsworker/sqsworker/worker"
)

const lambdaQueue = "arn:aws:sqs:eu-west-1:123456789012:work"

// lambdaEvent is a payload as Lambda sends it, with messages m-0, m-1, …
func lambdaEvent(arn string, bodies ...string) string {
	records := make([]string, len(bodies))
	for i, body := range bodies {
		b, _ := json.Marshal(body)
		records[i] = fmt.Sprintf(`{"messageId":"m-%d","receiptHandle":"AQEB","body":%s,
			"attributes":{"ApproximateReceiveCount":"2","SentTimestamp":"1545082649183","SenderId":"AIDA","ApproximateFirstReceiveTimestamp":"1545082649185","MessageGroupId":"g%d","AWSTraceHeader":"Root=1"},
			"messageAttributes":{"type":{"stringValue":"order","stringListValues":[],"binaryListValues":[],"dataType":"String"},"blob":{"binaryValue":"AQID","dataType":"Binary"}},
			"md5OfBody":"","eventSource":"aws:sqs","eventSourceARN":%q,"awsRegion":"eu-west-1"}`, i, b, i%2, arn)
	}
	return `{"Records":[` + strings.Join(records, ",") + `]}`
}

// invoke runs one invocation with ten seconds to its deadline, and returns the ids that failed.
func invoke(t *testing.T, h worker.Handler, cfg worker.LambdaConfig, payload string) (failed string, log *logbook, err error) {
	t.Helper()
	log = &logbook{}
	cfg.Logger = slog.New(log)
	l, err := worker.NewLambda(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := l.Invoke(ctx, []byte(payload))
	if err != nil {
		return "", log, err
	}
	var shape struct {
		BatchItemFailures []map[string]string `json:"batchItemFailures"`
	}
	dec := json.NewDecoder(strings.NewReader(string(answer)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&shape); err != nil || shape.BatchItemFailures == nil {
		t.Fatalf("the answer is %s: %v", answer, err)
	}
	for _, f := range shape.BatchItemFailures {
		if len(f) != 1 {
			t.Errorf("a failure has the fields %v", f)
		}
		failed += f["itemIdentifier"] + " "
	}
	return strings.TrimSpace(failed), log, nil
}

// byBodyResult is a handler that does what the body says.
func byBodyResult(_ context.Context, m *worker.Message) error {
	switch m.Body {
	case "fail":
		return errors.New("failed")
	case "permanent":
		return worker.Permanent(errors.New("never"))
	case "snooze":
		return worker.Snooze(0)
	case "retry":
		return worker.RetryAfter(time.Minute, errors.New("later"))
	case "unavailable":
		return worker.Unavailable(errors.New("down"))
	case "duplicate":
		return worker.ErrDuplicate
	case "panic":
		panic("boom")
	case "goexit":
		runtime.Goexit()
	}
	return nil
}

func TestLambdaIsToldWhichMessagesFailed(t *testing.T) {
	bodies := []string{"ok", "fail", "ok", "permanent", "snooze", "retry", "unavailable", "duplicate", "panic", "goexit", "ok"}
	each(t, map[string]int{"one at a time": 1, "side by side": 4, "all at once": 100}, func(t *testing.T, concurrency int) {
		failed, log, err := invoke(t, worker.HandlerFunc(byBodyResult), worker.LambdaConfig{Concurrency: concurrency}, lambdaEvent(lambdaQueue, bodies...))
		if want := "m-1 m-3 m-4 m-5 m-6 m-8 m-9"; err != nil || failed != want {
			t.Errorf("failed are %q, %v, want %q", failed, err, want)
		}
		if n := len(log.with("handler failed")); n != 5 {
			t.Errorf("%d failures were logged, want 5", n)
		}
	})
	bubble(t, func(t *testing.T) {
		if failed, _, err := invoke(t, worker.HandlerFunc(succeed), worker.LambdaConfig{}, lambdaEvent(lambdaQueue, "a", "b")); failed != "" || err != nil {
			t.Errorf("failed are %q, %v, want none", failed, err)
		}
	})
}

func TestLambdaOnAFIFOQueueStopsAtTheFirstFailureAndReturnsTheRest(t *testing.T) {
	each(t, map[string]string{"failure": "fail", "snooze": "snooze", "panic": "panic", "goexit": "goexit", "permanent": "permanent"}, func(t *testing.T, kind string) {
		var ran []string
		failed, _, err := invoke(t, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			ran = append(ran, m.ID)
			return byBodyResult(ctx, m)
		}), worker.LambdaConfig{Concurrency: 10}, lambdaEvent(lambdaQueue+".fifo", "ok", "ok", kind, "ok", "ok"))
		if err != nil || failed != "m-2 m-3 m-4" || strings.Join(ran, " ") != "m-0 m-1 m-2" {
			t.Errorf("ran %v, failed %q, %v", ran, failed, err)
		}
	})
}

func TestLambdaHandlersSeeTheMessageAsAWorkerReceivesIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var seen *worker.Message
		_, _, err := invoke(t, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			seen = m
			if err := worker.ExtendVisibility(ctx, time.Minute); !errors.Is(err, worker.ErrNoLease) {
				t.Errorf("ExtendVisibility: %v", err)
			}
			if _, ok := worker.LeaseDeadline(ctx); ok {
				t.Error("there is a lease deadline")
			}
			if ctx.Value(testKey{}) != nil {
				t.Error("a value from nowhere")
			}
			return nil
		}), worker.LambdaConfig{}, lambdaEvent(lambdaQueue, "body"))
		if err != nil {
			t.Fatal(err)
		}
		got := []any{seen.ID, seen.Body, seen.QueueURL, seen.ReceiveCount, seen.Attempt, seen.GroupID, seen.SenderID, seen.TraceHeader,
			seen.SentAt.UnixMilli(), seen.FirstReceivedAt.UnixMilli(), seen.ReceivedAt.Equal(time.Now()), seen.Attribute("type"), string(seen.Attributes["blob"].BinaryValue)}
		want := []any{"m-0", "body", "https://sqs.eu-west-1.amazonaws.com/123456789012/work", 2, 2, "g0", "AIDA", "Root=1",
			int64(1545082649183), int64(1545082649185), true, "order", "\x01\x02\x03"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

type testKey struct{}

func TestLambdaContextHasTheDeadlineLessTheReserve(t *testing.T) {
	each(t, map[string]struct{ reserve, want time.Duration }{"default": {0, 9 * time.Second}, "own": {3 * time.Second, 7 * time.Second}}, func(t *testing.T, c struct{ reserve, want time.Duration }) {
		began := time.Now()
		failed, _, err := invoke(t, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if at, ok := ctx.Deadline(); !ok || at.Sub(began) != c.want {
				t.Errorf("the deadline is after %v, want %v", at.Sub(began), c.want)
			}
			if m.Body == "quick" {
				return nil
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), worker.ErrShutdown) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return context.Cause(ctx)
		}), worker.LambdaConfig{Reserve: c.reserve, Concurrency: 2}, lambdaEvent(lambdaQueue, "slow", "quick", "slow", "not started"))
		if failed != "m-0 m-2 m-3" || err != nil {
			t.Errorf("failed are %q, %v", failed, err)
		}
		if took := time.Since(began); took != c.want {
			t.Errorf("answered after %v, want %v", took, c.want)
		}
	})
}

func TestLambdaAnswersWithoutHandlersThatDoNotReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		failed, log, err := invoke(t, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.Body == "deaf" {
				time.Sleep(time.Minute)
			}
			return nil
		}), worker.LambdaConfig{DeadLetter: &sinkhole{}}, lambdaEvent(lambdaQueue, "ok", "deaf", "ok"))
		if took := time.Since(began); took >= 10*time.Second || failed != "m-1" || err != nil {
			t.Errorf("after %v: %q, %v", took, failed, err)
		}
		time.Sleep(time.Hour) // it returns in the end, and changes nothing
		if len(log.with("unreturned=1")) != 1 || len(log.with("a handler returned after its invocation was answered")) != 1 {
			t.Errorf("the log:\n%s", log)
		}
	})
}

func TestLambdaHandlerTimeoutIsAFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		failed, _, err := invoke(t, takes(5*time.Second), worker.LambdaConfig{HandlerTimeout: 2 * time.Second}, lambdaEvent(lambdaQueue, "a"))
		if failed != "m-0" || err != nil {
			t.Errorf("failed are %q, %v", failed, err)
		}
	})
}

func TestLambdaSendsPermanentFailuresToTheSink(t *testing.T) {
	each(t, map[string]error{"sink works": nil, "sink fails": errors.New("full")}, func(t *testing.T, sinkErr error) {
		sink := &sinkhole{err: sinkErr}
		failed, _, err := invoke(t, worker.HandlerFunc(byBodyResult), worker.LambdaConfig{DeadLetter: sink, Middleware: []worker.Middleware{worker.SNS(topic)}},
			lambdaEvent(lambdaQueue, "ok", envelope("permanent", nil), "fail"))
		want := "m-2"
		if sinkErr != nil {
			want = "m-1 m-2"
		}
		if failed != want || err != nil {
			t.Errorf("failed are %q, %v, want %q", failed, err, want)
		}
		if len(sink.reasons) != 1 || sink.reasons[0] != "never" || !strings.Contains(sink.bodies[0], "TopicArn") {
			t.Errorf("the sink got %q: it must get the message as it was received", sink.reasons)
		}
	})
}

func TestLambdaCanReturnTheWholeBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, err := invoke(t, worker.HandlerFunc(byBodyResult), worker.LambdaConfig{WholeBatch: true}, lambdaEvent(lambdaQueue, "ok", "fail"))
		if err == nil || !strings.Contains(err.Error(), "1 of 2 messages failed") {
			t.Errorf("got %v", err)
		}
		if failed, _, err := invoke(t, worker.HandlerFunc(byBodyResult), worker.LambdaConfig{WholeBatch: true}, lambdaEvent(lambdaQueue, "ok", "ok")); failed != "" || err != nil {
			t.Errorf("got %q, %v", failed, err)
		}
	})
}

func TestLambdaRefusesWhatIsNoSQSEvent(t *testing.T) {
	for name, c := range map[string]struct{ payload, err string }{
		"not JSON":       {"secret", "isn't JSON"},
		"a test event":   {`{"key1": "secret"}`, "has no Records"},
		"wrong shape":    {`{"Records": [{"body": {"secret": 1}}]}`, "field Records[0].body, at byte 22,"},
		"from Kinesis":   {`{"Records": [{"eventSource": "aws:kinesis"}]}`, "Records[0] of the Lambda event isn't from SQS"},
		"nameless":       {`{"Records": [{"eventSource": "aws:sqs", "body": "secret"}]}`, "Records[0] of the Lambda event has no messageId"},
		"null":           {`null`, "is null"},
		"null Records":   {`{"Records": null}`, "has no Records"},
		"long before us": {lambdaEvent("arn:aws:sqs", "x")[:50], "ends too early"},
	} {
		_, _, err := invoke(t, worker.HandlerFunc(succeed), worker.LambdaConfig{}, c.payload)
		if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", name, err, c.err)
		}
	}
	if failed, _, err := invoke(t, worker.HandlerFunc(succeed), worker.LambdaConfig{}, `{"Records": []}`); failed != "" || err != nil {
		t.Errorf("no messages: %q, %v", failed, err)
	}
}

func TestLambdaFailsCorruptBodiesAlone(t *testing.T) {
	payload := strings.Replace(lambdaEvent(lambdaQueue, "a", "b"), `"md5OfBody":""`, `"md5OfBody":"0cc175b9c0f1b6a831c399e269772662"`, 1)
	if failed, _, err := invoke(t, worker.HandlerFunc(succeed), worker.LambdaConfig{}, payload); failed != "m-0" || err != nil {
		t.Errorf("failed are %q, %v", failed, err)
	}
}

func TestLambdaReportsAMessageThatCameTwiceOnce(t *testing.T) {
	payload := strings.ReplaceAll(lambdaEvent(lambdaQueue, "fail", "fail"), "m-1", "m-0")
	if failed, _, err := invoke(t, worker.HandlerFunc(byBodyResult), worker.LambdaConfig{}, payload); failed != "m-0" || err != nil {
		t.Errorf("failed are %q, %v", failed, err)
	}
}

func TestLambdaSaysOnceThatAfterDeleteHasNoEffect(t *testing.T) {
	ran := false
	_, log, err := invoke(t, worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
		m.AfterDelete(func(context.Context) error { ran = true; return nil })
		return nil
	}), worker.LambdaConfig{}, lambdaEvent(lambdaQueue, "a", "b", "c"))
	if err != nil || ran || len(log.with("AfterDelete")) != 1 {
		t.Errorf("got %v, ran %v, log:\n%s", err, ran, log)
	}
}

func TestLambdaBatchesAnInvocationWithoutLinger(t *testing.T) {
	each(t, map[string]struct {
		arn         string
		concurrency int
		want        string
	}{
		"more than one batch": {lambdaQueue, 25, "[10 10 5]"}, "fewer slots": {lambdaQueue, 6, "[6 6 6 6 1]"}, "FIFO": {lambdaQueue + ".fifo", 10, "[" + strings.TrimSpace(strings.Repeat("1 ", 25)) + "]"},
	}, func(t *testing.T, c struct {
		arn         string
		concurrency int
		want        string
	}) {
		var b batches
		began := time.Now()
		failed, _, err := invoke(t, worker.Batch(worker.BatchConfig{Linger: time.Minute}, b.all(0)), worker.LambdaConfig{Concurrency: c.concurrency},
			lambdaEvent(c.arn, strings.Split(strings.Repeat("x", 25), "")...))
		slices.SortFunc(b.sizes, func(x, y int) int { return y - x }) // batches run side by side: which comes first is open
		if failed != "" || err != nil || b.String() != c.want || time.Since(began) > time.Second {
			t.Errorf("batches of %s after %v, failed %q, %v, want %s", &b, time.Since(began), failed, err, c.want)
		}
	})
}

func TestLambdaInvocationsRunSideBySide(t *testing.T) {
	l, err := worker.NewLambda(worker.HandlerFunc(byBodyResult), worker.LambdaConfig{Logger: slog.New(&logbook{})})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			answer, err := l.Invoke(context.Background(), []byte(lambdaEvent(lambdaQueue, "ok", "fail")))
			if err != nil || string(answer) != `{"batchItemFailures":[{"itemIdentifier":"m-1"}]}` {
				t.Errorf("got %s, %v", answer, err)
			}
		}()
	}
	all.Wait()
}

func TestLambdaMistakesAreReportedTogether(t *testing.T) {
	_, err := worker.NewLambda(nil, worker.LambdaConfig{Concurrency: -1, HandlerTimeout: time.Hour, Reserve: time.Millisecond, Middleware: []worker.Middleware{nil}})
	for _, text := range []string{"no handler", "LambdaConfig.Concurrency is -1", "LambdaConfig.HandlerTimeout is 1h0m0s: must be from 1ms to 15m0s", "LambdaConfig.Reserve is 1ms: must be from 10ms", "LambdaConfig.Middleware[0] is nil"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q isn't in %v", text, err)
		}
	}
	if _, _, err := invoke(t, worker.HandlerFunc(succeed), worker.LambdaConfig{Reserve: time.Minute}, lambdaEvent(lambdaQueue, "a")); err == nil || !strings.Contains(err.Error(), "LambdaConfig.Reserve is 1m0s: must be less than the function's timeout") {
		t.Errorf("a reserve that is longer than the invocation: %v", err)
	}
}
