package worker_test

import (
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// Two receives are open, both are handed the message, and the older answer comes last: its handle deletes nothing any more.
func TestAnOlderReceiptThatComesLastIsNotTheOneToDeleteBy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		var r runs
		q.Inject(sqsmodel.Fault{Action: receiveMessage, Skip: 1, Times: 1, HoldAfter: 3 * time.Second})
		w := q.start(r.handler(takes(8*time.Second)), worker.Config{Concurrency: 20})
		q.send(1)
		time.Sleep(10 * time.Second) // what it brought opened a second receive
		id := q.send(1)[0]
		time.Sleep(time.Second) // the first receive has the message, its answer is on the way
		q.Duplicate(testQueue, id)
		time.Sleep(20 * time.Second)
		if n := r.count(); n != 2 {
			t.Errorf("%d runs of two messages", n)
		}
		q.mustBeEmpty()
		received := q.events(id, sqsmodel.Received)
		if len(received) != 2 || received[1].ReceiveCount != 2 {
			t.Fatalf("the scene didn't come about: %+v", received)
		}
		if deleted := q.events(id, sqsmodel.Deleted); len(deleted) != 1 || deleted[0].Handle != received[1].Handle {
			t.Errorf("deleted by another handle than the newest: %+v", deleted)
		}
		w.mustStop()
	})
}
