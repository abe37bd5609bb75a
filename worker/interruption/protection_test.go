package interruption_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
)

// ecsAgent is the task protection endpoint of an ECS agent. It keeps ECS's view of the task.
type ecsAgent struct {
	mu     sync.Mutex
	calls  []protectionCall
	until  time.Time                 // protected, as ECS sees it
	answer func(n int) (int, string) // instead of doing it; "" does it
	lose   func(n int) bool          // do it and lose the answer
	hang   bool
}

type protectionCall struct {
	at      time.Time
	on      bool
	minutes int
}

func (a *ecsAgent) Do(req *http.Request) (*http.Response, error) {
	var in struct {
		ProtectionEnabled bool
		ExpiresInMinutes  *int
	}
	raw, _ := io.ReadAll(req.Body)
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || req.Method != http.MethodPut || req.URL.String() != "http://169.254.170.2/api/abc/task-protection/v1/state" || req.Header.Get("Content-Type") != "application/json" {
		return nil, fmt.Errorf("bad request %s %s %s: %v", req.Method, req.URL, raw, err)
	}
	if in.ProtectionEnabled != (in.ExpiresInMinutes != nil) || in.ExpiresInMinutes != nil && (*in.ExpiresInMinutes < 1 || *in.ExpiresInMinutes > 2880) {
		return nil, fmt.Errorf("bad request %s", raw)
	}
	a.mu.Lock()
	if a.hang {
		a.mu.Unlock()
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	defer a.mu.Unlock()
	call := protectionCall{at: time.Now(), on: in.ProtectionEnabled}
	if call.on {
		call.minutes = *in.ExpiresInMinutes
	}
	a.calls = append(a.calls, call)
	n := len(a.calls)
	if a.answer != nil {
		if status, body := a.answer(n); status < 0 {
			return nil, errors.New("connect: connection refused")
		} else if body != "" {
			return respond(status, body), nil
		}
	}
	a.until = time.Time{}
	protection := map[string]any{"ProtectionEnabled": call.on, "TaskArn": "arn:aws:ecs:eu-west-1:1:task/x"}
	if call.on {
		a.until = call.at.Add(time.Duration(call.minutes) * time.Minute)
		protection["ExpirationDate"] = a.until.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	body, _ := json.Marshal(map[string]any{"protection": protection})
	if a.lose != nil && a.lose(n) {
		return nil, errors.New("read: connection reset by peer")
	}
	return respond(200, string(body)), nil
}

func (a *ecsAgent) protected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.until)
}

func (a *ecsAgent) list() []protectionCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]protectionCall(nil), a.calls...)
}

// mustBeRare: at most one call a minute, except for one when Run ends.
func (a *ecsAgent) mustBeRare(t *testing.T) {
	t.Helper()
	calls := a.list()
	for i := 1; i < len(calls); i++ {
		if gap := calls[i].at.Sub(calls[i-1].at); gap < time.Minute {
			t.Errorf("calls %d and %d are %v apart", i, i+1, gap)
		}
	}
}

// holder is a worker that holds what the test says.
type holder struct {
	mu   sync.Mutex
	held int
	over bool
}

func (h *holder) hold(n int) { h.mu.Lock(); h.held = n; h.mu.Unlock() }
func (h *holder) Stats() worker.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return worker.Stats{Held: h.held}
}
func (h *holder) Healthy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return worker.ErrNotRunning
	}
	return nil
}

var _ interruption.Holder = (*worker.Worker)(nil)

// protecting is a TaskProtection whose Run is under way.
type protecting struct {
	*interruption.TaskProtection
	cancel context.CancelFunc
	done   chan struct{}
	log    *logbook
}

func protect(t *testing.T, a *ecsAgent, cfg interruption.ProtectionConfig, workers ...interruption.Holder) *protecting {
	t.Helper()
	p := &protecting{log: &logbook{}, done: make(chan struct{})}
	cfg.AgentURI, cfg.HTTPClient, cfg.Logger = "http://169.254.170.2/api/abc", a, p.log.logger()
	var err error
	if p.TaskProtection, err = interruption.NewTaskProtection(cfg, workers...); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.done)
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run returned %v", err)
		}
	}()
	return p
}

func (p *protecting) stop() { p.cancel(); <-p.done }

func TestATaskIsProtectedWhileMessagesAreHeldAndNotAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, h, other := &ecsAgent{}, &holder{}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{}, h, other)
		time.Sleep(time.Hour)
		if n := len(a.list()); n != 0 {
			t.Errorf("%d calls of an idle task", n)
		}
		h.hold(3)
		time.Sleep(1100 * time.Millisecond)
		if !a.protected() {
			t.Error("not protected a second after a message came")
		}
		if until, ok := p.Protected(); !ok || time.Until(until) < 29*time.Minute {
			t.Errorf("Protected says %v, %t", until, ok)
		}
		for range 100 {
			time.Sleep(time.Minute)
			if !a.protected() {
				t.Fatal("the protection expired while messages were held")
			}
		}
		if n := len(a.list()); n < 6 || n > 8 {
			t.Errorf("%d calls in 100 minutes, want one each fifteen", n)
		}
		h.hold(0)
		other.hold(1)
		time.Sleep(10 * time.Minute)
		if !a.protected() {
			t.Error("not protected while the other worker holds a message")
		}
		other.hold(0)
		time.Sleep(50 * time.Second)
		if !a.protected() {
			t.Error("taken off within IdleAfter")
		}
		time.Sleep(15 * time.Second)
		if _, ok := p.Protected(); a.protected() || ok {
			t.Error("still protected when idle")
		}
		a.mustBeRare(t)
		p.stop()
	})
}

func TestAFlappingWorkerMakesAtMostOneCallAMinute(t *testing.T) {
	type flap struct{ busy, idle, idleAfter time.Duration }
	each(t, map[string]flap{
		"each second":          {time.Second, time.Second, 0},
		"half a minute":        {30 * time.Second, 30 * time.Second, 0},
		"just over a minute":   {time.Second, 61 * time.Second, 0},
		"eager to be idle":     {5 * time.Second, 5 * time.Second, time.Second},
		"eager, half a minute": {30 * time.Second, 31 * time.Second, time.Second},
	}, func(t *testing.T, c flap) {
		a, h := &ecsAgent{}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{IdleAfter: c.idleAfter}, h)
		for began := time.Now(); time.Since(began) < time.Hour; {
			h.hold(1)
			time.Sleep(c.busy)
			h.hold(0)
			time.Sleep(c.idle)
		}
		a.mustBeRare(t)
		if n := len(a.list()); n > 61 || n < 3 {
			t.Errorf("%d calls in an hour", n)
		}
		p.stop()
	})
}

func TestWhatFailsAtTheAgentIsLoggedAndTriedAgain(t *testing.T) {
	type failure struct {
		status int
		body   string
		says   string
	}
	each(t, map[string]failure{
		"throttled":          {400, `{"requestID":"r","error":{"Arn":"arn:aws:ecs:x","Code":"ThrottlingException","Message":"Rate exceeded"}}`, "ThrottlingException (HTTP 400): Rate exceeded"},
		"denied":             {400, `{"error":{"Code":"AccessDeniedException","Message":"not authorized"}}`, "allow ecs:UpdateTaskProtection in the task role"},
		"deployment blocked": {200, `{"failure":{"Arn":"arn:aws:ecs:x","Detail":null,"Reason":"DEPLOYMENT_BLOCKED"}}`, "DEPLOYMENT_BLOCKED"},
		"task not valid":     {200, `{"failure":{"Arn":"arn:aws:ecs:x","Detail":"d","Reason":"TASK_NOT_VALID"}}`, "only running tasks of a service"},
		"server error":       {500, `{"error":{"Code":"ServerException","Message":"m"}}`, "ServerException (HTTP 500)"},
		"agent missing":      {-1, "", "the agent doesn't answer"},
		"an old agent":       {404, "404 page not found", "HTTP 404"},
		"not what was asked": {200, `{"protection":{"ProtectionEnabled":false,"ExpirationDate":null,"TaskArn":"x"}}`, "should be true and is false"},
		"empty":              {200, `{}`, "no protection in it"},
		"null":               {200, `null`, "no protection in it"},
		"a list":             {200, `[1]`, "isn't what the ECS agent says"},
	}, func(t *testing.T, c failure) {
		failing := true
		a, h := &ecsAgent{}, &holder{}
		a.answer = func(int) (int, string) {
			if failing {
				return c.status, c.body + ""
			}
			return 200, ""
		}
		p := protect(t, a, interruption.ProtectionConfig{}, h)
		h.hold(1)
		time.Sleep(time.Hour)
		if n := len(a.list()); n < 8 || n > 12 {
			t.Errorf("%d calls in an hour of failures, want one a minute at first and one in eight minutes later", n)
		}
		if n := p.log.with("level=WARN", c.says); n < 2 || n > 5 || n != len(p.log.lines()) {
			t.Errorf("logged %q", p.log.lines())
		}
		if _, ok := p.Protected(); ok && c.status > 0 {
			t.Error("Protected says that it is")
		}
		a.mustBeRare(t)
		a.mu.Lock()
		failing = false
		a.mu.Unlock()
		time.Sleep(9 * time.Minute)
		if !a.protected() || p.log.with("is protected from scale-in") != 1 {
			t.Errorf("not protected once it works again: %q", p.log.lines())
		}
		p.stopIdle(h)
	})
}

func (p *protecting) stopIdle(h *holder) { h.hold(0); p.stop() }

func TestAnAgentThatHangsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, h := &ecsAgent{hang: true}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{}, h)
		h.hold(1)
		time.Sleep(10 * time.Minute)
		h.hold(0)
		began := time.Now()
		p.stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

// The answer was lost: the task may be protected, and must not stay so when it is idle.
func TestProtectionWhoseAnswerWasLostIsTakenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, h := &ecsAgent{lose: func(n int) bool { return n <= 2 }}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{}, h)
		h.hold(1)
		time.Sleep(2 * time.Second)
		h.hold(0)
		time.Sleep(5 * time.Minute)
		if a.protected() {
			t.Errorf("still protected after the calls %v", a.list())
		}
		a.mustBeRare(t)
		p.stop()
	})
}

// A task that is always busy would never be replaced.
func TestABusyTaskIsUnprotectedForFiveMinutesAfterAtMost(t *testing.T) {
	each(t, map[string]time.Duration{"default": 0, "10 m": 10 * time.Minute, "no limit": interruption.NoLimit}, func(t *testing.T, atMost time.Duration) {
		a, h := &ecsAgent{}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{AtMost: atMost}, h)
		h.hold(1)
		var on, off, longest time.Duration
		for since := time.Duration(0); on+off < 5*time.Hour; {
			time.Sleep(10 * time.Second)
			if a.protected() {
				on, since = on+10*time.Second, since+10*time.Second
				longest = max(longest, since)
			} else {
				off, since = off+10*time.Second, 0
			}
		}
		limit := atMost
		if limit == 0 {
			limit = 2 * time.Hour
		}
		switch {
		case atMost == interruption.NoLimit:
			if off > time.Minute {
				t.Errorf("unprotected for %v", off)
			}
		case longest > limit+time.Minute || longest < limit-time.Minute:
			t.Errorf("protected for %v without a break, want %v", longest, limit)
		default:
			if breaks := off.Minutes() / (5 * 60 / (limit.Minutes() + 5)); breaks < 3.5 || breaks > 6.5 {
				t.Errorf("%v without protection in five hours: breaks of %.1f minutes, want five", off, breaks)
			}
		}
		a.mustBeRare(t)
		p.stopIdle(h)
	})
}

func TestProtectionLastsThroughTheDrainAndIsTakenOffAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, h := &ecsAgent{}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{}, h)
		h.hold(1)
		time.Sleep(5 * time.Minute)
		p.cancel()
		time.Sleep(20 * time.Minute)
		if !a.protected() {
			t.Error("not protected while it drains")
		}
		h.hold(0)
		time.Sleep(200 * time.Millisecond)
		select {
		case <-p.done:
		default:
			t.Error("Run hasn't returned")
		}
		if a.protected() {
			t.Error("still protected when Run has returned")
		}
	})
}

// A worker whose drain was incomplete still names what it held; nobody shall wait for that.
func TestProtectionDoesNotWaitForAWorkerThatHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, h := &ecsAgent{}, &holder{}
		p := protect(t, a, interruption.ProtectionConfig{}, h)
		h.hold(1)
		time.Sleep(5 * time.Minute)
		h.mu.Lock()
		h.over = true
		h.mu.Unlock()
		p.stop()
		if a.protected() {
			t.Error("still protected")
		}
	})
}

func TestOutsideOfECSThereIsOneLineAndNothingElse(t *testing.T) {
	t.Setenv("ECS_AGENT_URI", "")
	log := &logbook{}
	p, err := interruption.NewTaskProtection(interruption.ProtectionConfig{Logger: log.logger()}, &holder{held: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(context.Background()); err != nil {
		t.Error(err)
	}
	if len(log.lines()) != 1 || log.with("ECS_AGENT_URI isn't set") != 1 {
		t.Errorf("logged %q", log.lines())
	}
}

func TestProtectionConfigSaysEverythingThatIsWrong(t *testing.T) {
	_, err := interruption.NewTaskProtection(interruption.ProtectionConfig{ExpiresIn: 90 * time.Second, IdleAfter: time.Millisecond, AtMost: time.Minute})
	for _, want := range []string{
		"ProtectionConfig.ExpiresIn is 1m30s: must be from 2m0s to 48h0m0s", "ExpiresIn is 1m30s: must be whole minutes",
		"ProtectionConfig.IdleAfter is 1ms: must be from 1s to 1h0m0s", "ProtectionConfig.AtMost is 1m0s: must be from 5m0s to 48h0m0s, or interruption.NoLimit", "no worker",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	if _, err := interruption.NewTaskProtection(interruption.ProtectionConfig{}, (*worker.Worker)(nil), nil); err == nil || strings.Count(err.Error(), "is nil") != 2 {
		t.Errorf("nil workers: %v", err)
	}
}
