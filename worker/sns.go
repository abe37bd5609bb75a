package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SNS is middleware for a queue that is subscribed to SNS topics: it hands on what the publisher sent, Body and
// Attributes, instead of the envelope that SNS packs it into. [SNSNotificationFrom] has the rest of the envelope.
//
// Only envelopes of the topics named are opened, by their ARNs. Everything else is passed on as it is: messages of a
// subscription with raw message delivery, messages that were sent to the queue directly, envelopes of other topics.
// An envelope of a named topic that can't be read is a [Permanent] failure; so is a request to confirm a subscription,
// which somebody must do by hand (the URL in it is never called).
//
// The signature in the envelope is not verified. Whoever may send to the queue can forge an envelope, so let the
// queue's policy allow sqs:SendMessage to sns.amazonaws.com alone, on condition that aws:SourceArn is the topic.
func SNS(topicARNs ...string) Middleware {
	topics := slices.Clone(topicARNs)
	return func(next Handler) Handler { return &snsHandler{topics, next} }
}

type snsHandler struct {
	topics []string
	next   Handler
}

func (h *snsHandler) check(cfg *Config) error {
	var errs []error
	if len(h.topics) == 0 {
		errs = append(errs, errors.New("worker: SNS has no topic: name the ARNs of those whose envelopes are to be opened"))
	}
	for _, arn := range h.topics {
		if parts := strings.Split(arn, ":"); len(parts) != 6 || parts[0] != "arn" || parts[2] != "sns" || slices.Contains(parts, "") {
			errs = append(errs, fmt.Errorf("worker: SNS topic %q: must be a topic's ARN, such as arn:aws:sns:eu-west-1:123456789012:orders", arn))
		}
	}
	if h.next == nil {
		return errors.Join(append(errs, errors.New("worker: SNS wraps no handler"))...)
	}
	return errors.Join(append(errs, checkHandler(h.next, cfg))...)
}

// SNSNotification is what SNS says about a message besides what the publisher sent.
type SNSNotification struct {
	// MessageID is SNS's own, the same in every queue that is subscribed, and in each of SNS's own redeliveries.
	MessageID string
	// TopicARN is the topic that it was published to.
	TopicARN string
	// Subject is the publisher's; often empty.
	Subject string
	// PublishedAt is when SNS accepted it.
	PublishedAt time.Time
}

type snsKey struct{}

// SNSNotificationFrom returns the envelope that [SNS] opened, false when the message had none.
func SNSNotificationFrom(ctx context.Context) (SNSNotification, bool) {
	n, ok := ctx.Value(snsKey{}).(SNSNotification)
	return n, ok
}

// snsEnvelope is SNS's JSON. Publishers' messages have any shape, so no type in it may fail to decode before it is known
// to be an envelope.
type snsEnvelope struct {
	Type              string
	TopicArn          string
	MessageId         string
	Subject           *string
	Message           *string
	Timestamp         time.Time
	MessageAttributes map[string]struct{ Type, Value string }
}

func (h *snsHandler) Handle(ctx context.Context, m *Message) error {
	if !h.opens(m.Body) {
		return h.next.Handle(ctx, m)
	}
	var e snsEnvelope
	if err := (JSONConfig{}).decode([]byte(m.Body), &e, "SNS envelope"); err != nil {
		return Permanent(err)
	}
	switch {
	case e.Type == "SubscriptionConfirmation" || e.Type == "UnsubscribeConfirmation":
		return Permanent(fmt.Errorf("worker: SNS sent a %s for topic %s, which is never done by itself: confirm by hand, with the Token in the message", e.Type, e.TopicArn))
	case e.Message == nil:
		return Permanent(&DecodeError{"SNS envelope", "Message", -1, "is missing"})
	}
	attributes, err := e.attributes(m)
	if err != nil {
		return Permanent(err)
	}
	inner := m.WithBody(*e.Message)
	inner.Attributes = attributes
	ctx = context.WithValue(ctx, snsKey{}, SNSNotification{
		MessageID: e.MessageId, TopicARN: e.TopicArn, Subject: aws.ToString(e.Subject), PublishedAt: e.Timestamp,
	})
	err = h.next.Handle(ctx, inner)
	m.Attempt = inner.Attempt // an idempotency record further in may know better
	return err
}

// opens tells whether a body is an envelope of one of our topics.
func (h *snsHandler) opens(body string) bool {
	if !strings.Contains(body, "TopicArn") {
		return false // what a queue with raw delivery brings isn't decoded
	}
	var head struct{ Type, TopicArn json.RawMessage }
	if json.Unmarshal([]byte(body), &head) != nil {
		return false
	}
	var kind, topic string
	if json.Unmarshal(head.Type, &kind) != nil || json.Unmarshal(head.TopicArn, &topic) != nil {
		return false
	}
	return slices.Contains(h.topics, topic) &&
		(kind == "Notification" || kind == "SubscriptionConfirmation" || kind == "UnsubscribeConfirmation")
}

// attributes are those in the envelope, and what else the SQS message has.
func (e *snsEnvelope) attributes(m *Message) (map[string]types.MessageAttributeValue, error) {
	if len(e.MessageAttributes) == 0 {
		return m.Attributes, nil
	}
	all := make(map[string]types.MessageAttributeValue, len(m.Attributes)+len(e.MessageAttributes))
	maps.Copy(all, m.Attributes)
	for name, a := range e.MessageAttributes {
		value := types.MessageAttributeValue{DataType: aws.String(a.Type)}
		if a.Type == "Binary" || strings.HasPrefix(a.Type, "Binary.") {
			raw, err := base64.StdEncoding.DecodeString(a.Value)
			if err != nil {
				return nil, &DecodeError{"SNS envelope", "MessageAttributes.*.Value", -1, "is Binary and not base64"}
			}
			value.BinaryValue = raw
		} else {
			value.StringValue = aws.String(a.Value)
		}
		all[name] = value
	}
	return all, nil
}
