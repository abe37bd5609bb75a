package worker

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// JSON is a handler of messages whose body is a T in JSON. A body that can't be decoded is a [Permanent] failure, a
// [*DecodeError] that says where and why, and nothing of what is in the body. Fields that T doesn't know are ignored, as
// producers are deployed before consumers; see [JSONWith].
//
// Unlike encoding/json, a body of null is no T unless T can be nil: it would be handled as if all fields were zero.
func JSON[T any](f func(context.Context, *Message, T) error) Handler {
	return JSONWith(JSONConfig{}, f)
}

// JSONConfig tunes [JSONWith]. The zero value is that of [JSON].
type JSONConfig struct {
	// DisallowUnknownFields refuses bodies with fields that T doesn't have. A producer that adds one then breaks its
	// consumers.
	DisallowUnknownFields bool
	// UseNumber decodes a number in an interface value as a [json.Number], so that integers above 2^53 keep their digits.
	UseNumber bool
}

// JSONWith is [JSON] with a configuration.
func JSONWith[T any](cfg JSONConfig, f func(context.Context, *Message, T) error) Handler {
	return &jsonHandler[T]{cfg, f}
}

type jsonHandler[T any] struct {
	cfg JSONConfig
	f   func(context.Context, *Message, T) error
}

func (h *jsonHandler[T]) check(*Config) error {
	if h.f == nil {
		return fmt.Errorf("worker: JSON[%v] has no function", reflect.TypeFor[T]())
	}
	return nil
}

func (h *jsonHandler[T]) Handle(ctx context.Context, m *Message) error {
	if err := h.check(nil); err != nil {
		return err
	}
	var v T
	if err := h.cfg.decode([]byte(m.Body), &v, ""); err != nil {
		return Permanent(err)
	}
	return h.f(ctx, m, v)
}

// DecodeError is a body that isn't what its handler takes: where, and why. Nothing of the body is in it, so that it may
// be logged and sent to a dead-letter queue as the reason.
type DecodeError struct {
	// Wanted is what the body should have been: a Go type, or the name of a format.
	Wanted string
	// Field is the path to the value that is wrong, such as lines[2].price; empty for the body itself. Names are those of
	// the Go type; keys of a map are *, as they are content.
	Field string
	// Offset is the place in the body where that value begins, or where the body stops being JSON, in bytes from 0; -1 when
	// something is missing, or only the field is known.
	Offset int64
	// Problem says what is wrong there.
	Problem string
}

func (e *DecodeError) Error() string {
	where := "it"
	switch {
	case e.Field != "" && e.Offset >= 0:
		where = fmt.Sprintf("field %s, at byte %d,", e.Field, e.Offset)
	case e.Field != "":
		where = "field " + e.Field
	case e.Offset >= 0:
		where = fmt.Sprintf("at byte %d it", e.Offset)
	}
	return fmt.Sprintf("worker: the body can't be read as %s: %s %s", e.Wanted, where, e.Problem)
}

// decode decodes a body into v, a pointer. wanted names it; by default its type does.
func (c JSONConfig) decode(body []byte, v any, wanted string) error {
	t := reflect.TypeOf(v).Elem()
	if wanted == "" {
		wanted = t.String()
	}
	err := c.unmarshal(body, v)
	switch {
	case err != nil:
		p := c.diagnose(body, t)
		return &DecodeError{Wanted: wanted, Field: p.field, Offset: p.offset, Problem: p.problem}
	case !nilable(t) && bytes.Equal(bytes.TrimSpace(body), []byte("null")):
		return &DecodeError{Wanted: wanted, Offset: int64(bytes.IndexByte(body, 'n')), Problem: "is null"}
	}
	return nil
}

func (c JSONConfig) unmarshal(body []byte, v any) error {
	if c == (JSONConfig{}) {
		return json.Unmarshal(body, v)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if c.DisallowUnknownFields {
		dec.DisallowUnknownFields()
	}
	if c.UseNumber {
		dec.UseNumber()
	}
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more after the value")
	}
	return nil
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// decodesItself tells whether a type, or a pointer to it, has a method that decodes it.
func decodesItself(t reflect.Type) bool {
	for _, x := range []reflect.Type{t, reflect.PointerTo(t)} {
		if x.Implements(jsonUnmarshaler) || x.Implements(textUnmarshaler) {
			return true
		}
	}
	return false
}

func nilable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return decodesItself(t)
}

// problem is what a DecodeError says of a body.
type problem struct {
	field   string
	offset  int64
	problem string
}

// diagnose finds out what is wrong with a body that couldn't be decoded. The errors of encoding/json quote the body, those
// of types that decode themselves may too and don't say where; so it looks for the value itself.
func (c JSONConfig) diagnose(body []byte, t reflect.Type) problem {
	var syntax *json.SyntaxError
	if err := json.Unmarshal(body, new(json.RawMessage)); errors.As(err, &syntax) {
		if strings.HasPrefix(syntax.Error(), "unexpected end") {
			return problem{"", int64(len(body)), "ends too early"}
		}
		return problem{"", max(syntax.Offset-1, 0), "isn't JSON"}
	}
	begin := len(body) - len(trimLeft(body))
	l := &locator{cfg: c, decodes: 10_000, bytes: 8 << 20}
	return l.locate(bytes.TrimSpace(body), t, "", int64(begin), 100)
}

// locator decodes a document part by part until it has the smallest part that its type refuses. What it may spend on that
// is bounded, as the document may be there to make it work hard; then it names the part that it had come to.
type locator struct {
	cfg     JSONConfig
	decodes int // left
	bytes   int // left
}

func (l *locator) fails(doc []byte, t reflect.Type) bool {
	l.decodes--
	l.bytes -= len(doc)
	return l.cfg.unmarshal(doc, reflect.New(t).Interface()) != nil
}

func (l *locator) locate(raw []byte, t reflect.Type, path string, offset int64, depth int) problem {
	for t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	here := problem{path, offset, complaint(raw, t)}
	if decodesItself(t) || depth == 0 {
		return here
	}
	element := isElement(raw, t)
	member := isMember(raw, t)
	if !element && !member {
		return here
	}
	found := here
	eachChild(raw, func(key string, index, start int, child []byte) (more bool) {
		if l.decodes <= 0 || l.bytes <= 0 {
			return false
		}
		at := offset + int64(start)
		if element {
			if !l.fails(child, t.Elem()) {
				return true
			}
			found = l.locate(child, t.Elem(), path+"["+strconv.Itoa(index)+"]", at, depth-1)
			return false
		}
		if !l.fails(object(key, child), t) {
			return true
		}
		found = l.locateMember(key, child, t, path, at, depth)
		return false
	})
	return found
}

// locateMember goes on in the member of an object that its type refuses.
func (l *locator) locateMember(key string, child []byte, t reflect.Type, path string, at int64, depth int) problem {
	if t.Kind() == reflect.Map {
		if !l.fails(child, t.Elem()) {
			return problem{path, at, fmt.Sprintf("has a key that isn't %s", article(t.Key()))}
		}
		return l.locate(child, t.Elem(), dotted(path, "*"), at, depth-1)
	}
	f, name, ok := fieldOf(t, key)
	if !ok {
		return problem{path, at, "has a field that the type doesn't have"}
	}
	if quoted(f) {
		return problem{dotted(path, name), at, complaint(child, f.Type) + " in quotes"}
	}
	return l.locate(child, f.Type, dotted(path, name), at, depth-1)
}

func isElement(raw []byte, t reflect.Type) bool {
	return raw[0] == '[' && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array)
}

func isMember(raw []byte, t reflect.Type) bool {
	return raw[0] == '{' && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map)
}

func trimLeft(body []byte) []byte { return bytes.TrimLeft(body, " \t\r\n") }

func dotted(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func object(key string, value []byte) []byte {
	k, _ := json.Marshal(key) // a string always can be
	doc := make([]byte, 0, len(k)+len(value)+3)
	doc = append(append(append(doc, '{'), k...), ':')
	return append(append(doc, value...), '}')
}

// eachChild walks the members of an object or the elements of an array, which are valid JSON.
func eachChild(raw []byte, f func(key string, index, start int, child []byte) (more bool)) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return
	}
	for i := 0; dec.More(); i++ {
		key := ""
		if raw[0] == '{' {
			token, err := dec.Token()
			if err != nil {
				return
			}
			key, _ = token.(string)
		}
		var child json.RawMessage
		if err := dec.Decode(&child); err != nil {
			return
		}
		if !f(key, i, int(dec.InputOffset())-len(child), child) {
			return
		}
	}
}

// fieldOf finds the field that encoding/json fills from a key, and the name that it has in JSON.
func fieldOf(t reflect.Type, key string) (field reflect.StructField, name string, ok bool) {
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Tag.Get("json") == "-" || (f.Anonymous && tag == "") {
			continue
		}
		n := tag
		if n == "" {
			n = f.Name
		}
		if n == key {
			return f, n, true
		}
		if !ok && strings.EqualFold(n, key) {
			field, name, ok = f, n, true
		}
	}
	return field, name, ok
}

func quoted(f reflect.StructField) bool {
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return strings.Contains(","+options+",", ",string,")
}

// complaint says what a value is and what it should be, not what is in it.
func complaint(raw []byte, t reflect.Type) string {
	is := kindOf(raw)
	switch {
	case decodesItself(t):
		return fmt.Sprintf("is %s that %v doesn't take", is, t)
	case is == "a number" && t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64:
		return fmt.Sprintf("is a number that doesn't fit %s", article(t))
	case isElement(raw, t) || isMember(raw, t):
		return fmt.Sprintf("is %s in which something doesn't fit %s", is, article(t))
	}
	return fmt.Sprintf("is %s, must be %s", is, article(t))
}

func kindOf(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

func article(t reflect.Type) string {
	name := t.String()
	if strings.ContainsRune("aeiou", rune(name[0])) && !strings.HasPrefix(name, "uint") {
		return "an " + name
	}
	return "a " + name
}
