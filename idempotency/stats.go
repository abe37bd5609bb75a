package idempotency

import "sync/atomic"

// Stats are the counts since [New].
type Stats struct {
	Claimed     int64 // attempts begun
	Completed   int64 // outcomes recorded
	Duplicates  int64 // completed before, and not run
	Cached      int64 // of them answered by the cache
	Deferred    int64 // in progress elsewhere
	Mismatches  int64 // the same key with another payload
	Failed      int64 // attempts that ended with a failure
	Interrupted int64 // that were interrupted
	PutOff      int64 // that were snoozed
	Lost        int64 // that were overtaken: their completion was refused
	StoreErrors int64 // calls of the store without a usable answer
}

type counters struct {
	claimed, completed, duplicates, cached, deferred, mismatches atomic.Int64
	failed, interrupted, putOff, lost, storeErrors               atomic.Int64
}

// Stats returns the counts so far.
func (g *Guard) Stats() Stats {
	c := &g.count
	return Stats{
		Claimed: c.claimed.Load(), Completed: c.completed.Load(), Duplicates: c.duplicates.Load(), Cached: c.cached.Load(),
		Deferred: c.deferred.Load(), Mismatches: c.mismatches.Load(), Failed: c.failed.Load(), Interrupted: c.interrupted.Load(),
		PutOff: c.putOff.Load(), Lost: c.lost.Load(), StoreErrors: c.storeErrors.Load(),
	}
}
