package bench

import (
	"bytes"
	"testing"
)

func TestTableAlignsTextLeftAndFiguresRight(t *testing.T) {
	table := table{title: "t", head: []string{"who", "µs"}, left: 1}
	table.add("raw", "1,234")
	table.add("ours")
	table.note("%d notes", 1)
	var out bytes.Buffer
	table.print(&out)
	const want = `
### t

| who  |    µs |
| ---- | ----: |
| raw  | 1,234 |
| ours |       |

1 notes
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.000", 0.2049: "0.205", 1.149: "1.15", 28.96: "29.0", 99.94: "99.9", 100: "100", 999.6: "1,000", 26_600: "26,600", 1_234_567: "1,234,567",
	} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %q, want %q", v, got, want)
		}
	}
	if got := spread([]float64{1.2, 0.8, 1}); got != "1.00 (0.80–1.20)" {
		t.Errorf("spread = %q", got)
	}
	for n, want := range map[int64]string{-1: "-1", -100: "-100", -1000: "-1,000", 0: "0"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestABoundIsMetAtItsLimitAndNotBeyond(t *testing.T) {
	d := &director{}
	d.atMost(0.21, 0.21, "", "calls")
	d.atMost(0.21, 0.2104, "", "calls")
	d.atLeast(0.9, 0.9, "", "rate")
	d.atLeast(0.9, 0.89, "", "rate")
	d.atMost(1.15, 1.152, "", "CPU")
	d.below(1, 1, "", "calls / raw's")
	want := []bool{true, false, true, false, false, false}
	if got := d.bounds[4].figure; got != "1.152" {
		t.Errorf("1.152 is printed as %s: it looks as if it were within 1.15", got)
	}
	for i, b := range d.bounds {
		if b.holds != want[i] {
			t.Errorf("%s %s, limit %s: holds = %v", b.what, b.figure, b.limit, b.holds)
		}
	}
}
