package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// processVariable names the environment variable that makes this program one worker of another one's scene.
const processVariable = "SQSWORKER_QUICKSTART_PROCESS"

// process is a worker in a process of its own, so that its death is a real one. It reaches the in-process SQS over a
// loopback connection and says on its standard output when handlers begin and end.
type process struct {
	ledger   *ledger
	listener net.Listener
	http     http.Server
	cmd      *exec.Cmd
	stdin    io.Closer

	mu      sync.Mutex
	handles map[string]bool // receipt handles that SQS gave to it
}

// processSpec is what the process is told.
type processSpec struct {
	Endpoint, QueueURL, Name          string
	Concurrency                       int
	Visibility, Heartbeat, Wait, Slow time.Duration
	BackoffMin, BackoffMax            time.Duration
	Idempotency, Verbose              bool
}

// note is one line that the process says.
type note struct {
	ID  string
	Run int // counts the process's runs
	At  time.Time
	End *ending `json:",omitempty"` // nil: it began
}

// listen opens the port through which the process will reach the server.
func (p *process) listen() (endpoint string, err error) {
	p.listener, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("-crash needs a port on 127.0.0.1: %w", err)
	}
	return "http://" + p.listener.Addr().String(), nil
}

// start starts the process.
func (p *process) start(name, queueURL string, o options, server *sqsmodel.Server, others http.Handler) (*contestant, error) {
	p.http.Handler = p.overhear(server, others)
	go p.http.Serve(p.listener) // it ends with close
	spec, err := json.Marshal(processSpec{
		Endpoint: "http://" + p.listener.Addr().String(), QueueURL: queueURL, Name: name,
		Concurrency: o.concurrency, Visibility: o.visibility, Heartbeat: o.heartbeat, Wait: o.wait, Slow: o.handleTime,
		BackoffMin: o.backoff.Min, BackoffMax: o.backoff.Max, Idempotency: o.idempotency, Verbose: o.verbose,
	})
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("-crash starts this program a second time: %w", err)
	}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), processVariable+"="+string(spec))
	p.cmd.Stderr = os.Stderr
	stdout, err1 := p.cmd.StdoutPipe()
	stdin, err2 := p.cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("-crash starts this program a second time: %w", err)
	}
	c := &contestant{name: name, stop: func() { stdin.Close() }, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		p.listenTo(name, stdout)
		c.err = p.cmd.Wait()
	}()
	return c, nil
}

// listenTo takes down what the process says, to the last word.
func (p *process) listenTo(name string, stdout io.Reader) {
	numbers := map[int]int{} // of the process, of the ledger
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var n note
		if json.Unmarshal(lines.Bytes(), &n) != nil {
			continue // the kill cut it short
		}
		if n.End == nil {
			numbers[n.Run] = p.ledger.begin(name, n.ID, n.At)
			continue
		}
		p.ledger.end(n.ID, numbers[n.Run], n.At, *n.End)
		delete(numbers, n.Run)
	}
}

// overhear notes which receipt handles the server gives to the process, before the process gets them. What isn't for SQS
// goes to others.
func (p *process) overhear(server, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		switch {
		case service != "AmazonSQS":
			others.ServeHTTP(w, r)
			return
		case action != receiveAction:
			server.ServeHTTP(w, r)
			return
		}
		answer := &recordedAnswer{ResponseWriter: w}
		server.ServeHTTP(answer, r)
		var received struct {
			Messages []struct{ ReceiptHandle string }
		}
		if json.Unmarshal(answer.body.Bytes(), &received) == nil {
			p.mu.Lock()
			for _, m := range received.Messages {
				p.handles[m.ReceiptHandle] = true
			}
			p.mu.Unlock()
		}
		w.Write(answer.body.Bytes()) // a process that was killed doesn't need it
	})
}

// recordedAnswer keeps the body back until it has been read.
type recordedAnswer struct {
	http.ResponseWriter
	body bytes.Buffer
}

func (r *recordedAnswer) Write(b []byte) (int, error) { return r.body.Write(b) }

// received tells whether the process was given this receipt handle.
func (p *process) received(handle string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handles[handle]
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) kill() { p.cmd.Process.Kill() } // it can only have ended already

// close ends the server's side.
func (p *process) close() {
	p.http.Close()
	p.listener.Close()
}

// runProcess is the other side: one worker, until it is killed or its standard input ends.
func runProcess(specText string, stdin io.Reader, stdout, stderr io.Writer) int {
	var spec processSpec
	if err := json.Unmarshal([]byte(specText), &spec); err != nil {
		fmt.Fprintf(stderr, "quickstart: %s: %v\n", processVariable, err)
		return exitUsage
	}
	signal.Ignore(os.Interrupt) // a terminal sends it to both; the parent tells
	ctx, stop := context.WithCancel(context.Background())
	go func() { // the end of the parent, however it ends, is the end of this
		io.Copy(io.Discard, stdin) // any end will do
		stop()
	}()
	if err := spec.run(ctx, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "quickstart: %s: %s\n", spec.Name, oneLine(err))
		return exitBad
	}
	return exitOK
}

func (s processSpec) run(ctx context.Context, stdout, stderr io.Writer) error {
	o := s.options(stderr)
	client := sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &s.Endpoint, Credentials: credentials})
	middleware, err := newShared(s.Endpoint, http.DefaultClient).middleware(o, sayRuns(stdout))
	if err != nil {
		return err
	}
	w, err := newWorker(client, s.QueueURL, s.Name, o, middleware...)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func (s processSpec) options(stderr io.Writer) options {
	o := options{
		concurrency: s.Concurrency, visibility: s.Visibility, heartbeat: s.Heartbeat, wait: s.Wait, handleTime: s.Slow,
		idempotency: s.Idempotency,
		backoff:     worker.Backoff{Min: s.BackoffMin, Max: s.BackoffMax}, logger: slog.New(slog.DiscardHandler),
	}
	if s.Verbose {
		o.logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	return o
}

// sayRuns is a middleware that says when handlers begin and end, a line each, written before anything else happens.
func sayRuns(w io.Writer) worker.Middleware {
	var mu sync.Mutex
	runs := 0
	say := func(n note) {
		line, _ := json.Marshal(n) // strings, numbers and times
		mu.Lock()
		defer mu.Unlock()
		w.Write(append(line, '\n')) // without a parent this process ends anyway
	}
	return func(next worker.Handler) worker.Handler {
		return worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
			mu.Lock()
			runs++
			number := runs
			mu.Unlock()
			say(note{ID: m.ID, Run: number, At: time.Now()})
			err := next.Handle(ctx, m)
			end := endingOf(err)
			say(note{ID: m.ID, Run: number, At: time.Now(), End: &end})
			return err
		})
	}
}
