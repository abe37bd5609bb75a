package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table aligns rows: the first column is a name, the following ones are on the right, the last is a remark.
type table struct{ rows [][]string }

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

// print writes the rows, the first one as a heading.
func (t *table) print(w io.Writer) {
	widths := map[int]int{}
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for i, row := range t.rows {
		indent := "  "
		if i == 0 {
			indent = ""
		}
		name := indent + row[0]
		line := name + strings.Repeat(" ", widths[0]+2-utf8.RuneCountInString(name))
		for j, c := range row[1:] {
			space := strings.Repeat(" ", widths[j+1]-utf8.RuneCountInString(c))
			if j+2 == len(row) {
				line += "  " + c
			} else {
				line += "  " + space + c
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}
