package sqsmodel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func readAll(t *testing.T, res *http.Response) string {
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLongPollTakesExactlyItsWait(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		start := time.Now()
		a.bodies(a.receive(url, wait(20)))
		if d := time.Since(start); d != 20*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestLongPollEndsWithTheFirstMessageThatBecomesAvailable(t *testing.T) {
	for name, tc := range map[string]struct {
		attrs   []string
		prepare func(a *account, url string)
		after   time.Duration
	}{
		"sent": {nil, func(a *account, url string) {
			go func() { time.Sleep(7 * time.Second); a.s.MustSend(url, "m") }()
		}, 7 * time.Second},
		"visibility expired": {nil, func(a *account, url string) { a.send(url, "m"); a.one(url, visibility(11)) }, 11 * time.Second},
		"delay ended":        {[]string{"DelaySeconds", "4"}, func(a *account, url string) { a.send(url, "m") }, 4 * time.Second},
		"released": {nil, func(a *account, url string) {
			a.send(url, "m")
			m := a.one(url, visibility(100))
			go func() {
				time.Sleep(3 * time.Second)
				if err := a.change(url, m, 0); err != nil {
					t.Error(err)
				}
			}()
		}, 3 * time.Second},
		"shortened": {nil, func(a *account, url string) {
			a.send(url, "m")
			m := a.one(url, visibility(100))
			go func() {
				time.Sleep(3 * time.Second)
				if err := a.change(url, m, 2); err != nil {
					t.Error(err)
				}
			}()
		}, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, sqsmodel.Config{}, func(a *account) {
				url := a.queue("work", tc.attrs...)
				start := time.Now()
				tc.prepare(a, url)
				a.bodies(a.receive(url, wait(20)), "m")
				if d := time.Since(start); d != tc.after {
					t.Errorf("took %v, want %v", d, tc.after)
				}
			})
		})
	}
}

func TestQueueWaitHoldsUnlessTheRequestSaysZero(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work", "ReceiveMessageWaitTimeSeconds", "9")
		start := time.Now()
		a.receive(url) // the SDK leaves a zero WaitTimeSeconds out
		if d := time.Since(start); d != 9*time.Second {
			t.Errorf("without WaitTimeSeconds it took %v", d)
		}
		start = time.Now()
		status, _, body := a.raw("ReceiveMessage", `{"QueueUrl":"`+url+`","WaitTimeSeconds":0}`)
		if status != 200 || body != "{}" || time.Since(start) != 0 {
			t.Errorf("with 0: %d %s after %v", status, body, time.Since(start))
		}
	})
}

func TestQueueVisibilityHoldsUnlessTheRequestSaysZero(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work", "VisibilityTimeout", "50")
		a.send(url, "m")
		a.receive(url)
		if d := time.Until(a.s.Queue(url).Messages[0].VisibleAt); d != 50*time.Second {
			t.Errorf("hidden for %v", d)
		}
		time.Sleep(50 * time.Second)
		for range 2 { // visible again at once, each receive counts
			if status, _, _ := a.raw("ReceiveMessage", `{"QueueUrl":"`+url+`","VisibilityTimeout":0}`); status != 200 {
				t.Error(status)
			}
		}
		if m := a.one(url); m.Attributes["ApproximateReceiveCount"] != "4" {
			t.Errorf("received %s times", m.Attributes["ApproximateReceiveCount"])
		}
	})
}

func TestOldestPollIsServedFirst(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		var mu sync.Mutex
		var order []int
		for i := range 5 {
			go func() {
				if len(a.receive(url, wait(20))) == 1 {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
				}
			}()
			time.Sleep(time.Second)
		}
		if n := a.s.Queue(url).OpenPolls; n != 5 {
			t.Errorf("%d open polls", n)
		}
		for i := range 5 {
			a.send(url, "m")
			synctest.Wait()
			mu.Lock()
			if len(order) != i+1 || order[i] != i {
				t.Errorf("served %v after %d messages", order, i+1)
			}
			mu.Unlock()
		}
	})
}

func TestPollTakesTheWholeBatchThatIsSent(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		go func() { time.Sleep(time.Second); a.s.MustSend(url, "1", "2", "3") }()
		a.bodies(a.receive(url, wait(20)), "1", "2", "3")
	})
}

func TestEveryOfManyPollsGetsItsMessageWhenVisibilityEnds(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		const n = 50
		for i := range n {
			a.send(url, fmt.Sprint(i))
			a.one(url, visibility(int32(1+i%10)))
		}
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if got := a.receive(url, wait(20), atMost(1), visibility(60)); len(got) != 1 {
					t.Errorf("got %d", len(got))
				}
			})
		}
		wg.Wait()
		a.state(url, 0, n, 0)
		a.events(sqsmodel.Expired, n)
	})
}

func TestPollEndsWithItsConnection(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		ctx, cancel := context.WithTimeout(a.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		_, err := a.tryReceive(ctx, url, wait(20))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Fatalf("got %v after %v", err, time.Since(start))
		}
		if n := a.s.Queue(url).OpenPolls; n != 0 {
			t.Errorf("%d open polls", n)
		}
		a.send(url, "m")
		a.state(url, 1, 0, 0)
	})
}

func TestAbandonedPollStrandsMessages(t *testing.T) {
	inBubble(t, sqsmodel.Config{AbandonedPolls: true}, func(a *account) {
		url := a.queue("work")
		ctx, cancel := context.WithCancel(a.Context())
		time.AfterFunc(5*time.Second, cancel)
		if _, err := a.tryReceive(ctx, url, wait(20)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if n := a.s.Queue(url).OpenPolls; n != 1 {
			t.Errorf("%d open polls", n)
		}
		a.send(url, "stranded")
		a.state(url, 0, 1, 0)
		a.bodies(a.receive(url))
		start := time.Now()
		for time.Since(start) < 30*time.Second { // until its visibility ends
			if len(a.receive(url, wait(5))) > 0 {
				break
			}
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("came back after %v", d)
		}
	})
}

func TestAbandonedPollEndsWithItsWait(t *testing.T) {
	inBubble(t, sqsmodel.Config{AbandonedPolls: true}, func(a *account) {
		url := a.queue("work")
		a.send(url, "early", "late")
		a.one(url, visibility(10)) // early: back after 10 s, when the poll is still open
		a.one(url, visibility(25)) // late: back when it isn't
		ctx, cancel := context.WithTimeout(a.Context(), time.Second)
		defer cancel()
		if _, err := a.tryReceive(ctx, url, wait(20)); err == nil {
			t.Fatal("no error")
		}
		time.Sleep(28 * time.Second) // nobody looks meanwhile
		a.state(url, 1, 1, 0)
		a.bodies(a.receive(url), "late")
		if n := a.s.Queue(url).OpenPolls; n != 0 {
			t.Errorf("%d open polls", n)
		}
	})
}

func TestInFlightLimit(t *testing.T) {
	fill := func(a *account) string {
		url := a.queue("work")
		a.send(url, "1", "2", "3", "4")
		a.bodies(a.receive(url), "1", "2", "3") // no more than the room that is left
		return url
	}
	t.Run("short poll answers OverLimit", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{InFlightLimit: 3}, func(a *account) {
			url := fill(a)
			_, err := a.tryReceive(a.Context(), url)
			a.refused(err, "OverLimit", "")
			a.status(err, 403)
		})
	})
	t.Run("long poll looks empty", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{InFlightLimit: 3}, func(a *account) {
			url := fill(a)
			a.bodies(a.receive(url, wait(20)))
		})
	})
	t.Run("long poll goes on when there is room again", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{InFlightLimit: 1}, func(a *account) {
			url := a.queue("work")
			a.send(url, "1", "2")
			m := a.one(url)
			time.AfterFunc(2*time.Second, func() { a.ok(a.delete(url, m)) })
			start := time.Now()
			a.bodies(a.receive(url, wait(20)), "2")
			if d := time.Since(start); d != 2*time.Second {
				t.Errorf("took %v", d)
			}
		})
	})
	t.Run("long poll answers OverLimit if configured", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{InFlightLimit: 3, OverLimitOnLongPoll: true}, func(a *account) {
			url := fill(a)
			_, err := a.tryReceive(a.Context(), url, wait(20))
			a.refused(err, "OverLimit", "")
		})
	})
	t.Run("FIFO looks empty", func(t *testing.T) {
		inBubble(t, sqsmodel.Config{FIFOInFlightLimit: 2}, func(a *account) {
			url := a.queue("work.fifo")
			a.sendGroup(url, "a/1", "b/1", "c/1")
			a.bodies(a.receive(url), "a/1", "b/1")
			a.bodies(a.receive(url))
		})
	})
}

func TestReceiveBounds(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		for _, tc := range []struct {
			opt  receiveOption
			text string
		}{
			{atMost(11), "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."},
			{atMost(-1), "Value -1 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."},
			{wait(21), "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."},
			{wait(-1), "Value -1 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."},
			{visibility(43201), "Must be between 0 and 43200, if provided."},
			{attempt("x"), "The request includes a parameter that is not valid for this queue type."},
		} {
			_, err := a.tryReceive(a.Context(), url, tc.opt)
			a.refused(err, "InvalidParameterValue", tc.text)
			a.status(err, 400)
		}
		if status, _, _ := a.raw("ReceiveMessage", `{"QueueUrl":"`+url+`","MaxNumberOfMessages":0}`); status != 400 {
			t.Error("0 messages accepted")
		}
	})
}

func TestShortPollMayMissMessagesThatALongPollSees(t *testing.T) {
	inBubble(t, sqsmodel.Config{ShortPollMiss: 0.5, Seed: 3}, func(a *account) {
		url := a.queue("work")
		a.send(url, "1", "2", "3", "4", "5", "6", "7", "8")
		missed := 8 - len(a.receive(url))
		if missed == 0 {
			t.Error("a short poll saw everything")
		}
		if got := a.receive(url, wait(1)); len(got) != missed {
			t.Errorf("a long poll saw %d of %d", len(got), missed)
		}
	})
}

func TestShuffleIsRepeatablePerSeed(t *testing.T) {
	order := func(seed uint64) (list string) {
		inBubble(t, sqsmodel.Config{ShuffleStandard: true, Seed: seed}, func(a *account) {
			url := a.queue("work")
			a.send(url, "1", "2", "3", "4", "5", "6", "7", "8")
			for _, m := range a.receive(url) {
				list += *m.Body
			}
		})
		return list
	}
	if a, b := order(1), order(1); a != b || a == "12345678" {
		t.Errorf("seed 1: %s and %s", a, b)
	}
	if a, b := order(1), order(2); a == b {
		t.Errorf("seeds 1 and 2: %s", a)
	}
}

func TestStandardMessageGoesToTheBackAfterThreeReceives(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "poison", "good")
		for range 2 {
			m := a.one(url)
			a.bodies([]typesMessage{m}, "poison")
			a.ok(a.change(url, m, 0))
		}
		a.ok(a.change(url, a.one(url), 0)) // the third
		a.bodies([]typesMessage{a.one(url)}, "good")
	})
}

func TestRetentionEndsAMessageInAnyState(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work", "MessageRetentionPeriod", "60")
		a.send(url, "visible", "in flight")
		time.Sleep(30 * time.Second)
		a.one(url, visibility(100))
		time.Sleep(30*time.Second - 1)
		a.state(url, 1, 1, 0)
		time.Sleep(time.Nanosecond)
		a.state(url, 0, 0, 0)
		a.events(sqsmodel.RetentionExpired, 2)
	})
}

func TestShorterRetentionExpiresWhatIsThere(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		a.send(url, "old")
		time.Sleep(2 * time.Minute)
		a.ok(a.set(url, "MessageRetentionPeriod", "60"))
		a.state(url, 0, 0, 0)
	})
}

func TestOpenPollEndsWhenItsQueueIsDeleted(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		time.AfterFunc(3*time.Second, func() {
			_, err := a.c.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: &url})
			a.ok(err)
		})
		_, err := a.tryReceive(a.Context(), url, wait(20))
		a.refused(err, "AWS.SimpleQueueService.NonExistentQueue", "")
	})
}

func TestDuplicateIsDeliveredInsideTheVisibility(t *testing.T) {
	inBubble(t, sqsmodel.Config{}, func(a *account) {
		url := a.queue("work")
		id := a.send(url, "m")[0]
		first := a.one(url)
		if !a.s.Duplicate("work", id) || a.s.Duplicate("work", "unknown") {
			t.Error("wrong report")
		}
		a.ok(a.change(url, first, 60)) // the first holder's lease goes on
		second := a.one(url)
		if *second.MessageId != id || *second.ReceiptHandle == *first.ReceiptHandle || second.Attributes["ApproximateReceiveCount"] != "2" {
			t.Errorf("got %v", second)
		}
		a.ok(a.delete(url, first)) // a replaced handle: accepted, no effect
		a.state(url, 0, 1, 0)
		a.ok(a.delete(url, second))
		a.state(url, 0, 0, 0)
		a.events(sqsmodel.Expired, 0)
	})
}

func TestDuplicateRateDeliversEverythingAgain(t *testing.T) {
	inBubble(t, sqsmodel.Config{DuplicateRate: 1}, func(a *account) {
		url := a.queue("work")
		a.send(url, "1", "2")
		a.bodies(a.receive(url), "1", "2")
		a.bodies(a.receive(url), "1", "2")
	})
}
