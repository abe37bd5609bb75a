package worker

import "sync"

// unsettled counts the messages that are being deleted or given back. It bounds them: behind a slow SQS, executors wait
// here, so that memory and what a crash would repeat stay bounded. A drain waits for nobody: it lifts the bound.
type unsettled struct {
	most   int
	room   chan struct{} // capacity 1: there may be room
	lifted chan struct{} // closed once there is no bound any more
	all    sync.WaitGroup

	mu sync.Mutex
	n  int
}

func newUnsettled(most int) *unsettled {
	return &unsettled{most: most, room: make(chan struct{}, 1), lifted: make(chan struct{})}
}

func (u *unsettled) enter() {
	for !u.tryEnter() {
		select {
		case <-u.room:
		case <-u.lifted:
		}
	}
}

func (u *unsettled) tryEnter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n >= u.most {
		select {
		case <-u.lifted:
		default:
			return false
		}
	}
	u.n++
	u.all.Add(1)
	if u.n < u.most {
		u.signal() // there may be room for the next who waits
	}
	return true
}

func (u *unsettled) leave() {
	u.mu.Lock()
	u.n--
	u.mu.Unlock()
	u.signal()
	u.all.Done()
}

func (u *unsettled) signal() {
	select {
	case u.room <- struct{}{}:
	default:
	}
}

func (u *unsettled) lift() { close(u.lifted) }

func (u *unsettled) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n
}
