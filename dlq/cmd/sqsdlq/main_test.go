package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// shell runs command lines against an SQS of its own.
type shell struct {
	*sqsmodel.Server
	t        *testing.T
	endpoint string
	answer   string // what the user types; "" when nobody can be asked
	table    bool   // standard output is a terminal
}

func newShell(t *testing.T) *shell {
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	var s *sqsmodel.Server
	srv := httptest.NewUnstartedServer(nil)
	srv.Start()
	t.Cleanup(srv.Close)
	s = sqsmodel.New(sqsmodel.Config{Endpoint: srv.URL})
	srv.Config.Handler = s
	return &shell{Server: s, t: t, endpoint: srv.URL}
}

// pair makes orders and orders-dlq, with n messages in the latter that came from the former.
func (s *shell) pair(n int) {
	s.MustCreateQueue("orders-dlq", map[string]string{"MessageRetentionPeriod": "1209600"})
	url := s.MustCreateQueue("orders", map[string]string{"ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "0",
		"RedrivePolicy": `{"deadLetterTargetArn":"` + s.Queue("orders-dlq").ARN + `","maxReceiveCount":1}`})
	for i := range n {
		s.MustSend(url, fmt.Sprintf("order %d", i))
	}
	s.run("peek", "orders") // with a visibility that ends at once for our own look, and then
	for len(s.Queue("orders").Messages) > 0 {
		s.run("peek", "orders", "--limit", "100000")
	}
}

type ran struct {
	code     int
	out, err string
	lines    []map[string]any // of JSON
}

func (s *shell) run(args ...string) ran {
	s.t.Helper()
	return s.runIn(context.Background(), args...)
}

func (s *shell) runIn(ctx context.Context, args ...string) ran {
	s.t.Helper()
	var out, errs bytes.Buffer
	t := &terminal{in: strings.NewReader(s.answer + "\n"), out: &out, err: &errs, isTerminal: s.table, hasBar: s.table, canAsk: s.answer != "", width: 100}
	r := ran{code: run(ctx, t, append(args, "--endpoint-url="+s.endpoint))}
	r.out, r.err = out.String(), errs.String()
	if !s.table {
		for d := json.NewDecoder(&out); ; {
			var line map[string]any
			if d.Decode(&line) != nil {
				break
			}
			r.lines = append(r.lines, line)
		}
	}
	return r
}

// must compares the exit code and looks for words in what was written.
func (s *shell) must(r ran, code int, words ...string) {
	s.t.Helper()
	if r.code != code {
		s.t.Errorf("exit code %d, want %d; %s%s", r.code, code, r.out, r.err)
	}
	for _, word := range words {
		if !strings.Contains(r.out+r.err, word) {
			s.t.Errorf("%q isn't in %s%s", word, r.out, r.err)
		}
	}
}

func TestAuditExitsBySeverity(t *testing.T) {
	s := newShell(t)
	s.MustCreateQueue("orders", nil)
	r := s.run("audit", "orders")
	s.must(r, exitFindings, "no-redrive-policy", "short-polling")
	if len(r.lines) != 2 || r.lines[0]["severity"] != "warning" {
		t.Errorf("%v", r.lines)
	}
	s.must(s.run("audit", "orders", "--fail-on", "critical"), 0)
	s.must(s.run("audit", "orders", "--fail-on", "never"), 0)
	s.must(s.run("audit", "orders", "--fail-on", "bad"), exitUsage, "--fail-on")
	s.must(s.run("audit", "nowhere"), exitFailed, "nowhere")
	s.must(s.run("audit"), exitUsage, "one queue")
	s.must(s.run("audit", "orders", "--look", "-5"), exitUsage, "Look is -5")
	s.table = true
	s.must(s.run("audit", s.Queue("orders").URL), exitFindings, "warning", "do", "seen")
	s.must(s.run("audit", s.Queue("orders").ARN), exitFindings)
}

func TestEnsureShowsTheDifferenceAndAsks(t *testing.T) {
	s := newShell(t)
	s.must(s.run("ensure", "orders", "--dry-run"), exitFindings, `"event":"plan"`, "orders-dlq")
	s.must(s.run("ensure", "orders"), exitUsage, "--yes")
	s.table, s.answer = true, "no"
	s.must(s.run("ensure", "orders"), exitRefused, "create orders-dlq", "nothing was done")
	if s.Queue("orders").URL != "" {
		t.Fatal("created")
	}
	s.answer = "yes"
	s.must(s.run("ensure", "orders", "--max-receive-count", "7"), 0, "done")
	s.must(s.run("ensure", "orders", "--dry-run"), 0, "nothing to change")
	s.must(s.run("ensure", "a b", "--yes"), exitFailed, "Name is")
	s.table, s.answer = false, ""
	s.must(s.run("ensure", "other", "--yes", "--tag", "team=x", "--attribute", "MaximumMessageSize=2048"), 0, `"event":"ensured"`)
	s.must(s.run("audit", "other", "--fail-on", "info"), 0)
}

func TestPeekShowsMessagesAndGivesThemBack(t *testing.T) {
	s := newShell(t)
	url := s.MustCreateQueue("orders-dlq", nil)
	s.MustSend(url, "first \u009b2J clears nothing", "second")
	r := s.run("peek", "orders-dlq")
	s.must(r, 0)
	if len(r.lines) != 2 || r.lines[1]["body"] != "second" || r.lines[0]["leftSeconds"].(float64) < 1000 {
		t.Errorf("%v", r.lines)
	}
	s.must(s.run("peek", "orders-dlq", "--limit", "0"), exitUsage, "--limit")
	s.table = true
	r = s.run("peek", "orders-dlq", "--body", "9")
	s.must(r, 0, "LEFT", "first")
	if strings.Contains(r.out, "\u009b") {
		t.Error("a message moved the cursor")
	}
	if st := s.Queue("orders-dlq"); st.Visible != 2 {
		t.Errorf("%+v", st)
	}
	if r := s.run("peek", "orders-dlq", "--no-body"); strings.Contains(r.out, "second") {
		t.Error("a body was shown")
	}
}

func TestRedriveByTheTaskAndByTheMover(t *testing.T) {
	s := newShell(t)
	s.MustCreateQueue("repair", nil)
	s.pair(12)
	s.must(s.run("redrive", "orders-dlq"), exitUsage, "--yes")
	s.must(s.run("redrive", "orders", "--yes"), exitRefused, "not a dead-letter queue")
	s.must(s.run("redrive", "orders-dlq", "--to", "nowhere", "--yes"), exitRefused, "no such destination")
	s.must(s.run("redrive", "orders-dlq", "--via", "x", "--yes"), exitUsage, "--via")
	s.must(s.run("redrive", "orders-dlq", "--match", "(", "--yes"), exitUsage, "--match")

	r := s.run("redrive", "orders-dlq", "--match", "^order 1", "--dry-run", "--each")
	s.must(r, 0, `"outcome":"would-move"`, `"wouldMove":3`)
	journal := filepath.Join(t.TempDir(), "journal")
	r = s.run("redrive", "orders-dlq", "--match", "^order", "--not", "[02-9]$", "--to", "repair", "--yes", "--journal", journal)
	s.must(r, 0, `"moved":2`, `"via":"mover"`, `"event":"progress"`)
	if matches, _ := filepath.Glob(journal); len(matches) != 0 {
		t.Error("the journal is left though nothing is to be resumed")
	}
	if st := s.Queue("repair"); st.Visible != 2 {
		t.Errorf("%+v", st)
	}
	s.table, s.answer = true, "yes"
	r = s.run("redrive", "orders-dlq", "--rate", "500", "--to", "repair")
	s.must(r, 0, "moved", "10", "10/10")
	if st := s.Queue("repair"); st.Visible != 12 {
		t.Errorf("%+v", st)
	}
	s.must(s.run("tasks", "orders-dlq"), 0, "COMPLETED", "repair")
	s.must(s.run("cancel", "orders-dlq"), exitRefused, "no move task")
}

func TestADetachedTaskIsCancelled(t *testing.T) {
	s := newShell(t)
	s.MustCreateQueue("repair", nil)
	s.pair(3)
	s.MustSend(s.Queue("orders-dlq").URL, "a", "b", "c", "d", "e")
	s.must(s.run("redrive", "orders-dlq", "--to", "repair", "--rate", "1", "--detach", "--yes"), 0, `"task":"RUNNING"`)
	s.must(s.run("redrive", "orders-dlq", "--to", "repair", "--yes"), exitRefused, "task is running")
	s.must(s.run("cancel", "orders-dlq"), 0, `"event":"cancelled"`)
}

func TestAnInterruptIsItsOwnExitCode(t *testing.T) {
	s := newShell(t)
	s.MustCreateQueue("repair", nil)
	s.pair(1)
	s.MustSend(s.Queue("orders-dlq").URL, strings.Split(strings.Repeat("x ", 49)+"x", " ")...)
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	journal := filepath.Join(t.TempDir(), "journal")
	r := s.runIn(ctx, "redrive", "orders-dlq", "--to", "repair", "--rate", "10", "--yes", "--journal", journal)
	s.must(r, exitInterrupt, `"event":"report"`, "is kept")
	if st := s.Queue("orders-dlq"); st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
}

func TestPurgeWantsTheQueuesName(t *testing.T) {
	s := newShell(t)
	url := s.MustCreateQueue("orders-dlq", nil)
	s.MustSend(url, "a", "b")
	s.must(s.run("purge", "orders-dlq", "--dry-run"), 0, `"event":"would-purge"`, `"visible":"2"`)
	s.must(s.run("purge", "orders-dlq"), exitUsage, "--yes")
	s.must(s.run("purge", "orders-dlq", "--yes", "orders"), exitUsage, "must be the queue's name")
	for _, answer := range []string{"yes", "y", "orders", " "} {
		s.answer = answer
		s.must(s.run("purge", "orders-dlq"), exitRefused, "can't be undone", "60 s", "nothing was done")
	}
	if st := s.Queue("orders-dlq"); st.Visible != 2 {
		t.Fatalf("%+v", st)
	}
	s.answer = "orders-dlq"
	s.must(s.run("purge", "orders-dlq"), 0, `"event":"purged"`)
	if st := s.Queue("orders-dlq"); st.Visible != 0 {
		t.Errorf("%+v", st)
	}
	s.must(s.run("purge", "orders-dlq", "--yes", "orders-dlq"), exitFailed, "60 seconds")
}

func TestAlarmPrintsATemplateAndALine(t *testing.T) {
	s := newShell(t)
	r := s.run("alarm", "orders-dlq", "--format", "cloudformation", "--topic", "arn:aws:sns:us-east-1:123456789012:on-call")
	s.must(r, 0)
	var template struct {
		Resources map[string]struct {
			Type       string
			Properties struct {
				MetricName, TreatMissingData, ComparisonOperator string
				Threshold                                        int
				Dimensions                                       []struct{ Name, Value string }
				AlarmActions                                     []string
			}
		}
	}
	if err := json.Unmarshal([]byte(r.out), &template); err != nil {
		t.Fatal(err)
	}
	for _, a := range template.Resources {
		p := a.Properties
		if a.Type != "AWS::CloudWatch::Alarm" || p.MetricName != "ApproximateNumberOfMessagesVisible" || p.Threshold != 0 || p.ComparisonOperator != "GreaterThanThreshold" ||
			p.TreatMissingData != "notBreaching" || len(p.Dimensions) != 1 || p.Dimensions[0].Value != "orders-dlq" || len(p.AlarmActions) != 1 {
			t.Errorf("%+v", a)
		}
	}
	s.must(s.run("alarm", "arn:aws:sqs:us-east-1:123456789012:it's", "--format", "cli"), 0, "aws cloudwatch put-metric-alarm", `it'\''s`, "--threshold 0")
	s.must(s.run("alarm", "x", "--format", "xml"), exitUsage, "--format")
	if n := s.Count(""); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestCompletionOffersCommandsFlagsAndQueues(t *testing.T) {
	s := newShell(t)
	s.MustCreateQueue("orders", nil)
	s.MustCreateQueue("orders-dlq", nil)
	for _, sh := range []string{"bash", "zsh", "fish", "powershell"} {
		s.must(s.run("completion", sh), 0, "sqsdlq")
	}
	var out, errs bytes.Buffer
	term := &terminal{in: strings.NewReader(""), out: &out, err: &errs}
	if code := run(context.Background(), term, []string{"__complete", "--endpoint-url", s.endpoint, "peek", "ord"}); code != 0 || !strings.Contains(out.String(), "orders-dlq") {
		t.Errorf("%d: %s%s", code, out.String(), errs.String())
	}
}

func TestUnknownCommandsAndFlagsAreUsageErrors(t *testing.T) {
	s := newShell(t)
	s.must(s.run("peek", "orders", "--bad"), exitUsage, "--bad")
	s.must(s.run("peek", "orders", "--output", "xml"), exitUsage, "--output")
	s.must(s.run("redirve", "orders"), exitUsage, "redirve", "did you mean redrive")
	s.MustCreateQueue("orders", nil)
	s.must(s.run("--endpoint-url", s.endpoint, "--region", "us-east-1", "audit", "orders", "--fail-on=never"), 0)
	s.must(s.run("--help"), 0, "Exit codes")
}

func TestTheBarFitsItsLine(t *testing.T) {
	p := dlq.Progress{ToMove: 1000, Moved: 500, Done: 510, Failed: 3, PerSecond: 99.7, Left: 5 * time.Second}
	for width := 0; width < 120; width++ {
		if line := barLine(p, width); len(line) > max(width, 1) {
			t.Errorf("width %d: %q has %d", width, line, len(line))
		}
	}
	if line := barLine(p, 90); !strings.HasPrefix(line, "[####################...") || !strings.Contains(line, "510/1000") || !strings.Contains(line, "3 failed") || !strings.Contains(line, "5s left") {
		t.Errorf("%q", line)
	}
}
