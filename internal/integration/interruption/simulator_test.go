package interruption

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/sqsworker/sqsworker/worker/interruption"
)

// buildSimulator builds AWS's simulator of instance metadata, once.
var buildSimulator = sync.OnceValues(func() (string, error) {
	exe := filepath.Join(scratch, "ec2-metadata-mock")
	out, err := exec.Command("go", "build", "-o", exe, "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return exe, nil
})

// simulator is a running one: its IMDSv2, which is all that it answers, at a loopback address.
func simulator(t *testing.T, args ...string) (endpoint string) {
	t.Helper()
	exe, err := buildSimulator()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	cmd := exec.Command(exe, append(args, "--imdsv2", "--hostname", "127.0.0.1", "--port", port, "--mock-ip-count", "-1")...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	endpoint = "http://127.0.0.1:" + port
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		res, err := http.Get(endpoint + "/latest/meta-data/instance-id")
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized {
				t.Fatalf("the simulator answers %s to a request without a token", res.Status)
			}
			return endpoint
		}
		if time.Now().After(end) {
			t.Fatalf("the simulator doesn't answer: %v", err)
		}
	}
}

func instanceAt(t *testing.T, endpoint string) *interruption.EC2 {
	t.Helper()
	m, err := interruption.NewEC2(interruption.EC2Config{
		Client: imds.New(imds.Options{Endpoint: endpoint, EnableFallback: aws.FalseTernary}), Interval: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// mustEnd waits for the context's end and returns its cause. It must not have ended at once: the simulator's event comes
// after a second or two.
func mustEnd(t *testing.T, ctx context.Context, began time.Time) *interruption.Cause {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was noticed")
	}
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("noticed after %v, before the simulator's event", took)
	}
	var cause *interruption.Cause
	if !errors.As(context.Cause(ctx), &cause) {
		t.Fatalf("the cause is %v", context.Cause(ctx))
	}
	return cause
}

func TestSpotNoticesOfTheSimulatorAreNoticed(t *testing.T) {
	for _, action := range []string{"terminate", "stop", "hibernate"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			m := instanceAt(t, simulator(t, "spot", "--action", action, "--mock-delay-sec", "2"))
			ctx, stop := interruption.Watch(t.Context(), m.Spot())
			defer stop()
			cause := mustEnd(t, ctx, time.Now())
			if cause.Source() != "EC2 Spot" || cause.Action() != action {
				t.Errorf("noticed %v", cause)
			}
			left := time.Until(cause.Deadline())
			if action == "hibernate" && left > 0 || action != "hibernate" && (left < 105*time.Second || left > 115*time.Second) {
				t.Errorf("%v are left", left)
			}
		})
	}
}

func TestTheTimeInANoticeOfTheSimulatorIsTheDeadline(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(40 * time.Second).UTC().Truncate(time.Second)
	m := instanceAt(t, simulator(t, "spot", "--mock-delay-sec", "2", "--time", at.Format(time.RFC3339)))
	ctx, stop := interruption.Watch(t.Context(), m.Spot())
	defer stop()
	cause := mustEnd(t, ctx, time.Now())
	if early := at.Sub(cause.Deadline()); early < 3*time.Second || early > 4*time.Second {
		t.Errorf("the deadline is %v before the time in the notice, want a tenth of what was left", early)
	}
}

func TestARebalanceRecommendationOfTheSimulatorIsNoticedAndASpotNoticeAfterItTightens(t *testing.T) {
	t.Parallel()
	m := instanceAt(t, simulator(t, "spot", "--rebalance-delay-sec", "2", "--mock-delay-sec", "4"))
	ctx, stop := interruption.Watch(t.Context(), m.Spot(), m.Rebalance(interruption.Drain))
	defer stop()
	cause := mustEnd(t, ctx, time.Now())
	if cause.Source() != "EC2 rebalance recommendation" || !cause.Deadline().IsZero() {
		t.Errorf("noticed %v", cause)
	}
	select {
	case <-cause.Tightened():
	case <-time.After(10 * time.Second):
	}
	if left := time.Until(cause.Deadline()); left < 105*time.Second {
		t.Errorf("after the Spot notice %v are left", left)
	}
}

func TestTheAutoScalingStateOfTheSimulatorIsNoticedAndCompleted(t *testing.T) {
	t.Parallel()
	m := instanceAt(t, simulator(t, "asglifecycle", "--asg-termination-delay-sec", "2"))
	completed := ""
	ctx, stop := interruption.Watch(t.Context(), m.Spot(), m.AutoScaling(interruption.AutoScalingConfig{
		Grace:    time.Minute,
		Complete: func(_ context.Context, id string) error { completed = id; return nil },
	}))
	cause := mustEnd(t, ctx, time.Now())
	if left := time.Until(cause.Deadline()); cause.Source() != "Auto Scaling" || cause.Action() != "Terminated" || left < 50*time.Second || left > 55*time.Second {
		t.Errorf("noticed %v, %v left", cause, left)
	}
	stop()
	if !strings.HasPrefix(completed, "i-") {
		t.Errorf("completed for %q", completed)
	}
}
