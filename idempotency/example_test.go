package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// Stand-ins for AWS: with an account they are dynamodb.NewFromConfig(cfg) and sqs.NewFromConfig(cfg).
func exampleDynamoDB() *dynamodb.Client { return newDynamo().client() }

func exampleQueue(bodies ...string) (*sqs.Client, string) {
	s := sqsmodel.New(sqsmodel.Config{})
	url := s.MustCreateQueue("orders", nil)
	s.MustSend(url, bodies...)
	return s.Client(), url
}

// The same order is sent three times; its handler runs once.
func Example() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	db := exampleDynamoDB()
	if err := idempotency.CreateTable(ctx, db, "idempotency", idempotency.DynamoConfig{}); err != nil {
		log.Fatal(err)
	}
	store, err := idempotency.NewDynamoStore(db, "idempotency", idempotency.DynamoConfig{})
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.New(store, idempotency.Config{Key: idempotency.JSONField("order")})
	if err != nil {
		log.Fatal(err)
	}

	queue, url := exampleQueue(`{"order":4521,"amount":500}`)
	handle := worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		fmt.Println("charging", m.Body)
		return nil
	})
	w, err := worker.New(queue, url, handle, worker.Config{Middleware: []worker.Middleware{once.Middleware}, WaitTime: time.Second, Logger: silent})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for w.Stats().Deleted < 1 {
			time.Sleep(10 * time.Millisecond)
		}
		for range 2 { // the producer isn't sure that it has been sent
			_, _ = queue.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: ptr(`{"order":4521,"amount":500}`)})
		}
		for w.Stats().Deleted < 3 {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
	}()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("duplicates suppressed:", w.Stats().Suppressed)
	// Output:
	// charging {"order":4521,"amount":500}
	// duplicates suppressed: 2
}

// For tests, and for a program that is the only one: no table.
func ExampleMiddleware() {
	mw := idempotency.Middleware(&idempotency.MemoryStore{}, idempotency.Config{
		Key:     idempotency.JSONField("order"),
		Payload: idempotency.Fields("amount"),
	})
	h := mw(worker.HandlerFunc(func(_ context.Context, m *worker.Message) error {
		fmt.Println("charging", m.Body)
		return nil
	}))
	for _, body := range []string{`{"order":1,"amount":5,"sent":"10:00"}`, `{"order":1,"amount":5,"sent":"10:05"}`, `{"order":1,"amount":900}`} {
		err := h.Handle(context.Background(), &worker.Message{Body: body, QueueURL: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"})
		var mismatch *idempotency.MismatchError
		switch {
		case errors.Is(err, worker.ErrDuplicate):
			fmt.Println("a duplicate")
		case errors.As(err, &mismatch):
			fmt.Println("another amount for the same order")
		}
	}
	// Output:
	// charging {"order":1,"amount":5,"sent":"10:00"}
	// a duplicate
	// another amount for the same order
}

// Outside of a worker, with a result: the second call returns the first one's.
func ExampleDo() {
	once, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{Namespace: "payments"})
	if err != nil {
		log.Fatal(err)
	}
	type payment struct{ ID string }
	for range 2 {
		p, err := idempotency.Do(context.Background(), once, idempotency.Call{Key: "order-4521"}, func(ctx context.Context) (payment, error) {
			claim, _ := idempotency.FromContext(ctx)
			fmt.Printf("paying, with a client token of %d characters\n", len(claim.Key()))
			return payment{"p-1"}, nil
		})
		fmt.Println(p.ID, err)
	}
	// Output:
	// paying, with a client token of 64 characters
	// p-1 <nil>
	// p-1 <nil>
}

// The stock goes down and the order is marked as done in one transaction: exactly once.
func ExampleClaim_Commit() {
	ctx := context.Background()
	db := exampleDynamoDB()
	for _, table := range []string{"idempotency", "stock"} {
		if err := idempotency.CreateTable(ctx, db, table, idempotency.DynamoConfig{}); err != nil {
			log.Fatal(err)
		}
	}
	store, err := idempotency.NewDynamoStore(db, "idempotency", idempotency.DynamoConfig{})
	if err != nil {
		log.Fatal(err)
	}
	take := worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		claim, _ := idempotency.FromContext(ctx)
		return claim.Commit(ctx, types.TransactWriteItem{Update: &types.Update{
			TableName:        ptr("stock"),
			Key:              map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "sku-1"}},
			UpdateExpression: ptr("SET sold = if_not_exists(sold, :none) + :one"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":none": &types.AttributeValueMemberN{Value: "0"}, ":one": &types.AttributeValueMemberN{Value: "1"},
			},
		}})
	})
	h := idempotency.Middleware(store, idempotency.Config{})(take)
	m := &worker.Message{ID: "m-1", QueueURL: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"}
	fmt.Println(h.Handle(ctx, m))
	fmt.Println(h.Handle(ctx, m))
	// Output:
	// <nil>
	// worker: completed before
}

// At a service's start: what doesn't fit fails the deployment, not its messages.
func ExampleCheckTable() {
	db := exampleDynamoDB()
	err := idempotency.CheckTable(context.Background(), db, "idempotency", idempotency.DynamoConfig{})
	fmt.Println(err != nil)
	// Output: true
}
