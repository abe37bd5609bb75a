package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/idempotency"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

const (
	queueName       = "orders"
	dlqName         = "orders-dlq"
	maxReceiveCount = 3

	look = 50 * time.Millisecond // how often the scene looks at what has happened
	// patience is how long it waits at most for messages that a killed worker held.
	patience = 60 * time.Second
)

// scene is one run on the in-process SQS: a queue, its workers, and what happens to them.
type scene struct {
	o        options
	out      *narrator
	server   *sqsmodel.Server
	queueURL string
	ledger   *ledger
	workers  []*contestant
	victim   *process // the worker that -crash kills
	records  *records // DynamoDB
	objects  *objects // S3
	shared   shared   // their clients
	deletes  *failedDeletes

	halfway                    bool
	announced                  int // dead-lettered messages told of
	deletesTold, deletionsSeen int
	againTold, twiceTold       bool
	toldBack                   bool
	crashed                    []string // ids of the messages that the victim held when it was killed
	crashedAt                  time.Time
	emptyAt                    time.Time
	incomplete                 error // why the scene ended before everything was done
}

// contestant is one worker that runs.
type contestant struct {
	name    string
	worker  *worker.Worker // nil in a process of its own
	stop    func()
	done    chan struct{} // closed when it has ended
	err     error         // then: how
	stopped bool          // told to stop
}

// runScene is the program without -queue-url and -short-poll.
func runScene(ctx context.Context, o options, stdin io.Reader, out io.Writer) (status int, err error) {
	messages, source, err := readInput(o.input, stdin)
	if err != nil {
		return exitUsage, err
	}
	s, err := newScene(ctx, o, out)
	if err != nil {
		return exitUsage, err
	}
	r, err := s.run(ctx, messages, source)
	if err != nil {
		return exitBad, err
	}
	r.print(out)
	return r.status(), nil
}

// newScene starts an SQS with two queues, a DynamoDB with a table and an S3 with a bucket.
func newScene(ctx context.Context, o options, out io.Writer) (*scene, error) {
	s := &scene{o: o, out: newNarrator(out), ledger: newLedger(queueName)}
	var cfg sqsmodel.Config
	if o.crash {
		s.victim = &process{ledger: s.ledger, handles: map[string]bool{}}
		endpoint, err := s.victim.listen()
		if err != nil {
			return nil, err
		}
		cfg.Endpoint = endpoint
	}
	s.server = sqsmodel.New(cfg)
	s.server.OnEvent(s.ledger.event)
	s.server.MustCreateQueue(dlqName, map[string]string{
		"MessageRetentionPeriod": strconv.Itoa(14 * 24 * 60 * 60), // longer than the queue's: messages keep their age
	})
	s.queueURL = s.server.MustCreateQueue(queueName, map[string]string{
		"VisibilityTimeout":             strconv.Itoa(int(o.visibility / time.Second)),
		"ReceiveMessageWaitTimeSeconds": "20",
		"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`,
			s.server.Queue(dlqName).ARN, maxReceiveCount),
	})
	s.deletes = s.failDeletes()
	return s, s.newShared(ctx)
}

// newShared makes what the workers share beside the queue.
func (s *scene) newShared(ctx context.Context) (err error) {
	s.records = newRecords()
	if s.objects, err = newObjects(bucketName, s.pointsTo); err != nil {
		return err
	}
	s.shared = newShared("http://in.this.process", inProcess{http.HandlerFunc(s.serveOthers)})
	return idempotency.CreateTable(ctx, s.shared.dynamo, tableName, idempotency.DynamoConfig{})
}

// serveOthers is all of AWS that isn't SQS.
func (s *scene) serveOthers(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("X-Amz-Target"), "DynamoDB_") {
		s.records.ServeHTTP(w, r)
		return
	}
	s.objects.ServeHTTP(w, r)
}

// run plays the scene: send, work, stop a worker half-way, wait until the queue is empty, stop the others.
func (s *scene) run(ctx context.Context, messages []message, source string) (*report, error) {
	defer s.stopAll()
	s.introduce()
	if err := s.send(ctx, messages, source); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	if err := s.watch(ctx); err != nil {
		return nil, err
	}
	s.stopAll()
	s.out.wipe()
	return s.report()
}

func (s *scene) introduce() {
	s.out.say("an SQS, a DynamoDB and an S3 in this process: queue %q, visibility %v, to %q after %d receives", queueName, s.o.visibility, dlqName, maxReceiveCount)
}

// send puts the messages into the queue, before any worker is there, so that half-way is half-way.
func (s *scene) send(ctx context.Context, messages []message, source string) error {
	if s.o.messages > 0 {
		messages = append(messages, generate(s.o.messages)...)
		source = fmt.Sprintf("%s and %d generated orders", source, s.o.messages)
	}
	client, err := extended.New(s.server.Client(), s.shared.s3, attachments(s.o.logger))
	if err != nil {
		return err
	}
	if err := send(ctx, client, s.queueURL, messages, s.ledger.sent); err != nil {
		return err
	}
	var events, slow, once, always int
	for _, m := range messages {
		count(&events, m.job.event)
		count(&slow, m.job.slow)
		count(&once, m.job.failsOnce)
		count(&always, m.job.alwaysFails)
	}
	s.out.say("sent %d messages from %s: %d orders, %d S3 event notifications", len(messages), source, len(messages)-events, events)
	s.out.say("%d take %v, the others %v; %d fail once, %d always fail; heartbeats are %s",
		slow, s.o.handleTime, s.o.handleTime/20, once, always, s.o.heartbeats())
	s.introduceDuplicates(messages)
	return nil
}

// introduceDuplicates tells what is sent twice, and what is too large for SQS.
func (s *scene) introduceDuplicates(messages []message) {
	seen := map[string]bool{}
	var again, attached, bytes int
	for _, m := range messages {
		count(&again, !m.job.event && seen[m.job.name])
		seen[m.job.name] = true
		count(&attached, m.attach > 0)
		bytes += m.attach
	}
	if attached > 0 {
		s.out.say("%s with an attachment, %.1f MiB in all, which SQS doesn't take: through S3", plural(attached, "order"), mebibytes(int64(bytes)))
	}
	if again > 0 {
		s.out.say("%s sent a second time; idempotency is %s", plural(again, "order"), onOff[s.o.idempotency])
	}
}

var onOff = map[bool]string{true: "on", false: "OFF"}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}

func (o options) heartbeats() string {
	switch {
	case o.heartbeat == worker.NoHeartbeat:
		return "OFF"
	case o.heartbeat > 0:
		return fmt.Sprintf("on, every %v", o.heartbeat)
	}
	return "on"
}

// start starts the workers, each with a client of its own.
func (s *scene) start() error {
	for i := range s.o.workers {
		name := fmt.Sprintf("worker %d", i+1)
		var c *contestant
		var err error
		if s.victim != nil && i == 1 {
			c, err = s.victim.start(name, s.queueURL, s.o, s.server, http.HandlerFunc(s.serveOthers))
		} else {
			c, err = s.startWorker(name)
		}
		if err != nil {
			return err
		}
		s.workers = append(s.workers, c)
	}
	s.out.say("%s: each runs %d handlers at once and holds %d messages more ready", plural(s.o.workers, "worker"), s.o.concurrency, s.o.concurrency)
	return nil
}

func (s *scene) startWorker(name string) (*contestant, error) {
	middleware, err := s.shared.middleware(s.o, s.ledger.watch(name))
	if err != nil {
		return nil, err
	}
	w, err := newWorker(s.server.Client(), s.queueURL, name, s.o, middleware...)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &contestant{name: name, worker: w, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = w.Run(ctx)
	}()
	return c, nil
}

// watch waits until everything is done, and does what the script says meanwhile.
func (s *scene) watch(ctx context.Context) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			s.out.say("interrupted: the workers stop")
			s.incomplete = errInterrupted
			return nil
		case <-ticker.C:
		}
		if err := s.checkWorkers(); err != nil {
			return err
		}
		now := s.ledger.counts()
		if !s.halfway && s.o.workers > 1 && 2*now.done() >= now.sent {
			s.halfway = true
			s.stopOrKill(s.workers[1], now)
		}
		s.tellComeback()
		s.tellDeadLettered()
		s.tellDuplicates()
		if s.over(now) {
			return nil
		}
		s.out.progress(now.done(), now.sent, s.whoRuns())
	}
}

// checkWorkers fails when a worker ended that wasn't told to.
func (s *scene) checkWorkers() error {
	for _, c := range s.workers {
		select {
		case <-c.done:
			if !c.stopped {
				return fmt.Errorf("%s ended before its time: %w", c.name, errors.Join(c.err, errEnded))
			}
		default:
		}
	}
	return nil
}

var (
	errEnded       = errors.New("it should run until it is told to stop")
	errInterrupted = errors.New("interrupted")
	errStuck       = errors.New("nothing moves any more")
	errAway        = errors.New("held by the worker that was killed")
)

// over tells whether there is nothing more to wait for.
func (s *scene) over(now counts) bool {
	if now.done() >= now.sent {
		return s.idled(now)
	}
	if s.victim != nil && s.halfway && s.onlyTheDeadHold(now) {
		s.incomplete = errAway
		return true
	}
	if quiet := s.o.visibility + s.o.handleTime + 30*time.Second; time.Since(s.ledger.lastEvent()) > quiet && s.crashedAt.IsZero() {
		s.out.say("nothing has moved for %v: giving up", quiet)
		s.incomplete = errStuck
		return true
	}
	return false
}

// idled tells that the queue is empty, and whether the workers have had nothing to do for as long as they should.
func (s *scene) idled(now counts) bool {
	if s.emptyAt.IsZero() {
		s.emptyAt = time.Now()
		s.out.say("the queue is empty: %d deleted after success, %d in %q", now.deleted, now.dead, dlqName)
		if s.o.idle > 0 {
			s.out.say("for %v there is nothing to do, which is when polling costs the most", s.o.idle)
		}
	}
	return time.Since(s.emptyAt) >= s.o.idle
}

// whoRuns is what the workers are doing, for the progress bar.
func (s *scene) whoRuns() string {
	var parts []string
	for _, c := range s.workers {
		select {
		case <-c.done:
			continue
		default:
		}
		if c.worker != nil {
			parts = append(parts, fmt.Sprintf("%s runs %d", c.name, c.worker.Stats().Running))
		}
		if len(parts) == 4 { // more don't fit on a line
			break
		}
	}
	return strings.Join(parts, ", ")
}

// tellDeadLettered tells of the first messages that went to the dead-letter queue.
func (s *scene) tellDeadLettered() {
	const most = 4
	for _, id := range s.ledger.deadLettered(s.announced) {
		if s.announced++; s.announced > most {
			continue
		}
		j := s.ledger.job(id)
		if j.alwaysFails {
			s.out.say("%s has failed %d times: SQS moves it to %q", j.name, maxReceiveCount, dlqName)
		} else {
			s.out.say("%s has been received %d times and never deleted: SQS moves it to %q", j.name, maxReceiveCount, dlqName)
		}
		if s.announced == most {
			s.out.say("... (more are only counted)")
		}
	}
}

// stopAll stops every worker that still runs, all at once, and waits for them.
func (s *scene) stopAll() {
	for _, c := range s.workers {
		c.stopped = true
		c.stop()
	}
	for _, c := range s.workers {
		<-c.done
	}
	if s.victim != nil {
		s.victim.close()
	}
}
