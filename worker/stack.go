package worker

import "runtime"

// growStack makes room for a call of the SDK on the stack of a new goroutine. Such a call goes some forty frames deep, and a stack
// that doubles on the way is copied each time with every frame on it: a tenth of all CPU under load. Here there is one
// frame to copy.
//
//go:noinline
func growStack() {
	var room [sdkStack]byte
	runtime.KeepAlive(&room)
}

// sdkStack is more than what a call needs; a stack holds the next power of two.
const sdkStack = 20 << 10
