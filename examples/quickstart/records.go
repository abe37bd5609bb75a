package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/truora/minidyn/server"
)

// records is a DynamoDB in this process, for the table in which orders are claimed. It is minidyn, which isn't ours, so
// that the conditions on which everything depends are read by somebody else's code. What minidyn doesn't know is
// answered here: time to live, and that a table is ready. It also leaves attributes in an item that REMOVE should take
// away, which makes no difference to what this program does.
type records struct {
	dynamo *server.Server
	writes atomic.Int64 // UpdateItem calls
}

func newRecords() *records { return &records{dynamo: server.NewServer()} }

// ServeHTTP answers DynamoDB's protocol.
func (d *records) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	switch operation {
	case "UpdateTimeToLive":
		io.WriteString(w, "{}") // this table doesn't live for long
	case "DescribeTable":
		d.describe(w, r)
	case "UpdateItem":
		d.writes.Add(1)
		fallthrough
	default:
		d.dynamo.ServeHTTP(w, r)
	}
}

// describe says that a table is ready, which minidyn leaves out.
func (d *records) describe(w http.ResponseWriter, r *http.Request) {
	a := answer{code: http.StatusOK, header: http.Header{}}
	d.dynamo.ServeHTTP(&a, r)
	var description struct{ Table map[string]any }
	if a.code != http.StatusOK || json.Unmarshal(a.body.Bytes(), &description) != nil || description.Table == nil {
		w.WriteHeader(a.code)
		io.Copy(w, &a.body)
		return
	}
	description.Table["TableStatus"] = "ACTIVE"
	mended, _ := json.Marshal(description) // it was JSON
	io.Copy(w, bytes.NewReader(mended))
}
