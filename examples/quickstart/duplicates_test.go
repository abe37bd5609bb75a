package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// playedLines is played with input of its own.
func playedLines(t *testing.T, input string, args ...string) (status int, stdout string) {
	t.Helper()
	var out, errs bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		status = run(t.Context(), append(args, "-input", "-"), strings.NewReader(input), &out, &errs)
	})
	if errs.Len() > 0 {
		t.Error(errs.String())
	}
	return status, out.String()
}

func expectCells(t *testing.T, output string, want map[string]int) {
	t.Helper()
	for row, n := range want {
		if got := cell(t, output, row); got != n {
			t.Errorf("%s: %d, want %d", row, got, n)
		}
	}
	if t.Failed() {
		t.Log(output)
	}
}

func TestOrdersSentTwiceAreChargedOnce(t *testing.T) {
	input := orders(50) + orders(50) // every one of them
	status, out := playedLines(t, input)
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	expectCells(t, out, map[string]int{
		"sent": 100, "handled": 50, "duplicates suppressed": 50, "orders charged": 50, "orders charged twice": 0, "lost": 0, "dead-lettered": 0,
	})
}

func TestOrdersSentTwiceSideBySideAreChargedOnce(t *testing.T) {
	var input strings.Builder
	for line := range strings.Lines(orders(20)) {
		input.WriteString(line + line) // both are worked on at the same time, or would be
	}
	status, out := playedLines(t, input.String(), "-handle-time", "2s")
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	expectCells(t, out, map[string]int{"handled": 20, "duplicates suppressed": 20, "orders charged": 20, "orders charged twice": 0})
}

func TestWithoutIdempotencyOrdersSentTwiceAreChargedTwice(t *testing.T) {
	status, out, _ := played(t, "-idempotency=off")
	if status != exitBad || cell(t, out, "orders charged twice") < 4 || cell(t, out, "lost") != 0 || !strings.Contains(out, "CHARGED TWICE: ") {
		t.Errorf("status %d\n%s", status, out)
	}
	if cell(t, out, "DynamoDB writes") != 0 {
		t.Errorf("the table was used\n%s", out)
	}
}

func TestFailedDeletesRunTwiceWithoutIdempotencyAndOnceWithIt(t *testing.T) {
	var input strings.Builder
	for i := range 40 {
		fmt.Fprintf(&input, `{"order":%d,"amount":20}`+"\n", 1000*i+533)
	}
	status, out := playedLines(t, input.String())
	if status != exitOK || !strings.Contains(out, "0 sent twice, 40 delivered again") {
		t.Errorf("status %d", status)
	}
	expectCells(t, out, map[string]int{"handled": 40, "duplicates suppressed": 40, "orders charged": 40, "run twice without cause": 0, "orders charged twice": 0})

	status, out = playedLines(t, input.String(), "-idempotency=off")
	if twice := cell(t, out, "orders charged twice"); status != exitBad || twice == 0 || twice != cell(t, out, "run twice without cause") {
		t.Errorf("status %d\n%s", status, out)
	}
}

func TestOneNumberForTwoOrdersIsRefused(t *testing.T) {
	status, out := playedLines(t, `{"order":21,"amount":5}`+"\n"+`{"order":21,"amount":6}`)
	if status != exitOK || strings.Contains(out, "by mistake") {
		t.Errorf("status %d", status)
	}
	expectCells(t, out, map[string]int{"handled": 1, "duplicates suppressed": 0, "orders charged": 1, "dead-lettered": 1, "lost": 0})
}

func TestChargesAreCountedByOrder(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	r := func(worker string, from, to int, end ending) handlerRun {
		return handlerRun{worker: worker, from: at(from), to: at(to), end: end}
	}
	for name, c := range map[string]struct {
		messages   [][]handlerRun // each of the same order
		all, again int
	}{
		"once":                           {[][]handlerRun{{r("a", 0, 1, succeeded)}, nil}, 1, 0},
		"in two messages":                {[][]handlerRun{{r("a", 0, 1, succeeded)}, {r("b", 0, 1, succeeded)}}, 2, 1},
		"in one message":                 {[][]handlerRun{{r("a", 0, 1, succeeded), r("b", 4, 5, succeeded)}}, 2, 1},
		"failures charge nothing":        {[][]handlerRun{{r("a", 0, 1, failed), r("b", 4, 5, succeeded)}, {r("a", 5, 6, interrupted)}}, 1, 0},
		"what runs charges nothing":      {[][]handlerRun{{{worker: "a", from: at(1)}}}, 0, 0},
		"charged, then killed":           {[][]handlerRun{{r("dead", 0, 9, succeeded), r("b", 12, 13, succeeded)}}, 2, 0},
		"cut, then charged":              {[][]handlerRun{{r("dead", 0, 10, cut), r("b", 12, 13, succeeded)}}, 1, 0},
		"before the kill":                {[][]handlerRun{{r("dead", 0, 5, succeeded)}, {r("b", 6, 7, succeeded)}}, 2, 1},
		"a crash excuses only the other": {[][]handlerRun{{r("a", 0, 5, succeeded)}, {r("b", 12, 13, succeeded)}}, 2, 1},
	} {
		l := newLedger("q")
		l.killed, l.killedAt = "dead", at(10)
		for i, runs := range c.messages {
			l.entries[fmt.Sprint(i)] = &entry{message: message{body: "x", job: job{name: "order 1"}}, runs: runs}
		}
		if o := l.orders()["order 1"]; o.charges != c.all || o.again != c.again || o.ambiguous {
			t.Errorf("%s: %+v, want %d charges, %d of them too many", name, o, c.all, c.again)
		}
	}
}
