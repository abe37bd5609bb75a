package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// assignment is what a contestant's process is told first.
type assignment struct {
	Contestant string // a key of starters
	Endpoint   string
	QueueURL   string
	Job        job

	Concurrency int
	Prefetch    int    // ours
	Receives    int    // raw: how many are open at once; model: how many messages a call has
	Attributes  string // raw: which it asks for: a key of attributeSets

	NoDrain bool // ours

	Leases     int           // hold
	Visibility time.Duration // hold

	CPUProfile, AllocProfile string // files
}

// report is what a contestant's process answers to each command.
type report struct {
	Error string

	Used    usage // since "go" or "lap"
	Handled int64 // handlers that ended
	Again   int64 // handlers started for a message that had been started before
	Running int64
	P50     time.Duration // from the send to the handler's start
	P99     time.Duration
	Notes   map[string]int64 // what else the contestant counted, not zero

	StopTook    time.Duration // from "stop" until Run returned
	CancelledAt time.Duration // from "stop" until the first handler's context ended
	RunError    string

	Memory         memory  // hold: that the leases take
	CallsPerSecond float64 // model
}

// subject is what a contestant's process runs.
type subject interface {
	// run works until ctx ends.
	run(ctx context.Context) error
	// describe adds what only this subject knows.
	describe(r *report)
}

// starters make subjects, by name.
var starters = map[string]func(assignment, *jobs) (subject, error){
	"raw":   newRaw,
	"ours":  newOurs,
	"hold":  newHold,
	"model": newModelLoad,

	"ours-api":     newOursAPI,
	"ours-metrics": newOursMetrics,
	"ours-sampled": newOursSampled,
	"ours-sdk":     newOursSDK,
}

// Contest is the main function of a contestant's process: an assignment on in, then commands, each answered by a report
// on out. "go" starts the subject, "lap" sets its usage back to zero, "mark" takes a measurement, "stop" ends it. It ends when in does.
func Contest(in io.Reader, out io.Writer) error {
	c := &contest{commands: json.NewDecoder(in), reports: json.NewEncoder(out)}
	if err := c.prepare(); err != nil {
		return c.reports.Encode(report{Error: err.Error()})
	}
	if err := c.reports.Encode(report{}); err != nil {
		return err
	}
	for {
		var command string
		if err := c.commands.Decode(&command); err != nil {
			return nil // the director has what it wanted
		}
		if err := c.reports.Encode(c.obey(command)); err != nil {
			return err
		}
	}
}

// contest is the state of a contestant's process.
type contest struct {
	commands *json.Decoder
	reports  *json.Encoder

	assigned assignment
	jobs     *jobs
	subject  subject
	profile  *profiles
	before   usage
	stop     context.CancelFunc
	returned chan error
}

func (c *contest) prepare() error {
	if err := c.commands.Decode(&c.assigned); err != nil {
		return err
	}
	create := starters[c.assigned.Contestant]
	if create == nil {
		return fmt.Errorf("no contestant %q", c.assigned.Contestant)
	}
	c.jobs = newJobs(c.assigned.Job)
	var err error
	c.subject, err = create(c.assigned, c.jobs)
	return err
}

func (c *contest) obey(command string) report {
	switch command {
	case "go":
		return c.begin()
	case "lap":
		c.before = currentUsage()
		return report{}
	case "mark":
		return c.measure()
	case "stop":
		return c.end()
	}
	return report{Error: fmt.Sprintf("no command %q", command)}
}

func (c *contest) begin() report {
	var err error
	if c.profile, err = startProfiles(c.assigned.CPUProfile, c.assigned.AllocProfile); err != nil {
		return report{Error: err.Error()}
	}
	c.before = currentUsage()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.returned = cancel, make(chan error, 1)
	go func() { c.returned <- c.subject.run(ctx) }()
	return report{}
}

// measure doesn't stop the subject, but it ends the profiles.
func (c *contest) measure() report {
	r := report{Used: currentUsage().since(c.before), Notes: map[string]int64{}}
	if err := c.profile.end(); err != nil {
		r.Error = err.Error()
	}
	c.jobs.describe(&r)
	c.subject.describe(&r)
	for name, n := range r.Notes {
		if n == 0 {
			delete(r.Notes, name)
		}
	}
	return r
}

func (c *contest) end() report {
	began := time.Now()
	c.stop()
	err := <-c.returned
	took := time.Since(began)
	r := c.measure()
	r.StopTook = took
	if at := c.jobs.cancelledAt(); !at.IsZero() {
		r.CancelledAt = at.Sub(began)
	}
	if err != nil {
		r.RunError = err.Error()
	}
	return r
}
