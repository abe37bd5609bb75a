package interruption_test

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqsworker/sqsworker/worker/interruption"
)

// Real signals and a real clock: package os/signal knows no bubbles.
func TestASignalThatComesRightAfterWatchIsCaught(t *testing.T) {
	for name, c := range map[string]struct {
		source interruption.Source
		send   syscall.Signal
		text   string
		least  time.Duration
	}{
		"SIGTERM":      {interruption.ECS(0), syscall.SIGTERM, "interruption: ECS stop, SIGTERM: stop, done by ", 27 * time.Second},
		"SIGINT":       {interruption.ECS(2 * time.Minute), syscall.SIGINT, "interruption: ECS stop, SIGINT: stop", 115 * time.Second},
		"its own":      {interruption.Signals(10*time.Second, syscall.SIGUSR1), syscall.SIGUSR1, "interruption: user defined signal 1: stop", 9 * time.Second},
		"Kubernetes":   {interruption.Kubernetes(0, 0), syscall.SIGTERM, "interruption: Kubernetes, SIGTERM: stop", 27 * time.Second},
		"with preStop": {interruption.Kubernetes(time.Minute, 40*time.Second), syscall.SIGTERM, "interruption: Kubernetes, SIGTERM", 18 * time.Second},
		"docker":       {interruption.Signals(10 * time.Second), syscall.SIGTERM, "interruption: SIGTERM: stop", 9 * time.Second},
		"negative":     {interruption.Signals(-1), syscall.SIGTERM, "interruption: SIGTERM: stop", 27 * time.Second},
	} {
		ctx, stop := interruption.Watch(context.Background(), c.source)
		began := time.Now()
		if err := syscall.Kill(os.Getpid(), c.send); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: not caught", name)
		}
		cause := causeOf(t, ctx)
		left := cause.Deadline().Sub(began)
		if !strings.HasPrefix(cause.Error(), c.text) || left < c.least || left > c.least+5*time.Second {
			t.Errorf("%s: %v with %v left, want %s with %v", name, cause, left, c.text, c.least)
		}
		stop()
	}
}

func TestASecondSignalMeansAtOnceUnlessItIsTheSameOnePassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caught := make(chan os.Signal, 8)
		var notices []interruption.Notice
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			interruption.Listen(t.Context(), interruption.Signals(100*time.Second), caught, func(n interruption.Notice) { notices = append(notices, n) })
		}()
		caught <- syscall.SIGINT
		time.Sleep(900 * time.Millisecond)
		caught <- syscall.SIGINT // npm, make and the like
		synctest.Wait()
		if len(notices) != 1 || notices[0].Deadline.Sub(began) != 95*time.Second {
			t.Errorf("noticed %v", notices)
		}
		time.Sleep(9100 * time.Millisecond)
		caught <- syscall.SIGTERM
		<-done // and stops catching
		if len(notices) != 2 || notices[1].Deadline.Sub(began) != 10*time.Second || notices[1].Action != "stop at once" {
			t.Errorf("noticed %v", notices)
		}
	})
}
