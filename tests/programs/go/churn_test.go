package main

import (
	"os"
	"testing"
)

// TestChurn runs the program as `go test` does, so that the race detector can look on.
func TestChurn(t *testing.T) {
	os.Args = []string{"churn", "60", "3"}
	main()
}
