package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// credentials say how a client speaks with the broker: over TLS if it trusts somebody, and with SASL if there is a
// mechanism. trust and certificate are paths without .pem, .crt and .key; secret is a password, or a token.
type credentials struct {
	mechanism, trust, certificate, user, secret string
}

// fromEnvironment takes FREEZEFRAME_TLS_DIRECTORY, a directory of make-certificates.sh, and FREEZEFRAME_SASL_MECHANISM.
func fromEnvironment() credentials {
	c := credentials{
		mechanism: os.Getenv("FREEZEFRAME_SASL_MECHANISM"),
		user:      os.Getenv("FREEZEFRAME_SASL_USER"), secret: os.Getenv("FREEZEFRAME_SASL_PASSWORD"),
	}
	if directory := os.Getenv("FREEZEFRAME_TLS_DIRECTORY"); directory != "" {
		c.trust, c.certificate = filepath.Join(directory, "trust"), filepath.Join(directory, "other")
	}
	return c
}

func (c credentials) options() []kgo.Opt {
	options := []kgo.Opt{kgo.DialTLSConfig(c.tlsConfig())}
	switch c.mechanism {
	case "":
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: c.user, Pass: c.secret}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: c.user, Pass: c.secret}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: c.user, Pass: c.secret}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		token := func(context.Context) (oauth.Auth, error) { return oauth.Auth{Token: c.secret}, nil }
		options = append(options, kgo.SASL(oauth.Oauth(token)))
	default:
		panic("no mechanism " + c.mechanism)
	}
	return options
}

func (c credentials) tlsConfig() *tls.Config {
	if c.trust == "" {
		return nil
	}
	trusted, err := os.ReadFile(c.trust + ".pem")
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted)
	if c.certificate != "" {
		own, err := tls.LoadX509KeyPair(c.certificate+".crt", c.certificate+".key")
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config
}
