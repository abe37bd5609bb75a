package dlq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

// RedriveClient is what [Redrive] calls. *sqs.Client has it.
//
// The move task needs sqs:StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask, ReceiveMessage, DeleteMessage and
// GetQueueAttributes on the dead-letter queue and SendMessage on the destination, by the caller's policy; where policies demand a VPC
// endpoint they must allow aws:CalledViaLast. The mover needs sqs:ReceiveMessage, DeleteMessage, ChangeMessageVisibility,
// GetQueueAttributes, ListDeadLetterSourceQueues and ListMessageMoveTasks on the dead-letter queue, and SendMessage and
// GetQueueAttributes on the destination. Encrypted queues: kms:Decrypt for the dead-letter queue's key, kms:Decrypt and
// kms:GenerateDataKey for the destination's.
type RedriveClient interface {
	PeekClient
	TaskClient
	ListDeadLetterSourceQueues(context.Context, *sqs.ListDeadLetterSourceQueuesInput, ...func(*sqs.Options)) (*sqs.ListDeadLetterSourceQueuesOutput, error)
	SendMessageBatch(context.Context, *sqs.SendMessageBatchInput, ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error)
}

// Via is who moves the messages.
type Via int

const (
	// Automatic: SQS's move task where it can do what is asked for, else the mover.
	Automatic Via = iota
	// MoveTask is SQS's own: it goes on when this process doesn't, at up to 500 messages a second and for up to 36 hours. It moves
	// everything that is in the dead-letter queue, as it is.
	MoveTask
	// Mover is this package's: it filters, edits, tries without doing, resumes, and goes as fast as it is let.
	Mover
)

func (v Via) String() string {
	return [...]string{"automatic", "move-task", "mover"}[min(max(v, 0), 2)]
}

// MarshalText writes the name.
func (v Via) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Resetter makes a consumer's idempotency record forget a message's work. The message has the destination as its QueueURL, its new body
// and attributes, and no ID: a new MessageId has no record. An error leaves the message in the dead-letter queue.
type Resetter interface {
	Reset(context.Context, *worker.Message) error
}

const (
	maxTaskRate     = 500            // StartMessageMoveTask in the SQS API reference
	maxTaskDuration = 36 * time.Hour // Configuring a dead-letter queue redrive in the SQS developer guide
)

// RedriveConfig says what is moved, where to and how. The zero value moves everything to where it came from.
type RedriveConfig struct {
	// Destination is the queue to send to, a URL or the ARN of a queue of the same account and Region. Default: each message goes back to
	// the queue that it came from, by SQS's word. A message that was sent to the dead-letter queue directly has no such word; if a
	// [Sink] sent it, the mover believes the sink's, but only for queues whose redrive policy names this dead-letter queue, and Sources.
	Destination string
	// Sources are further queues, by URL or name, to which messages may go back because a sink's reason says so.
	Sources []string
	// AnyQueue lets the mover take messages from a queue that isn't the dead-letter queue of any other, such as one that only a sink
	// sends to. Default: refused, because moving a live queue's messages away is hardly ever meant.
	AnyQueue bool

	// Via is who moves. Default [Automatic].
	Via Via
	// Rate is the most messages moved in a second. With a move task from 1 to 500, with the mover from 1 to 100,000; default: as fast as
	// it goes, which is up to 500 with a move task, and with the mover what Batches calls at once allow. Consumers that are to work through a
	// redrive beside their daily work want one.
	Rate int
	// Detach returns as soon as a move task has started; see [Tasks] and [CancelTask]. Not for the mover.
	Detach bool

	// DryRun looks and reports, and moves nothing. With the mover every message is received, decided on and given back; that is a receive.
	DryRun bool
	// Filter chooses what is moved; what it leaves stays. It is called concurrently. Default: everything. The mover has to hold what is left
	// until the end, or it would get it again: at most 100,000 messages, then [ErrTooManyHeld]. On a FIFO queue SQS keeps back what is behind
	// a held message in its group, but for what came with it in a receive of ten: that is in Remaining, for the next run.
	Filter func(*Item) bool
	// Edit changes Body, Attributes, GroupID or TraceHeader of what is moved. It is called concurrently; an error leaves the message where it is. To
	// change a payload that is in S3, read it with [Item.Payload], set Body, and delete the reserved attributes.
	Edit func(context.Context, *Item) error
	// Limit is how many messages are moved at most. Default: all.
	Limit int
	// Reset makes consumers run messages again whose work their idempotency records, by a business key, have as done. Default: records
	// are kept, and such messages are deleted unrun. A record whose key is the MessageId doesn't know a redriven message either way.
	Reset Resetter
	// Journal makes a redrive resumable: a second one with the same journal doesn't send again what the first had sent, and names what it
	// can't know about. Default none: after a crash a message that was sent but not deleted yet is sent again, unnamed.
	Journal Journal
	// Payloads reads payloads that are in S3, for [Item.Payload] in Filter and Edit.
	Payloads Payloads

	// Batches is how many batches of ten the mover has under way at once. From 1 to 200; default 16. It begins with one and adds another
	// whenever a receive was full.
	Batches int
	// Visibility is for how long messages stay invisible if this process dies. Whole seconds from 10 s to 12 h; default 1 minute.
	Visibility time.Duration

	// Progress hears how it goes, every ProgressInterval and once at the end. It and OnMessage are called one at a time.
	Progress func(Progress)
	// ProgressInterval from 100 ms to 1 h; default 2 s. With a move task each is a ListMessageMoveTasks call.
	ProgressInterval time.Duration
	// OnMessage hears what became of each message, the mover's only. While it runs others wait.
	OnMessage func(Result)
	// Logger takes what an operator should read. Default slog.Default().
	Logger *slog.Logger
}

func (c RedriveConfig) withDefaults() (RedriveConfig, error) {
	var errs []error
	bad := func(field string, value any, bound string) {
		errs = append(errs, fmt.Errorf("dlq: RedriveConfig.%s is %v: must be %s", field, value, bound))
	}
	if c.Via < Automatic || c.Via > Mover {
		bad("Via", int(c.Via), "dlq.Automatic, dlq.MoveTask or dlq.Mover")
	}
	if c.Rate < 0 || c.Rate > 100_000 {
		bad("Rate", c.Rate, "from 1 to 100000 messages a second")
	} else if c.Via == MoveTask && c.Rate > maxTaskRate {
		bad("Rate", c.Rate, "from 1 to 500 messages a second with a move task")
	}
	if c.Limit < 0 {
		bad("Limit", c.Limit, "1 or more")
	}
	if c.Batches < 0 || c.Batches > 200 {
		bad("Batches", c.Batches, "from 1 to 200")
	}
	if c.ProgressInterval != 0 && (c.ProgressInterval < 100*time.Millisecond || c.ProgressInterval > time.Hour) {
		bad("ProgressInterval", c.ProgressInterval, "from 100ms to 1h0m0s")
	}
	errs = append(errs, checkVisibility("RedriveConfig", c.Visibility))
	if only := c.moverOnly(); c.Via == MoveTask && len(only) > 0 {
		errs = append(errs, fmt.Errorf("dlq: RedriveConfig: a move task can't do %s: leave it out, or use dlq.Mover", strings.Join(only, ", ")))
	}
	if only := c.moverOnly(); c.Detach && (c.Via == Mover || len(only) > 0) {
		errs = append(errs, errors.New("dlq: RedriveConfig.Detach is set: only a move task goes on by itself"))
	}
	setDefault(&c.Batches, 16)
	setDefault(&c.Visibility, time.Minute)
	setDefault(&c.ProgressInterval, 2*time.Second)
	setDefault(&c.Logger, slog.Default())
	return c, errors.Join(errs...)
}

// moverOnly names what is asked for that a move task can't do.
func (c RedriveConfig) moverOnly() (only []string) {
	for name, set := range map[string]bool{
		"Filter": c.Filter != nil, "Edit": c.Edit != nil, "Limit": c.Limit > 0, "Reset": c.Reset != nil, "Journal": c.Journal != nil,
		"OnMessage": c.OnMessage != nil, "AnyQueue": c.AnyQueue, "Sources": len(c.Sources) > 0,
	} {
		if set {
			only = append(only, name)
		}
	}
	slices.Sort(only)
	return only
}

// Reasons for which a redrive isn't begun. Each of them is an ErrRefused: nothing was moved.
var (
	ErrRefused = errors.New("dlq: redrive refused")
	// ErrNotDeadLetterQueue: no queue's redrive policy names it.
	ErrNotDeadLetterQueue = fmt.Errorf("%w: not a dead-letter queue", ErrRefused)
	// ErrTaskRunning: a move task of this dead-letter queue is running; SQS allows one.
	ErrTaskRunning = fmt.Errorf("%w: a move task is running", ErrRefused)
	// ErrDifferentType: from FIFO to standard, or the other way.
	ErrDifferentType = fmt.Errorf("%w: queues of different types", ErrRefused)
	// ErrSameQueue: the destination is the dead-letter queue.
	ErrSameQueue = fmt.Errorf("%w: the destination is the dead-letter queue itself", ErrRefused)
	// ErrNoDestination: the destination doesn't exist.
	ErrNoDestination = fmt.Errorf("%w: no such destination", ErrRefused)
	// ErrSourceUnknown: there are messages that were sent to the dead-letter queue directly, so that SQS can't tell where they came
	// from. Set Destination. A move task that meets one fails with it too, having moved those before it.
	ErrSourceUnknown = fmt.Errorf("%w: messages without a source", ErrRefused)
	// ErrTooLong: at this rate it takes longer than the 36 hours that SQS lets a move task run.
	ErrTooLong = fmt.Errorf("%w: a move task would not get done in 36 hours", ErrRefused)
)

// ErrIncomplete says that a redrive came to its end and some messages could not be moved; the report names them.
var ErrIncomplete = errors.New("dlq: not everything could be moved")

// Redrive moves the messages of a dead-letter queue to where they came from, or to RedriveConfig.Destination, and returns when that is
// done. The report says what became of them, also together with an error.
//
// What AWS would refuse is refused with a reason before anything happens; so is a redrive of a queue that isn't a dead-letter queue. See
// [ErrRefused]. While a move task of the queue runs, so is the mover.
//
// When ctx ends, a move task is cancelled, and what it has moved stays moved; the mover finishes the batches that are being sent, gives back the
// rest, and returns within about ten seconds. The error is the context's cause.
//
// The mover deletes a message from the dead-letter queue only after SQS has confirmed its sending: none is lost, whatever happens. One can come
// twice, if the answer to a send is lost, or the process dies between a send and its delete; the report and the journal name them. To a FIFO
// queue it sends with a deduplication id made of the MessageId, the same each time, and SQS drops the second one if it comes within
// five minutes. Order within a group is kept: one message of a group at a time, and if one fails, those behind it stay. Messages that come back
// to the dead-letter queue during the redrive aren't moved again.
func Redrive(ctx context.Context, c RedriveClient, dlqURL string, cfg RedriveConfig) (*RedriveReport, error) {
	cfg, err := cfg.withDefaults()
	if isNil(c) {
		err = errors.Join(errNoClient, err)
	}
	if err = errors.Join(err, checkURL(dlqURL)); err != nil {
		return nil, err
	}
	p, err := prepare(ctx, c, dlqURL, cfg)
	if err != nil {
		return nil, err
	}
	if p.cfg.Via == MoveTask {
		return p.runTask(ctx)
	}
	return p.runMover(ctx)
}
