package idempotency_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestACheckOfATableSaysAllThatIsWrongAndWhatToChange(t *testing.T) {
	key := func(name string, kind types.KeyType, of types.ScalarAttributeType) (types.KeySchemaElement, types.AttributeDefinition) {
		return types.KeySchemaElement{AttributeName: &name, KeyType: kind}, types.AttributeDefinition{AttributeName: &name, AttributeType: of}
	}
	pk, pkS := key("pk", types.KeyTypeHash, types.ScalarAttributeTypeS)
	id, idS := key("id", types.KeyTypeHash, types.ScalarAttributeTypeS)
	_, idN := key("id", types.KeyTypeHash, types.ScalarAttributeTypeN)
	sk, skS := key("sk", types.KeyTypeRange, types.ScalarAttributeTypeS)
	for name, c := range map[string]struct {
		keys  []types.KeySchemaElement
		types []types.AttributeDefinition
		ttl   string
		cfg   idempotency.DynamoConfig
		want  []string // in the error; none: it fits
	}{
		"fits":               {[]types.KeySchemaElement{id}, []types.AttributeDefinition{idS}, "expiration", idempotency.DynamoConfig{}, nil},
		"fits, with sort":    {[]types.KeySchemaElement{pk, sk}, []types.AttributeDefinition{pkS, skS}, "expiration", idempotency.DynamoConfig{PartitionKey: "pk", SortKey: "sk"}, nil},
		"other key, no TTL":  {[]types.KeySchemaElement{pk}, []types.AttributeDefinition{pkS}, "", idempotency.DynamoConfig{}, []string{`set DynamoConfig.PartitionKey to "pk"`, "time to live is off", "update-time-to-live --table-name t"}},
		"a sort key":         {[]types.KeySchemaElement{id, sk}, []types.AttributeDefinition{idS, skS}, "expiration", idempotency.DynamoConfig{}, []string{`set DynamoConfig.SortKey to "sk"`}},
		"no sort key":        {[]types.KeySchemaElement{id}, []types.AttributeDefinition{idS}, "expiration", idempotency.DynamoConfig{SortKey: "sk"}, []string{"leave DynamoConfig.SortKey empty"}},
		"a number":           {[]types.KeySchemaElement{id}, []types.AttributeDefinition{idN}, "expiration", idempotency.DynamoConfig{}, []string{"type N: it must be S"}},
		"TTL elsewhere":      {[]types.KeySchemaElement{id}, []types.AttributeDefinition{idS}, "ttl", idempotency.DynamoConfig{}, []string{`goes by "ttl": it must go by "expiration"`}},
		"partition, no sort": {[]types.KeySchemaElement{id}, []types.AttributeDefinition{idS}, "expiration", idempotency.DynamoConfig{Partition: "p"}, []string{"must be empty without a SortKey"}},
		"a record's own":     {[]types.KeySchemaElement{id}, []types.AttributeDefinition{idS}, "expiration", idempotency.DynamoConfig{PartitionKey: "status"}, []string{"one of the record's own"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := newDynamo().client()
			_, err := client.CreateTable(t.Context(), &dynamodb.CreateTableInput{TableName: aws.String("t"), KeySchema: c.keys, AttributeDefinitions: c.types, BillingMode: types.BillingModePayPerRequest})
			must(t, err)
			if c.ttl != "" {
				_, err := client.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{TableName: aws.String("t"), TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &c.ttl, Enabled: aws.Bool(true)}})
				must(t, err)
			}
			err = idempotency.CheckTable(t.Context(), client, "t", c.cfg)
			if (err == nil) != (len(c.want) == 0) {
				t.Fatalf("got %v", err)
			}
			for _, words := range c.want {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("says nothing of %q: %v", words, err)
				}
			}
			if created := idempotency.CreateTable(t.Context(), client, "t", c.cfg); (created == nil) != (err == nil) {
				t.Errorf("CreateTable of a table that exists: %v, CheckTable: %v", created, err)
			}
		})
	}
	if err := idempotency.CheckTable(t.Context(), newDynamo().client(), "none", idempotency.DynamoConfig{}); err == nil || !strings.Contains(err.Error(), "CreateTable") {
		t.Errorf("no table: %v", err)
	}
	d := newDynamo()
	d.inject(fault{code: "AccessDeniedException"})
	if err := idempotency.CheckTable(t.Context(), d.client(), "t", idempotency.DynamoConfig{}); err == nil || !strings.Contains(err.Error(), "allow dynamodb:DescribeTable") {
		t.Errorf("denied: %v", err)
	}
}

func TestACreatedTableFits(t *testing.T) {
	for _, cfg := range []idempotency.DynamoConfig{{}, {PartitionKey: "pk", SortKey: "sk"}} {
		client := newDynamo().client()
		must(t, idempotency.CreateTable(t.Context(), client, "t", cfg))
		must(t, idempotency.CheckTable(t.Context(), client, "t", cfg))
	}
}

func TestRetentionIsHeldAgainstTheQueueAndItsDeadLetterQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqsmodel.New(sqsmodel.Config{})
		s.MustCreateQueue("dead", map[string]string{"MessageRetentionPeriod": "1209600"})
		url := s.MustCreateQueue("q", map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"` + s.Queue("dead").ARN + `","maxReceiveCount":"3"}`})
		day := 24 * time.Hour
		check := func(retention time.Duration) error {
			return newGuard(t, &idempotency.MemoryStore{}, idempotency.Config{Retention: retention}).CheckQueue(t.Context(), s.Client(), url)
		}
		if err := check(0); err != nil {
			t.Errorf("the default: %v", err)
		}
		if err := check(18 * day); err != nil {
			t.Errorf("4 days and 14: %v", err)
		}
		if err := check(18*day - time.Second); err == nil || !strings.Contains(err.Error(), "set at least 432h0m0s") {
			t.Errorf("less: %v", err)
		}
		defer s.Inject(sqsmodel.Fault{Action: "GetQueueAttributes", Queue: "dead", Code: "AccessDenied"})()
		if err := check(17 * day); err == nil || !strings.Contains(err.Error(), "336h0m0s in its dead-letter queue dead") {
			t.Errorf("a dead-letter queue that can't be asked: %v", err)
		}
	})
}
