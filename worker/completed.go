package worker

import "container/list"

// maxCompleted bounds the memory for messages that were completed but not deleted: some 10 MB when full. Each is an
// unusual event, so that only a long failure of every delete can push one out; it then runs a second time.
const maxCompleted = 100_000

// completed remembers messages whose handler succeeded and whose delete didn't, oldest out first. It is of this
// worker alone: across processes an idempotency record does it.
type completed struct {
	most  int
	ids   map[string]*list.Element
	order *list.List
}

func newCompleted(most int) completed {
	return completed{most: most, ids: map[string]*list.Element{}, order: list.New()}
}

func (c *completed) has(id string) bool {
	return c.ids[id] != nil
}

func (c *completed) add(id string) {
	if e := c.ids[id]; e != nil {
		c.order.MoveToBack(e)
		return
	}
	c.ids[id] = c.order.PushBack(id)
	if c.order.Len() > c.most {
		c.remove(c.order.Front().Value.(string))
	}
}

func (c *completed) remove(id string) {
	if e := c.ids[id]; e != nil {
		c.order.Remove(e)
		delete(c.ids, id)
	}
}
