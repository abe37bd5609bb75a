package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// scene is a queue, a sidecar and a program in a bubble of virtual time.
type scene struct {
	*sqsmodel.Server
	t      *testing.T
	url    string
	log    *bytes.Buffer
	cancel func()
	result chan error
}

// program is the one behind the sidecar, called without a socket.
type program func(http.ResponseWriter, *http.Request)

func (p program) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	p(rec, r)
	if err := r.Context().Err(); err != nil {
		return nil, err // as the transport does when the context ends before there is an answer
	}
	return rec.Result(), nil
}

// play starts a sidecar on a queue whose maxReceiveCount is 3.
func play(t *testing.T, transport http.RoundTripper, flags []string, story func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{Server: sqsmodel.New(sqsmodel.Config{}), t: t, log: &bytes.Buffer{}, result: make(chan error, 1)}
		s.MustCreateQueue("dead", map[string]string{"MessageRetentionPeriod": "1209600"})
		s.url = s.MustCreateQueue("jobs", map[string]string{"VisibilityTimeout": "30",
			"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"3"}`, s.Queue("dead").ARN)})
		o, err := parseFlags(append([]string{"-queue-url", s.url}, flags...), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		w, err := newWorker(s.Client(), transport, o, slog.New(slog.NewTextHandler(s.log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		go func() { s.result <- w.Run(ctx) }()
		story(s)
		cancel()
		if err := <-s.result; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
	})
}

func (s *scene) send(body string, attributes map[string]types.MessageAttributeValue) string {
	s.t.Helper()
	out, err := s.Client().SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &s.url, MessageBody: &body, MessageAttributes: attributes})
	if err != nil {
		s.t.Fatal(err)
	}
	return *out.MessageId
}

// pass lets time pass, and what is due then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *scene) left() int { return len(s.Queue("jobs").Messages) }

func text(kind, value string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String(kind), StringValue: aws.String(value)}
}

func TestTheProgramGetsBeanstalksHeaders(t *testing.T) {
	var got *http.Request
	var body string
	play(t, program(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
	}), []string{"-url", "http://localhost:8080/work?x=1"}, func(s *scene) {
		id := s.send(`{"a": 1}`, map[string]types.MessageAttributeValue{
			"type": text("String", "order"), "count": text("Number.int", "7"), "umlaut": text("String", "für"),
			"lines": text("String", "a\r\nX-Evil: 1"), "blob": {DataType: aws.String("Binary"), BinaryValue: []byte("x")},
		})
		pass(time.Second)
		if s.left() != 0 {
			t.Error("200 didn't delete the message")
		}
		want := map[string]string{
			"Content-Type": "application/json", "User-Agent": "aws-sqsd/3.0 (sqsworker)", "X-Aws-Sqsd-Msgid": id, "X-Aws-Sqsd-Queue": "jobs",
			"X-Aws-Sqsd-Receive-Count": "1", "X-Aws-Sqsd-First-Received-At": "2000-01-01T00:00:00Z", "X-Aws-Sqsd-Sent-At": "2000-01-01T00:00:00Z",
			"X-Aws-Sqsd-Attr-Type": "order", "X-Aws-Sqsd-Attr-Count": "7", "X-Aws-Sqsd-Attr-Umlaut": "für",
		}
		sender := got.Header.Get("X-Aws-Sqsd-Sender-Id")
		got.Header.Del("X-Aws-Sqsd-Sender-Id")
		headers := map[string]string{}
		for name, values := range got.Header {
			headers[name] = strings.Join(values, "|")
		}
		if !maps.Equal(headers, want) || sender == "" {
			t.Errorf("got headers %v (sender %q), want %v", headers, sender, want)
		}
		if got.Method != "POST" || got.URL.String() != "http://localhost:8080/work?x=1" || body != `{"a": 1}` {
			t.Errorf("got %s %s with body %q", got.Method, got.URL, body)
		}
		for _, name := range []string{"Attr-lines", "Attr-blob"} {
			if strings.Count(s.log.String(), "X-Aws-Sqsd-"+name) != 1 {
				t.Errorf("that %s is left out isn't logged once", name)
			}
		}
	})
}

func TestScheduledTasksGoToTheirPathOnTheSameHost(t *testing.T) {
	task := func(path string) map[string]types.MessageAttributeValue {
		return map[string]types.MessageAttributeValue{"beanstalk.sqsd.task_name": text("String", "nightly"), "beanstalk.sqsd.path": text("String", path), "beanstalk.sqsd.scheduled_time": text("String", "2026-11-30 02:00:00 UTC")}
	}
	for name, c := range map[string]struct {
		flags []string
		path  string
		want  string // URL; empty: it must not be sent
	}{
		"its path":     {nil, "/tasks/nightly?full=1", "http://localhost:8080/tasks/nightly?full=1"},
		"switched off": {[]string{"-task-paths=false"}, "/tasks/nightly", "http://localhost:8080/work"},
		"another host": {nil, "http://169.254.169.254/latest", ""},
		"no scheme":    {nil, "//169.254.169.254/latest", ""},
		"relative":     {nil, "nightly", ""},
		"user":         {nil, "@169.254.169.254/", ""},
	} {
		t.Run(name, func(t *testing.T) {
			urls := []string{}
			play(t, program(func(_ http.ResponseWriter, r *http.Request) {
				urls = append(urls, r.URL.String())
				if h := r.Header; h.Get("X-Aws-Sqsd-Taskname") != "nightly" || h.Get("X-Aws-Sqsd-Scheduled-At") != "2026-11-30T02:00:00Z" || h.Get("X-Aws-Sqsd-Path") != c.path {
					t.Errorf("got headers %v", h)
				}
				for name := range r.Header {
					if strings.HasPrefix(name, "X-Aws-Sqsd-Attr-Beanstalk") {
						t.Errorf("%s was passed on", name)
					}
				}
			}), append([]string{"-url", "http://localhost:8080/work"}, c.flags...), func(s *scene) {
				s.send("elasticbeanstalk scheduled job", task(c.path))
				pass(time.Second)
				want := []string{}
				if c.want != "" {
					want = append(want, c.want)
				}
				if !slices.Equal(urls, want) || (s.left() == 0) != (c.want != "") {
					t.Errorf("posted to %q, %d left, want %q", urls, s.left(), want)
				}
			})
		})
	}
}

func TestAnythingBut200IsAFailure(t *testing.T) {
	for _, status := range []int{201, 202, 204, 301, 307, 400, 404, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var at []time.Time
			play(t, program(func(w http.ResponseWriter, r *http.Request) {
				at = append(at, time.Now())
				if got := r.Header.Get("X-Aws-Sqsd-Receive-Count"); got != fmt.Sprint(len(at)) {
					t.Errorf("receive count %s at the %d. time", got, len(at))
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
			}), nil, func(s *scene) {
				s.send("x", nil)
				pass(time.Hour)
				if len(at) != 3 || s.CountEvents(sqsmodel.Deleted) != 0 || len(s.Queue("dead").Messages) != 1 {
					t.Fatalf("posted %d times, deleted %d, dead %d; want 3, 0, 1", len(at), s.CountEvents(sqsmodel.Deleted), len(s.Queue("dead").Messages))
				}
				if first, second := at[1].Sub(at[0]), at[2].Sub(at[1]); first < time.Second || second <= first {
					t.Errorf("it came back after %v and %v: the gaps must grow", first, second)
				}
			})
		})
	}
}

func TestTheDelayAfterAFailureIsWhoeversWord(t *testing.T) {
	for name, c := range map[string]struct {
		flags  []string
		header string
		want   time.Duration
	}{
		"flag":               {[]string{"-error-visibility", "90s"}, "", 90 * time.Second},
		"the program":        {nil, "600", 10 * time.Minute},
		"the program's date": {nil, "Sat, 01 Jan 2000 00:05:00 GMT", 5 * time.Minute},
		"both":               {[]string{"-error-visibility", "90s"}, "600", 10 * time.Minute},
		"nonsense":           {[]string{"-error-visibility", "90s"}, "soon", 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, program(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", c.header)
				w.WriteHeader(http.StatusServiceUnavailable)
			}), c.flags, func(s *scene) {
				s.send("x", nil)
				pass(time.Second)
				if left := s.Queue("jobs").Messages[0].VisibleAt.Sub(time.Now().Add(-time.Second)); left < c.want-time.Second || left > c.want+time.Second {
					t.Errorf("it stays away for %v, want %v", left, c.want)
				}
			})
		})
	}
}

func TestNoAnswerInTimeIsAFailure(t *testing.T) {
	calls := 0
	play(t, program(func(_ http.ResponseWriter, r *http.Request) {
		calls++
		if calls == 1 {
			<-r.Context().Done()
		}
	}), []string{"-timeout", "20s"}, func(s *scene) {
		s.send("x", nil)
		pass(time.Minute)
		if calls != 2 || s.left() != 0 {
			t.Errorf("posted %d times, %d left", calls, s.left())
		}
		if !strings.Contains(s.log.String(), "didn't answer within 20s") {
			t.Error("the log doesn't say why")
		}
	})
}

func TestASlowProgramKeepsItsMessage(t *testing.T) {
	calls := 0
	play(t, program(func(http.ResponseWriter, *http.Request) {
		calls++
		time.Sleep(4 * time.Minute) // visibility: 5 s
	}), []string{"-visibility", "5s"}, func(s *scene) {
		s.send("x", nil)
		pass(10 * time.Minute)
		if calls != 1 || s.left() != 0 || s.CountEvents(sqsmodel.Expired) != 0 {
			t.Errorf("posted %d times, %d left, %d leases expired", calls, s.left(), s.CountEvents(sqsmodel.Expired))
		}
	})
}

// down is a program that isn't running until it is.
type down struct {
	mu sync.Mutex
	up bool
	n  int
}

func (d *down) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.up {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	d.n++
	return httptest.NewRecorder().Result(), nil
}

func TestMessagesSurviveAProgramThatIsDown(t *testing.T) {
	d := &down{}
	play(t, d, nil, func(s *scene) {
		for range 200 {
			s.send("x", nil)
		}
		pass(30 * time.Minute)
		d.mu.Lock()
		d.up = true
		d.mu.Unlock()
		pass(30 * time.Minute)
		dead := len(s.Queue("dead").Messages)
		if s.left() != 0 || dead > 10 || d.n+dead != 200 {
			t.Errorf("%d handled, %d dead, %d left: an outage must wear out no more than what it was tried with", d.n, dead, s.left())
		}
	})
}

func TestABrokenConnectionIsThatMessagesFailureAndHidesItsURL(t *testing.T) {
	calls := 0
	play(t, roundTripper(func(*http.Request) (*http.Response, error) {
		if calls++; calls == 1 {
			return nil, io.ErrUnexpectedEOF
		}
		return httptest.NewRecorder().Result(), nil
	}), []string{"-url", "http://localhost/?token=secret"}, func(s *scene) {
		s.send("x", nil)
		pass(time.Minute)
		if s.left() != 0 || calls != 2 || strings.Contains(s.log.String(), "secret") || !strings.Contains(s.log.String(), "no answer: unexpected EOF") {
			t.Errorf("%d left, %d calls, log:\n%s", s.left(), calls, s.log)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestBadFlagsAreNamedTogether(t *testing.T) {
	var out bytes.Buffer
	if status := run(context.Background(), []string{"-url", "localhost:80", "-connections", "0", "-timeout", "0s", "-error-visibility", "1ms", "-drain", "1ms"}, &out); status != 2 {
		t.Errorf("status %d", status)
	}
	for _, text := range []string{"-queue-url is missing", `-url is "localhost:80"`, "-connections is 0", "-timeout is 0s", "-error-visibility is 1ms", "-drain is 1ms"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("%q isn't in:\n%s", text, &out)
		}
	}
	if status := run(context.Background(), []string{"-h"}, &out); status != 0 {
		t.Errorf("-h: status %d", status)
	}
	if status := run(context.Background(), []string{"-queue-url", "http://localhost/1/q", "surplus"}, &out); status != 2 {
		t.Errorf("a surplus argument: status %d", status)
	}
}

// The binary, over sockets: a request is under way when SIGTERM comes; it is answered, its message deleted, and the process
// ends in good order.
func TestSIGTERMLetsOpenRequestsEnd(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "sqsd")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := sqsmodel.New(sqsmodel.Config{})
	endpoint := httptest.NewServer(server)
	defer endpoint.Close()
	queue := server.MustCreateQueue("jobs", nil)
	arrived, answer := make(chan struct{}, 10), make(chan struct{})
	local := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		arrived <- struct{}{}
		<-answer
	}))
	defer local.Close()

	health := freePort(t)
	var log bytes.Buffer
	cmd := exec.Command(binary, "-queue-url", queue, "-url", local.URL, "-health", health, "-drain", "20s")
	cmd.Env = []string{"AWS_ENDPOINT_URL_SQS=" + endpoint.URL, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test"}
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()

	server.MustSend(queue, "one")
	wait(t, arrived)
	if resp, err := http.Get("http://" + health + "/healthz"); err != nil || resp.StatusCode != 200 {
		t.Errorf("health: %v, %v", resp, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	server.MustSend(queue, "two") // ends the open long poll; it must be given back
	close(answer)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v, log:\n%s", err, &log)
		}
	case <-time.After(25 * time.Second):
		t.Fatalf("it didn't end, log:\n%s", &log)
	}
	st := server.Queue(queue)
	if len(st.Messages) != 1 || st.Messages[0].Body != "two" || st.InFlight != 0 || len(arrived) != 0 {
		t.Errorf("left are %+v, %d more requests", st, len(arrived))
	}
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("no request came")
	}
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
