package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

func s3Record(key string) string {
	return `{"eventVersion":"2.1","eventSource":"aws:s3","awsRegion":"eu-west-1","eventTime":"2026-11-30T12:00:00.123Z","eventName":"ObjectCreated:Put",
		"userIdentity":{"principalId":"AWS:X"},"s3":{"s3SchemaVersion":"1.0","configurationId":"c","bucket":{"name":"uploads","arn":"arn:aws:s3:::uploads"},
		"object":{"key":"` + key + `","size":1024,"eTag":"d41d8cd9","versionId":"v1","sequencer":"0A1B2C"}}}`
}

func s3Notification(keys ...string) string {
	records := make([]string, len(keys))
	for i, key := range keys {
		records[i] = s3Record(key)
	}
	return `{"Records":[` + strings.Join(records, ",") + `]}`
}

const s3TestEvent = `{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2026-11-30T12:00:00.000Z","Bucket":"uploads","RequestId":"R","HostId":"H"}`

func eventBridge(key string) string {
	return `{"version":"0","id":"17793124-05d4","detail-type":"Object Created","source":"aws.s3","account":"123456789012","time":"2026-11-30T12:00:00Z","region":"eu-west-1",
		"resources":["arn:aws:s3:::uploads"],"detail":{"version":"0","bucket":{"name":"uploads"},"object":{"key":"` + key + `","size":5,"etag":"b1946ac9","version-id":"v2","sequencer":"00617F08299329D189"},
		"request-id":"N4N7GDK58NMKJ12R","requester":"123456789012","source-ip-address":"1.2.3.4","reason":"PutObject"}}`
}

// keysOf runs S3Events over a body.
func keysOf(body string) (keys []string, err error) {
	err = handleBody(worker.S3Events(func(_ context.Context, _ *worker.Message, e worker.S3Event) error {
		keys = append(keys, e.Bucket+"/"+e.Key)
		return nil
	}), body)
	return keys, err
}

func TestKeysAreDecodedAsTheyWereEncoded(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"a space":                     {s3Notification("my+file.txt"), "uploads/my file.txt"},
		"a plus":                      {s3Notification("a%2Bb.txt"), "uploads/a+b.txt"},
		"percent":                     {s3Notification("100%25.txt"), "uploads/100%.txt"},
		"a slash and UTF-8":           {s3Notification("dir/f%C3%BCr%20dich%3Dx"), "uploads/dir/für dich=x"},
		"EventBridge doesn't encode":  {eventBridge("my+file %41.txt"), "uploads/my+file %41.txt"},
		"several records":             {s3Notification("a", "b+c"), "uploads/a uploads/b c"},
		"test event":                  {s3TestEvent, ""},
		"an order of fields":          {` ` + s3Notification("x"), "uploads/x"},
		"a later minor version's too": {strings.Replace(s3Notification("x"), `"2.1"`, `"2.9","new":{}`, 1), "uploads/x"},
	} {
		keys, err := keysOf(c.body)
		if err != nil || strings.Join(keys, " ") != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, keys, err, c.want)
		}
	}
}

func TestEventsOfBothShapesAreTheSame(t *testing.T) {
	var got []worker.S3Event
	h := worker.S3Events(func(_ context.Context, _ *worker.Message, e worker.S3Event) error {
		if len(e.Raw) == 0 {
			t.Error("no Raw")
		}
		e.Raw = nil
		got = append(got, e)
		return nil
	})
	_ = handleBody(h, s3Notification("k"))
	_ = handleBody(h, eventBridge("k"))
	want := []worker.S3Event{
		{Name: "ObjectCreated:Put", Bucket: "uploads", Key: "k", VersionID: "v1", ETag: "d41d8cd9", Size: 1024, Sequencer: "0A1B2C", Time: time.Date(2026, 11, 30, 12, 0, 0, 123e6, time.UTC), Region: "eu-west-1"},
		{Name: "Object Created", Bucket: "uploads", Key: "k", VersionID: "v2", ETag: "b1946ac9", Size: 5, Sequencer: "00617F08299329D189", Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Region: "eu-west-1"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v", got)
	}
	for name, created := range map[string]bool{"ObjectCreated:Put": true, "Object Created": true, "ObjectRemoved:Delete": false, "Object Deleted": false, "ObjectTagging:Put": false} {
		e := worker.S3Event{Name: name}
		if e.Created() != created || e.Removed() != strings.Contains(name, "Remove") && !strings.Contains(name, "Deleted") {
			t.Errorf("%s: created %v, removed %v", name, e.Created(), e.Removed())
		}
	}
}

func TestSequencersCompareAsFilledUpHexadecimals(t *testing.T) {
	for _, c := range []struct {
		this, other string
		newer       bool
	}{{"0B", "0A", true}, {"0A", "0B", false}, {"0A", "0A", false}, {"0A", "0A00", false}, {"0A01", "0A", true}, {"0a01", "0A00FF", true}, {"", "0A", true}, {"0A", "", true}} {
		if got := (worker.S3Event{Sequencer: c.this}).NewerThan(c.other); got != c.newer {
			t.Errorf("%q newer than %q: %v", c.this, c.other, got)
		}
	}
}

func TestWhatIsNoS3EventFailsAndSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		body, err string
		permanent bool
	}{
		"not JSON":              {"x", "isn't JSON", true},
		"another document":      {`{"secret": 1}`, "neither a notification of S3", true},
		"another test event":    {`{"Event": "s3:Other"}`, "neither a notification of S3", true},
		"no records":            {`{"Records": []}`, "field Records is empty", true},
		"records of others":     {strings.Replace(s3Notification("secret"), "aws:s3", "aws:ses", 1), "field Records[0].eventSource isn't aws:s3", true},
		"a key that's no key":   {s3Notification("secret%zz"), "field Records[0].s3.object.key isn't URL-encoded", true},
		"no key":                {s3Notification("a", ""), "field Records[1].s3.object.key is missing", true},
		"a size that's none":    {strings.Replace(s3Notification("k"), "1024", `"secret"`, 1), "field Records[0].s3.object.size is a string", true},
		"the next version":      {strings.Replace(s3Notification("k"), `"2.1"`, `"3.0"`, 1), "Records[0].eventVersion isn't 2.x", false},
		"an unopened envelope":  {envelope(s3Notification("k"), nil), "is an SNS envelope: put worker.SNS", true},
		"EventBridge, no key":   {eventBridge(""), "field detail.object.key is missing", true},
		"EventBridge, no type":  {strings.Replace(eventBridge("k"), "detail-type", "x", 1), "field detail-type is missing", true},
		"EventBridge of others": {strings.Replace(eventBridge("k"), "aws.s3", "aws.ec2", 1), "neither", true},
	} {
		keys, err := keysOf(c.body)
		if err == nil || len(keys) > 0 || !strings.Contains(err.Error(), c.err) || isPermanent(err) != c.permanent || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %q, %v, want %q", name, keys, err, c.err)
		}
	}
}

func TestOneFailedObjectFailsItsMessage(t *testing.T) {
	calls := 0
	err := handleBody(worker.S3Events(func(_ context.Context, _ *worker.Message, e worker.S3Event) error {
		calls++
		if e.Key == "b" {
			return errors.New("no such object")
		}
		return nil
	}), s3Notification("a", "b", "c"))
	if calls != 2 || err == nil || err.Error() != "no such object" {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestS3TestEventIsConsumedOnce(t *testing.T) {
	each(t, map[string]string{"from S3": s3TestEvent, "through SNS": envelope(s3TestEvent, nil)}, func(t *testing.T, body string) {
		q := newQueueWithDLQ(t, 3)
		q.MustSend(q.url, body)
		w := q.start(worker.S3Events(func(context.Context, *worker.Message, worker.S3Event) error {
			t.Error("the function was called")
			return nil
		}), worker.Config{Middleware: []worker.Middleware{worker.SNS(topic)}})
		time.Sleep(time.Hour)
		q.mustBeEmpty()
		q.mustHaveHappened(sqsmodel.Received, 1)
		q.mustHaveHappened(sqsmodel.Deleted, 1)
		w.mustStop()
	})
}

func FuzzS3Events(f *testing.F) {
	for _, body := range []string{s3Notification("a+b"), s3TestEvent, eventBridge("k"), `{"Records":[null]}`, `{"Records":[{"s3":[]}]}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		h := worker.SNS(topic)(worker.S3Events(func(_ context.Context, _ *worker.Message, e worker.S3Event) error {
			if e.Bucket == "" || e.Key == "" || e.Name == "" {
				t.Errorf("an event without bucket, key or name from %q", body)
			}
			return nil
		}))
		_ = handleBody(h, body)
	})
}
