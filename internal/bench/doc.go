// Package bench measures the worker against a loop written by hand over the same SDK client, side by side.
//
// Three processes take part: this one, which directs and counts; one that is SQS (package sqsmodel behind a loopback
// socket, server.go), to which a fixed time is added for every call; and one contestant at a time (contest.go), so that
// the CPU and memory that are charged to it are its own. The command sqsbench starts the other two from its own binary.
//
// One file is one scenario (throughput.go, latency.go, idle.go, heartbeats.go, stop.go, hold.go, model.go, telemetry.go); raw.go and
// ours.go are the contestants; bounds.go compares the figures with what has to hold.
package bench
