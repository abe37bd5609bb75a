package dlq

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// prepared is a redrive about which everything is known that can be known before it begins.
type prepared struct {
	client  RedriveClient
	cfg     RedriveConfig
	dead    *queue
	to      *queue          // nil: each message's own source
	sources map[string]bool // names of queues that a sink's reason may send back to
}

// prepare refuses what can't go well, and decides who moves.
func prepare(ctx context.Context, c RedriveClient, dlqURL string, cfg RedriveConfig) (*prepared, error) {
	p := &prepared{client: c, cfg: cfg, sources: map[string]bool{}}
	var err error
	if p.dead, err = readQueue(ctx, c, dlqURL); err != nil {
		return nil, explain(err, "GetQueueAttributes", dlqURL)
	}
	if cfg.Via == Automatic && (len(cfg.moverOnly()) > 0 || cfg.DryRun || cfg.Rate > maxTaskRate) {
		p.cfg.Via = Mover
	}
	if err := p.checkSources(ctx); err != nil {
		return nil, err
	}
	if err := p.checkTasks(ctx); err != nil {
		return nil, err
	}
	if err := p.checkDestination(ctx); err != nil {
		return nil, err
	}
	if err := p.choose(ctx); err != nil {
		return nil, err
	}
	return p, p.checkDuration()
}

func (p *prepared) checkSources(ctx context.Context) error {
	urls, err := sourcesOf(ctx, p.client, p.dead.url)
	if err != nil && !(p.cfg.AnyQueue && isDenied(err)) {
		return explain(err, "ListDeadLetterSourceQueues", p.dead.url)
	}
	if len(urls) == 0 && !p.cfg.AnyQueue {
		return fmt.Errorf("%w: no queue's redrive policy names %s: check the name, or set RedriveConfig.AnyQueue if only a sink sends to it", ErrNotDeadLetterQueue, p.dead.name)
	}
	for _, url := range append(urls, p.cfg.Sources...) {
		p.sources[nameOf(url)] = true
	}
	return nil
}

// checkTasks: a task and the mover would take each other's messages, and two tasks SQS doesn't allow.
func (p *prepared) checkTasks(ctx context.Context) error {
	tasks, err := listTasks(ctx, p.client, p.dead.arn)
	switch {
	case err != nil && p.cfg.Via == Mover && codeOf(err) != "" && !isPassing(err):
		return nil // not allowed to ask, or a server without tasks: the mover doesn't need them
	case err != nil:
		return explain(err, "ListMessageMoveTasks", p.dead.arn)
	}
	for _, t := range tasks {
		if t.active() {
			return fmt.Errorf("%w: started %s, %d of about %d moved: wait for it, or cancel it", ErrTaskRunning, t.StartedAt.UTC().Format(time.RFC3339), t.Moved, t.ToMove)
		}
	}
	return nil
}

func (p *prepared) checkDestination(ctx context.Context) error {
	url := p.cfg.Destination
	if url == "" {
		return nil
	}
	if to, ok := parseARN(url); ok {
		own, _ := parseARN(p.dead.arn)
		if to.account != own.account || to.region != own.region {
			return fmt.Errorf("%w: %s is in another account or Region than %s: SQS moves within one only; the mover can send to another account's queue, by its URL", ErrNoDestination, url, p.dead.arn)
		}
		url = siblingURL(p.dead.url, to.name)
	} else if err := checkURL(url); err != nil {
		return fmt.Errorf("dlq: RedriveConfig.Destination: %w", err)
	}
	to, err := readQueue(ctx, p.client, url)
	switch {
	case isMissing(err):
		return fmt.Errorf("%w: %s", ErrNoDestination, url)
	case err != nil:
		return explain(err, "GetQueueAttributes", url)
	case to.arn == p.dead.arn:
		return fmt.Errorf("%w: %s", ErrSameQueue, to.name)
	case to.fifo != p.dead.fifo:
		return fmt.Errorf("%w: %s is %s, %s is %s", ErrDifferentType, p.dead.name, kindOf(p.dead.fifo), to.name, kindOf(to.fifo))
	}
	p.to = to
	return nil
}

// sampled is how many messages are looked at before a move task that has no destination.
const sampled = 10

// choose settles who moves. A task without a destination fails at the first message that was sent to the dead-letter queue directly, so
// some are looked at before.
func (p *prepared) choose(ctx context.Context) error {
	if p.cfg.Via == Mover {
		return nil
	}
	if p.to == nil {
		id, copied, err := p.withoutSource(ctx)
		switch {
		case err != nil:
			return err
		case id == "":
		case p.cfg.Via == Automatic && copied && !p.cfg.Detach:
			p.cfg.Via = Mover
			return nil
		default:
			return fmt.Errorf("%w: message %s, and maybe others, was sent to %s directly, so that SQS can't tell where it belongs: set RedriveConfig.Destination; for what a sink sent, dlq.Mover knows too", ErrSourceUnknown, id, p.dead.name)
		}
	}
	p.cfg.Via = MoveTask
	return nil
}

// withoutSource finds a message of which SQS doesn't know where it came from. copied says that a sink sent it.
func (p *prepared) withoutSource(ctx context.Context) (id string, copied bool, err error) {
	for item, err := range Peek(ctx, p.client, p.dead.url, PeekConfig{Limit: sampled, Logger: p.cfg.Logger}) {
		switch {
		case item == nil:
			return "", false, err
		case item.SourceARN != "":
		case item.Reason == nil:
			return item.ID, false, nil
		case id == "":
			id, copied = item.ID, true
		}
	}
	return id, copied, nil
}

func (p *prepared) checkDuration() error {
	if p.cfg.Via != MoveTask {
		return nil
	}
	rate := p.cfg.Rate
	setDefault(&rate, maxTaskRate)
	count := p.dead.counts().Visible
	if need := time.Duration(float64(count) / float64(rate) * float64(time.Second)); need > maxTaskDuration {
		return fmt.Errorf("%w: about %d messages at %d a second take %v: raise RedriveConfig.Rate, or use dlq.Mover", ErrTooLong, count, rate, need.Round(time.Minute))
	}
	return nil
}

// refusal finds the reason in what SQS says about a move task.
func refusal(err error) error {
	text := describe(err)
	for sign, reason := range map[string]error{
		"must be configured as a Dead Letter Queue": ErrNotDeadLetterQueue,
		"already a task running":                    ErrTaskRunning,
		"must be of the same type":                  ErrDifferentType,
		"cannot be the same":                        ErrSameQueue,
		"ResourceNotFoundException":                 ErrNoDestination,
		"CouldNotDetermineMessageSource":            ErrSourceUnknown,
	} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("%w: %w", reason, err)
		}
	}
	return nil
}
