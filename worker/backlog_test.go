package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func workers(n int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return n, nil }
}

// publisher makes one that can't be wrong.
func publisher(t *testing.T, w *worker.Worker, cfg worker.BacklogConfig) *worker.BacklogPublisher {
	t.Helper()
	p, err := worker.NewBacklogPublisher(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// publish runs a publisher until the test ends, or stop is called.
func publish(t *testing.T, p *worker.BacklogPublisher) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func TestTheBacklogIncludesWhatIsInFlightSoThatTheLastWorkerIsntTakenAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10)
		q.send(1)
		w := q.start(takes(10*time.Minute), worker.Config{DrainTimeout: 11 * time.Minute})
		p := publisher(t, w.Worker, worker.BacklogConfig{Workers: workers(1)})
		time.Sleep(5 * time.Minute)
		b, err := p.Measure(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if b.Visible != 0 || b.InFlight != 1 || b.Total != 1 || b.PerWorker != 1 {
			t.Errorf("with one message in flight and none visible, the backlog is %+v", b)
		}
		w.mustStop() // scaled in all the same: the message is handled to its end
		if s := w.Stats(); s.Deleted != 1 {
			t.Errorf("%d messages deleted by the drain, want 1", s.Deleted)
		}
	})
}

func TestTheBacklogIsDividedByTheWorkersAndHeldAgainstWhatTheyCanDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueueWithDLQ(t, 10), newMetering(t)
		w := q.start(takes(2*time.Second), worker.Config{Concurrency: 4, Telemetry: x.config()})
		stdout := &bytes.Buffer{}
		p := publisher(t, w.Worker, worker.BacklogConfig{AcceptableLatency: time.Minute, Workers: workers(3), EMF: stdout})
		q.send(20)
		time.Sleep(30 * time.Second) // handled, so that the mean run is known
		in := &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String("later"), DelaySeconds: 900}
		if _, err := q.Client().SendMessage(context.Background(), in); err != nil {
			t.Fatal(err)
		}
		q.MustSend(strings.Replace(q.url, testQueue, testDLQ, 1), "dead", "dead")
		for range 3 {
			q.send(4)
			time.Sleep(100 * time.Millisecond)
		}
		mean := w.Stats().MeanHandling
		stop := publish(t, p)
		time.Sleep(time.Millisecond)
		b, err := p.Measure(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if b.Total != 13 || b.Delayed != 1 || b.Workers != 3 || b.DeadLettered != 2 {
			t.Errorf("the backlog is %+v, want 12 messages and a delayed one, and 2 dead ones", b)
		}
		want := time.Minute.Seconds() / mean.Seconds() * 4
		if d := b.AcceptablePerWorker - want; d > 1e-6 || d < -1e-6 || b.Load != b.PerWorker/b.AcceptablePerWorker || b.PerWorker != 13.0/3 {
			t.Errorf("the backlog is %+v, want %v acceptable for each worker", b, want)
		}
		got := x.collect()
		for name, want := range map[string]float64{"sqsworker.backlog.messages": 13, "sqsworker.backlog.per_worker": b.PerWorker,
			"sqsworker.backlog.acceptable_per_worker": b.AcceptablePerWorker, "sqsworker.backlog.load": b.Load, "sqsworker.backlog.dead_lettered": 2} {
			if v := value(got[name], ""); v != want {
				t.Errorf("%s is %v, want %v", name, v, want)
			}
		}
		stop()
		mustBeEMF(t, stdout.String(), b)
		if _, ok := x.collect()["sqsworker.backlog.messages"]; ok {
			t.Error("a backlog is reported although nobody publishes it any more")
		}
		w.mustStop()
	})
}

// mustBeEMF reads the first line as CloudWatch does: metrics are the members that the directive names, numbers all.
func mustBeEMF(t *testing.T, lines string, want worker.Backlog) {
	t.Helper()
	line, _, _ := strings.Cut(lines, "\n")
	var directive struct {
		AWS struct {
			Timestamp         int64
			CloudWatchMetrics []struct {
				Namespace  string
				Dimensions [][]string
				Metrics    []struct{ Name, Unit string }
			}
		} `json:"_aws"`
	}
	members := map[string]any{}
	if err := errors.Join(json.Unmarshal([]byte(line), &directive), json.Unmarshal([]byte(line), &members)); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if len(directive.AWS.CloudWatchMetrics) != 1 || directive.AWS.Timestamp == 0 {
		t.Fatalf("no metric directive: %s", line)
	}
	d := directive.AWS.CloudWatchMetrics[0]
	if d.Namespace != worker.DefaultNamespace || len(d.Dimensions) != 1 || !slices.Equal(d.Dimensions[0], []string{"QueueName"}) || members["QueueName"] != testQueue {
		t.Errorf("namespace or dimensions are wrong: %s", line)
	}
	var names []string
	for _, m := range d.Metrics {
		names = append(names, m.Name)
		if _, ok := members[m.Name].(float64); !ok {
			t.Errorf("metric %s has no value: %s", m.Name, line)
		}
	}
	all := worker.BacklogMetricNames()
	slices.Sort(names)
	slices.Sort(all)
	if !slices.Equal(names, all) {
		t.Errorf("metrics are %v, want %v", names, all)
	}
	if members["Backlog"] != float64(want.Total) || members["BacklogLoad"] != want.Load {
		t.Errorf("values are wrong: %s", line)
	}
}

func TestWithoutACountOfWorkersEachWorkerPublishesItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		stdout := &bytes.Buffer{}
		stop := publish(t, publisher(t, w.Worker, worker.BacklogConfig{EMF: stdout}))
		time.Sleep(3*time.Minute + time.Second)
		stop()
		if n := strings.Count(stdout.String(), `"Workers":1`); n != 4 || strings.Contains(stdout.String(), "BacklogPerWorker") {
			t.Errorf("%d lines in three minutes: %s", n, stdout)
		}
		w.mustStop()
	})
}

func TestABacklogThatCantBeMeasuredIsTriedAgainAndNotReportedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q, x := newQueueWithDLQ(t, 10), newMetering(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Telemetry: x.config()})
		time.Sleep(time.Second)
		stop := publish(t, publisher(t, w.Worker, worker.BacklogConfig{}))
		time.Sleep(time.Second)
		remove := q.Inject(sqsmodel.Fault{Action: queueAttributes, Code: "AccessDeniedException"})
		time.Sleep(5 * time.Minute)
		if _, ok := x.collect()["sqsworker.backlog.messages"]; ok {
			t.Error("a backlog of five minutes ago is reported")
		}
		if n := len(w.log.with("the backlog can't be published")); n != 3 { // the first, second and fourth
			t.Errorf("%d lines were logged for five failures", n)
		}
		remove()
		time.Sleep(time.Minute)
		if _, ok := x.collect()["sqsworker.backlog.messages"]; !ok {
			t.Error("the backlog isn't reported again")
		}
		stop()
		w.mustStop()
	})
}

func TestBacklogConfigReportsEveryMistake(t *testing.T) {
	_, err := worker.NewBacklogPublisher(nil, worker.BacklogConfig{Interval: time.Second, AcceptableLatency: -1, Namespace: "AWS/SQS"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"no worker", "Interval is 1s", "AcceptableLatency is -1ns", `Namespace is "AWS/SQS"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error doesn't say %q: %v", want, err)
		}
	}
}

func TestABacklogsWorkersThatCantBeCountedAreAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		w, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		down := errors.New("ECS is down")
		_, err = publisher(t, w, worker.BacklogConfig{Workers: func(context.Context) (int, error) { return 0, down }}).Measure(context.Background())
		if !errors.Is(err, down) {
			t.Errorf("the error is %v", err)
		}
	})
}
