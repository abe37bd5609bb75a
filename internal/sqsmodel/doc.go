// Package sqsmodel is SQS in process: strict, deterministic, and reached through
// the real SDK client, so that a consumer can be tested against what SQS does to
// it, and twelve hours of that take milliseconds.
//
//	s := sqsmodel.New(sqsmodel.Config{})
//	url := s.MustCreateQueue("work", nil)
//	client := s.Client() // *sqs.Client; its calls run in the caller's goroutine
//
// A Server speaks the AWS JSON 1.0 protocol, as an SDK's HTTPClient (Do) or over
// a socket (ServeHTTP). Time is package time's, so it runs inside a
// testing/synctest bubble: a long poll of 20 s takes exactly 20 virtual seconds.
// It starts no goroutine. What time does (a visibility ends, a message moves) is
// made up for when somebody looks, in the order in which it would have happened,
// and a waiting poll has a timer for the next such moment.
//
// # What tests can do with it
//
// Inject scripts faults: slow and broken connections, answers that get lost after
// the call was applied, error codes, failed entries of a batch, wrong digests.
// Calls and Count say what the client did, Journal, OnEvent and CountEvents what
// happened to the messages, Queue what there is now. Duplicate delivers a message
// twice; Config's switches change what SQS itself does.
//
// # What it models, and on whose word
//
// Sources: [doc] is AWS's documentation, [recorded] an answer recorded from AWS,
// [reported] quoted from AWS by users, [inferred] our reading where there is none.
//
//   - Limits, bounds, batch rules and error texts [doc, recorded]. Each error has
//     SQS's HTTP status, JSON type and x-amzn-query-error code; NoQueryErrorHeader
//     takes the last one away.
//   - Receipt handles. On a standard queue an old handle goes on working: delete
//     and visibility change answer 200 after the visibility has ended, and a
//     visibility change with a replaced handle acts on the newer holder's message
//     [recorded]. What a change does to a message that nobody has received again
//     is disputed: nothing by default, see ExpiredVisibility. Nor is it settled
//     whether a delete with a replaced handle deletes: not by default ("might not
//     be deleted" [doc]), see SupersededDelete.
//   - A FIFO handle dies with its visibility: delete fails [recorded], so does a
//     visibility change [inferred, and so is its text], and a replaced handle is
//     as dead [inferred]. Deleting twice succeeds [recorded; inferred for FIFO].
//     In a batch these failures are ReceiptHandleIsInvalid with the bare reason
//     [reported].
//   - The 12 hours: an error, not a clamp, with its text [reported]. The clock
//     starts when the message is handed out, at every receive [inferred];
//     Ceiling has the other readings, MaxHold scales it.
//   - The in-flight limit: a short poll of a standard queue answers OverLimit, a
//     long poll nothing, FIFO never an error [doc]; OverLimitOnLongPoll for those
//     who saw the error there too.
//   - FIFO groups: a receive takes what it can from one group, then from others
//     [doc]; a hidden message hides itself and all later ones of its group, not
//     the earlier ones [recorded]. Groups come in the order of their heads
//     [inferred]. Deduplication by id or body, per queue or group, for five
//     minutes, beyond receive and delete [doc, recorded]. A repeated
//     ReceiveRequestAttemptId returns the same messages and handles and hides
//     them anew, while all of them are in flight and untouched [doc]; it doesn't
//     count as another receive [inferred].
//   - Redrive: the receive after the last one allowed omits the message and moves
//     it, with its MessageId, attributes and receive count [recorded]. On a
//     standard queue its age goes on, on a FIFO queue retention restarts and the
//     deduplication id becomes the message id [doc]. A RedriveAllowPolicy is
//     looked at when the source's policy is set [inferred]. If the target is
//     gone, messages stay [inferred].
//   - After three receives a standard queue puts a message behind the others [doc].
//   - Move tasks: one message at each tick of the rate, 500 a second without one;
//     messages arrive as new ones with another MessageId [doc], a receive count
//     of 0 and the destination's delay [inferred]. Statuses, refusals and
//     failures as recorded.
//   - A client that disconnects from a long poll ends it; AbandonedPolls leaves
//     the poll open at the server, which strands what it is given [reported].
//   - Short polls see everything unless ShortPollMiss says how much they miss.
//
// # What it leaves out
//
// Throughput quotas and throttling (script them), permissions and KMS (policies
// and keys are stored, nothing is enforced), eventual consistency of attributes,
// counts and queue creation, the minute that a purge may take, the fair queues'
// choice of whom to serve, the Query protocol, other accounts and Regions.
package sqsmodel
