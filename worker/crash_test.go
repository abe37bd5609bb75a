package worker_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// The test binary is also the worker process that gets killed.
const (
	processEndpoint = "SQSWORKER_TEST_ENDPOINT" // where its SQS is
	processHandler  = "SQSWORKER_TEST_HANDLER"  // "hang" or "finish"
)

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(processEndpoint); endpoint != "" {
		os.Exit(runProcess(endpoint, os.Getenv(processHandler)))
	}
	os.Exit(m.Run())
}

// runProcess works the queue until SIGTERM, and prints a line for each message that its handler gets.
func runProcess(endpoint, handler string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client := sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
	var mu sync.Mutex
	w, err := worker.New(client, endpoint+"/123456789012/"+testQueue, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		mu.Lock()
		fmt.Println(m.ID)
		mu.Unlock()
		if handler == "hang" {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}), worker.Config{Concurrency: 100, WaitTime: time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = w.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a worker in a process of its own.
type process struct {
	*exec.Cmd
	ids chan string // that its handlers got
}

func startProcess(t *testing.T, endpoint, handler string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(exe), ids: make(chan string, 1000)}
	p.Env = append(os.Environ(), processEndpoint+"="+endpoint, processHandler+"="+handler)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ids)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.ids <- strings.TrimSpace(lines.Text())
		}
	}()
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// take reads the next n ids.
func (p *process) take(t *testing.T, n int, within time.Duration) map[string]int {
	t.Helper()
	got := map[string]int{}
	deadline := time.After(within)
	for i := range n {
		select {
		case id, ok := <-p.ids:
			if !ok {
				t.Fatalf("the process ended after %d of %d messages", i, n)
			}
			got[id]++
		case <-deadline:
			t.Fatalf("%d of %d messages within %v", i, n, within)
		}
	}
	return got
}

// Real processes and a real clock: one is killed in the middle of a hundred messages. Until then it holds them all; once
// their visibility has run out, the other one finishes them, and nothing is lost.
func TestKilledProcessLosesNothing(t *testing.T) {
	const messages, visibility = 100, 2 * time.Second
	q := newQueueAt(t, sqsmodel.Config{Latency: time.Millisecond}, "VisibilityTimeout", "2")
	srv := httptest.NewServer(q.Server)
	defer srv.Close()
	ids := q.send(messages)

	first := startProcess(t, srv.URL, "hang")
	held := first.take(t, messages, 10*time.Second)
	second := startProcess(t, srv.URL, "finish")
	time.Sleep(visibility + 500*time.Millisecond)
	if n := len(second.ids); n != 0 {
		t.Errorf("the other process got %d messages that the first one held", n)
	}
	killed := time.Now()
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()

	finished := second.take(t, messages, visibility+5*time.Second)
	for _, id := range ids {
		if held[id] != 1 || finished[id] != 1 {
			t.Errorf("message %s ran %d times in the first process and %d times in the second, want once each", id, held[id], finished[id])
		}
	}
	if took := time.Since(killed); took < visibility/3 {
		t.Errorf("they were finished %v after the kill, before any visibility could have run out", took)
	}
	for end := time.Now().Add(3 * time.Second); len(q.state().Messages) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	q.mustBeEmpty()
	q.mustHaveHappened(sqsmodel.Deleted, messages)
	q.mustHaveHappened(sqsmodel.Expired, messages)
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("the second process, told to stop: %v", err)
	}
}
