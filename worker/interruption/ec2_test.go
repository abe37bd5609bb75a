package interruption_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
)

// instance is an instance metadata service with IMDSv2, under the SDK's own client.
type instance struct {
	mu       sync.Mutex
	items    map[string]string // by path below meta-data
	broken   func(path string) (status int, err error)
	requests map[string]int
}

func newInstance() *instance {
	return &instance{items: map[string]string{"instance-id": "i-0123456789abcdef0"}, requests: map[string]int{}}
}

func (i *instance) set(path, value string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.items[path] = value
}

func (i *instance) breaks(f func(path string) (int, error)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken = f
}

func (i *instance) count(path string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests[path]
}

// Do answers one request.
func (i *instance) Do(req *http.Request) (*http.Response, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	path := strings.TrimPrefix(req.URL.Path, "/latest/meta-data/")
	i.requests[path]++
	if i.broken != nil {
		if status, err := i.broken(path); status != 0 || err != nil {
			return respond(status, ""), err
		}
	}
	if req.Method == http.MethodPut && req.URL.Path == "/latest/api/token" {
		res := respond(200, "token")
		res.Header.Set("x-aws-ec2-metadata-token-ttl-seconds", req.Header.Get("x-aws-ec2-metadata-token-ttl-seconds"))
		return res, nil
	}
	if req.Header.Get("x-aws-ec2-metadata-token") != "token" {
		return respond(401, ""), nil
	}
	value, ok := i.items[path]
	if !ok {
		return respond(404, "Not Found"), nil
	}
	return respond(200, value), nil
}

func respond(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// ec2 reads an instance, as the default client would.
func ec2(t *testing.T, i *instance, log *logbook) *interruption.EC2 {
	t.Helper()
	m, err := interruption.NewEC2(interruption.EC2Config{
		Client: imds.New(imds.Options{HTTPClient: i, EnableFallback: aws.FalseTernary}), Logger: log.logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const (
	spotPath      = "spot/instance-action"
	rebalancePath = "events/recommendations/rebalance"
	asgPath       = "autoscaling/target-lifecycle-state"
)

func TestSpotNoticeEndsTheContextWithinFiveSeconds(t *testing.T) {
	type notice struct {
		action string
		in     time.Duration
		body   string        // instead
		left   time.Duration // from when it was seen
		says   string
	}
	each(t, map[string]notice{
		"terminate":                  {action: "terminate", in: 2 * time.Minute, left: 112 * time.Second, says: "EC2 Spot: terminate"},
		"stop":                       {action: "stop", in: 2 * time.Minute, left: 112 * time.Second, says: "EC2 Spot: stop"},
		"hibernate leaves nothing":   {action: "hibernate", in: 2 * time.Minute, left: 0, says: "EC2 Spot: hibernate"},
		"late":                       {action: "terminate", in: 23 * time.Second, left: 18 * time.Second, says: "EC2 Spot: terminate"},
		"past":                       {action: "terminate", in: -time.Minute, left: -63 * time.Second, says: "EC2 Spot: terminate"},
		"a slow clock":               {action: "terminate", in: 10 * time.Minute, left: 115 * time.Second, says: "EC2 Spot: terminate"},
		"not JSON":                   {body: "<html>", left: 115 * time.Second, says: "EC2 Spot: interruption"},
		"no time":                    {body: `{"action":"stop"}`, left: 115 * time.Second, says: "EC2 Spot: stop"},
		"a time in some other form":  {body: `{"action":"stop","time":"tomorrow"}`, left: 115 * time.Second, says: "EC2 Spot: stop"},
		"nothing at all":             {body: "", left: 115 * time.Second, says: "EC2 Spot: interruption"},
		"an action to come with AWS": {action: "teleport", in: 103 * time.Second, left: 95 * time.Second, says: "EC2 Spot: teleport"},
	}, func(t *testing.T, c notice) {
		i := newInstance()
		log := &logbook{}
		ctx, stop := interruption.Watch(context.Background(), ec2(t, i, log).Spot())
		defer stop()
		time.Sleep(time.Hour + 2*time.Second)
		if ctx.Err() != nil {
			t.Fatalf("it ended without a notice: %v", context.Cause(ctx))
		}
		if n := i.count(spotPath); n < 715 || n > 721 {
			t.Errorf("%d looks in an hour, want one each five seconds", n)
		}
		if n := i.count("/latest/api/token"); n > 13 {
			t.Errorf("%d tokens in an hour, want one each five minutes", n)
		}
		noticed := time.Now()
		if c.action != "" {
			c.body = fmt.Sprintf(`{"action":%q,"time":%q}`, c.action, noticed.Add(c.in).UTC().Format(time.RFC3339))
		}
		i.set(spotPath, c.body)
		<-ctx.Done()
		if took := time.Since(noticed); took > 5*time.Second {
			t.Errorf("it was seen after %v", took)
		}
		cause := causeOf(t, ctx)
		if left := time.Until(cause.Deadline()).Round(time.Second); left != c.left {
			t.Errorf("%v left, want %v", left, c.left)
		}
		if !strings.Contains(cause.Error(), c.says) {
			t.Errorf("the cause is %v, want %s", cause, c.says)
		}
	})
}

func TestWithoutInstanceMetadataTheSourcesGiveUpWithOneLine(t *testing.T) {
	unreachable := errors.New("dial tcp 169.254.169.254:80: i/o timeout")
	each(t, map[string]func(string) (int, error){
		"no route (Fargate, a laptop)": func(string) (int, error) { return 0, unreachable },
		"hop limit 1": func(path string) (int, error) { // the answer to the token's request never arrives
			if path == "/latest/api/token" {
				return 0, errors.New("timeout awaiting response headers")
			}
			return 0, nil
		},
		"switched off": func(string) (int, error) { return 403, nil },
	}, func(t *testing.T, broken func(string) (int, error)) {
		i := newInstance()
		i.breaks(broken)
		log := &logbook{}
		m := ec2(t, i, log)
		ctx, stop := interruption.Watch(context.Background(), m.Spot(), m.Rebalance(interruption.Drain), m.AutoScaling(interruption.AutoScalingConfig{}))
		defer stop()
		time.Sleep(time.Minute)
		asked := i.count("/latest/api/token")
		time.Sleep(time.Hour)
		if n := i.count("/latest/api/token"); n != asked {
			t.Errorf("%d more requests after it gave up", n-asked)
		}
		if i.count("/latest/meta-data/"+spotPath) > 0 {
			t.Error("IMDSv1 was asked")
		}
		if lines := log.lines(); len(lines) != 1 || !strings.Contains(lines[0], "no instance metadata here") || !strings.Contains(lines[0], "level=INFO") {
			t.Errorf("logged %q, want one line", lines)
		}
		if ctx.Err() != nil {
			t.Error("the context ended")
		}
	})
}

func TestMetadataThatOnceAnsweredIsLookedAtThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance()
		log := &logbook{}
		ctx, stop := interruption.Watch(context.Background(), ec2(t, i, log).Spot())
		defer stop()
		time.Sleep(time.Minute)
		i.breaks(func(string) (int, error) { return 0, errors.New("connection refused") })
		time.Sleep(10 * time.Minute)
		i.breaks(nil)
		time.Sleep(10 * time.Second)
		if n := log.with("can't be read"); n < 2 || n > 8 {
			t.Errorf("an outage of ten minutes made %d lines", n)
		}
		if n := log.with("can be read again"); n != 1 {
			t.Errorf("its end made %d lines", n)
		}
		i.set(spotPath, `{"action":"terminate","time":"`+time.Now().Add(2*time.Minute).UTC().Format(time.RFC3339)+`"}`)
		time.Sleep(6 * time.Second)
		if ctx.Err() == nil {
			t.Error("the notice after the outage wasn't seen")
		}
	})
}

// adjustable is a worker's concurrency.
type adjustable struct{ atomic.Int64 }

func (a *adjustable) Concurrency() int           { return int(a.Load()) }
func (a *adjustable) SetConcurrency(n int) error { a.Store(int64(n)); return nil }

func TestARebalanceRecommendationIsAdviceToDrainShrinkOrIgnore(t *testing.T) {
	busy, small := &adjustable{}, &adjustable{}
	type advice struct {
		do          interruption.Advice
		ends        bool
		busy, small int
		says        string
	}
	each(t, map[string]advice{
		"drain":        {do: interruption.Drain, ends: true, busy: 50, small: 2, says: "doing=drain"},
		"shrink":       {do: interruption.Shrink(5, busy, small), busy: 5, small: 2, says: `doing="shrink to 5"`},
		"ignore":       {do: interruption.Ignore, busy: 50, small: 2, says: "doing=ignore"},
		"none":         {busy: 50, small: 2, says: "doing=ignore"},
		"can't shrink": {do: interruption.Shrink(0, refusing{}), busy: 50, small: 2, says: "can't be followed"},
	}, func(t *testing.T, c advice) {
		busy.Store(50)
		small.Store(2)
		i := newInstance()
		log := &logbook{}
		m := ec2(t, i, log)
		ctx, stop := interruption.Watch(context.Background(), m.Spot(), m.Rebalance(c.do))
		defer stop()
		time.Sleep(time.Minute)
		i.set(rebalancePath, `{"noticeTime":"2026-11-30T10:00:00Z"}`)
		time.Sleep(time.Minute)
		if ended := ctx.Err() != nil; ended != c.ends {
			t.Errorf("the context ended: %t", ended)
		}
		if busy.Concurrency() != c.busy || small.Concurrency() != c.small {
			t.Errorf("concurrencies are %d and %d", busy.Concurrency(), small.Concurrency())
		}
		if log.with(c.says) != 1 || log.with("recommends") != 1 {
			t.Errorf("logged %q", log.lines())
		}
		i.set(spotPath, `{"action":"terminate","time":"`+time.Now().Add(2*time.Minute).UTC().Format(time.RFC3339)+`"}`)
		time.Sleep(6 * time.Second)
		if cause := causeOf(t, ctx); cause.Deadline().IsZero() {
			t.Errorf("the Spot notice that followed gave no deadline: %v", cause)
		}
	})
}

type refusing struct{}

func (refusing) Concurrency() int         { return 10 }
func (refusing) SetConcurrency(int) error { return errors.New("no") }

var _ interruption.Adjustable = (*worker.Worker)(nil)

func TestAnInstanceThatItsGroupTakesOutDrainsAndTellsWhenItIsDone(t *testing.T) {
	type out struct {
		state    string
		ends     bool
		failures int
		grace    time.Duration
		left     time.Duration
		says     string
	}
	each(t, map[string]out{
		"Terminated":              {"Terminated", true, 0, 0, 115 * time.Second, "lifecycle action completed"},
		"Terminated, one hour":    {"Terminated\n", true, 0, time.Hour, time.Hour - 5*time.Second, "lifecycle action completed"},
		"Warmed:Stopped":          {"Warmed:Stopped", true, 0, 0, 115 * time.Second, "lifecycle action completed"},
		"Warmed:Running":          {"Warmed:Running", false, 0, 0, 0, ""},
		"Standby":                 {"Standby", false, 0, 0, 0, ""},
		"Detached":                {"Detached", false, 0, 0, 0, ""},
		"completed at second try": {"Terminated", true, 1, 0, 115 * time.Second, "lifecycle action completed"},
		"can't be completed":      {"Terminated", true, 99, 0, 115 * time.Second, "could not be completed"},
	}, func(t *testing.T, c out) {
		i := newInstance()
		i.set(asgPath, "InService")
		log := &logbook{}
		calls := 0
		ctx, stop := interruption.Watch(context.Background(), ec2(t, i, log).AutoScaling(interruption.AutoScalingConfig{
			Grace: c.grace, Complete: func(ctx context.Context, id string) error {
				if calls++; calls <= c.failures {
					return errors.New("RequestLimitExceeded")
				}
				if id != "i-0123456789abcdef0" || ctx.Err() != nil {
					t.Errorf("completed for %q, %v", id, ctx.Err())
				}
				return nil
			},
		}))
		time.Sleep(time.Minute)
		i.set(asgPath, c.state)
		time.Sleep(6 * time.Second)
		if (ctx.Err() != nil) != c.ends {
			t.Fatalf("the context ended: %v", context.Cause(ctx))
		}
		if c.ends {
			if left := time.Until(causeOf(t, ctx).Deadline()); left > c.left || left < c.left-6*time.Second {
				t.Errorf("%v left, want %v", left, c.left)
			}
		}
		time.Sleep(30 * time.Second)
		if calls > 0 {
			t.Error("completed before the stop")
		}
		stop()
		stop()
		want := 0
		if c.ends {
			want = min(c.failures+1, 3)
		}
		if calls != want || c.says != "" && log.with(c.says) != 1 {
			t.Errorf("%d calls, want %d; logged %q", calls, want, log.lines())
		}
	})
}

func TestEC2ConfigSaysWhatIsWrong(t *testing.T) {
	for _, d := range []time.Duration{-1, 99 * time.Millisecond, 61 * time.Second} {
		if _, err := interruption.NewEC2(interruption.EC2Config{Interval: d}); err == nil || !strings.Contains(err.Error(), "Interval is "+d.String()+": must be from 100ms to 1m") {
			t.Errorf("%v: %v", d, err)
		}
	}
	if _, err := interruption.NewEC2(interruption.EC2Config{Client: (*imds.Client)(nil)}); err != nil {
		t.Error(err)
	}
}

func TestStopDoesNotWaitForInstanceMetadataThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := interruption.NewEC2(interruption.EC2Config{Client: hanging{}, Logger: (&logbook{}).logger()})
		if err != nil {
			t.Fatal(err)
		}
		_, stop := interruption.Watch(context.Background(), m.Spot(), m.Rebalance(interruption.Drain))
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
	})
}

type hanging struct{}

func (hanging) GetMetadata(ctx context.Context, _ *imds.GetMetadataInput, _ ...func(*imds.Options)) (*imds.GetMetadataOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
