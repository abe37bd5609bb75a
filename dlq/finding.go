package dlq

import (
	"fmt"
	"time"
)

// Severity is how bad a [Finding] is.
type Severity int

const (
	// Info: as it is meant to be, perhaps; worth knowing.
	Info Severity = iota + 1
	// Warning: it will hurt one day.
	Warning
	// Critical: messages are being lost, or stay undelivered or are run twice, or will be as soon as something fails.
	Critical
)

func (s Severity) String() string {
	switch s {
	case Info:
		return "info"
	case Warning:
		return "warning"
	case Critical:
		return "critical"
	}
	return "none"
}

// MarshalText writes the severity's name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads it.
func (s *Severity) UnmarshalText(text []byte) error {
	for _, known := range []Severity{0, Info, Warning, Critical} {
		if known.String() == string(text) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("dlq: severity %q: must be none, info, warning or critical", text)
}

// Code names a kind of finding, for those who act on some and not on others.
type Code string

const (
	// The redrive policy of the queue.
	NoRedrivePolicy         Code = "no-redrive-policy"
	RedrivePolicyUnreadable Code = "redrive-policy-unreadable"
	MaxReceiveCountOne      Code = "max-receive-count-1"
	MaxReceiveCountLow      Code = "max-receive-count-low"
	MaxReceiveCountHigh     Code = "max-receive-count-high"
	// The dead-letter queue that it names.
	OtherType     Code = "dlq-other-type"
	OtherAccount  Code = "dlq-other-account"
	OtherRegion   Code = "dlq-other-region"
	Missing       Code = "dlq-missing"
	RedriveDenied Code = "redrive-denied"
	RetentionTrap Code = "retention-trap"
	// ShortRetention: a dead-letter queue that keeps messages for less than the 14 days that it could.
	ShortRetention Code = "dlq-retention-short"
	// Chained: the dead-letter queue has a redrive policy itself, so that looking at messages moves them on.
	Chained Code = "dlq-has-redrive-policy"
	// Waiting: messages are in the dead-letter queue.
	Waiting      Code = "dlq-not-empty"
	ExpiringSoon Code = "expiring-soon"
	// The queue.
	IsDeadLetterQueue Code = "is-a-dlq"
	VisibilityShort   Code = "visibility-below-handler-timeout"
	ShortPolling      Code = "short-polling"
	FIFOOrder         Code = "fifo-order"
	PermissionMissing Code = "permission-missing"
)

// Finding is one thing that an audit found.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Queue is the name of the queue that it is about.
	Queue string `json:"queue"`
	// Seen is what is so.
	Seen string `json:"seen"`
	// Advice is what to do about it.
	Advice string `json:"advice"`
	// Expiring are the messages of an [ExpiringSoon], the one with the least time first.
	Expiring []Expiring `json:"expiring,omitempty"`
}

// Expiring is a message that SQS will delete soon because of its age.
type Expiring struct {
	ID        string    `json:"id"`
	SentAt    time.Time `json:"sentAt"`
	ExpiresAt time.Time `json:"expiresAt"`
	// Left is the time until then, as of the audit. JSON has it in nanoseconds.
	Left time.Duration `json:"left"`
}

// String is the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s: %s; %s", f.Severity, f.Queue, f.Code, f.Seen, f.Advice)
}

// Findings are an audit's result, the worst first.
type Findings []Finding

// Worst is the highest severity among them; zero when there are none.
func (fs Findings) Worst() (worst Severity) {
	for _, f := range fs {
		worst = max(worst, f.Severity)
	}
	return worst
}

// Of returns those of one kind.
func (fs Findings) Of(code Code) (some Findings) {
	for _, f := range fs {
		if f.Code == code {
			some = append(some, f)
		}
	}
	return some
}
