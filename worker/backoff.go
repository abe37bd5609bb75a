package worker

import (
	"math/rand/v2"
	"time"
)

// delay is how long a message stays away after its n-th failure, n from 1.
func (b Backoff) delay(n int) time.Duration {
	step := b.Min
	for i := 1; i < n && step < b.Max; i++ {
		step *= 2
	}
	step = min(step, b.Max)
	return step/2 + rand.N(step/2+1)
}
