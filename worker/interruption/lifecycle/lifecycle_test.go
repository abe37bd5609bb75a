package lifecycle_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"github.com/sqsworker/sqsworker/worker/interruption/lifecycle"
)

type answer struct {
	status int
	body   string
	form   url.Values // what was asked
}

func (a *answer) Do(req *http.Request) (*http.Response, error) {
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	a.form, err = url.ParseQuery(string(raw))
	return &http.Response{StatusCode: a.status, Header: http.Header{"Content-Type": {"text/xml"}}, Body: io.NopCloser(strings.NewReader(a.body))}, err
}

func client(a *answer) *autoscaling.Client {
	return autoscaling.New(autoscaling.Options{Region: "eu-west-1", HTTPClient: a, RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "k", SecretAccessKey: "s"}, nil
		})})
}

func TestCompleteLetsTheTerminationGoOn(t *testing.T) {
	a := &answer{status: 200, body: `<CompleteLifecycleActionResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><CompleteLifecycleActionResult/></CompleteLifecycleActionResponse>`}
	if err := lifecycle.Complete(client(a), "workers", "drain")(t.Context(), "i-1"); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"Action": "CompleteLifecycleAction", "AutoScalingGroupName": "workers", "LifecycleHookName": "drain", "InstanceId": "i-1", "LifecycleActionResult": "CONTINUE",
	} {
		if got := a.form.Get(field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
}

func TestAnActionThatIsOverIsAnErrorThatNamesHookAndGroup(t *testing.T) {
	a := &answer{status: 400, body: `<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><Error><Type>Sender</Type><Code>ValidationError</Code><Message>No active Lifecycle Action found with instance ID i-1</Message></Error></ErrorResponse>`}
	err := lifecycle.Complete(client(a), "workers", "drain")(t.Context(), "i-1")
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != "ValidationError" || !strings.Contains(err.Error(), "hook drain of group workers") {
		t.Errorf("the error is %v", err)
	}
}

func TestCompleteWithoutNamesSaysSo(t *testing.T) {
	a := &answer{status: 200}
	if err := lifecycle.Complete(client(a), "", "drain")(t.Context(), "i-1"); err == nil || a.form != nil {
		t.Errorf("the error is %v", err)
	}
}
