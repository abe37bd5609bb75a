package sqsmodel_test

import (
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestReceiveTakesAsManyAsItCanFromOneGroupThenFromOthers(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "b/1", "a/2", "c/1", "b/2", "a/3")
		a.bodies(a.receive(url, atMost(4)), "a/1", "a/2", "a/3", "b/1")
		a.bodies(a.receive(url), "c/1") // b is locked though b/2 is visible
		a.bodies(a.receive(url))
	})
}

func TestGroupStaysLockedWhileAnyReceivedMessageIsLeft(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "a/2", "a/3")
		got := a.receive(url, atMost(2))
		a.ok(a.delete(url, got[0]))
		a.bodies(a.receive(url)) // the head is gone, a/2 still locks
		start := time.Now()
		time.AfterFunc(3*time.Second, func() { a.ok(a.delete(url, got[1])) })
		a.bodies(a.receive(url, wait(20)), "a/3") // a long poll wakes when the group is unlocked
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestHiddenMessageHidesLaterOnesButNotEarlierOnes(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "a/2", "a/3")
		got := a.receive(url)
		a.ok(a.change(url, got[1], 100)) // only a/2 is extended
		time.Sleep(30 * time.Second)
		a.state(url, 2, 1, 0)
		again := a.receive(url)
		a.bodies(again, "a/1") // and not a/3, which a/2 hides
		a.ok(a.delete(url, got[1]))
		a.ok(a.delete(url, again[0]))
		a.bodies(a.receive(url), "a/3")
	})
}

func TestReleasedHeadComesBackWhileItsSuccessorStaysWithItsHolder(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "a/2")
		got := a.receive(url)
		a.ok(a.change(url, got[0], 0))
		a.bodies(a.receive(url), "a/1")
		a.ok(a.delete(url, got[1]))
	})
}

func TestReleasedTailWaitsForItsHead(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "a/2")
		got := a.receive(url)
		a.ok(a.change(url, got[1], 0))
		a.bodies(a.receive(url))
		a.ok(a.delete(url, got[0]))
		a.bodies(a.receive(url), "a/2")
	})
}

func TestFortyGroupsRunSideBySide(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		for i := range 40 {
			a.sendGroup(url, fmt.Sprintf("g%d/1", i), fmt.Sprintf("g%d/2", i))
		}
		seen := map[string]bool{}
		for range 40 {
			m := a.one(url)
			seen[m.Attributes["MessageGroupId"]] = true
		}
		if len(seen) != 40 {
			t.Errorf("%d groups", len(seen))
		}
	})
}

func TestDeduplication(t *testing.T) {
	send := func(a *account, url, group, id, body string) *sqs.SendMessageOutput {
		in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageGroupId: &group}
		if id != "" {
			in.MessageDeduplicationId = &id
		}
		out, err := a.c.SendMessage(a.Context(), in)
		a.ok(err)
		return out
	}
	t.Run("lasts five minutes, beyond receive and delete", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			first := send(a, url, "g", "id", "one")
			a.ok(a.delete(url, a.one(url)))
			time.Sleep(5*time.Minute - 1)
			again := send(a, url, "other", "id", "two")
			if *again.MessageId != *first.MessageId || *again.SequenceNumber != *first.SequenceNumber {
				t.Errorf("got %s, want %s", *again.MessageId, *first.MessageId)
			}
			a.state(url, 0, 0, 0)
			time.Sleep(time.Nanosecond)
			send(a, url, "g", "id", "three")
			a.bodies(a.receive(url), "three")
			a.events(sqsmodel.Deduplicated, 1)
		})
	})
	t.Run("by content looks at the body only", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo", "ContentBasedDeduplication", "true")
			send(a, url, "g", "", "same")
			a.ok(a.sendInput(&sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: aws.String("same"), MessageGroupId: aws.String("g"),
				MessageAttributes: map[string]types.MessageAttributeValue{"n": str("v")},
			}))
			send(a, url, "g", "", "other")
			send(a, url, "g", "explicit", "same")
			a.bodies(a.receive(url), "same", "other", "same")
		})
	})
	t.Run("is per group if so configured", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo", "DeduplicationScope", "messageGroup", "FifoThroughputLimit", "perMessageGroupId")
			send(a, url, "a", "id", "1")
			send(a, url, "b", "id", "2")
			send(a, url, "b", "id", "3")
			a.bodies(a.receive(url), "1", "2")
		})
	})
}

func TestSequenceNumbersRiseWithGapsBeyond64Bits(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1", "a/2", "b/1", "a/3")
		var last *big.Int
		for _, m := range a.s.Queue(url).Messages {
			n, ok := new(big.Int).SetString(m.SequenceNumber, 10)
			if !ok || len(m.SequenceNumber) != 20 || n.IsUint64() {
				t.Errorf("sequence number %q", m.SequenceNumber)
			}
			if last != nil && new(big.Int).Sub(n, last).Cmp(big.NewInt(1)) <= 0 {
				t.Errorf("%v after %v", n, last)
			}
			last = n
		}
	})
}

func TestReceiveRequestAttempt(t *testing.T) {
	same := func(t *testing.T, a, b []types.Message) bool {
		t.Helper()
		if len(a) != len(b) {
			return false
		}
		for i := range a {
			if *a[i].MessageId != *b[i].MessageId || *a[i].ReceiptHandle != *b[i].ReceiptHandle {
				return false
			}
		}
		return true
	}
	t.Run("repeats messages and handles and hides them anew", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			a.sendGroup(url, "a/1", "a/2", "b/1")
			first := a.receive(url, attempt("x"), atMost(2))
			time.Sleep(20 * time.Second)
			if !same(t, first, a.receive(url, attempt("x"), atMost(2))) {
				t.Error("another answer")
			}
			time.Sleep(29 * time.Second)
			a.ok(a.delete(url, first[0])) // alive at 49 s
			if n := a.s.Queue(url).Messages[0].ReceiveCount; n != 1 {
				t.Errorf("received %d times", n)
			}
		})
	})
	t.Run("is over when one was deleted", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			a.sendGroup(url, "a/1", "a/2", "b/1")
			first := a.receive(url, attempt("x"), atMost(2))
			a.ok(a.delete(url, first[0]))
			a.bodies(a.receive(url, attempt("x")), "b/1")
		})
	})
	t.Run("is over when one's visibility was changed", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			a.sendGroup(url, "a/1", "a/2")
			a.ok(a.change(url, a.receive(url, attempt("x"))[1], 60))
			a.bodies(a.receive(url, attempt("x")))
		})
	})
	t.Run("is over when the visibility has run out", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			a.sendGroup(url, "a/1")
			first := a.receive(url, attempt("x"))
			time.Sleep(30 * time.Second)
			if second := a.receive(url, attempt("x")); len(second) != 1 || same(t, first, second) {
				t.Errorf("got %v", second)
			}
		})
	})
	t.Run("is over after five minutes", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			a.sendGroup(url, "a/1")
			a.receive(url, attempt("x"), visibility(1000))
			time.Sleep(5 * time.Minute)
			a.bodies(a.receive(url, attempt("x")))
		})
	})
	t.Run("that took nothing is nothing to repeat", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{}, func(a *account) {
			url := a.queue("work.fifo")
			a.receive(url, attempt("x"))
			a.sendGroup(url, "a/1")
			a.bodies(a.receive(url, attempt("x")), "a/1")
			_, err := a.tryReceive(a.Context(), url, attempt(strings.Repeat("x", 129)))
			a.refused(err, "InvalidParameterValue", "1 to 128 in length.")
		})
	})
}

func TestFIFODelayIsTheQueuesAndRetroactive(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo", "DelaySeconds", "10")
		a.refused(a.sendInput(&sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: aws.String("m"), MessageGroupId: aws.String("g"), MessageDeduplicationId: aws.String("d"), DelaySeconds: 2,
		}), "InvalidParameterValue", "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type.")
		a.sendGroup(url, "a/1")
		a.state(url, 0, 0, 1)
		a.ok(a.set(url, "DelaySeconds", "20"))
		time.Sleep(19 * time.Second)
		a.state(url, 0, 0, 1)
		time.Sleep(time.Second)
		a.bodies(a.receive(url), "a/1")
	})
}

func TestFIFOSendNeedsItsIDs(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		body, id := aws.String("m"), aws.String("x")
		const noDedup = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
		const noGroup = "The request must contain the parameter MessageGroupId."
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: body, MessageDeduplicationId: id}), "MissingParameter", noGroup)
		a.refused(a.sendInput(&sqs.SendMessageInput{QueueUrl: &url, MessageBody: body, MessageGroupId: id}), "InvalidParameterValue", noDedup)
		batch := func(group, dedup *string) error {
			_, err := a.c.SendMessageBatch(a.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: []types.SendMessageBatchRequestEntry{
				{Id: id, MessageBody: body, MessageGroupId: group, MessageDeduplicationId: dedup},
			}})
			return err
		}
		a.refused(batch(nil, id), "InvalidParameterValue", noGroup) // the whole batch, with another code
		a.refused(batch(id, nil), "InvalidParameterValue", noDedup)
		a.ok(batch(id, id))
	})
}

func TestPurgeForgetsDeduplication(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work.fifo")
		a.sendGroup(url, "a/1")
		_, err := a.c.PurgeQueue(a.Context(), &sqs.PurgeQueueInput{QueueUrl: &url})
		a.ok(err)
		a.sendGroup(url, "a/1")
		a.state(url, 1, 0, 0)
	})
}
