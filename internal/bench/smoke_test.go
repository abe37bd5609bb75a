package bench

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be started as an SQS process or as a contestant, as the command is.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == ServeCommand:
		err = Serve(os.Stdin, os.Stdout)
	case len(os.Args) == 2 && os.Args[1] == ContestCommand:
		err = Contest(os.Stdin, os.Stdout)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestQuickRunGetsThroughEveryScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute of real time: it starts processes")
	}
	for _, name := range Scenarios() {
		t.Run(name, func(t *testing.T) {
			o := Options{
				Latencies: []time.Duration{2 * time.Millisecond}, Concurrencies: []int{10}, Only: []string{name},
				Rounds: 1, Window: 100 * time.Millisecond, Quick: true, RawAttributes: "same",
			}
			var out bytes.Buffer
			if err := Run(t.Context(), o, &out); err != nil {
				t.Errorf("something broke: %v", err)
			}
			if !strings.Contains(out.String(), "\n### "+name) {
				t.Errorf("no table")
			}
			t.Log(out.String())
		})
	}
}

func TestBadOptionsAreAllNamed(t *testing.T) {
	o := Options{Latencies: []time.Duration{time.Microsecond}, Concurrencies: []int{0}, Only: []string{"speed"}}
	err := Run(t.Context(), o, &bytes.Buffer{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"rounds is 0", "latency is 1µs", "concurrency is 0", `no scenario "speed"`, `raw attributes are ""`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error doesn't say %q: %v", part, err)
		}
	}
}
