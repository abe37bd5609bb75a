// Package bench holds the benchmarks that need more than a test: a server of its own, other contestants.
package bench
