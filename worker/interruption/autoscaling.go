package interruption

import (
	"context"
	"strings"
	"time"
)

// AutoScalingConfig tunes [EC2.AutoScaling].
type AutoScalingConfig struct {
	// Grace is how long the instance lives on after its group has decided to take it out: the HeartbeatTimeout of the group's
	// terminating lifecycle hook (30 s to 2 h, AWS's default 1 h). Zero or less means 2 minutes. Without a hook the instance is shut
	// down at once; then this source comes too late, and SIGTERM is what counts.
	Grace time.Duration

	// Complete tells the group that this instance is done, so that it needn't wait for the whole of Grace. It is called once, by the
	// stop function of [Watch], and only when the group is taking the instance out. It has 10 s, and is tried up to three times.
	// Package lifecycle has one that calls CompleteLifecycleAction. Default none: the hook's timeout decides. Where several
	// processes of an instance drain, none of them may set it: the first would end them all.
	Complete func(ctx context.Context, instanceID string) error
}

// AutoScaling reports that the instance's Auto Scaling group is taking it out of service: its target lifecycle state is
// Terminated, or Warmed:Terminated, Warmed:Stopped or Warmed:Hibernated where the group has a warm pool. Standby and Detached
// instances live on.
func (m *EC2) AutoScaling(cfg AutoScalingConfig) Source {
	return &autoScaling{m, cfg}
}

type autoScaling struct {
	m   *EC2
	cfg AutoScalingConfig
}

func (a *autoScaling) Start(ctx context.Context, report func(Notice)) (stop func()) {
	instanceID, leaving := "", false
	watched := Func(func(ctx context.Context, report func(Notice)) {
		a.m.poll(ctx, "autoscaling/target-lifecycle-state", func(body string) bool {
			state := strings.TrimSpace(body)
			if !endsInstance(state) {
				return false
			}
			now := time.Now()
			leaving = true
			report(Notice{Source: "Auto Scaling", Action: state, Deadline: before(now.Add(orDefault(a.cfg.Grace, 2*time.Minute)), now)})
			if a.cfg.Complete != nil {
				instanceID, _ = a.m.instanceID(ctx) // tried again when it is needed
			}
			return true
		})
	}).Start(ctx, report)
	return func() {
		watched()
		if leaving && a.cfg.Complete != nil {
			a.complete(context.WithoutCancel(ctx), instanceID)
		}
		leaving = false
	}
}

func endsInstance(state string) bool {
	switch state {
	case "Terminated", "Warmed:Terminated", "Warmed:Stopped", "Warmed:Hibernated":
		return true
	}
	return false
}

// complete lets the group go on. If it can't, the hook's timeout will.
func (a *autoScaling) complete(ctx context.Context, instanceID string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for try := 1; ; try++ {
		var err error
		if instanceID == "" {
			instanceID, err = a.m.instanceID(ctx)
		}
		if err == nil {
			err = a.cfg.Complete(ctx, instanceID)
		}
		if err == nil {
			a.m.cfg.Logger.Info("lifecycle action completed: the group may terminate this instance", "instance", instanceID)
			return
		}
		if try == tries || !sleep(ctx, time.Second) {
			a.m.cfg.Logger.Warn("the lifecycle action could not be completed: the group waits for the hook's timeout", "instance", instanceID, "error", err)
			return
		}
	}
}
