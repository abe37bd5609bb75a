package idempotency

import (
	"container/list"
	"sync"
	"time"
)

// maxCachedResult keeps the cache small: a larger result is fetched from the table.
const maxCachedResult = 4 << 10

// cache remembers completed records, least recently used out first. A nil cache remembers nothing.
type cache struct {
	most    int
	mu      sync.Mutex
	records map[string]*list.Element // of Record
	order   *list.List
}

func newCache(most int) *cache {
	if most == 0 {
		return nil
	}
	return &cache{most: most, records: map[string]*list.Element{}, order: list.New()}
}

func (c *cache) get(id string) (Record, bool) {
	if c == nil {
		return Record{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.records[id]
	if e == nil {
		return Record{}, false
	}
	r := e.Value.(Record)
	if r.Claimable(time.Now(), 0) { // its retention is over
		c.order.Remove(e)
		delete(c.records, id)
		return Record{}, false
	}
	c.order.MoveToBack(e)
	return r, true
}

// put takes completed records only: one in progress changes without us.
func (c *cache) put(r Record) {
	if c == nil || r.Status != Completed || len(r.Result) > maxCachedResult {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.records[r.ID]; e != nil {
		e.Value = r
		c.order.MoveToBack(e)
		return
	}
	c.records[r.ID] = c.order.PushBack(r)
	if c.order.Len() > c.most {
		oldest := c.order.Front()
		delete(c.records, oldest.Value.(Record).ID)
		c.order.Remove(oldest)
	}
}

func (c *cache) remove(id string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.records[id]; e != nil {
		c.order.Remove(e)
		delete(c.records, id)
	}
}
