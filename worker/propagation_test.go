package worker_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sqsworker/sqsworker/worker"
)

// inSpan is a context as a producer has it, with baggage.
func inSpan(t *testing.T) (context.Context, trace.SpanContext) {
	t.Helper()
	ctx, span := newTracing(t).provider.Tracer("producer").Start(context.Background(), "checkout")
	member, err := baggage.NewMember("tenant", "acme")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	return baggage.ContextWithBaggage(ctx, bag), span.SpanContext()
}

func header(in *sqs.SendMessageInput) string {
	return aws.ToString(in.MessageSystemAttributes["AWSTraceHeader"].StringValue)
}

func TestInjectKeepsToTheLimitsOfAMessage(t *testing.T) {
	both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	const traceparent = len("traceparent") + len("String") + 55
	for name, c := range map[string]struct {
		injector   worker.Injector
		attributes int
		body       int
		want       []string // the fields among the attributes
	}{
		"room for all":                        {worker.Injector{Propagator: both}, 8, 10, []string{"baggage", "traceparent"}},
		"room for one: the trace context":     {worker.Injector{Propagator: both}, 9, 10, []string{"traceparent"}},
		"all ten used":                        {worker.Injector{Propagator: both}, 10, 10, nil},
		"one is wanted later":                 {worker.Injector{MaxAttributes: 9}, 9, 10, nil},
		"as large as older queues take":       {worker.Injector{}, 0, 262_144 - traceparent + 1, nil},
		"just below it":                       {worker.Injector{}, 0, 262_144 - traceparent, []string{"traceparent"}},
		"larger than older queues take":       {worker.Injector{}, 0, 262_145, []string{"traceparent"}},
		"as large as SQS takes":               {worker.Injector{}, 0, 1_048_576, nil},
		"the queue's own limit":               {worker.Injector{MaxMessageSize: 1024}, 0, 1000, nil},
		"above the limit that was configured": {worker.Injector{MaxMessageSize: 1024}, 0, 2000, []string{"traceparent"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, from := inSpan(t)
			own := tenAttributes(c.attributes)
			in := &sqs.SendMessageInput{MessageBody: aws.String(strings.Repeat("x", c.body)), MessageAttributes: own}
			c.injector.Message(ctx, in)
			if len(own) != c.attributes {
				t.Error("the caller's map was written to")
			}
			if want := c.attributes + len(c.want); len(in.MessageAttributes) != want {
				t.Errorf("%d attributes, want %d", len(in.MessageAttributes), want)
			}
			for _, field := range c.want {
				if in.MessageAttributes[field].StringValue == nil {
					t.Errorf("%s is missing", field)
				}
			}
			id, span := from.TraceID().String(), from.SpanID().String()
			if want := fmt.Sprintf("Root=1-%s-%s;Parent=%s;Sampled=1", id[:8], id[8:], span); header(in) != want {
				t.Errorf("X-Ray's header is %q, want %q", header(in), want)
			}
		})
	}
}

func TestInjectReplacesWhatAnotherSpanLeft(t *testing.T) {
	ctx, from := inSpan(t)
	stale := func(v string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &v}
	}
	for _, others := range []int{0, 8} { // with eight others, all ten are used before and after
		own := tenAttributes(others)
		maps.Copy(own, map[string]types.MessageAttributeValue{"traceparent": stale("00-11111111111111111111111111111111-2222222222222222-01"), "tracestate": stale("old=1")})
		in := &sqs.SendMessageInput{MessageBody: aws.String("b"), MessageAttributes: own}
		worker.Inject(ctx, in)
		if got := aws.ToString(in.MessageAttributes["traceparent"].StringValue); !strings.Contains(got, from.SpanID().String()) {
			t.Errorf("traceparent is %q, want the producer's", got)
		}
		if _, ok := in.MessageAttributes["tracestate"]; ok {
			t.Error("the tracestate of another trace is left")
		}
	}
}

func TestInjectLeavesAMessageAloneWithoutASpan(t *testing.T) {
	in := &sqs.SendMessageInput{MessageBody: aws.String("b")}
	worker.Inject(context.Background(), in)
	worker.Inject(context.Background(), nil)
	worker.InjectBatch(context.Background(), nil)
	if in.MessageAttributes != nil || in.MessageSystemAttributes != nil {
		t.Errorf("%v %v were written", in.MessageAttributes, in.MessageSystemAttributes)
	}
}

func TestInjectLeavesAHeaderThatIsThere(t *testing.T) {
	ctx, _ := inSpan(t)
	const own = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
	in := &sqs.SendMessageInput{MessageBody: aws.String("b"), MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
		"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String(own)}}}
	worker.Inject(ctx, in)
	if header(in) != own {
		t.Errorf("X-Ray's header is %q now", header(in))
	}
}

func TestInjectKeepsABatchWithinItsLimit(t *testing.T) {
	ctx, _ := inSpan(t)
	const each = 104_857 // ten of them are six bytes short of 1 MiB
	in := &sqs.SendMessageBatchInput{}
	for i := range 10 {
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: aws.String(strings.Repeat("x", each))})
	}
	entries := in.Entries
	worker.InjectBatch(ctx, in)
	for i, e := range in.Entries {
		if len(e.MessageAttributes) != 0 {
			t.Errorf("entry %d got attributes, over the batch's limit", i)
		}
		if e.MessageSystemAttributes["AWSTraceHeader"].StringValue == nil {
			t.Errorf("entry %d has no context at all", i)
		}
		if entries[i].MessageSystemAttributes != nil {
			t.Error("the caller's entries were written to")
		}
	}
	in.Entries = entries[:2:2]
	worker.InjectBatch(ctx, in)
	for i, e := range in.Entries {
		if len(e.MessageAttributes) == 0 {
			t.Errorf("entry %d of a small batch got no attributes", i)
		}
	}
}

func FuzzXRayHeader(f *testing.F) {
	f.Add("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1")
	f.Add("Sampled=?;Parent=53995C3F42CD8AD8;Root=1-5759E988-BD862E3FE1BE46A994272793;Lineage=a:1|b:2")
	f.Add("Root=1-;Parent=;Sampled")
	f.Add(";;=;Root=1-zzzzzzzz-bd862e3fe1be46a994272793")
	f.Fuzz(func(t *testing.T, header string) {
		from := worker.ParseXRay(header)
		if !from.IsValid() {
			return
		}
		if again := worker.ParseXRay(worker.FormatXRay(from)); again.TraceID() != from.TraceID() || again.SpanID() != from.SpanID() || again.IsSampled() != from.IsSampled() {
			t.Errorf("%q is read as %v, written and read again as %v", header, from, again)
		}
	})
}
