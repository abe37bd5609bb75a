package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/sqsworker/sqsworker/dlq"
)

// terminal is where the command reads and writes.
type terminal struct {
	in       io.Reader
	out, err io.Writer

	isTerminal bool // out is one
	hasBar     bool // err is one: the progress bar goes there
	canAsk     bool // in is one
	width      int
	json       bool
}

func newTerminal(in, out, err *os.File) *terminal {
	t := &terminal{in: in, out: out, err: err, width: 80}
	t.isTerminal = term.IsTerminal(int(out.Fd()))
	t.hasBar = term.IsTerminal(int(err.Fd()))
	t.canAsk = term.IsTerminal(int(in.Fd()))
	if w, _, e := term.GetSize(int(err.Fd())); e == nil && w > 0 {
		t.width = w
	}
	return t
}

func (t *terminal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(t.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// line writes one object as one line of JSON.
func (t *terminal) line(v any) error {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table writes rows in columns; what could move a terminal's cursor is shown instead of done.
func (t *terminal) table(rows ...[]string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = visible(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// visible replaces control characters: a message's body is anybody's text.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
			return '�'
		}
		return r
	}, s)
}

// ask wants an exact answer. Where nobody can be asked, --yes is needed.
func (t *terminal) ask(question, want string) error {
	if !t.canAsk {
		return &usageError{fmt.Errorf("nobody can be asked here: say --yes")}
	}
	fmt.Fprintf(t.err, "%s ", question)
	answer, err := bufio.NewReader(t.in).ReadString('\n')
	if err != nil && answer == "" {
		return errDeclined
	}
	if strings.TrimSpace(answer) != want {
		return errDeclined
	}
	return nil
}

// bar draws progress on one line of a terminal, or writes it as JSON lines.
type bar struct {
	t     *terminal
	drawn bool
}

func (b *bar) show(p dlq.Progress) {
	switch {
	case b.t.hasBar:
		fmt.Fprintf(b.t.err, "\r\x1b[K%s", barLine(p, b.t.width-1))
		b.drawn = true
	case b.t.json:
		_ = b.t.line(struct {
			Event string `json:"event"`
			dlq.Progress
		}{"progress", p})
	}
}

func (b *bar) end() {
	if b.drawn {
		fmt.Fprintln(b.t.err)
	}
}

// barLine fits the line into the width.
func barLine(p dlq.Progress, width int) string {
	text := fmt.Sprintf(" %d/%d, %.0f/s", p.Done, p.ToMove, p.PerSecond)
	if p.Done != p.Moved {
		text += fmt.Sprintf(", %d moved", p.Moved)
	}
	if p.Failed > 0 {
		text += fmt.Sprintf(", %d failed", p.Failed)
	}
	if p.Left > 0 {
		text += fmt.Sprintf(", %v left", p.Left.Round(time.Second))
	}
	room := min(width-len(text)-2, 40)
	if room < 5 {
		return text[1:max(1, min(len(text), width+1))]
	}
	full := room
	if p.ToMove > 0 {
		full = int(min(int64(room), p.Done*int64(room)/p.ToMove))
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "]" + text
}
