package main

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// played is a run of the program in a bubble, where half a minute takes no time.
func played(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		status = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	})
	return status, out.String(), errs.String()
}

// cell is the number in the row of a table.
func cell(t *testing.T, output, row string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(row) + ` +(\d+)`).FindStringSubmatch(output)
	if m == nil {
		t.Fatalf("no row %q in\n%s", row, output)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

func TestDefaultSceneLosesNothingAndRunsNothingTwice(t *testing.T) {
	status, out, errs := played(t)
	if status != exitOK || errs != "" {
		t.Fatalf("status %d, %q\n%s", status, errs, out)
	}
	for row, want := range map[string]int{
		"sent": 124, "handled": 117, "dead-lettered": 3, "lost": 0, "run twice without cause": 0,
	} {
		if got := cell(t, out, row); got != want {
			t.Errorf("%s: %d, want %d", row, got, want)
		}
	}
	if released := cell(t, out, "released at the stop"); released < 1 || released > 5 {
		t.Errorf("released at the stop: %d", released)
	}
	if !strings.Contains(out, "4 sent twice, 2 delivered again") || cell(t, out, "orders charged") != 100 || cell(t, out, "orders charged twice") != 0 {
		t.Error("duplicates")
	}
	if retried := cell(t, out, "retried"); retried < 6 {
		t.Errorf("retried: %d", retried)
	}
	if t.Failed() {
		t.Log(out)
	}
	if strings.ContainsAny(out, "\r\x1b") {
		t.Error("progress bar or escape sequences without a terminal")
	}
}

func TestDefaultSceneTakesAQuarterOfAMinute(t *testing.T) {
	var took time.Duration
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		run(t.Context(), nil, strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{})
		took = time.Since(began)
	})
	if took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestWithoutHeartbeatsAShortVisibilityDuplicatesWork(t *testing.T) {
	status, out, _ := played(t, "-heartbeat=off", "-visibility", "2s", "-handle-time", "5s")
	if status != exitBad || cell(t, out, "run twice without cause") == 0 || !strings.Contains(out, "DUPLICATED WORK") {
		t.Errorf("status %d\n%s", status, out)
	}
	if cell(t, out, "lost") != 0 {
		t.Errorf("lost messages\n%s", out)
	}
}

func TestHeartbeatsOrALongVisibilityKeepWorkSingle(t *testing.T) {
	for _, args := range [][]string{
		{"-visibility", "2s", "-handle-time", "5s"},
		{"-visibility", "1s", "-handle-time", "30s", "-concurrency", "3"},
		{"-heartbeat=off", "-visibility", "30s", "-handle-time", "5s"},
		{"-heartbeat=500ms", "-workers", "4"},
		{"-workers", "1", "-concurrency", "20", "-messages", "500"},
		{"-handle-time", "0s"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			status, out, errs := played(t, args...)
			if status != exitOK {
				t.Errorf("status %d, %s\n%s", status, errs, out)
			}
		})
	}
}

func TestShortPollsAreComparedWithLongOnes(t *testing.T) {
	status, out, _ := played(t, "-short-poll")
	m := regexp.MustCompile(`of them empty +(\d+) +(\d+)`).FindStringSubmatch(out)
	if status != exitOK || m == nil {
		t.Fatalf("status %d\n%s", status, out)
	}
	short, _ := strconv.Atoi(m[1])
	long, _ := strconv.Atoi(m[2])
	if short < 40 || long > 10 {
		t.Errorf("%d empty short polls, %d empty long ones", short, long)
	}
	if !regexp.MustCompile(`\$10\.37 +\$0\.05`).MatchString(out) {
		t.Errorf("no price of an idle worker in\n%s", out)
	}
}

func TestInterruptedSceneStopsInGoodOrder(t *testing.T) {
	var out bytes.Buffer
	status := 0
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		status = run(ctx, nil, strings.NewReader(""), &out, &bytes.Buffer{})
	})
	if status != exitInterrupted || cell(t, out.String(), "lost") != 0 || cell(t, out.String(), "still in the queue") == 0 {
		t.Errorf("status %d\n%s", status, out.String())
	}
}

func TestMistakesGetOneLineAndStatus2(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		stdin string
		want  string
	}{
		"unknown flag":     {[]string{"-nope"}, "", "flag provided but not defined: -nope"},
		"argument":         {[]string{"orders.jsonl"}, "", `unexpected argument "orders.jsonl"`},
		"no such file":     {[]string{"-input", "missing.jsonl"}, "", "missing.jsonl"},
		"bad line":         {[]string{"-input", "-"}, "{\"order\":1,\"amount\":1}\nhello\n", "standard input:2: not JSON"},
		"nothing":          {[]string{"-input", "-"}, "", "standard input:1: no messages"},
		"fractions":        {[]string{"-visibility", "1500ms"}, "", "-visibility is 1.5s"},
		"visibility 0":     {[]string{"-visibility", "0s"}, "", "-visibility is 0s"},
		"13 hours":         {[]string{"-visibility", "13h"}, "", "-visibility is 13h0m0s"},
		"negative":         {[]string{"-handle-time", "-1s"}, "", "-handle-time is -1s"},
		"heartbeat":        {[]string{"-heartbeat", "maybe"}, "", `-heartbeat is "maybe"`},
		"late heartbeat":   {[]string{"-heartbeat", "3s"}, "", "three quarters of -visibility, 3s"},
		"no workers":       {[]string{"-workers", "0"}, "", "-workers is 0"},
		"no concurrency":   {[]string{"-concurrency", "0"}, "", "-concurrency is 0"},
		"messages":         {[]string{"-messages", "-1"}, "", "-messages is -1"},
		"crash alone":      {[]string{"-crash", "-workers", "1"}, "", "-crash needs a second worker"},
		"two lessons":      {[]string{"-crash", "-short-poll"}, "", "one at a time"},
		"bad URL":          {[]string{"-queue-url", "orders"}, "", `-queue-url is "orders"`},
		"empty URL":        {[]string{"-queue-url", ""}, "", "-queue-url is empty"},
		"idempotency":      {[]string{"-idempotency", "maybe"}, "", `-idempotency is "maybe"`},
		"URL and table":    {[]string{"-queue-url", "https://x/1/q", "-idempotency", "off"}, "", "-idempotency is for the in-process queue"},
		"URL and messages": {[]string{"-queue-url", "https://x/1/q", "-messages", "5"}, "", "-messages is for the in-process queue"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			status := run(t.Context(), c.args, strings.NewReader(c.stdin), &out, &errs)
			if status != exitUsage || !strings.Contains(errs.String(), c.want) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
				t.Errorf("status %d, stdout %q, stderr %q", status, out.String(), errs.String())
			}
		})
	}
}

func TestHelpExplainsEveryFlag(t *testing.T) {
	var out bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, nil, &out, &out); status != exitOK {
		t.Errorf("status %d", status)
	}
	for _, name := range []string{
		"input", "messages", "workers", "concurrency", "visibility", "handle-time", "heartbeat", "crash", "short-poll", "queue-url", "v", "idempotency",
	} {
		if !regexp.MustCompile(`(?m)^  -` + name + `\b`).MatchString(out.String()) {
			t.Errorf("no -%s", name)
		}
	}
	if !strings.Contains(out.String(), "quickstart -heartbeat=off -visibility 2s -handle-time 5s") {
		t.Error("no combination that duplicates work")
	}
}
