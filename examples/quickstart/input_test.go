package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const event = `{"Records":[{"eventVersion":"2.1","eventSource":"aws:s3","eventName":"ObjectCreated:Put",` +
	`"s3":{"bucket":{"name":"b"},"object":{"key":"a+b%2Fc.jpg","size":7}}}]}`

func TestBadLinesAreNamed(t *testing.T) {
	long := `{"order":1,"amount":2,"note":"` + strings.Repeat("x", maxBody) + `"}`
	for name, c := range map[string]struct{ input, want string }{
		"not JSON":           {"{\"order\":1,\"amount\":2}\n{x}\n", "in.jsonl:2: not JSON: invalid character 'x'"},
		"cut short":          {`{"order":1,"amount"`, "in.jsonl:1: not JSON: unexpected end"},
		"two objects":        {`{"order":1,"amount":2}{"order":2,"amount":2}`, "in.jsonl:1: not JSON:"},
		"an array":           {`[1]`, "in.jsonl:1: unknown shape"},
		"null":               {`null`, "in.jsonl:1: unknown shape"},
		"a text":             {`"order"`, "in.jsonl:1: unknown shape"},
		"unknown shape":      {`{"id":7}`, "in.jsonl:1: unknown shape: must be"},
		"no amount":          {`{"order":7}`, `in.jsonl:1: unknown shape: an order without "amount"`},
		"amount null":        {`{"order":7,"amount":null}`, `"amount" is null: must be a number`},
		"amount a text":      {`{"order":7,"amount":"5"}`, `"amount" is "5": must be a number`},
		"order a text":       {`{"order":"7","amount":5}`, `"order" is "7": must be a whole number`},
		"order a fraction":   {`{"order":7.5,"amount":5}`, `"order" is 7.5: must be a whole number`},
		"order 0":            {`{"order":0,"amount":5}`, `"order" is 0: must be a whole number above 0`},
		"empty":              {"{\"order\":1,\"amount\":2}\n\n{\"order\":2,\"amount\":2}", "in.jsonl:2: empty"},
		"blank":              {"  \n", "in.jsonl:1: empty"},
		"no lines":           {"", "in.jsonl:1: no messages"},
		"too long":           {"{\"order\":1,\"amount\":2}\n" + long, "in.jsonl:2: longer than 1048576 bytes"},
		"not UTF-8":          {"{\"order\":1,\"amount\":2,\"n\":\"\xff\"}", "in.jsonl:1: not UTF-8"},
		"refused character":  {"{\"order\":1,\"amount\":2,\"n\":\"\uFFFE\"}", "in.jsonl:1: has the character U+FFFE"},
		"no records":         {`{"Records":[]}`, "in.jsonl:1: unknown shape: an S3 event notification without Records"},
		"records of another": {`{"Records":[{"eventSource":"aws:kinesis"}]}`, `Records[0]: eventSource is "aws:kinesis"`},
		"records a number":   {`{"Records":7}`, "unknown shape: Records aren't"},
		"version 3":          {strings.Replace(event, `"2.1"`, `"3.0"`, 1), `eventVersion is "3.0"`},
		"no event name":      {strings.Replace(event, `"ObjectCreated:Put"`, `""`, 1), "eventName is missing"},
		"no key":             {strings.Replace(event, `a+b%2Fc.jpg`, ``, 1), "the object's key is missing"},
		"attachment 0":       {`{"order":1,"amount":2,"attachment":0}`, `"attachment" is 0: must be a whole number of bytes from 1 to 8388608`},
		"half a byte":        {`{"order":1,"amount":2,"attachment":1.5}`, `"attachment" is 1.5: must be`},
		"large attachment":   {`{"order":1,"amount":2,"attachment":8388609}`, `"attachment" is 8388609: must be`},
		"many attachments":   {strings.Repeat(`{"order":1,"amount":2,"attachment":8388608}`+"\n", 17), "in.jsonl:17: attachments of more than 134217728 bytes"},
		"key not encoded":    {strings.Replace(event, `%2F`, `%zz`, 1), "isn't URL-encoded"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readLines("in.jsonl", strings.NewReader(c.input))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if !strings.HasPrefix(err.Error(), "in.jsonl:") || strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 300 {
				t.Errorf("not one clear line: %q", err)
			}
		})
	}
}

func TestGoodLinesAreRead(t *testing.T) {
	longest := `{"order":7,"amount":2,"n":"` + strings.Repeat("x", maxBody-len(`{"order":7,"amount":2,"n":""}`)) + `"}`
	for name, c := range map[string]struct {
		line string
		want job
	}{
		"order":         {`{"order":4521,"amount":500}`, job{name: "order 4521"}},
		"more fields":   {`{"order":1,"amount":0.5,"customer":{"id":3}}`, job{name: "order 1"}},
		"slow":          {`{"order":1,"amount":10000}`, job{name: "order 1", slow: true}},
		"fails once":    {`{"order":17,"amount":1}`, job{name: "order 17", failsOnce: true}},
		"always fails":  {`{"order":1,"amount":-1}`, job{name: "order 1", alwaysFails: true}},
		"event":         {event, job{name: "s3://b/a b/c.jpg", event: true}},
		"big object":    {strings.Replace(event, ":7}", ":104857600}", 1), job{name: "s3://b/a b/c.jpg", event: true, slow: true}},
		"test event":    {`{"Service":"Amazon S3","Event":"s3:TestEvent"}`, job{name: "S3 test event", event: true}},
		"windows line":  {"{\"order\":1,\"amount\":1}\r", job{name: "order 1"}},
		"byte order":    {"\uFEFF{\"order\":1,\"amount\":1}", job{name: "order 1"}},
		"delete fails":  {`{"order":1533,"amount":1}`, job{name: "order 1533", deleteFails: true}},
		"attachment":    {`{"order":1,"amount":1,"attachment":{"of":"another kind"}}`, job{name: "order 1"}},
		"longest":       {longest, job{name: "order 7", failsOnce: true}},
		"steering keys": {strings.Replace(event, "a+b", "%1B%5B2J", 1), job{name: "s3://b/?[2J/c.jpg", event: true}},
	} {
		t.Run(name, func(t *testing.T) {
			messages, err := readLines("x", strings.NewReader(c.line+"\n"))
			if err != nil || len(messages) != 1 || messages[0].job != c.want {
				t.Fatalf("got %v, %v", messages, err)
			}
			if strings.ContainsAny(messages[0].body, "\r\uFEFF") {
				t.Errorf("body %q", messages[0].body)
			}
		})
	}
}

func TestBuiltInMessagesShowEverything(t *testing.T) {
	messages, source, err := readInput("", nil)
	if err != nil || source != builtInName {
		t.Fatal(source, err)
	}
	var events, slow, once, always int
	for _, m := range append(messages, generate(100)...) {
		count(&events, m.job.event)
		count(&slow, m.job.slow)
		count(&once, m.job.failsOnce)
		count(&always, m.job.alwaysFails)
		if m.job.name == "" {
			t.Errorf("unread: %s", m.body)
		}
	}
	if events < 10 || slow < 8 || once < 5 || always < 3 {
		t.Errorf("%d events, %d slow, %d fail once, %d always", events, slow, once, always)
	}
}

func TestInputComesFromAFileOrStandardInput(t *testing.T) {
	name := filepath.Join(t.TempDir(), "two.jsonl")
	if err := os.WriteFile(name, []byte("{\"order\":1,\"amount\":1}\n{\"order\":2,\"amount\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if messages, source, err := readInput(name, nil); err != nil || len(messages) != 2 || source != name {
		t.Error(messages, source, err)
	}
	if messages, source, err := readInput("-", strings.NewReader(`{"order":1,"amount":1}`)); err != nil || len(messages) != 1 || source != "standard input" {
		t.Error(messages, source, err)
	}
	if _, _, err := readInput(name+"x", nil); err == nil || !strings.Contains(err.Error(), name+"x") {
		t.Error(err)
	}
}

func TestBatchesStayBelowBothLimits(t *testing.T) {
	big := message{body: strings.Repeat("x", 400<<10)}
	small := message{body: "x"}
	for _, c := range []struct {
		messages []message
		want     int
	}{
		{[]message{small}, 1},
		{make([]message, 25), 10},
		{[]message{big, big, big, small}, 2},
		{[]message{{body: strings.Repeat("x", maxBody)}, small}, 1},
	} {
		if got := batch(c.messages); got != c.want {
			t.Errorf("%d messages: got %d, want %d", len(c.messages), got, c.want)
		}
	}
}

func FuzzLinesNeverPanic(f *testing.F) {
	f.Add(`{"order":4521,"amount":500}`)
	f.Add(event)
	f.Fuzz(func(t *testing.T, input string) {
		messages, err := readLines("f", strings.NewReader(input))
		if (err == nil) != (len(messages) > 0) {
			t.Errorf("%d messages, %v", len(messages), err)
		}
		for _, m := range messages {
			m.attach = min(m.attach, 1000) // the shape is what matters
			for _, body := range []string{m.body, m.text()} {
				if j, err := parse(body); err != nil || j != m.job {
					t.Errorf("the handler would refuse %q: %v, or see %+v", body, err, j)
				}
			}
			if strings.ContainsAny(m.job.name, "\n\r\x1b") {
				t.Errorf("name %q", m.job.name)
			}
		}
		if err != nil && strings.Contains(oneLine(err), "\n") {
			t.Errorf("more than a line: %q", err)
		}
	})
}
