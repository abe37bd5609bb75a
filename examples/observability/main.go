// Command observability works a queue and shows everything that can be seen of it: metrics for Prometheus, traces and metrics
// over OTLP, probes and a status page, and the backlog in CloudWatch's embedded metric format.
//
//	go run ./examples/observability
//
// starts an SQS in this process, with a producer that traces what it sends, and serves http://localhost:9464/metrics and
// http://localhost:9464/statusz. Traces and metrics go out over OTLP as soon as OTEL_EXPORTER_OTLP_ENDPOINT is set, to a
// collector or to an "all in one" of Jaeger, say. With -queue-url it works a real queue instead, and deletes what it has
// handled.
//
// telemetry.go is what a service needs; dashboards/ has the Grafana and CloudWatch dashboards and the alerts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

type options struct {
	queueURL string
	listen   string
	emf      bool
	rate     float64
}

func main() {
	var o options
	flag.StringVar(&o.queueURL, "queue-url", "", "`URL` of a queue to work; default is one in this process, with a producer")
	flag.StringVar(&o.listen, "listen", "localhost:9464", "`address` for /metrics, /livez, /readyz and /statusz")
	flag.BoolVar(&o.emf, "emf", false, "write the backlog to standard output in CloudWatch's embedded metric format")
	flag.Float64Var(&o.rate, "rate", 5, "messages a second that the producer sends, from 0.1 to 1000")
	flag.Parse()
	if !(o.rate >= 0.1 && o.rate <= 1000) {
		fmt.Fprintf(os.Stderr, "observability: -rate is %v: must be from 0.1 to 1000\n", o.rate)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}

// run is the program: the queue, its telemetry, the worker and what is served beside it.
func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	telemetry, err := setUpTelemetry(ctx)
	if err != nil {
		return err
	}
	defer telemetry.shutdown() // after the worker's end: the last export tells how the drain went

	client, queueURL, err := queue(ctx, o)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	w, err := worker.New(client, queueURL, worker.HandlerFunc(handle), worker.Config{Logger: log})
	if err != nil {
		return err
	}
	cfg := worker.BacklogConfig{Interval: 15 * time.Second, Workers: func(context.Context) (int, error) { return 1, nil }} // ask ECS or the Auto Scaling group
	if o.emf {
		cfg.EMF = stdout
	}
	backlog, err := worker.NewBacklogPublisher(w, cfg)
	if err != nil {
		return err
	}
	served, err := serve(o.listen, w, telemetry)
	if err != nil {
		return err
	}
	defer served.Close()
	fmt.Fprintf(stderr, "look at http://%s/statusz and http://%s/metrics\n", served.Addr, served.Addr)

	beside := make(chan error, 2)
	go func() { beside <- backlog.Run(ctx) }()
	go func() {
		if o.queueURL != "" {
			beside <- nil
			return
		}
		beside <- produce(ctx, client, queueURL, o.rate)
	}()
	return errors.Join(w.Run(ctx), <-beside, <-beside)
}

// queue is the one to work: a real one, or one in this process.
func queue(ctx context.Context, o options) (*sqs.Client, string, error) {
	if o.queueURL != "" {
		aws, err := config.LoadDefaultConfig(ctx)
		return sqs.NewFromConfig(aws), o.queueURL, err
	}
	server := sqsmodel.New(sqsmodel.Config{Latency: 5 * time.Millisecond})
	server.MustCreateQueue("orders-dead", map[string]string{"MessageRetentionPeriod": "1209600"})
	url := server.MustCreateQueue("orders", map[string]string{"VisibilityTimeout": "30",
		"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"5"}`, server.Queue("orders-dead").ARN)})
	return server.Client(), url, nil
}

// serve serves the metrics and the worker's status, on an address that only operators reach.
func serve(address string, w *worker.Worker, t *telemetry) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{}))
	mux.Handle("/", worker.StatusHandler(w))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Addr: listener.Addr().String(), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return server, nil
}

// handle is a job with two steps. Its context carries the process span, so that what it calls appears under it.
func handle(ctx context.Context, m *worker.Message) error {
	_, span := otel.Tracer("orders").Start(ctx, "charge the card")
	defer span.End()
	select {
	case <-time.After(time.Duration(50+rand.IntN(400)) * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if rand.IntN(20) == 0 {
		return errors.New("the card service answered 503")
	}
	return nil
}

// produce sends orders until ctx ends. Each is sent within a span, whose context goes along in the message.
func produce(ctx context.Context, client *sqs.Client, queueURL string, rate float64) error {
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		ctx, span := otel.Tracer("shop").Start(ctx, "send orders", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attribute.Int("order", n)))
		body := fmt.Sprintf(`{"order":%d}`, n)
		in := &sqs.SendMessageInput{QueueUrl: &queueURL, MessageBody: &body}
		worker.Inject(ctx, in)
		_, err := client.SendMessage(ctx, in)
		span.End()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("sending an order: %w", err)
		}
	}
}
