package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	barWidth   = 30
	maxWidth   = 79              // of a line with a bar
	plainEvery = 3 * time.Second // between two progress lines where there is no terminal
)

// narrator tells what happens, each line with its time. On a terminal a progress bar stays below the last line;
// elsewhere a line now and then does. It is used by one goroutine.
type narrator struct {
	w     io.Writer
	bar   bool
	began time.Time
	shown int       // width of the bar on the screen
	plain time.Time // of the last progress line
}

func newNarrator(w io.Writer) *narrator {
	now := time.Now()
	return &narrator{w: w, bar: isTerminal(w), began: now, plain: now}
}

// isTerminal tells whether a person watches.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (n *narrator) say(format string, args ...any) {
	n.wipe()
	fmt.Fprintf(n.w, "%5.1fs  %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
	n.plain = time.Now()
}

// progress shows how far it is: a bar at each call, or a line when none has been written for a while.
func (n *narrator) progress(done, of int, text string) {
	if !n.bar {
		if time.Since(n.plain) >= plainEvery {
			n.say("%d of %d done; %s", done, of, text)
		}
		return
	}
	filled := barWidth
	if of > 0 {
		filled = min(barWidth, barWidth*done/of)
	}
	line := fmt.Sprintf("%5.1fs  [%s%s] %d of %d; %s", time.Since(n.began).Seconds(),
		strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done, of, text)
	if r := []rune(line); len(r) > maxWidth {
		line = string(r[:maxWidth]) // a wrapped line can't be overwritten
	}
	width := utf8.RuneCountInString(line)
	fmt.Fprintf(n.w, "\r%s%s", line, strings.Repeat(" ", max(0, n.shown-width)))
	n.shown = width
}

// wipe takes the bar away. It overwrites with spaces: no escape sequences, so that every console gets it right.
func (n *narrator) wipe() {
	if n.shown > 0 {
		fmt.Fprintf(n.w, "\r%s\r", strings.Repeat(" ", n.shown))
		n.shown = 0
	}
}
