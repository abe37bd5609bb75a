package main

import (
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestRunsAreJudgedByTheEarlierOnes(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	r := func(worker string, from, to int, end ending) handlerRun {
		return handlerRun{worker: worker, from: at(from), to: at(to), end: end}
	}
	for name, c := range map[string]struct {
		runs                       []handlerRun
		retried, twice, afterCrash int
	}{
		"once":                                {[]handlerRun{r("a", 0, 1, succeeded)}, 0, 0, 0},
		"after a failure":                     {[]handlerRun{r("a", 0, 1, failed), r("b", 2, 3, succeeded)}, 1, 0, 0},
		"after two failures":                  {[]handlerRun{r("a", 0, 1, failed), r("b", 2, 3, failed), r("a", 4, 5, failed)}, 2, 0, 0},
		"after an interruption":               {[]handlerRun{r("a", 0, 1, interrupted), r("b", 2, 3, succeeded)}, 0, 0, 0},
		"after success":                       {[]handlerRun{r("a", 0, 1, succeeded), r("b", 2, 3, succeeded)}, 0, 1, 0},
		"at the same time":                    {[]handlerRun{r("a", 0, 5, failed), r("b", 2, 3, succeeded)}, 0, 1, 0},
		"told out of order":                   {[]handlerRun{r("b", 2, 3, succeeded), r("a", 0, 1, failed)}, 1, 0, 0},
		"cut by the crash":                    {[]handlerRun{r("dead", 0, 10, cut), r("b", 12, 13, succeeded)}, 0, 0, 1},
		"its delete died with it":             {[]handlerRun{r("dead", 0, 9, succeeded), r("b", 12, 13, succeeded)}, 0, 0, 1},
		"after success, before the crash":     {[]handlerRun{r("dead", 0, 5, succeeded), r("b", 6, 7, succeeded)}, 0, 1, 0},
		"beside the one that crashes":         {[]handlerRun{r("dead", 0, 10, cut), r("b", 6, 7, succeeded)}, 0, 1, 0},
		"a crash excuses only its own worker": {[]handlerRun{r("a", 0, 5, succeeded), r("b", 12, 13, succeeded)}, 0, 1, 0},
	} {
		l := newLedger("q")
		l.killed, l.killedAt = "dead", at(10)
		retried, twice, afterCrash := l.rerun(c.runs)
		if retried != c.retried || twice != c.twice || afterCrash != c.afterCrash {
			t.Errorf("%s: %d retried, %d twice, %d after the crash; want %d, %d, %d", name, retried, twice, afterCrash, c.retried, c.twice, c.afterCrash)
		}
	}
}

func TestNobodyWaitsForAReleasedMessageThatWasDeadLettered(t *testing.T) {
	l := newLedger("q")
	at := func(seq uint64, id string, kind sqsmodel.EventKind) {
		l.event(sqsmodel.Event{Seq: seq, At: time.Unix(int64(seq), 0), Kind: kind, Queue: "q", MessageID: id})
	}
	at(1, "good", sqsmodel.VisibilityChanged)
	at(2, "bad", sqsmodel.VisibilityChanged)
	at(4, "bad", sqsmodel.DeadLettered)
	if c := l.pickedUp(); c.messages != 2 || c.back != 1 {
		t.Errorf("%+v", c)
	}
	at(6, "good", sqsmodel.Received)
	if c := l.pickedUp(); c.messages != 2 || c.back != 2 || c.farthest != 5*time.Second {
		t.Errorf("%+v", c)
	}
}
