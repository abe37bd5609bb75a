package bench

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"
)

// usage is what a process has used since its start.
type usage struct {
	CPU     time.Duration
	PeakRSS int64 // bytes; 0 where the system doesn't say
	Mallocs uint64
	Bytes   uint64 // allocated, freed or not
}

func currentUsage() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{CPU: cpuTime(), PeakRSS: peakRSS(), Mallocs: m.Mallocs, Bytes: m.TotalAlloc}
}

// since is what was used after an earlier moment; the peak is the whole life's.
func (u usage) since(before usage) usage {
	return usage{CPU: u.CPU - before.CPU, PeakRSS: u.PeakRSS, Mallocs: u.Mallocs - before.Mallocs, Bytes: u.Bytes - before.Bytes}
}

// peakRSS is VmHWM. Not ru_maxrss: a process inherits that from the one that started it.
func peakRSS() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	line, _, _ := bytes.Cut(rest, []byte("kB"))
	kib, _ := strconv.ParseInt(string(bytes.TrimSpace(line)), 10, 64)
	return kib << 10
}

// memory is what is in use after a forced collection, in bytes.
type memory struct{ Heap, Stack int64 }

func heldMemory() memory {
	runtime.GC()
	runtime.GC() // the first one may have been under way already; this one also frees what finalizers kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{int64(m.HeapAlloc), int64(m.StackInuse)}
}

func (m memory) minus(o memory) memory { return memory{m.Heap - o.Heap, m.Stack - o.Stack} }
