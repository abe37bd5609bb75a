package worker_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// bodyWatch sees what net/http would see of a request.
type bodyWatch struct {
	server                  *sqsmodel.Server
	receives, writeThemself atomic.Int64
}

func (b *bodyWatch) Do(req *http.Request) (*http.Response, error) {
	if req.Header.Get("X-Amz-Target") == "AmazonSQS.ReceiveMessage" {
		b.receives.Add(1)
		if _, ok := req.Body.(io.WriterTo); ok {
			b.writeThemself.Add(1)
		}
	}
	return b.server.Do(req)
}

func TestAReceivesBodyCannotBreakItsConnectionUnderAQuickAnswer(t *testing.T) {
	for _, wait := range []time.Duration{time.Second, worker.ShortPoll} {
		synctest.Test(t, func(t *testing.T) {
			s := sqsmodel.New(sqsmodel.Config{Latency: time.Millisecond})
			queue := s.MustCreateQueue("jobs", nil)
			watch := &bodyWatch{server: s}
			w, err := worker.New(s.Client(func(o *sqs.Options) { o.HTTPClient = watch }), queue, worker.HandlerFunc(succeed), worker.Config{WaitTime: wait, Logger: quiet()})
			if err != nil {
				t.Fatal(err)
			}
			s1 := run(t, w, &logbook{})
			time.Sleep(3 * time.Second)
			s1.mustStop()
			if watch.receives.Load() == 0 || watch.writeThemself.Load() > 0 {
				t.Errorf("%d of %d receives had a body that net/http lets write itself", watch.writeThemself.Load(), watch.receives.Load())
			}
		})
	}
}
