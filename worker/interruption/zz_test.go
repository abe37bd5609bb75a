package interruption_test

import (
	"fmt"
	"testing"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func dbg(t *testing.T, journal []sqsmodel.Event, taps []*tap, s *sqsmodel.Server) {
	n := 0
	for w, tap := range taps {
		got := map[string]int{}
		for _, e := range journal {
			if e.Kind == sqsmodel.Received && tap.handles[e.Handle] {
				if got[e.MessageID]++; got[e.MessageID] == 2 && n < 3 {
					n++
					for _, e2 := range journal {
						if e2.MessageID == e.MessageID {
							who := -1
							for i, tp := range taps {
								if tp.handles[e2.Handle] {
									who = i
								}
							}
							fmt.Println(w, e2.At.Format("15:04:05.000"), e2.Kind, who, e2.ReceiveCount, e2.VisibilityTimeout)
						}
					}
					for _, c := range s.Calls() {
						if c.Action == "ReceiveMessage" && c.At.Before(e.At) && c.Done.After(e.At.Add(-30e9)) {
							fmt.Println("   recv", c.At.Format("15:04:05.000"), c.Done.Format("15:04:05.000"), c.Messages, c.MaxMessages, c.WaitSeconds)
						}
					}
				}
			}
		}
	}
}
