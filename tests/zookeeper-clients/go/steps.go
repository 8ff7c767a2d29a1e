package main

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// patience bounds each wait.
const patience = 10 * time.Second

// steps runs named steps and prints one line for each; a step that fails does not stop the next.
type steps struct {
	running  string
	failures int
}

func (s *steps) step(name string, body func() error) {
	s.running = name
	if err := body(); err != nil {
		s.failures++
		fmt.Printf("FAILED %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %s\n", name)
}

func equal(what string, expected, seen any) error {
	if !reflect.DeepEqual(expected, seen) {
		return fmt.Errorf("expected %s %v, saw %v", what, expected, seen)
	}
	return nil
}

func fails(what string, expected, seen error) error {
	if !errors.Is(seen, expected) {
		return fmt.Errorf("expected %s to fail with %v, saw %v", what, expected, seen)
	}
	return nil
}
