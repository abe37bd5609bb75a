package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
)

// job is what a message asks for, whatever its shape.
type job struct {
	name  string // for people
	event bool   // an S3 event notification

	// How it will go is in the data, so that it is the same in any worker, process and run.
	slow        bool // orders of 10,000 and more are looked at by a person; objects from 100 MiB on take their time
	failsOnce   bool // at first the payment of orders whose number ends in 7 gets no answer
	alwaysFails bool // negative amounts are refunds, which nobody here can handle
	deleteFails bool // orders whose number ends in 533 or 566 are handled, but SQS refuses their first delete
}

const (
	slowAmount = 10_000
	slowObject = 100 << 20
)

var errShape = errors.New(`unknown shape: must be {"order":4521,"amount":500} or an S3 event notification`)

// parse reads a message's body.
func parse(body string) (job, error) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal([]byte(body), &fields)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType) || err == nil && fields == nil:
		return job{}, errShape
	case err != nil:
		return job{}, fmt.Errorf("not JSON: %w", err)
	case fields["order"] != nil:
		return parseOrder(fields)
	case fields["Records"] != nil:
		return parseEvent(fields["Records"])
	case string(fields["Event"]) == `"s3:TestEvent"`:
		return job{name: "S3 test event", event: true}, nil // S3 sends one when a notification is set up
	}
	return job{}, errShape
}

func parseOrder(fields map[string]json.RawMessage) (job, error) {
	var number int64
	if err := json.Unmarshal(fields["order"], &number); err != nil || number <= 0 {
		return job{}, fmt.Errorf(`unknown shape: "order" is %s: must be a whole number above 0`, short(string(fields["order"])))
	}
	amount, ok := fields["amount"]
	if !ok {
		return job{}, errors.New(`unknown shape: an order without "amount"`)
	}
	var value *float64
	if err := json.Unmarshal(amount, &value); err != nil || value == nil {
		return job{}, fmt.Errorf(`unknown shape: "amount" is %s: must be a number`, short(string(amount)))
	}
	return job{
		name:        fmt.Sprintf("order %d", number),
		slow:        *value >= slowAmount,
		failsOnce:   number%10 == 7,
		alwaysFails: *value < 0,
		deleteFails: number%1000 == 533 || number%1000 == 566,
	}, nil
}

// record is the part of an S3 event notification that matters here. New minor versions of the format add fields, so
// unknown ones are no mistake.
type record struct {
	EventVersion string `json:"eventVersion"`
	EventSource  string `json:"eventSource"`
	EventName    string `json:"eventName"`
	S3           struct {
		Bucket struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key  string `json:"key"`
			Size int64  `json:"size"`
		} `json:"object"`
	} `json:"s3"`
}

func parseEvent(raw json.RawMessage) (job, error) {
	var records []record
	if err := json.Unmarshal(raw, &records); err != nil {
		return job{}, fmt.Errorf("unknown shape: Records aren't those of an S3 event notification: %w", err)
	}
	if len(records) == 0 {
		return job{}, errors.New("unknown shape: an S3 event notification without Records")
	}
	var j job
	for i, r := range records {
		if err := r.check(); err != nil {
			return job{}, fmt.Errorf("unknown shape: Records[%d]: %w", i, err)
		}
		j.slow = j.slow || r.S3.Object.Size >= slowObject
	}
	first := records[0]
	key, err := url.QueryUnescape(first.S3.Object.Key) // S3 encodes keys: a space arrives as +
	if err != nil {
		return job{}, fmt.Errorf("unknown shape: the object key %s isn't URL-encoded", short(first.S3.Object.Key))
	}
	j.event, j.name = true, short("s3://"+first.S3.Bucket.Name+"/"+key)
	return j, nil
}

func (r record) check() error {
	major, _, _ := strings.Cut(r.EventVersion, ".")
	switch {
	case r.EventSource != "aws:s3":
		return fmt.Errorf(`eventSource is %q: must be "aws:s3"`, short(r.EventSource))
	case major != "2":
		return fmt.Errorf(`eventVersion is %q: must be 2.x`, short(r.EventVersion))
	case r.EventName == "":
		return errors.New("eventName is missing")
	case r.S3.Bucket.Name == "" || r.S3.Object.Key == "":
		return errors.New("the bucket's name or the object's key is missing")
	}
	return nil
}

// short makes text from a message fit to be printed: one line of a terminal, and nothing that would steer it.
func short(s string) string {
	const most = 60
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}
