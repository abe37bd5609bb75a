package sqsmodel

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Server is one account's SQS in one Region. It starts no goroutine: time
// passes when somebody looks, and an open long poll's timer is its caller's.
// All methods are safe for concurrent use.
type Server struct {
	cfg Config

	mu      sync.Mutex
	latency time.Duration
	rng     *rand.Rand
	serial  uint64 // of messages, in the order they came
	receipt uint64 // of receipt handles
	queues  map[string]*queue
	byURL   map[string]*queue
	deleted map[string]time.Time
	tasks   []*moveTask
	changed []*queue // whose polls settle has to look at

	faults  []*fault
	calls   recorder[Call]
	counts  map[string]int64
	journal recorder[Event]
	events  uint64
	kinds   [eventKinds]int64

	listeners []*listener
	pending   []Event         // to tell listeners once the lock is released
	wakes     []chan struct{} // long polls to wake once the lock is released
}

// New returns an SQS without queues.
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	return &Server{
		cfg:     cfg,
		latency: cfg.Latency,
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0x5153)),
		queues:  map[string]*queue{},
		byURL:   map[string]*queue{},
		deleted: map[string]time.Time{},
		counts:  map[string]int64{},
		calls:   recorder[Call]{limit: 100_000},
		journal: recorder[Event]{limit: 500_000},
	}
}

// SetLatency changes what each call from now on takes before it is processed.
func (s *Server) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

func (s *Server) lock() { s.mu.Lock() }

// unlock releases the state, then tells the listeners what happened and wakes
// the polls that have been served, in this order: whoever acts on an answer can
// rely on its events having been seen.
func (s *Server) unlock() {
	events, wakes, listeners := s.pending, s.wakes, s.listeners
	s.pending, s.wakes = nil, nil
	s.mu.Unlock()
	for _, e := range events {
		for _, l := range listeners {
			l.fn(e)
		}
	}
	for _, w := range wakes {
		select {
		case w <- struct{}{}:
		default: // it has been woken already
		}
	}
}

func (s *Server) uuid() string {
	return formatUUID(s.rng.Uint64(), s.rng.Uint64())
}

func formatUUID(hi, lo uint64) string {
	const digits = "0123456789abcdef"
	var b [36]byte
	n := 0
	for i := range 32 {
		if i == 8 || i == 12 || i == 16 || i == 20 {
			b[n] = '-'
			n++
		}
		word, shift := hi, uint(60-4*(i%16))
		if i >= 16 {
			word = lo
		}
		nibble := word >> shift & 15
		switch i {
		case 12:
			nibble = 4
		case 16:
			nibble = 8 | nibble&3
		}
		b[n] = digits[nibble]
		n++
	}
	return string(b[:])
}

// recorder keeps the newest items: at least limit of them once it is full.
type recorder[T any] struct {
	items []T
	limit int
	off   bool
}

func (r *recorder[T]) add(v T) {
	if r.off {
		return
	}
	if len(r.items) >= 2*r.limit {
		n := copy(r.items, r.items[len(r.items)-r.limit:])
		clear(r.items[n:])
		r.items = r.items[:n]
	}
	r.items = append(r.items, v)
}

func (r *recorder[T]) list() []T { return append([]T(nil), r.items...) }
