package dlq

import "time"

// Outcome is what became of one message in the mover.
type Outcome string

const (
	// Moved: sent, and deleted from the dead-letter queue unless RedriveReport.Undeleted names it.
	Moved Outcome = "moved"
	// WouldMove: a dry run.
	WouldMove Outcome = "would-move"
	// Skipped by RedriveConfig.Filter.
	Skipped Outcome = "skipped"
	// Returned: this redrive had moved it, it failed again, and is back.
	Returned Outcome = "returned"
	// AlreadyMoved: an earlier run had sent it, as its journal says; it was only deleted.
	AlreadyMoved Outcome = "already-moved"
	// Failed: it could not be moved, see Err.
	Failed Outcome = "failed"
	// HeldBack: a message before it in its FIFO group failed.
	HeldBack Outcome = "held-back"
	// Untouched: received, and given back because the redrive ended: the limit, the context, an error.
	Untouched Outcome = "untouched"
)

// Result is what RedriveConfig.OnMessage hears.
type Result struct {
	Item    *Item
	Outcome Outcome
	// Destination is the queue's URL, for what was moved or would be.
	Destination string
	// NewID is the MessageId at the destination.
	NewID string
	Err   error
}

// Progress is how a redrive goes.
type Progress struct {
	Via Via `json:"via"`
	// ToMove is how many messages there were about when it began.
	ToMove int64 `json:"toMove"`
	// Moved counts; with a move task SQS says approximately.
	Moved int64 `json:"moved"`
	// Done counts what is decided on, moved or not.
	Done    int64         `json:"done"`
	Failed  int64         `json:"failed"`
	Elapsed time.Duration `json:"elapsed"`
	// PerSecond is the mean rate of moves so far.
	PerSecond float64 `json:"perSecond"`
	// Left is the time that the rest takes at this rate; zero when it can't be told.
	Left time.Duration `json:"left"`
}

// RedriveReport is what became of a redrive.
type RedriveReport struct {
	Via    Via  `json:"via"`
	DryRun bool `json:"dryRun,omitempty"`
	// Task is how a move task ended: RUNNING (if detached), COMPLETED, CANCELLED or FAILED.
	Task string `json:"task,omitempty"`
	// Received is how many different messages the mover got. It is the sum of the counts from Moved to Untouched.
	Received     int64 `json:"received"`
	Moved        int64 `json:"moved"`
	WouldMove    int64 `json:"wouldMove,omitempty"`
	Skipped      int64 `json:"skipped"`
	Returned     int64 `json:"returned"`
	AlreadyMoved int64 `json:"alreadyMoved"`
	Failed       int64 `json:"failed"`
	HeldBack     int64 `json:"heldBack"`
	Untouched    int64 `json:"untouched"`

	// Failures are the first thousand of those that failed.
	Failures []Failure `json:"failures,omitempty"`
	// Duplicates are messages that may be at the destination twice, all of them.
	Duplicates []Duplicate `json:"duplicates,omitempty"`
	// Undeleted are the ids of messages that were moved and could not be deleted: they are in the dead-letter queue too. A redrive with
	// the same journal deletes them.
	Undeleted []string `json:"undeleted,omitempty"`
	// NotReleased counts messages that could not be given back: they come back when their visibility ends.
	NotReleased int `json:"notReleased,omitempty"`
	// Remaining is what SQS says is in the dead-letter queue at the end, approximately. On a FIFO queue that can be messages behind ones
	// that were left, which SQS doesn't hand out.
	Remaining Counts `json:"remaining"`

	StartedAt time.Time     `json:"startedAt"`
	Took      time.Duration `json:"took"`
}

// Failure is a message that could not be moved.
type Failure struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// Duplicate is a message that may be at the destination twice.
type Duplicate struct {
	// ID is its MessageId in the dead-letter queue.
	ID string `json:"id"`
	// NewID is the MessageId of the confirmed one at the destination; empty when none was confirmed.
	NewID string `json:"newId,omitempty"`
	Why   string `json:"why"`
}

// Reconciles tells whether what was received is accounted for.
func (r *RedriveReport) Reconciles() bool {
	return r.Received == r.Moved+r.WouldMove+r.Skipped+r.Returned+r.AlreadyMoved+r.Failed+r.HeldBack+r.Untouched
}

// count is the counter of an outcome.
func (r *RedriveReport) count(o Outcome) *int64 {
	switch o {
	case Moved:
		return &r.Moved
	case WouldMove:
		return &r.WouldMove
	case Skipped:
		return &r.Skipped
	case Returned:
		return &r.Returned
	case AlreadyMoved:
		return &r.AlreadyMoved
	case Failed:
		return &r.Failed
	case HeldBack:
		return &r.HeldBack
	}
	return &r.Untouched
}

// done is how many messages are decided on.
func (r *RedriveReport) done() int64 {
	return r.Moved + r.WouldMove + r.Skipped + r.Returned + r.AlreadyMoved + r.Failed + r.HeldBack
}

func newProgress(via Via, toMove, moved, done, failed int64, began time.Time) Progress {
	p := Progress{Via: via, ToMove: toMove, Moved: moved, Done: done, Failed: failed, Elapsed: time.Since(began)}
	if s := p.Elapsed.Seconds(); s > 0 {
		p.PerSecond = float64(moved) / s
		if rate := float64(done) / s; rate > 0 && toMove > done {
			p.Left = time.Duration(float64(toMove-done) / rate * float64(time.Second))
		}
	}
	return p
}
