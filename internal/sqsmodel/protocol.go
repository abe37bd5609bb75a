package sqsmodel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// answer is a whole HTTP response.
type answer struct {
	status     int
	queryError string
	requestID  string
	body       []byte
}

// exchange is one call on its way through the server.
type exchange struct {
	ctx       context.Context
	header    http.Header
	op        operation
	call      Call
	queueURL  *string
	in        any
	queue     *queue
	now       time.Time // when it is processed
	script    script
	poll      *poll // a receive that has to wait
	requestID string

	entryIDs, subjects []string // of a batch: each entry's Id, its handle or body
	entryErrors        map[int]*EntryError
}

var errDropped error = &net.OpError{
	Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET),
}

// Client is a real SDK client wired to Do, with static credentials.
func (s *Server) Client(optFns ...func(*sqs.Options)) *sqs.Client {
	return sqs.New(sqs.Options{
		Region:     s.cfg.Region,
		HTTPClient: s,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "secret", Source: "sqsmodel"}, nil
		}),
	}, optFns...)
}

// Do answers a request in the caller's goroutine, so that the Server can be the
// HTTPClient of an SDK client. A context that ends fails the call as net/http
// does.
func (s *Server) Do(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = readBody(req.Body, req.ContentLength)
		req.Body.Close()
		if err != nil {
			return nil, &url.Error{Op: "Post", URL: req.URL.String(), Err: err}
		}
	}
	a, err := s.answer(req.Context(), req.Header, body)
	if err != nil {
		return nil, &url.Error{Op: "Post", URL: req.URL.String(), Err: err}
	}
	res := &http.Response{
		Status:        strconv.Itoa(a.status) + " " + http.StatusText(a.status),
		StatusCode:    a.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        make(http.Header, 4),
		Body:          io.NopCloser(bytes.NewReader(a.body)),
		ContentLength: int64(len(a.body)),
		Request:       req,
	}
	a.setHeader(res.Header)
	return res, nil
}

// ServeHTTP answers the JSON protocol over a connection. A scripted connection
// failure aborts it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r.Body, r.ContentLength)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	a, err := s.answer(r.Context(), r.Header, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	a.setHeader(w.Header())
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a client that has gone doesn't need it
}

func readBody(r io.Reader, length int64) ([]byte, error) {
	if length <= 0 || length > 1<<24 {
		return io.ReadAll(r)
	}
	b := make([]byte, length)
	_, err := io.ReadFull(r, b)
	return b, err
}

func (a *answer) setHeader(h http.Header) {
	h["Content-Type"] = []string{"application/x-amz-json-1.0"}
	h["X-Amzn-Requestid"] = []string{a.requestID}
	if a.queryError != "" {
		h["X-Amzn-Query-Error"] = []string{a.queryError}
	}
}

// answer processes one call: arrive, be held, be applied, perhaps wait for
// messages, be encoded, be recorded. Its error is the connection's.
func (s *Server) answer(ctx context.Context, header http.Header, body []byte) (*answer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	x := &exchange{ctx: ctx, header: header}
	invalid := s.arrive(x, body)
	x.script = s.match(x.call)
	x.failEntries()
	if err := s.before(x); err != nil {
		return nil, s.finished(x, err)
	}
	var out reply
	err := invalid.orNil()
	if e := x.script.err; e != nil {
		err = e
	}
	if err == nil {
		out, err = s.process(x)
	}
	if cut := s.after(x, err); cut != nil {
		return nil, s.finished(x, cut)
	}
	if err != nil {
		if _, ok := err.(*apiError); !ok {
			return nil, s.finished(x, err)
		}
	}
	a := s.encode(x, out, err)
	return a, s.finished(x, nil)
}

// arrive decodes the request and counts it.
func (s *Server) arrive(x *exchange, body []byte) (invalid *apiError) {
	x.call.At = time.Now()
	_, action, _ := strings.Cut(x.header.Get("X-Amz-Target"), ".")
	op, ok := operations[action]
	x.op, x.call.Action = op, action
	if !ok {
		invalid = fail("UnknownOperationException")
	} else if err := op.decode(x, body); err != nil {
		invalid = fail("SerializationException", "%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		s.counts[action]++
	}
	s.counts[""]++
	x.requestID = s.uuid()
	if x.queueURL != nil {
		if q, err := s.find(x.queueURL); err == nil {
			x.call.Queue = q.name
		} else {
			x.call.Queue = (*x.queueURL)[strings.LastIndexByte(*x.queueURL, '/')+1:]
		}
	}
	return invalid
}

// before is what happens to the call on its way to the server.
func (s *Server) before(x *exchange) error {
	s.mu.Lock()
	hold := s.latency + x.script.hold
	s.mu.Unlock()
	if err := sleep(x.ctx, hold); err != nil {
		return err
	}
	if x.script.stall {
		<-x.ctx.Done()
		return context.Cause(x.ctx)
	}
	if x.script.dropBefore {
		return errDropped
	}
	return nil
}

// after is what happens to the answer on its way back.
func (s *Server) after(x *exchange, applied error) error {
	var e *apiError
	if applied != nil && !errors.As(applied, &e) {
		return applied
	}
	if err := sleep(x.ctx, x.script.holdAfter); err != nil {
		return err
	}
	if x.script.dropAfter {
		return errDropped
	}
	return nil
}

func (s *Server) process(x *exchange) (reply, error) {
	s.lock()
	x.now = time.Now()
	out, err := s.apply(x)
	s.settle(x.now)
	s.unlock()
	if err == nil && x.poll != nil {
		got, waitErr := s.await(x.ctx, x, x.poll)
		out.(*received).deliveries, err = got, waitErr
	}
	return out, err
}

func (s *Server) apply(x *exchange) (reply, error) {
	s.runTasks(x.now)
	if x.op.onQueue {
		q, err := s.find(x.queueURL)
		if err != nil {
			return nil, err
		}
		x.queue = q
		s.advance(q, x.now)
	}
	s.settle(x.now)
	return x.op.apply(s, x)
}

func (s *Server) encode(x *exchange, out reply, err error) *answer {
	a := &answer{status: http.StatusOK, requestID: x.requestID}
	if err == nil {
		a.body = out.appendJSON(make([]byte, 0, 256))
		out.note(&x.call)
		return a
	}
	e := asAPIError(err)
	a.status = e.status
	x.call.Err = e.code
	if !s.cfg.NoQueryErrorHeader && e.code != "" {
		a.queryError = e.code + ";Sender"
		if e.receiver {
			a.queryError = e.code + ";Receiver"
		}
	}
	b := append(make([]byte, 0, 256), `{"__type":"com.amazonaws.sqs#`...)
	b = append(b, e.shape...)
	b = append(b, `","message":`...)
	b = appendString(b, e.message)
	a.body = append(b, '}')
	return a
}

func (s *Server) finished(x *exchange, err error) error {
	x.call.Done = time.Now()
	switch {
	case err == nil:
	case errors.Is(err, errDropped):
		x.call.Err = "ConnectionDropped"
	default:
		x.call.Err = "Canceled"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.add(x.call)
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func decodeJSON(body []byte, in any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	return json.Unmarshal(body, in)
}
