package worker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

// The simulation plays random scripts: workers that stop and start again, messages that are slow, fail, panic, snooze or
// ignore their context, and faults at SQS. It knows nothing of how the worker works, only what must hold at the end and
// at every call.

// script decides by bytes, so that the fuzzer can shape it, and by a generator seeded with them once they are used up.
type script struct {
	data []byte
	rand *rand.Rand
}

func newScript(data []byte) *script {
	h := fnv.New64a()
	h.Write(data)
	return &script{data: data, rand: rand.New(rand.NewPCG(h.Sum64(), 1))}
}

// pick returns 0 to n-1.
func (s *script) pick(n int) int {
	if len(s.data) == 0 {
		return s.rand.IntN(n)
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int(b) % n
}

func (s *script) chance(percent int) bool { return s.pick(100) < percent }

func (s *script) between(least, most time.Duration) time.Duration {
	return least + (most-least)*time.Duration(s.pick(200))/199
}

// behaviour is what a handler does with one delivery of a message.
type behaviour struct {
	takes   time.Duration
	deaf    bool // ignores its context
	outcome int
}

const (
	doSucceed = iota
	doFail
	doPanic
	doSnooze
	doRetryAfter
	doPermanent
	doUnavailable
	doCancelled
	outcomes
)

// simulation is one script being played.
type simulation struct {
	t      *testing.T
	server *sqsmodel.Server
	queue  string
	name   string
	fifo   bool
	names  []string            // message ids in the order of sending
	groups map[string][]string // bodies by message group, in the order of sending
	ids    map[string]string   // message ids by body
	seed   uint64
	script *script

	log lines

	mu        sync.Mutex
	gone      map[string]bool      // deleted or dead-lettered
	calm      bool                 // the last act: no faults, everything succeeds
	succeeded map[string]bool      // message ids with a handler that returned nil
	leaseEnd  map[string]time.Time // by receipt handle, as the server granted it
	problems  []string
}

// lines keeps what was logged, to be shown when something was wrong.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) last(n int) []string {
	all := strings.Split(strings.TrimSpace(l.text.String()), "\n")
	return all[max(0, len(all)-n):]
}

func (sim *simulation) problem(format string, args ...any) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if len(sim.problems) < 10 {
		sim.problems = append(sim.problems, fmt.Sprintf(format, args...))
	}
}

// play runs a script and reports what was wrong.
func play(t *testing.T, data []byte) (problems []string) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(data)
		model := sqsmodel.Config{
			Latency: time.Duration(s.pick(4)) * 7 * time.Millisecond, AbandonedPolls: s.chance(30), ShuffleStandard: s.chance(50),
			NoQueryErrorHeader: s.chance(30), Seed: uint64(s.pick(256)), ExpiredVisibility: []sqsmodel.ExpiredVisibility{
				sqsmodel.ExpiredVisibilityNoop, sqsmodel.ExpiredVisibilityApplies, sqsmodel.ExpiredVisibilityFails}[s.pick(3)],
		}
		if s.chance(20) {
			model.MaxHold = s.between(20*time.Second, 2*time.Minute)
		}
		sim := &simulation{t: t, server: sqsmodel.New(model), script: s, seed: s.rand.Uint64(), succeeded: map[string]bool{}, gone: map[string]bool{}, groups: map[string][]string{}, ids: map[string]string{}, name: "jobs", fifo: s.chance(40), leaseEnd: map[string]time.Time{}}
		sim.setUp()
		sim.playActs(model)
		sim.checkEnd()
		if problems = sim.problems; len(problems) > 0 {
			problems = append(problems, sim.log.last(150)...)
		}
	})
	return problems
}

func (sim *simulation) setUp() {
	s := sim.script
	attrs := map[string]string{"VisibilityTimeout": strconv.Itoa(1 + s.pick(30)), "ReceiveMessageWaitTimeSeconds": "20"}
	dead, kind := "dead", map[string]string(nil)
	if sim.fifo {
		sim.name, dead, kind = "jobs.fifo", "dead.fifo", map[string]string{"FifoQueue": "true"}
		attrs["FifoQueue"] = "true"
	}
	if s.chance(50) {
		sim.server.MustCreateQueue(dead, kind)
		attrs["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:%s","maxReceiveCount":"%d"}`, dead, 2+s.pick(4))
	}
	sim.queue = sim.server.MustCreateQueue(sim.name, attrs)
	sim.server.OnEvent(sim.observe)
}

// observe holds the server's truth against what the handlers did.
func (sim *simulation) observe(e sqsmodel.Event) {
	if e.Queue != sim.name {
		return
	}
	switch e.Kind {
	case sqsmodel.Received, sqsmodel.VisibilityChanged:
		sim.mu.Lock()
		sim.leaseEnd[e.Handle] = e.At.Add(e.VisibilityTimeout)
		sim.mu.Unlock()
	case sqsmodel.DeadLettered:
		sim.mu.Lock()
		sim.gone[e.MessageID] = true
		sim.mu.Unlock()
	case sqsmodel.Deleted:
		sim.mu.Lock()
		ok := sim.succeeded[e.MessageID]
		sim.gone[e.MessageID] = true
		sim.mu.Unlock()
		if !ok {
			sim.problem("message %s deleted although no handler succeeded", e.MessageID)
		}
	}
}

// spy stands between a worker and SQS: it sees when a call is sent, which the server can't.
type spy struct {
	*sqs.Client
	sim  *simulation
	mu   sync.Mutex
	over bool
}

func (c *spy) sent(action string, handles ...*string) {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	if over {
		c.sim.problem("%s after Run returned", action)
	}
	now := time.Now()
	c.sim.mu.Lock()
	defer c.sim.mu.Unlock()
	for _, h := range handles {
		if end, ok := c.sim.leaseEnd[*h]; ok && now.After(end) {
			c.sim.problems = append(c.sim.problems, fmt.Sprintf("%s %v after the lease was over, at %s", action, now.Sub(end), clock(now)))
			c.sim.problems = append(c.sim.problems, c.sim.history(func(e sqsmodel.Event) bool { return e.Handle == *h })...)
		}
	}
}

// history is what the server noted of some messages.
func (sim *simulation) history(of func(sqsmodel.Event) bool) (lines []string) {
	for _, e := range sim.server.Journal() {
		if of(e) {
			lines = append(lines, fmt.Sprintf("  %s %s: %v, receive %d, visibility %v, handle %.8x", clock(e.At), e.MessageID, e.Kind, e.ReceiveCount, e.VisibilityTimeout, fnv32(e.Handle)))
		}
	}
	return lines
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

func fnv32(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

func (c *spy) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, o ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	c.sent("ReceiveMessage")
	return c.Client.ReceiveMessage(ctx, in, o...)
}

func (c *spy) DeleteMessageBatch(ctx context.Context, in *sqs.DeleteMessageBatchInput, o ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	var handles []*string
	for _, e := range in.Entries {
		handles = append(handles, e.ReceiptHandle)
	}
	c.sent("DeleteMessageBatch", handles...)
	return c.Client.DeleteMessageBatch(ctx, in, o...)
}

func (c *spy) ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, o ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	var handles []*string
	for _, e := range in.Entries {
		handles = append(handles, e.ReceiptHandle)
	}
	c.sent("ChangeMessageVisibilityBatch", handles...)
	out, err := c.Client.ChangeMessageVisibilityBatch(ctx, in, o...)
	if err == nil {
		c.confirmed(in, out)
	}
	return out, err
}

// confirmed takes SQS at its word. When another receive of the message has been given back meanwhile, the change may be none,
// and still be confirmed ([sqsmodel.ExpiredVisibilityNoop]); a worker can't know.
func (c *spy) confirmed(in *sqs.ChangeMessageVisibilityBatchInput, out *sqs.ChangeMessageVisibilityBatchOutput) {
	c.sim.mu.Lock()
	defer c.sim.mu.Unlock()
	for _, ok := range out.Successful {
		i := slices.IndexFunc(in.Entries, func(e types.ChangeMessageVisibilityBatchRequestEntry) bool { return *e.Id == *ok.Id })
		e := in.Entries[i]
		if end := time.Now().Add(time.Duration(e.VisibilityTimeout) * time.Second); e.VisibilityTimeout > 0 && end.After(c.sim.leaseEnd[*e.ReceiptHandle]) {
			c.sim.leaseEnd[*e.ReceiptHandle] = end
		}
	}
}

// playActs: a few minutes of trouble, then a calm act in which everything that is left must get done.
func (sim *simulation) playActs(model sqsmodel.Config) {
	s := sim.script
	var wg sync.WaitGroup
	length := s.between(20*time.Second, 3*time.Minute)
	for range 1 + s.pick(3) {
		cfg := sim.randomConfig()
		if model.MaxHold > 0 {
			cfg.MaxHold = model.MaxHold
		}
		var lives []time.Duration // how long each life of the worker lasts
		for left := length; left > 0; {
			life := s.between(time.Second, length)
			if life > left {
				life = left
			}
			lives = append(lives, life)
			left -= life
		}
		wg.Go(func() {
			for _, life := range lives {
				sim.live(cfg, life)
			}
		})
	}
	faults := sim.randomFaults(length)
	sim.sendAll(length)
	wg.Wait()
	for _, remove := range faults {
		remove()
	}
	sim.mu.Lock()
	sim.calm = true
	sim.mu.Unlock()
	cfg := worker.Config{Concurrency: 10, Logger: slog.New(slog.NewTextHandler(&sim.log, nil))}
	if model.MaxHold > 0 {
		cfg.MaxHold = model.MaxHold
	}
	sim.live(cfg, time.Hour)
}

func (sim *simulation) randomConfig() worker.Config {
	s := sim.script
	cfg := worker.Config{
		Concurrency: 1 + s.pick(12), Prefetch: []int{0, 0, 3, 10}[s.pick(4)],
		Backoff:      worker.Backoff{Min: time.Second, Max: s.between(time.Second, 20*time.Second)},
		DrainTimeout: s.between(2*time.Second, 25*time.Second),
		Logger:       slog.New(slog.NewTextHandler(&sim.log, nil)),
	}
	if s.chance(30) {
		cfg.Visibility = time.Duration(1+s.pick(20)) * time.Second
	}
	if s.chance(10) {
		cfg.HeartbeatInterval = worker.NoHeartbeat
	}
	if s.chance(30) {
		cfg.Retries, cfg.RetryDelay = 1+s.pick(3), s.between(time.Millisecond, 5*time.Second)
	}
	if s.chance(15) {
		cfg.TenantConcurrency = 1 + s.pick(3)
	}
	cfg.Breaker.Pause = s.between(time.Second, 30*time.Second)
	if s.chance(10) {
		cfg.Breaker.FailureRate, cfg.Breaker.MinResults = 0.5, 5
	}
	if s.chance(20) && cfg.HeartbeatInterval == 0 {
		cfg.HandlerTimeout = s.between(time.Second, 20*time.Second)
	}
	return cfg
}

// randomFaults breaks SQS in a few ways, some for good until the calm act.
func (sim *simulation) randomFaults(length time.Duration) (remove []func()) {
	s := sim.script
	actions := []string{"", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch", "GetQueueAttributes"}
	for range s.pick(5) {
		f := sqsmodel.Fault{Action: actions[s.pick(len(actions))], Skip: s.pick(10), Times: 1 + s.pick(8)}
		switch s.pick(7) {
		case 0:
			f.DropBefore = true
		case 1:
			f.DropAfter = true
		case 2:
			f.Hold = s.between(0, 15*time.Second)
		case 3:
			f.HoldAfter = s.between(0, 300*time.Millisecond) // an answer later than a third of the visibility has a test of its own
		case 4:
			f.Code = []string{"RequestThrottled", "KmsThrottled", "InternalFailure", "OverLimit"}[s.pick(4)]
		case 5:
			f.Stall = true
		case 6:
			fail := sqsmodel.EntryError{Code: "InternalError"}
			odds := 1 + s.pick(4)
			f.FailEntries = func(_ sqsmodel.Call, entry int, _, _ string) *sqsmodel.EntryError {
				if entry%odds == 0 {
					return &fail
				}
				return nil
			}
		}
		if s.chance(20) {
			f.CorruptMD5 = func(id string) bool { return id[0]%4 == 0 }
		}
		remove = append(remove, sim.server.Inject(f))
	}
	return remove
}

// sendAll sends the messages over the first half of the time, some twice as SQS may deliver them.
func (sim *simulation) sendAll(length time.Duration) {
	s := sim.script
	for range 1 + s.pick(30) {
		sim.send()
		if s.chance(30) {
			time.Sleep(s.between(0, length/60))
		}
		if s.chance(10) && !sim.fifo {
			sim.server.Duplicate(sim.name, sim.names[s.pick(len(sim.names))])
		}
	}
}

func (sim *simulation) send() {
	body := fmt.Sprint("job ", len(sim.names))
	group := ""
	var id string
	if sim.fifo {
		group = string(rune('A' + sim.script.pick(5)))
		sim.mu.Lock() // no handler may see the message before it is known which came before it
		sim.groups[group] = append(sim.groups[group], body)
		sim.mu.Unlock()
		id = sim.server.MustSendGroup(sim.queue, group, body)[0]
	} else {
		id = sim.server.MustSend(sim.queue, body)[0]
	}
	sim.mu.Lock()
	sim.ids[body] = id
	sim.mu.Unlock()
	sim.names = append(sim.names, id)
}

// checkOrder: every message before this one in its group is deleted or dead-lettered.
func (sim *simulation) checkOrder(m *worker.Message) {
	if !sim.fifo {
		return
	}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	for _, body := range sim.groups[m.GroupID] {
		if body == m.Body {
			return
		}
		if id := sim.ids[body]; !sim.gone[id] {
			sim.problems = append(sim.problems, fmt.Sprintf("message %s (receive %d) of group %s starts before its predecessor %s is done, at %s", m.ID, m.ReceiveCount, m.GroupID, id, clock(time.Now())))
			sim.problems = append(sim.problems, sim.history(func(e sqsmodel.Event) bool { return e.MessageID == id || e.MessageID == m.ID })...)
		}
	}
}

// behaviour is fixed by the message and its receive count, so that a script plays the same way each time.
func (sim *simulation) behaviour(m *worker.Message) behaviour {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte(m.Body), sim.seed))
	r := rand.New(rand.NewPCG(h.Sum64(), uint64(m.ReceiveCount)))
	b := behaviour{takes: time.Duration(r.IntN(3000)) * time.Millisecond}
	if r.IntN(5) == 0 {
		b.takes = time.Duration(r.IntN(60)) * time.Second
	}
	b.deaf = r.IntN(8) == 0
	if r.IntN(3) == 0 {
		b.outcome = r.IntN(outcomes)
	}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if sim.calm {
		return behaviour{takes: time.Second}
	}
	return b
}

// live is one life of a worker: from Run to its return.
func (sim *simulation) live(cfg worker.Config, life time.Duration) {
	var mu sync.Mutex
	running := 0
	handle := func(ctx context.Context, m *worker.Message) error {
		mu.Lock()
		running++
		if running > cfg.Concurrency {
			sim.problem("%d handlers run at once, Concurrency is %d", running, cfg.Concurrency)
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			running--
			mu.Unlock()
		}()
		sim.checkOrder(m)
		return sim.handle(ctx, m)
	}
	client := &spy{Client: sim.server.Client(), sim: sim}
	w, err := worker.New(client, sim.queue, worker.HandlerFunc(handle), cfg)
	if err != nil {
		sim.problem("New: %v", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var stopped time.Time
	time.AfterFunc(life, func() {
		stopped = time.Now()
		cancel()
	})
	err = w.Run(ctx)
	client.mu.Lock()
	client.over = true
	client.mu.Unlock()
	<-ctx.Done()
	sim.checkRun(w, cfg, time.Since(stopped), err)
}

func (sim *simulation) handle(ctx context.Context, m *worker.Message) error {
	b := sim.behaviour(m)
	done := ctx.Done()
	if b.deaf {
		done = nil
	}
	select {
	case <-time.After(b.takes):
	case <-done:
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	boom := errors.New("boom")
	switch b.outcome {
	case doFail:
		return boom
	case doPanic:
		panic(boom)
	case doSnooze:
		return worker.Snooze(3 * time.Second)
	case doRetryAfter:
		return worker.RetryAfter(2*time.Second, boom)
	case doPermanent:
		return worker.Permanent(boom)
	case doUnavailable:
		return worker.Unavailable(boom)
	case doCancelled:
		return context.Canceled
	}
	sim.mu.Lock()
	sim.succeeded[m.ID] = true
	sim.mu.Unlock()
	return nil
}

// checkRun: Run returned in time, and with everything settled unless it says otherwise.
func (sim *simulation) checkRun(w *worker.Worker, cfg worker.Config, took time.Duration, err error) {
	budget := cfg.DrainTimeout
	if budget == 0 {
		budget = 25 * time.Second
	}
	if took > budget+10*time.Millisecond {
		sim.problem("Run returned %v after the stop, DrainTimeout is %v", took, budget)
	}
	var drain *worker.DrainError
	if err != nil && !errors.As(err, &drain) {
		sim.problem("Run: %v", err)
	}
	stats := w.Stats()
	if drain == nil && (stats.Held != 0 || stats.Unsettled != 0 || stats.Running != 0 || stats.Waiting != 0) {
		sim.problem("Run returned without an error, but %+v", stats)
	}
	if sim.fifo && drain == nil && stats.Receives > 0 && stats.FreeSlots != cfg.Concurrency+cfg.Prefetch {
		sim.problem("FIFO: %d of %d slots came back", stats.FreeSlots, cfg.Concurrency+cfg.Prefetch)
	}
	if !sim.fifo && drain == nil && stats.Receives > 0 && stats.FreeSlots != cfg.Concurrency+cfg.Prefetch {
		sim.problem("%d of %d slots came back", stats.FreeSlots, cfg.Concurrency+cfg.Prefetch)
	}
}

// checkEnd: every message was deleted after a success, or is in the dead-letter queue.
func (sim *simulation) checkEnd() {
	gone := map[string]bool{}
	for _, e := range sim.server.Journal() {
		switch e.Kind {
		case sqsmodel.Deleted, sqsmodel.DeadLettered:
			gone[e.MessageID] = true
		case sqsmodel.RetentionExpired:
			sim.problem("message %s expired", e.MessageID)
		}
	}
	for _, id := range sim.names {
		if !gone[id] {
			sim.problem("message %s is neither done nor dead-lettered: %+v", id, sim.server.Queue(sim.name).Messages)
			j := sim.server.Journal()
			for _, e := range j[max(0, len(j)-15):] {
				sim.problem("%+v", e)
			}
		}
	}
}

// TestNothingIsLostInRandomScripts plays 2,000 scripts, or as many as SQSWORKER_SCRIPTS says, from SQSWORKER_SEED on.
func TestNothingIsLostInRandomScripts(t *testing.T) {
	scripts, first := 2000, 0
	if testing.Short() {
		scripts = 100
	}
	if n, err := strconv.Atoi(os.Getenv("SQSWORKER_SCRIPTS")); err == nil {
		scripts = n
	}
	if n, err := strconv.Atoi(os.Getenv("SQSWORKER_SEED")); err == nil {
		first = n
	}
	failed := 0
	for seed := first; seed < first+scripts; seed++ {
		if problems := play(t, binary.LittleEndian.AppendUint32(nil, uint32(seed))); len(problems) > 0 {
			t.Errorf("script %d (again with SQSWORKER_SEED=%d SQSWORKER_SCRIPTS=1):", seed, seed)
			for _, p := range problems {
				t.Errorf("  %s", p)
			}
			if failed++; failed == 5 {
				t.Fatal("enough")
			}
		}
	}
}

func FuzzScripts(f *testing.F) {
	f.Add([]byte("a worker, a queue"))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 512 {
			t.Skip()
		}
		for _, p := range play(t, data) {
			t.Error(p)
		}
	})
}
