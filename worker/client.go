package worker

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/heartbeat"
)

// Client is what a [Worker] calls. *sqs.Client satisfies it.
//
// The worker passes options with its calls: SDK retries off (it has its own, which end with the lease and don't
// share the client's retry quota), the SDK's MD5 check off (one bad body would cost the nine messages received
// with it; the worker checks each), and, where the client has the SDK's own BuildableClient, a copy of it with as
// many idle connections as the worker has open receives. A wrapper should pass them on.
type Client interface {
	heartbeat.Client
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error)
	GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
}

// receiveSlack is how much longer than its wait a receive may take before it is given up.
const receiveSlack = 10 * time.Second

// callOptions returns the per-call options: for receives, and for everything else.
func callOptions(c Client, cfg Config) (receive, other []func(*sqs.Options)) {
	plain := func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }
	receive = []func(*sqs.Options){plain, func(o *sqs.Options) { o.DisableMessageChecksumValidation = true }}
	other = []func(*sqs.Options){plain}
	if cfg.WaitTime == ShortPoll {
		receive = append(receive, forceShortPoll)
	}
	configured, ok := c.(interface{ Options() sqs.Options })
	if !ok {
		return receive, other
	}
	remember := rememberEndpoint(configured.Options())
	receive, other = append(receive, remember), append(other, remember)
	if client, ok := configured.Options().HTTPClient.(*awshttp.BuildableClient); ok {
		tuned := tune(client, cfg)
		use := func(o *sqs.Options) { o.HTTPClient = tuned }
		receive, other = append(receive, use), append(other, use)
	}
	return append(receive, readBody), other
}

// tune copies the SDK's HTTP client for this worker's calls: the default keeps ten idle connections to a host,
// so that more open receives than that would each dial anew, and a total timeout below the wait would break off
// every empty receive.
func tune(client *awshttp.BuildableClient, cfg Config) aws.HTTPClient {
	connections := 2*receivesAtMost(cfg.Concurrency+cfg.Prefetch) + 64 // receives, deletes, renewals
	if t := client.GetTimeout(); t > 0 && t < cfg.waitTime()+receiveSlack {
		client = client.WithTimeout(0) // every call of ours has a deadline of its own
	}
	return client.WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = max(t.MaxIdleConnsPerHost, connections)
		if t.MaxIdleConns != 0 {
			t.MaxIdleConns = max(t.MaxIdleConns, connections)
		}
		if t.ResponseHeaderTimeout > 0 {
			t.ResponseHeaderTimeout = max(t.ResponseHeaderTimeout, cfg.waitTime()+receiveSlack)
		}
	})
}

// checkTimeouts looks at a client of the user's own, which the worker doesn't tune.
func checkTimeouts(c Client, cfg Config) error {
	configured, ok := c.(interface{ Options() sqs.Options })
	if !ok {
		return nil
	}
	client, ok := configured.Options().HTTPClient.(*http.Client)
	if !ok {
		return nil
	}
	wait := cfg.waitTime()
	if client.Timeout > 0 && client.Timeout <= wait {
		return fmt.Errorf("worker: the client's http.Client.Timeout is %v: must be more than WaitTime, %v, or every empty receive is broken off and can leave messages invisible", client.Timeout, wait)
	}
	if t, ok := client.Transport.(*http.Transport); ok && t != nil && t.ResponseHeaderTimeout > 0 && t.ResponseHeaderTimeout <= wait {
		return fmt.Errorf("worker: the client's http.Transport.ResponseHeaderTimeout is %v: must be more than WaitTime, %v, or every empty receive is broken off and can leave messages invisible", t.ResponseHeaderTimeout, wait)
	}
	return nil
}

// checkQueueURL finds the mistakes that SQS would answer in riddles.
func checkQueueURL(c Client, queueURL string) error {
	u, err := url.Parse(queueURL)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || strings.Trim(u.Path, "/") == "" {
		return fmt.Errorf("worker: queue URL %q: must be one as GetQueueUrl returns it, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders", queueURL)
	}
	configured, ok := c.(interface{ Options() sqs.Options })
	if !ok {
		return nil
	}
	o := configured.Options()
	region, isAWS := awsRegion(u.Hostname())
	if isAWS && o.BaseEndpoint == nil && o.Region != "" && o.Region != region {
		return fmt.Errorf("worker: the queue is in %s but the client is in %s: SQS answers for its own Region only; give the client config.WithRegion(%q)", region, o.Region, region)
	}
	return nil
}

// awsRegion takes the Region out of sqs.REGION.amazonaws.com and REGION.queue.amazonaws.com.
func awsRegion(host string) (string, bool) {
	parts := strings.Split(host, ".")
	switch {
	case !strings.Contains(host, ".amazonaws.com"):
	case len(parts) >= 4 && parts[0] == "sqs":
		return parts[1], true
	case len(parts) >= 4 && parts[1] == "queue":
		return parts[0], true
	}
	return "", false
}

func queueName(queueURL string) string {
	return queueURL[strings.LastIndexByte(strings.TrimRight(queueURL, "/"), '/')+1:]
}
