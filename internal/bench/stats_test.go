package bench

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.of); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.of, got, c.want)
		}
	}
}

func TestMedianLeavesItsValuesInPlace(t *testing.T) {
	values := []float64{3, 1, 2}
	median(values)
	if values[0] != 3 || values[1] != 1 || values[2] != 2 {
		t.Errorf("rounds are in another order now: %v", values)
	}
}

func TestPercentileIsAnObservedValue(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, c := range []struct {
		of   []time.Duration
		p    float64
		want time.Duration
	}{
		{nil, 99, 0},
		{[]time.Duration{4}, 50, 4},
		{[]time.Duration{1, 2}, 50, 1},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred, 0, 1},
	} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("percentile of %d values, %v%% = %v, want %v", len(c.of), c.p, got, c.want)
		}
	}
}

// A machine that is slow for one round is slow for both contestants of that round.
func TestRatiosCancelOutSlowRounds(t *testing.T) {
	ours, theirs := []float64{90, 9, 45}, []float64{100, 10, 50}
	if got := medianRatio(ours, theirs); math.Abs(got-0.9) > 1e-9 {
		t.Errorf("medianRatio = %v, want 0.9", got)
	}
	if got := len(ratios([]float64{1, 2}, []float64{0, 1, 5})); got != 1 {
		t.Errorf("%d ratios, want 1: no division by zero, and only rounds that both ran", got)
	}
}

func TestRateLeavesOutTheStartAndTheEnd(t *testing.T) {
	start := time.Unix(1000, 0)
	counts := tallies{Low: 100, High: 900, LowAt: start, HighAt: start.Add(2 * time.Second)}
	if got := counts.rate(); got != 400 {
		t.Errorf("rate = %v, want 400", got)
	}
	if got := (tallies{}).rate(); got != 0 {
		t.Errorf("rate of nothing = %v, want 0", got)
	}
}

func TestAStampSurvivesTheBody(t *testing.T) {
	at := time.Unix(1_800_000_000, 123_456_789)
	body := stampedBody(at, bodySize)
	if len(body) != bodySize {
		t.Errorf("body has %d bytes, want %d", len(body), bodySize)
	}
	if got := stampOf(body); !got.Equal(at) {
		t.Errorf("stampOf = %v, want %v", got, at)
	}
	if got := stampOf("no stamp"); !got.IsZero() {
		t.Errorf("stampOf(no stamp) = %v, want the zero time", got)
	}
}
