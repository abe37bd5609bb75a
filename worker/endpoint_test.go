package worker_test

import (
	"context"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	smithyendpoints "github.com/aws/smithy-go/endpoints"

	"github.com/sqsworker/sqsworker/worker"
)

// ownResolver is a resolver of the user's, which may answer differently each time.
type ownResolver struct{ asked atomic.Int64 }

func (r *ownResolver) ResolveEndpoint(context.Context, sqs.EndpointParameters) (smithyendpoints.Endpoint, error) {
	r.asked.Add(1)
	at, err := url.Parse("https://sqs.us-east-1.amazonaws.com")
	if err != nil {
		return smithyendpoints.Endpoint{}, err
	}
	return smithyendpoints.Endpoint{URI: *at}, nil
}

func TestAResolverOfTheUsersIsAskedEachTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(t)
		own := &ownResolver{}
		client := q.Client(func(o *sqs.Options) { o.BaseEndpoint, o.EndpointResolverV2 = nil, own })
		w := q.startWith(client, worker.HandlerFunc(succeed), worker.Config{})
		for range 5 {
			q.send(1)
			time.Sleep(time.Second)
		}
		w.mustStop()
		if calls := q.Count(""); own.asked.Load() < calls-1 {
			t.Errorf("asked %d times for %d calls", own.asked.Load(), calls)
		}
		q.mustBeEmpty()
	})
}
