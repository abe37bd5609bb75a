package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/propagators/aws/xray"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sqsworker/sqsworker/worker"
)

// TestWhatIsSeenReachesPrometheusAndOTLP runs the program for a few seconds of real time, with a collector that counts.
func TestWhatIsSeenReachesPrometheusAndOTLP(t *testing.T) {
	var mu sync.Mutex
	posted := map[string]*bytes.Buffer{"/v1/traces": {}, "/v1/metrics": {}}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, from *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if to := posted[from.URL.Path]; to != nil {
			_, _ = io.Copy(to, from.Body)
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	address := freeAddress(t)
	ctx, stop := context.WithCancel(context.Background())
	stdout, done := &bytes.Buffer{}, make(chan error, 1)
	go func() {
		done <- run(ctx, options{listen: address, rate: 50, emf: true}, stdout, io.Discard)
	}()
	var metrics string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if metrics = get(address, "/metrics"); strings.Contains(metrics, "sqsworker_messages_settled_total") && strings.Contains(metrics, `sqsworker_result="deleted",sqsworker_worker_name="orders"} 1`) {
			break
		}
	}
	for _, want := range []string{"messaging_process_duration_seconds_bucket", `le="3600"`, "sqsworker_backlog_messages", "sqsworker_lease_margin_seconds"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("Prometheus isn't told %s", want)
		}
	}
	if ready := get(address, "/readyz"); ready != "orders: ok\n" {
		t.Errorf("/readyz says %q", ready)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for path, words := range map[string][]string{"/v1/traces": {"process orders", "receive orders", "delete orders", "charge the card", "send orders"}, "/v1/metrics": {"sqsworker.drain.duration", "messaging.process.duration"}} {
		for _, w := range words {
			if !strings.Contains(posted[path].String(), w) {
				t.Errorf("%s wasn't told of %q", path, w)
			}
		}
	}
	if !strings.Contains(stdout.String(), `"_aws":{"CloudWatchMetrics"`) {
		t.Errorf("standard output has no metrics for CloudWatch: %s", stdout)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func get(address, path string) string {
	answer, err := http.Get(fmt.Sprintf("http://%s%s", address, path))
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

// TestTheXRayHeaderIsWhatXRaysOwnPropagatorReads holds worker.Inject to the propagator of OpenTelemetry's contrib.
func TestTheXRayHeaderIsWhatXRaysOwnPropagatorReads(t *testing.T) {
	for _, flags := range []trace.TraceFlags{0, trace.FlagsSampled} {
		from := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0x57, 0x59, 0xe9, 0x88, 5: 7, 15: 9}, SpanID: trace.SpanID{1, 7: 2}, TraceFlags: flags})
		body := "b"
		in := &sqs.SendMessageInput{MessageBody: &body}
		worker.Inject(trace.ContextWithSpanContext(context.Background(), from), in)
		header := propagation.MapCarrier{"X-Amzn-Trace-Id": *in.MessageSystemAttributes["AWSTraceHeader"].StringValue}
		if got := trace.SpanContextFromContext(xray.Propagator{}.Extract(context.Background(), header)); got.TraceID() != from.TraceID() || got.SpanID() != from.SpanID() || got.IsSampled() != from.IsSampled() {
			t.Errorf("X-Ray's propagator reads %v from %q, want %v", got, header, from)
		}
		written := propagation.MapCarrier{}
		xray.Propagator{}.Inject(trace.ContextWithSpanContext(context.Background(), from), written)
		if written["X-Amzn-Trace-Id"] != header["X-Amzn-Trace-Id"] {
			t.Errorf("X-Ray's propagator writes %q, worker.Inject %q", written["X-Amzn-Trace-Id"], header["X-Amzn-Trace-Id"])
		}
	}
}
