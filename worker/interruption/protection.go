package interruption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// NoLimit as [ProtectionConfig.AtMost] keeps a task protected for as long as it holds messages, be it forever.
const NoLimit time.Duration = -1

// ProtectionConfig tunes [TaskProtection]. The zero value is ready for production.
type ProtectionConfig struct {
	// ExpiresIn is what each call asks for: how long the protection outlasts a worker that hangs. It is renewed at half of it.
	// Whole minutes from 2 m to 48 h, which is ECS's own bound; default 30 m.
	ExpiresIn time.Duration

	// IdleAfter is how long nothing must have been held until the protection is taken off. From 1 s to 1 h; default 1 m.
	// Shorter lets ECS scale in sooner; as long as it is under a minute, a worker that flaps between busy and idle can be
	// without protection for the rest of the minute that must lie between two calls.
	IdleAfter time.Duration

	// AtMost is how long the task stays protected without a break. A busy worker is never idle, and a task that is protected
	// for ever can't be deployed to: CloudFormation gives up after three hours. So after this time the protection is taken off for
	// five minutes, in which ECS can stop the task, and the worker drains. From 5 m to 48 h, or [NoLimit]; default 2 h. Set it
	// above your longest job, or to minutes if your jobs are shorter than DrainTimeout.
	AtMost time.Duration

	// AgentURI is the ECS agent's. Default: the environment variable ECS_AGENT_URI, which the agent sets (1.65.0 and later; Fargate
	// platform 1.4.0 and later).
	AgentURI string

	// HTTPClient makes the calls. Default: one that talks to the agent directly, whatever HTTP_PROXY says.
	HTTPClient HTTPClient

	// Logger takes a line when the protection is put on or off, and when it can't be. Default slog.Default().
	Logger *slog.Logger
}

func (c ProtectionConfig) withDefaults() (ProtectionConfig, error) {
	var errs []error
	check := func(field string, d *time.Duration, otherwise, least, most time.Duration, more string) {
		if *d == 0 {
			*d = otherwise
		}
		if *d < least || *d > most {
			errs = append(errs, fmt.Errorf("interruption: ProtectionConfig.%s is %v: must be from %v to %v%s", field, *d, least, most, more))
		}
	}
	check("ExpiresIn", &c.ExpiresIn, 30*time.Minute, 2*time.Minute, 48*time.Hour, "")
	if c.ExpiresIn%time.Minute != 0 {
		errs = append(errs, fmt.Errorf("interruption: ProtectionConfig.ExpiresIn is %v: must be whole minutes, because ECS counts it in minutes", c.ExpiresIn))
	}
	check("IdleAfter", &c.IdleAfter, time.Minute, time.Second, time.Hour, "")
	if c.AtMost != NoLimit {
		check("AtMost", &c.AtMost, 2*time.Hour, 5*time.Minute, 48*time.Hour, ", or interruption.NoLimit")
	}
	if c.AgentURI == "" {
		c.AgentURI = os.Getenv("ECS_AGENT_URI")
	}
	if c.HTTPClient == nil {
		c.HTTPClient = agentClient()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// Holder is a worker, as [worker.Worker] is: something that may hold messages.
type Holder interface {
	Stats() worker.Stats
	Healthy() error
}

// TaskProtection keeps ECS from choosing this task when it scales in or deploys, while one of its workers holds messages.
// It does so once a second by what the workers' Stats say, so a job of less than a second may never be noticed; it needs no
// protection either. There is at most one call a minute, so a task that becomes busy right after its protection was taken off
// can be without it for the rest of that minute.
//
// What fails (ECS throttles, a deployment is under way, the task belongs to no service, there is no agent) is logged and
// tried again, after one minute at first and eight at most. Nothing of it stops the work.
//
// It does not help against Spot interruptions. The task role needs ecs:UpdateTaskProtection.
type TaskProtection struct {
	cfg     ProtectionConfig
	workers []Holder
	agent   agent

	mu    sync.Mutex
	until time.Time // for Protected
}

// NewTaskProtection makes no call. The error names everything that is wrong with the configuration.
func NewTaskProtection(cfg ProtectionConfig, workers ...Holder) (*TaskProtection, error) {
	cfg, err := cfg.withDefaults()
	if len(workers) == 0 {
		err = errors.Join(err, errors.New("interruption: NewTaskProtection: no worker: pass those whose messages the task is to be protected for"))
	}
	for i, w := range workers {
		if own, ok := w.(*worker.Worker); w == nil || ok && own == nil {
			err = errors.Join(err, fmt.Errorf("interruption: NewTaskProtection: worker %d is nil", i))
		}
	}
	if err != nil {
		return nil, err
	}
	url := strings.TrimSuffix(cfg.AgentURI, "/") + "/task-protection/v1/state"
	return &TaskProtection{cfg: cfg, workers: workers, agent: agent{url: url, client: cfg.HTTPClient}}, nil
}

// Protected tells whether the task is protected as far as is known, and until when.
func (p *TaskProtection) Protected() (until time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until, time.Now().Before(p.until)
}

// lookEvery is how often the workers are asked.
const lookEvery = time.Second

// Run protects the task while messages are held. It blocks until ctx has ended and the workers hold nothing any more or have
// stopped; then it takes the protection off and returns nil. So it can have the same context as the workers, and drain
// with them. Outside of ECS it logs one line and returns at once.
func (p *TaskProtection) Run(ctx context.Context) error {
	if p.cfg.AgentURI == "" {
		p.cfg.Logger.Info("no task protection: ECS_AGENT_URI isn't set, so this isn't an ECS task, or its agent is older than 1.65.0")
		return nil
	}
	s := &protectionState{cfg: p.cfg}
	calls := context.WithoutCancel(ctx) // the end of ctx begins the drain
	for {
		busy := p.held()
		switch now := time.Now(); s.decide(now, busy) {
		case putOn:
			p.call(calls, s, now, s.lasting(now))
		case takeOff:
			p.call(calls, s, now, 0)
		}
		if ctx.Err() == nil {
			sleep(ctx, lookEvery)
			continue
		}
		if !busy {
			break
		}
		time.Sleep(lookEvery / 10)
	}
	if s.on(time.Now()) {
		last, cancel := context.WithTimeout(calls, time.Second) // the process is about to end
		defer cancel()
		p.call(last, s, time.Now(), 0)
	}
	return nil
}

// call asks ECS for protection that lasts for d; zero takes it off.
func (p *TaskProtection) call(ctx context.Context, s *protectionState, now time.Time, d time.Duration) {
	was, failed := s.on(now), s.failures
	_, err := p.agent.protect(ctx, d)
	s.learn(now, d, err)
	log := p.cfg.Logger
	switch {
	case err != nil:
		if s.failures&(s.failures-1) == 0 {
			log.Warn("the task's protection can't be changed; the work goes on, ECS may choose this task when it scales in or deploys",
				"protect", d > 0, "failures", s.failures, "next_in", s.nextCall.Sub(now), "error", err)
		}
		return
	case d == 0:
		log.Info("the task isn't protected from scale-in any more: nothing is held, or AtMost is over")
	case !was || failed > 0:
		log.Info("the task is protected from scale-in: it holds messages", "for", d)
	}
	p.mu.Lock()
	p.until = time.Time{}
	if d > 0 {
		p.until = now.Add(d)
	}
	p.mu.Unlock()
}

// held tells whether any worker holds messages. What a worker that has stopped could not settle isn't held.
func (p *TaskProtection) held() bool {
	for _, w := range p.workers {
		if w.Stats().Held > 0 && !errors.Is(w.Healthy(), worker.ErrNotRunning) {
			return true
		}
	}
	return false
}
