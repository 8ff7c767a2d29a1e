package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// secure makes clients speak TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh, and SASL if
// FREEZEFRAME_SASL_MECHANISM names a mechanism.
func secure(c *sarama.Config) {
	c.Net.TLS.Config = tlsConfig()
	c.Net.TLS.Enable = c.Net.TLS.Config != nil
	mechanism := os.Getenv("FREEZEFRAME_SASL_MECHANISM")
	c.Net.SASL.Enable = mechanism != ""
	c.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
	c.Net.SASL.User, c.Net.SASL.Password = os.Getenv("FREEZEFRAME_SASL_USER"), os.Getenv("FREEZEFRAME_SASL_PASSWORD")
	hash := scram.SHA256
	if mechanism == sarama.SASLTypeSCRAMSHA512 {
		hash = scram.SHA512
	}
	c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
}

type scramClient struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
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
