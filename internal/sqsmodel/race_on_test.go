//go:build race

package sqsmodel_test

const manyMessages = 20_000 // the race detector makes 200,000 slow
