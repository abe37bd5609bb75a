package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// TableClient is what [CheckTable] and [CreateTable] call. *dynamodb.Client has it. The first two need dynamodb:DescribeTable
// and dynamodb:DescribeTimeToLive, the others dynamodb:CreateTable and dynamodb:UpdateTimeToLive.
type TableClient interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
	CreateTable(context.Context, *dynamodb.CreateTableInput, ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error)
	UpdateTimeToLive(context.Context, *dynamodb.UpdateTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateTimeToLiveOutput, error)
}

// CreateTable makes the table, billed by request, and has DynamoDB remove expired records (time to live). It returns when the
// table can be used: some ten seconds. A table that exists already is only checked, as [CheckTable] does. Bound it by ctx.
func CreateTable(ctx context.Context, client TableClient, table string, cfg DynamoConfig) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	schema, attributes := cfg.schema()
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &table, BillingMode: types.BillingModePayPerRequest, KeySchema: schema, AttributeDefinitions: attributes,
	})
	var exists *types.ResourceInUseException
	if errors.As(err, &exists) {
		if err := awaitActive(ctx, client, table); err != nil {
			return err
		}
		return CheckTable(ctx, client, table, cfg)
	}
	if err != nil {
		return fmt.Errorf("idempotency: creating table %s: %w", table, err)
	}
	if err := awaitActive(ctx, client, table); err != nil {
		return err
	}
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: &table, TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(attrExpires), Enabled: aws.Bool(true)},
	})
	if err != nil {
		return fmt.Errorf("idempotency: table %s is there, but turning on time to live for %q failed: %w", table, attrExpires, err)
	}
	return nil
}

func (c DynamoConfig) schema() (schema []types.KeySchemaElement, attributes []types.AttributeDefinition) {
	add := func(name string, kind types.KeyType) {
		schema = append(schema, types.KeySchemaElement{AttributeName: aws.String(name), KeyType: kind})
		attributes = append(attributes, types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: types.ScalarAttributeTypeS})
	}
	add(c.PartitionKey, types.KeyTypeHash)
	if c.SortKey != "" {
		add(c.SortKey, types.KeyTypeRange)
	}
	return schema, attributes
}

func awaitActive(ctx context.Context, client TableClient, table string) error {
	for failures := 0; ; failures++ {
		out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &table})
		var missing *types.ResourceNotFoundException
		switch {
		case err == nil && out.Table.TableStatus == types.TableStatusActive:
			return nil
		case err != nil && !errors.As(err, &missing): // a new table may not be seen at once
			return fmt.Errorf("idempotency: waiting for table %s: %w", table, err)
		}
		if !pause(ctx, failures) {
			return fmt.Errorf("idempotency: waiting for table %s to become active: %w", table, context.Cause(ctx))
		}
	}
}

// CheckTable looks whether the table fits, at a service's start, so that a deployment fails instead of its messages. The error
// lists everything that doesn't, and what to change.
func CheckTable(ctx context.Context, client TableClient, table string, cfg DynamoConfig) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &table})
	var missing *types.ResourceNotFoundException
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("idempotency: there is no table %s in this account and Region: make it with idempotency.CreateTable, or check the name: %w", table, err)
	case err != nil:
		return fmt.Errorf("idempotency: table %s can't be described (allow dynamodb:DescribeTable): %w", table, err)
	}
	errs := cfg.checkKeys(table, out.Table)
	if s := out.Table.TableStatus; s != types.TableStatusActive && s != types.TableStatusUpdating {
		errs = append(errs, fmt.Errorf("idempotency: table %s is %s: it must be ACTIVE", table, s))
	}
	return errors.Join(append(errs, checkTTL(ctx, client, table))...)
}

// checkKeys compares the table's keys with what the configuration says.
func (c DynamoConfig) checkKeys(table string, t *types.TableDescription) (errs []error) {
	kinds := map[string]types.ScalarAttributeType{}
	for _, a := range t.AttributeDefinitions {
		kinds[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	has := map[types.KeyType]string{}
	for _, k := range t.KeySchema {
		has[k.KeyType] = aws.ToString(k.AttributeName)
	}
	partition, sort := has[types.KeyTypeHash], has[types.KeyTypeRange]
	if partition != c.PartitionKey {
		errs = append(errs, fmt.Errorf("idempotency: table %s has the partition key %q, not %q: set DynamoConfig.PartitionKey to %q, or use a table of its own", table, partition, c.PartitionKey, partition))
	}
	switch {
	case sort == c.SortKey:
	case sort == "":
		errs = append(errs, fmt.Errorf("idempotency: table %s has no sort key: leave DynamoConfig.SortKey empty instead of %q", table, c.SortKey))
	default:
		errs = append(errs, fmt.Errorf("idempotency: table %s has the sort key %q: set DynamoConfig.SortKey to %q, or use a table of its own", table, sort, sort))
	}
	for _, key := range []string{partition, sort} {
		if kind := kinds[key]; key != "" && kind != types.ScalarAttributeTypeS {
			errs = append(errs, fmt.Errorf("idempotency: table %s's key %q has type %s: it must be S; make another table", table, key, kind))
		}
	}
	return errs
}

func checkTTL(ctx context.Context, client TableClient, table string) error {
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &table})
	if err != nil {
		return fmt.Errorf("idempotency: table %s's time to live can't be described (allow dynamodb:DescribeTimeToLive): %w", table, err)
	}
	ttl := out.TimeToLiveDescription
	if ttl != nil && (ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabled || ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabling) {
		if name := aws.ToString(ttl.AttributeName); name != attrExpires {
			return fmt.Errorf("idempotency: table %s's time to live goes by %q: it must go by %q, or records are never removed; use a table of its own", table, name, attrExpires)
		}
		return nil
	}
	return fmt.Errorf("idempotency: table %s's time to live is off, so records are never removed: run aws dynamodb update-time-to-live --table-name %s --time-to-live-specification Enabled=true,AttributeName=%s", table, table, attrExpires)
}
