package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func TestByItselfRedriveIsSQSsMoveTaskAtTheRate(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 500)
		var heard []dlq.Progress
		began := time.Now()
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Rate: 10, Progress: func(p dlq.Progress) { heard = append(heard, p) }})
		w.ok(err)
		if took := time.Since(began); took < 50*time.Second || took > 56*time.Second {
			t.Errorf("500 at 10/s took %v", took)
		}
		if r.Via != dlq.MoveTask || r.Task != "COMPLETED" || r.Moved != 500 || r.Remaining.Visible != 0 {
			t.Errorf("%+v", r)
		}
		w.mustHold(source, 500)
		w.mustHold(dead, 0)
		if n := len(heard); n < 20 || heard[n-1].Moved != 500 || heard[5].ToMove != 500 || heard[5].Left <= 0 || heard[5].PerSecond < 8 || heard[5].PerSecond > 11 {
			t.Errorf("%d reports, the sixth %+v", n, heard[5])
		}
		tasks, err := dlq.Tasks(context.Background(), w.client, dead)
		if err != nil || len(tasks) != 1 || tasks[0].Rate != 10 || tasks[0].Status != "COMPLETED" {
			t.Errorf("%+v, %v", tasks, err)
		}
	})
}

func TestADestinationIsTakenAsURLOrARN(t *testing.T) {
	each(t, map[string]bool{"URL": false, "ARN": true}, func(w *world, asARN bool) {
		source, dead := w.pair()
		repair := w.queue("repair")
		w.dead(source, 5)
		w.MustSend(dead, "direct") // with a destination these move too
		to := repair
		if asARN {
			to = arn("repair")
		}
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Destination: to})
		if err != nil || r.Via != dlq.MoveTask {
			w.t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(repair, 6)
		w.mustHold(source, 0)
	})
}

// The end of the context cancels the task; what was moved stays moved.
func TestTheEndOfTheContextCancelsTheTask(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 500)
		ctx, stop := context.WithTimeoutCause(context.Background(), 20*time.Second, errors.New("enough"))
		defer stop()
		r, err := w.redrive(ctx, dead, dlq.RedriveConfig{Rate: 10})
		if err == nil || err.Error() != "enough" || r.Task != "CANCELLED" || r.Moved < 190 || r.Moved > 215 {
			t.Errorf("%+v, %v", r, err)
		}
		time.Sleep(time.Minute)
		if got := len(w.Queue(source).Messages); int64(got) != r.Moved {
			t.Errorf("%d at the source, %d reported", got, r.Moved)
		}
	})
}

func TestADetachedTaskGoesOnAndCanBeCancelled(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 500)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Rate: 10, Detach: true})
		if err != nil || r.Task != "RUNNING" {
			t.Errorf("%+v, %v", r, err)
		}
		for _, via := range []dlq.Via{dlq.Automatic, dlq.MoveTask, dlq.Mover} { // the mover would take the task's messages
			if _, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: via}); !errors.Is(err, dlq.ErrTaskRunning) || !errors.Is(err, dlq.ErrRefused) {
				t.Errorf("%v: %v", via, err)
			}
		}
		time.Sleep(10 * time.Second)
		moved, err := dlq.CancelTask(context.Background(), w.client, dead)
		if err != nil || moved < 95 || moved > 105 {
			t.Errorf("%d moved, %v", moved, err)
		}
		time.Sleep(time.Second)
		if _, err := dlq.CancelTask(context.Background(), w.client, dead); !errors.Is(err, dlq.ErrNoTask) {
			t.Error(err)
		}
	})
}

// What AWS would refuse is refused before anything happens, with its reason; the conditions are the server's.
func TestEachRefusalSaysWhy(t *testing.T) {
	type refusal struct {
		cfg  dlq.RedriveConfig
		make func(w *world) (dead string)
		want error
		say  string
	}
	filled := func(w *world) string {
		source, dead := w.pair()
		w.dead(source, 3)
		return dead
	}
	cases := map[string]refusal{
		"not a dead-letter queue": {make: func(w *world) string { return w.queue("orders") }, want: dlq.ErrNotDeadLetterQueue, say: "orders"},
		"destination of the other type": {make: func(w *world) string { w.queue("other.fifo"); return filled(w) },
			cfg: dlq.RedriveConfig{Destination: arn("other.fifo")}, want: dlq.ErrDifferentType, say: "FIFO"},
		"destination is the dead-letter queue": {make: filled, cfg: dlq.RedriveConfig{Destination: arn("dead")}, want: dlq.ErrSameQueue},
		"no such destination":                  {make: filled, cfg: dlq.RedriveConfig{Destination: arn("nowhere")}, want: dlq.ErrNoDestination, say: "nowhere"},
		"destination in another Region":        {make: filled, cfg: dlq.RedriveConfig{Destination: "arn:aws:sqs:eu-west-1:123456789012:work"}, want: dlq.ErrNoDestination, say: "another account or Region"},
	}
	for name, c := range cases { // both ways
		for _, via := range []dlq.Via{dlq.MoveTask, dlq.Mover} {
			c.cfg.Via = via
			cases[name+", "+via.String()] = c
		}
	}
	cases["messages without a source, move-task"] = refusal{
		make: func(w *world) string { dead := filled(w); w.MustSend(dead, "direct"); return dead },
		cfg:  dlq.RedriveConfig{Via: dlq.MoveTask}, want: dlq.ErrSourceUnknown, say: "set RedriveConfig.Destination",
	}
	cases["longer than 36 hours"] = refusal{
		make: func(w *world) string {
			_, dead := w.pair()
			w.MustSend(dead, numbered(36*3600+1)...)
			return dead
		},
		cfg: dlq.RedriveConfig{Via: dlq.MoveTask, Rate: 1, Destination: arn("work")}, want: dlq.ErrTooLong, say: "36",
	}
	each(t, cases, func(w *world, c refusal) {
		dead := c.make(w)
		before := w.settings(dead)["ApproximateNumberOfMessages"]
		r, err := w.redrive(context.Background(), dead, c.cfg)
		if r != nil || !errors.Is(err, c.want) || !errors.Is(err, dlq.ErrRefused) || !strings.Contains(err.Error(), c.say) {
			w.t.Errorf("%+v, %v", r, err)
		}
		if n := w.Count("StartMessageMoveTask") + w.Count("SendMessageBatch"); n != 0 {
			w.t.Errorf("%d calls that move", n)
		}
		if after := w.settings(dead)["ApproximateNumberOfMessages"]; after != before {
			w.t.Errorf("%s messages became %s", before, after)
		}
	})
}

// Refused by SQS itself, because things changed between our look and the start.
func TestWhatSQSRefusesHasTheSameReasons(t *testing.T) {
	for want, answer := range map[error][2]string{
		dlq.ErrNotDeadLetterQueue: {"InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."},
		dlq.ErrTaskRunning:        {"InvalidParameterValue", "There is already a task running. Only one active task is allowed for a source queue arn at a given time."},
		dlq.ErrNoDestination:      {"ResourceNotFoundException", "The resource that you specified for the DestinationArn parameter doesn't exist."},
		dlq.ErrDifferentType:      {"InvalidParameterValue", "Source queue and destination queue must be of the same type."},
	} {
		bubble(t, func(w *world) {
			source, dead := w.pair()
			w.dead(source, 1)
			w.Inject(sqsmodel.Fault{Action: "StartMessageMoveTask", Code: answer[0], Message: answer[1]})
			if _, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{}); !errors.Is(err, want) {
				t.Errorf("want %v, got %v", want, err)
			}
		})
	}
}

// The look before sees ten; one that comes later fails the task.
func TestATaskThatMeetsAMessageWithoutASourceFailsWithThatReason(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 30)
		w.MustSend(dead, "direct")
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.MoveTask})
		if !errors.Is(err, dlq.ErrSourceUnknown) || errors.Is(err, dlq.ErrRefused) || r == nil || r.Task != "FAILED" || r.Moved == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// What a sink sent, a task can't send back; the mover can, by the sink's word.
func TestWhatASinkSentGoesBackByTheMover(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 2)
		sink := w.sink(dead, dlq.SinkConfig{})
		w.ok(sink.DeadLetter(context.Background(), &worker.Message{ID: "gone", Body: "copied", QueueURL: source}, errors.New("bad")))
		if _, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.MoveTask}); !errors.Is(err, dlq.ErrSourceUnknown) {
			t.Error(err)
		}
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{})
		if err != nil || r.Via != dlq.Mover || r.Moved != 3 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(source, 3)
		out, err := w.client.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &source, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}})
		w.ok(err)
		for _, m := range out.Messages {
			if len(m.MessageAttributes) != 0 {
				t.Errorf("the reason came along: %v", m.MessageAttributes)
			}
		}
	})
}

// Anybody who may send to the dead-letter queue can write a reason.
func TestAForgedReasonDoesNotChooseTheQueue(t *testing.T) {
	bubble(t, func(w *world) {
		_, dead := w.pair()
		payroll := w.queue("payroll")
		forge := func(queue string) {
			w.send(&sqs.SendMessageInput{QueueUrl: &dead, MessageBody: aws.String("pay me"), MessageAttributes: attribute(dlq.ReasonAttribute,
				fmt.Sprintf(`{"error":"x","id":"1","queue":%q,"last":"2026-01-01T00:00:00Z"}`, queue))})
		}
		forge(payroll)
		forge("https://sqs.us-east-1.amazonaws.com/666666666666/payroll")
		forge(dead)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Failed != 3 || r.Moved != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(payroll, 0)
		w.mustHold(dead, 3)
		// Another account's name isn't believed, only that of the queue; and only when it was said to be right.
		r, err = w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.Mover, Sources: []string{"payroll"}})
		if !errors.Is(err, dlq.ErrIncomplete) || r.Moved != 2 || r.Failed != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(payroll, 2)
	})
}

func TestADryRunOfATaskStartsNone(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 12)
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Via: dlq.MoveTask, DryRun: true})
		if err != nil || r.WouldMove != 12 || r.Moved != 0 || w.Count("StartMessageMoveTask") != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 12)
	})
}

// SQS goes on when it can't be asked, and so does the look at it.
func TestATaskIsFollowedThroughFailuresToAsk(t *testing.T) {
	bubble(t, func(w *world) {
		source, dead := w.pair()
		w.dead(source, 100)
		w.Inject(sqsmodel.Fault{Action: "ListMessageMoveTasks", Skip: 2, Times: 9, Code: "ServiceUnavailable"})
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Rate: 10})
		if err != nil || r.Moved != 100 || r.Task != "COMPLETED" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestBadRedriveConfigurationNamesEveryField(t *testing.T) {
	_, err := dlq.Redrive(context.Background(), nil, "dead", dlq.RedriveConfig{
		Via: 7, Rate: 200_000, Limit: -1, Batches: 201, Visibility: time.Second, ProgressInterval: time.Millisecond,
	})
	for _, word := range []string{"client", "queue URL", "Via is 7", "Rate is 200000", "Limit is -1", "Batches is 201", "Visibility is 1s", "ProgressInterval is 1ms"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v doesn't say %q", err, word)
		}
	}
	_, err = dlq.Redrive(context.Background(), nil, "dead", dlq.RedriveConfig{
		Via: dlq.MoveTask, Rate: 501, Filter: func(*dlq.Item) bool { return true }, Limit: 3, Detach: true,
	})
	for _, word := range []string{"Rate is 501", "a move task can't do Filter, Limit", "Detach"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v doesn't say %q", err, word)
		}
	}
}
