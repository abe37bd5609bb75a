package sqsmodel_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// deadLettered fills a dead-letter queue through its source.
func (a *account) deadLettered(n int) (url, dlq string) {
	url, dlq = a.withDLQ("work", 1)
	for i := range n {
		a.send(url, fmt.Sprint(i))
	}
	for len(a.receive(url, visibility(1))) > 0 {
	}
	time.Sleep(time.Second)
	a.bodies(a.receive(url))
	return url, dlq
}

func (a *account) startMove(source, destination string, rate int32) (handle string, err error) {
	in := &sqs.StartMessageMoveTaskInput{SourceArn: aws.String(arn(source))}
	if destination != "" {
		in.DestinationArn = aws.String(arn(destination))
	}
	if rate != 0 {
		in.MaxNumberOfMessagesPerSecond = &rate
	}
	out, err := a.c.StartMessageMoveTask(a.Context(), in)
	if err != nil {
		return "", err
	}
	return *out.TaskHandle, nil
}

func (a *account) moves(source string) []types.ListMessageMoveTasksResultEntry {
	a.Helper()
	out, err := a.c.ListMessageMoveTasks(a.Context(), &sqs.ListMessageMoveTasksInput{SourceArn: aws.String(arn(source)), MaxResults: aws.Int32(10)})
	a.ok(err)
	return out.Results
}

func TestMoveTaskBringsMessagesBackAsNewOnes(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.deadLettered(3)
		old := a.s.Queue(dlq).Messages
		_, err := a.startMove("work-dlq", "", 0)
		a.ok(err)
		a.bodies(a.receive(url, wait(20), visibility(1)), "0") // a long poll sees the first one arrive
		time.Sleep(time.Minute)
		a.state(dlq, 0, 0, 0)
		for i, m := range a.s.Queue(url).Messages {
			if m.Body != old[i].Body || m.ID == old[i].ID || !m.SentAt.After(old[i].SentAt) || m.DeadLetterSourceARN != "" {
				t.Errorf("moved %+v to %+v", old[i], m)
			}
			if i > 0 && m.ReceiveCount != 0 {
				t.Errorf("%s was received %d times", m.Body, m.ReceiveCount)
			}
		}
		task := a.moves("work-dlq")[0]
		if *task.Status != "COMPLETED" || task.ApproximateNumberOfMessagesMoved != 3 || *task.ApproximateNumberOfMessagesToMove != 3 ||
			task.TaskHandle != nil || task.DestinationArn != nil {
			t.Errorf("got %+v", task)
		}
		a.events(sqsmodel.Moved, 3)
	})
}

func TestMoveTaskKeepsItsRateAndCanBeCancelled(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.deadLettered(10)
		handle, err := a.startMove("work-dlq", "work", 2)
		a.ok(err)
		time.Sleep(2 * time.Second)
		a.state(url, 4, 0, 0)
		task := a.moves("work-dlq")[0]
		if *task.Status != "RUNNING" || *task.TaskHandle != handle || task.ApproximateNumberOfMessagesMoved != 4 ||
			*task.MaxNumberOfMessagesPerSecond != 2 || *task.DestinationArn != arn("work") {
			t.Errorf("got %+v", task)
		}
		_, err = a.startMove("work-dlq", "work", 2)
		a.refused(err, "InvalidParameterValue", "There is already a task running. Only one active task is allowed for a source queue arn at a given time.")
		out, err := a.c.CancelMessageMoveTask(a.Context(), &sqs.CancelMessageMoveTaskInput{TaskHandle: &handle})
		a.ok(err)
		if out.ApproximateNumberOfMessagesMoved != 4 {
			t.Errorf("moved %d", out.ApproximateNumberOfMessagesMoved)
		}
		if st := *a.moves("work-dlq")[0].Status; st != "CANCELLING" {
			t.Error(st)
		}
		time.Sleep(time.Minute)
		if st := *a.moves("work-dlq")[0].Status; st != "CANCELLED" {
			t.Error(st)
		}
		a.state(url, 4, 0, 0)
		a.state(dlq, 6, 0, 0)
		_, err = a.c.CancelMessageMoveTask(a.Context(), &sqs.CancelMessageMoveTaskInput{TaskHandle: &handle})
		a.refused(err, "InvalidParameterValue", "Only active tasks can be cancelled.")
		_, err = a.startMove("work-dlq", "work", 0)
		a.ok(err)
		time.Sleep(time.Minute)
		if tasks := a.moves("work-dlq"); len(tasks) != 2 || *tasks[0].Status != "COMPLETED" || *tasks[1].Status != "CANCELLED" {
			t.Errorf("tasks %+v", tasks)
		}
	})
}

func TestMoveTaskFails(t *testing.T) {
	t.Run("on a message that was sent to the dead-letter queue", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			_, dlq := a.deadLettered(1)
			a.send(dlq, "direct")
			_, err := a.startMove("work-dlq", "", 0)
			a.ok(err)
			time.Sleep(time.Second)
			task := a.moves("work-dlq")[0]
			if *task.Status != "FAILED" || *task.FailureReason != "CouldNotDetermineMessageSource" || task.ApproximateNumberOfMessagesMoved != 1 {
				t.Errorf("got %+v", task)
			}
			_, err = a.startMove("work-dlq", "work", 0) // with a destination it works
			a.ok(err)
			time.Sleep(time.Second)
			a.state(dlq, 0, 0, 0)
		})
	})
	t.Run("when its destination is deleted", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			_, dlq := a.deadLettered(10)
			other := a.queue("other")
			_, err := a.startMove("work-dlq", "other", 1)
			a.ok(err)
			time.Sleep(3 * time.Second)
			_, err = a.c.DeleteQueue(a.Context(), &sqs.DeleteQueueInput{QueueUrl: &other})
			a.ok(err)
			time.Sleep(time.Second)
			task := a.moves("work-dlq")[0]
			if *task.Status != "FAILED" || *task.FailureReason != "AWS.SimpleQueueService.NonExistentQueue" || task.ApproximateNumberOfMessagesMoved != 3 {
				t.Errorf("got %+v", task)
			}
			a.state(dlq, 7, 0, 0)
		})
	})
}

func TestMoveTaskLeavesWhatIsInFlight(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.deadLettered(3)
		a.one(dlq, visibility(1000))
		_, err := a.startMove("work-dlq", "", 0)
		a.ok(err)
		time.Sleep(time.Second)
		a.state(url, 2, 0, 0)
		a.state(dlq, 0, 1, 0)
	})
}

func TestMoveTaskKeepsFIFOGroups(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url, dlq := a.withDLQ("work.fifo", 1)
		a.sendGroup(url, "a/1", "a/2", "b/1")
		a.receive(url, visibility(1))
		time.Sleep(time.Second)
		a.bodies(a.receive(url))
		a.state(dlq, 3, 0, 0)
		_, err := a.startMove("work-dlq.fifo", "", 0)
		a.ok(err)
		time.Sleep(time.Second)
		got := a.receive(url)
		a.bodies(got, "a/1", "a/2", "b/1")
		if got[1].Attributes["MessageGroupId"] != "a" {
			t.Errorf("got %v", got[1].Attributes)
		}
	})
}

func TestMoveTaskRefusals(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		a.deadLettered(1)
		a.queue("other.fifo")
		for _, tc := range []struct {
			source, destination string
			rate                int32
			code, text          string
		}{
			{"work", "", 0, "InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."},
			{"missing", "", 0, "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."},
			{"work-dlq", "missing", 0, "ResourceNotFoundException", "The resource that you specified for the DestinationArn parameter doesn't exist."},
			{"work-dlq", "other.fifo", 0, "InvalidParameterValue", "must be of the same type."},
			{"work-dlq", "work-dlq", 0, "InvalidParameterValue", "cannot be the same."},
			{"work-dlq", "", 501, "InvalidParameterValue", "Must be between 1 and 500, if provided."},
		} {
			_, err := a.startMove(tc.source, tc.destination, tc.rate)
			a.refused(err, tc.code, tc.text)
		}
		cancel := func(handle string) error {
			_, err := a.c.CancelMessageMoveTask(a.Context(), &sqs.CancelMessageMoveTaskInput{TaskHandle: &handle})
			return err
		}
		a.refused(cancel("foobared"), "InvalidParameterValue", "Value for parameter TaskHandle is invalid.")
		handle, err := a.startMove("work-dlq", "", 1)
		a.ok(err)
		err = cancel("eyJ0YXNrSWQiOiJ4Iiwic291cmNlQXJuIjoieCJ9") // {"taskId":"x","sourceArn":"x"}
		a.refused(err, "ResourceNotFoundException", "SourceArn parameter doesn't exist.")
		a.status(err, 404)
		a.ok(cancel(handle))
		_, err = a.c.ListMessageMoveTasks(a.Context(), &sqs.ListMessageMoveTasksInput{SourceArn: aws.String("x")})
		a.refused(err, "InvalidParameterValue", "arn:<partition>:<service>:<region>:<account-id>:<resource-id>")
	})
}
