package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// patience bounds each wait; a broker without moments lets each of step f run into the shorter one.
const (
	patience       = 10 * time.Second
	momentPatience = 4 * time.Second
)

// steps runs named steps and prints one line for each; a step that fails does not stop the next.
type steps struct {
	running  string
	failures int
}

func (s *steps) step(name string, limit time.Duration, body func(context.Context) error) {
	s.running = name
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := body(ctx); err != nil {
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

// await asks until it holds, or until the step's time is up.
func await(ctx context.Context, expected string, holds func() (bool, error)) error {
	for {
		done, err := holds()
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("expected %s, saw none of it in time", expected)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
