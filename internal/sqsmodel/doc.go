// Package sqsmodel is SQS in process: strict, deterministic, and reached through
// the real SDK client.
package sqsmodel
