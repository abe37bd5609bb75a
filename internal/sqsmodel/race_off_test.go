//go:build !race

package sqsmodel_test

const manyMessages = 200_000
