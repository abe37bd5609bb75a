//go:build race

package idempotency_test

// mostFaults is how much may go wrong on one path of the exploration. The race detector makes each step several times as slow.
const mostFaults = 1
