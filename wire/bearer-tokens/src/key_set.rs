//! The keys that sign tokens, and where they are read from.

use std::path::PathBuf;

use jsonwebtoken::jwk::{AlgorithmParameters, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

/// The longest document of keys that is read.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// The most keys in it.
const KEYS_MAX: usize = 1000;

/// The source of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    File(PathBuf),
    Http {
        is_secure: bool,
        host: String,
        port: u16,
        /// With the query.
        path: String,
    },
}

impl KeySource {
    /// True if the keys travel unencrypted: an attacker on the network can replace them and sign
    /// tokens for any user.
    pub fn is_in_the_open(&self) -> bool {
        matches!(self, KeySource::Http { is_secure: false, .. })
    }

    /// Reads `file:///PATH`, `https://HOST[:PORT]/PATH` or `http://HOST[:PORT]/PATH`.
    ///
    /// # Errors
    /// In words: what to give instead.
    pub fn parse(text: &str) -> Result<KeySource, String> {
        let expected =
            || "give file:///PATH, or https://HOST/PATH, of a JSON Web Key Set".to_owned();
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(expected());
            }
            return Ok(KeySource::File(path.into()));
        }
        let (is_secure, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://"))
        {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(expected()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |char: char| char.is_ascii_graphic();
        if authority.contains('@') || !rest.chars().all(is_plain) || path.contains('#') {
            return Err(expected());
        }
        let default = if is_secure { 443 } else { 80 };
        // An IPv6 address has colons, in brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| expected())?)
            }
            _ => (authority, default),
        };
        if host.is_empty() {
            return Err(expected());
        }
        let (host, path) = (host.to_owned(), format!("/{path}"));
        Ok(KeySource::Http { is_secure, host, port, path })
    }
}

pub(crate) struct SigningKey {
    pub(crate) id: Option<String>,
    /// The only algorithm that it is for, if it says so.
    algorithm: Option<Algorithm>,
    pub(crate) key: DecodingKey,
}

impl SigningKey {
    /// True if it may have signed a token with this header.
    pub(crate) fn fits(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        let is_named = id.is_none_or(|id| self.id.as_deref() == Some(id));
        is_named
            && self.algorithm.is_none_or(|expected| expected == algorithm)
            && self.key.family() == algorithm.family()
    }
}

/// The keys of a document. Leaves out keys that sign no tokens, or are secret.
pub(crate) fn parse_keys(document: &[u8]) -> Result<Vec<SigningKey>, String> {
    let set: JwkSet = serde_json::from_slice(document)
        .map_err(|error| format!("it is no JSON Web Key Set: {error}"))?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!("it has {} keys, and {KEYS_MAX} are the most", set.keys.len()));
    }
    let mut keys = Vec::new();
    for jwk in &set.keys {
        let is_secret = matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_));
        let is_for_encryption = matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
        if is_secret || is_for_encryption {
            continue;
        }
        let Ok(key) = DecodingKey::from_jwk(jwk) else { continue };
        let algorithm = jwk.common.key_algorithm.map(signing_algorithm);
        // A key for an algorithm that signs no tokens.
        if algorithm == Some(None) {
            continue;
        }
        let id = jwk.common.key_id.clone();
        keys.push(SigningKey { id, algorithm: algorithm.flatten(), key });
    }
    if keys.is_empty() {
        return Err("it has no key that signs tokens".to_owned());
    }
    Ok(keys)
}

fn signing_algorithm(algorithm: KeyAlgorithm) -> Option<Algorithm> {
    match algorithm {
        KeyAlgorithm::RS256 => Some(Algorithm::RS256),
        KeyAlgorithm::RS384 => Some(Algorithm::RS384),
        KeyAlgorithm::RS512 => Some(Algorithm::RS512),
        KeyAlgorithm::PS256 => Some(Algorithm::PS256),
        KeyAlgorithm::PS384 => Some(Algorithm::PS384),
        KeyAlgorithm::PS512 => Some(Algorithm::PS512),
        KeyAlgorithm::ES256 => Some(Algorithm::ES256),
        KeyAlgorithm::ES384 => Some(Algorithm::ES384),
        KeyAlgorithm::EdDSA => Some(Algorithm::EdDSA),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_file_or_a_url() {
        let http = |is_secure, host: &str, port, path: &str| KeySource::Http {
            is_secure,
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        };
        for (text, source) in [
            ("file:///etc/keys.json", KeySource::File("/etc/keys.json".into())),
            ("file:/etc/keys.json", KeySource::File("/etc/keys.json".into())),
            ("https://id.example/keys?a=b", http(true, "id.example", 443, "/keys?a=b")),
            ("https://id.example", http(true, "id.example", 443, "/")),
            ("http://[::1]:8080/k", http(false, "[::1]", 8080, "/k")),
            ("http://[::1]/k", http(false, "[::1]", 80, "/k")),
        ] {
            assert_eq!(KeySource::parse(text), Ok(source));
        }
        for bad in [
            "",
            "keys.json",
            "file:keys.json",
            "ftp://h/k",
            "https://",
            "https:///k",
            "https://h:x/k",
            "https://h:99999/k",
            "https://user@h/k",
            "https://h/k k",
            "https://h/k#f",
            "https://h/k\r\nx",
        ] {
            assert!(KeySource::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_set_of_keys_is_refused() {
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"keys":[]}"#,
            r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#,
            "\u{0}",
        ] {
            assert!(parse_keys(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
