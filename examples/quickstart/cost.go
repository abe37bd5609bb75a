package main

import (
	"cmp"
	"slices"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

const (
	billedChunk       = 64 << 10 // each begun 64 KiB of payload is a request of its own
	dollarsPerRequest = 0.40 / 1e6
	idleLongPolls     = 3 * 60 * 24 * 30       // receives a month of an idle worker that waits 20 s each time
	idleShortPolls    = 10 * 60 * 60 * 24 * 30 // and of one that doesn't wait: the worker makes ten a second
	millionMessages   = 1e6
	receiveAction     = "ReceiveMessage"
	deleteAction      = "DeleteMessageBatch"
	visibilityAction  = "ChangeMessageVisibilityBatch"
	attributesAction  = "GetQueueAttributes"
)

// billed is how many requests SQS bills for one API call: an empty or a failed one counts too.
func billed(payload int) int {
	return max(1, (payload+billedChunk-1)/billedChunk)
}

// usage is the calls of one action.
type usage struct {
	action   string
	calls    int
	requests int // billed
	empty    int // receives that brought nothing
}

// usageOf adds up what the server saw. size is the payload of a message, by its id.
func usageOf(calls []sqsmodel.Call, size func(id string) int) []usage {
	sums := map[string]*usage{}
	for _, c := range calls {
		u := sums[c.Action]
		if u == nil {
			u = &usage{action: c.Action}
			sums[c.Action] = u
		}
		payload := 0
		for _, id := range c.MessageIDs {
			payload += size(id)
		}
		u.calls++
		u.requests += billed(payload)
		if c.Action == receiveAction && c.Messages == 0 {
			u.empty++
		}
	}
	all := make([]usage, 0, len(sums))
	for _, u := range sums {
		all = append(all, *u)
	}
	slices.SortFunc(all, func(a, b usage) int {
		return cmp.Or(cmp.Compare(b.calls, a.calls), cmp.Compare(a.action, b.action))
	})
	return all
}

// total is the sum of all actions.
func total(all []usage) (sum usage) {
	for _, u := range all {
		sum.calls += u.calls
		sum.requests += u.requests
		sum.empty += u.empty
	}
	return sum
}

// perMillion is the price of a million messages, in dollars, when so many requests were needed for so many messages.
func perMillion(requests, messages int) float64 {
	if messages == 0 {
		return 0
	}
	return float64(requests) / float64(messages) * millionMessages * dollarsPerRequest
}
