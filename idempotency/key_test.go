package idempotency_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/worker"
)

func TestAJSONFieldIsTheKeyAsItIsWritten(t *testing.T) {
	body := `{"order":{"id":"o1","n":12345678901234567890,"price":1.10,"lines":[{"sku":"a"},{"sku":"b"}]},"a.b":"dotted","c/d":"slashed","~":"tilde","ok":true,"tags":{"y":1,"x":2}}`
	for path, want := range map[string]string{
		"order.id": "o1", "order.n": "12345678901234567890", "order.price": "1.10", "order.lines.1.sku": "b", "/order/lines/0/sku": "a",
		"/a.b": "dotted", "/c~1d": "slashed", "/~0": "tilde", "ok": "true", "tags": `{"x":2,"y":1}`,
		"a.b": "", "order.lines.2.sku": "", "order.lines.-1": "", "order.id.x": "", "": "", "/": "",
	} {
		got, err := idempotency.JSONField(path)(&worker.Message{Body: body})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v; want %q", path, got, err, want)
		}
	}
}

func TestAnAttributeIsTheKey(t *testing.T) {
	m := &worker.Message{Attributes: map[string]types.MessageAttributeValue{
		"s": {DataType: aws.String("String"), StringValue: aws.String("x")}, "b": {DataType: aws.String("Binary"), BinaryValue: []byte("x")}}}
	if k, err := idempotency.Attribute("s")(m); k != "x" || err != nil {
		t.Errorf("got %q, %v", k, err)
	}
	if _, err := idempotency.Attribute("b")(m); err == nil {
		t.Error("a binary attribute was a key")
	}
}

// Which messages are the same work, and which are not.
func TestRecordsAreToldApartByNamespaceAndKey(t *testing.T) {
	type call struct{ namespace, key string }
	long, longer := strings.Repeat("k", 3000), strings.Repeat("k", 3001)
	calls := []call{{"", "k"}, {"a", "k"}, {"a", "k2"}, {"", "a#k"}, {"a", "#k"}, {"a", long}, {"a", longer}, {"a", "\xff"}, {"a", "\xfe"}, {"a", "\ufffd"}}
	d := newDynamo()
	store := d.newTable(t, testTable)
	for round := range 2 {
		for i, c := range calls {
			g := newGuard(t, store, idempotency.Config{Namespace: c.namespace})
			got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: c.key}, func(context.Context) (string, error) { return fmt.Sprint(round, i), nil })
			if want := fmt.Sprint(0, i); got != want || err != nil {
				t.Errorf("round %d, %q in %q: got %q, %v; want %q", round, c.key[:1], c.namespace, got, err, want)
			}
		}
	}
}

func TestTheCacheForgetsTheOldestAndTheOneWithALargeResult(t *testing.T) {
	d := newDynamo()
	g := newGuard(t, d.newTable(t, testTable), idempotency.Config{CacheSize: 2})
	do := func(key, result string) (calls int) {
		before := d.count("UpdateItem")
		got, err := idempotency.Do(t.Context(), g, idempotency.Call{Key: key}, func(context.Context) (string, error) { return result, nil })
		if got != result || err != nil {
			t.Errorf("%s: got %d bytes, %v", key, len(got), err)
		}
		return d.count("UpdateItem") - before
	}
	large := strings.Repeat("x", 5000)
	for i, step := range []struct {
		key, result string
		calls       int
	}{{"a", "1", 2}, {"b", "2", 2}, {"a", "1", 0}, {"c", "3", 2}, {"a", "1", 0}, {"c", "3", 0}, {"b", "2", 1}, {"large", large, 2}, {"large", large, 1}} {
		if n := do(step.key, step.result); n != step.calls {
			t.Errorf("step %d, %s: %d calls, want %d", i, step.key, n, step.calls)
		}
	}
}
