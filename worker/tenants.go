package worker

import "slices"

// tenants is the backlog of a standard queue whose tenants are capped: no tenant (message group) has more than most handlers
// at once, and tenants take turns. As many more may wait; what comes beyond that is not kept, so that one tenant's flood
// doesn't take the slots of the others. A message without a group is a tenant of its own.
type tenants struct {
	most  int
	byID  map[string]*tenant
	order []*tenant // those that may start one, in turn
	held  int
}

type tenant struct {
	id      string
	queue   []*delivery
	running int
}

func newTenants(most int) *tenants { return &tenants{most: most, byID: map[string]*tenant{}} }

func tenantOf(d *delivery) string {
	if d.group == "" {
		return "message " + d.id // a space: no message group has one
	}
	return d.group
}

// full tells whether a message's tenant has all the messages here that it may.
func (t *tenants) full(d *delivery) bool {
	x := t.byID[tenantOf(d)]
	return x != nil && len(x.queue) >= t.most
}

func (t *tenants) push(d *delivery) bool {
	id := tenantOf(d)
	x := t.byID[id]
	if x == nil {
		x = &tenant{id: id}
		t.byID[id] = x
	}
	x.queue = append(x.queue, d)
	t.held++
	t.line(x)
	return true
}

// line lets a tenant take its turn, if it may start one and doesn't stand in line.
func (t *tenants) line(x *tenant) {
	if len(x.queue) > 0 && x.running < t.most && !slices.Contains(t.order, x) {
		t.order = append(t.order, x)
	}
}

func (t *tenants) pop() *delivery {
	if len(t.order) == 0 {
		return nil
	}
	x := t.order[0]
	t.order = slices.Delete(t.order, 0, 1)
	d := x.queue[0]
	x.queue = slices.Delete(x.queue, 0, 1)
	x.running++
	t.held--
	t.line(x)
	return d
}

// finish ends the turn of a message that was popped.
func (t *tenants) finish(d *delivery) {
	x := t.byID[tenantOf(d)]
	if x == nil {
		return
	}
	x.running--
	t.line(x)
	if x.running == 0 && len(x.queue) == 0 {
		delete(t.byID, x.id)
	}
}

func (t *tenants) ready() (n int) {
	for _, x := range t.order {
		n += min(len(x.queue), t.most-x.running)
	}
	return n
}

func (t *tenants) size() int { return t.held }

func (t *tenants) takeAll() (all []*delivery, slots int) {
	for id, x := range t.byID {
		all = append(all, x.queue...)
		x.queue = nil
		if x.running == 0 {
			delete(t.byID, id)
		}
	}
	t.order, t.held = nil, 0
	return all, len(all)
}
