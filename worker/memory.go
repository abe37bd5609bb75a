package worker

import "container/list"

// remembered bounds what a worker remembers of messages that it no longer holds: some 10 MB when full. Each is an
// unusual event, so that only a long failure can push the oldest out.
const remembered = 100_000

// memory remembers something by message id, oldest out first. It is of this worker alone: across processes an idempotency
// record does it. The registry's mutex guards it.
type memory[V any] struct {
	most  int
	ids   map[string]*list.Element
	order *list.List
}

type remembrance[V any] struct {
	id    string
	value V
}

func newMemory[V any](most int) memory[V] {
	return memory[V]{most: most, ids: map[string]*list.Element{}, order: list.New()}
}

func (c *memory[V]) get(id string) (value V, ok bool) {
	if e := c.ids[id]; e != nil {
		return e.Value.(remembrance[V]).value, true
	}
	return value, false
}

func (c *memory[V]) put(id string, value V) {
	if e := c.ids[id]; e != nil {
		e.Value = remembrance[V]{id, value}
		c.order.MoveToBack(e)
		return
	}
	c.ids[id] = c.order.PushBack(remembrance[V]{id, value})
	if c.order.Len() > c.most {
		c.remove(c.order.Front().Value.(remembrance[V]).id)
	}
}

func (c *memory[V]) remove(id string) {
	if e := c.ids[id]; e != nil {
		c.order.Remove(e)
		delete(c.ids, id)
	}
}
