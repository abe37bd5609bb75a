package sqsmodel_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// TestNothingIsLostUnderRandomUse lets many clients do anything in any order,
// some of them on abandoned polls, and then accounts for every message.
func TestNothingIsLostUnderRandomUse(t *testing.T) {
	for _, name := range []string{"work", "work.fifo"} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				cfg := sqsmodel.Config{Seed: seed, AbandonedPolls: seed%2 == 0, ShuffleStandard: seed == 3, DuplicateRate: 0.05, ShortPollMiss: 0.1, InFlightLimit: 40, MaxHold: time.Minute}
				inBubble(t, cfg, func(a *account) { randomUse(a, name, seed) })
			})
		}
	}
}

func randomUse(a *account, name string, seed uint64) {
	url, dlq := a.withDLQ(name, 4, "VisibilityTimeout", "5")
	var wg sync.WaitGroup
	for client := range 8 {
		wg.Go(func() { randomClient(a, url, dlq, rand.New(rand.NewPCG(seed, uint64(client)))) })
	}
	wg.Wait()
	time.Sleep(time.Minute)
	left := len(a.s.Queue(url).Messages) + len(a.s.Queue(dlq).Messages)
	sent, gone := a.s.CountEvents(sqsmodel.Sent), a.s.CountEvents(sqsmodel.Deleted)
	if sent != gone+int64(left) || sent == 0 || gone == 0 {
		a.Errorf("%d sent, %d deleted, %d left", sent, gone, left)
	}
}

func randomClient(a *account, url, dlq string, r *rand.Rand) {
	var held []typesMessage
	pick := func() *string {
		if len(held) == 0 {
			return aws.String("none")
		}
		return held[r.IntN(len(held))].ReceiptHandle
	}
	for i := range 120 {
		q := url
		if r.IntN(8) == 0 {
			q = dlq
		}
		switch r.IntN(6) {
		case 0, 1:
			in := &sqs.SendMessageInput{QueueUrl: &q, MessageBody: aws.String(fmt.Sprint(i))}
			if a.s.Queue(q).Name[len(a.s.Queue(q).Name)-1] == 'o' { // .fifo
				in.MessageGroupId, in.MessageDeduplicationId = aws.String(fmt.Sprint(r.IntN(3))), aws.String(fmt.Sprint(r.Uint64()))
			} else {
				in.DelaySeconds = int32(r.IntN(3))
			}
			a.ok(a.sendInput(in))
		case 2, 3:
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(8000))*time.Millisecond)
			got, _ := a.tryReceive(ctx, q, wait(int32(r.IntN(6))), atMost(int32(1+r.IntN(10)))) // OverLimit and cut polls are fine
			held = append(held, got...)
			cancel()
		case 4:
			_, _ = a.c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &q, ReceiptHandle: pick()})
		case 5:
			_, _ = a.c.ChangeMessageVisibility(context.Background(), &sqs.ChangeMessageVisibilityInput{QueueUrl: &q, ReceiptHandle: pick(), VisibilityTimeout: int32(r.IntN(9))})
		}
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
		if i%20 == 0 {
			a.ok(a.s.Consistent())
		}
	}
}

// TestOneGroupIsHandledInOrderByManyConsumers is what FIFO is for.
func TestOneGroupIsHandledInOrderByManyConsumers(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		const groups, each = 4, 25
		for i := range each {
			for g := range groups {
				a.sendGroup(url, fmt.Sprintf("g%d/%d", g, i))
			}
		}
		var mu sync.Mutex
		next := map[string]int{}
		for worker := range 6 {
			go func() {
				for {
					got, err := a.tryReceive(a.Context(), url, wait(20), atMost(int32(1+worker%3)))
					if err != nil || len(got) == 0 {
						return
					}
					for _, m := range got {
						group := m.Attributes["MessageGroupId"]
						mu.Lock()
						if want := fmt.Sprintf("%s/%d", group, next[group]); *m.Body != want {
							t.Errorf("got %s, want %s", *m.Body, want)
						}
						next[group]++
						mu.Unlock()
						time.Sleep(time.Duration(100+worker*37) * time.Millisecond)
						if err := a.delete(url, m); err != nil {
							t.Error(err)
						}
					}
				}
			}()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		a.state(url, 0, 0, 0)
	})
}
