// Package imports holds the library to what an importing service links, and to the direction of its own imports.
package imports

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sqsworker/sqsworker"

// linked are the modules that a service which imports a library package may come to link: the AWS SDK, smithy, the
// OpenTelemetry API, and what that API itself needs.
var linked = []string{
	"github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go",
	"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/auto/sdk",
	"github.com/go-logr/logr", "github.com/go-logr/stdr", "github.com/cespare/xxhash/v2",
	module,
}

// library are the packages that services import, with those of our own that each may import.
var library = map[string][]string{
	"heartbeat":           {},
	"worker":              {"heartbeat"},
	"worker/interruption": {"worker", "heartbeat"},
	// Apart from its parent so that only those link the Auto Scaling client who use it.
	"worker/interruption/lifecycle": {"worker/interruption"},
	"worker/workertest":             {"worker", "heartbeat", "internal/sqsmodel"},
	"idempotency":                   {"worker", "heartbeat"},
	"extended":                      {"worker", "heartbeat"},
	"dlq":                           {"worker", "heartbeat"},
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, stderr.String())
	}
	return strings.Fields(string(out))
}

// packages are the library's that exist.
func packages(t *testing.T) []string {
	var found []string
	for _, p := range goList(t, "./...") {
		name := strings.TrimPrefix(p, module+"/")
		if _, ok := library[name]; ok {
			found = append(found, name)
		} else if !strings.HasPrefix(name, "internal/") && !strings.Contains(name, "/cmd/") {
			t.Errorf("package %s isn't in the list of library packages: say what it may import", name)
		}
	}
	return found
}

func TestALibraryPackageLinksOnlyTheSDKAndTheOpenTelemetryAPI(t *testing.T) {
	for _, p := range packages(t) {
		for _, dep := range goList(t, "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./"+p) {
			if !slices.ContainsFunc(linked, func(m string) bool { return dep == m || strings.HasPrefix(dep, m+"/") }) {
				t.Errorf("%s links %s", p, dep)
			}
		}
	}
}

func TestImportsGoOneWayAndSiblingsNeverImportEachOther(t *testing.T) {
	for _, p := range packages(t) {
		for _, dep := range goList(t, "-f", `{{join .Imports "\n"}}`, "./"+p) {
			ours, ok := strings.CutPrefix(dep, module+"/")
			if ok && !slices.Contains(library[p], ours) {
				t.Errorf("%s imports %s", p, ours)
			}
		}
	}
}
