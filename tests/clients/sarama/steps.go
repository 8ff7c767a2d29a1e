package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

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

// await asks until it holds.
func await(expected string, holds func() (bool, error)) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		done, err := holds()
		if err != nil || done {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("expected %s, saw none of it within %s", expected, patience)
		}
	}
}
