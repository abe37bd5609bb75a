package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// table is a Markdown table that reads well unrendered too: text to the left, figures to the right.
type table struct {
	title string
	head  []string
	rows  [][]string
	left  int // columns of text
	notes []string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (t *table) print(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n", t.title)
	widths := t.widths()
	t.printRow(w, widths, t.head)
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", width-1) + ":"
		if i < t.left {
			rule[i] = strings.Repeat("-", width)
		}
	}
	t.printRow(w, widths, rule)
	for _, row := range t.rows {
		t.printRow(w, widths, row)
	}
	if len(t.notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, n := range t.notes {
		fmt.Fprintln(w, n)
	}
}

func (t *table) widths() []int {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 2)
		}
	}
	return widths
}

func (t *table) printRow(w io.Writer, widths []int, cells []string) {
	for i, width := range widths {
		cell := ""
		if i < len(cells) {
			cell = cells[i]
		}
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
		if i < t.left {
			fmt.Fprintf(w, "| %s%s ", cell, pad)
		} else {
			fmt.Fprintf(w, "| %s%s ", pad, cell)
		}
	}
	fmt.Fprintln(w, "|")
}

// figure prints a number with as many digits as mean something.
func figure(v float64) string {
	switch {
	case v >= 100:
		return thousands(int64(v + 0.5))
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// spread is the median, and the extremes behind it.
func spread(values []float64) string {
	if len(values) < 2 {
		return fmt.Sprintf("%.2f", median(values))
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median(values), slices.Min(values), slices.Max(values))
}

func thousands(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
