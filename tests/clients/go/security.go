package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// security is how clients speak with the broker: over TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of
// make-certificates.sh, and with SASL if FREEZEFRAME_SASL_MECHANISM names a mechanism.
func security() []kgo.Opt {
	options := []kgo.Opt{kgo.DialTLSConfig(tlsConfig())}
	user, password := os.Getenv("FREEZEFRAME_SASL_USER"), os.Getenv("FREEZEFRAME_SASL_PASSWORD")
	switch mechanism := os.Getenv("FREEZEFRAME_SASL_MECHANISM"); mechanism {
	case "":
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	default:
		panic("no mechanism " + mechanism)
	}
	return options
}

// tlsConfig is nil unless FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh.
func tlsConfig() *tls.Config {
	directory := os.Getenv("FREEZEFRAME_TLS_DIRECTORY")
	if directory == "" {
		return nil
	}
	trusted, err := os.ReadFile(filepath.Join(directory, "trust.pem"))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	own, err := tls.LoadX509KeyPair(filepath.Join(directory, "other.crt"), filepath.Join(directory, "other.key"))
	if err != nil {
		panic(err)
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}
}
