package interruption

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// How long platforms wait between their signal and the kill.
const (
	// ECSStopTimeout is how long ECS waits after SIGTERM when the container definition has no stopTimeout.
	ECSStopTimeout = 30 * time.Second
	// FargateStopTimeout is the longest stopTimeout that Fargate takes. Set it for Fargate Spot, whose warning is as long.
	FargateStopTimeout = 120 * time.Second
	// KubernetesGracePeriod is a pod's terminationGracePeriodSeconds when it has none.
	KubernetesGracePeriod = 30 * time.Second
	// SystemdStopTimeout is a unit's TimeoutStopSec when neither it nor the system's configuration has one.
	SystemdStopTimeout = 90 * time.Second
)

// Signals reports SIGTERM and SIGINT, or the signals that are named. grace is how long the platform waits before it kills:
// the process can't find that out, so it must be what is configured there. Zero or less means 30 s. Examples: systemd's
// TimeoutStopSec, the 10 s of docker stop. Where it is less than 25 s, set the worker's DrainTimeout below it, too: that cuts
// WaitTime, so that no receive is open for longer than there is.
//
// A second signal, a second or more after the first, means at once: everything is given back. A third one isn't caught any
// more and ends the process, unless somebody else catches it.
func Signals(grace time.Duration, signals ...os.Signal) Source {
	if len(signals) == 0 {
		signals = []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	}
	return &signalSource{platform: "", grace: orDefault(grace, 30*time.Second), signals: signals}
}

// ECS is [Signals] with the stopTimeout of the container definition; zero or less means 30 s, ECS's default. For Fargate
// Spot set stopTimeout to 120 s, [FargateStopTimeout], which is also the most that Fargate takes.
func ECS(stopTimeout time.Duration) Source {
	return &signalSource{platform: "ECS stop, ", grace: orDefault(stopTimeout, ECSStopTimeout), signals: []os.Signal{syscall.SIGTERM, syscall.SIGINT}}
}

// Kubernetes is [Signals] with the pod's terminationGracePeriodSeconds; zero or less means 30 s, Kubernetes's default.
// preStop is how long the container's preStop hook takes, if it has one: the grace period includes it.
func Kubernetes(gracePeriod, preStop time.Duration) Source {
	left := max(orDefault(gracePeriod, KubernetesGracePeriod)-max(preStop, 0), time.Second)
	return &signalSource{platform: "Kubernetes, ", grace: left, signals: []os.Signal{syscall.SIGTERM, syscall.SIGINT}}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

type signalSource struct {
	platform string
	grace    time.Duration
	signals  []os.Signal
}

// Start catches signals from the moment it returns.
func (s *signalSource) Start(ctx context.Context, report func(Notice)) (stop func()) {
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, s.signals...)
	return Func(func(ctx context.Context, report func(Notice)) {
		defer signal.Stop(caught) // whoever interrupts after that means it
		s.listen(ctx, caught, report)
	}).Start(ctx, report)
}

// repeated is how soon after the first a second signal is taken for the same one: supervisors and terminals pass a
// signal on to processes that have had it already.
const repeated = time.Second

func (s *signalSource) listen(ctx context.Context, caught <-chan os.Signal, report func(Notice)) {
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-caught:
			now := time.Now()
			switch {
			case first.IsZero():
				first = now
				report(Notice{Source: s.platform + name(sig), Action: "stop", Deadline: before(now.Add(s.grace), now)})
			case now.Sub(first) >= repeated:
				report(Notice{Source: s.platform + name(sig), Action: "stop at once", Deadline: now})
				return
			}
		}
	}
}

func name(s os.Signal) string {
	switch s {
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	}
	return s.String()
}
