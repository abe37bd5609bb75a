package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/worker"
)

func TestATenantsFloodLeavesTheOthersTheirSlots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		send := func(tenant string, n int) {
			for i := range n {
				in := &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String(fmt.Sprint(tenant, i))}
				if tenant != "" {
					in.MessageGroupId = &tenant
				}
				if _, err := q.Client().SendMessage(t.Context(), in); err != nil {
					t.Fatal(err)
				}
			}
		}
		var mu sync.Mutex
		running, most, done := map[string]int{}, map[string]int{}, map[string]time.Time{}
		w := q.start(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
			mu.Lock()
			running[m.GroupID]++
			most[m.GroupID] = max(most[m.GroupID], running[m.GroupID])
			mu.Unlock()
			time.Sleep(10 * time.Second)
			mu.Lock()
			running[m.GroupID]--
			done[m.GroupID] = time.Now()
			mu.Unlock()
			return nil
		}), worker.Config{Concurrency: 20, TenantConcurrency: 4})
		began := time.Now()
		send("loud", 60)
		send("quiet", 3)
		send("", 8)
		q.mustEmpty(10 * time.Minute)
		w.mustStop()
		if most["loud"] != 4 || most[""] != 8 {
			t.Errorf("at once: %v; want 4 of the loud tenant, and no cap on messages without one", most)
		}
		if waited := done["quiet"].Sub(began); waited > 25*time.Second {
			t.Errorf("the quiet tenant waited %v", waited)
		}
	})
}
