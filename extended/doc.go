// Package extended sends and receives SQS messages of up to 2 GiB: the payload goes to S3, and the message carries a
// pointer to it. It is what the SQS Extended Client Library is for Java and Python, and reads and writes the same
// messages.
//
//	client, err := extended.New(sqs.NewFromConfig(cfg), s3.NewFromConfig(cfg), extended.Config{Bucket: "acme-payloads", KeyPrefix: "orders/"})
//	...
//	_, err = client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &anySize})
//
// # Which client for what
//
//   - To send, and to receive by hand: [Client]. It has the methods of *sqs.Client and takes its place; what is too large
//     goes through S3, and what comes back has its payload in Body again.
//   - In a worker: [Client.ForWorker] as the worker's client, and [Client.Middleware] among its middleware. The payload is
//     then fetched for each message by itself, when its handler's turn has come, while the heartbeat holds the message.
//     A plain *sqs.Client with [Middleware] does the same, as long as the worker receives all message attributes.
//   - A [Client] given to a worker as it is works too, but fetches the payloads of up to ten messages inside
//     ReceiveMessage, before handlers are free for them, and nothing of Config.MemoryBudget is shared between receives.
//   - For payloads that shouldn't be held in memory: [Config.Stream], [Client.Send] and [Open].
//
// # What is believed
//
// Anybody who may send to the queue can write a pointer. So a pointer is believed only when the message has the reserved
// attribute, and is followed only into Config.Bucket under Config.KeyPrefix, and what Config.Allow adds. Everything else is
// refused before S3 is called, for reading and for deleting. The declared size has to be the object's, and both have to be
// within the caps. A payload that can't be had is a failure of its own message: never of a receive, never a deletion.
//
// # In which order
//
// The object is stored before the message is sent, and removed only after SQS has confirmed the deletion of the message.
// What a crash leaves between the two is removed by the bucket's lifecycle: see [LifecycleRule], and set it.
//
// # Permissions
//
// Producers: s3:PutObject, s3:DeleteObject (to take back what was stored for a send that was refused), s3:AbortMultipartUpload.
// Consumers: s3:GetObject, and s3:DeleteObject unless Config.KeepPayloads is set. With s3:ListBucket, S3 answers 404 for
// a missing object instead of 403, so that it can be told apart. With a KMS key: kms:GenerateDataKey for producers,
// kms:Decrypt for both (multipart uploads need it too).
package extended
