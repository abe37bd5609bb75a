// Package dlq is for everything between "a message failed too often" and "it was fixed and went back".
//
//   - [Audit] looks at a queue and its dead-letter queue and says what will hurt one day, and what to do about it. As
//     worker.Config.Audit, [NewAuditor] has it done at every start.
//   - [Ensure] creates or repairs the two, and shows first what it would change.
//   - [NewSink] is a worker's dead-letter sink: it copies a message there along with why.
//   - [Peek] looks at dead-lettered messages and gives them back.
//   - [Redrive] sends them to where they came from: by SQS's own move task, or by a mover that can filter, edit, keep a rate,
//     and go on after a crash.
//
// The command github.com/sqsworker/sqsworker/dlq/cmd/sqsdlq does the same from a shell.
//
// # Looking is receiving
//
// SQS has no way to read a message without receiving it. Each look, by this package, by the console, by anybody, counts as a receive,
// and hides the message for a while. If the dead-letter queue has a redrive policy of its own, looking at a message often enough
// moves it on; [Audit] warns of that.
//
// # A redriven message is a new one
//
// Whoever redrives it, SQS's move task or the mover here, the message gets a new MessageId, a new age and a receive count of zero. An
// idempotency record whose key is the MessageId doesn't know it; one with a business key does. If that record says that the work is
// done, the redriven message is deleted without being run, which is right after a false alarm and wrong after a repair:
// [RedriveConfig.Reset] decides.
//
// # Large payloads
//
// A message whose payload is in S3 is moved as it is, pointer and reserved attribute, and its object stays: give this package the plain
// *sqs.Client, and [PeekConfig.Payloads] an *extended.Client to read payloads with.
package dlq
