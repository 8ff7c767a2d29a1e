//! The cipher suites: those of rustls, but AES-GCM with TLS 1.3 encrypts in one pass, from the
//! sender's buffer. rustls copies the plaintext first, and records that a consumer fetches are in
//! no cache of the processor by then: the copy takes longer than the encryption.

use std::sync::LazyLock;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, TlsProtocolId, TlsRecordSealingKey,
};
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, Nonce, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm, UnsupportedOperationError,
    make_tls13_aad,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs as rustls_aws_lc};
use rustls::{
    CipherSuite, CipherSuiteCommon, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion,
    SupportedCipherSuite, Tls13CipherSuite,
};

/// The most that one record carries.
const RECORD_BYTES_MAX: usize = 16 << 10;
/// The type of what a record carries, and the tag, follow it.
const TRAILER_BYTES_MAX: usize = 1 + 16;
static ZEROS: [u8; RECORD_BYTES_MAX + TRAILER_BYTES_MAX] = [0; _];

static SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
    rustls_aws_lc::ALL_CIPHER_SUITES.iter().map(|suite| one_pass(*suite)).collect()
});

/// All cipher suites, the best first.
pub(crate) fn all() -> &'static [SupportedCipherSuite] {
    &SUITES
}

/// The cryptography provider, with all suites.
pub(crate) fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: all().to_vec(), ..rustls_aws_lc::default_provider() }
}

/// `suite`, encrypting in one pass if it is AES-GCM of TLS 1.3.
fn one_pass(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let SupportedCipherSuite::Tls13(suite) = suite else { return suite };
    let algorithm = match suite.common.suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => &AES_128_GCM,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => &AES_256_GCM,
        _ => return SupportedCipherSuite::Tls13(suite),
    };
    // Once for each suite: rustls names suites for the life of the process.
    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon { ..suite.common },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: Box::leak(Box::new(OnePassAead { base: suite.aead_alg, algorithm })),
        quic: None,
    })))
}

/// AES-GCM of TLS 1.3. All but encryption is rustls'.
struct OnePassAead {
    base: &'static dyn Tls13AeadAlgorithm,
    algorithm: &'static Algorithm,
}

impl Tls13AeadAlgorithm for OnePassAead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        let key = TlsRecordSealingKey::new(self.algorithm, TlsProtocolId::TLS13, key.as_ref());
        Box::new(OnePassEncrypter { key: key.expect("rustls gives keys of `key_len`"), iv })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.base.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.base.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.base.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.base.fips()
    }
}

struct OnePassEncrypter {
    key: TlsRecordSealingKey,
    iv: Iv,
}

impl MessageEncrypter for OnePassEncrypter {
    /// A record of RFC 8446, section 5.2: what is sent, the byte of its type, and the tag, under
    /// one header.
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        sequence: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let length = self.encrypted_payload_len(message.payload.len());
        let nonce = Nonce::new(&self.iv, sequence).0;
        let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(nonce);
        let header = Aad::from(make_tls13_aad(length));
        let content_type = message.typ.to_array();
        let mut payload = PrefixedPayload::with_capacity(length);
        let sealed = match contiguous(&message.payload) {
            Some(plain) if length <= ZEROS.len() => {
                payload.extend_from_slice(&ZEROS[..length]);
                let (encrypted, trailer) = payload.as_mut().split_at_mut(plain.len());
                self.key.seal_out_of_place_scatter(
                    nonce,
                    header,
                    plain,
                    encrypted,
                    &content_type,
                    trailer,
                )
            }
            _ => {
                payload.extend_from_chunks(&message.payload);
                payload.extend_from_slice(&content_type);
                self.key.seal_in_place_append_tag(nonce, header, &mut payload)
            }
        };
        sealed.map_err(|_| Error::EncryptError)?;
        let (kind, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
        Ok(OutboundOpaqueMessage::new(kind, version, payload))
    }

    fn encrypted_payload_len(&self, payload_bytes: usize) -> usize {
        payload_bytes + 1 + self.key.algorithm().tag_len()
    }
}

/// The bytes of `chunks`, if they are in one piece.
fn contiguous<'a>(chunks: &'a OutboundChunks<'_>) -> Option<&'a [u8]> {
    let (chunks, mut start, mut end) = match *chunks {
        OutboundChunks::Single(chunk) => return Some(chunk),
        OutboundChunks::Multiple { chunks, start, end } => (chunks, start, end),
    };
    for chunk in chunks {
        if start < chunk.len() {
            return chunk.get(start..end);
        }
        (start, end) = (start - chunk.len(), end - chunk.len());
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Write};

    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{
        ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig,
        ServerConnection, SideData,
    };

    use super::*;

    /// A server of ours with `suite` alone, and a client that is all rustls', after their
    /// handshake.
    fn connected(suite: SupportedCipherSuite) -> (ServerConnection, ClientConnection) {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certified.cert.der().clone()).unwrap();
        let provider = CryptoProvider { cipher_suites: vec![suite], ..provider() };
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
        let client = ClientConfig::builder_with_provider(rustls_aws_lc::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = ServerConnection::new(server.into()).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(client.into(), name).unwrap();
        while server.is_handshaking() || client.is_handshaking() {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        (server, client)
    }

    /// Moves everything that one side has to send to the other, and returns the plaintext.
    fn pass<A: SideData, B: SideData>(
        from: &mut ConnectionCommon<A>,
        to: &mut ConnectionCommon<B>,
    ) -> Vec<u8> {
        let (mut sent, mut read) = (Vec::new(), Vec::new());
        while from.wants_write() {
            from.write_tls(&mut sent).unwrap();
        }
        let mut sent = &sent[..];
        while !sent.is_empty() {
            to.read_tls(&mut sent).unwrap();
            let state = to.process_new_packets().unwrap();
            let mut piece = vec![0; state.plaintext_bytes_to_read()];
            to.reader().read_exact(&mut piece).unwrap();
            read.append(&mut piece);
        }
        read
    }

    #[test]
    fn others_read_what_is_sealed_however_it_lies_in_memory() {
        let text: Vec<u8> = (0..40_000).map(|at| (at * 31 % 251) as u8).collect();
        for suite in all().iter().filter(|suite| suite.tls13().is_some()) {
            let (mut server, mut client) = connected(*suite);
            assert_eq!(
                client.negotiated_cipher_suite().map(|suite| suite.suite()),
                Some(suite.suite())
            );
            for first in [0, 1, 17, 4095, RECORD_BYTES_MAX - 1, RECORD_BYTES_MAX, 20_000] {
                for second in [0, 1, RECORD_BYTES_MAX, 20_000] {
                    // With another key, whose records count from 0.
                    server.refresh_traffic_keys().unwrap();
                    let (first, rest) = text.split_at(first);
                    let (second, third) = rest.split_at(second);
                    let slices = [first, second, third].map(IoSlice::new);
                    assert_eq!(server.writer().write_vectored(&slices).unwrap(), text.len());
                    let read = pass(&mut server, &mut client);
                    assert!(read == text, "{suite:?}: {} and {}", first.len(), second.len());
                }
            }
        }
    }

    #[test]
    fn aes_gcm_of_tls_1_3_is_sealed_in_one_pass_and_all_else_is_as_it_was() {
        let replaced: Vec<_> = all()
            .iter()
            .zip(rustls_aws_lc::ALL_CIPHER_SUITES)
            .filter(|(ours, base)| !is_same(ours, base))
            .map(|(ours, _)| ours.suite())
            .collect();
        let expected =
            [CipherSuite::TLS13_AES_256_GCM_SHA384, CipherSuite::TLS13_AES_128_GCM_SHA256];
        assert_eq!(replaced, expected);
    }

    fn is_same(ours: &SupportedCipherSuite, base: &SupportedCipherSuite) -> bool {
        match (ours.tls13(), base.tls13()) {
            (Some(ours), Some(base)) => std::ptr::eq(ours, base),
            (ours, base) => ours.is_none() && base.is_none(),
        }
    }

    #[test]
    fn what_lies_in_one_piece_is_found_there() {
        let text = *b"abcdef";
        let chunks: [&[u8]; 4] = [&text[..2], &[], &text[2..5], &text[5..]];
        for start in 0..=6 {
            for end in start..=6 {
                let piece = OutboundChunks::Multiple { chunks: &chunks, start, end };
                let piece = contiguous(&piece).map(<[u8]>::to_vec);
                let is_whole = [(0, 2), (2, 5), (5, 6)]
                    .iter()
                    .any(|(from, until)| (*from..*until).contains(&start) && end <= *until);
                assert_eq!(piece.is_some(), is_whole, "{start}..{end}");
                assert!(piece.is_none_or(|piece| piece == text[start..end]));
            }
        }
    }
}
