// Package interruption tests package worker/interruption against AWS's own simulator of instance metadata, and workers as
// real processes that are told to go and then killed.
package interruption
