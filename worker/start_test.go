package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// runFor runs a worker on its own for at most d, and tells how long that took.
func (q *fixture) runFor(d time.Duration, c worker.Client, cfg worker.Config) (took time.Duration, log *logbook, err error) {
	q.t.Helper()
	log = &logbook{}
	cfg.Logger = slog.New(log)
	w, err := worker.New(c, q.url, worker.HandlerFunc(succeed), cfg)
	if err != nil {
		q.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	began := time.Now()
	err = w.Run(ctx)
	return time.Since(began), log, err
}

// A worker that could never work ends with an error, so that the deployment fails; and soon, without a receive.
func TestRunFailsWhenTheWorkerCouldNeverWork(t *testing.T) {
	type start struct {
		fault sqsmodel.Fault
		url   string
		words []string // in the error
	}
	attributes := func(code string) sqsmodel.Fault { return sqsmodel.Fault{Action: queueAttributes, Code: code} }
	receive := func(code string) sqsmodel.Fault { return sqsmodel.Fault{Action: receiveMessage, Code: code} }
	cases := map[string]start{
		"missing queue":           {url: goodURL + "-missing", words: []string{"work-missing", "NonExistentQueue"}},
		"other account":           {url: "https://sqs.us-east-1.amazonaws.com/999999999999/work", words: []string{"999999999999"}},
		"bad credentials":         {fault: attributes("UnrecognizedClientException"), words: []string{"credentials"}},
		"expired credentials":     {fault: attributes("ExpiredTokenException"), words: []string{"credentials"}},
		"bad signature":           {fault: attributes("InvalidSignatureException"), words: []string{"credentials"}},
		"denied receive":          {fault: receive("AccessDeniedException"), words: []string{"sqs:ReceiveMessage", "AccessDenied"}},
		"denied receive, expired": {fault: receive("ExpiredTokenException"), words: []string{"ExpiredToken"}},
		"denied key":              {fault: receive("KmsAccessDenied"), words: []string{"kms:Decrypt", "KMS.AccessDenied"}},
	}
	type start2 struct {
		start
		noCode bool
	}
	both := map[string]start2{}
	for name, c := range cases {
		both[name], both[name+", JSON code"] = start2{c, false}, start2{c, true}
	}
	each(t, both, func(t *testing.T, c start2) {
		q := newQueueAt(t, sqsmodel.Config{NoQueryErrorHeader: c.noCode})
		if c.url != "" {
			q.url = c.url
		}
		if c.fault.Action != "" {
			q.Inject(c.fault)
		}
		q.MustSend(testQueue, "a message")
		took, _, err := q.runFor(time.Hour, q.Client(), worker.Config{})
		if err == nil {
			t.Fatal("Run returned nil")
		}
		var drain *worker.DrainError
		if errors.As(err, &drain) {
			t.Errorf("the error is %v", err)
		}
		var said smithy.APIError
		if !errors.As(err, &said) || said.ErrorCode() == "" {
			t.Errorf("SQS's own error isn't in %v", err)
		}
		for _, word := range c.words {
			if c.noCode && strings.Contains("NonExistentQueue KMS.AccessDenied", word) {
				continue // there are two names for these
			}
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q isn't in %q", word, err)
			}
		}
		if took > 25*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := q.Count(receiveMessage); n > 1 {
			t.Errorf("%d receives", n)
		}
		q.mustHaveHappened(sqsmodel.Received, 0)
		q.mustBeQuiet()
	})
}

// An endpoint of one's own hides the Region of the URL from New: SQS answers that the address is wrong.
func TestRunFailsForTheURLOfAnotherRegion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.url = "https://sqs.eu-west-1.amazonaws.com/123456789012/work"
		c := q.Client(func(o *sqs.Options) { o.BaseEndpoint = aws.String("https://sqs.us-east-1.amazonaws.com") })
		took, _, err := q.runFor(time.Hour, c, worker.Config{})
		if err == nil || !strings.Contains(err.Error(), "Region") || !strings.Contains(err.Error(), q.url) || took > 20*time.Second {
			t.Errorf("after %v Run returned %v", took, err)
		}
	})
}

func TestCredentialsThatCannotBeHadFailTheRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		c := q.Client(func(o *sqs.Options) {
			o.Credentials = aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{}, errors.New("no EC2 IMDS role found")
			}))
		})
		took, _, err := q.runFor(time.Hour, c, worker.Config{})
		if err == nil || !strings.Contains(err.Error(), "credentials") || took > time.Minute {
			t.Errorf("after %v Run returned %v", took, err)
		}
	})
}

// A queue that has just been made isn't there for everyone yet.
func TestRunWaitsALittleForANewQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := &fixture{Server: sqsmodel.New(sqsmodel.Config{}), t: t, url: goodURL}
		var r runs
		w := q.start(r.handler(succeed), worker.Config{})
		if err := w.Healthy(); err == nil {
			t.Error("healthy before its start")
		}
		time.Sleep(time.Second)
		q.MustCreateQueue(testQueue, nil)
		q.send(1)
		q.mustEmpty(5 * time.Second)
		w.mustStop()
	})
}

// SQS itself being down is no reason to give up: Run starts when it is back.
func TestRunWaitsForSQSToAnswer(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"5xx": {Code: "ServiceUnavailable"}, "throttled": {Code: "RequestThrottled"}, "dropped": {DropBefore: true}, "hanging": {Stall: true},
		"KMS throttled": {Code: "KmsThrottled"},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueue(t)
		fault.Action = queueAttributes
		remove := q.Inject(fault)
		q.send(1)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(10 * time.Minute)
		w.mustBeRunning()
		if err := w.Healthy(); err == nil {
			t.Error("healthy while starting")
		}
		if n := q.Count(queueAttributes); n > 100 {
			t.Errorf("%d calls in 10 minutes", n)
		}
		if lines := w.log.atLeast(slog.LevelWarn); len(lines) == 0 || len(lines) > 10 {
			t.Errorf("%d log lines in 10 minutes", len(lines))
		}
		if n := q.Count(receiveMessage); n != 0 {
			t.Errorf("%d receives before the start", n)
		}
		remove()
		q.mustEmpty(31 * time.Second)
		if err := w.Healthy(); err != nil {
			t.Error(err)
		}
		w.mustStop()
	})
}

func TestStopBeforeTheStartIsDoneReturnsAtOnce(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{
		"hanging": {Stall: true}, "failing": {Code: "ServiceUnavailable"}, "missing": {Code: "QueueDoesNotExist", Times: 1},
	}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueue(t)
		fault.Action = queueAttributes
		q.Inject(fault)
		took, log, err := q.runFor(time.Millisecond, q.Client(), worker.Config{})
		if err != nil || took > 10*time.Millisecond {
			t.Errorf("after %v Run returned %v", took, err)
		}
		if n := q.Count(receiveMessage); n != 0 {
			t.Errorf("%d receives", n)
		}
		log.mustHaveNo(t, slog.LevelError)
		q.mustBeQuiet()
	})
}

func TestRunWithAnEndedContextReceivesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(3)
		took, _, err := q.runFor(-time.Second, q.Client(), worker.Config{})
		if err != nil || took != 0 {
			t.Errorf("after %v Run returned %v", took, err)
		}
		q.mustHaveHappened(sqsmodel.Received, 0)
		q.mustBeQuiet()
	})
}

// Settings that will hurt one day are named at the start, each once.
func TestOddSettingsAreWarnedOfOnce(t *testing.T) {
	type setting struct {
		queue  []string
		dlq    string // its retention; "" = no dead-letter queue
		most   int    // maxReceiveCount
		latest string // JSON of maxReceiveCount, where it isn't a string
		words  []string
	}
	each(t, map[string]setting{
		"good":                       {dlq: "1209600", most: 3},
		"good, number":               {dlq: "1209600", most: 3, latest: `3`},
		"no dead-letter queue":       {words: []string{"no dead-letter queue"}},
		"one receive":                {dlq: "1209600", most: 1, words: []string{"maxReceiveCount is 1"}},
		"one receive, number":        {dlq: "1209600", most: 1, latest: `1`, words: []string{"maxReceiveCount is 1"}},
		"retention as long":          {dlq: "345600", most: 3, words: []string{"retention"}},
		"retention shorter":          {dlq: "3600", most: 3, words: []string{"retention"}},
		"retention longer":           {queue: []string{"MessageRetentionPeriod", "3600"}, dlq: "7200", most: 3},
		"no visibility":              {queue: []string{"VisibilityTimeout", "0"}, dlq: "1209600", most: 3, words: []string{"VisibilityTimeout is 0"}},
		"one receive and retention":  {dlq: "345600", most: 1, words: []string{"maxReceiveCount is 1", "retention"}},
		"retention of 14 days, both": {queue: []string{"MessageRetentionPeriod", "1209600"}, dlq: "1209600", most: 3, words: []string{"retention"}},
	}, func(t *testing.T, c setting) {
		q := &fixture{Server: sqsmodel.New(sqsmodel.Config{}), t: t}
		values := map[string]string{}
		for i := 0; i < len(c.queue); i += 2 {
			values[c.queue[i]] = c.queue[i+1]
		}
		if c.dlq != "" {
			q.MustCreateQueue(testDLQ, map[string]string{"MessageRetentionPeriod": c.dlq})
			count := c.latest
			if count == "" {
				count = fmt.Sprintf(`"%d"`, c.most)
			}
			values["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%s}`, q.Queue(testDLQ).ARN, count)
		}
		q.url = q.MustCreateQueue(testQueue, values)
		q.send(30)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		time.Sleep(time.Hour)
		w.mustStop()
		q.mustBeEmpty()
		lines := w.log.atLeast(slog.LevelWarn)
		if len(lines) != len(c.words) {
			t.Errorf("logged %q, want %d lines", lines, len(c.words))
		}
		for _, word := range c.words {
			if len(w.log.with("level=WARN", word)) != 1 {
				t.Errorf("no line, or several, about %q", word)
			}
		}
	})
}

// What the check of the dead-letter queue may not read is no reason to make noise, nor to wait.
func TestDeadLetterQueueThatCannotBeReadIsNoProblem(t *testing.T) {
	each(t, map[string]sqsmodel.Fault{"denied": {Code: "AccessDeniedException"}, "gone": {Code: "QueueDoesNotExist"}, "hanging": {Stall: true}}, func(t *testing.T, fault sqsmodel.Fault) {
		q := newQueueWithDLQ(t, 3)
		fault.Action, fault.Queue = queueAttributes, testDLQ
		q.Inject(fault)
		q.send(1)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		q.mustEmpty(6 * time.Second)
		w.mustStop()
		w.log.mustHaveNo(t, slog.LevelWarn)
	})
}

func TestHeartbeatIntervalMustFitTheQueuesVisibility(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t, "VisibilityTimeout", "10")
		_, _, err := q.runFor(time.Hour, q.Client(), worker.Config{HeartbeatInterval: 8 * time.Second})
		if err == nil || !strings.Contains(err.Error(), "HeartbeatInterval") || !strings.Contains(err.Error(), "10s") {
			t.Errorf("Run returned %v", err)
		}
		q.mustBeQuiet()
	})
}

func TestSecondRunIsRefusedWhileTheFirstRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Name: "orders"})
		synctest.Wait()
		if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "orders") {
			t.Errorf("the second Run returned %v", err)
		}
		ids := q.send(1)
		q.mustEmpty(time.Second)
		w.mustBeRunning()
		w.mustStop()
		if n := len(q.events(ids[0], sqsmodel.Received)); n != 1 {
			t.Errorf("%d receives of one message", n)
		}
	})
}

func TestWorkerRunsAgainAfterEachKindOfEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		var r runs
		w, err := worker.New(q.Client(), q.url, r.handler(succeed), worker.Config{Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range []sqsmodel.Fault{
			{}, {Action: queueAttributes, Code: "QueueDoesNotExist"}, {Action: receiveMessage, Code: "AccessDeniedException"},
			{Action: receiveMessage, Stall: true}, {Action: queueAttributes, Stall: true},
		} {
			remove := func() {}
			if fault.Action != "" {
				remove = q.Inject(fault)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_ = w.Run(ctx)
			cancel()
			remove()

			ids := q.send(3)
			ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
			if err := w.Run(ctx); err != nil {
				t.Errorf("after %+v: %v", fault, err)
			}
			cancel()
			r.mustHaveRunOnce(t, ids)
			if s := w.Stats(); s.Deleted != 3 {
				t.Errorf("the new run counts %d deletes, want its own 3", s.Deleted)
			}
			q.mustBeEmpty()
		}
	})
}

// Stats and Healthy may be asked at any time, before, during and after a run.
func TestStatsAndHealthAreSafeAtAnyTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		log := &logbook{}
		w, err := worker.New(q.Client(), q.url, worker.HandlerFunc(takes(50*time.Millisecond)), worker.Config{Logger: slog.New(log), WaitTime: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if s := w.Stats(); s != (worker.Stats{}) {
			t.Errorf("before Run: %+v", s)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				_, _ = w.Stats(), w.Healthy()
				time.Sleep(time.Millisecond)
			}
		}()
		for range 3 {
			q.send(50)
			during, stop := context.WithTimeout(context.Background(), 500*time.Millisecond)
			if err := w.Run(during); err != nil {
				t.Error(err)
			}
			stop()
		}
		cancel()
		<-done
		if s := w.Stats(); s.Held+s.Waiting+s.Running+s.Unsettled+s.OpenReceives != 0 {
			t.Errorf("after Run: %+v", s)
		}
	})
}
