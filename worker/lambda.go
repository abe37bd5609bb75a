package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// LambdaConfig tunes a [Lambda]. The zero value is ready for production.
type LambdaConfig struct {
	// Concurrency is how many messages of one invocation are handled at once. From 1 to 10,000; default 10. Messages of a
	// FIFO queue are always handled one after the other.
	Concurrency int
	// HandlerTimeout ends a handler's context after that time, with cause [ErrHandlerTimeout]. From 1 ms to 15 minutes, the
	// longest that Lambda lets a function run; default none but the invocation's own.
	HandlerTimeout time.Duration
	// Reserve is the time before the invocation's deadline at which handlers are cancelled, with cause [ErrShutdown], and
	// nothing more is started, so that an answer gets out: when Lambda itself ends an invocation, all of its
	// messages come back, those that succeeded too. From 10 ms to 5 minutes; default a tenth of the time that there is
	// when the invocation begins, at most 2 s. Half of it is for handlers to return.
	Reserve time.Duration
	// DeadLetter takes messages that failed with [Permanent]; once it has one, Lambda deletes it from the queue. Default: none,
	// they come back until the queue's redrive policy takes them.
	DeadLetter DeadLetterer
	// WholeBatch fails the invocation when one message fails, so that all of its messages come back, instead of naming those
	// that failed. For a trigger whose ReportBatchItemFailures is off: Lambda doesn't look at the answer then, and would
	// delete the messages that failed.
	WholeBatch bool
	// Middleware wraps the handler; the first listed is the outermost.
	Middleware []Middleware
	// Logger takes what an operator should read. Default slog.Default().
	Logger *slog.Logger
}

// Lambda runs a [Handler] in AWS Lambda, behind an SQS trigger. It has the methods that Lambda runtimes call:
//
//	h, err := worker.NewLambda(handler, worker.LambdaConfig{})
//	...
//	lambda.Start(h) // github.com/aws/aws-lambda-go/lambda
//
// Switch on ReportBatchItemFailures in the trigger (FunctionResponseTypes in the event source mapping), or set
// [LambdaConfig.WholeBatch]: without either, Lambda deletes the messages that failed along with the others. It can't be
// seen from inside the function.
//
// Lambda receives, holds and deletes the messages; this only says which of them failed. So, unlike under a [Worker]:
//
//   - Every outcome but success and [ErrDuplicate] means one thing: the message comes back when the queue's visibility
//     timeout is over, and its receive count has grown. The durations of [RetryAfter] and [Snooze] have no effect, a
//     snoozed message does come nearer to the dead-letter queue, and [Unavailable] opens no breaker.
//   - The message is held for the queue's visibility timeout, at least as long as the function's timeout (Lambda refuses a
//     trigger otherwise; AWS advises six times as long). Nothing renews it: [ExtendVisibility] and [OnRenew] return [ErrNoLease],
//     [LeaseDeadline] has none. The invocation's deadline is what a handler goes by: its context has it.
//   - Functions added with [Message.AfterDelete] are never run, because nobody hears of the deletion. That is logged once.
//   - [Message.Attempt] is the receive count.
//
// On a FIFO queue messages are handled in their order, and the first failure ends the invocation: that message and all after
// it, whatever their group, are reported as failed, as AWS documents it for keeping their order.
//
// A panic fails its message. A handler that ignores the end of its context is not waited for: its message is reported as
// failed, and what it still does happens while Lambda has the process frozen, or during another invocation.
//
// It is safe for concurrent use.
type Lambda struct {
	handler Handler
	cfg     LambdaConfig
	log     *slog.Logger
	warned  sync.Once // about AfterDelete
}

const maxLambdaRun = 15 * time.Minute

// NewLambda returns h as a Lambda function. The error names everything that is wrong with the configuration.
func NewLambda(h Handler, cfg LambdaConfig) (*Lambda, error) {
	var errs []error
	if h == nil {
		errs = append(errs, errors.New("worker: no handler"))
	}
	handler, err := assemble(h, cfg.Middleware, nil)
	if err = errors.Join(append(errs, cfg.validate(), err)...); err != nil {
		return nil, err
	}
	setDefault(&cfg.Concurrency, 10)
	setDefault(&cfg.Logger, slog.Default())
	return &Lambda{handler: handler, cfg: cfg, log: cfg.Logger}, nil
}

func (c LambdaConfig) validate() error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("worker: LambdaConfig."+format, args...))
	}
	if c.Concurrency < 0 || c.Concurrency > maxBatch {
		add("Concurrency is %d: must be from 1 to %d", c.Concurrency, maxBatch)
	}
	if c.HandlerTimeout != 0 && (c.HandlerTimeout < time.Millisecond || c.HandlerTimeout > maxLambdaRun) {
		add("HandlerTimeout is %v: must be from 1ms to %v", c.HandlerTimeout, maxLambdaRun)
	}
	if c.Reserve != 0 && (c.Reserve < 10*time.Millisecond || c.Reserve > 5*time.Minute) {
		add("Reserve is %v: must be from 10ms to 5m0s", c.Reserve)
	}
	for i, m := range c.Middleware {
		if m == nil {
			add("Middleware[%d] is nil: remove it", i)
		}
	}
	return errors.Join(errs...)
}

// LambdaEvent is what Lambda gives a function for messages of an SQS queue.
type LambdaEvent struct {
	Records []LambdaRecord `json:"Records"`
}

// LambdaRecord is one message in it.
type LambdaRecord struct {
	MessageID         string                     `json:"messageId"`
	ReceiptHandle     string                     `json:"receiptHandle"`
	Body              string                     `json:"body"`
	Attributes        map[string]string          `json:"attributes"`
	MessageAttributes map[string]LambdaAttribute `json:"messageAttributes"`
	MD5OfBody         string                     `json:"md5OfBody"`
	EventSource       string                     `json:"eventSource"`
	EventSourceARN    string                     `json:"eventSourceARN"`
	AWSRegion         string                     `json:"awsRegion"`
}

// LambdaAttribute is a message attribute in it.
type LambdaAttribute struct {
	DataType    string  `json:"dataType"`
	StringValue *string `json:"stringValue,omitempty"`
	BinaryValue []byte  `json:"binaryValue,omitempty"`
}

// LambdaResponse tells Lambda which messages failed; it deletes the others.
type LambdaResponse struct {
	BatchItemFailures []LambdaItemFailure `json:"batchItemFailures"`
}

// LambdaItemFailure names one message.
type LambdaItemFailure struct {
	ItemIdentifier string `json:"itemIdentifier"`
}

// Invoke handles one invocation's payload. It makes a *Lambda a lambda.Handler of github.com/aws/aws-lambda-go. An error is
// for Lambda to give back all messages.
func (l *Lambda) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	var event LambdaEvent
	if err := (JSONConfig{}).decode(payload, &event, "Lambda event of an SQS queue"); err != nil {
		return nil, err
	}
	response, err := l.HandleEvent(ctx, event)
	if err != nil {
		return nil, err
	}
	return json.Marshal(response)
}

// HandleEvent handles one invocation, for runtimes that decode the payload. An error is for Lambda to give back all
// messages.
func (l *Lambda) HandleEvent(ctx context.Context, event LambdaEvent) (LambdaResponse, error) {
	in, err := l.begin(ctx, event)
	if err != nil {
		return LambdaResponse{}, err
	}
	defer in.cancel()
	in.run()
	return in.answer()
}

// invocation is one batch of messages on its way through the handler.
type invocation struct {
	l        *Lambda
	messages []*Message
	corrupt  []bool
	fifo     bool
	ctx      context.Context // the handlers'
	cancel   func()
	answerAt time.Time // zero: there is no deadline

	mu       sync.Mutex
	next     int    // the first message that isn't started
	done     []bool // to be deleted
	finished []bool
	closed   bool // the answer is made, later results don't count
}

// begin reads the event. What isn't a batch of SQS messages is refused as a whole: nothing of it can be named as failed.
func (l *Lambda) begin(ctx context.Context, event LambdaEvent) (*invocation, error) {
	if event.Records == nil {
		return nil, errors.New("worker: the Lambda event has no Records: the function's trigger must be an SQS queue")
	}
	n := len(event.Records)
	in := &invocation{l: l, messages: make([]*Message, n), corrupt: make([]bool, n), done: make([]bool, n), finished: make([]bool, n)}
	now := time.Now()
	for i := range event.Records {
		record := &event.Records[i]
		switch {
		case record.EventSource != "aws:sqs":
			return nil, fmt.Errorf("worker: Records[%d] of the Lambda event isn't from SQS: the function's trigger must be an SQS queue", i)
		case record.MessageID == "":
			return nil, fmt.Errorf("worker: Records[%d] of the Lambda event has no messageId", i)
		}
		in.messages[i], in.corrupt[i] = record.message(now)
		in.fifo = in.fifo || strings.HasSuffix(record.EventSourceARN, ".fifo")
	}
	in.ctx, in.cancel = ctx, func() {}
	if deadline, ok := ctx.Deadline(); ok {
		reserve := l.cfg.Reserve
		if reserve == 0 {
			reserve = max(0, min(deadline.Sub(now)/10, 2*time.Second))
		}
		if left := deadline.Sub(now); l.cfg.Reserve > 0 && reserve >= left {
			return nil, fmt.Errorf("worker: LambdaConfig.Reserve is %v: must be less than the function's timeout, of which %v is left", reserve, left.Round(time.Millisecond))
		}
		in.answerAt = deadline.Add(-reserve / 2)
		in.ctx, in.cancel = context.WithDeadlineCause(ctx, deadline.Add(-reserve), ErrShutdown)
	}
	return in, nil
}

// message is the record as a worker would have received it.
func (r *LambdaRecord) message(now time.Time) (m *Message, isCorrupt bool) {
	received := &types.Message{MessageId: &r.MessageID, Body: &r.Body, Attributes: r.Attributes}
	if r.MD5OfBody != "" {
		received.MD5OfBody = &r.MD5OfBody
	}
	if len(r.MessageAttributes) > 0 {
		received.MessageAttributes = make(map[string]types.MessageAttributeValue, len(r.MessageAttributes))
		for name, a := range r.MessageAttributes {
			received.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String(a.DataType), StringValue: a.StringValue, BinaryValue: a.BinaryValue}
		}
	}
	m = &Message{}
	m.fill(received, queueURLOf(r.EventSourceARN), now)
	m.Attempt = m.ReceiveCount
	return m, corrupt(received)
}

// queueURLOf makes the URL of a queue from its ARN, arn:aws:sqs:REGION:ACCOUNT:NAME.
func queueURLOf(arn string) string {
	parts := strings.Split(arn, ":")
	if len(parts) != 6 {
		return ""
	}
	domain := map[string]string{
		"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu", "aws-iso": "c2s.ic.gov", "aws-iso-b": "sc2s.sgov.gov",
	}[parts[1]]
	if domain == "" {
		domain = "amazonaws.com"
	}
	return fmt.Sprintf("https://sqs.%s.%s/%s/%s", parts[3], domain, parts[4], parts[5])
}

// run handles the messages, until all are done or the time is over.
func (in *invocation) run() {
	n := min(in.l.cfg.Concurrency, len(in.messages))
	if in.fifo {
		n = min(1, n)
	}
	slots := newArrivals(n, nil)
	ctx := context.WithValue(in.ctx, arrivalsKey{}, slots)
	var running sync.WaitGroup
	for range n {
		running.Add(1)
		go in.execute(ctx, slots, &running)
	}
	all := make(chan struct{})
	go func() {
		running.Wait()
		close(all)
	}()
	if in.answerAt.IsZero() {
		<-all
		return
	}
	waitUntil(all, in.answerAt)
}

// execute is a goroutine that handles one message after the other.
func (in *invocation) execute(ctx context.Context, slots *arrivals, running *sync.WaitGroup) {
	ended := false
	defer func() {
		if !ended { // the handler called runtime.Goexit
			go in.execute(ctx, slots, running)
			return
		}
		slots.shrink() // a batch needn't wait for more from here
		running.Done()
	}()
	for {
		i := in.take(ctx)
		if i < 0 {
			ended = true
			return
		}
		in.handle(ctx, i)
	}
}

// take picks the next message; -1 when there is none, or no time.
func (in *invocation) take(ctx context.Context) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	i := in.next
	if i == len(in.messages) || ctx.Err() != nil || (in.fifo && i > 0 && !in.done[i-1]) {
		return -1
	}
	in.next++
	return i
}

// handle runs one message and keeps its result.
func (in *invocation) handle(ctx context.Context, i int) {
	m := in.messages[i]
	err := errGoexit
	defer func() { in.finish(ctx, i, err) }()
	if in.corrupt[i] {
		err = errCorrupt
		return
	}
	err = in.l.call(ctx, m)
}

// call calls the handler; a panic becomes an error.
func (l *Lambda) call(ctx context.Context, m *Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	if timeout := l.cfg.HandlerTimeout; timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, ErrHandlerTimeout)
		defer cancel()
	}
	return l.handler.Handle(ctx, m)
}

func (in *invocation) finish(ctx context.Context, i int, err error) {
	m, o := in.messages[i], outcomeOf(ctx, err)
	if in.late() {
		in.l.log.Warn("a handler returned after its invocation was answered; its message comes back", "message", m, "outcome", o.kind.String())
		return
	}
	done := o.done()
	if !done {
		in.l.logFailure(m, o)
		done = in.l.deadLetter(ctx, m, err)
	} else if len(m.takeAfterDelete()) > 0 {
		in.l.warned.Do(func() {
			in.l.log.Warn("a handler used Message.AfterDelete, which has no effect under Lambda: what it would clean up needs another way, such as a lifecycle rule")
		})
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		in.done[i], in.finished[i] = done, true
	}
}

func (in *invocation) late() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.closed
}

func (l *Lambda) logFailure(m *Message, o outcome) {
	var panicked *panicError
	switch {
	case errors.As(o.err, &panicked):
		l.log.Error("handler panicked", "message", m, "panic", panicked.value, "stack", string(panicked.stack))
	case o.kind == failed || o.kind == unavailable:
		l.log.Warn("handler failed", "message", m, "error", o.err)
	}
}

// deadLetter hands a message that is beyond help to the sink, and reports whether it is safe there.
func (l *Lambda) deadLetter(ctx context.Context, m *Message, err error) bool {
	var permanent *permanentError
	if l.cfg.DeadLetter == nil || !errors.As(err, &permanent) {
		return false
	}
	failure := protect(func() error { return l.cfg.DeadLetter.DeadLetter(ctx, m, permanent.err) })
	if failure != nil {
		l.log.Warn("a message could not be sent to the dead-letter sink: it comes back", "message", m, "error", failure)
	}
	return failure == nil
}

// answer names the messages that aren't done, each once, in their order.
func (in *invocation) answer() (LambdaResponse, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	response := LambdaResponse{BatchItemFailures: []LambdaItemFailure{}}
	named := map[string]bool{}
	unreturned := 0
	for i, m := range in.messages {
		if i < in.next && !in.finished[i] {
			unreturned++
		}
		if !in.done[i] && !named[m.ID] {
			named[m.ID] = true
			response.BatchItemFailures = append(response.BatchItemFailures, LambdaItemFailure{m.ID})
		}
	}
	if unstarted := len(in.messages) - in.next; unstarted > 0 || unreturned > 0 {
		in.l.log.Warn("an invocation was answered before all of its messages were handled", "unstarted", unstarted, "unreturned", unreturned, "messages", len(in.messages))
	}
	if failed := len(response.BatchItemFailures); failed > 0 && in.l.cfg.WholeBatch {
		return LambdaResponse{}, fmt.Errorf("worker: %d of %d messages failed, and with LambdaConfig.WholeBatch all come back", failed, len(in.messages))
	}
	return response, nil
}
