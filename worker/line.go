package worker

// backlog orders the messages that are held and not started. The dispatcher's mutex guards it.
type backlog interface {
	// push adds a message. It reports false when the message waits behind another and needs no slot of its own.
	push(*delivery) (ownSlot bool)
	// pop takes the message that may run next; nil when none may.
	pop() *delivery
	// ready is how many could be popped now.
	ready() int
	size() int
	// takeAll takes everything that waits, and tells how many slots that frees.
	takeAll() (all []*delivery, slots int)
}

// line is a standard queue's backlog: who came first runs first.
type line struct {
	queue []*delivery // from head on
	head  int
}

func (l *line) push(d *delivery) bool {
	l.queue = append(l.queue, d)
	return true
}

func (l *line) pop() *delivery {
	if l.head == len(l.queue) {
		return nil
	}
	d := l.queue[l.head]
	l.queue[l.head] = nil
	if l.head++; l.head == len(l.queue) {
		l.queue, l.head = l.queue[:0], 0
	}
	return d
}

func (l *line) ready() int { return len(l.queue) - l.head }
func (l *line) size() int  { return len(l.queue) - l.head }

func (l *line) takeAll() ([]*delivery, int) {
	all := l.queue[l.head:]
	l.queue, l.head = nil, 0
	return all, len(all)
}
