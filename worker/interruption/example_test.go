package interruption_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
	"github.com/sqsworker/sqsworker/worker/interruption"
	"github.com/sqsworker/sqsworker/worker/interruption/lifecycle"
)

// A service on Fargate Spot whose container has a stopTimeout of 120 s.
func ExampleWatch() {
	server := sqsmodel.New(sqsmodel.Config{}) // in the place of SQS
	queueURL := server.MustCreateQueue("jobs", nil)
	server.MustSend(queueURL, "one", "two")
	var client *sqs.Client = server.Client()

	ctx, stop := interruption.Watch(context.Background(),
		interruption.ECS(interruption.FargateStopTimeout),
		interruption.Func(func(_ context.Context, report func(interruption.Notice)) { // a source of one's own
			time.Sleep(100 * time.Millisecond)
			report(interruption.Notice{Source: "maintenance", Action: "stop"})
		}),
	)
	defer stop()
	w, err := worker.New(client, queueURL, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		return nil
	}), worker.Config{
		DrainTimeout: 110 * time.Second, // what the jobs would like; the deadline bounds it
		WaitTime:     time.Second,       // for the example to end soon
		Logger:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = w.Run(ctx)
	fmt.Println(err, w.Stats().Deleted)
	var cause *interruption.Cause
	if errors.As(context.Cause(ctx), &cause) {
		fmt.Println(cause)
	}
	// Output:
	// <nil> 2
	// interruption: maintenance: stop
}

// A service on EC2 Spot instances in an Auto Scaling group with a lifecycle hook. Where there is no instance metadata, as here,
// the EC2 sources end by themselves.
func ExampleNewEC2() {
	var (
		w     *worker.Worker      // the service's
		group *autoscaling.Client // autoscaling.NewFromConfig(cfg)
	)
	ec2, err := interruption.NewEC2(interruption.EC2Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := interruption.Watch(context.Background(),
		interruption.Signals(interruption.SystemdStopTimeout),
		ec2.Spot(),
		ec2.Rebalance(interruption.Shrink(5, w)),
		ec2.AutoScaling(interruption.AutoScalingConfig{
			Grace:    5 * time.Minute, // the hook's HeartbeatTimeout
			Complete: lifecycle.Complete(group, "workers", "drain"),
		}),
	)
	// w.Run(ctx)
	fmt.Println(ctx.Err())
	stop() // completes the lifecycle action, if the group was what ended ctx
	fmt.Println(ctx.Err())
	// Output:
	// <nil>
	// context canceled
}

// The protection runs beside the worker, with the same context: it lasts through the drain.
func ExampleTaskProtection() {
	server := sqsmodel.New(sqsmodel.Config{}) // in the place of SQS
	queueURL := server.MustCreateQueue("jobs", nil)
	w, err := worker.New(server.Client(), queueURL, worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil }),
		worker.Config{WaitTime: time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	protection, err := interruption.NewTaskProtection(interruption.ProtectionConfig{Logger: slog.New(slog.DiscardHandler)}, w)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) // interruption.Watch in a service
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() { _ = protection.Run(ctx) })
	fmt.Println(w.Run(ctx))
	group.Wait()
	// Output: <nil>
}

// A handler that saves its place when the worker is about to stop.
func Example_checkpoint() {
	handle := func(ctx context.Context, m *worker.Message) error {
		for part := range 100 {
			if at, stopping := worker.DrainDeadline(ctx); stopping && time.Until(at) < 10*time.Second {
				_ = part // save it
				return worker.Snooze(0)
			}
			// work on a part
		}
		return nil
	}
	fmt.Println(handle(context.Background(), nil))
	// Output: <nil>
}
