package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

const withAttachment = `{"order":1,"amount":5,"attachment":2097152}` + "\n"

func TestAttachmentsGoThroughS3AndAreCleanedUp(t *testing.T) {
	_, out, _ := played(t)
	expectCells(t, out, map[string]int{"objects put": 4, "objects deleted": 4, "objects left": 0})
	if cell(t, out, "objects fetched") < 5 || !strings.Contains(out, "each after its message") || !strings.Contains(out, "8.0 MiB in S3") {
		t.Errorf("%s", out)
	}
}

func TestHandlersGetTheWholeAttachmentAndSQSAPointer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := parseFlags(nil, &bytes.Buffer{})
		s, err := newScene(t.Context(), o, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := readLines("in", strings.NewReader(withAttachment))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.send(t.Context(), messages, "in"); err != nil {
			t.Fatal(err)
		}
		if waiting := s.server.Queue(queueName).Messages; len(waiting) != 1 || len(waiting[0].Body) > 1000 {
			t.Fatalf("%d messages, the first of %d bytes", len(waiting), len(waiting[0].Body))
		}
		var mu sync.Mutex
		var body string
		look := func(next worker.Handler) worker.Handler {
			return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
				mu.Lock()
				body = m.Body
				mu.Unlock()
				return next.Handle(ctx, m)
			})
		}
		middleware, err := s.shared.middleware(o, look)
		if err != nil {
			t.Fatal(err)
		}
		w, err := newWorker(s.server.Client(), s.queueURL, "w", o, middleware...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if body != messages[0].text() || len(body) < 2<<20 {
			t.Errorf("the handler got %d bytes of %d", len(body), len(messages[0].text()))
		}
		if all, _, err := s.objects.left(bucketName); all != 0 || err != nil {
			t.Errorf("%d objects left, %v", all, err)
		}
	})
}

func TestAttachmentOfADeadLetteredOrderIsKept(t *testing.T) {
	status, out := playedLines(t, `{"order":1,"amount":-5,"attachment":2097152}`)
	if status != exitOK || !strings.Contains(out, "their messages are still there") {
		t.Errorf("status %d", status)
	}
	expectCells(t, out, map[string]int{"dead-lettered": 1, "objects put": 1, "objects fetched": 3, "objects deleted": 0, "objects left": 1})
}

func TestAttachmentOfAnOrderSentTwiceIsCleanedUpTwice(t *testing.T) {
	status, out := playedLines(t, withAttachment+withAttachment)
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	expectCells(t, out, map[string]int{"orders charged": 1, "duplicates suppressed": 1, "objects put": 2, "objects deleted": 2, "objects left": 0})
}

func TestAttachmentsDeletedEarlyOrLeftBehindAreNoticed(t *testing.T) {
	needed := true
	o, err := newObjects("b", func(string) bool { return needed })
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"one", "two"} {
		if _, err := o.PutObject("b", key, map[string]string{}, strings.NewReader("x"), 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	if all, orphans, _ := o.left("b"); all != 2 || orphans != 0 {
		t.Errorf("%d left, %d of them orphans", all, orphans)
	}
	if _, err := o.DeleteMulti("b", "one"); err != nil || o.early.Load() != 1 {
		t.Errorf("%d early, %v", o.early.Load(), err)
	}
	needed = false
	if all, orphans, _ := o.left("b"); all != 1 || orphans != 1 {
		t.Errorf("%d left, %d of them orphans", all, orphans)
	}
	for _, r := range []report{{beside: beside{early: 1}}, {beside: beside{orphans: 1}}, {t: totals{chargedTwice: 1}}} {
		if r.status() != exitBad || strings.HasPrefix(r.verdict(), "Nothing") {
			t.Errorf("%+v: status %d, %s", r.beside, r.status(), r.verdict())
		}
	}
}

// In real time, because a killed process is a real one.
func TestKilledWorkerSharesTableAndBucket(t *testing.T) {
	var input strings.Builder
	for i := range 40 {
		fmt.Fprintf(&input, `{"order":%d,"amount":20,"attachment":300000}`+"\n", 10*(i+1))
	}
	input.WriteString(input.String()) // and all of it again
	var out, errs bytes.Buffer
	args := []string{"-crash", "-visibility", "1s", "-handle-time", "2s", "-concurrency", "4", "-input", "-"}
	status := run(t.Context(), args, strings.NewReader(input.String()), &out, &errs)
	if status != exitOK || errs.Len() > 0 {
		t.Fatalf("status %d, %s\n%s", status, errs.String(), out.String())
	}
	expectCells(t, out.String(), map[string]int{"orders charged": 40, "orders charged twice": 0, "lost": 0, "objects put": 80})
}
