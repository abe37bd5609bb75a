package sqsmodel

import (
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

func (s *Server) deleteMessage(x *exchange, in *sqs.DeleteMessageInput) (reply, error) {
	return empty{}, s.delete(x.queue, in.ReceiptHandle, x.now).orNil()
}

func (s *Server) deleteMessageBatch(x *exchange, in *sqs.DeleteMessageBatchInput) (reply, error) {
	if err := checkBatch("DeleteMessageBatchRequestEntry", x.entryIDs); err != nil {
		return nil, err
	}
	return x.batch(func(i int) (*sent, *apiError) {
		return nil, s.delete(x.queue, in.Entries[i].ReceiptHandle, x.now)
	}), nil
}

// delete succeeds for a message that is gone. A standard queue also takes a
// handle whose visibility has run out; a FIFO queue refuses that one.
func (s *Server) delete(q *queue, text *string, now time.Time) *apiError {
	h, err := q.decodeHandle(text)
	if err != nil {
		return err
	}
	m := q.messages[h.serial]
	switch {
	case m == nil:
		return nil
	case q.fifo && (m.state != InFlight || h.receipt != m.receipt):
		return badHandle(*text, reasonExpired)
	case h.receipt != m.receipt && s.cfg.SupersededDelete == SupersededDeleteNoop:
		return nil
	}
	s.emit(q, m, Deleted, now, *text, 0)
	s.remove(q, m)
	return nil
}
