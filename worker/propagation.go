package worker

import (
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	// xrayField is under which name X-Ray's propagator looks for its header; in a message it is AWSTraceHeader.
	xrayField  = "X-Amzn-Trace-Id"
	xraySystem = string(types.MessageSystemAttributeNameForSendsAWSTraceHeader)

	maxAttributes  = 10        // of one message
	maxMessage     = 1_048_576 // bytes, and of one batch
	smallerMessage = 262_144   // what queues were limited to until 2025, and many still are
)

// Inject writes the context of the span in ctx into a message that is about to be sent, so that whoever receives it can
// link to it. Without a span in ctx the message stays as it is. It is [Injector.Message] of the zero Injector.
func Inject(ctx context.Context, in *sqs.SendMessageInput) { Injector{}.Message(ctx, in) }

// InjectBatch does so for every message of a batch.
func InjectBatch(ctx context.Context, in *sqs.SendMessageBatchInput) { Injector{}.Batch(ctx, in) }

// Injector writes the context of a span into messages that are about to be sent. The zero value is ready; it is safe for
// concurrent use.
//
// It writes the propagator's fields (traceparent, tracestate) as message attributes, and X-Ray's AWSTraceHeader unless
// there is one. SQS takes at most ten attributes for a message and counts them in its size; the header is beyond both
// limits. So when the fields don't fit, the header alone carries the context, and [Worker] reads it. Fields that are there
// already, from a message that is forwarded say, are replaced: they name another span. The caller's maps aren't written to.
type Injector struct {
	// Propagator says what is written. Default: the global one if one is set, otherwise propagation.TraceContext.
	Propagator propagation.TextMapPropagator
	// MaxAttributes is how many attributes a message may end up with. From 1 to 10, which is the default; a client that adds
	// one later, as the extended one does, leaves room for it.
	MaxAttributes int
	// MaxMessageSize is a limit that attributes must not carry a message over: a queue's MaximumMessageSize, or the size
	// above which a message is stored elsewhere. In any case they don't carry one over 256 KiB, which many queues are still
	// limited to, nor over 1 MiB. Default: those two alone.
	MaxMessageSize int
}

// Message writes the context into one message.
func (i Injector) Message(ctx context.Context, in *sqs.SendMessageInput) {
	if in == nil {
		return
	}
	fields := i.fields(ctx)
	if len(fields) == 0 {
		return
	}
	size := len(aws.ToString(in.MessageBody)) + attributesSize(in.MessageAttributes)
	if grown, ok := i.add(fields, in.MessageAttributes, size, 0); ok {
		in.MessageAttributes = grown
	} else {
		in.MessageAttributes = without(in.MessageAttributes, fields)
	}
	in.MessageSystemAttributes = withHeader(ctx, fields, in.MessageSystemAttributes)
}

// Batch writes the context into every message of a batch.
func (i Injector) Batch(ctx context.Context, in *sqs.SendMessageBatchInput) {
	if in == nil {
		return
	}
	fields := i.fields(ctx)
	if len(fields) == 0 {
		return
	}
	total := 0
	for _, e := range in.Entries {
		total += len(aws.ToString(e.MessageBody)) + attributesSize(e.MessageAttributes)
	}
	in.Entries = slices.Clone(in.Entries)
	for n := range in.Entries {
		e := &in.Entries[n]
		before := attributesSize(e.MessageAttributes)
		size := len(aws.ToString(e.MessageBody)) + before
		if grown, ok := i.add(fields, e.MessageAttributes, size, total); ok {
			e.MessageAttributes = grown
		} else {
			e.MessageAttributes = without(e.MessageAttributes, fields)
		}
		total += attributesSize(e.MessageAttributes) - before
		e.MessageSystemAttributes = withHeader(ctx, fields, e.MessageSystemAttributes)
	}
}

// fields are what the propagator writes for ctx; none when ctx has no span.
func (i Injector) fields(ctx context.Context) propagation.MapCarrier {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	fields := propagation.MapCarrier{}
	orDefaultPropagator(i.Propagator).Inject(ctx, fields)
	maps.DeleteFunc(fields, func(_, value string) bool { return value == "" }) // SQS takes no empty values
	return fields
}

// add adds the fields as attributes, if they fit. What fits is all or the fields of W3C's trace context: a traceparent
// without its baggage is worth having, a tracestate without a traceparent isn't.
func (i Injector) add(fields propagation.MapCarrier, have map[string]types.MessageAttributeValue, size, total int) (map[string]types.MessageAttributeValue, bool) {
	names := slices.Sorted(maps.Keys(fields))
	for _, keep := range [][]string{names, {"traceparent", "tracestate"}, {"traceparent"}} {
		grown, any := without(have, fields), false
		for _, name := range keep {
			if value, ok := fields[name]; ok && name != xrayField {
				grown = put(grown, name, value)
				any = true
			}
		}
		grew := attributesSize(grown) - attributesSize(have)
		if any && len(grown) <= i.most() && !i.crosses(size, grew, i.MaxMessageSize, smallerMessage, maxMessage) && !i.crosses(total, grew, smallerMessage, maxMessage) {
			return grown, true
		}
	}
	return nil, false
}

func (i Injector) most() int {
	if i.MaxAttributes > 0 {
		return min(i.MaxAttributes, maxAttributes)
	}
	return maxAttributes
}

// crosses tells whether growing would carry a size over a limit that it keeps to now.
func (i Injector) crosses(size, grew int, limits ...int) bool {
	for _, limit := range limits {
		if limit > 0 && size <= limit && size+grew > limit {
			return true
		}
	}
	return false
}

// put adds an attribute to a copy that may be written to.
func put(attributes map[string]types.MessageAttributeValue, name, value string) map[string]types.MessageAttributeValue {
	if attributes == nil {
		attributes = map[string]types.MessageAttributeValue{}
	}
	attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	return attributes
}

// without is a copy less what another span left of the fields.
func without(attributes map[string]types.MessageAttributeValue, fields propagation.MapCarrier) map[string]types.MessageAttributeValue {
	rest := maps.Clone(attributes)
	maps.DeleteFunc(rest, func(name string, _ types.MessageAttributeValue) bool {
		_, stale := fields[name]
		return stale || name == "tracestate" && fields["traceparent"] != ""
	})
	return rest
}

// withHeader adds X-Ray's header, unless there is one.
func withHeader(ctx context.Context, fields propagation.MapCarrier, attributes map[string]types.MessageSystemAttributeValue) map[string]types.MessageSystemAttributeValue {
	if _, ok := attributes[xraySystem]; ok {
		return attributes
	}
	header := fields[xrayField] // X-Ray's own propagator knows best
	if header == "" {
		header = formatXRay(trace.SpanContextFromContext(ctx))
	}
	attributes = maps.Clone(attributes)
	if attributes == nil {
		attributes = map[string]types.MessageSystemAttributeValue{}
	}
	attributes[xraySystem] = types.MessageSystemAttributeValue{DataType: aws.String("String"), StringValue: &header}
	return attributes
}

func attributesSize(attributes map[string]types.MessageAttributeValue) int {
	size := 0
	for name, v := range attributes {
		size += len(name) + len(aws.ToString(v.DataType)) + len(aws.ToString(v.StringValue)) + len(v.BinaryValue)
	}
	return size
}

// extract reads what the producer sent along; nil when there is nothing.
func extract(p propagation.TextMapPropagator, m *types.Message) context.Context {
	header := m.Attributes[string(types.MessageSystemAttributeNameAWSTraceHeader)]
	if len(m.MessageAttributes) == 0 && header == "" {
		return nil
	}
	ctx := p.Extract(context.Background(), carrier{m, header})
	if header != "" && !trace.SpanContextFromContext(ctx).IsValid() {
		if from := parseXRay(header); from.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, from)
		}
	}
	if ctx == context.Background() {
		return nil
	}
	return ctx
}

// carrier is a received message as propagators read one.
type carrier struct {
	m      *types.Message
	header string
}

func (c carrier) Get(key string) string {
	if strings.EqualFold(key, xrayField) {
		return c.header
	}
	return aws.ToString(c.m.MessageAttributes[key].StringValue)
}

func (c carrier) Set(string, string) {} // it is only read

func (c carrier) Keys() []string {
	keys := slices.Collect(maps.Keys(c.m.MessageAttributes))
	if c.header != "" {
		keys = append(keys, xrayField)
	}
	return keys
}

// X-Ray's header is "Root=1-TTTTTTTT-RRRRRRRRRRRRRRRRRRRRRRRR;Parent=PPPPPPPPPPPPPPPP;Sampled=1": the trace id of W3C, split after
// eight digits, the span id, and the decision, which may be "?" for none yet. Other fields may be anywhere.

func parseXRay(header string) trace.SpanContext {
	var cfg trace.SpanContextConfig
	for field := range strings.SplitSeq(header, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "Root":
			digits, ok := strings.CutPrefix(value, "1-")
			if ok && len(digits) == 33 && digits[8] == '-' {
				cfg.TraceID, _ = trace.TraceIDFromHex(strings.ToLower(digits[:8] + digits[9:]))
			}
		case "Parent":
			cfg.SpanID, _ = trace.SpanIDFromHex(strings.ToLower(value))
		case "Sampled":
			if value == "1" {
				cfg.TraceFlags = trace.FlagsSampled
			}
		}
	}
	cfg.Remote = true
	return trace.NewSpanContext(cfg)
}

func formatXRay(s trace.SpanContext) string {
	id, span := s.TraceID(), s.SpanID()
	sampled := "0"
	if s.IsSampled() {
		sampled = "1"
	}
	return "Root=1-" + hex.EncodeToString(id[:4]) + "-" + hex.EncodeToString(id[4:]) + ";Parent=" + hex.EncodeToString(span[:]) + ";Sampled=" + sampled
}
