package worker_test

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

const goodURL = "https://sqs.us-east-1.amazonaws.com/123456789012/work"

// newError is what New says.
func newError(t *testing.T, cfg worker.Config) string {
	t.Helper()
	w, err := worker.New(sqsmodel.New(sqsmodel.Config{}).Client(), goodURL, worker.HandlerFunc(succeed), cfg)
	if err == nil {
		return ""
	}
	if w != nil {
		t.Error("New returned an error and a worker")
	}
	return err.Error()
}

// Every field out of its bounds at once: one error that names each field, its value and the bound.
func TestBadConfigurationNamesEveryFieldValueAndBound(t *testing.T) {
	type mistake struct{ field, value, bound string }
	nan := math.NaN()
	for name, c := range map[string]struct {
		cfg  worker.Config
		want []mistake
	}{
		"too little": {worker.Config{
			Concurrency: -1, Prefetch: -1, WaitTime: time.Millisecond, Visibility: -time.Second, HeartbeatInterval: time.Millisecond,
			MaxHold: time.Second, HandlerTimeout: time.Nanosecond, Retries: -2, RetryDelay: time.Nanosecond,
			Backoff:      worker.Backoff{Min: time.Millisecond, Max: time.Millisecond},
			Breaker:      worker.Breaker{Pause: time.Millisecond, MaxPause: time.Millisecond, FailureRate: -1, Window: time.Millisecond, MinResults: -1},
			DrainTimeout: time.Second, CancelGrace: time.Nanosecond, DeleteLinger: time.Nanosecond, Middleware: []worker.Middleware{nil},
		}, []mistake{
			{"Concurrency", "-1", "1 to 100000"}, {"Prefetch", "-1", "0 to 100000"}, {"WaitTime", "1ms", "1s to 20s"}, {"Visibility", "-1s", "1s to 12h0m0s"},
			{"HeartbeatInterval", "1ms", "50ms"}, {"MaxHold", "1s", "2s to 12h0m0s"}, {"HandlerTimeout", "1ns", "1ms to 12h0m0s"},
			{"Retries", "-2", "1 to 100"}, {"RetryDelay", "1ns", "1ms to 1h0m0s"}, {"Backoff.Min", "1ms", "1s to 12h0m0s"}, {"Backoff.Max", "1ms", "1s to 12h0m0s"},
			{"Breaker.Pause", "1ms", "1s to 1h0m0s"}, {"Breaker.MaxPause", "1ms", "1s to 12h0m0s"}, {"Breaker.FailureRate", "-1", "0 (off) to 1"},
			{"Breaker.Window", "1ms", "1s to 1h0m0s"}, {"Breaker.MinResults", "-1", "1 to 1000000"},
			{"DrainTimeout", "1s", "2s to 12h0m0s"}, {"CancelGrace", "1ns", "1ms to 12h0m0s"}, {"DeleteLinger", "1ns", "1ms to 5s"}, {"Middleware[0]", "nil", ""},
		}},
		"too much": {worker.Config{
			Concurrency: 100_001, Prefetch: 100_001, WaitTime: 21 * time.Second, Visibility: 13 * time.Hour, HeartbeatInterval: 10 * time.Hour,
			MaxHold: 13 * time.Hour, HandlerTimeout: 13 * time.Hour, Retries: 101, RetryDelay: 2 * time.Hour,
			Backoff:      worker.Backoff{Min: 13 * time.Hour, Max: 14 * time.Hour},
			Breaker:      worker.Breaker{Pause: 2 * time.Hour, MaxPause: 13 * time.Hour, FailureRate: nan, Window: 2 * time.Hour, MinResults: 2_000_000},
			DrainTimeout: 13 * time.Hour, CancelGrace: 13 * time.Hour, DeleteLinger: 6 * time.Second,
		}, []mistake{
			{"Concurrency", "100001", "100000"}, {"Prefetch", "100001", "100000"}, {"WaitTime", "21s", "20s"}, {"Visibility", "13h0m0s", "12h0m0s"},
			{"HeartbeatInterval", "10h0m0s", "three quarters"}, {"MaxHold", "13h0m0s", "12h0m0s"}, {"HandlerTimeout", "13h0m0s", "12h0m0s"},
			{"Retries", "101", "100"}, {"RetryDelay", "2h0m0s", "1h0m0s"}, {"Backoff.Min", "13h0m0s", "12h0m0s"}, {"Backoff.Max", "14h0m0s", "12h0m0s"},
			{"Breaker.Pause", "2h0m0s", "1h0m0s"}, {"Breaker.MaxPause", "13h0m0s", "12h0m0s"}, {"Breaker.FailureRate", "NaN", "to 1"},
			{"Breaker.Window", "2h0m0s", "1h0m0s"}, {"Breaker.MinResults", "2000000", "1000000"},
			{"DrainTimeout", "13h0m0s", "12h0m0s"}, {"CancelGrace", "13h0m0s", "12h0m0s"}, {"CancelGrace", "13h0m0s", "four fifths"}, {"DeleteLinger", "6s", "5s"},
		}},
		"a fraction of a second": {worker.Config{WaitTime: 1500 * time.Millisecond, Visibility: 2500 * time.Millisecond}, []mistake{
			{"WaitTime", "1.5s", "whole seconds"}, {"Visibility", "2.5s", "whole seconds"},
		}},
		"against each other": {worker.Config{
			Visibility: 30 * time.Second, HeartbeatInterval: 25 * time.Second, DrainTimeout: 10 * time.Second, CancelGrace: 9 * time.Second,
			Backoff: worker.Backoff{Min: time.Minute, Max: time.Second}, Breaker: worker.Breaker{Pause: time.Minute, MaxPause: time.Second},
		}, []mistake{
			{"HeartbeatInterval", "25s", "22.5s"}, {"CancelGrace", "9s", "10s"}, {"Backoff.Max", "1s", "1m0s"}, {"Breaker.MaxPause", "1s", "1m0s"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			text := newError(t, c.cfg)
			for _, m := range c.want {
				found := slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
					return strings.HasPrefix(line, "worker: Config."+m.field+" is "+m.value) && strings.Contains(line, m.bound)
				})
				if !found {
					t.Errorf("%s, %s and %q aren't named together in:\n%s", m.field, m.value, m.bound, text)
				}
			}
			if n := strings.Count(text, "\n") + 1; n != len(c.want) {
				t.Errorf("%d mistakes are reported, want %d:\n%s", n, len(c.want), text)
			}
		})
	}
}

func TestConfigurationOnItsBoundsIsGood(t *testing.T) {
	for name, cfg := range map[string]worker.Config{
		"zero": {},
		"least": {
			Concurrency: 1, WaitTime: time.Second, Visibility: time.Second, HeartbeatInterval: 50 * time.Millisecond, MaxHold: 2 * time.Second,
			HandlerTimeout: time.Millisecond, Retries: 1, RetryDelay: time.Millisecond, Backoff: worker.Backoff{Min: time.Second, Max: time.Second},
			DrainTimeout: 2 * time.Second, CancelGrace: time.Millisecond, DeleteLinger: time.Millisecond,
		},
		"most": {
			Concurrency: 100_000, Prefetch: 100_000, WaitTime: 20 * time.Second, Visibility: 12 * time.Hour, HeartbeatInterval: 9 * time.Hour,
			MaxHold: 12 * time.Hour, HandlerTimeout: 12 * time.Hour, Retries: 100, RetryDelay: time.Hour, Backoff: worker.Backoff{Min: 12 * time.Hour, Max: 12 * time.Hour},
			DrainTimeout: 12 * time.Hour, CancelGrace: 9 * time.Hour, DeleteLinger: 5 * time.Second,
		},
		"off": {
			WaitTime: worker.ShortPoll, HeartbeatInterval: worker.NoHeartbeat, Retries: worker.NoRetries, DrainTimeout: worker.NoDrain,
			CancelGrace: worker.NoGrace, DeleteLinger: worker.NoLinger,
		},
		"only the shortest back-off": {Backoff: worker.Backoff{Min: time.Hour}},
		"only the longest back-off":  {Backoff: worker.Backoff{Max: time.Second}},
		"a short drain":              {DrainTimeout: 2 * time.Second},
		"a long grace":               {DrainTimeout: 10 * time.Second, CancelGrace: 8 * time.Second},
	} {
		if text := newError(t, cfg); text != "" {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// With heartbeats off, what a handler may take in all must fit into the visibility, or others run the message too.
func TestHandlerTimeMustFitIntoTheVisibilityWithoutHeartbeats(t *testing.T) {
	off := worker.Config{HeartbeatInterval: worker.NoHeartbeat, Visibility: 15 * time.Second}
	for name, c := range map[string]struct {
		timeout, delay time.Duration
		retries        int
		good           bool
	}{
		"shorter":           {14 * time.Second, 0, 0, true},
		"as long":           {15 * time.Second, 0, 0, false},
		"longer":            {20 * time.Second, 0, 0, false},
		"with a retry":      {10 * time.Second, 0, 1, false},
		"with its delay":    {5 * time.Second, 10 * time.Second, 1, false},
		"with many retries": {time.Second, time.Second, 5, false},
		"all fits":          {5 * time.Second, time.Second, 1, true},
	} {
		cfg := off
		cfg.HandlerTimeout, cfg.RetryDelay, cfg.Retries = c.timeout, c.delay, c.retries
		text := newError(t, cfg)
		if (text == "") != c.good || !c.good && !(strings.Contains(text, "Config.HandlerTimeout is "+c.timeout.String()) && strings.Contains(text, "15s")) {
			t.Errorf("%s: New said %q", name, text)
		}
		cfg.HeartbeatInterval = 0 // the heartbeat holds the message for as long as it takes
		if text := newError(t, cfg); text != "" {
			t.Errorf("%s, with heartbeats: New said %q", name, text)
		}
	}
}

// The same where the visibility is the queue's, which is known only when Run reads it: a warning.
func TestHandlerTimeThatDoesNotFitIntoTheQueuesVisibilityIsWarnedOf(t *testing.T) {
	type setting struct {
		cfg    worker.Config
		warned bool
	}
	each(t, map[string]setting{
		"fits":               {worker.Config{HeartbeatInterval: worker.NoHeartbeat, HandlerTimeout: 14 * time.Second}, false},
		"doesn't fit":        {worker.Config{HeartbeatInterval: worker.NoHeartbeat, HandlerTimeout: 15 * time.Second}, true},
		"not with retries":   {worker.Config{HeartbeatInterval: worker.NoHeartbeat, HandlerTimeout: 10 * time.Second, Retries: 1}, true},
		"heartbeats hold it": {worker.Config{HandlerTimeout: time.Hour}, false},
	}, func(t *testing.T, c setting) {
		q := newQueueWithDLQ(t, 3, "VisibilityTimeout", "15")
		w := q.start(worker.HandlerFunc(succeed), c.cfg)
		time.Sleep(time.Minute)
		w.mustStop()
		if lines := w.log.atLeast(slog.LevelWarn); (len(lines) == 1) != c.warned || len(lines) > 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestEveryArgumentOfNewIsChecked(t *testing.T) {
	good := sqsmodel.New(sqsmodel.Config{}).Client()
	var nilFunc worker.HandlerFunc
	var nilClient *sqs.Client
	for name, c := range map[string]struct {
		client  worker.Client
		url     string
		handler worker.Handler
		cfg     worker.Config
		want    []string
	}{
		"nothing":            {nil, "", nil, worker.Config{Concurrency: -1}, []string{"no client", "queue URL", "no handler", "Concurrency"}},
		"nil *sqs.Client":    {nilClient, goodURL, worker.HandlerFunc(succeed), worker.Config{}, []string{"no client"}},
		"nil function":       {good, goodURL, nilFunc, worker.Config{}, []string{"handler"}},
		"name, no URL":       {good, "work", worker.HandlerFunc(succeed), worker.Config{}, []string{`"work"`, "GetQueueUrl"}},
		"ARN":                {good, "arn:aws:sqs:us-east-1:123456789012:work", worker.HandlerFunc(succeed), worker.Config{}, []string{"arn:aws", "GetQueueUrl"}},
		"no path":            {good, "https://sqs.us-east-1.amazonaws.com/", worker.HandlerFunc(succeed), worker.Config{}, []string{"GetQueueUrl"}},
		"not a URL":          {good, "://", worker.HandlerFunc(succeed), worker.Config{}, []string{"GetQueueUrl"}},
		"other region":       {good, "https://sqs.eu-west-1.amazonaws.com/123456789012/work", worker.HandlerFunc(succeed), worker.Config{}, []string{"eu-west-1", "us-east-1"}},
		"other region, old":  {good, "https://eu-west-1.queue.amazonaws.com/123456789012/work", worker.HandlerFunc(succeed), worker.Config{}, []string{"eu-west-1", "us-east-1"}},
		"middleware for nil": {good, goodURL, worker.HandlerFunc(succeed), worker.Config{Middleware: []worker.Middleware{func(worker.Handler) worker.Handler { return nil }}}, []string{"Middleware[0]"}},
	} {
		w, err := worker.New(c.client, c.url, c.handler, c.cfg)
		if err == nil || w != nil {
			t.Errorf("%s: New was content", name)
			continue
		}
		for _, words := range c.want {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %q isn't in %q", name, words, err)
			}
		}
	}
}

// A client that gives up before a long poll's wait is over breaks off every empty receive.
func TestClientTimeoutBelowTheWaitIsRefused(t *testing.T) {
	transport := func(d time.Duration) http.RoundTripper { return &http.Transport{ResponseHeaderTimeout: d} }
	for name, c := range map[string]struct {
		client *http.Client
		cfg    worker.Config
		good   bool
	}{
		"none":                        {&http.Client{}, worker.Config{}, true},
		"10 s":                        {&http.Client{Timeout: 10 * time.Second}, worker.Config{}, false},
		"20 s":                        {&http.Client{Timeout: 20 * time.Second}, worker.Config{}, false},
		"30 s":                        {&http.Client{Timeout: 30 * time.Second}, worker.Config{}, true},
		"10 s with a shorter wait":    {&http.Client{Timeout: 10 * time.Second}, worker.Config{WaitTime: 5 * time.Second}, true},
		"10 s with short polls":       {&http.Client{Timeout: 10 * time.Second}, worker.Config{WaitTime: worker.ShortPoll}, true},
		"10 s for headers":            {&http.Client{Transport: transport(10 * time.Second)}, worker.Config{}, false},
		"30 s for headers":            {&http.Client{Transport: transport(30 * time.Second)}, worker.Config{}, true},
		"10 s for headers, wait 5 s":  {&http.Client{Transport: transport(10 * time.Second)}, worker.Config{WaitTime: 5 * time.Second}, true},
		"10 s with a cut wait of 7 s": {&http.Client{Timeout: 10 * time.Second}, worker.Config{DrainTimeout: 10 * time.Second}, true},
	} {
		client := sqs.New(sqs.Options{Region: "us-east-1", HTTPClient: c.client})
		_, err := worker.New(client, goodURL, worker.HandlerFunc(succeed), c.cfg)
		if (err == nil) != c.good || err != nil && !strings.Contains(err.Error(), "imeout") {
			t.Errorf("%s: New said %v", name, err)
		}
	}
}

func TestAClientsTimeoutIsNamedTogetherWithEverythingElseThatIsWrong(t *testing.T) {
	client := sqs.New(sqs.Options{Region: "us-east-1", HTTPClient: &http.Client{Timeout: time.Second}})
	_, err := worker.New(client, "nowhere", nil, worker.Config{Concurrency: -1})
	if err == nil {
		t.Fatal("New returned nil")
	}
	for _, word := range []string{"http.Client.Timeout", "nowhere", "handler", "Concurrency"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q isn't in %q", word, err)
		}
	}
}

// optionsOf is a client that notes with which options it is called.
type optionsOf struct {
	*sqs.Client
	receive, other sqs.Options
}

func (c *optionsOf) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, fns ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	c.receive = c.with(fns)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (c *optionsOf) GetQueueAttributes(ctx context.Context, in *sqs.GetQueueAttributesInput, fns ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	c.other = c.with(fns)
	return &sqs.GetQueueAttributesOutput{}, nil
}

func (c *optionsOf) with(fns []func(*sqs.Options)) sqs.Options {
	o := c.Options()
	for _, f := range fns {
		f(&o)
	}
	return o
}

// The SDK's own HTTP client is adjusted, in a copy: room for the connections of all receives, no timeout below the wait.
func TestSDKClientIsTunedForLongPolls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		own := awshttp.NewBuildableClient().WithTimeout(5 * time.Second).WithTransportOptions(func(t *http.Transport) { t.ResponseHeaderTimeout = 5 * time.Second })
		c := &optionsOf{Client: sqs.New(sqs.Options{Region: "us-east-1", HTTPClient: own})}
		q := &fixture{Server: sqsmodel.New(sqsmodel.Config{}), t: t, url: goodURL}
		w := q.startWith(c, worker.HandlerFunc(succeed), worker.Config{Concurrency: 1000, DrainTimeout: 22 * time.Second})
		time.Sleep(time.Second)
		_ = w.stop()
		for name, o := range map[string]sqs.Options{"receive": c.receive, "other": c.other} {
			client := o.HTTPClient
			if wrapped, ok := client.(interface{ Unwrap() sqs.HTTPClient }); ok {
				client = wrapped.Unwrap()
			}
			tuned, ok := client.(*awshttp.BuildableClient)
			if !ok {
				t.Fatalf("%s: the HTTP client is a %T", name, o.HTTPClient)
			}
			transport := tuned.GetTransport()
			if tuned.GetTimeout() != 0 || transport.ResponseHeaderTimeout < 25*time.Second || transport.MaxIdleConnsPerHost < 100 || transport.MaxIdleConns < 100 {
				t.Errorf("%s: timeout %v, for headers %v, idle connections %d of %d", name,
					tuned.GetTimeout(), transport.ResponseHeaderTimeout, transport.MaxIdleConnsPerHost, transport.MaxIdleConns)
			}
			if n := o.Retryer.MaxAttempts(); n != 1 {
				t.Errorf("%s: the SDK would make %d attempts", name, n)
			}
		}
		if own.GetTimeout() != 5*time.Second || own.GetTransport().ResponseHeaderTimeout != 5*time.Second {
			t.Error("the client that was passed in was changed")
		}
		if !c.receive.DisableMessageChecksumValidation {
			t.Error("one corrupt body would fail the whole receive")
		}
	})
}

// What is switched off isn't what is left out.
func TestZeroIsTheDefaultAndOffIsOff(t *testing.T) {
	type setting struct {
		cfg  worker.Config
		want func(t *testing.T, q *fixture, w *started)
	}
	each(t, map[string]setting{
		"heartbeat default": {worker.Config{}, func(t *testing.T, q *fixture, w *started) {
			if q.Count(visibilityBatch) == 0 {
				t.Error("no renewal")
			}
		}},
		"heartbeat off": {worker.Config{HeartbeatInterval: worker.NoHeartbeat}, func(t *testing.T, q *fixture, w *started) {
			if n := q.Count(visibilityBatch); n != 0 {
				t.Errorf("%d renewals", n)
			}
		}},
		"concurrency default": {worker.Config{}, func(t *testing.T, q *fixture, w *started) {
			if n := w.Stats().Running; n != 10 {
				t.Errorf("%d handlers run, want 10", n)
			}
		}},
		"prefetch default": {worker.Config{}, func(t *testing.T, q *fixture, w *started) {
			if n := q.state().InFlight; n != 10 {
				t.Errorf("%d messages held, want 10", n)
			}
		}},
	}, func(t *testing.T, c setting) {
		q := newQueue(t, "VisibilityTimeout", "60")
		q.send(20)
		w := q.start(worker.HandlerFunc(takes(45*time.Second)), c.cfg)
		time.Sleep(40 * time.Second)
		c.want(t, q, w)
		_ = w.stop()
	})
}

func TestMessageAttributeNamesAreAskedFor(t *testing.T) {
	each(t, map[string][]string{"default": nil, "one": {"tenant"}, "prefix": {"app.*", "trace"}}, func(t *testing.T, names []string) {
		q := newQueue(t)
		w := q.start(worker.HandlerFunc(succeed), worker.Config{MessageAttributes: names})
		q.send(1)
		q.mustEmpty(time.Second)
		w.mustStop()
		in := q.finished(receiveMessage)[0].Input.(*sqs.ReceiveMessageInput)
		want := names
		if want == nil {
			want = []string{"All"}
		}
		if !slices.Equal(in.MessageAttributeNames, want) {
			t.Errorf("asked for %v, want %v", in.MessageAttributeNames, want)
		}
		if slices.Contains(in.MessageSystemAttributeNames, "SenderId") || !slices.Contains(in.MessageSystemAttributeNames, "ApproximateReceiveCount") {
			t.Errorf("system attributes: asked for %v", in.MessageSystemAttributeNames)
		}
	})
}

func TestNameTellsWorkersApartInLogs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		a := q.start(worker.HandlerFunc(succeed), worker.Config{})
		b := q.start(worker.HandlerFunc(succeed), worker.Config{Name: "orders"})
		time.Sleep(time.Second)
		a.mustStop()
		b.mustStop()
		if len(a.log.with("worker=work")) == 0 || len(a.log.with("worker=orders")) != 0 || len(b.log.with("worker=orders")) == 0 {
			t.Error("the lines don't name their worker")
		}
	})
}
