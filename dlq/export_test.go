package dlq

// HoldAtMost lowers how many messages a redrive holds, until restore is called.
func HoldAtMost(n int) (restore func()) {
	before := heldAtMost
	heldAtMost = n
	return func() { heldAtMost = before }
}
