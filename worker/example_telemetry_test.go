package worker_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// A producer puts the context of its span into each message, and the worker's spans link to it.
func ExampleInject() {
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{ // a span's, as a rule
		TraceID: trace.TraceID{0x57, 0x59, 0xe9, 0x88, 15: 1}, SpanID: trace.SpanID{7: 2}, TraceFlags: trace.FlagsSampled,
	}))
	in := &sqs.SendMessageInput{MessageBody: aws.String(`{"order": 4521}`)}

	worker.Inject(ctx, in)

	fmt.Println(*in.MessageAttributes["traceparent"].StringValue)
	fmt.Println(*in.MessageSystemAttributes["AWSTraceHeader"].StringValue)
	// Output:
	// 00-5759e988000000000000000000000001-0000000000000002-01
	// Root=1-5759e988-000000000000000000000001;Parent=0000000000000002;Sampled=1
}

// Providers can be passed instead of set globally; here each message's run is part of its producer's trace.
func ExampleTelemetry() {
	server := sqsmodel.New(sqsmodel.Config{})
	queueURL := server.MustCreateQueue("orders", nil)
	provider := sdktrace.NewTracerProvider() // WithBatcher(exporter)

	_, err := worker.New(server.Client(), queueURL, worker.HandlerFunc(succeed), worker.Config{
		Telemetry: worker.Telemetry{TracerProvider: provider, ParentFromMessage: true},
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleStatusHandler() {
	server := sqsmodel.New(sqsmodel.Config{})
	w, err := worker.New(server.Client(), server.MustCreateQueue("orders", nil), worker.HandlerFunc(succeed), worker.Config{})
	if err != nil {
		panic(err)
	}
	status := httptest.NewServer(worker.StatusHandler(w)) // http.ListenAndServe("localhost:8080", …), beside w.Run(ctx)
	defer status.Close()

	for _, path := range []string{"/livez", "/readyz"} {
		answer, err := http.Get(status.URL + path)
		if err != nil {
			panic(err)
		}
		text := &strings.Builder{}
		_ = answer.Write(text)
		fmt.Println(path, answer.StatusCode)
		_ = answer.Body.Close()
	}
	// Output:
	// /livez 200
	// /readyz 503
}

// What a scaler should track: the backlog, messages in flight included, for each running worker.
func ExampleNewBacklogPublisher() {
	server := sqsmodel.New(sqsmodel.Config{})
	queueURL := server.MustCreateQueue("orders", nil)
	server.MustSend(queueURL, "1", "2", "3", "4", "5", "6")
	w, err := worker.New(server.Client(), queueURL, worker.HandlerFunc(succeed), worker.Config{})
	if err != nil {
		panic(err)
	}

	publisher, err := worker.NewBacklogPublisher(w, worker.BacklogConfig{
		EMF:     os.Stdout, // Run writes a line a minute for CloudWatch
		Workers: func(context.Context) (int, error) { return 2, nil },
	})
	if err != nil {
		panic(err)
	}
	b, err := publisher.Measure(context.Background()) // publisher.Run(ctx), beside w.Run(ctx)
	fmt.Println(b.Total, b.Workers, b.PerWorker, err)
	// Output: 6 2 3 <nil>
}
