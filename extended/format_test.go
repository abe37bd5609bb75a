package extended_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sqsworker/sqsworker/extended"
)

// vector is a message as another library writes it, or a receipt handle as Java's library returns it.
type vector struct {
	Name, Body, Payload        string
	Attributes                 map[string]types.MessageAttributeValue
	Raw, Bucket, Key, Modified string
}

func vectors(t *testing.T) (messages []vector, handle vector) {
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Name == "receipt-handle" {
			handle = v
		} else {
			messages = append(messages, v)
		}
	}
	if len(messages) != 5 || handle.Raw == "" {
		t.Fatalf("%d message vectors", len(messages))
	}
	return messages, handle
}

const vectorBucket = "example-bucket"

func TestMessagesOfEveryLibraryAreRead(t *testing.T) {
	messages, _ := vectors(t)
	for _, v := range messages {
		t.Run(v.Name, func(t *testing.T) {
			bubble(t, func(w *world) {
				if err := w.s3.backend.CreateBucket(vectorBucket); err != nil {
					t.Fatal(err)
				}
				w.s3.put(vectorBucket, "0123abcd-0123-4567-89ab-0123456789ab", v.Payload)
				w.sendRaw(v.Body, v.Attributes)
				c, err := extended.New(w.Client(), w.s3.client(), extended.Config{Bucket: vectorBucket})
				if err != nil {
					t.Fatal(err)
				}
				got := w.receive(c)
				if len(got) != 1 || *got[0].Body != v.Payload || len(got[0].MessageAttributes) > 0 {
					t.Errorf("received %d messages, attributes %v", len(got), got[0].MessageAttributes)
				}
			})
		})
	}
}

func TestMessagesAreWrittenAsEveryFormHasThem(t *testing.T) {
	messages, _ := vectors(t)
	forms := map[string]extended.Form{
		"java-1.1-to-2.x-default":        extended.FormJava2,
		"java-legacy-attribute-disabled": extended.FormExtendedPayloadSize,
		"python-default":                 extended.FormExtendedPayloadSize,
		"java-1.0.x":                     extended.FormJava1,
		"python-legacy-attribute":        extended.FormJava1,
	}
	for _, v := range messages {
		t.Run(v.Name, func(t *testing.T) {
			bubble(t, func(w *world) {
				if err := w.s3.backend.CreateBucket(vectorBucket); err != nil {
					t.Fatal(err)
				}
				c, err := extended.New(w.Client(), w.s3.client(), extended.Config{Bucket: vectorBucket, AlwaysS3: true, Form: forms[v.Name]})
				if err != nil {
					t.Fatal(err)
				}
				w.send(c, v.Payload)
				keys := w.s3.keys(vectorBucket)
				if len(keys) != 1 || w.s3.get(vectorBucket, keys[0]) != v.Payload {
					t.Fatalf("keys %v", keys)
				}
				got := w.receiveRaw()
				want := strings.Replace(v.Body, "0123abcd-0123-4567-89ab-0123456789ab", keys[0], 1)
				if strings.HasPrefix(v.Name, "python") { // the same but for its white space
					want = strings.NewReplacer(`", {`, `",{`, `": "`, `":"`, `", "`, `","`).Replace(want)
				}
				if *got.Body != want {
					t.Errorf("body\n%s, want\n%s", *got.Body, want)
				}
				if d := cmp.Diff(v.Attributes, got.MessageAttributes, cmpopts.IgnoreUnexported(types.MessageAttributeValue{})); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

func TestReceiptHandlesAreJavas(t *testing.T) {
	_, v := vectors(t)
	at := extended.Pointer{Bucket: v.Bucket, Key: v.Key}
	if got := extended.Embed(at, v.Raw); got != v.Modified {
		t.Errorf("embedded\n%s, want\n%s", got, v.Modified)
	}
	raw, got, ok := extended.Split(v.Modified)
	if raw != v.Raw || got != at || !ok {
		t.Errorf("split into %q, %v, %v", raw, got, ok)
	}
}

func TestAnyKeyAndHandleSurviveEmbedding(t *testing.T) {
	for _, key := range []string{"k", "a b+c/ü.bin", "p/x-..s3Key..-y", "-..s3BucketName..-", `"quoted"\`} {
		for _, raw := range []string{"AQEB-wJn/+=", "-", ""} {
			at := extended.Pointer{Bucket: "b-1.x", Key: key}
			gotRaw, got, ok := extended.Split(extended.Embed(at, raw))
			if gotRaw != raw || got != at || !ok {
				t.Errorf("key %q, handle %q: got %q, %v, %v", key, raw, gotRaw, got, ok)
			}
		}
	}
	for _, raw := range []string{"", "AQEB", "-..s3BucketName..-", "-..s3BucketName..-b-..s3BucketName..-", "-..s3BucketName..-b-..s3BucketName..--..s3Key..-k"} {
		if got, _, ok := extended.Split(raw); got != raw || ok {
			t.Errorf("the plain handle %q became %q", raw, got)
		}
	}
}

func TestKeysWithAnyCharactersAreFound(t *testing.T) {
	each(t, map[string]string{
		"space": "orders/a b", "plus": "orders/a+b", "percent": "orders/a%20b", "unicode": "orders/ü/日本", "quote": `orders/"x"`, "ampersand": "orders/a&b<c>",
	}, func(w *world, key string) {
		w.s3.put(bucket, key, "the payload")
		body, err := json.Marshal([]any{"any.class.Name", map[string]string{"s3BucketName": bucket, "s3Key": key}})
		if err != nil {
			w.t.Fatal(err)
		}
		w.sendRaw(string(body), reserved(len("the payload")))
		c := w.client(extended.Config{})
		got := w.receive(c)
		if len(got) != 1 || *got[0].Body != "the payload" {
			w.t.Fatalf("received %d messages", len(got))
		}
		if _, err := c.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.url, ReceiptHandle: got[0].ReceiptHandle}); err != nil {
			w.t.Fatal(err)
		}
		if keys := w.s3.keys(bucket); len(keys) > 0 || w.left() > 0 {
			w.t.Errorf("left: %d messages, objects %q", w.left(), keys)
		}
	})
}

func TestOnlyTheStructureOfAPointerCounts(t *testing.T) {
	accepted := map[string]string{
		"any class":       `["x",{"s3BucketName":"b","s3Key":"k"}]`,
		"white space":     " [ \"x\" ,\n\t{ \"s3BucketName\" : \"b\" , \"s3Key\" : \"k\" } ] ",
		"reordered keys":  `["x",{"s3Key":"k","s3BucketName":"b"}]`,
		"further keys":    `["x",{"s3BucketName":"b","s3Key":"k","more":[1]}]`,
		"escaped unicode": `["x",{"s3BucketName":"\u0062","s3Key":"\u006b"}]`,
	}
	for name, body := range accepted {
		p, found, err := extended.ReadPointer(body, reserved(3))
		if want := (extended.Pointer{Bucket: "b", Key: "k", Size: 3}); err != nil || !found || p != want {
			t.Errorf("%s: %v, %v, %v", name, p, found, err)
		}
	}
	refused := map[string]string{
		"empty": "", "null": "null", "object": `{"s3BucketName":"b","s3Key":"k"}`, "one element": `["x"]`, "three elements": `["x",{"s3BucketName":"b","s3Key":"k"},1]`,
		"no class": `[1,{"s3BucketName":"b","s3Key":"k"}]`, "null class": `[null,{"s3BucketName":"b","s3Key":"k"}]`, "string": `["x","y"]`, "null object": `["x",null]`,
		"other case": `["x",{"S3BUCKETNAME":"b","S3KEY":"k"}]`, "no key": `["x",{"s3BucketName":"b"}]`, "no bucket": `["x",{"s3Key":"k"}]`,
		"empty key": `["x",{"s3BucketName":"b","s3Key":""}]`, "null key": `["x",{"s3BucketName":"b","s3Key":null}]`, "number": `["x",{"s3BucketName":"b","s3Key":1}]`,
		"more behind it": `["x",{"s3BucketName":"b","s3Key":"k"}] x`, "long key": `["x",{"s3BucketName":"b","s3Key":"` + strings.Repeat("k", 1025) + `"}]`,
		"huge": `["x",{"s3BucketName":"b","s3Key":"k","pad":"` + strings.Repeat("k", 1<<20) + `"}]`, "NUL in the key": `["x",{"s3BucketName":"b","s3Key":"\u0000"}]`,
	}
	for name, body := range refused {
		if p, found, err := extended.ReadPointer(body, reserved(3)); err == nil || !found || p != (extended.Pointer{}) {
			t.Errorf("%s: %v, %v, %v", name, p, found, err)
		}
	}
}

func TestADeclaredSizeMustBeOne(t *testing.T) {
	body := pointerTo("b", "k")
	for name, attributes := range map[string]map[string]types.MessageAttributeValue{
		"text": {"SQSLargePayloadSize": text("3")}, "negative": {"SQSLargePayloadSize": number(-1)}, "none": {"SQSLargePayloadSize": {}},
		"two sizes": {"SQSLargePayloadSize": number(1), "ExtendedPayloadSize": number(2)},
	} {
		if _, found, err := extended.ReadPointer(body, attributes); err == nil || !found {
			t.Errorf("%s: %v", name, err)
		}
	}
	both := map[string]types.MessageAttributeValue{"SQSLargePayloadSize": number(2), "ExtendedPayloadSize": number(2)}
	if p, _, err := extended.ReadPointer(body, both); err != nil || p.Size != 2 {
		t.Errorf("both alike: %v, %v", p, err)
	}
}

func TestABodyThatLooksLikeAPointerIsJustABody(t *testing.T) {
	bubble(t, func(w *world) {
		w.s3.put(bucket, "orders/secret", "secret")
		body := pointerTo(bucket, "orders/secret")
		c := w.client(extended.Config{})
		w.send(c, body)
		got := w.receive(c)
		if len(got) != 1 || *got[0].Body != body || strings.Contains(*got[0].ReceiptHandle, "s3Key") {
			t.Errorf("received %v", *got[0].Body)
		}
		if n := len(w.s3.called("")); n > 0 {
			t.Errorf("%d S3 calls", n)
		}
	})
}

func FuzzPointer(f *testing.F) {
	messages, handle := vectors(&testing.T{})
	for _, v := range messages {
		f.Add(v.Body, "6", handle.Modified)
	}
	f.Add(`["x",{"s3BucketName":null,"s3Key":[]}]`, "-1", "-..s3BucketName..-b-..s3BucketName..--..s3Key..--..s3Key..-")
	f.Add(`[[[[`, "99999999999999999999", "")
	f.Fuzz(func(t *testing.T, body, size, handle string) {
		attributes := map[string]types.MessageAttributeValue{"ExtendedPayloadSize": {DataType: aws.String("Number"), StringValue: &size}}
		if p, found, err := extended.ReadPointer(body, attributes); err == nil {
			if !found || p.Bucket == "" || p.Key == "" || p.Size < 0 {
				t.Errorf("%+v from %q", p, body)
			}
			again, _, err := extended.ReadPointer(extended.FormJava2.Body(p), attributes)
			if err != nil || again != p {
				t.Errorf("%+v was written and read as %+v, %v", p, again, err)
			}
		}
		if _, found, _ := extended.ReadPointer(body, nil); found {
			t.Error("believed without its attribute")
		}
		if raw, p, ok := extended.Split(handle); ok && extended.Embed(p, raw) != handle {
			t.Errorf("%q became %q", handle, extended.Embed(p, raw))
		}
	})
}
