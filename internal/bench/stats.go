package bench

import (
	"cmp"
	"math"
	"slices"
)

// median is the middle value; of an even number, the mean of the two in the middle. Zero of nothing.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// percentile is the smallest value that at least p percent of all are not above. Zero of nothing.
func percentile[T cmp.Ordered](values []T, p float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// ratios divides round by round: what the machine did to both contestants of a round cancels out.
func ratios(ours, theirs []float64) []float64 {
	n := min(len(ours), len(theirs))
	var all []float64
	for i := range n {
		if theirs[i] != 0 {
			all = append(all, ours[i]/theirs[i])
		}
	}
	return all
}

// medianRatio is the median of the rounds' ratios.
func medianRatio(ours, theirs []float64) float64 { return median(ratios(ours, theirs)) }
