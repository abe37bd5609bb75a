package bench

import (
	"fmt"
	"math"
	"strconv"
)

// bound is one thing that has to hold, and the figure.
type bound struct {
	what   string
	limit  string
	figure string
	holds  bool
}

// atMost and atLeast note how a figure compares.
func (d *director) atMost(limit, v float64, unit, what string, args ...any) {
	d.bounds = append(d.bounds, bound{fmt.Sprintf(what, args...), "≤ " + short(limit) + unit, short(v) + unit, v <= limit})
}

func (d *director) atLeast(limit, v float64, unit, what string, args ...any) {
	d.bounds = append(d.bounds, bound{fmt.Sprintf(what, args...), "≥ " + short(limit) + unit, short(v) + unit, v >= limit})
}

func (d *director) below(limit, v float64, unit, what string, args ...any) {
	d.bounds = append(d.bounds, bound{fmt.Sprintf(what, args...), "< " + short(limit) + unit, short(v) + unit, v < limit})
}

// short prints whole numbers whole and others to three places: a bound of 0.21 isn't met by 0.214.
func short(v float64) string {
	if v == float64(int64(v)) || v >= 1000 {
		return thousands(int64(v + 0.5))
	}
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
}

func (d *director) printBounds() {
	t := table{title: "What has to hold", head: []string{"bound", "limit", "figure", ""}, left: 1}
	for _, b := range d.bounds {
		verdict := "holds"
		if !b.holds {
			verdict = "DOESN'T HOLD"
		}
		t.add(b.what, b.limit, b.figure, verdict)
	}
	if d.Quick {
		t.note("A quick run only shows that everything works: its figures mean nothing.")
	}
	t.print(d.out)
}
