package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// DynamoClient is what a [DynamoStore] calls. *dynamodb.Client has it. It needs dynamodb:UpdateItem and dynamodb:GetItem on the
// table, and for [Claim.Commit] what its items need.
type DynamoClient interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

// DynamoConfig says what the table's keys are called. The zero value fits the table that [CreateTable] makes, and the one that
// Powertools for AWS Lambda recommends. The table may be shared with it; the keys must not be, because its own updates and
// deletes don't ask whose a record is.
type DynamoConfig struct {
	// PartitionKey is the name of the partition key, a String. Default "id".
	PartitionKey string
	// SortKey is the name of the sort key, a String, if the table has one. Default none. Then all records are in one partition,
	// Partition, which takes 1,000 writes a second: better a table without.
	SortKey string
	// Partition is the partition key's value with a SortKey. Default "idempotency".
	Partition string
}

func (c DynamoConfig) withDefaults() (DynamoConfig, error) {
	if c.SortKey == "" && c.Partition != "" {
		return c, fmt.Errorf("idempotency: DynamoConfig.Partition is %q: must be empty without a SortKey", c.Partition)
	}
	setDefault(&c.PartitionKey, "id")
	if c.SortKey != "" {
		setDefault(&c.Partition, "idempotency")
	}
	var errs []error
	for _, key := range []string{c.PartitionKey, c.SortKey} {
		switch key {
		case attrStatus, attrExpires, attrLease, attrResult, attrPayload, attrOwner, attrFence, attrOmitted, attrAttempts, attrFailures, attrInterruptions:
			errs = append(errs, fmt.Errorf("idempotency: DynamoConfig: the key attribute %q is one of the record's own: use another", key))
		}
	}
	if c.PartitionKey == c.SortKey {
		errs = append(errs, fmt.Errorf("idempotency: DynamoConfig.SortKey is %q: must differ from PartitionKey", c.SortKey))
	}
	return c, errors.Join(errs...)
}

// DynamoStore keeps records in a DynamoDB table. Every write is one conditional UpdateItem; none deletes. The SDK's retries end
// with the context of a call; what DynamoDB doesn't let the SDK retry (conflicts with transactions) is tried again here.
type DynamoStore struct {
	client DynamoClient
	table  string
	cfg    DynamoConfig
}

// NewDynamoStore returns a store on a table, which is not looked at: [CheckTable] does.
func NewDynamoStore(client DynamoClient, table string, cfg DynamoConfig) (*DynamoStore, error) {
	cfg, err := cfg.withDefaults()
	if client == nil {
		err = errors.Join(errors.New("idempotency: no client: pass a *dynamodb.Client"), err)
	}
	if table == "" {
		err = errors.Join(errors.New("idempotency: no table name"), err)
	}
	if err != nil {
		return nil, err
	}
	return &DynamoStore{client: client, table: table, cfg: cfg}, nil
}

// Acquire implements [Store].
func (s *DynamoStore) Acquire(ctx context.Context, r AcquireRequest) (Record, error) {
	return s.update(ctx, r.ID, acquireWrite(r, s.cfg.PartitionKey, time.Now()), types.ReturnValueAllNew)
}

// Extend implements [Store].
func (s *DynamoStore) Extend(ctx context.Context, id, owner string, lease, expires time.Time) error {
	_, err := s.update(ctx, id, extendWrite(owner, lease, expires), types.ReturnValueNone)
	return err
}

// Complete implements [Store].
func (s *DynamoStore) Complete(ctx context.Context, id, owner string, c Completion) error {
	_, err := s.update(ctx, id, completeWrite(owner, c), types.ReturnValueNone)
	return err
}

// Release implements [Store].
func (s *DynamoStore) Release(ctx context.Context, id, owner string, how Ended) error {
	_, err := s.update(ctx, id, releaseWrite(owner, how), types.ReturnValueNone)
	return err
}

func (s *DynamoStore) key(id string) map[string]types.AttributeValue {
	if s.cfg.SortKey == "" {
		return map[string]types.AttributeValue{s.cfg.PartitionKey: str(id)}
	}
	return map[string]types.AttributeValue{s.cfg.PartitionKey: str(s.cfg.Partition), s.cfg.SortKey: str(id)}
}

// update makes one write, and finds out what the record is when it is refused.
func (s *DynamoStore) update(ctx context.Context, id string, w write, returns types.ReturnValue) (Record, error) {
	in := &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: s.key(id), UpdateExpression: &w.update, ConditionExpression: &w.condition,
		ExpressionAttributeNames: w.names, ExpressionAttributeValues: w.values, ReturnValues: returns,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	for failures := 0; ; failures++ {
		out, err := s.client.UpdateItem(ctx, in)
		if err == nil {
			return recordOf(id, out.Attributes), nil
		}
		var refused *types.ConditionalCheckFailedException
		if errors.As(err, &refused) {
			return Record{}, s.refused(ctx, id, refused.Item)
		}
		if !isConflict(err) || !pause(ctx, failures) {
			return Record{}, err
		}
	}
}

// refused makes a RefusedError of what DynamoDB sent along; a server that sends nothing is asked.
func (s *DynamoStore) refused(ctx context.Context, id string, item map[string]types.AttributeValue) error {
	if len(item) > 0 {
		return &RefusedError{recordOf(id, item)}
	}
	r, err := s.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("reading the record that refused a write: %w", err)
	}
	return &RefusedError{r}
}

// Get reads a record; one that doesn't exist has no Status.
func (s *DynamoStore) Get(ctx context.Context, id string) (Record, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: s.key(id), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return Record{}, err
	}
	return recordOf(id, out.Item), nil
}

// CompleteTx implements [Transactor]. The completion is the last item, so that the reasons of a cancelled transaction are in the
// order of the caller's.
func (s *DynamoStore) CompleteTx(ctx context.Context, id, owner, token string, c Completion, items []types.TransactWriteItem) error {
	w := completeWrite(owner, c)
	in := &dynamodb.TransactWriteItemsInput{ClientRequestToken: &token, TransactItems: make([]types.TransactWriteItem, 0, len(items)+1)}
	in.TransactItems = append(append(in.TransactItems, items...), types.TransactWriteItem{Update: &types.Update{
		TableName: &s.table, Key: s.key(id), UpdateExpression: &w.update, ConditionExpression: &w.condition,
		ExpressionAttributeNames: w.names, ExpressionAttributeValues: w.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}})
	for failures := 0; ; failures++ {
		_, err := s.client.TransactWriteItems(ctx, in)
		if err == nil {
			return nil
		}
		var cancelled *types.TransactionCanceledException
		switch {
		case errors.As(err, &cancelled) && !passes(cancelled.CancellationReasons):
			return s.cancelled(ctx, id, owner, cancelled.CancellationReasons, err)
		case cancelled == nil && !isConflict(err), !pause(ctx, failures):
			return err
		}
	}
}

// cancelled tells a refusal by the record from one by the caller's items. When items refuse, the record is read all the same:
// a transaction that went through, and whose answer was lost, makes its own items' conditions fail.
func (s *DynamoStore) cancelled(ctx context.Context, id, owner string, reasons []types.CancellationReason, err error) error {
	if n := len(reasons); n > 0 && aws.ToString(reasons[n-1].Code) == "ConditionalCheckFailed" {
		return s.refused(ctx, id, reasons[n-1].Item)
	}
	r, readErr := s.Get(ctx, id)
	switch {
	case readErr != nil:
		return fmt.Errorf("%w, and the record can't be read: %w", &unsureError{err}, readErr)
	case !r.heldBy(owner):
		return &RefusedError{r}
	}
	return err
}

// unsureError hides the type of a cancelled transaction: it may have gone through at first.
type unsureError struct{ err error }

func (e *unsureError) Error() string { return e.err.Error() }

// passes tells whether a transaction was cancelled only for what passes by itself.
func passes(reasons []types.CancellationReason) bool {
	some := false
	for _, r := range reasons {
		switch aws.ToString(r.Code) {
		case "", "None":
		case "TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError":
			some = true
		default:
			return false
		}
	}
	return some
}

// isConflict tells whether a write met another transaction on its item, or the other Region's: the SDK doesn't retry these.
func isConflict(err error) bool {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode() {
	case "TransactionConflictException", "ReplicatedWriteConflictException", "TransactionInProgressException":
		return true
	}
	return false
}
