package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// awsEnvironment makes the default configuration chain find an SQS on this machine and nothing else.
func awsEnvironment(t *testing.T, endpoint string) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_PROFILE": "", "AWS_DEFAULT_REGION": "", "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(name, value)
	}
}

func sqsOverASocket(t *testing.T) (*sqsmodel.Server, string) {
	t.Helper()
	web := httptest.NewUnstartedServer(nil)
	endpoint := "http://" + web.Listener.Addr().String()
	server := sqsmodel.New(sqsmodel.Config{Endpoint: endpoint})
	web.Config.Handler = server
	web.Start()
	t.Cleanup(web.Close)
	awsEnvironment(t, endpoint)
	return server, endpoint
}

func TestRealQueueIsWorkedUntilInterrupted(t *testing.T) {
	server, _ := sqsOverASocket(t)
	url := server.MustCreateQueue("orders", nil)
	server.MustSend(url, `{"order":1,"amount":1}`, `{"order":2,"amount":`+strings.Repeat("1", 2)+`,"note":"`+strings.Repeat("x", 100<<10)+`"}`)
	server.MustSend(url, `hello`)

	o, err := parseFlags([]string{"-queue-url", url, "-handle-time", "20ms", "-visibility", "5s"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	o.wait = time.Second // so that the open poll ends soon
	ctx, cancel := context.WithCancel(t.Context())
	server.OnEvent(func(e sqsmodel.Event) {
		if e.Kind == sqsmodel.Deleted && server.Queue("orders").Visible == 0 && len(server.Queue("orders").Messages) == 1 {
			cancel()
		}
	})
	var out bytes.Buffer
	status, err := runRealQueue(ctx, o, &out)
	if status != exitOK || err != nil {
		t.Fatalf("status %d, %v\n%s", status, err, out.String())
	}
	for row, want := range map[string]int{"handled": 2, "deleted": 2, "handled, not deleted": 0, "leases lost": 0} {
		if got := cell(t, out.String(), row); got != want {
			t.Errorf("%s: %d, want %d", row, got, want)
		}
	}
	if calls, requests := cell(t, out.String(), "all"), cell(t, out.String(), "billed requests"); requests <= calls {
		t.Errorf("%d calls, %d requests: 100 KiB are two requests", calls, requests)
	}
	left := server.Queue("orders").Messages
	if len(left) != 1 || left[0].Body != "hello" {
		t.Errorf("a message of no known shape must stay: %+v", left)
	}
}

func TestRealQueueMistakesGetOneLine(t *testing.T) {
	_, endpoint := sqsOverASocket(t)
	missing := endpoint + "/123456789012/missing"
	for name, c := range map[string]struct {
		environment map[string]string
		url, want   string
	}{
		"no such queue":  {nil, missing, "NonExistentQueue"},
		"no URL":         {nil, "/1/orders", "must be a queue's URL"},
		"no region":      {map[string]string{"AWS_REGION": ""}, "https://sqs.eu-west-1.amazonaws.com/1/orders", "no AWS Region: set AWS_REGION to the queue's, eu-west-1"},
		"no credentials": {map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, missing, "no AWS credentials: set AWS_PROFILE"},
		"no profile":     {map[string]string{"AWS_PROFILE": "nobody"}, missing, "AWS configuration: "},
		"nobody there":   {map[string]string{"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, missing, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			for name, value := range c.environment {
				t.Setenv(name, value)
			}
			var out, errs bytes.Buffer
			status := run(t.Context(), []string{"-queue-url", c.url}, nil, &out, &errs)
			if status != exitUsage || !strings.Contains(errs.String(), c.want) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
				t.Errorf("status %d, stdout %q, stderr %q", status, out.String(), errs.String())
			}
		})
	}
}
