package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Options are what the command line says.
type Options struct {
	Latencies     []time.Duration // of each SQS call
	Concurrencies []int           // of the throughput scenario
	Only          []string        // scenarios; all when empty
	Rounds        int             // of each contestant, alternating
	Window        time.Duration   // that a throughput run should about take
	Quick         bool            // small numbers: to see that everything runs, not how fast
	RawAttributes string          // which attributes the raw loop asks for: same (as the worker), all, none
	ProfileDir    string          // CPU and allocation profiles of the throughput contestants
}

// scenarios in the order in which they run.
var scenarios = []struct {
	name string
	run  func(*director, context.Context) error
}{
	{"throughput", (*director).throughput},
	{"telemetry", (*director).telemetry},
	{"latency", (*director).latency},
	{"idle", (*director).idle},
	{"heartbeats", (*director).heartbeats},
	{"stop", (*director).stop},
	{"hold", (*director).hold},
	{"sqsmodel", (*director).model},
}

// Scenarios are the names that Options.Only takes.
func Scenarios() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func (o Options) validate() error {
	var errs []error
	if o.Rounds < 1 {
		errs = append(errs, fmt.Errorf("bench: rounds is %d: must be at least 1", o.Rounds))
	}
	for _, d := range o.Latencies {
		// The SDK can lose an answer that comes within microseconds of its request.
		if d < time.Millisecond || d > time.Second {
			errs = append(errs, fmt.Errorf("bench: latency is %v: must be from 1ms to 1s", d))
		}
	}
	for _, c := range o.Concurrencies {
		if c < 1 || c > 1000 {
			errs = append(errs, fmt.Errorf("bench: concurrency is %d: must be from 1 to 1000", c))
		}
	}
	if _, ok := attributeSets[o.RawAttributes]; !ok {
		errs = append(errs, fmt.Errorf("bench: raw attributes are %q: must be same, all or none", o.RawAttributes))
	}
	for _, name := range o.Only {
		if !slices.Contains(Scenarios(), name) {
			errs = append(errs, fmt.Errorf("bench: no scenario %q: there are %s", name, strings.Join(Scenarios(), ", ")))
		}
	}
	return errors.Join(errs...)
}

// director runs the scenarios.
type director struct {
	Options
	out    io.Writer
	bounds []bound
}

// Run runs the scenarios and prints their tables, then what has to hold and whether it does. Its error says what
// broke: messages lost, processes or calls that failed. That something is slow is none.
func Run(ctx context.Context, o Options, out io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	d := &director{Options: o, out: out}
	fmt.Fprintf(out, "%s, %s/%s, %d CPUs, %s, %d rounds\n", time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), o.Rounds)
	var broken []error
	for _, s := range scenarios {
		if len(o.Only) > 0 && !slices.Contains(o.Only, s.name) {
			continue
		}
		if err := s.run(d, ctx); err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	d.printBounds()
	return errors.Join(broken...)
}

// profilePaths names a contestant's profiles; empty when none are wanted.
func (d *director) profilePaths(parts ...string) (cpu, alloc string) {
	if d.ProfileDir == "" {
		return "", ""
	}
	path := filepath.Join(d.ProfileDir, strings.Join(parts, "-"))
	return path + ".cpu.pprof", path + ".alloc.pprof"
}

// pick is quick in a quick run, and full otherwise.
func pick[T any](d *director, quick, full T) T {
	if d.Quick {
		return quick
	}
	return full
}
