package worker

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"
)

// StatusHandler serves what probes and people ask of workers. Nothing is served unless it is mounted:
//
//	go http.ListenAndServe("localhost:8080", worker.StatusHandler(w))
//
// It answers GET and HEAD at these paths, at whatever prefix http.StripPrefix takes away:
//
//   - /livez: 200 unless restarting the process would help: a worker has stalled ([ErrStalled]), or its Run has returned
//     while the process goes on. An SQS that is down, a denied call, an open breaker or a handler that takes long are
//     no reason to restart.
//   - /readyz: 200 while every worker works and [Worker.Healthy] is nil; 503 before, while it drains, and when something is
//     wrong. A rollout that waits for it doesn't replace good workers by ones that can't receive.
//   - /statusz: what runs, for how long, what is left of its lease, the last problems, and counts; for a browser as a page
//     that renews itself every 10 s, otherwise (or with ?format=json) as a JSON array of [Status].
//
// /livez and /readyz say in one line for each worker what they answer and why. The status page shows message ids and error
// texts, as the log does: serve it where only operators get. It takes the history that it draws from the moment on at which
// StatusHandler is called.
func StatusHandler(workers ...*Worker) http.Handler {
	h := &statusHandler{page: statusPage()}
	for _, w := range workers {
		if w != nil {
			w.history.CompareAndSwap(nil, &history{})
			h.workers = append(h.workers, w)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", h.probe((*Worker).alive))
	mux.HandleFunc("GET /readyz", h.probe((*Worker).ready))
	mux.HandleFunc("GET /statusz", h.status)
	return mux
}

type statusHandler struct {
	workers []*Worker
	page    *template.Template
}

// alive is nil unless a restart would help.
func (w *Worker) alive() error {
	if w.state() == stateStopped {
		return errors.New("worker: Run has returned, and the process goes on")
	}
	if err := w.Healthy(); errors.Is(err, ErrStalled) {
		return err
	}
	return nil
}

// ready is nil while the worker takes on messages.
func (w *Worker) ready() error {
	if s := w.state(); s != stateWorking {
		return errors.New("worker: " + s)
	}
	return w.Healthy()
}

func (h *statusHandler) probe(check func(*Worker) error) http.HandlerFunc {
	return func(to http.ResponseWriter, _ *http.Request) {
		status, text := http.StatusOK, &strings.Builder{}
		for _, w := range h.workers {
			answer := "ok"
			if err := check(w); err != nil {
				status, answer = http.StatusServiceUnavailable, strings.ReplaceAll(err.Error(), "\n", "; ")
			}
			fmt.Fprintf(text, "%s: %s\n", w.cfg.Name, answer)
		}
		if len(h.workers) == 0 {
			status = http.StatusServiceUnavailable
			text.WriteString("no worker: StatusHandler was called without one\n")
		}
		header(to, "text/plain; charset=utf-8")
		to.WriteHeader(status)
		_, _ = to.Write([]byte(text.String()))
	}
}

func header(to http.ResponseWriter, contentType string) {
	to.Header().Set("Content-Type", contentType)
	to.Header().Set("Cache-Control", "no-store")
	to.Header().Set("X-Content-Type-Options", "nosniff")
	to.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
}

func (h *statusHandler) status(to http.ResponseWriter, from *http.Request) {
	all := make([]Status, len(h.workers))
	for i, w := range h.workers {
		all[i] = w.Status()
	}
	to.Header().Set("Vary", "Accept")
	if wantsPage(from) {
		page := &strings.Builder{}
		if err := h.page.Execute(page, pageOf(all)); err != nil {
			http.Error(to, "worker: the status page: "+err.Error(), http.StatusInternalServerError)
			return
		}
		header(to, "text/html; charset=utf-8")
		_, _ = to.Write([]byte(page.String()))
		return
	}
	header(to, "application/json")
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	_ = e.Encode(all)
}

func wantsPage(from *http.Request) bool {
	switch from.URL.Query().Get("format") {
	case "json":
		return false
	case "html":
		return true
	}
	return strings.Contains(from.Header.Get("Accept"), "text/html")
}

//go:embed statusz.html
var statusHTML string

// statusPage is no variable of the package: a program that mounts no StatusHandler shall not link templates, which keep the
// linker from leaving out methods that nobody calls.
func statusPage() *template.Template {
	return template.Must(template.New("statusz").Funcs(template.FuncMap{"duration": span}).Parse(statusHTML))
}

// page is what the template is filled with.
type page struct {
	At      time.Time
	Workers []pageWorker
	Good    bool
}

type pageWorker struct {
	Status
	Good      bool
	Verdict   string
	UpSeconds float64
	CancelIn  float64
	Bars      []pageBar
	Peak      int
	Minutes   int
	Handled   int
	Failed    int
	Tiles     []pageTile
	Groups    []pageGroup
	Running   []pageRunning
	More      int // handlers that run and aren't listed
	Seen      []pageProblem
}

type pageTile struct {
	Name, Value, Note string
	Bad               bool
}

type pageGroup struct {
	Name string
	Rows []pageTile
}

// pageBar is one step of the spark line, in units of its view box, 60 wide and 20 high.
type pageBar struct {
	X                   int
	Y, Height           float64 // all that were handled
	FailedY, FailedHigh float64
	Title               string
}

type pageRunning struct {
	RunningHandler
	Part int // of the visibility that is left, in percent
	Low  bool
}

type pageProblem struct {
	Problem
	AgoSeconds float64
	Error      bool
}

func pageOf(all []Status) page {
	p := page{At: time.Now().UTC(), Good: true}
	for _, s := range all {
		w := pageWorkerOf(s)
		p.Good = p.Good && w.Good
		p.Workers = append(p.Workers, w)
	}
	return p
}

func pageWorkerOf(s Status) pageWorker {
	w := pageWorker{Status: s, Good: s.State == stateWorking && s.Problem == "", Minutes: int(historySteps * historyStep / time.Minute)}
	if w.Verdict = s.State; w.Good {
		w.Verdict = "working well"
	} else if s.State == stateWorking {
		w.Verdict = "something is wrong"
	}
	if !s.Since.IsZero() {
		w.UpSeconds = s.At.Sub(s.Since).Seconds()
	}
	if !s.CancelAt.IsZero() {
		w.CancelIn = max(s.CancelAt.Sub(s.At).Seconds(), 0)
	}
	w.draw()
	w.tell()
	for _, r := range s.Running {
		part := 0
		if s.VisibilitySeconds > 0 {
			part = min(max(int(100*r.LeaseSeconds/s.VisibilitySeconds), 0), 100)
		}
		w.Running = append(w.Running, pageRunning{r, part, part < 25})
	}
	w.More = s.Stats.Running - len(s.Running)
	for _, p := range s.Problems {
		w.Seen = append(w.Seen, pageProblem{p, s.At.Sub(p.At).Seconds(), p.Level >= 8})
	}
	return w
}

// draw makes the bars of the spark line.
func (w *pageWorker) draw() {
	for _, s := range w.History {
		w.Peak = max(w.Peak, s.Handled)
		w.Handled, w.Failed = w.Handled+s.Handled, w.Failed+s.Failed
	}
	const high = 20
	for i, s := range w.History {
		if s.Handled == 0 {
			continue
		}
		b := pageBar{X: i, Height: max(high*float64(s.Handled)/float64(w.Peak), 0.5), FailedHigh: high * float64(s.Failed) / float64(w.Peak)}
		b.Y, b.FailedY = high-b.Height, high-b.FailedHigh
		b.Title = fmt.Sprintf("%s UTC: %d handled, %d failed", s.At.UTC().Format(time.TimeOnly), s.Handled, s.Failed)
		w.Bars = append(w.Bars, b)
	}
}

// tell picks the counts that a person reads.
func (w *pageWorker) tell() {
	s := w.Stats
	tile := func(name string, value any, note string, bad bool) pageTile {
		return pageTile{name, fmt.Sprint(value), note, bad}
	}
	lease := "–"
	if w.LeastLeaseSeconds >= 0 {
		lease = span(w.LeastLeaseSeconds)
	}
	w.Tiles = []pageTile{
		tile("Running", grouped(int64(s.Running)), fmt.Sprintf("of %d at once", w.Concurrency), false),
		tile("Waiting", grouped(int64(s.Waiting)), fmt.Sprintf("%d slots free", s.FreeSlots), false),
		tile("Least lease left", lease, "of "+span(w.VisibilitySeconds), w.LeastLeaseSeconds >= 0 && w.LeastLeaseSeconds < w.VisibilitySeconds/4),
		tile("Deleted", grouped(s.Deleted), grouped(s.Received)+" received", false),
		tile("Failed", grouped(s.Failed), grouped(s.DeadLettered)+" dead-lettered", s.Failed > 0),
		tile("Leases lost", grouped(s.Lost), "messages come again", s.Lost > 0),
		tile("Breaker", s.Breaker.String(), fmt.Sprintf("opened %d times", s.BreakerOpened), s.Breaker != BreakerClosed),
		tile("Mean run", span(w.MeanSeconds), fmt.Sprintf("%.2f calls each", w.CallsPerMessage), false),
	}
	row := func(name string, n int64, bad bool) pageTile { return pageTile{name, grouped(n), "", bad && n > 0} }
	w.Groups = []pageGroup{
		{"Receiving", []pageTile{row("receives", s.Receives, false), row("empty", s.EmptyReceives, false), row("failed", s.ReceiveErrors, true), row("over the in-flight limit", s.OverLimit, true),
			row("open now", int64(s.OpenReceives), false), row("held already", s.Duplicates, false), row("completed before", s.Suppressed, false), row("near the redrive limit", s.NearLimit, true)}},
		{"Handlers", []pageTile{row("started", s.Started, false), row("succeeded", s.Succeeded, false), row("failed", s.Failed, true), row("panics", s.Panics, true),
			row("overdue", s.Overdue, true), row("retried in process", s.RetriedInProcess, false)}},
		{"Given back", []pageTile{row("after a failure", s.Retried, false), row("snoozed", s.Snoozed, false), row("dependency down", s.Unavailable, true), row("interrupted", s.Interrupted, false),
			row("unstarted", s.ReleasedUnstarted, false), row("could not be", s.ReleaseFailures, true)}},
		{"Settling", []pageTile{row("deletes under way", int64(s.Unsettled), false), row("failed deletes", s.DeleteFailures, true), row("completed, not deleted", s.Undeleted, true),
			row("renewals", s.Heartbeat.Renewed, false), row("failed renewals", s.Heartbeat.Failed, true)}},
	}
	w.Groups[3].Rows = append(w.Groups[3].Rows, pageTile{Name: "estimated cost", Value: fmt.Sprintf("$%.4f", w.EstimatedCost)})
}

// span is a duration as a person reads it: two units at most.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days %02d h", int(d.Hours())/24, int(d.Hours())%24)
}

// grouped is a count with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:] // a narrow space that doesn't break
	}
	return s
}
