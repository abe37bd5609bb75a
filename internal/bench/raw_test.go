package bench

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// A loop that asks for less would win for the wrong reason.
func TestTheRawLoopAsksForTheSameAttributesAsTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &receiveSpy{Client: sqsmodel.New(sqsmodel.Config{}).Client()}
		out, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("jobs")})
		if err != nil {
			t.Fatal(err)
		}
		nothing := worker.HandlerFunc(func(context.Context, *worker.Message) error { return nil })
		w, err := worker.New(client, *out.QueueUrl, nothing, worker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if want := attributeSets["same"]; !slices.Equal(slices.Sorted(slices.Values(client.system)), slices.Sorted(slices.Values(want))) {
			t.Errorf("the worker asks for %v, the raw loop for %v", client.system, want)
		}
		if !slices.Equal(client.user, []string{"All"}) {
			t.Errorf("the worker asks for the message attributes %v, the raw loop for All", client.user)
		}
	})
}

// receiveSpy notes what a receive asks for.
type receiveSpy struct {
	*sqs.Client
	system []types.MessageSystemAttributeName
	user   []string
}

func (c *receiveSpy) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	c.system, c.user = in.MessageSystemAttributeNames, in.MessageAttributeNames
	return c.Client.ReceiveMessage(ctx, in, opts...)
}
