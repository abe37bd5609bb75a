package sqsmodel

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// State is where a message is in its life.
type State int

const (
	Visible  State = iota // a receive may return it
	InFlight              // received, hidden until its visibility runs out
	Delayed               // sent, hidden until its delay ends
)

func (st State) String() string { return [...]string{"Visible", "InFlight", "Delayed"}[st] }

type message struct {
	serial   uint64 // within the server; part of the receipt handle
	order    uint64 // of delivery
	id       string
	body     string
	md5      string
	attrs    map[string]types.MessageAttributeValue
	attrsMD5 string
	trace    string // AWSTraceHeader
	groupID  string
	dedupID  string
	sequence string
	sourceID string // ARN of the queue that the redrive policy took it from
	hopped   time.Time
	hops     int // through redrive policies at that moment

	sentAt        time.Time // SentTimestamp, and the start of its retention
	firstReceived time.Time
	clock         time.Time // from where MaxHold counts
	receives      int
	receipt       uint64 // newest handle's number, 0 = never received
	changes       int    // visibility changes since that receive

	state      State
	visibleAt  time.Time // Delayed, InFlight: when that ends
	duplicate  bool      // Visible only as a copy; a holder's lease goes on until leaseUntil
	leaseUntil time.Time

	place, age int // in the visible or timer heap, in the age heap
	group      *group
	prev, next *message
}

// queue holds messages. A standard queue's visible messages are all in the
// visible heap; a FIFO queue's visible heap has the head of each group whose
// head is visible. Whatever waits for time is in timers.
type queue struct {
	id                 uint32
	name, url, arn     string
	fifo               bool
	created, modified  time.Time
	purged             time.Time
	attrs              map[string]string // as they were set
	tags               map[string]string
	settings           settings
	messages           map[uint64]*message
	visible            messageHeap
	timers             messageHeap
	byAge              messageHeap
	count              [3]int // by State
	polls              []*poll
	groups             map[string]*group
	dedup              deduplication
	attempts           attempts
	touched, abandoned bool
}

// settings are the attributes that the model acts on, parsed.
type settings struct {
	visibility, delay, retention, wait time.Duration
	maxSize                            int
	contentDedup, groupDedup           bool
	deadLetterARN                      string
	maxReceives                        int
	allow                              allowPolicy
}

func (s *Server) newQueue(name string, now time.Time) *queue {
	h := fnv.New32a()
	h.Write([]byte(name + now.String() + s.uuid()))
	q := &queue{
		id:       h.Sum32(),
		name:     name,
		url:      s.cfg.Endpoint + "/" + s.cfg.AccountID + "/" + name,
		arn:      "arn:aws:sqs:" + s.cfg.Region + ":" + s.cfg.AccountID + ":" + name,
		fifo:     strings.HasSuffix(name, ".fifo"),
		created:  now,
		modified: now,
		attrs:    map[string]string{},
		tags:     map[string]string{},
		messages: map[uint64]*message{},
		groups:   map[string]*group{},
	}
	place := func(m *message) *int { return &m.place }
	q.visible = messageHeap{less: func(a, b *message) bool { return a.order < b.order }, index: place}
	q.timers = messageHeap{less: func(a, b *message) bool { return a.visibleAt.Before(b.visibleAt) }, index: place}
	q.byAge = messageHeap{
		less:  func(a, b *message) bool { return a.sentAt.Before(b.sentAt) },
		index: func(m *message) *int { return &m.age },
	}
	return q
}

// add takes a message whose state and times are set.
func (s *Server) add(q *queue, m *message) {
	s.serial++
	m.serial = s.serial
	m.order = s.deliveryOrder(q)
	q.messages[m.serial] = m
	q.byAge.push(m)
	q.join(m)
	q.count[m.state]++
	q.enter(m)
	s.touch(q)
}

func (s *Server) deliveryOrder(q *queue) uint64 {
	if s.cfg.ShuffleStandard && !q.fifo {
		return s.rng.Uint64()
	}
	s.serial++
	return s.serial
}

// setState moves a message between visible, in flight and delayed.
func (s *Server) setState(q *queue, m *message, state State, until time.Time) {
	q.leave(m)
	q.count[m.state]--
	m.state, m.visibleAt, m.duplicate = state, until, false
	q.count[state]++
	if state == Visible && !q.fifo && (s.cfg.ShuffleStandard || m.receives >= backOfTheQueueAfter) {
		m.order = s.deliveryOrder(q)
	}
	q.enter(m)
	s.touch(q)
}

// backOfTheQueueAfter: a standard queue moves a message that has been received
// this often, and not deleted, behind the others.
const backOfTheQueueAfter = 3

func (q *queue) enter(m *message) {
	switch {
	case m.state != Visible:
		q.timers.push(m)
		if q.fifo {
			q.list(m.group)
		}
	case q.fifo:
		q.list(m.group)
	default:
		q.visible.push(m)
	}
}

func (q *queue) leave(m *message) {
	switch {
	case m.place == 0:
	case m.state != Visible:
		q.timers.remove(m)
	default:
		q.visible.remove(m)
		if m.group != nil {
			m.group.listed = nil
		}
	}
}

func (s *Server) remove(q *queue, m *message) {
	q.leave(m)
	q.byAge.remove(m)
	q.count[m.state]--
	delete(q.messages, m.serial)
	q.part(m)
	s.touch(q)
}

// nextEvent is when time alone will next change the queue.
func (q *queue) nextEvent() (at time.Time, ok bool) {
	if m := q.timers.top(); m != nil {
		at, ok = m.visibleAt, true
	}
	if m := q.byAge.top(); m != nil {
		if end := m.sentAt.Add(q.settings.retention); !ok || end.Before(at) {
			at, ok = end, true
		}
	}
	return at, ok
}

// advance does what time has done to the queue until now, in order, so that an
// abandoned poll gets the message that it would have got back then.
func (s *Server) advance(q *queue, now time.Time) {
	for {
		at, ok := q.nextEvent()
		if !ok || at.After(now) {
			break
		}
		s.expireRetention(q, at)
		for m := q.timers.top(); m != nil && !m.visibleAt.After(at); m = q.timers.top() {
			if m.state == InFlight {
				s.emit(q, m, Expired, m.visibleAt, encodeHandle(q, m), 0)
			}
			s.setState(q, m, Visible, m.visibleAt)
		}
		s.serve(q, at)
	}
	q.dropPolls(now)
}

func (s *Server) expireRetention(q *queue, at time.Time) {
	for m := q.byAge.top(); m != nil; m = q.byAge.top() {
		end := m.sentAt.Add(q.settings.retention)
		if end.After(at) {
			return
		}
		s.emit(q, m, RetentionExpired, end, "", 0)
		s.remove(q, m)
	}
}

func (s *Server) advanceAll(now time.Time) {
	s.runTasks(now)
	for _, q := range s.sortedQueues() {
		s.advance(q, now)
	}
	s.settle(now)
}

func (s *Server) sortedQueues() []*queue {
	list := make([]*queue, 0, len(s.queues))
	for _, q := range s.queues {
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b *queue) int { return strings.Compare(a.name, b.name) })
	return list
}

// touch notes that polls of the queue may be served now, or need another timer.
func (s *Server) touch(q *queue) {
	if !q.touched {
		q.touched = true
		s.changed = append(s.changed, q)
	}
}

// settle serves the open polls of every queue that the call has changed, also
// of the dead-letter queues that this fills.
func (s *Server) settle(now time.Time) {
	for len(s.changed) > 0 {
		q := s.changed[len(s.changed)-1]
		s.changed = s.changed[:len(s.changed)-1]
		q.touched = false
		s.serve(q, now)
		s.arm(q)
	}
}

// find resolves a queue URL. The SDK sends it in the body only, to the host of
// the client's own Region: another Region's URL is no address here.
func (s *Server) find(url *string) (*queue, *apiError) {
	if url == nil || *url == "" {
		return nil, missing("QueueUrl")
	}
	if q := s.byURL[*url]; q != nil {
		return q, nil
	}
	scheme, rest, ok := strings.Cut(*url, "://")
	if !ok || scheme != "https" && scheme != "http" {
		return nil, fail("InvalidAddress", "The address %s is not valid for this endpoint.", *url)
	}
	parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	if len(parts) < 3 || foreignHost(parts[0], s.cfg.Region) {
		return nil, fail("InvalidAddress", "The address %s is not valid for this endpoint.", *url)
	}
	account, name := parts[len(parts)-2], parts[len(parts)-1]
	if q := s.queues[name]; q != nil && account == s.cfg.AccountID {
		return q, nil
	}
	return nil, fail("QueueDoesNotExist")
}

func foreignHost(host, region string) bool {
	host, _, _ = strings.Cut(host, ":")
	return strings.HasSuffix(host, ".amazonaws.com") && strings.HasPrefix(host, "sqs.") &&
		!strings.HasPrefix(host, "sqs."+region+".")
}
