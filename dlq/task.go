package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// TaskClient is what move tasks take. *sqs.Client has it.
type TaskClient interface {
	attributesClient
	StartMessageMoveTask(context.Context, *sqs.StartMessageMoveTaskInput, ...func(*sqs.Options)) (*sqs.StartMessageMoveTaskOutput, error)
	ListMessageMoveTasks(context.Context, *sqs.ListMessageMoveTasksInput, ...func(*sqs.Options)) (*sqs.ListMessageMoveTasksOutput, error)
	CancelMessageMoveTask(context.Context, *sqs.CancelMessageMoveTaskInput, ...func(*sqs.Options)) (*sqs.CancelMessageMoveTaskOutput, error)
}

// Task is a move task of SQS's as it tells of it.
type Task struct {
	// Status is RUNNING, COMPLETED, CANCELLING, CANCELLED or FAILED.
	Status string `json:"status"`
	// Destination is an ARN; empty when messages go to where they came from.
	Destination string `json:"destination,omitempty"`
	// Rate in messages a second; zero when none was set.
	Rate int `json:"rate,omitempty"`
	// Moved and ToMove are approximate; ToMove is of the start.
	Moved     int64     `json:"moved"`
	ToMove    int64     `json:"toMove"`
	StartedAt time.Time `json:"startedAt"`
	// FailureReason of a FAILED one.
	FailureReason string `json:"failureReason,omitempty"`

	handle string // only while it is running
}

func (t Task) active() bool { return t.Status == "RUNNING" || t.Status == "CANCELLING" }

// Tasks lists a dead-letter queue's last move tasks, at most ten, the newest first.
func Tasks(ctx context.Context, c TaskClient, dlqURL string) ([]Task, error) {
	if isNil(c) {
		return nil, errNoClient
	}
	if err := checkURL(dlqURL); err != nil {
		return nil, err
	}
	q, err := readQueue(ctx, c, dlqURL)
	if err != nil {
		return nil, explain(err, "GetQueueAttributes", dlqURL)
	}
	tasks, err := listTasks(ctx, c, q.arn)
	return tasks, explain(err, "ListMessageMoveTasks", q.arn)
}

func listTasks(ctx context.Context, c TaskClient, arn string) ([]Task, error) {
	out, err := c.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: &arn, MaxResults: aws.Int32(10)})
	if err != nil {
		return nil, err
	}
	tasks := make([]Task, len(out.Results))
	for i, r := range out.Results {
		tasks[i] = Task{
			Status: aws.ToString(r.Status), Destination: aws.ToString(r.DestinationArn), Rate: int(aws.ToInt32(r.MaxNumberOfMessagesPerSecond)),
			Moved: r.ApproximateNumberOfMessagesMoved, ToMove: aws.ToInt64(r.ApproximateNumberOfMessagesToMove),
			StartedAt: time.UnixMilli(r.StartedTimestamp), FailureReason: aws.ToString(r.FailureReason), handle: aws.ToString(r.TaskHandle),
		}
	}
	return tasks, nil
}

// ErrNoTask says that no move task is running.
var ErrNoTask = errors.New("dlq: no move task is running")

// CancelTask cancels the running move task of a dead-letter queue. What it has moved stays moved, about as many as are returned; it ends a
// moment later, see [Tasks].
func CancelTask(ctx context.Context, c TaskClient, dlqURL string) (moved int64, err error) {
	tasks, err := Tasks(ctx, c, dlqURL)
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		if t.Status != "RUNNING" || t.handle == "" {
			continue
		}
		out, err := c.CancelMessageMoveTask(ctx, &sqs.CancelMessageMoveTaskInput{TaskHandle: &t.handle})
		if err != nil {
			return 0, explain(err, "CancelMessageMoveTask", dlqURL)
		}
		return out.ApproximateNumberOfMessagesMoved, nil
	}
	return 0, fmt.Errorf("%w: %s", ErrNoTask, nameOf(dlqURL))
}

// runTask starts a move task and follows it.
func (p *prepared) runTask(ctx context.Context) (*RedriveReport, error) {
	report := &RedriveReport{Via: MoveTask, DryRun: p.cfg.DryRun, StartedAt: time.Now(), Remaining: p.dead.counts()}
	if p.cfg.DryRun {
		report.WouldMove = report.Remaining.Visible
		report.Received = report.WouldMove
		return report, nil
	}
	in := &sqs.StartMessageMoveTaskInput{SourceArn: &p.dead.arn}
	if p.to != nil {
		in.DestinationArn = &p.to.arn
	}
	if p.cfg.Rate > 0 {
		in.MaxNumberOfMessagesPerSecond = aws.Int32(int32(p.cfg.Rate))
	}
	out, err := p.client.StartMessageMoveTask(ctx, in)
	if err != nil {
		if reason := refusal(err); reason != nil {
			return nil, reason
		}
		return nil, explain(err, "StartMessageMoveTask", p.dead.arn)
	}
	report.Task = "RUNNING"
	if p.cfg.Detach {
		return report, nil
	}
	err = p.follow(ctx, report, aws.ToString(out.TaskHandle))
	report.Took = time.Since(report.StartedAt)
	return report, err
}

// follow asks about the task until it has ended. Failures to ask don't end it: SQS goes on without us.
func (p *prepared) follow(ctx context.Context, report *RedriveReport, handle string) error {
	f := &following{prepared: p, report: report, handle: handle}
	cancelled := false
	for {
		wait := p.cfg.ProgressInterval
		if cancelled {
			wait = min(wait, time.Second)
		}
		timer := time.NewTimer(wait)
		stop := ctx.Done()
		if cancelled {
			stop = nil
		}
		select {
		case <-timer.C:
		case <-stop:
			timer.Stop()
			cancelled = true
			f.giveUpAt = time.Now().Add(30 * time.Second)
			f.cancel(ctx)
			continue
		}
		over, err := f.look(context.WithoutCancel(ctx))
		if over {
			if cancelled && err == nil {
				err = context.Cause(ctx)
			}
			return err
		}
	}
}

// following is a move task that is looked after.
type following struct {
	*prepared
	report   *RedriveReport
	handle   string
	started  time.Time // tells it from others once it has no handle any more
	failures int
	giveUpAt time.Time // after its cancellation
}

func (f *following) cancel(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	if _, err := f.client.CancelMessageMoveTask(ctx, &sqs.CancelMessageMoveTaskInput{TaskHandle: &f.handle}); err != nil && codeOf(err) != "InvalidParameterValue" {
		f.cfg.Logger.Warn("the move task could not be cancelled: it goes on", "queue", f.dead.name, "error", describe(err))
	}
}

// look asks once. It reports whether the task is over, and with which error.
func (f *following) look(ctx context.Context) (over bool, err error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	tasks, err := listTasks(ctx, f.client, f.dead.arn)
	if err != nil {
		f.failures++
		if !f.giveUpAt.IsZero() && time.Now().After(f.giveUpAt) || !isPassing(err) || f.failures > 100 {
			return true, fmt.Errorf("dlq: the move task of %s goes on, but it isn't known how: %w", f.dead.name, explain(err, "ListMessageMoveTasks", f.dead.arn))
		}
		return false, nil
	}
	f.failures = 0
	t, ok := f.find(tasks)
	if !ok {
		return true, fmt.Errorf("dlq: SQS doesn't list the move task of %s any more", f.dead.name)
	}
	f.started = t.StartedAt
	f.report.Task, f.report.Moved, f.report.Received = t.Status, t.Moved, t.Moved
	if f.cfg.Progress != nil {
		f.cfg.Progress(newProgress(MoveTask, t.ToMove, t.Moved, t.Moved, 0, f.report.StartedAt))
	}
	if t.active() {
		if !f.giveUpAt.IsZero() && time.Now().After(f.giveUpAt) {
			return true, fmt.Errorf("dlq: the move task of %s was cancelled but hasn't ended yet", f.dead.name)
		}
		return false, nil
	}
	if q, err := readQueue(ctx, f.client, f.dead.url); err == nil {
		f.report.Remaining = q.counts()
	}
	return true, f.ended(t)
}

func (f *following) find(tasks []Task) (Task, bool) {
	for i, t := range tasks {
		if t.handle != "" && t.handle == f.handle || f.started.IsZero() && i == 0 || !f.started.IsZero() && t.StartedAt.Equal(f.started) {
			return t, true
		}
	}
	return Task{}, false
}

func (f *following) ended(t Task) error {
	switch {
	case t.Status != "FAILED":
		return nil
	case t.FailureReason == "CouldNotDetermineMessageSource":
		return fmt.Errorf("dlq: the move task failed after %d messages: %w: the next one was sent to %s directly: set RedriveConfig.Destination", t.Moved, errSourceUnknownLate, f.dead.name)
	}
	return fmt.Errorf("dlq: the move task failed after %d messages: %s", t.Moved, t.FailureReason)
}

// errSourceUnknownLate is an ErrSourceUnknown that came too late to be a refusal.
var errSourceUnknownLate = &lateError{ErrSourceUnknown}

type lateError struct{ err error }

func (e *lateError) Error() string        { return "messages without a source" }
func (e *lateError) Is(target error) bool { return target == e.err }
