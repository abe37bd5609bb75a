package dlq_test

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// BenchmarkMover moves 10,000 messages with a filter, at 12 ms a call, on a real clock, and prints messages a second from the first
// receive to the return, the two empty receives at the end left out.
func BenchmarkMover(b *testing.B) {
	for name, journal := range map[string]bool{"plain": false, "journal": true} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				const messages = 10_000
				s := sqsmodel.New(sqsmodel.Config{Latency: 12 * time.Millisecond})
				source, dead := s.MustCreateQueue("work", nil), s.MustCreateQueue("dead", nil)
				s.MustSend(dead, numbered(messages)...)
				var last time.Time
				cfg := dlq.RedriveConfig{
					AnyQueue: true, Destination: source, Filter: func(i *dlq.Item) bool { return !strings.HasSuffix(i.Body, "99") },
					OnMessage: func(dlq.Result) { last = time.Now() }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
				}
				if journal {
					j, err := dlq.OpenJournal(filepath.Join(b.TempDir(), "journal"))
					if err != nil {
						b.Fatal(err)
					}
					defer j.Close()
					cfg.Journal = j
				}
				b.StartTimer()
				began := time.Now()
				r, err := dlq.Redrive(context.Background(), s.Client(), dead, cfg)
				if err != nil || r.Moved != messages-100 || r.Skipped != 100 {
					b.Fatalf("%+v, %v", r, err)
				}
				b.ReportMetric(float64(r.Received)/last.Sub(began).Seconds(), "messages/s")
			}
		})
	}
}
