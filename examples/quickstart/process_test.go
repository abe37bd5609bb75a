package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMain lets the test program be a worker of -crash, as main does.
func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(processVariable); ok {
		os.Exit(runProcess(spec, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// A killed process is a real one, so this takes real time: a few seconds.
func TestCrashLosesNothing(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"-crash", "-visibility", "1s", "-handle-time", "1s", "-concurrency", "4", "-input", "-"}
	status := run(t.Context(), args, strings.NewReader(orders(60)), &out, &errs)
	if status != exitOK || errs.Len() > 0 {
		t.Fatalf("status %d, %s\n%s", status, errs.String(), out.String())
	}
	held := cell(t, out.String(), "held by the killed worker")
	if held == 0 || cell(t, out.String(), "handled") != 60 {
		t.Errorf("%d held\n%s", held, out.String())
	}
	if !strings.Contains(out.String(), "visible again after ") {
		t.Errorf("not how long it took\n%s", out.String())
	}
}

func TestCrashWithALongVisibilityKeepsMessagesAway(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"-crash", "-visibility", "12h", "-handle-time", "1s", "-concurrency", "4", "-input", "-"}
	status := run(t.Context(), args, strings.NewReader(orders(60)), &out, &errs)
	if status != exitOK || errs.Len() > 0 {
		t.Fatalf("status %d, %s\n%s", status, errs.String(), out.String())
	}
	held, left := cell(t, out.String(), "held by the killed worker"), cell(t, out.String(), "still in the queue")
	if held == 0 || left != held || cell(t, out.String(), "lost") != 0 {
		t.Errorf("%d held, %d left\n%s", held, left, out.String())
	}
}

// orders are n orders that succeed, one a line, a tenth of them slow.
func orders(n int) string {
	var b strings.Builder
	for i := range n {
		if i%10 == 3 {
			fmt.Fprintf(&b, `{"order":%d,"amount":20000}`+"\n", 10*(i+1))
		} else {
			fmt.Fprintf(&b, `{"order":%d,"amount":20}`+"\n", 10*(i+1))
		}
	}
	return b.String()
}
