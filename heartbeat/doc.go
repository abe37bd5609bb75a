// Package heartbeat keeps received SQS messages invisible while they are worked on.
//
// A visibility timeout is a lease, not a lock: it starts when SQS answers the
// receive, it ends without a word, and afterwards somebody else has the message.
// This package holds that lease for each message in a goroutine of its own,
// renews it in time, and tells the holder through a context when it can't be
// held any longer. It knows receipt handles, never what is in a message.
//
// # The lease clock
//
// A lease is measured on the local monotonic clock from the moment the request
// that granted it was sent, so it always ends here before it ends at SQS. Server
// timestamps are not used: clocks differ.
//
// # What leaves for SQS
//
// A renewal comes due at a third of the visibility. Renewals that come due
// together leave as one ChangeMessageVisibilityBatch of up to ten; a batch that
// isn't full waits a twentieth of the visibility for company, at most a second.
// A renewal never shortens what the queue or a handler gave. Failures that can
// pass (throttling, KMS throttling, 5xx, a broken connection, even a denied
// call) are retried until the lease ends; the SDK's own retries are off for
// these calls, because its retry quota is shared by the whole client. An attempt
// is given up after half of what is left of the lease (from half a second to ten
// seconds), so that a hanging one can be tried again: calls may take a quarter of
// the visibility without a lease being lost.
//
// # How a lease ends
//
//   - [Lease.Settle] or [Lease.Release]: the holder is done.
//   - [ErrLost]: SQS says that the handle is no longer good, or the lease ran out
//     before a renewal got through. From then on nothing is written for it: on a
//     standard queue a stale handle still works, and would change the visibility
//     under the message's new holder.
//   - [ErrCeiling]: SQS lets nobody hold a message for more than 12 hours from
//     its receive. The holder is told before that, while the lease still holds,
//     so that it can stop and the message can be given back.
package heartbeat
