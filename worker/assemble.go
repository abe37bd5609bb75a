package worker

import (
	"errors"
	"fmt"
)

// Checker is a [Handler], from middleware usually, that knows whether it is configured well. [New] and [NewLambda] ask each
// one that they come across and report its mistakes along with their own. Middleware has no other way to fail a
// deployment, instead of every message.
type Checker interface {
	Check() error
}

// checked is a Checker of our own, which asks those that it calls too.
type checked interface {
	// check returns all that is wrong. cfg is the worker's configuration, with its defaults; nil under Lambda.
	check(cfg *Config) error
}

// assemble applies middleware, the first listed outermost, and checks every handler on the way.
func assemble(h Handler, middleware []Middleware, cfg *Config) (Handler, error) {
	if h == nil {
		return nil, nil // reported by the caller
	}
	found := &findings{seen: map[string]bool{}}
	found.add(checkHandler(h, cfg))
	for i := len(middleware) - 1; i >= 0; i-- {
		if middleware[i] == nil {
			continue // reported with the configuration
		}
		next := middleware[i](h)
		if next == nil {
			found.add(fmt.Errorf("worker: Config.Middleware[%d] returned no handler", i))
			continue
		}
		h = next
		found.add(checkHandler(h, cfg))
	}
	return h, errors.Join(found.errs...)
}

// checkHandler checks one handler, and through it those that it calls.
func checkHandler(h Handler, cfg *Config) error {
	switch c := h.(type) {
	case checked:
		return c.check(cfg)
	case Checker:
		return c.Check()
	}
	return nil
}

func (f HandlerFunc) check(*Config) error {
	if f == nil {
		return errors.New("worker: the handler is a HandlerFunc that is nil")
	}
	return nil
}

// findings are errors, each once: a handler is asked by itself and through what wraps it.
type findings struct {
	errs []error
	seen map[string]bool
}

func (f *findings) add(err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			f.add(e)
		}
		return
	}
	if text := err.Error(); !f.seen[text] {
		f.seen[text] = true
		f.errs = append(f.errs, err)
	}
}
