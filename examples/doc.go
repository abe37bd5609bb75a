// Package examples holds programs as users of sqsworker would run them; each is a folder of its own.
package examples
