package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// ask asks a handler, as a program does or as a browser.
func ask(h http.Handler, path, accept string) (status int, body string, header http.Header) {
	to, from := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
	from.Header.Set("Accept", accept)
	h.ServeHTTP(to, from)
	return to.Code, to.Body.String(), to.Header()
}

// mustAnswer compares the statuses of both probes.
func mustAnswer(t *testing.T, h http.Handler, when string, live, ready int) {
	t.Helper()
	for path, want := range map[string]int{"/livez": live, "/readyz": ready} {
		if status, body, _ := ask(h, path, ""); status != want {
			t.Errorf("%s: %s answers %d, want %d: %s", when, path, status, want, body)
		}
	}
}

func TestProbesFollowAWorkersLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		w, err := worker.New(q.Client(), q.url, takes(10*time.Second), worker.Config{Logger: slog.New(&logbook{})})
		if err != nil {
			t.Fatal(err)
		}
		h := worker.StatusHandler(w)
		mustAnswer(t, h, "before Run", 200, 503)
		q.send(1)
		s := run(t, w, &logbook{})
		time.Sleep(time.Second)
		mustAnswer(t, h, "working", 200, 200)
		s.cancel(context.Canceled)
		synctest.Wait()
		mustAnswer(t, h, "draining", 200, 503)
		s.mustStop()
		mustAnswer(t, h, "after Run", 503, 503)
	})
}

func TestAQueueThatIsGoneIsNoReasonToRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{})
		h := worker.StatusHandler(w.Worker)
		time.Sleep(30 * time.Second)
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Code: "QueueDoesNotExist"})
		time.Sleep(time.Minute)
		mustAnswer(t, h, "the queue is gone", 200, 503)
		if _, body, _ := ask(h, "/readyz", ""); !strings.HasPrefix(body, "work: worker: receiving has failed") {
			t.Errorf("/readyz says %q", body)
		}
		_ = w.stop()
	})
}

func TestAnOpenBreakerIsNoReasonToRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(1)
		w := q.start(returns(worker.Unavailable(errors.New("database down"))), worker.Config{})
		h := worker.StatusHandler(w.Worker)
		time.Sleep(time.Second)
		mustAnswer(t, h, "the breaker is open", 200, 503)
		w.mustStop()
	})
}

// stalling is a client whose receives don't come back, whatever their context says.
type stalling struct {
	*sqs.Client
	free chan struct{}
}

func (c *stalling) ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	<-c.free
	return &sqs.ReceiveMessageOutput{}, nil
}

func TestAStalledPollLoopIsAReasonToRestartAndALongHandlerIsNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(10)
		long := q.start(takes(10*time.Minute), worker.Config{DrainTimeout: 11 * time.Minute})
		h := worker.StatusHandler(long.Worker)
		time.Sleep(9 * time.Minute)
		mustAnswer(t, h, "all slots are taken for ten minutes", 200, 200)
		long.mustStop()

		free := make(chan struct{})
		q = newQueue(t)
		w := q.startWith(&stalling{q.Client(), free}, worker.HandlerFunc(succeed), worker.Config{})
		h = worker.StatusHandler(w.Worker)
		time.Sleep(5 * time.Minute)
		mustAnswer(t, h, "no receive has ended for five minutes", 503, 503)
		close(free)
		w.mustStop()
	})
}

func TestProbesAnswerForAllWorkers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		good := q.start(worker.HandlerFunc(succeed), worker.Config{Name: "good"})
		idle, err := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Name: "idle"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		h := worker.StatusHandler(good.Worker, idle, nil)
		mustAnswer(t, h, "one hasn't started", 200, 503)
		if _, body, _ := ask(h, "/readyz", ""); body != "good: ok\nidle: worker: not started\n" {
			t.Errorf("/readyz says %q", body)
		}
		mustAnswer(t, worker.StatusHandler(), "there are none", 503, 503)
		good.mustStop()
	})
}

func TestStatusShowsWhatRunsAndForHowLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 10, "VisibilityTimeout", "30")
		ids := q.send(3)
		w := q.start(worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			if m.Body == "0" {
				time.Sleep(time.Second) // a history begins when it is mounted
				return errors.New("no <b>luck</b>")
			}
			return takes(time.Minute)(ctx, m)
		}), worker.Config{Name: "orders", Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		h := worker.StatusHandler(w.Worker)
		time.Sleep(5 * time.Second)

		code, body, header := ask(h, "/statusz", "application/json")
		var all []worker.Status
		if err := json.Unmarshal([]byte(body), &all); err != nil || code != 200 || len(all) != 1 || header.Get("Content-Type") != "application/json" {
			t.Fatalf("%d %v %v: %s", code, header, err, body)
		}
		s := all[0]
		if s.Name != "orders" || s.State != "working" || s.Problem != "" || s.Stats.Running != 2 || s.Stats.Failed != 1 || s.VisibilitySeconds != 30 {
			t.Errorf("the status is %+v", s)
		}
		if len(s.Running) != 2 || s.Running[0].ForSeconds != 5 || s.Running[0].LeaseSeconds != 25 || s.Running[0].ReceiveCount != 1 {
			t.Errorf("running: %+v", s.Running)
		}
		if len(s.Problems) != 1 || s.Problems[0].MessageID != ids[0] || !strings.Contains(s.Problems[0].Detail, "no <b>luck</b>") {
			t.Errorf("problems: %+v", s.Problems)
		}
		if n := len(s.History); n != 60 {
			t.Fatalf("the history has %d steps", n)
		}
		if last := s.History[59]; last.Handled+s.History[58].Handled != 1 || last.Failed+s.History[58].Failed != 1 {
			t.Errorf("the history ends with %+v", s.History[58:])
		}

		_, page, header := ask(h, "/statusz", "text/html,application/xhtml+xml")
		for _, want := range []string{"orders", "working well", s.Running[0].MessageID, "no &lt;b&gt;luck&lt;/b&gt;", "<svg"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page doesn't say %q", want)
			}
		}
		if !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") || header.Get("Cache-Control") != "no-store" {
			t.Errorf("header: %v", header)
		}
		for _, e := range q.events("", sqsmodel.Received) {
			if strings.Contains(page+body, e.Handle) {
				t.Error("a receipt handle is on the page")
			}
		}
		w.mustStop()
	})
}

func TestStatusNeverShowsABody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.MustSend(q.url, `{"card": "4111 1111"}`, "garbage 4111")
		w := q.start(worker.JSON(func(ctx context.Context, _ *worker.Message, o struct{ Card string }) error {
			return takes(time.Minute)(ctx, nil)
		}), worker.Config{})
		h := worker.StatusHandler(w.Worker)
		time.Sleep(time.Second)
		_, body, _ := ask(h, "/statusz", "")
		_, page, _ := ask(h, "/statusz?format=html", "")
		if strings.Contains(body+page, "4111") {
			t.Errorf("a body is shown: %s", body)
		}
		w.mustStop()
	})
}

func TestStatusIsReadOnly(t *testing.T) {
	h := worker.StatusHandler()
	for _, path := range []string{"/livez", "/readyz", "/statusz"} {
		to := httptest.NewRecorder()
		h.ServeHTTP(to, httptest.NewRequest(http.MethodPost, path, strings.NewReader("x")))
		if to.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s answers %d", path, to.Code)
		}
	}
	if status, _, _ := ask(h, "/", ""); status != http.StatusNotFound {
		t.Errorf("/ answers %d", status)
	}
}

func TestProblemsAreKeptWhateverTheLoggerDropsAndAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(50)
		w := q.start(returns(errors.New(strings.Repeat("long ", 1000))), worker.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1})), Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour}})
		eventually(t, time.Minute, "all have failed", func() bool { return w.Stats().Failed == 50 })
		problems := w.Status().Problems
		if len(problems) != 20 {
			t.Errorf("%d problems are kept, want 20", len(problems))
		}
		for _, p := range problems {
			if len(p.Detail) > 510 {
				t.Errorf("a problem of %d bytes is kept", len(p.Detail))
			}
		}
		w.mustStop()
	})
}

func TestStatusIsSafeAtAnyTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		q.send(200)
		w := q.start(takes(time.Second), worker.Config{})
		h := worker.StatusHandler(w.Worker)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 300 {
				ask(h, "/statusz?format=html", "")
				ask(h, "/livez", "")
				time.Sleep(100 * time.Millisecond)
			}
		}()
		q.mustEmpty(time.Minute)
		w.mustStop()
		<-done
	})
}
