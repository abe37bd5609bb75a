package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Router is a handler that passes each message on by its type.
//
// A message whose type it doesn't know is a failure, [*UnknownTypeError], and comes back: while a new version is rolled
// out, an old worker sees types that a newer one can handle. If nobody can, the queue's redrive policy takes it. It is
// never deleted but by name, in Ignore.
//
// A Router must not be changed once it is in use. It may be the handler of another one.
type Router struct {
	// By finds a message's type: [ByAttribute], [ByJSONField], or a function of yours. Required.
	By TypeFunc
	// Routes are the handlers by type. Types are compared as they are, case included.
	Routes map[string]Handler
	// Ignore lists the types that are deleted without being handled.
	Ignore []string
	// Fallback takes what is neither in Routes nor in Ignore, messages without a type included. Default: none, such
	// messages fail.
	Fallback Handler
}

// TypeFunc finds a message's type; an empty one means that it has none. An error is the message's result, as if a handler
// had returned it.
type TypeFunc func(*Message) (string, error)

// ByAttribute takes the type from a message attribute.
func ByAttribute(name string) TypeFunc {
	return func(m *Message) (string, error) {
		if name == "" {
			return "", errors.New("worker: ByAttribute has no attribute name")
		}
		return m.Attribute(name), nil
	}
}

// ByJSONField takes the type from a string in a JSON body: ByJSONField("type"), or ByJSONField("header", "type") for a field
// in an object. For EventBridge events that is ByJSONField("detail-type"). Names are compared as they are, case included.
// A body that isn't JSON, or whose field isn't a string, is a [Permanent] failure with a [*DecodeError].
func ByJSONField(path ...string) TypeFunc {
	path = slices.Clone(path)
	return func(m *Message) (string, error) {
		if len(path) == 0 {
			return "", errors.New("worker: ByJSONField has no field name")
		}
		return jsonField([]byte(m.Body), path)
	}
}

// jsonField reads the string at a path of object members; it is empty when there is none.
func jsonField(body []byte, path []string) (string, error) {
	const wanted = "JSON object with a type"
	var whole json.RawMessage
	if err := (JSONConfig{}).decode(body, &whole, wanted); err != nil {
		return "", Permanent(err)
	}
	raw, offset, field := []byte(whole), int64(len(body)-len(trimLeft(body))), ""
	for _, name := range path {
		if raw[0] != '{' {
			return "", Permanent(&DecodeError{wanted, field, offset, "is " + kindOf(raw) + ", must be an object"})
		}
		var next []byte
		at := 0
		eachChild(raw, func(key string, _, start int, child []byte) bool {
			if key == name {
				next, at = child, start // the last one counts, as in encoding/json
			}
			return true
		})
		if next == nil || string(next) == "null" {
			return "", nil
		}
		raw, offset, field = next, offset+int64(at), dotted(field, name)
	}
	var value string
	if json.Unmarshal(raw, &value) != nil {
		return "", Permanent(&DecodeError{wanted, field, offset, "is " + kindOf(raw) + ", must be a string"})
	}
	return value, nil
}

// UnknownTypeError is what a [Router] without a fallback returns for a message that it has no handler for.
type UnknownTypeError struct {
	// Type is the message's type; empty when it has none. It comes from the message and may be anything: the error's text
	// has it only if it looks like a type.
	Type string
	// Known are the types that the router knows, sorted.
	Known []string
}

func (e *UnknownTypeError) Error() string {
	const advice = "add it to Router.Routes, or to Router.Ignore if such messages are to be deleted"
	if e.Type == "" {
		return "worker: the message has no type: check what Router.By reads, or set Router.Fallback"
	}
	return fmt.Sprintf("worker: no handler for messages of type %s: %s", shown(e.Type), advice)
}

// shown is a name from a message if it can be shown: short, and of characters that names are made of.
func shown(name string) string {
	if len(name) > 100 {
		return "(of " + strconv.Itoa(len(name)) + " bytes)"
	}
	for _, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' && c != ':' && c != '/' && c != '#' && c != ' ' {
			return "(with characters that a type shouldn't have)"
		}
	}
	return strconv.Quote(name)
}

func (r Router) check(cfg *Config) error {
	var errs []error
	if r.By == nil {
		errs = append(errs, errors.New("worker: Router.By is missing: use worker.ByAttribute or worker.ByJSONField"))
	}
	if len(r.Routes) == 0 && r.Fallback == nil {
		errs = append(errs, errors.New("worker: Router.Routes is empty: it must have a handler for at least one type, or there must be a Fallback"))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Routes)) {
		h := r.Routes[name]
		switch {
		case name == "":
			errs = append(errs, errors.New("worker: Router.Routes has a handler for the empty type: messages without a type go to Fallback"))
		case h == nil:
			errs = append(errs, fmt.Errorf("worker: Router.Routes[%q] is nil: to delete such messages, list the type in Ignore", name))
		case slices.Contains(r.Ignore, name):
			errs = append(errs, fmt.Errorf("worker: Router.Ignore has %q, for which there is a handler in Routes: remove one", name))
		}
		errs = append(errs, checkHandler(h, cfg))
	}
	if slices.Contains(r.Ignore, "") {
		errs = append(errs, errors.New("worker: Router.Ignore has the empty type: messages without a type can't be ignored; give them to Fallback"))
	}
	if r.Fallback != nil {
		errs = append(errs, checkHandler(r.Fallback, cfg))
	}
	return errors.Join(errs...)
}

// Handle passes the message to the handler for its type.
func (r Router) Handle(ctx context.Context, m *Message) error {
	if r.By == nil {
		return r.check(nil)
	}
	name, err := r.By(m)
	if err != nil {
		return err
	}
	switch h := r.Routes[name]; {
	case h != nil && name != "":
		return h.Handle(ctx, m)
	case name != "" && slices.Contains(r.Ignore, name):
		return nil
	case r.Fallback != nil:
		return r.Fallback.Handle(ctx, m)
	}
	return &UnknownTypeError{Type: name, Known: slices.Sorted(maps.Keys(r.Routes))}
}
