package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// A payload of 300 KB through S3, with the real client of package extended: shown by peek, and still there after a redrive.
func TestAPayloadInS3IsShownAndSurvivesTheRedrive(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	backend := s3mem.New()
	if err := backend.CreateBucket("payloads"); err != nil {
		t.Fatal(err)
	}
	objects := gofakes3.New(backend).Server()
	var queues *sqsmodel.Server
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" {
			queues.ServeHTTP(w, r)
			return
		}
		objects.ServeHTTP(w, r)
	}))
	defer srv.Close()
	queues = sqsmodel.New(sqsmodel.Config{Endpoint: srv.URL})
	s := &shell{Server: queues, t: t, endpoint: srv.URL}

	key := credentials.NewStaticCredentialsProvider("key", "secret", "")
	client, err := extended.New(sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &srv.URL, Credentials: key}),
		s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &srv.URL, UsePathStyle: true, Credentials: key}), extended.Config{Bucket: "payloads", KeyPrefix: "orders/"})
	if err != nil {
		t.Fatal(err)
	}
	payload := strings.Repeat("large ", 50_000)
	dead := s.MustCreateQueue("orders-dlq", nil)
	orders := s.MustCreateQueue("orders", nil)
	if _, err := client.SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: &dead, MessageBody: &payload}); err != nil {
		t.Fatal(err)
	}

	if r := s.run("peek", "orders-dlq"); len(r.lines) != 1 || r.lines[0]["extended"] != true || !strings.Contains(r.lines[0]["body"].(string), "s3BucketName") {
		t.Errorf("without --bucket: %v", r.lines)
	}
	if r := s.run("peek", "orders-dlq", "--bucket", "payloads", "--prefix", "orders/", "--body", "11"); len(r.lines) != 1 || r.lines[0]["body"] != "large large…" {
		t.Errorf("with --bucket: %v%s", r.lines, r.err)
	}
	if r := s.run("peek", "orders-dlq", "--bucket", "payloads", "--prefix", "other/"); len(r.lines) != 1 || r.lines[0]["error"] == nil {
		t.Errorf("with another prefix: %v", r.lines)
	}
	s.must(s.run("redrive", "orders-dlq", "--any-queue", "--to", "orders", "--yes"), 0, `"moved":1`, `"via":"mover"`)
	out, err := client.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{QueueUrl: &orders})
	if err != nil || len(out.Messages) != 1 || aws.ToString(out.Messages[0].Body) != payload {
		t.Fatalf("after the redrive: %d messages, %v", len(out.Messages), err)
	}
}
