package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// cutOff is a client whose calls all fail, those under way too, once it is cut: what is left of a process that was killed.
func (w *world) cutOff() (client *sqs.Client, cut func()) {
	gone := make(chan struct{})
	var dead atomic.Bool
	client = w.Client(func(o *sqs.Options) {
		o.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
			if dead.Load() {
				return nil, errors.New("cut off")
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			answered := make(chan struct{})
			defer close(answered)
			go func() {
				select {
				case <-gone:
					cancel()
				case <-answered:
				}
			}()
			res, err := w.Do(r.WithContext(ctx))
			if dead.Load() {
				return nil, errors.New("cut off")
			}
			return res, err
		})
	})
	return client, func() { dead.Store(true); close(gone) }
}

type doer func(*http.Request) (*http.Response, error)

func (f doer) Do(r *http.Request) (*http.Response, error) { return f(r) }

const (
	processEndpoint = "SQSWORKER_DLQ_TEST_ENDPOINT" // where its SQS is
	processJournal  = "SQSWORKER_DLQ_TEST_JOURNAL"
)

func clientAt(endpoint string) *sqs.Client {
	return sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
}

// redriveProcess is the process that gets killed.
func redriveProcess(endpoint, journal string) int {
	_, err := redriveWithJournal(endpoint, journal)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func redriveWithJournal(endpoint, journal string) (*dlq.RedriveReport, error) {
	j, err := dlq.OpenJournal(journal)
	if err != nil {
		return nil, err
	}
	defer j.Close()
	return dlq.Redrive(context.Background(), clientAt(endpoint), endpoint+"/123456789012/dead", dlq.RedriveConfig{
		Filter: func(i *dlq.Item) bool { return !strings.HasSuffix(i.Body, "99") }, Journal: j, Destination: endpoint + "/123456789012/work", Visibility: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
}

// A real process and a real clock: 10,000 messages, of which the filter leaves a hundred; killed half-way by SIGKILL, and done again with
// the same journal. None is lost, and each that is at the destination twice is named.
func TestARedriveThatWasKilledHalfWayIsResumed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the 10 s until a killed process's messages come back")
	}
	const messages = 10_000
	w := newWorld(t, sqsmodel.Config{Latency: 12 * time.Millisecond})
	w.pair()
	w.MustSend("dead", numbered(messages)...)
	srv := httptest.NewServer(w.Server)
	defer srv.Close()
	journal := filepath.Join(t.TempDir(), "journal")

	exe, err := os.Executable()
	w.ok(err)
	p := exec.Command(exe)
	p.Env = append(os.Environ(), processEndpoint+"="+srv.URL, processJournal+"="+journal)
	p.Stderr = os.Stderr
	var sent atomic.Int64
	killed := make(chan struct{})
	stop := w.OnEvent(func(e sqsmodel.Event) {
		if e.Kind == sqsmodel.Sent && e.Queue == "work" && sent.Add(1) == messages/2 {
			close(killed)
		}
	})
	defer stop()
	w.ok(p.Start())
	defer func() { _ = p.Process.Kill() }()
	select {
	case <-killed:
	case <-time.After(time.Minute):
		t.Fatal("half of it isn't done within a minute")
	}
	w.ok(p.Process.Signal(syscall.SIGKILL))
	if err := p.Wait(); err == nil {
		t.Fatal("it ended by itself")
	}
	before := len(w.bodies("work"))
	if before >= messages-100 {
		t.Fatal("it was done before it was killed")
	}

	time.Sleep(10 * time.Second) // its leases run out
	r, err := redriveWithJournal(srv.URL, journal)
	w.ok(err)
	if !r.Reconciles() {
		t.Errorf("%+v", r)
	}
	times := map[string]int{}
	for _, b := range w.bodies("work") {
		times[b]++
	}
	twice := 0
	for _, n := range times {
		if n > 1 {
			twice++
		}
	}
	t.Logf("killed after %d; then moved %d, deleted %d that had been sent; %d named as possible duplicates, %d are", before, r.Moved, r.AlreadyMoved, len(r.Duplicates), twice)
	if len(times) != messages-100 {
		t.Errorf("%d different messages at the source, want %d", len(times), messages-100)
	}
	if left := w.bodies("dead"); len(left) != 100 {
		t.Errorf("%d messages left, want the hundred that the filter leaves", len(left))
	}
	w.mustNameDuplicates("work", r)
	if r.Moved == 0 || len(r.Duplicates) > 16*10 {
		t.Errorf("named %d: at most what was on its way", len(r.Duplicates))
	}
}
