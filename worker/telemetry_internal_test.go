package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go/middleware"
	"go.opentelemetry.io/otel"
)

// What the tests outside of the package see of it.
var (
	ParseXRay  = parseXRay
	FormatXRay = formatXRay
)

func TestTelemetryAllocatesNothingWithoutAProvider(t *testing.T) {
	w := &Worker{queueURL: "https://sqs.eu-west-1.amazonaws.com/123456789012/work"}
	tell := w.newTelemetry()
	if tell != nil {
		t.Fatal("there is telemetry although no provider is set")
	}
	if tell.observer() != nil {
		t.Error("the heartbeat has an observer although no provider is set")
	}
	d := &delivery{ctx: context.Background(), run: &run{}}
	d.run.tell = tell
	out := &sqs.ReceiveMessageOutput{Messages: make([]types.Message, 10)}
	deleted, results, batch := &sqs.DeleteMessageBatchOutput{ResultMetadata: middleware.Metadata{}}, make([]error, 10), make([]*deletion, 10)
	sent, wrong := time.Now(), errors.New("no luck")
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		seen := tell.received(sent, out, nil)
		_ = seen.of(3)
		_ = tell.handling(d)
		tell.retrying(d, 1, wrong)
		tell.handled(d, outcome{kind: failed, err: wrong}, time.Second)
		_ = tell.within(ctx, d)
		_, done := tell.deleting(ctx, batch)
		done(deleted, results, nil)
		tell.drained(time.Second, true)
	}); n != 0 {
		t.Errorf("%v allocations for a message", n)
	}
}

func TestTheGlobalPlaceholdersAreNoProviders(t *testing.T) {
	if !isPlaceholder(otel.GetMeterProvider()) {
		t.Errorf("%T isn't taken for the API's placeholder", otel.GetMeterProvider())
	}
	if (Telemetry{}).meterProvider() != nil {
		t.Error("a program that has set no global provider has metrics")
	}
}

func BenchmarkTelemetryOff(b *testing.B) {
	var tell *telemetry
	d := &delivery{ctx: context.Background()}
	b.ReportAllocs()
	for b.Loop() {
		_ = tell.handling(d)
		tell.handled(d, outcome{}, time.Second)
	}
}
