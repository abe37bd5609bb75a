// Package workertest is for the tests of services that work an SQS queue with
// package worker: an SQS in the test's own process, as strict as the real one,
// behind the SDK's real client; and the real worker before it.
//
// One message through the whole pipeline, middleware, retries and settling
// included:
//
//	r := workertest.Handle(t, handler, workertest.Message{Body: `{"order":4521}`}, worker.Config{})
//	if r.Fate != workertest.Deleted { t.Errorf("%v: %v", r.Fate, r.Err) }
//
// A queue to play with:
//
//	q := workertest.NewQueue(t, workertest.Options{MaxReceiveCount: 3})
//	q.Send(`{"order":4521}`, `{"order":4522}`)
//	q.Start(handler, worker.Config{})
//	q.WaitEmpty(time.Minute)
//
// Both work in real time, and in a testing/synctest bubble, where back-offs and
// visibility timeouts of hours take milliseconds. A bubble allows no real
// connections: a handler that talks to a server over a socket is tested outside
// of one.
//
// Nothing here is for production: what is sent is lost with the process.
package workertest
