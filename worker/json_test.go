package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// handleBody gives a handler one message with that body, outside of a worker.
func handleBody(h worker.Handler, body string) error {
	return h.Handle(context.Background(), &worker.Message{ID: "m-1", Body: body, ReceiveCount: 1, Attempt: 1})
}

// isPermanent tells whether an error is a Permanent: no retry will mend it.
func isPermanent(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "permanent: ")
}

type (
	order struct {
		Number int               `json:"number"`
		Lines  []line            `json:"lines"`
		At     time.Time         `json:"at"`
		Tags   map[string]amount `json:"tags"`
		Quoted int               `json:"quoted,string"`
		Extra  *struct{ Deep struct{ Flag bool } }
		embedded
	}
	line struct {
		Price float64 `json:"price"`
		Count uint8   `json:"count"`
	}
	embedded struct {
		Inner string `json:"inner"`
	}
	amount int64
)

func TestUndecodableBodyIsPermanentWithFieldAndOffset(t *testing.T) {
	const secret = "4111111111111111"
	cases := map[string]struct {
		body   string
		field  string
		at     string // what stands at the offset; empty: the end
		reason string
	}{
		"empty":               {"", "", "", "ends too early"},
		"cut off":             {`{"number": 1, "lines": [`, "", "", "ends too early"},
		"not JSON":            {`{"number": ` + secret + `x}`, "", "x}", "isn't JSON"},
		"two values":          {`{"number": 1} {"number": 2}`, "", `{"number": 2}`, "isn't JSON"},
		"wrong type":          {`{"number": "` + secret + `"}`, "number", `"4111`, "is a string, must be an int"},
		"an element":          {`{"lines": [{"price": 1}, {"price": "` + secret + `"}]}`, "lines[1].price", `"4111`, "is a string, must be a float64"},
		"too large":           {`{"lines": [{"count": 256}]}`, "lines[0].count", "256", "is a number that doesn't fit a uint8"},
		"not whole":           {`{"number": 1.5}`, "number", "1.5", "is a number that doesn't fit an int"},
		"a time":              {`{"at":   "` + secret + `"}`, "at", `"4111`, "is a string that time.Time doesn't take"},
		"in a map":            {`{"tags": {"ok": 1, "` + secret + `": true}}`, "tags.*", "true", "is a bool, must be a worker_test.amount"},
		"quoted":              {`{"quoted": 12}`, "quoted", "12", "in quotes"},
		"through a pointer":   {`{"Extra": {"Deep": {"Flag": 1}}}`, "Extra.Deep.Flag", "1}", "is a number, must be a bool"},
		"other case":          {`{"NUMBER": true}`, "number", "true", "is a bool, must be an int"},
		"embedded":            {`{"inner": ["` + secret + `"]}`, "inner", "[", "is an array, must be a string"},
		"object for array":    {`{"lines": {"price": 1}}`, "lines", `{"price"`, "is an object, must be a []worker_test.line"},
		"array at the top":    {`  [1, 2]`, "", "[1, 2]", "is an array, must be a worker_test.order"},
		"null at the top":     {"\n null", "", "null", "is null"},
		"second of two wrong": {`{"number": 3, "at": 4, "lines": 5}`, "at", "4, ", "is a number that time.Time doesn't take"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := worker.JSON(func(context.Context, *worker.Message, order) error {
				t.Error("the handler was called")
				return nil
			})
			err := handleBody(h, c.body)
			var decode *worker.DecodeError
			if !isPermanent(err) || !errors.As(err, &decode) {
				t.Fatalf("got %v, want a Permanent with a DecodeError", err)
			}
			if decode.Field != c.field || !strings.Contains(decode.Problem, c.reason) || decode.Wanted != "worker_test.order" {
				t.Errorf("got field %q, problem %q of %q, want %q and %q", decode.Field, decode.Problem, decode.Wanted, c.field, c.reason)
			}
			if decode.Offset < 0 || decode.Offset > int64(len(c.body)) || !strings.HasPrefix(c.body[decode.Offset:], c.at) || (c.at == "" && decode.Offset != int64(len(c.body))) {
				t.Errorf("got offset %d of %q, want that of %q", decode.Offset, c.body, c.at)
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(fmt.Sprintf("%+v", decode), secret) {
				t.Errorf("the body is in the error: %v", err)
			}
			if c.field != "" && !strings.Contains(err.Error(), c.field) {
				t.Errorf("the field isn't in %q", err)
			}
		})
	}
}

func TestDecodableBodyReachesTheHandlerWithItsMessage(t *testing.T) {
	var got order
	h := worker.JSON(func(_ context.Context, m *worker.Message, o order) error {
		got = o
		if m.ID != "m-1" {
			t.Errorf("the handler got message %q", m.ID)
		}
		return errors.New("its own")
	})
	err := handleBody(h, `{"number": 7, "unknown": {"to": "us"}, "lines": [{"price": 2.5}], "tags": null}`)
	if err == nil || err.Error() != "its own" {
		t.Errorf("got %v, want the handler's own error", err)
	}
	if got.Number != 7 || len(got.Lines) != 1 || got.Lines[0].Price != 2.5 {
		t.Errorf("decoded %+v", got)
	}
}

func TestNullIsAValueOfTypesThatCanBeNil(t *testing.T) {
	called := 0
	for _, h := range []worker.Handler{
		worker.JSON(func(_ context.Context, _ *worker.Message, o *order) error { called++; return nil }),
		worker.JSON(func(_ context.Context, _ *worker.Message, o map[string]int) error { called++; return nil }),
		worker.JSON(func(_ context.Context, _ *worker.Message, o any) error { called++; return nil }),
	} {
		if err := handleBody(h, "null"); err != nil {
			t.Errorf("got %v", err)
		}
	}
	if called != 3 {
		t.Errorf("%d handlers were called, want 3", called)
	}
}

func TestUnknownFieldsAreRefusedOnRequest(t *testing.T) {
	h := worker.JSONWith(worker.JSONConfig{DisallowUnknownFields: true}, func(context.Context, *worker.Message, order) error { return nil })
	if err := handleBody(h, `{"number": 1, "lines": [{"price": 1}]}`); err != nil {
		t.Errorf("got %v", err)
	}
	body := `{"number": 1, "lines": [{"price": 1, "secret-name": 2}]}`
	err := handleBody(h, body)
	var decode *worker.DecodeError
	if !errors.As(err, &decode) || decode.Field != "lines[0]" || decode.Offset != int64(strings.Index(body, "2}")) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want the place of the field and not its name", err)
	}
	if err := handleBody(h, `{"number": 1} {}`); !isPermanent(err) {
		t.Errorf("two values: got %v", err)
	}
}

func TestNumbersKeepTheirDigitsOnRequest(t *testing.T) {
	var got any
	h := worker.JSONWith(worker.JSONConfig{UseNumber: true}, func(_ context.Context, _ *worker.Message, v map[string]any) error {
		got = v["id"]
		return nil
	})
	if err := handleBody(h, `{"id": 9007199254740993}`); err != nil || got != json.Number("9007199254740993") {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestDiagnosisOfAHugeBodyIsBounded(t *testing.T) {
	body := strings.Repeat(`{"a":[`, 5000) + `"x"` + strings.Repeat(`]}`, 5000)
	type nested map[string][]any
	type deep map[string][]map[string][]map[string][]nested
	began := time.Now()
	err := handleBody(worker.JSON(func(context.Context, *worker.Message, deep) error { return nil }), body)
	wide := handleBody(worker.JSON(func(context.Context, *worker.Message, []uint8) error { return nil }), "["+strings.Repeat("1,", 400_000)+"256]")
	if err != nil && !isPermanent(err) || !isPermanent(wide) {
		t.Errorf("got %v and %v", err, wide)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestUndecodableMessageFailsAloneAndIsNeverDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 2)
		q.MustSend(q.url, `{"number": 1}`, `{"number": "secret"}`, `{"number": 3}`)
		seen := 0
		w := q.start(worker.JSON(func(_ context.Context, _ *worker.Message, o order) error { seen += o.Number; return nil }),
			worker.Config{Concurrency: 1, Backoff: worker.Backoff{Max: 2 * time.Second}})
		q.mustEmpty(time.Hour)
		w.mustStop()
		if seen != 4 {
			t.Errorf("the handler saw numbers that add up to %d, want 4", seen)
		}
		q.mustHaveHappened(sqsmodel.Deleted, 2)
		q.mustHaveHappened(sqsmodel.DeadLettered, 1)
		if len(w.log.with("field number", "at byte 11", "permanent")) == 0 {
			t.Error("the reason wasn't logged")
		}
		if lines := w.log.with("secret"); len(lines) > 0 {
			t.Errorf("the body was logged: %v", lines)
		}
	})
}

func TestHandlersWithoutAFunctionAreRefused(t *testing.T) {
	q := newQueue(t)
	nothing := map[string]worker.Handler{
		"HandlerFunc that is nil":     worker.HandlerFunc(nil),
		"JSON[worker_test.order] has": worker.JSON[order](nil),
		"S3Events has no function":    worker.S3Events(nil),
		"a batch handler has no":      worker.Batch(worker.BatchConfig{}, nil),
	}
	for text, h := range nothing {
		for name, wrapped := range map[string]worker.Handler{"alone": h, "wrapped": worker.Timeout(time.Second)(h)} {
			if _, err := worker.New(q.Client(), q.url, wrapped, worker.Config{}); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s, %s: got %v", text, name, err)
			}
		}
		if _, err := worker.NewLambda(h, worker.LambdaConfig{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s under Lambda: got %v", text, err)
		}
	}
}

func TestEveryMistakeIsReportedOnce(t *testing.T) {
	q := newQueue(t)
	user := func(next worker.Handler) worker.Handler { // hides what it wraps
		return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error { return next.Handle(ctx, m) })
	}
	_, err := worker.New(q.Client(), q.url, worker.Router{Routes: map[string]worker.Handler{"a": nil, "b": worker.S3Events(nil)}}, worker.Config{
		Concurrency: -1,
		Middleware:  []worker.Middleware{worker.SNS(), user, worker.Timeout(-1), worker.ConcurrencyPerKey(worker.KeyLimit{}), func(worker.Handler) worker.Handler { return nil }},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{"Config.Concurrency is -1", "Router.By is missing", `Router.Routes["a"] is nil`, "S3Events has no function", "SNS has no topic", "Timeout is -1ns", "KeyLimit.Key is missing", "Middleware[4] returned no handler"} {
		if n := strings.Count(err.Error(), text); n != 1 {
			t.Errorf("%q is reported %d times in:\n%v", text, n, err)
		}
	}
}

// doubtful is a handler of somebody else's that knows its own mistakes.
type doubtful struct {
	worker.Handler
	mistake error
}

func (d doubtful) Check() error { return d.mistake }

func TestMiddlewareOfOthersCanRefuseItsConfiguration(t *testing.T) {
	q := newQueue(t)
	mistake := errors.New("theirs: no table")
	m := func(next worker.Handler) worker.Handler { return doubtful{next, mistake} }
	_, errNew := worker.New(q.Client(), q.url, worker.HandlerFunc(succeed), worker.Config{Middleware: []worker.Middleware{worker.Timeout(time.Minute), m}})
	_, errLambda := worker.NewLambda(worker.HandlerFunc(succeed), worker.LambdaConfig{Middleware: []worker.Middleware{worker.Timeout(time.Minute), m}})
	for _, err := range []error{errNew, errLambda} {
		if !errors.Is(err, mistake) || strings.Count(err.Error(), "theirs") != 1 {
			t.Errorf("got %v", err)
		}
	}
	mistake = nil
	if _, err := worker.New(q.Client(), q.url, m(worker.HandlerFunc(succeed)), worker.Config{}); err != nil {
		t.Errorf("no mistake: %v", err)
	}
}

// FuzzJSON: whatever the body, it is decoded as encoding/json does, or refused with a place in it.
func FuzzJSON(f *testing.F) {
	for _, body := range []string{`{"number": 1}`, `{"lines":[{"price":"x"}]}`, `null`, `{"tags":{"a":1.5}}`, "\xff", `{"at":"2026-11-30T00:00:00Z","quoted":"1"}`, `{"lines":[{},{"count":300}]}`, `{"Extra":{"Deep":[]}}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var want order
		wantErr := json.Unmarshal([]byte(body), &want)
		err := handleBody(worker.JSON(func(_ context.Context, _ *worker.Message, o order) error { return nil }), body)
		if strings.TrimSpace(body) != "null" && (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: got %v, encoding/json says %v", body, err, wantErr)
		}
		var decode *worker.DecodeError
		if err != nil && (!errors.As(err, &decode) || decode.Offset < 0 || decode.Offset > int64(len(body)) || !isPermanent(err)) {
			t.Fatalf("%q: got %#v", body, err)
		}
	})
}
