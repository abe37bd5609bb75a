package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The hidden subcommands with which the command starts itself.
const (
	ServeCommand   = "serve"
	ContestCommand = "contest"
)

// process is one of ours, spoken to by lines on its standard input and output. It ends when its input does, so that
// none is left when the director dies.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(ctx context.Context, subcommand string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, subcommand)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, in: in, out: bufio.NewReader(out)}, nil
}

func (p *process) readLine() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("bench: %v ended before it answered: %w", p.cmd.Args[1:], err)
	}
	return strings.TrimSpace(line), nil
}

// end kills the process: it has said all that it was asked.
func (p *process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// sqsProcess is an SQS process with one queue.
type sqsProcess struct {
	*process
	endpoint string
	queueURL string
}

// startSQS starts one in which every call takes latency.
func startSQS(ctx context.Context, latency time.Duration, attributes map[string]string) (*sqsProcess, error) {
	p, err := start(ctx, ServeCommand)
	if err != nil {
		return nil, err
	}
	s := &sqsProcess{process: p}
	s.endpoint, err = p.readLine()
	if err == nil {
		err = s.setLatency(latency)
	}
	if err == nil {
		q := url.Values{}
		for name, value := range attributes {
			q.Set(name, value)
		}
		err = s.ask("queue", q, &s.queueURL)
	}
	if err != nil {
		p.end()
		return nil, err
	}
	return s, nil
}

// ask calls the side entrance.
func (s *sqsProcess) ask(what string, q url.Values, answer any) error {
	res, err := http.Get(s.endpoint + "/bench/" + what + "?" + q.Encode())
	if err != nil {
		return fmt.Errorf("bench: the SQS process: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("bench: the SQS process: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("bench: the SQS process: %s: %s", what, body)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(body, answer)
}

func (s *sqsProcess) setLatency(d time.Duration) error {
	return s.ask("latency", url.Values{"d": {d.String()}}, nil)
}

func (s *sqsProcess) fill(n int) error {
	return s.ask("fill", url.Values{"n": {strconv.Itoa(n)}, "size": {strconv.Itoa(bodySize)}}, nil)
}

// bodySize is what a message's body has, in bytes.
const bodySize = 256

func (s *sqsProcess) feed(n, rate int) error {
	return s.ask("feed", url.Values{"n": {strconv.Itoa(n)}, "rate": {strconv.Itoa(rate)}, "size": {strconv.Itoa(bodySize)}}, nil)
}

// awaitDeleted waits until every message has been deleted.
func (s *sqsProcess) awaitDeleted(most time.Duration) error {
	return s.await(url.Values{"most": {most.String()}})
}

// awaitTenth waits until a tenth of them has been.
func (s *sqsProcess) awaitTenth(most time.Duration) error {
	return s.await(url.Values{"most": {most.String()}, "tenth": {"1"}})
}

func (s *sqsProcess) await(q url.Values) error {
	var done bool
	if err := s.ask("deleted", q, &done); err != nil {
		return err
	}
	if !done {
		return fmt.Errorf("bench: messages are left after %s", q.Get("most"))
	}
	return nil
}

func (s *sqsProcess) tally() (t tally, err error) {
	return t, s.ask("tally", nil, &t)
}

// tallyQueue also looks at what is left in the queue.
func (s *sqsProcess) tallyQueue() (t tally, err error) {
	return t, s.ask("tally", url.Values{"queue": {"1"}}, &t)
}

// contestant is a contestant's process.
type contestant struct{ *process }

// startContestant starts one that is ready to go.
func startContestant(ctx context.Context, a assignment) (*contestant, error) {
	p, err := start(ctx, ContestCommand)
	if err != nil {
		return nil, err
	}
	c := &contestant{p}
	if err = json.NewEncoder(p.in).Encode(a); err == nil {
		_, err = c.answer()
	}
	if err != nil {
		p.end()
		return nil, err
	}
	return c, nil
}

// startBoth starts an SQS process and a contestant that is ready to go at its queue.
func startBoth(ctx context.Context, latency time.Duration, attributes map[string]string, a assignment) (*sqsProcess, *contestant, error) {
	sqs, err := startSQS(ctx, latency, attributes)
	if err != nil {
		return nil, nil, err
	}
	a.Endpoint, a.QueueURL = sqs.endpoint, sqs.queueURL
	c, err := startContestant(ctx, a)
	if err != nil {
		sqs.end()
		return nil, nil, err
	}
	return sqs, c, nil
}

// say sends a command and reads the report that it is answered with.
func (c *contestant) say(command string) (report, error) {
	if err := json.NewEncoder(c.in).Encode(command); err != nil {
		return report{}, fmt.Errorf("bench: contestant: %w", err)
	}
	return c.answer()
}

func (c *contestant) answer() (r report, err error) {
	line, err := c.readLine()
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return r, fmt.Errorf("bench: contestant said %q: %w", line, err)
	}
	if r.Error != "" {
		err = errors.New("bench: contestant: " + r.Error)
	}
	return r, err
}
