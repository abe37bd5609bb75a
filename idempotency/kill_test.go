package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sqsworker/sqsworker/idempotency"
)

// childVariable makes this test program a process that does one piece of work, against the DynamoDB at its value.
const childVariable = "SQSWORKER_TEST_CHILD"

func TestMain(m *testing.M) {
	endpoint := os.Getenv(childVariable)
	if endpoint == "" {
		os.Exit(m.Run())
	}
	if err := payOnce(endpoint, os.Getenv(childVariable+"_COMMITS") != ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// payOnce does the work of key "payment", with its effect in the table "effects".
func payOnce(endpoint string, commits bool) error {
	client := dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: static("id", "secret", "")})
	store, err := idempotency.NewDynamoStore(client, testTable, idempotency.DynamoConfig{})
	if err != nil {
		return err
	}
	g, err := idempotency.New(store, idempotency.Config{Lease: time.Second, Skew: idempotency.NoSkew, Logger: silent})
	if err != nil {
		return err
	}
	_, err = idempotency.Do(context.Background(), g, idempotency.Call{Key: "payment"}, func(ctx context.Context) (struct{}, error) {
		effect := add("effects", "payment")
		if commits {
			c, _ := idempotency.FromContext(ctx)
			return struct{}{}, c.Commit(ctx, effect)
		}
		u := effect.Update
		_, err := client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: u.TableName, Key: u.Key, UpdateExpression: u.UpdateExpression, ExpressionAttributeValues: u.ExpressionAttributeValues})
		return struct{}{}, err
	})
	return err
}

// The process is killed when its effect has been written, before it can hear of it.
func TestKilledAfterItsEffectACommitHappensOnceAndAPlainWriteTwice(t *testing.T) {
	for name, c := range map[string]struct {
		commits bool
		want    string
	}{"plain write": {false, "2"}, "commit": {true, "1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDynamo()
			store := d.newTable(t, testTable)
			d.newTable(t, "effects")
			server := httptest.NewServer(d)
			defer server.Close()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVariable+"="+server.URL)
			if c.commits {
				cmd.Env = append(cmd.Env, childVariable+"_COMMITS=1")
			}
			var said strings.Builder
			started := make(chan *os.Process, 1)
			cmd.Stderr = &said
			d.inject(fault{times: 1, match: func(body string) bool { return strings.Contains(body, `"effects"`) }, then: func() { _ = (<-started).Kill() }})
			must(t, cmd.Start())
			started <- cmd.Process
			err := cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Fatalf("the process wasn't killed: %v\n%s", err, said.String())
			}
			if n := effects(t, d, "payment"); n != "1" {
				t.Fatalf("%s effects at its death, want 1", n)
			}
			var busy *idempotency.InProgressError
			for err = payOnce(server.URL, c.commits); errors.As(err, &busy); err = payOnce(server.URL, c.commits) {
				time.Sleep(time.Until(busy.Until) + 10*time.Millisecond)
			}
			must(t, err)
			if n := effects(t, d, "payment"); n != c.want {
				t.Errorf("%s effects, want %s", n, c.want)
			}
			if r := get(t, store, "#payment"); r.Status != idempotency.Completed {
				t.Errorf("record %+v", r)
			}
		})
	}
}
