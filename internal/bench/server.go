package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// server is the SQS process: the model behind a loopback socket, and the counters that the director reads.
type server struct {
	model    *sqsmodel.Server
	queueURL string
	half     atomic.Int64 // nanoseconds of the time added to a call: on its way here, and on the answer's way back
	ledger   *ledger
}

// Serve is the main function of the SQS process. It says its address on out and ends when in does.
func Serve(in io.Reader, out io.Writer) error {
	// The backlog is the system's largest, Nagle is off and connections are kept alive: net's defaults.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	endpoint := "http://" + l.Addr().String()
	s := newServer(endpoint)
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(l, s.mux()) }()
	if _, err := fmt.Fprintln(out, endpoint); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	select {
	case err := <-failed:
		return err
	case <-ended:
		return nil
	}
}

func newServer(endpoint string) *server {
	model := sqsmodel.New(sqsmodel.Config{Endpoint: endpoint})
	model.RecordCalls(false)
	model.RecordJournal(false)
	s := &server{model: model, ledger: newLedger()}
	model.OnEvent(s.ledger.note)
	return s
}

func (s *server) mux() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/bench/queue", s.createQueue)
	m.HandleFunc("/bench/latency", s.setLatency)
	m.HandleFunc("/bench/fill", s.fill)
	m.HandleFunc("/bench/feed", s.feed)
	m.HandleFunc("/bench/deleted", s.awaitDeleted)
	m.HandleFunc("/bench/tally", s.tally)
	m.HandleFunc("/", s.answer)
	return m
}

// answer passes a call on to the model. The model waits the first half of the added time before it looks at its
// queues; the second half passes before the answer leaves, so that a message that ends a long poll has a way to go too.
func (s *server) answer(w http.ResponseWriter, r *http.Request) {
	s.model.ServeHTTP(&lateWriter{w, time.Duration(s.half.Load())}, r)
}

// lateWriter holds an answer back.
type lateWriter struct {
	http.ResponseWriter
	hold time.Duration
}

func (w *lateWriter) WriteHeader(status int) {
	time.Sleep(w.hold)
	w.ResponseWriter.WriteHeader(status)
}
