package bench

import (
	"context"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// newClient is an SDK client as config.LoadDefaultConfig would make it, with as many idle connections as asked for;
// 0 leaves the SDK's default of ten.
func newClient(endpoint string, connections int) *sqs.Client {
	transport := awshttp.NewBuildableClient()
	if connections > 0 {
		transport = transport.WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, max(connections, 10)
		})
	}
	return sqs.New(sqs.Options{
		Region:       "us-east-1",
		BaseEndpoint: &endpoint,
		HTTPClient:   transport,
		Credentials:  aws.NewCredentialsCache(credentials{}),
	})
}

// credentials are well-formed and of no use anywhere.
type credentials struct{}

// Retrieve returns them.
func (credentials) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "secret", Source: "bench"}, nil
}
