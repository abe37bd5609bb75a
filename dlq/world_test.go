package dlq_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// The test binary is also the process that gets killed in the middle of a redrive.
func TestMain(m *testing.M) {
	if endpoint := os.Getenv(processEndpoint); endpoint != "" {
		os.Exit(redriveProcess(endpoint, os.Getenv(processJournal)))
	}
	os.Exit(m.Run())
}

// world is one account's SQS with its own client and log.
type world struct {
	*sqsmodel.Server
	t      *testing.T
	client *sqs.Client
	log    *logbook
}

func newWorld(t *testing.T, cfg sqsmodel.Config) *world {
	s := sqsmodel.New(cfg)
	return &world{Server: s, t: t, client: s.Client(), log: &logbook{}}
}

// bubble runs a story on virtual time.
func bubble(t *testing.T, story func(w *world)) {
	t.Helper()
	bubbleAt(t, sqsmodel.Config{}, story)
}

func bubbleAt(t *testing.T, cfg sqsmodel.Config, story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, cfg)
		story(w)
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
}

// each runs one bubble for each case.
func each[C any](t *testing.T, cases map[string]C, story func(w *world, c C)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) { bubble(t, func(w *world) { story(w, cases[name]) }) })
	}
}

func arn(name string) string { return "arn:aws:sqs:us-east-1:123456789012:" + name }

func policy(dead string, n int) string {
	return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, arn(dead), n)
}

// attributes are names and values in turn.
func attributes(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

func (w *world) queue(name string, pairs ...string) (url string) {
	w.t.Helper()
	m := attributes(pairs...)
	if strings.HasSuffix(name, ".fifo") {
		m["FifoQueue"] = "true"
	}
	return w.MustCreateQueue(name, m)
}

// pair makes a queue and its dead-letter queue about which there is nothing to say: "work" and "dead".
func (w *world) pair(pairs ...string) (source, dead string) { return w.pairOf("", pairs...) }

func (w *world) pairOf(suffix string, pairs ...string) (source, dead string) {
	w.t.Helper()
	dead = w.queue("dead"+suffix, "MessageRetentionPeriod", "1209600", "ReceiveMessageWaitTimeSeconds", "20")
	all := append([]string{"ReceiveMessageWaitTimeSeconds", "20", "RedrivePolicy", policy("dead"+suffix, 3)}, pairs...)
	return w.queue("work"+suffix, all...), dead
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// deadLetter takes what is in a queue through its redrive policy, as consumers do that always fail.
func (w *world) deadLetter(source string) {
	w.t.Helper()
	for range 200 {
		st := w.Queue(source)
		if len(st.Messages) == 0 {
			return
		}
		for {
			out, err := w.client.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &source, MaxNumberOfMessages: 10, VisibilityTimeout: 1, WaitTimeSeconds: 1})
			w.ok(err)
			if len(out.Messages) == 0 {
				break
			}
		}
		time.Sleep(time.Second)
	}
	w.t.Fatalf("%s doesn't get empty", source)
}

// dead fills the dead-letter queue through its source and returns the ids.
func (w *world) dead(source string, n int) (ids []string) {
	w.t.Helper()
	ids = w.MustSend(source, numbered(n)...)
	w.deadLetter(source)
	return ids
}

func numbered(n int) (bodies []string) {
	for i := range n {
		bodies = append(bodies, fmt.Sprintf("body %d", i))
	}
	return bodies
}

// bodies of a queue's messages, in the order in which they came.
func (w *world) bodies(queue string) (all []string) {
	for _, m := range w.Queue(queue).Messages {
		all = append(all, m.Body)
	}
	return all
}

// mustHold compares a queue's number of messages, all of which must be visible.
func (w *world) mustHold(queue string, n int) {
	w.t.Helper()
	synctest.Wait()
	st := w.Queue(queue)
	if st.Visible != n || st.InFlight != 0 || st.Delayed != 0 {
		w.t.Errorf("%s has %d visible, %d in flight, %d delayed, want %d visible", st.Name, st.Visible, st.InFlight, st.Delayed, n)
	}
}

// send sends one message with attributes by the real call.
func (w *world) send(in *sqs.SendMessageInput) string {
	w.t.Helper()
	out, err := w.client.SendMessage(context.Background(), in)
	w.ok(err)
	return *out.MessageId
}

func text(v string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &v}
}

func attribute(name, value string) map[string]types.MessageAttributeValue {
	return map[string]types.MessageAttributeValue{name: text(value)}
}

// redrive runs one with the log of the world.
func (w *world) redrive(ctx context.Context, dead string, cfg dlq.RedriveConfig) (*dlq.RedriveReport, error) {
	cfg.Logger = slog.New(w.log)
	r, err := dlq.Redrive(ctx, w.client, dead, cfg)
	if r != nil && r.Via == dlq.Mover && !r.Reconciles() {
		w.t.Errorf("the counts don't add up: %+v", r)
	}
	return r, err
}

// logbook is a slog.Handler that keeps every line.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logbook) WithGroup(string) slog.Handler            { return b }

func (b *logbook) Handle(ctx context.Context, r slog.Record) error {
	var text strings.Builder
	if err := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}).Handle(ctx, r); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, text.String())
	return nil
}

func (b *logbook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.lines, "")
}

// with are the lines that contain all of some words.
func (b *logbook) with(words ...string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) }) {
			found = append(found, l)
		}
	}
	return found
}
