package heartbeat_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// slowClient confirms every renewal after 200 ms.
type slowClient struct{}

func (slowClient) ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out := &sqs.ChangeMessageVisibilityBatchOutput{}
	for _, e := range in.Entries {
		out.Successful = append(out.Successful, types.ChangeMessageVisibilityBatchResultEntry{Id: e.Id})
	}
	return out, nil
}

// BenchmarkHold100000 holds a hundred thousand messages at once, all received in the same moment, through two
// renewals of each. It reports memory per held message (goroutine and lease; the handle is the caller's), calls per ten
// messages and interval, and leases lost.
func BenchmarkHold100000(b *testing.B) {
	const held = 100_000
	for range b.N {
		beat, err := heartbeat.New(slowClient{}, "https://sqs.us-east-1.amazonaws.com/123456789012/q", heartbeat.Config{Visibility: 6 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		receipts := make([]heartbeat.Receipt, held)
		for i := range receipts {
			receipts[i] = heartbeat.Receipt{Handle: strconv.Itoa(i)}
		}
		leases := make([]*heartbeat.Lease, held)
		before := memory()
		for i := range receipts {
			_, leases[i] = beat.Hold(context.Background(), receipts[i])
		}
		time.Sleep(time.Second)
		fresh := memory() - before
		began := time.Now()
		for beat.Stats().Renewed < 2*held && time.Since(began) < 30*time.Second {
			time.Sleep(10 * time.Millisecond)
		}
		renewed := memory() - before
		stats := beat.Stats()
		b.ReportMetric(float64(fresh)/held, "B/held")
		b.ReportMetric(float64(renewed)/held, "B/held-after-renewals")
		b.ReportMetric(float64(stats.Calls)*10/float64(stats.Renewed), "calls/10renewals")
		b.ReportMetric(float64(stats.Lost), "lost")
		b.ReportMetric(stats.LeastMargin.Seconds(), "s-least-margin")
		for _, l := range leases {
			l.Settle()
		}
		beat.Close()
	}
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// BenchmarkHoldAndSettle is what a short job pays for its lease.
func BenchmarkHoldAndSettle(b *testing.B) {
	beat, err := heartbeat.New(slowClient{}, "https://sqs.us-east-1.amazonaws.com/123456789012/q", heartbeat.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer beat.Close()
	b.ReportAllocs()
	for b.Loop() {
		_, l := beat.Hold(context.Background(), heartbeat.Receipt{Handle: *aws.String("h"), RequestedAt: time.Now()})
		l.Settle()
	}
}
