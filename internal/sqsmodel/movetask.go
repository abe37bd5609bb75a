package sqsmodel

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

const (
	maxMoveRate  = 500 // messages a second; also the pace of a task that sets none
	maxTasksList = 10
)

// moveTask moves the visible messages of a dead-letter queue, the oldest first,
// one at each tick of its rate. Nothing runs: whoever looks at the queues makes
// up for the ticks that have passed.
type moveTask struct {
	id, source, destination string // ARNs; no destination = each message's original source
	rate                    int32  // as asked for
	started, next           time.Time
	tick                    time.Duration
	status, failure         string
	moved, toMove           int64
}

const (
	taskRunning    = "RUNNING"
	taskCompleted  = "COMPLETED"
	taskCancelling = "CANCELLING"
	taskCancelled  = "CANCELLED"
	taskFailed     = "FAILED"
)

func (t *moveTask) active() bool { return t.status == taskRunning || t.status == taskCancelling }

// taskHandle is what AWS gives out: the task's id and its source, readable.
type taskHandle struct {
	TaskID    string `json:"taskId"`
	SourceARN string `json:"sourceArn"`
}

func (t *moveTask) handle() string {
	b, err := json.Marshal(taskHandle{t.id, t.source})
	if err != nil {
		panic(err) // two strings
	}
	return base64.StdEncoding.EncodeToString(b)
}

func (s *Server) startMessageMoveTask(x *exchange, in *sqs.StartMessageMoveTaskInput) (reply, error) {
	source, err := s.resource(in.SourceArn, "SourceArn")
	if err != nil {
		return nil, err
	}
	if err := s.checkTask(source, in); err != nil {
		return nil, err
	}
	t := &moveTask{
		id: s.uuid(), source: source.arn, destination: value(in.DestinationArn),
		started: x.now, status: taskRunning, toMove: int64(source.count[Visible]),
		tick: time.Second / maxMoveRate,
	}
	if in.MaxNumberOfMessagesPerSecond != nil {
		t.rate = *in.MaxNumberOfMessagesPerSecond
		t.tick = time.Second / time.Duration(t.rate)
	}
	t.next = x.now.Add(t.tick)
	s.tasks = append(s.tasks, t)
	for _, q := range s.queues {
		s.touch(q) // polls have the ticks to mind now
	}
	return object{text("TaskHandle", t.handle())}, nil
}

func (s *Server) checkTask(source *queue, in *sqs.StartMessageMoveTaskInput) *apiError {
	if n := in.MaxNumberOfMessagesPerSecond; n != nil && (*n < 1 || *n > maxMoveRate) {
		return invalidValue(*n, "MaxNumberOfMessagesPerSecond", "Must be between 1 and 500, if provided.")
	}
	isTarget := false
	for _, q := range s.queues {
		isTarget = isTarget || q.settings.deadLetterARN == source.arn
	}
	if !isTarget {
		return fail("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
	}
	if in.DestinationArn != nil {
		to, err := s.resource(in.DestinationArn, "DestinationArn")
		if err != nil {
			return err
		}
		if to == source {
			return fail("InvalidParameterValue", "Source queue arn and destination queue arn cannot be the same.")
		}
		if to.fifo != source.fifo {
			return fail("InvalidParameterValue", "Source queue and destination queue must be of the same type.")
		}
	}
	for _, t := range s.tasks {
		if t.source == source.arn && t.active() {
			return fail("InvalidParameterValue", "There is already a task running. Only one active task is allowed for a source queue arn at a given time.")
		}
	}
	return nil
}

func (s *Server) resource(arn *string, parameter string) (*queue, *apiError) {
	if value(arn) == "" {
		return nil, missing(parameter)
	}
	if !strings.HasPrefix(*arn, "arn:") || strings.Count(*arn, ":") != 5 {
		return nil, fail("InvalidParameterValue", "You must use this format to specify the %s: arn:<partition>:<service>:<region>:<account-id>:<resource-id>", parameter)
	}
	if q := s.byARN(*arn); q != nil {
		return q, nil
	}
	return nil, fail("ResourceNotFoundException", "The resource that you specified for the %s parameter doesn't exist.", parameter)
}

func (s *Server) listMessageMoveTasks(x *exchange, in *sqs.ListMessageMoveTasksInput) (reply, error) {
	source, err := s.resource(in.SourceArn, "SourceArn")
	if err != nil {
		return nil, err
	}
	limit := 1
	if n := in.MaxResults; n != nil {
		if *n < 1 || *n > maxTasksList {
			return nil, invalidValue(*n, "MaxResults", "Must be between 1 and 10, if provided.")
		}
		limit = int(*n)
	}
	var results []object
	for i := len(s.tasks) - 1; i >= 0 && len(results) < limit; i-- { // the newest first
		if t := s.tasks[i]; t.source == source.arn {
			results = append(results, t.describe())
		}
	}
	return object{objects("Results", results)}, nil
}

func (t *moveTask) describe() object {
	o := object{
		text("SourceArn", t.source), text("Status", t.status),
		number("ApproximateNumberOfMessagesMoved", t.moved),
		number("ApproximateNumberOfMessagesToMove", t.toMove),
		number("StartedTimestamp", t.started.UnixMilli()),
	}
	if t.destination != "" {
		o = append(o, text("DestinationArn", t.destination))
	}
	if t.rate != 0 {
		o = append(o, number("MaxNumberOfMessagesPerSecond", int64(t.rate)))
	}
	if t.status == taskRunning {
		o = append(o, text("TaskHandle", t.handle()))
	}
	if t.failure != "" {
		o = append(o, text("FailureReason", t.failure))
	}
	return o
}

// cancelMessageMoveTask stops a running task at its next tick. What it has moved
// stays where it is.
func (s *Server) cancelMessageMoveTask(x *exchange, in *sqs.CancelMessageMoveTaskInput) (reply, error) {
	if value(in.TaskHandle) == "" {
		return nil, missing("TaskHandle")
	}
	var h taskHandle
	b, err := base64.StdEncoding.DecodeString(*in.TaskHandle)
	if err != nil || json.Unmarshal(b, &h) != nil || h.TaskID == "" {
		return nil, fail("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")
	}
	if s.byARN(h.SourceARN) == nil {
		return nil, fail("ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist.")
	}
	for _, t := range s.tasks {
		if t.id != h.TaskID {
			continue
		}
		if t.status != taskRunning {
			return nil, fail("InvalidParameterValue", "Only active tasks can be cancelled.")
		}
		t.status = taskCancelling
		return object{number("ApproximateNumberOfMessagesMoved", t.moved)}, nil
	}
	return nil, fail("ResourceNotFoundException", "Task does not exist.")
}

// nextEvent is when time alone will next change what a poll of the queue sees.
func (s *Server) nextEvent(q *queue) (at time.Time, ok bool) {
	at, ok = q.nextEvent()
	for _, t := range s.tasks {
		feeds := t.active() && t.source != q.arn && (t.destination == "" || t.destination == q.arn)
		if feeds && (!ok || t.next.Before(at)) {
			at, ok = t.next, true
		}
	}
	return at, ok
}

// runTasks makes the moves that are due, each at its own time.
func (s *Server) runTasks(now time.Time) {
	for _, t := range s.tasks {
		for t.active() && !t.next.After(now) {
			s.move(t, t.next)
			t.next = t.next.Add(t.tick)
		}
	}
}

func (s *Server) move(t *moveTask, at time.Time) {
	from := s.byARN(t.source)
	if t.status == taskCancelling {
		t.status = taskCancelled
		return
	}
	if from == nil {
		t.fail("AWS.SimpleQueueService.NonExistentQueue")
		return
	}
	s.advance(from, at)
	m := from.visible.top()
	if m == nil {
		t.status = taskCompleted
		return
	}
	arn := t.destination
	if arn == "" {
		arn = m.sourceID
	}
	if arn == "" { // sent here directly, not by a redrive policy
		t.fail("CouldNotDetermineMessageSource")
		return
	}
	to := s.byARN(arn)
	if to == nil {
		t.fail("AWS.SimpleQueueService.NonExistentQueue")
		return
	}
	s.advance(to, at)
	s.resend(from, to, m, at)
	t.moved++
}

func (t *moveTask) fail(reason string) { t.status, t.failure = taskFailed, reason }

// resend is what makes a move different from a redrive policy's: the message
// that arrives is a new one, with an id, an age and a receive count of its own.
func (s *Server) resend(from, to *queue, m *message, at time.Time) {
	s.emit(from, m, Moved, at, encodeHandle(from, m), 0)
	s.remove(from, m)
	n := &message{
		id: s.uuid(), body: m.body, md5: m.md5, attrs: m.attrs, attrsMD5: m.attrsMD5, trace: m.trace,
		groupID: m.groupID, dedupID: m.dedupID, sentAt: at,
	}
	if to.fifo {
		n.sequence = s.sequenceNumber()
		to.dedup.add(to.dedupKey(n.groupID, n.dedupID), n, at.Add(s.cfg.DedupInterval))
	}
	if d := to.settings.delay; d > 0 {
		n.state, n.visibleAt = Delayed, at.Add(d)
	}
	s.add(to, n)
	s.emit(to, n, Sent, at, "", 0)
	s.serve(to, at)
}
