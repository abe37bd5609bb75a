package bench

import (
	"errors"
	"os"
	"runtime/pprof"
)

// profiles are the files that a contestant's process writes when asked to.
type profiles struct {
	cpu       *os.File
	allocPath string
}

func startProfiles(cpuPath, allocPath string) (*profiles, error) {
	p := &profiles{allocPath: allocPath}
	if cpuPath == "" {
		return p, nil
	}
	f, err := os.Create(cpuPath)
	if err != nil {
		return nil, err
	}
	p.cpu = f
	return p, pprof.StartCPUProfile(f)
}

// end writes the files; the CPU profile ends the first time, allocations are written anew each time.
func (p *profiles) end() error {
	var errs []error
	if p.cpu != nil {
		pprof.StopCPUProfile()
		errs = append(errs, p.cpu.Close())
		p.cpu = nil
	}
	if p.allocPath != "" {
		f, err := os.Create(p.allocPath)
		if err == nil {
			err = errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
