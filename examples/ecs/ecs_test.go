package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/truora/minidyn/server"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// permission is the IAM action that a call needs, where it has another name.
var permission = map[string]string{
	"sqs:DeleteMessageBatch": "sqs:DeleteMessage", "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility", "s3:HeadObject": "s3:GetObject", "s3:DeleteObjects": "s3:DeleteObject",
}

// calls records the permissions that SDK clients need.
type calls struct {
	mu   sync.Mutex
	made map[string]int
}

func (c *calls) record(service string) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("record", func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			action := service + ":" + awsmiddleware.GetOperationName(ctx)
			if as, ok := permission[action]; ok {
				action = as
			}
			c.mu.Lock()
			c.made[action]++
			c.mu.Unlock()
			return next.HandleInitialize(ctx, in)
		}), middleware.After)
	}
}

func key() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
	})
}

func template(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// The service settles small invoices, large ones and duplicates, makes only calls that the task's role allows, and makes each
// of them, but for two that are for other days.
func TestTheTaskRoleAllowsExactlyTheCallsThatAreMade(t *testing.T) {
	c := &calls{made: map[string]int{}}
	model := sqsmodel.New(sqsmodel.Config{})
	model.MustCreateQueue("dead", map[string]string{"MessageRetentionPeriod": "1209600"})
	queueURL := model.MustCreateQueue("invoices", map[string]string{"VisibilityTimeout": "2",
		"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"5"}`, model.Queue("dead").ARN)})
	tables := httptest.NewServer(server.NewServer())
	defer tables.Close()
	buckets := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	defer buckets.Close()

	table := func(api ...func(*middleware.Stack) error) *dynamodb.Client {
		return dynamodb.New(dynamodb.Options{Region: "eu-west-1", BaseEndpoint: &tables.URL, Credentials: key(), APIOptions: api})
	}
	objects := func(api ...func(*middleware.Stack) error) *s3.Client {
		return s3.New(s3.Options{Region: "eu-west-1", BaseEndpoint: &buckets.URL, Credentials: key(), UsePathStyle: true, APIOptions: api})
	}
	ctx := t.Context()
	if _, err := objects().CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String("payloads")}); err != nil {
		t.Fatal(err)
	}
	createTable(t, table())

	s := settings{queueURL: queueURL, table: "done", bucket: "payloads", stopTimeout: 5 * time.Second, concurrency: 2}
	log := &lines{}
	w, err := newWorker(s, model.Client(func(o *sqs.Options) { o.APIOptions = append(o.APIOptions, c.record("sqs")) }), table(c.record("dynamodb")), objects(c.record("s3")), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	producer, err := extended.New(model.Client(), objects(), extended.Config{Bucket: "payloads", KeyPrefix: keyPrefix})
	if err != nil {
		t.Fatal(err)
	}
	large := `{"invoice":"large","lines":[` + strings.Repeat(`{"cents":1},`, 60_000) + `{"cents":2}]}`
	for _, body := range []string{`{"invoice":"a","lines":[{"cents":1}]}`, `{"invoice":"a","lines":[{"cents":1}]}`, large, `{"invoice":"none"}`} {
		if _, err := producer.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &queueURL, MessageBody: &body}); err != nil {
			t.Fatal(err)
		}
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	for end := time.Now().Add(20 * time.Second); w.Stats().Deleted < 3 || w.Stats().Failed < 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v\n%s", w.Stats(), log)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := w.Stats().Suppressed; n != 1 {
		t.Errorf("%d duplicates were suppressed, want 1", n)
	}

	onOtherDays := []string{"dynamodb:GetItem", "ecs:UpdateTaskProtection"} // when an answer lacks the record; through the agent
	var allowed []string
	for _, m := range regexp.MustCompile(`(?m)^ +- ((?:sqs|dynamodb|s3|ecs):\w+)`).FindAllStringSubmatch(template(t), -1) {
		allowed = append(allowed, m[1])
	}
	for action := range c.made {
		if !slices.Contains(allowed, action) {
			t.Errorf("%s is called and not allowed", action)
		}
	}
	for _, action := range allowed {
		if c.made[action] == 0 && !slices.Contains(onOtherDays, action) {
			t.Errorf("%s is allowed and never called", action)
		}
	}
}

func createTable(t *testing.T, client *dynamodb.Client) {
	t.Helper()
	_, err := client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: aws.String("done"), BillingMode: "PAY_PER_REQUEST",
		AttributeDefinitions: []ddb.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: "S"}},
		KeySchema:            []ddb.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: "HASH"}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The template says in its own language what the library says in Go.
func TestTheTemplateFitsTheLibrary(t *testing.T) {
	rule := extended.LifecycleRule(keyPrefix, extended.Retention{Source: 345600 * time.Second, DeadLetter: 1209600 * time.Second})
	for what, want := range map[string]string{
		"lifecycle id": "- Id: " + *rule.ID, "lifecycle prefix": "Prefix: " + keyPrefix, "lifecycle days": fmt.Sprintf("ExpirationInDays: %d\n", *rule.Expiration.Days),
		"the queue's retention": "MessageRetentionPeriod: 345600", "the role's prefix": "${Payloads.Arn}/" + keyPrefix + "*",
		"the longest stopTimeout": "MaxValue: 120", "stopTimeout for both": "StopTimeout: !Ref StopTimeout", "and for the program": `{ Name: STOP_TIMEOUT, Value: !Sub "${StopTimeout}s" }`,
		"time to live": "AttributeName: expiration", "health check": "[CMD, /settle, -health]",
	} {
		if !strings.Contains(template(t), want) {
			t.Errorf("%s: %q isn't in the template", what, want)
		}
	}
	if idempotency.DefaultRetention < 23*24*time.Hour {
		t.Error("records are forgotten before messages are")
	}
}

func TestSettingsSayEverythingThatIsWrong(t *testing.T) {
	_, err := settingsFrom(func(name string) string {
		return map[string]string{"STOP_TIMEOUT": "120", "CONCURRENCY": "many"}[name]
	})
	for _, want := range []string{"QUEUE_URL isn't set", "TABLE isn't set", "BUCKET isn't set", `STOP_TIMEOUT is "120"`, `CONCURRENCY is "many"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	s, err := settingsFrom(func(name string) string {
		return map[string]string{"QUEUE_URL": "q", "TABLE": "t", "BUCKET": "b", "STOP_TIMEOUT": "120s"}[name]
	})
	if err != nil || s.stopTimeout != 2*time.Minute || s.concurrency != 10 {
		t.Errorf("%+v, %v", s, err)
	}
}
