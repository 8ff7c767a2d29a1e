package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// accessSteps runs the cases of a file that security.sh wrote.
func accessSteps(steps *steps, cases, run string) {
	text, err := os.ReadFile(cases)
	if err != nil {
		panic(err)
	}
	directory := filepath.Dir(cases)
	for line := range strings.Lines(string(text)) {
		field := strings.Fields(line)
		for i := range field {
			field[i] = strings.TrimPrefix(field[i], "-")
		}
		c := credentials{mechanism: field[3], trust: filepath.Join(directory, field[4]), user: field[6]}
		if field[5] != "" {
			c.certificate = filepath.Join(directory, field[5])
		}
		if field[7] != "" {
			secret, err := os.ReadFile(filepath.Join(directory, field[7]))
			if err != nil {
				panic(err)
			}
			c.secret = string(secret)
		}
		a := access{newScenario(field[2], c, steps, field[1]+"-"+run), field[1]}
		if field[0] == "served" {
			a.served()
		} else {
			a.refused()
		}
		a.admin.Close()
	}
}

// access is one way to log in. Its topic and its group have the name that its rules are for.
type access struct {
	*scenario
	name string
}

func (a access) step(name string, body func(context.Context) error) {
	a.steps.step(a.name+" "+name, patience, body)
}

func (a access) served() {
	a.step("produce-and-consume", func(ctx context.Context) error {
		if err := a.create(ctx, a.topic, 1); err != nil {
			return err
		}
		if err := a.pass(ctx, "none", 20); err != nil {
			return err
		}
		member := a.join(a.topic, a.topic)
		defer member.Close()
		seen, err := readTo(ctx, member.Client, a.model.ends())
		if err != nil {
			return err
		}
		if err := a.model.equal(seen); err != nil {
			return err
		}
		committed := map[int32]int64{}
		if err := a.commitShortOfEnd(ctx, member, committed); err != nil {
			return err
		}
		offsets, err := a.committed(ctx, a.topic)
		if err != nil {
			return err
		}
		return equal("offsets", committed, offsets)
	})
	for _, topic := range []string{"without-rule", "described"} {
		a.step("produce-to-topic-"+topic, func(ctx context.Context) error {
			err := a.produce(ctx, model{}, []*kgo.Record{{Topic: topic, Value: []byte("v")}})
			return fails(kerr.TopicAuthorizationFailed, err)
		})
		a.step("consume-topic-"+topic, func(ctx context.Context) error {
			return a.consumeFails(ctx, a.topic, topic, kerr.TopicAuthorizationFailed)
		})
	}
	a.step("consume-in-group-without-rule", func(ctx context.Context) error {
		return a.consumeFails(ctx, "without-rule", a.topic, kerr.GroupAuthorizationFailed)
	})
}

// refused says whether a login ends with the broker's word, or with that of TLS. Ping is where franz-go reports it; records
// wait for a broker that can be reached until their context ends.
func (a access) refused() {
	a.step("login-refused", func(ctx context.Context) error {
		client := a.client()
		defer client.Close()
		err := client.Ping(ctx)
		switch a.mechanism {
		case "":
			var ours *tls.CertificateVerificationError
			var theirs *net.OpError
			if errors.As(err, &ours) || errors.As(err, &theirs) && theirs.Op == "remote error" {
				return nil
			}
			return fmt.Errorf("expected an error of TLS, saw %w", err)
		case "OAUTHBEARER":
			// The broker's first answer has the reason (RFC 7628), and franz-go 1.22.2 reads no further.
			if err != nil && strings.Contains(err.Error(), "unexpected data in oauth response") {
				return nil
			}
		}
		return fails(kerr.SaslAuthenticationFailed, err)
	})
}

func (a access) consumeFails(ctx context.Context, group, topic string, expected error) error {
	member := a.join(group, topic)
	defer member.Close()
	fetches := member.PollFetches(ctx)
	if err := equal("count of records read", 0, fetches.NumRecords()); err != nil {
		return err
	}
	return fails(expected, fetches.Err())
}

func fails(expected, seen error) error {
	if errors.Is(seen, expected) {
		return nil
	}
	return fmt.Errorf("expected %w, saw %v", expected, seen)
}
