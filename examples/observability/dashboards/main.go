// Command dashboards writes the dashboards and alerts that lie beside it, from the metrics that the worker says it has:
//
//	go run ./examples/observability/dashboards [-check] [directory]
//
// It fails when one of them names a metric, or an attribute of one, that doesn't exist. With -check it writes nothing and
// fails when a file isn't what it would write.
//
//   - grafana.json: a Grafana dashboard over Prometheus;
//   - alerts.yaml: alerting rules for Prometheus;
//   - cloudwatch.json: a CloudWatch dashboard;
//   - cloudwatch-alarms.json: a CloudFormation template with alarms;
//   - docs/metrics.md, the table of all metrics.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when a file isn't what would be written")
	flag.Parse()
	directory := "examples/observability/dashboards"
	if flag.NArg() > 0 {
		directory = flag.Arg(0)
	}
	if err := run(directory, *check); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

// files are everything that is generated.
func files() (map[string][]byte, error) {
	q := &queries{}
	all := map[string][]byte{
		"grafana.json":           grafana(q),
		"alerts.yaml":            alerts(q),
		"cloudwatch.json":        cloudWatch(q),
		"cloudwatch-alarms.json": cloudWatchAlarms(q),

		"../../../docs/metrics.md": table(),
	}
	return all, errors.Join(q.wrong...)
}

func run(directory string, check bool) error {
	all, err := files()
	if err != nil {
		return err
	}
	var wrong []error
	for name, content := range all {
		path := filepath.Join(directory, name)
		if !check {
			wrong = append(wrong, os.WriteFile(path, content, 0o644))
			continue
		}
		if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, content) {
			wrong = append(wrong, fmt.Errorf("%s isn't what this program writes: run it without -check", path))
		}
	}
	return errors.Join(wrong...)
}
