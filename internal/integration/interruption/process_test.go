package interruption

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
)

// The times that platforms give, scaled down. Give them in full with
//
//	go test ./interruption -args -spot 120s -sigterm 30s -docker 10s
var (
	spotTime    = flag.Duration("spot", 10*time.Second, "from the Spot notice to the kill; on EC2 120 s")
	sigtermTime = flag.Duration("sigterm", 8*time.Second, "from SIGTERM to the kill; on ECS 30 s")
	dockerTime  = flag.Duration("docker", 7*time.Second, "from docker stop to its kill; 10 s unless told otherwise")
)

// scratch is a directory for the whole run.
var scratch string

// The test binary is also the worker process.
func TestMain(m *testing.M) {
	if settings := os.Getenv(processSettings); settings != "" {
		os.Exit(work(settings))
	}
	var err error
	if scratch, err = os.MkdirTemp("", "interruption"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

const processSettings = "SQSWORKER_TEST_PROCESS"

// settings are a worker process's.
type settings struct {
	Endpoint, Queue string
	Metadata        string        // where IMDS is; none if empty
	Grace           time.Duration // from SIGTERM to the kill
	Job             time.Duration // how long a message takes the first time; the second time it takes no time
	Deaf            bool          // handlers ignore their context
	Hang            bool          // the process doesn't end when Run has returned
}

const incomplete = 3 // exit status for a *worker.DrainError

func work(raw string) int {
	var s settings
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sources := []interruption.Source{interruption.Signals(s.Grace)}
	if s.Metadata != "" {
		m, err := interruption.NewEC2(interruption.EC2Config{
			Client: imds.New(imds.Options{Endpoint: s.Metadata, EnableFallback: aws.FalseTernary}), Interval: 200 * time.Millisecond,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		sources = append(sources, m.Spot(), m.Rebalance(interruption.Ignore), m.AutoScaling(interruption.AutoScalingConfig{}))
	}
	ctx, stop := interruption.Watch(context.Background(), sources...)
	client := sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: &s.Endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
	w, err := worker.New(client, s.Queue, worker.HandlerFunc(s.handle), worker.Config{
		Concurrency: 200, DrainTimeout: 10 * time.Minute, WaitTime: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err == nil {
		err = w.Run(ctx)
	}
	stop()
	if s.Hang {
		select {} // something else in the process doesn't end
	}
	var drain *worker.DrainError
	switch {
	case errors.As(err, &drain) && len(drain.Unsettled) == 0 && drain.AbortedReceives == 0:
		return incomplete
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (s settings) handle(ctx context.Context, m *worker.Message) error {
	if m.ReceiveCount > 1 {
		return nil
	}
	done := ctx.Done()
	if s.Deaf {
		done = nil
	}
	select {
	case <-time.After(s.Job):
		return nil
	case <-done:
		return context.Cause(ctx)
	}
}

// process is a worker in a process of its own, with the address of SQS that only it knows.
type process struct {
	*exec.Cmd
	log    bytes.Buffer
	exited chan struct{}
	at     time.Time // when it ended

	mu       sync.Mutex
	receives int
	handles  map[string]bool // that it got
}

func start(t *testing.T, s *sqsmodel.Server, queue string, set settings) *process {
	t.Helper()
	p := &process{handles: map[string]bool{}, exited: make(chan struct{})}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.tap(s, w, r) }))
	t.Cleanup(srv.Close)
	set.Endpoint, set.Queue = srv.URL, queue
	raw, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.Cmd = exec.Command(exe)
	p.Env = append(os.Environ(), processSettings+"="+string(raw))
	p.Stderr = &p.log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait()
		p.at = time.Now()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.exited
		if t.Failed() {
			lines := strings.Split(p.log.String(), "\n")
			t.Logf("its log:\n%s", strings.Join(lines[:min(len(lines), 15)], "\n"))
		}
	})
	return p
}

// tap passes a call on, and notes the receipt handles that it brings.
func (p *process) tap(s *sqsmodel.Server, w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ReceiveMessage") {
		s.ServeHTTP(w, r)
		return
	}
	p.mu.Lock()
	p.receives++
	p.mu.Unlock()
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, r)
	var got struct {
		Messages []struct{ ReceiptHandle string }
	}
	_ = json.Unmarshal(answer.Body.Bytes(), &got)
	p.mu.Lock()
	for _, m := range got.Messages {
		p.handles[m.ReceiptHandle] = true
	}
	p.mu.Unlock()
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

func (p *process) holds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.handles)
}

func (p *process) receiving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.receives > 0
}

func (p *process) ended(within time.Duration) bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(within):
		return false
	}
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// mustHaveGivenBackAll: at the process's end nothing that it had received was in flight, and what it gave back was received by
// the other within a second.
func (p *process) mustHaveGivenBackAll(t *testing.T, s *sqsmodel.Server, by time.Time) (released int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	ends, receives := map[string]sqsmodel.Event{}, map[string][]sqsmodel.Event{}
	for _, e := range s.Journal() {
		switch {
		case e.Kind == sqsmodel.Deleted || e.Kind == sqsmodel.VisibilityChanged && e.VisibilityTimeout == 0:
			if _, known := ends[e.Handle]; !known {
				ends[e.Handle] = e
			}
		case e.Kind == sqsmodel.Received:
			receives[e.MessageID] = append(receives[e.MessageID], e)
		}
	}
	var slowest time.Duration
	for handle := range p.handles {
		end, ok := ends[handle]
		if !ok || end.At.After(by) {
			t.Errorf("a message was in flight when its worker ended")
			continue
		}
		if end.Kind == sqsmodel.Deleted {
			continue
		}
		released++
		took := time.Hour
		for _, e := range receives[end.MessageID] {
			if e.Seq > end.Seq {
				took = min(took, e.At.Sub(end.At))
			}
		}
		slowest = max(slowest, took)
	}
	if slowest > time.Second {
		t.Errorf("a message was received again %v after its release, want a second at most", slowest)
	}
	t.Logf("%d messages given back, the last one received again %v after its release", released, slowest.Round(time.Millisecond))
	return released
}

// going is how one of two workers is made to go.
type going struct {
	leaving settings
	spot    bool
	grace   time.Duration
	status  int // of its exit; -1: killed
}

// Real processes and a real clock: two hundred messages run on two workers, one of which is told to go and then killed.
func TestNothingIsLostOrStrandedWhenAWorkerIsToldToGoAndThenKilled(t *testing.T) {
	for name, c := range map[string]going{
		"Spot notice":                            {settings{}, true, *spotTime, 0},
		"SIGTERM, handlers ignore their context": {settings{Deaf: true}, false, *sigtermTime, incomplete},
		"docker stop, the process hangs":         {settings{Hang: true}, false, *dockerTime, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.play(t)
		})
	}
}

func (c going) play(t *testing.T) {
	const messages = 200
	s := sqsmodel.New(sqsmodel.Config{Latency: 2 * time.Millisecond})
	queue := s.MustCreateQueue("jobs", map[string]string{"VisibilityTimeout": "60"})
	const lead = 4 * time.Second // from the simulator's start to its notice
	kill := time.Now().Add(lead + c.grace)
	if c.spot {
		kill = kill.Truncate(time.Second)
		c.leaving.Metadata = simulator(t, "spot", "--action", "terminate", "--mock-delay-sec", fmt.Sprint(int(lead.Seconds())), "--time", kill.UTC().Format(time.RFC3339))
	}
	c.leaving.Grace, c.leaving.Job = c.grace, c.grace+lead+3*time.Second
	goes := start(t, s, queue, c.leaving)
	stays := start(t, s, queue, settings{Grace: 30 * time.Second, Job: c.grace + lead})
	eventually(t, 20*time.Second, "both workers receive", func() bool { return goes.receiving() && stays.receiving() })
	for i := range messages / 2 {
		s.MustSend(queue, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
		time.Sleep(4 * time.Millisecond)
	}
	eventually(t, 10*time.Second, "all messages are in flight", func() bool { return s.Queue("jobs").InFlight == messages })
	if goes.holds() < messages/5 || stays.holds() < messages/5 {
		t.Errorf("the workers hold %d and %d", goes.holds(), stays.holds())
	}
	if !c.spot {
		kill = time.Now().Add(c.grace)
		if err := goes.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	early := goes.ended(time.Until(kill))
	if early != (c.status >= 0) {
		t.Errorf("it had ended before the kill: %t", early)
	}
	_ = goes.Process.Signal(syscall.SIGKILL)
	<-goes.exited
	if code := goes.ProcessState.ExitCode(); code != c.status {
		t.Errorf("its exit status is %d, want %d", code, c.status)
	}
	eventually(t, c.grace+lead+20*time.Second, "the queue is empty", func() bool { return len(s.Queue("jobs").Messages) == 0 })
	if n := goes.mustHaveGivenBackAll(t, s, goes.at); n < messages/5 {
		t.Errorf("it gave back %d messages", n)
	}
	if n := s.CountEvents(sqsmodel.Deleted); n != messages {
		t.Errorf("%d messages were deleted, want %d", n, messages)
	}
	if n := s.CountEvents(sqsmodel.Expired); n != 0 {
		t.Errorf("%d visibilities ran out", n)
	}
	if err := stays.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !stays.ended(10*time.Second) || stays.ProcessState.ExitCode() != 0 {
		t.Errorf("the other one, told to stop: %v", stays.ProcessState)
	}
}
