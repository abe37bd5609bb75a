package bench

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// This file is the side entrance of the SQS process: what the director asks of it is no SQS call, takes no added time
// and is counted nowhere.

// tally is what the director reads: calls by action, and what became of the messages.
type tally struct {
	tallies
	Calls map[string]int64 // by action; "" is all
	CPU   time.Duration    // of the SQS process

	// Only when asked for: what the queue holds.
	Visible, InFlightNow int
}

var countedActions = []string{"", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility", "ChangeMessageVisibilityBatch", "GetQueueAttributes"}

// createQueue makes the queue that this process serves; the query's values are its attributes.
func (s *server) createQueue(w http.ResponseWriter, r *http.Request) {
	attributes := map[string]string{}
	for name, values := range r.URL.Query() {
		attributes[name] = values[0]
	}
	s.queueURL = s.model.MustCreateQueue("jobs", attributes)
	reply(w, s.queueURL)
}

// setLatency sets the time added to every call.
func (s *server) setLatency(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(r.FormValue("d"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	half := d / 2
	s.half.Store(int64(half))
	s.model.SetLatency(d - half)
	reply(w, nil)
}

// fillChunk is how many messages are sent at a time: the model is locked meanwhile.
const fillChunk = 500

// fill sends n messages of size bytes.
func (s *server) fill(w http.ResponseWriter, r *http.Request) {
	n, size := number(r, "n"), number(r, "size")
	s.ledger.expect(int64(n))
	body := strings.Repeat("x", size)
	for n > 0 {
		chunk := make([]string, min(n, fillChunk))
		for i := range chunk {
			chunk[i] = body
		}
		s.model.MustSend(s.queueURL, chunk...)
		n -= len(chunk)
	}
	reply(w, nil)
}

// feed sends n messages, rate a second, each beginning with the time at which it was sent; it answers when it is done.
func (s *server) feed(w http.ResponseWriter, r *http.Request) {
	n, rate, size := number(r, "n"), number(r, "rate"), number(r, "size")
	s.ledger.expect(int64(n))
	gap := time.Second / time.Duration(rate)
	start := time.Now()
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * gap)))
		s.model.MustSend(s.queueURL, stampedBody(time.Now(), size))
	}
	reply(w, nil)
}

// stampedBody begins with the time in nanoseconds; every process here reads the same clock.
func stampedBody(at time.Time, size int) string {
	stamp := strconv.FormatInt(at.UnixNano(), 10) + " "
	return stamp + strings.Repeat("x", max(size-len(stamp), 0))
}

func stampOf(body string) time.Time {
	digits, _, _ := strings.Cut(body, " ")
	ns, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// awaitDeleted answers when every message of the run, or the first tenth, has been deleted, or the time is over.
func (s *server) awaitDeleted(w http.ResponseWriter, r *http.Request) {
	most, err := time.ParseDuration(r.FormValue("most"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	reply(w, s.ledger.awaitDeleted(r.FormValue("tenth") != "", most))
}

func (s *server) tally(w http.ResponseWriter, r *http.Request) {
	t := tally{tallies: s.ledger.snapshot(), Calls: map[string]int64{}, CPU: cpuTime()}
	for _, action := range countedActions {
		t.Calls[action] = s.model.Count(action)
	}
	if r.FormValue("queue") != "" {
		q := s.model.Queue(s.queueURL) // also lets leases lapse whose time is over
		t.tallies = s.ledger.snapshot()
		t.Visible, t.InFlightNow = q.Visible, q.InFlight
	}
	reply(w, t)
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.FormValue(name)) // the director is the only caller
	return n
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
