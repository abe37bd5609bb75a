// Package idempotency makes a message's work happen once, although SQS delivers it more than once: a standard queue delivers
// at least once, producers send again, a redrive gives a message a new id, a worker dies between its work and its delete.
//
//	store, err := idempotency.NewDynamoStore(dynamodb.NewFromConfig(cfg), "idempotency", idempotency.DynamoConfig{})
//	...
//	once, err := idempotency.New(store, idempotency.Config{Key: idempotency.JSONField("order.id")})
//	...
//	w, err := worker.New(client, queueURL, handler, worker.Config{Middleware: []worker.Middleware{once.Middleware}})
//
// [Do] is the same for code outside of a worker, and for work that has a result.
//
// # How it works
//
// Each key has one record. An attempt claims it, with a token of its own and a lease; then it works; then it completes the
// record; only then is the message deleted. Every write is conditional on the token, and no record is ever deleted, so a late
// write of an attempt that was overtaken changes nothing.
//
//   - Completed before: the message is deleted without a run ([worker.ErrDuplicate]).
//   - In progress elsewhere: the message comes back when that lease would be over ([worker.Snooze]); not a failure.
//   - The same key with another payload: [MismatchError], which is [worker.Permanent]. Two different orders under one key must
//     not pass for one.
//   - The table can't be reached: [worker.Unavailable]; the handler doesn't run.
//   - The handler failed: the claim is given up and its record counts the failure, for all workers.
//
// The claim's lease is renewed together with the message's visibility, the record first. If it can't be renewed the handler's
// context ends, with a cause that wraps [worker.ErrLeaseLost], before either runs out.
//
// # What is guaranteed, and what can't be
//
// Within Config.Retention, whatever the clocks do: a key has one outcome, which never changes; a message is deleted only if
// an outcome is recorded. Effects that are written by [Claim.Commit], in one DynamoDB transaction with the completion, happen
// at most once, and exactly once if the work ever succeeds. A resource that checks [Claim.Fence] takes no write of an attempt
// that was overtaken.
//
// Other effects can happen twice: nobody can make a call to a third party and a write to a table one step.
//
//	what happens to an attempt                      its effects: plain / by Commit
//	dies before it claims                           1 / 1
//	dies after the claim, before the effect         1 / 1   others wait for the lease to end
//	dies after the effect, before the completion    2 / 1
//	dies after the completion, before the delete    1 / 1   the next delivery is deleted without a run
//	an answer of the table is lost                  1 / 1   it knows its own token
//	fails before its effect                         1 / 1
//	fails after its effect                          2 / 1
//	is cut off from the table until its lease ends  2 / 1
//	comes again after Retention                     2 / 2
//
// For the twos, pass [Claim.Key] to the third party as its idempotency key: it is the same for every attempt.
//
// Not for DynamoDB global tables with asynchronous replication: two Regions can both claim. Let all workers use one Region.
package idempotency
