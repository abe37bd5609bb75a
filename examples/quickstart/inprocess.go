package main

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
)

// inProcess is an HTTP client whose requests a handler in this process answers: no port is opened, and nothing waits for
// a network.
type inProcess struct{ http.Handler }

// Do implements the SDK's HTTPClient. The handler runs in the caller's goroutine.
func (p inProcess) Do(request *http.Request) (*http.Response, error) {
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	r := request.Clone(request.Context()) // as a server gets it
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.ContentLength >= 0 {
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	w := answer{code: http.StatusOK, header: http.Header{}}
	p.ServeHTTP(&w, r)
	return &http.Response{
		StatusCode: w.code, Status: http.StatusText(w.code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.header,
		Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: request,
	}, nil
}

// answer is an http.ResponseWriter that keeps what is written.
type answer struct {
	code   int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
