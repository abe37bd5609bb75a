//go:build !race

package idempotency_test

// mostFaults is how much may go wrong on one path of the exploration.
const mostFaults = 2
