package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// Several receives are open when the only worker stops. What comes then would go from one of them to the next, each time
// for a receive more, until the redrive policy takes it for a message that fails.
func TestOpenReceivesOfAStoppingWorkerDontDeadLetterWhatTheyBring(t *testing.T) {
	each(t, map[string]int{"two receives": 2, "three receives": 3, "five receives": 5}, func(t *testing.T, maxReceives int) {
		q := newQueueWithDLQ(t, maxReceives, "VisibilityTimeout", "30")
		w := q.start(worker.HandlerFunc(succeed), worker.Config{Concurrency: 100})
		for w.Stats().OpenReceives < 8 { // each message that comes lets one more be open
			q.send(1)
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
		}
		sent := make(chan []string, 1)
		time.AfterFunc(2*time.Second, func() { sent <- q.send(1) })
		w.mustStop()
		ids := <-sent
		if n := q.CountEvents(sqsmodel.DeadLettered); n > 0 {
			t.Fatal("the message was dead-lettered without a run")
		}
		m := q.message(ids[0])
		if m.State != sqsmodel.Visible || m.ReceiveCount > 2 || m.ReceiveCount >= maxReceives && maxReceives > 2 {
			t.Errorf("the message is %v after %d receives, want visible after two at most", m.State, m.ReceiveCount)
		}
		q.mustBeQuiet()
	})
}

// The first stop may cost a message a receive more, one for each receive of its own that is open. In the second one that
// would be their last but one, so only the message that was running goes back while receives are open.
func TestMessagesNearTheRedriveLimitAreGivenBackOnceOpenReceivesHaveEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueueWithDLQ(t, 3, "VisibilityTimeout", "30")
		q.send(20)
		for stop := range 2 {
			w := q.start(worker.HandlerFunc(takes(never)), worker.Config{Concurrency: 1, Prefetch: 60, DrainTimeout: 10 * time.Second})
			time.Sleep(time.Second)
			most := int64(w.Stats().OpenReceives)
			if stop == 1 {
				most = 1
			}
			before := q.CountEvents(sqsmodel.Received)
			w.mustStop()
			if again := q.CountEvents(sqsmodel.Received) - before; again > most {
				t.Errorf("stop %d: %d messages were received again, want %d at most", stop, again, most)
			}
			near := w.Stats().NearLimit
			if n := int64(len(w.log.with("near its redrive limit")) + len(w.log.with("dead-letters it"))); n != near || stop == 1 && n < 20 {
				t.Errorf("stop %d: %d lines for %d messages near the limit", stop, n, near)
			}
		}
		if st := q.state(); st.Visible != 20 || q.CountEvents(sqsmodel.DeadLettered) > 0 {
			t.Errorf("%d of 20 messages are visible", st.Visible)
		}
	})
}
