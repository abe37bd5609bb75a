package sqsmodel

// messageHeap is a binary heap of messages that knows each one's place, so that
// any of them can be taken out or moved in O(log n).
type messageHeap struct {
	items []*message
	less  func(a, b *message) bool
	index func(m *message) *int // where the message keeps its place, from 1; 0 = not in the heap
}

func (h *messageHeap) top() *message {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

func (h *messageHeap) push(m *message) {
	h.items = append(h.items, m)
	h.up(len(h.items) - 1)
}

func (h *messageHeap) pop() *message {
	m := h.top()
	h.remove(m)
	return m
}

func (h *messageHeap) remove(m *message) {
	i := *h.index(m) - 1
	*h.index(m) = 0
	last := len(h.items) - 1
	moved := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	if i == last {
		return
	}
	h.items[i] = moved
	*h.index(moved) = i + 1
	h.fix(moved)
}

// fix restores the order after m's key has changed.
func (h *messageHeap) fix(m *message) {
	i := *h.index(m) - 1
	h.up(i)
	h.down(*h.index(m) - 1)
}

func (h *messageHeap) up(i int) {
	m := h.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(m, h.items[parent]) {
			break
		}
		h.place(i, h.items[parent])
		i = parent
	}
	h.place(i, m)
}

func (h *messageHeap) down(i int) {
	m := h.items[i]
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if r := child + 1; r < len(h.items) && h.less(h.items[r], h.items[child]) {
			child = r
		}
		if !h.less(h.items[child], m) {
			break
		}
		h.place(i, h.items[child])
		i = child
	}
	h.place(i, m)
}

func (h *messageHeap) place(i int, m *message) {
	h.items[i] = m
	*h.index(m) = i + 1
}
