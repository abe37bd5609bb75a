package main

import (
	"math"
	"testing"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestEachBegun64KiBIsARequest(t *testing.T) {
	for payload, want := range map[int]int{
		0: 1, 1: 1, 64 << 10: 1, 64<<10 + 1: 2, 128 << 10: 2, 256 << 10: 4, 1 << 20: 16,
	} {
		if got := billed(payload); got != want {
			t.Errorf("%d bytes: %d requests, want %d", payload, got, want)
		}
	}
}

func TestCostPerMillionMessages(t *testing.T) {
	for _, c := range []struct {
		requests, messages int
		want               float64
	}{
		{1, 1, 0.40},      // one request a message
		{3, 10, 0.12},     // full batches: send, receive, delete
		{30, 10, 1.20},    // one at a time
		{0, 10, 0},        //
		{10, 0, 0},        // nothing was done: no rate to speak of
		{204, 120, 0.68},  //
		{4800, 100, 19.2}, // large payloads
	} {
		if got := perMillion(c.requests, c.messages); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%d requests for %d messages: $%v, want $%v", c.requests, c.messages, got, c.want)
		}
	}
}

func TestUsageCountsPayloadOnceForEachCall(t *testing.T) {
	size := func(id string) int { return map[string]int{"small": 100, "large": 100 << 10}[id] }
	all := usageOf([]sqsmodel.Call{
		{Action: "SendMessageBatch", MessageIDs: []string{"small", "large"}}, // 2 chunks
		{Action: receiveAction, Messages: 1, MessageIDs: []string{"large"}},  // 2
		{Action: receiveAction, Messages: 1, MessageIDs: []string{"small"}},  // 1
		{Action: receiveAction},                                         // empty, and billed all the same
		{Action: deleteAction, Entries: 2},                              // 1
		{Action: receiveAction, Err: "InternalFailure"},                 // failed, counted too
		{Action: visibilityAction, Entries: 1, Err: "RequestThrottled"}, // 1
	}, size)
	if all[0].action != receiveAction || all[0].calls != 4 || all[0].requests != 5 || all[0].empty != 2 {
		t.Errorf("receives: %+v", all[0])
	}
	if sum := total(all); sum.calls != 7 || sum.requests != 9 {
		t.Errorf("all: %+v", sum)
	}
}
