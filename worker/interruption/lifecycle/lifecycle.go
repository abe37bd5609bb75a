// Package lifecycle completes an Auto Scaling lifecycle action, so that a group needn't wait for its hook's timeout once a
// worker has drained. It is apart from package interruption because it links the Auto Scaling client.
package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
)

// Client is the part of *autoscaling.Client that is used.
type Client interface {
	CompleteLifecycleAction(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
}

// Complete returns a function for interruption.AutoScalingConfig.Complete: it tells the group's hook to let the termination
// go on (CONTINUE). The instance's role needs autoscaling:CompleteLifecycleAction on the group. When the action is over
// already, because the hook's timeout was shorter than the drain, it returns what Auto Scaling says.
func Complete(c Client, group, hook string) func(ctx context.Context, instanceID string) error {
	return func(ctx context.Context, instanceID string) error {
		if group == "" || hook == "" {
			return errors.New("lifecycle: Complete needs the names of the Auto Scaling group and of its lifecycle hook")
		}
		_, err := c.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
			AutoScalingGroupName: &group, LifecycleHookName: &hook, InstanceId: &instanceID, LifecycleActionResult: aws.String("CONTINUE"),
		})
		if err != nil {
			return fmt.Errorf("lifecycle: hook %s of group %s: %w", hook, group, err)
		}
		return nil
	}
}
