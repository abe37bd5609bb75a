package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// report is what the scene ends with.
type report struct {
	o      options
	t      totals
	usage  []usage
	crash  *crashReport
	beside beside
	why    error // it ended before everything was done
}

// crashReport is what a crash did.
type crashReport struct {
	comeback
	firstBack time.Duration // until the first of those comes back that haven't
}

// beside is what happened in DynamoDB and S3.
type beside struct {
	writes, put, bytes, fetched, deleted, early int64
	left, orphans                               int // objects, and of them those without a message
}

func (s *scene) besideSQS() (b beside, err error) {
	b = beside{
		writes: s.records.writes.Load(), put: s.objects.put.Load(), bytes: s.objects.bytes.Load(), fetched: s.objects.fetched.Load(),
		deleted: s.objects.deleted.Load(), early: s.objects.early.Load(),
	}
	b.left, b.orphans, err = s.objects.left(bucketName)
	return b, err
}

// report counts, once all workers have ended.
func (s *scene) report() (*report, error) {
	queue := s.server.Queue(s.queueURL).Messages
	r := &report{
		o: s.o, why: s.incomplete,
		t:     s.ledger.totals(ids(queue), ids(s.server.Queue(dlqName).Messages)),
		usage: usageOf(s.server.Calls(), s.ledger.size),
	}
	if !s.crashedAt.IsZero() {
		r.crash = &crashReport{comeback: s.ledger.since(sqsmodel.Expired, s.crashed, s.crashedAt)}
		for _, m := range queue {
			if wait := time.Until(m.VisibleAt); m.State == sqsmodel.InFlight && (r.crash.firstBack == 0 || wait < r.crash.firstBack) {
				r.crash.firstBack = wait
			}
		}
	}
	var err error
	r.beside, err = s.besideSQS()
	return r, err
}

func ids(messages []sqsmodel.MessageState) map[string]bool {
	set := make(map[string]bool, len(messages))
	for _, m := range messages {
		set[m.ID] = true
	}
	return set
}

// status is the program's exit status.
func (r *report) status() int {
	switch {
	case r.t.lost > 0 || r.t.twice > 0 || r.t.chargedTwice > 0 || r.beside.early > 0 || r.orphaned() || errors.Is(r.why, errStuck):
		return exitBad
	case errors.Is(r.why, errInterrupted):
		return exitInterrupted
	}
	return exitOK
}

// orphaned tells whether objects stay behind without a cause. A worker that is killed between a message's delete and its
// object's leaves one, and the bucket's lifecycle rule removes it.
func (r *report) orphaned() bool { return r.beside.orphans > 0 && r.crash == nil }

func (r *report) print(w io.Writer) {
	fmt.Fprintln(w)
	r.printMessages(w)
	fmt.Fprintln(w)
	printUsage(w, r.usage, r.t.sent)
	fmt.Fprintln(w)
	r.printBeside(w)
	fmt.Fprintln(w)
	fmt.Fprintln(w, r.verdict())
}

func (r *report) printMessages(w io.Writer) {
	var t table
	t.row("MESSAGES", "", "")
	t.row("sent", r.t.sent, "")
	t.row("received", r.t.received, remark(r.t.received > r.t.sent, "a message counts each time"))
	t.row("handled", r.t.handled, "")
	t.row("retried", r.t.retried, "runs after a failed one")
	t.row("duplicates suppressed", r.t.suppressed, r.suppressedText())
	t.row("released at the stop", r.t.released, remark(r.t.released > 0, "by a worker that was told to stop"))
	t.row("dead-lettered", r.t.dead, remark(r.t.goodDead > 0, fmt.Sprintf("%d of them by mistake: nothing was wrong with them", r.t.goodDead)))
	if r.crash != nil {
		t.row("held by the killed worker", r.crash.messages, r.crash.text())
		t.row("run again after the crash", r.t.afterCrash, "the crash is the cause")
	}
	if r.t.left > 0 {
		t.row("still in the queue", r.t.left, fmt.Sprintf("not lost: %v", r.why))
	}
	t.row("lost", r.t.lost, "sent, but neither deleted after success nor dead-lettered")
	t.row("run twice without cause", r.t.twice, "again after success, or twice at the same time")
	t.row("orders charged", r.t.charged, "")
	t.row("orders charged twice", r.t.chargedTwice, "")
	t.print(w)
}

func (r *report) suppressedText() string {
	switch {
	case !r.o.idempotency:
		return "idempotency is OFF: a worker remembers what it handled itself, no more"
	case r.t.suppressed == 0:
		return ""
	}
	return fmt.Sprintf("deleted without a run: %d sent twice, %d delivered again", r.t.suppressed-r.t.again, r.t.again)
}

// printBeside prints what the orders needed beside SQS.
func (r *report) printBeside(w io.Writer) {
	var t table
	t.row("BESIDE SQS", "", "")
	t.row("DynamoDB writes", r.beside.writes, remark(r.o.idempotency, "two for each run, one for a duplicate, and renewals of long runs"))
	t.row("objects put", r.beside.put, fmt.Sprintf("%.1f MiB in S3", mebibytes(r.beside.bytes)))
	t.row("objects fetched", r.beside.fetched, remark(r.beside.fetched > r.beside.put, "again for each delivery"))
	t.row("objects deleted", r.beside.deleted, r.deletedText())
	t.row("objects left", r.beside.left, r.leftText())
	t.print(w)
}

func (r *report) deletedText() string {
	switch {
	case r.beside.early > 0:
		return fmt.Sprintf("%d of them BEFORE their message", r.beside.early)
	case r.beside.deleted > 0:
		return "each after its message"
	}
	return ""
}

func (r *report) leftText() string {
	switch {
	case r.beside.orphans > 0 && r.crash != nil:
		return fmt.Sprintf("%d by the killed worker: left to the bucket's lifecycle rule", r.beside.orphans)
	case r.beside.orphans > 0:
		return fmt.Sprintf("%d without a message", r.beside.orphans)
	}
	return remark(r.beside.left > 0, "their messages are still there")
}

func remark(when bool, text string) string {
	if when {
		return text
	}
	return ""
}

func (c *crashReport) text() string {
	switch {
	case c.messages == 0:
		return ""
	case c.back == 0:
		return fmt.Sprintf("none has come back; the first will in %v", c.firstBack.Round(time.Second))
	case c.back < c.messages:
		return fmt.Sprintf("visible again: %d, after %s to %s", c.back, seconds(c.soonest), seconds(c.farthest))
	}
	return fmt.Sprintf("visible again after %s to %s", seconds(c.soonest), seconds(c.farthest))
}

// printUsage prints the API calls and what they cost.
func printUsage(w io.Writer, all []usage, messages int) {
	var t table
	t.row("API CALLS", "calls", "per message", "")
	for _, u := range all {
		t.row(u.action, u.calls, perMessage(u.calls, messages), u.remark())
	}
	sum := total(all)
	t.row("all", sum.calls, perMessage(sum.calls, messages), "")
	t.row("billed requests", sum.requests, perMessage(sum.requests, messages), "each begun 64 KiB of payload is one")
	t.row("cost per million messages", dollars(perMillion(sum.requests, messages)), "", "at $0.40 per million requests")
	t.print(w)
}

func (u usage) remark() string {
	switch {
	case u.action == receiveAction && u.empty > 0:
		return fmt.Sprintf("%d of them empty", u.empty)
	case u.action == visibilityAction:
		return "heartbeats, back-offs, releases"
	}
	return ""
}

func dollars(d float64) string { return fmt.Sprintf("$%.2f", d) }

func perMessage(n, messages int) string {
	if messages == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(n)/float64(messages))
}

// verdict is the last line.
func (r *report) verdict() string {
	switch {
	case r.t.lost > 0:
		return fmt.Sprintf("LOST: %d messages.", r.t.lost)
	case r.t.chargedTwice > 0 && !r.o.idempotency:
		return fmt.Sprintf("CHARGED TWICE: %d orders. Sent twice, an order is two messages to SQS, and a message whose delete SQS refuses comes again: try it without -idempotency=off.", r.t.chargedTwice)
	case r.t.twice > 0:
		return fmt.Sprintf("DUPLICATED WORK: %d runs too many. %s", r.t.twice, r.advice())
	case r.t.chargedTwice > 0:
		return fmt.Sprintf("CHARGED TWICE: %d orders.", r.t.chargedTwice)
	case r.beside.early > 0:
		return fmt.Sprintf("EARLY: %d attachments were deleted before their messages.", r.beside.early)
	case r.orphaned():
		return fmt.Sprintf("LEFT BEHIND: %d attachments without a message.", r.beside.orphans)
	case errors.Is(r.why, errStuck):
		return "STUCK: some messages were not finished."
	case errors.Is(r.why, errInterrupted):
		return fmt.Sprintf("Interrupted: nothing lost, nothing run twice without cause; %d messages wait in the queue.", r.t.left)
	case r.crash != nil:
		return "Nothing lost. " + r.crashAdvice()
	}
	return "Nothing lost, nothing run twice without cause, no order charged twice, no attachment left behind."
}

func (r *report) advice() string {
	if r.o.handleTime > r.o.visibility {
		return fmt.Sprintf("Slow messages take %v, their visibility ends after %v, and nothing renews it: try it without -heartbeat=off, or with a longer -visibility.", r.o.handleTime, r.o.visibility)
	}
	return "Their visibility ran out before they were done: try it without -heartbeat=off, or with a longer -visibility."
}

func (r *report) crashAdvice() string {
	if r.t.left > 0 {
		return fmt.Sprintf("But with a visibility of %v a dead worker's messages stay away that long: try -crash -visibility 1s.", r.o.visibility)
	}
	return fmt.Sprintf("A dead worker's messages come back when their visibility ends: at most %v here; try -visibility 1s, 30s, 12h.", r.o.visibility)
}
