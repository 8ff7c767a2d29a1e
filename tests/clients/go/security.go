package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
)

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
