// Package interruption turns the ways in which a machine says that it is going away into the end of one context, with a
// deadline into which a worker fits its drain.
//
//	ctx, stop := interruption.Watch(context.Background(), interruption.ECS(2*time.Minute))
//	defer stop()
//	err := w.Run(ctx)
//
// [Watch] takes the place of signal.NotifyContext. What differs is that the context's cause, a [*Cause], knows by when the
// process will be killed: [worker.Worker.Run] drains until Config.DrainTimeout or that deadline, whichever is earlier. So set
// DrainTimeout to what your jobs would like to have, and the sources to what the platform gives.
//
// # Sources
//
//   - [Signals], [ECS], [Kubernetes]: SIGTERM and SIGINT, with the grace that is configured outside of the process.
//   - [EC2.Spot]: the Spot interruption notice, two minutes before the instance is stopped or terminated.
//   - [EC2.Rebalance]: the recommendation that may come before it. It is advice: drain, shrink or ignore.
//   - [EC2.AutoScaling]: the target lifecycle state of an instance that its group takes out of service.
//   - [Func], or any [Source]: your own.
//
// The first notice ends the context. Later ones can only make its deadline earlier, which a drain under way follows: a Spot
// notice that comes after SIGTERM, for example.
//
// Fargate has no instance metadata: SIGTERM is the only signal there, for Fargate Spot too. The EC2 sources find that out,
// log one line and end, so one program can use the same sources everywhere.
//
// # Not being chosen in the first place
//
// [TaskProtection] tells ECS, while messages are held, not to choose this task when it scales in or deploys. It is no help
// against Spot interruptions.
//
// # What can't be known
//
// Spot notices are best effort: an instance can be gone without one. Then, and when a process is killed before its deadline,
// the messages that it held come back when their visibility ends: nothing is lost, but it takes that long.
package interruption
