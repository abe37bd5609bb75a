package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// S3Events is a handler of S3 event notifications, as S3 sends them to SQS, directly or through SNS (with [SNS] before it),
// and as EventBridge does. It calls f for each object that a message tells about, one after the other; S3 sends one object a
// message, though its format has room for more. At the first error the message fails, and f sees all of its objects
// again when the message comes back.
//
// Keys are decoded: S3 encodes them in notifications, as in a URL's query, EventBridge doesn't. The test event that S3
// sends when a notification is set up is deleted without a call of f. A body that is no S3 event is a [Permanent]
// failure with a [*DecodeError]; an event in a version that came after this code isn't permanent, as a newer worker may
// read it.
//
// S3 delivers at least once and out of order: compare [S3Event.Sequencer] with [S3Event.NewerThan].
func S3Events(f func(context.Context, *Message, S3Event) error) Handler { return &s3Handler{f} }

// S3Event is what happened to one object.
type S3Event struct {
	// Name is what happened: ObjectCreated:Put and the like from S3, the detail-type, such as Object Created, from
	// EventBridge. Created and Removed tell for both.
	Name string
	// Bucket is the bucket's name.
	Bucket string
	// Key is the object's key, decoded.
	Key string
	// VersionID is the object's version; empty in a bucket without versions.
	VersionID string
	// ETag is without quotes; empty for removals.
	ETag string
	// Size is in bytes; 0 for removals.
	Size int64
	// Sequencer orders the events of one key, see NewerThan; empty for events that have none.
	Sequencer string
	// Time is when S3 was done with the request.
	Time time.Time
	// Region is the bucket's.
	Region string
	// Raw is the whole record, or the whole EventBridge event, as JSON.
	Raw json.RawMessage
}

// Created tells whether there is a new object or version.
func (e S3Event) Created() bool {
	return strings.HasPrefix(e.Name, "ObjectCreated:") || e.Name == "Object Created"
}

// Removed tells whether an object or version was deleted, by somebody or by a lifecycle rule, or hidden by a delete marker.
func (e S3Event) Removed() bool {
	return strings.HasPrefix(e.Name, "ObjectRemoved:") || strings.HasPrefix(e.Name, "LifecycleExpiration:") || e.Name == "Object Deleted"
}

// NewerThan tells whether the event is later than one of the same bucket and key whose Sequencer was kept. Without
// both sequencers it is true. Sequencers are hexadecimal and of different lengths; as AWS says, the shorter one is
// filled up with zeros on its right.
func (e S3Event) NewerThan(sequencer string) bool {
	if e.Sequencer == "" || sequencer == "" {
		return true
	}
	a, b := strings.ToUpper(e.Sequencer), strings.ToUpper(sequencer)
	length := max(len(a), len(b))
	return a+strings.Repeat("0", length-len(a)) > b+strings.Repeat("0", length-len(b))
}

type s3Handler struct {
	f func(context.Context, *Message, S3Event) error
}

func (h *s3Handler) check(*Config) error {
	if h.f == nil {
		return errors.New("worker: S3Events has no function")
	}
	return nil
}

func (h *s3Handler) Handle(ctx context.Context, m *Message) error {
	if err := h.check(nil); err != nil {
		return err
	}
	events, err := s3Events([]byte(m.Body))
	if err != nil {
		return err
	}
	for _, e := range events {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := h.f(ctx, m, e); err != nil {
			return err
		}
	}
	return nil
}

const s3Wanted = "S3 event"

// s3Body has the fields by which the shapes are told apart.
type s3Body struct {
	Records    []json.RawMessage `json:"Records"`
	Event      string            `json:"Event"`       // "s3:TestEvent"
	Source     string            `json:"source"`      // EventBridge: "aws.s3"
	DetailType string            `json:"detail-type"` // EventBridge
	TopicArn   string            `json:"TopicArn"`    // an SNS envelope that nobody opened
}

// s3Events reads a body; none is what a test event says.
func s3Events(body []byte) ([]S3Event, error) {
	var b s3Body
	if err := (JSONConfig{}).decode(body, &b, s3Wanted); err != nil {
		return nil, Permanent(err)
	}
	switch {
	case len(b.Records) > 0:
		return s3Records(b.Records)
	case b.Event == "s3:TestEvent":
		return nil, nil
	case b.Source == "aws.s3":
		e, err := eventBridgeEvent(body, b.DetailType)
		return []S3Event{e}, err
	case b.TopicArn != "":
		return nil, Permanent(&DecodeError{s3Wanted, "", -1, "is an SNS envelope: put worker.SNS with the topic's ARN before S3Events, or switch on raw message delivery"})
	case b.Records != nil:
		return nil, Permanent(&DecodeError{s3Wanted, "Records", -1, "is empty"})
	}
	return nil, Permanent(&DecodeError{s3Wanted, "", -1, "is neither a notification of S3 nor an event of EventBridge with source aws.s3"})
}

func s3Records(records []json.RawMessage) ([]S3Event, error) {
	events := make([]S3Event, len(records))
	for i, raw := range records {
		e, err := s3Record(raw, fmt.Sprintf("Records[%d]", i))
		if err != nil {
			return nil, err
		}
		events[i] = e
	}
	return events, nil
}

// s3Record reads one record of a notification. New minor versions add fields; a new major version may change them.
func s3Record(raw json.RawMessage, path string) (S3Event, error) {
	var r struct {
		EventVersion string    `json:"eventVersion"`
		EventSource  string    `json:"eventSource"`
		EventName    string    `json:"eventName"`
		EventTime    time.Time `json:"eventTime"`
		AWSRegion    string    `json:"awsRegion"`
		S3           struct {
			Bucket struct {
				Name string `json:"name"`
			} `json:"bucket"`
			Object struct {
				Key       string `json:"key"`
				Size      int64  `json:"size"`
				ETag      string `json:"eTag"`
				VersionID string `json:"versionId"`
				Sequencer string `json:"sequencer"`
			} `json:"object"`
		} `json:"s3"`
	}
	bad := func(field, problem string) (S3Event, error) {
		return S3Event{}, Permanent(&DecodeError{s3Wanted, dotted(path, field), -1, problem})
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		p := JSONConfig{}.diagnose(raw, reflect.TypeOf(r))
		return bad(p.field, p.problem)
	}
	major, _, _ := strings.Cut(r.EventVersion, ".")
	switch {
	case r.EventSource != "aws:s3":
		return bad("eventSource", "isn't aws:s3")
	case major != "2":
		return S3Event{}, fmt.Errorf("worker: %s.eventVersion isn't 2.x, which is what this version of the library reads", path)
	case r.EventName == "":
		return bad("eventName", "is missing")
	case r.S3.Bucket.Name == "":
		return bad("s3.bucket.name", "is missing")
	case r.S3.Object.Key == "":
		return bad("s3.object.key", "is missing")
	}
	key, err := url.QueryUnescape(r.S3.Object.Key)
	if err != nil {
		return bad("s3.object.key", "isn't URL-encoded")
	}
	o := r.S3.Object
	return S3Event{
		Name: strings.TrimPrefix(r.EventName, "s3:"), Bucket: r.S3.Bucket.Name, Key: key, VersionID: o.VersionID, ETag: o.ETag,
		Size: o.Size, Sequencer: o.Sequencer, Time: r.EventTime, Region: r.AWSRegion, Raw: raw,
	}, nil
}

// eventBridgeEvent reads an event of EventBridge, whose keys are as they are.
func eventBridgeEvent(body []byte, name string) (S3Event, error) {
	var e struct {
		Time   time.Time `json:"time"`
		Region string    `json:"region"`
		Detail struct {
			Bucket struct {
				Name string `json:"name"`
			} `json:"bucket"`
			Object struct {
				Key       string `json:"key"`
				Size      int64  `json:"size"`
				ETag      string `json:"etag"`
				VersionID string `json:"version-id"`
				Sequencer string `json:"sequencer"`
			} `json:"object"`
		} `json:"detail"`
	}
	if err := (JSONConfig{}).decode(body, &e, s3Wanted); err != nil {
		return S3Event{}, Permanent(err)
	}
	missing := ""
	switch o := e.Detail.Object; {
	case name == "":
		missing = "detail-type"
	case e.Detail.Bucket.Name == "":
		missing = "detail.bucket.name"
	case o.Key == "":
		missing = "detail.object.key"
	default:
		return S3Event{
			Name: name, Bucket: e.Detail.Bucket.Name, Key: o.Key, VersionID: o.VersionID, ETag: o.ETag, Size: o.Size,
			Sequencer: o.Sequencer, Time: e.Time, Region: e.Region, Raw: body,
		}, nil
	}
	return S3Event{}, Permanent(&DecodeError{s3Wanted, missing, -1, "is missing"})
}
