package sqsmodel

import "time"

// ExpiredVisibility says what ChangeMessageVisibility does on a standard queue
// when the message's visibility has run out and nobody has received it again.
// AWS was recorded answering 200; what that call changes is disputed.
type ExpiredVisibility int

const (
	ExpiredVisibilityNoop    ExpiredVisibility = iota // 200, the message stays visible
	ExpiredVisibilityApplies                          // 200, the message is hidden again
	ExpiredVisibilityFails                            // MessageNotInflight, as the API reference has it
)

// SupersededDelete says what DeleteMessage does on a standard queue with a
// receipt handle that a later receive has replaced. AWS answers 200 either way.
type SupersededDelete int

const (
	SupersededDeleteNoop    SupersededDelete = iota // 200, the message stays ("might not be deleted")
	SupersededDeleteApplies                         // 200, deleted under its newer holder
)

// Ceiling says where the 12 hour clock of a message starts.
type Ceiling int

const (
	CeilingPerReceive       Ceiling = iota // when the message was handed out, anew at each receive
	CeilingFromRequest                     // when SQS got the ReceiveMessage request, so a long poll's wait counts
	CeilingFromFirstReceive                // at the first receive ever; redeliveries don't restart it
)

// Config of a Server. The zero value is AWS as documented or recorded; each
// switch selects another reading where sources disagree.
type Config struct {
	Region    string // default "us-east-1"
	AccountID string // default "123456789012"
	Endpoint  string // base of the queue URLs, default "https://sqs.<Region>.amazonaws.com"

	// MaxHold is the longest a message may stay hidden from one receive: 12 h at
	// AWS and by default, shorter in tests that want to meet the ceiling soon.
	MaxHold time.Duration
	Ceiling Ceiling

	InFlightLimit     int // per standard queue, default 120,000
	FIFOInFlightLimit int // per FIFO queue, default 120,000

	// OverLimitOnLongPoll makes a long poll at the in-flight limit answer
	// OverLimit as a short poll does; by default it comes back empty.
	OverLimitOnLongPoll bool

	ExpiredVisibility ExpiredVisibility
	SupersededDelete  SupersededDelete

	// AbandonedPolls leaves a long poll open at the server after its client has
	// disconnected: messages that come before its wait ends are assigned to
	// nobody and stay hidden until their visibility runs out. By default a poll
	// ends with its connection.
	AbandonedPolls bool

	// AnyRedrivePolicy takes redrive policies whose target doesn't exist, is of
	// another type, account or Region, or doesn't allow the source, as other
	// servers do and AWS doesn't. Such a policy moves nothing.
	AnyRedrivePolicy bool

	// NoQueryErrorHeader omits x-amzn-query-error, so that the SDK's ErrorCode()
	// is the JSON shape's name.
	NoQueryErrorHeader bool

	// Latency is what each call takes before it is processed; see SetLatency.
	Latency time.Duration

	// Seed makes every random choice repeatable: ids, shuffles, short polls that
	// miss messages, duplicates.
	Seed uint64

	// ShuffleStandard delivers a standard queue's messages in random order. By
	// default the order is first in, first out as far as it goes.
	ShuffleStandard bool

	// ShortPollMiss is the probability, 0 to 1, that a short poll of a standard
	// queue does not see a message that is there (AWS asks a subset of its
	// servers). Default 0.
	ShortPollMiss float64

	// DuplicateRate is the probability, 0 to 1, that a message of a standard
	// queue becomes deliverable again at once when it is received. Default 0;
	// see Duplicate for a single one.
	DuplicateRate float64

	DedupInterval    time.Duration // FIFO deduplication, default 5 min
	AttemptIDWindow  time.Duration // life of a ReceiveRequestAttemptId, default 5 min
	QueueDeletedWait time.Duration // until a deleted queue's name may be used again, default 60 s
	PurgeInterval    time.Duration // between two PurgeQueue calls, default 60 s
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Region == "" {
		c.Region = "us-east-1"
	}
	if c.AccountID == "" {
		c.AccountID = "123456789012"
	}
	if c.Endpoint == "" {
		c.Endpoint = "https://sqs." + c.Region + ".amazonaws.com"
	}
	if c.InFlightLimit == 0 {
		c.InFlightLimit = 120_000
	}
	if c.FIFOInFlightLimit == 0 {
		c.FIFOInFlightLimit = 120_000
	}
	set(&c.MaxHold, 12*time.Hour)
	set(&c.DedupInterval, 5*time.Minute)
	set(&c.AttemptIDWindow, 5*time.Minute)
	set(&c.QueueDeletedWait, time.Minute)
	set(&c.PurgeInterval, time.Minute)
	return c
}
