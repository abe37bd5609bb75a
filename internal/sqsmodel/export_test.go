package sqsmodel

import (
	"fmt"
	"time"
)

// Consistent checks what has to hold between the structures of every queue.
func (s *Server) Consistent() error {
	s.lock()
	defer s.unlock()
	s.advanceAll(time.Now())
	for _, q := range s.sortedQueues() {
		if err := q.consistent(); err != nil {
			return fmt.Errorf("queue %s: %w", q.name, err)
		}
	}
	return nil
}

func (q *queue) consistent() error {
	var count [3]int
	for _, m := range q.messages {
		count[m.state]++
		inVisible := m.place > 0 && m.place <= len(q.visible.items) && q.visible.items[m.place-1] == m
		inTimers := m.place > 0 && m.place <= len(q.timers.items) && q.timers.items[m.place-1] == m
		wantVisible := m.state == Visible && (!q.fifo || m.group.head == m)
		if inVisible != wantVisible || inTimers != (m.state != Visible) {
			return fmt.Errorf("message %s is %v: in visible %v, in timers %v", m.id, m.state, inVisible, inTimers)
		}
		if q.byAge.items[m.age-1] != m {
			return fmt.Errorf("message %s is lost in byAge", m.id)
		}
	}
	if count != q.count {
		return fmt.Errorf("counts %v, messages %v", q.count, count)
	}
	if n := len(q.messages); n != len(q.byAge.items) {
		return fmt.Errorf("%d messages, %d by age", n, len(q.byAge.items))
	}
	linked := 0
	for id, g := range q.groups {
		for m := g.head; m != nil; m = m.next {
			linked++
			if m.group != g || m.next != nil && m.next.prev != m || m.next != nil && m.next.serial <= m.serial {
				return fmt.Errorf("group %s is torn at %s", id, m.id)
			}
		}
	}
	if q.fifo && linked != len(q.messages) {
		return fmt.Errorf("%d messages, %d in groups", len(q.messages), linked)
	}
	return nil
}
