package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/sqsworker/sqsworker/worker"
)

// Attributes by which Elastic Beanstalk's scheduler marks the messages of periodic tasks. They aren't passed on as
// X-Aws-Sqsd-Attr headers.
const (
	taskPrefix    = "beanstalk.sqsd."
	taskName      = taskPrefix + "task_name"
	taskPath      = taskPrefix + "path"
	taskScheduled = taskPrefix + "scheduled_time"
)

// iso8601 is how Beanstalk's daemon writes a time, in UTC.
const iso8601 = "2006-01-02T15:04:05Z"

// poster is the handler: a message becomes a request, the answer becomes its result.
type poster struct {
	target  *url.URL
	client  *http.Client
	options options
	log     *slog.Logger
	omitted sync.Map // names of attributes that can't be a header, each logged once
}

func parseTarget(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("-url is %q: must be an http or https URL, such as http://localhost:8080/", rawURL)
	}
	return u, nil
}

// newTransport keeps a connection for each request that may be open, and goes through no proxy: the program is near.
func newTransport(connections int) http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	t.MaxIdleConns, t.MaxIdleConnsPerHost = connections, connections
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext // Beanstalk's ConnectTimeout
	return t
}

func newPoster(target *url.URL, transport http.RoundTripper, o options, log *slog.Logger) *poster {
	return &poster{target: target, options: o, log: log, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // an answer that isn't 200
	}}
}

// Handle POSTs one message. The context ends after -timeout, or when the message can't be held any longer.
func (p *poster) Handle(ctx context.Context, m *worker.Message) error {
	req, err := p.request(ctx, m)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return p.noAnswer(ctx, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 256<<10)) // so that the connection can be used again
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	err = fmt.Errorf("the program answered %d %s, and not 200", resp.StatusCode, http.StatusText(resp.StatusCode))
	if after, ok := retryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
		return worker.RetryAfter(after, err)
	}
	return p.failure(err)
}

// noAnswer tells a program that isn't there, which is no fault of the message, from one that didn't answer.
func (p *poster) noAnswer(ctx context.Context, err error) error {
	var dial *net.OpError
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, worker.ErrHandlerTimeout):
		return p.failure(fmt.Errorf("the program didn't answer within %v", p.options.timeout))
	case cause != nil:
		return cause
	case errors.As(err, &dial) && dial.Op == "dial":
		return worker.Unavailable(err) // the worker pauses, instead of wearing out good messages
	}
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // its text has the URL, which may come from the message
	}
	return p.failure(fmt.Errorf("no answer: %w", err))
}

func (p *poster) failure(err error) error {
	if p.options.errorVisibility > 0 {
		return worker.RetryAfter(p.options.errorVisibility, err)
	}
	return err
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	if seconds, err := strconv.Atoi(value); err == nil && seconds >= 0 {
		return min(time.Duration(seconds), 12*60*60) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), 12*time.Hour), true
	}
	return 0, false
}

func (p *poster) request(ctx context.Context, m *worker.Message) (*http.Request, error) {
	target, body := p.target, io.Reader(strings.NewReader(m.Body))
	scheduled := m.Attribute(taskScheduled) != ""
	if scheduled && p.options.taskPaths && m.Attribute(taskPath) != "" {
		other, err := p.taskTarget(m.Attribute(taskPath))
		if err != nil {
			return nil, worker.Permanent(err)
		}
		target, body = other, http.NoBody // the body of a task says nothing
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), body)
	if err != nil {
		return nil, err
	}
	h := req.Header
	h.Set("Content-Type", p.options.mimeType)
	h.Set("User-Agent", "aws-sqsd/3.0 (sqsworker)")
	h.Set("X-Aws-Sqsd-Msgid", m.ID)
	h.Set("X-Aws-Sqsd-Queue", path.Base(m.QueueURL))
	h.Set("X-Aws-Sqsd-Receive-Count", strconv.Itoa(m.ReceiveCount))
	setTime(h, "X-Aws-Sqsd-First-Received-At", m.FirstReceivedAt)
	setTime(h, "X-Aws-Sqsd-Sent-At", m.SentAt)
	p.set(h, "X-Aws-Sqsd-Sender-Id", m.SenderID)
	if scheduled {
		p.set(h, "X-Aws-Sqsd-Taskname", m.Attribute(taskName))
		p.set(h, "X-Aws-Sqsd-Path", m.Attribute(taskPath))
		p.setScheduled(h, m.Attribute(taskScheduled))
	}
	p.setAttributes(h, m)
	return req, nil
}

// taskTarget is the URL of a scheduled task: its path, on the program's host and no other.
func (p *poster) taskTarget(ref string) (*url.URL, error) {
	u, err := url.Parse(ref)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(ref, "//") {
		return nil, fmt.Errorf("attribute %s isn't a path that begins with one slash", taskPath)
	}
	target := *p.target
	target.Path, target.RawPath, target.RawQuery = u.Path, u.RawPath, u.RawQuery
	return &target, nil
}

// setAttributes passes on strings and numbers; Beanstalk's daemon drops binary attributes, and so does this one.
func (p *poster) setAttributes(h http.Header, m *worker.Message) {
	for name, a := range m.Attributes {
		kind := aws.ToString(a.DataType)
		switch {
		case strings.HasPrefix(name, taskPrefix):
		case strings.HasPrefix(kind, "String"), strings.HasPrefix(kind, "Number"):
			p.set(h, "X-Aws-Sqsd-Attr-"+name, aws.ToString(a.StringValue))
		default:
			p.omit("X-Aws-Sqsd-Attr-"+name, "its type is "+kind)
		}
	}
}

// set sets a header, unless the value can't be one: a line break in it would make two of it.
func (p *poster) set(h http.Header, name, value string) {
	if value == "" {
		return
	}
	for _, c := range []byte(value) {
		if (c < ' ' && c != '\t') || c == 0x7f {
			p.omit(name, "it has control characters")
			return
		}
	}
	h.Set(name, value)
}

func (p *poster) omit(header, why string) {
	if _, known := p.omitted.LoadOrStore(header, true); !known {
		p.log.Warn("a header is left out", "header", header, "because", why)
	}
}

func setTime(h http.Header, name string, t time.Time) {
	if !t.IsZero() {
		h.Set(name, t.UTC().Format(iso8601))
	}
}

// setScheduled writes the time in Beanstalk's way, if it is one.
func (p *poster) setScheduled(h http.Header, value string) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700"} {
		if t, err := time.Parse(layout, value); err == nil {
			setTime(h, "X-Aws-Sqsd-Scheduled-At", t)
			return
		}
	}
	p.set(h, "X-Aws-Sqsd-Scheduled-At", value)
}
