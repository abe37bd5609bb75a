package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Problem is something that a worker has logged as a warning or an error.
type Problem struct {
	At        time.Time  `json:"at"`
	Level     slog.Level `json:"level"`
	Text      string     `json:"text"`
	MessageID string     `json:"message_id,omitempty"` // of the SQS message that it is about
	Detail    string     `json:"detail,omitempty"`     // what else was logged with it, at most 500 bytes
}

// diary keeps the last problems that a worker has logged, for its status page. It stands between the worker and its logger,
// so that the page shows what the log does.
type diary struct {
	mu   sync.Mutex
	last [20]Problem
	n    int // of all there were
}

func (y *diary) add(p Problem) {
	y.mu.Lock()
	y.last[y.n%len(y.last)] = p
	y.n++
	y.mu.Unlock()
}

// problems are the last ones, newest first.
func (y *diary) problems() []Problem {
	y.mu.Lock()
	defer y.mu.Unlock()
	all := make([]Problem, 0, len(y.last))
	for i := y.n - 1; i >= max(0, y.n-len(y.last)); i-- {
		all = append(all, y.last[i%len(y.last)])
	}
	return all
}

// logger logs to l what is logged, and keeps the problems among it.
func (y *diary) logger(l *slog.Logger) *slog.Logger { return slog.New(&diarist{y, l.Handler()}) }

// diarist is the handler of a logger that writes to a diary.
type diarist struct {
	diary *diary
	next  slog.Handler
}

func (h *diarist) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

func (h *diarist) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.diary.add(problemOf(r))
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h *diarist) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &diarist{h.diary, h.next.WithAttrs(attrs)}
}

func (h *diarist) WithGroup(name string) slog.Handler {
	return &diarist{h.diary, h.next.WithGroup(name)}
}

// problemOf reads a line of the log. Stacks are left to the log.
func problemOf(r slog.Record) Problem {
	p := Problem{At: r.Time, Level: r.Level, Text: r.Message}
	var rest []string
	r.Attrs(func(a slog.Attr) bool {
		v := a.Value.Resolve()
		switch {
		case a.Key == "stack":
		case a.Key == "message" && v.Kind() == slog.KindGroup:
			for _, of := range v.Group() {
				if of.Key == "id" {
					p.MessageID = of.Value.String()
				}
			}
		case a.Key == "error":
			rest = append([]string{v.String()}, rest...)
		default:
			rest = append(rest, fmt.Sprintf("%s: %s", strings.ReplaceAll(a.Key, "_", " "), v))
		}
		return true
	})
	p.Detail = shorten(strings.Join(rest, "; "), 500)
	return p
}
