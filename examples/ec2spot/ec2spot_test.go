package main

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
)

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// CI's linters see the files; what is deployed is in the template.
func TestTheTemplatesUserDataIsTheScriptWordForWord(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "template.yaml"), "              - |\n")
	if !ok {
		t.Fatal("no user data in the template")
	}
	text, _, _ := strings.Cut(rest, "              - Region:")
	var got strings.Builder
	for line := range strings.Lines(text) {
		got.WriteString(strings.TrimPrefix(line, "                "))
	}
	if script := read(t, "user-data.sh"); got.String() != script {
		t.Errorf("the template has\n%s\nthe script is\n%s", got.String(), script)
	}
}

func TestTheTimesInUnitTemplateAndUserDataFitEachOther(t *testing.T) {
	for file, wants := range map[string][]string{
		"worker.service": {"TimeoutStopSec=90\n", "Restart=on-failure\n", "KillSignal=SIGTERM\n", "EnvironmentFile=/etc/worker.env\n"},
		"user-data.sh":   {"STOP_TIMEOUT=90s\n", "HOOK_TIMEOUT=${HookTimeout}s\n", ">/etc/worker.env"},
		"template.yaml":  {"HttpPutResponseHopLimit: 2", "HttpTokens: required", "HeartbeatTimeout: !Ref HookTimeout", "LifecycleHookName: drain", "Hook: drain", "autoscaling:CompleteLifecycleAction", "CapacityRebalance: true"},
	} {
		for _, want := range wants {
			if !strings.Contains(read(t, file), want) {
				t.Errorf("%q isn't in %s", want, file)
			}
		}
	}
	if interruption.SystemdStopTimeout != 90*time.Second {
		t.Error("systemd's default has changed")
	}
}

func TestSettingsSayEverythingThatIsWrong(t *testing.T) {
	env := func(values map[string]string) func(string) string {
		return func(name string) string { return values[name] }
	}
	_, err := settingsFrom(env(map[string]string{"STOP_TIMEOUT": "90", "HOOK_TIMEOUT": "-1s", "CONCURRENCY": "x", "HOOK": "drain", "ON_REBALANCE": "panic"}))
	for _, want := range []string{"QUEUE_URL isn't set", `STOP_TIMEOUT is "90"`, `HOOK_TIMEOUT is "-1s"`, `CONCURRENCY is "x"`, "GROUP and HOOK", `ON_REBALANCE is "panic"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	for _, rebalance := range []string{"", "drain", "shrink", "ignore"} {
		s, err := settingsFrom(env(map[string]string{"QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/1/q", "ON_REBALANCE": rebalance, "GROUP": "g", "HOOK": "h"}))
		if err != nil || s.stopTimeout != 90*time.Second || s.hookTimeout != 2*time.Minute {
			t.Errorf("%+v, %v", s, err)
		}
		w, err := worker.New(sqs.New(sqs.Options{Region: "eu-west-1"}), s.queueURL, worker.HandlerFunc(work), worker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if sources, err := s.sources(w, autoscaling.New(autoscaling.Options{Region: "eu-west-1"}), slog.Default()); err != nil || len(sources) != 4 {
			t.Errorf("%d sources, %v", len(sources), err)
		}
	}
}
