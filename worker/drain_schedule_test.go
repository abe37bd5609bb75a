package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// Whatever hangs at SQS, the drain keeps to its time: the process is killed after it.
func TestADrainKeepsToItsScheduleWhileCallsHang(t *testing.T) {
	for _, action := range []string{"DeleteMessageBatch", "ChangeMessageVisibilityBatch", "ReceiveMessage"} {
		synctest.Test(t, func(t *testing.T) {
			s := sqsmodel.New(sqsmodel.Config{})
			queue := s.MustCreateQueue("jobs", map[string]string{"VisibilityTimeout": "60"})
			for i := range 3000 {
				s.MustSend(queue, fmt.Sprint(i))
			}
			handle := func(ctx context.Context, m *worker.Message) error {
				if action == "ChangeMessageVisibilityBatch" {
					return errors.New("boom")
				}
				time.Sleep(10 * time.Millisecond)
				return nil
			}
			w, err := worker.New(s.Client(), queue, worker.HandlerFunc(handle), worker.Config{Concurrency: 200, DrainTimeout: 5 * time.Second, Logger: quiet()})
			if err != nil {
				t.Fatal(err)
			}
			s.Inject(sqsmodel.Fault{Action: action, Skip: 20, Stall: true})
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(3*time.Second+50*time.Millisecond, cancel)
			began := time.Now()
			err = w.Run(ctx)
			if took := time.Since(began) - 3*time.Second - 50*time.Millisecond; took > 5*time.Second {
				t.Errorf("%s hangs: drained in %v", action, took)
			}
			var drain *worker.DrainError
			if !errors.As(err, &drain) {
				t.Errorf("%s hangs: Run says %v", action, err)
			}
		})
	}
}
