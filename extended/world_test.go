package extended_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

const (
	bucket  = "payloads"
	foreign = "somebody-elses"
	prefix  = "orders/"
)

// world is an SQS and an S3 in process, in a bubble of virtual time.
type world struct {
	*sqsmodel.Server
	t   *testing.T
	url string
	s3  *objects
	log *logText
}

func bubble(t *testing.T, f func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newWorld(t, sqsmodel.Config{}, "work", nil)) })
}

func newWorld(t *testing.T, cfg sqsmodel.Config, queue string, attributes map[string]string) *world {
	w := &world{Server: sqsmodel.New(cfg), t: t, s3: newObjects(t), log: &logText{}}
	w.url = w.MustCreateQueue(queue, attributes)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
	return w
}

// client is a Client on this world with the test's bucket and prefix.
func (w *world) client(cfg extended.Config) *extended.Client {
	w.t.Helper()
	c, err := extended.New(w.Client(), w.s3.client(), w.config(cfg))
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) config(cfg extended.Config) extended.Config {
	if cfg.Bucket == "" {
		cfg.Bucket = bucket
	}
	if cfg.KeyPrefix == "" {
		cfg.KeyPrefix = prefix
	}
	cfg.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	return cfg
}

// logText keeps what was logged, by however many loggers.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// send sends one message through c.
func (w *world) send(c *extended.Client, body string) string {
	w.t.Helper()
	out, err := c.SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: &body})
	if err != nil {
		w.t.Fatal(err)
	}
	return *out.MessageId
}

// sendRaw sends a message as any sender with the SDK alone could.
func (w *world) sendRaw(body string, attributes map[string]types.MessageAttributeValue) string {
	w.t.Helper()
	out, err := w.Client().SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: &body, MessageAttributes: attributes})
	if err != nil {
		w.t.Fatal(err)
	}
	return *out.MessageId
}

func (w *world) receive(c *extended.Client) []types.Message {
	w.t.Helper()
	out, err := c.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &w.url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Messages
}

// receiveRaw is one message as SQS has it.
func (w *world) receiveRaw() types.Message {
	w.t.Helper()
	out, err := w.Client().ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{
		QueueUrl: &w.url, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
	})
	if err != nil || len(out.Messages) != 1 {
		w.t.Fatalf("received %d messages, %v", len(out.Messages), err)
	}
	return out.Messages[0]
}

// run works the queue with a handler until stop.
func (w *world) run(c worker.Client, m worker.Middleware, h worker.HandlerFunc, cfg worker.Config) (stop func()) {
	w.t.Helper()
	cfg.Middleware = []worker.Middleware{m}
	cfg.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	cfg.WaitTime = time.Second
	wk, err := worker.New(c, w.url, h, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- wk.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
}

// left is how many messages the queue has.
func (w *world) left() int { return len(w.Queue(w.url).Messages) }

// reserved is the reserved attribute as Java writes it.
func reserved(size int) map[string]types.MessageAttributeValue {
	return map[string]types.MessageAttributeValue{"SQSLargePayloadSize": number(size)}
}

func number(n int) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("Number"), StringValue: aws.String(fmt.Sprint(n))}
}

func text(s string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
}

func pointerTo(bucket, key string) string {
	return fmt.Sprintf(`["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":%q,"s3Key":%q}]`, bucket, key)
}

func large(n int) string { return strings.Repeat("x", n) }

// objects is an S3 in process: gofakes3, with what a test wants to know and to break in front of it.
type objects struct {
	t       *testing.T
	backend *s3mem.Backend
	server  http.Handler

	mu     sync.Mutex
	calls  []call
	faults []*fault
	done   map[string]int // calls that S3 did, by operation
	alter  func(*http.Request, *http.Response)
}

// call is one S3 request.
type call struct {
	op     string // PutObject, GetObject, …
	path   string // /bucket/key
	header http.Header
	at     time.Time
}

// fault is something that goes wrong with one kind of call.
type fault struct {
	op     string
	key    string // in the path, or ""
	times  int    // 0: always
	status int
	code   string
	drop   bool // the connection breaks, before anything happened
	lose   bool // the answer is lost
	cutAt  int  // the body breaks off after as many bytes
	hold   time.Duration
}

func newObjects(t *testing.T) *objects {
	o := &objects{t: t, backend: s3mem.New(), done: map[string]int{}}
	o.server = gofakes3.New(o.backend, gofakes3.WithTimeSkewLimit(0)).Server()
	for _, b := range []string{bucket, foreign} {
		if err := o.backend.CreateBucket(b); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (o *objects) client(optFns ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://s3.test"), UsePathStyle: true, HTTPClient: o,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "SECRET"}, nil
		}),
	}, optFns...)
}

// fails adds a fault.
func (o *objects) fails(f fault) *objects {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = append(o.faults, &f)
	return o
}

func (o *objects) mend() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = nil
}

// Do answers a request in the caller's goroutine.
func (o *objects) Do(r *http.Request) (*http.Response, error) {
	op := operation(r)
	f := o.record(op, r)
	if f.hold > 0 {
		select {
		case <-time.After(f.hold):
		case <-r.Context().Done():
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if f.drop {
		return nil, io.ErrUnexpectedEOF
	}
	if f.status != 0 {
		return o.refusal(r, f), nil
	}
	response := httptest.NewRecorder()
	r = r.Clone(r.Context())
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.ContentLength >= 0 {
		r.Header.Set("Content-Length", fmt.Sprint(r.ContentLength))
	}
	o.server.ServeHTTP(response, r)
	if response.Code < 300 {
		o.mu.Lock()
		o.done[op]++
		o.mu.Unlock()
	}
	if f.lose {
		return nil, io.ErrUnexpectedEOF
	}
	out := response.Result()
	out.Request = r
	if n := response.Body.Len(); r.Method != http.MethodHead && out.ContentLength < 0 {
		out.ContentLength = int64(n)
	}
	if f.cutAt > 0 {
		out.Body = io.NopCloser(io.MultiReader(io.LimitReader(out.Body, int64(f.cutAt)), brokenReader{}))
	}
	if o.alter != nil {
		o.alter(r, out)
	}
	return out, nil
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (o *objects) refusal(r *http.Request, f fault) *http.Response {
	body := fmt.Sprintf(`<?xml version="1.0"?><Error><Code>%s</Code><Message>no</Message></Error>`, f.code)
	if r.Method == http.MethodHead {
		body = ""
	}
	return &http.Response{
		StatusCode: f.status, Header: http.Header{"Content-Type": {"application/xml"}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(body)), Request: r, ProtoMajor: 1, ProtoMinor: 1,
	}
}

func (o *objects) record(op string, r *http.Request) fault {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, call{op, r.URL.Path, r.Header.Clone(), time.Now()})
	for i, f := range o.faults {
		if f.op != op || !strings.Contains(r.URL.Path, f.key) {
			continue
		}
		if f.times == 1 {
			o.faults = slices.Delete(o.faults, i, i+1)
		}
		f.times--
		return *f
	}
	return fault{}
}

func operation(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && q.Has("delete"):
		return "DeleteObjects"
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "CreateMultipartUpload"
	case r.Method == http.MethodPost:
		return "CompleteMultipartUpload"
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "AbortMultipartUpload"
	case r.Method == http.MethodDelete:
		return "DeleteObject"
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return "UploadPart"
	case r.Method == http.MethodPut:
		return "PutObject"
	case r.Method == http.MethodHead:
		return "HeadObject"
	}
	return "GetObject"
}

// called are the calls of one operation, or all ("").
func (o *objects) called(op string) (found []call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.calls {
		if op == "" || c.op == op {
			found = append(found, c)
		}
	}
	return found
}

func (o *objects) forgetCalls() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = nil
}

// keys are those in a bucket.
func (o *objects) keys(bucket string) (keys []string) {
	list, err := o.backend.ListBucket(bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		o.t.Fatal(err)
	}
	for _, c := range list.Contents {
		keys = append(keys, c.Key)
	}
	return keys
}

func (o *objects) put(bucket, key, body string) {
	_, err := o.backend.PutObject(bucket, key, map[string]string{}, strings.NewReader(body), int64(len(body)), nil)
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *objects) get(bucket, key string) string {
	out, err := o.backend.GetObject(bucket, key, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	body, err := io.ReadAll(out.Contents)
	if err != nil {
		o.t.Fatal(err)
	}
	return string(body)
}

// each runs one bubble for each case.
func each[C any](t *testing.T, cases map[string]C, f func(*world, C)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) { bubble(t, func(w *world) { w.t = t; f(w, cases[name]) }) })
	}
}

// answersWith makes S3 tell that CRC-32 with every object.
func (o *objects) answersWith(crc string) {
	o.alter = func(r *http.Request, out *http.Response) {
		if op := operation(r); op == "GetObject" || op == "HeadObject" {
			out.Header.Set("X-Amz-Checksum-Crc32", crc)
			out.Header.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		}
	}
}

// partlyFails makes DeleteObjects fail for one key.
func (o *objects) partlyFails(key string) {
	o.alter = func(r *http.Request, out *http.Response) {
		if operation(r) != "DeleteObjects" {
			return
		}
		body := fmt.Sprintf(`<DeleteResult><Error><Key>%s</Key><Code>InternalError</Code><Message>no</Message></Error></DeleteResult>`, key)
		out.Body, out.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
}

// succeeded is how many calls of an operation S3 has done.
func (o *objects) succeeded(op string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done[op]
}

var quietLog = slog.New(slog.DiscardHandler)

// brokenConnection breaks after the request was written.
type brokenConnection struct{}

func (brokenConnection) Do(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }
