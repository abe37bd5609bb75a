package worker

import "testing"

// Who tells that a lease was lost may come after the group has gone on without its message.
func TestOnlyTheHeadStopsAndReleasesItsGroup(t *testing.T) {
	g := newGroups()
	in := func(id string) *delivery { return &delivery{id: id, group: "A"} }
	first, again, second := in("1"), in("1"), in("2")
	g.push(first)
	if g.pop() != first {
		t.Fatal("the first message isn't the head")
	}
	g.stop(first)
	g.push(again) // it came back while its handler was still running
	g.push(second)
	g.release(first)
	if tail := g.stop(first); tail != nil || g.ready() != 1 {
		t.Errorf("a late call for a former head took %d messages of the group", len(tail))
	}
	if g.release(first) || g.pop() != again {
		t.Error("a late call for a former head let the group go")
	}
	if g.pop() != nil {
		t.Error("two messages of a group at once")
	}
	if g.release(again) || g.pop() != second || !g.release(second) || g.size() != 0 {
		t.Error("the group didn't go on in order")
	}
}
