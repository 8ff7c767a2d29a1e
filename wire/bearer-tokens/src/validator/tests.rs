use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use testkit::certificates::{CertificateDirectory, TestAuthority};
use testkit::tokens::{TokenIssuer, key_set, token_part};
use tls::{ClientAuthentication, StoreFile, TlsOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn claims() -> Value {
    json!({"sub": "alice", "exp": now() + 600, "iss": "https://id.example", "aud": ["kafka", "other"]})
}

fn with(name: &str, value: Value) -> Value {
    let mut changed = claims();
    changed[name] = value;
    changed
}

fn options(keys: KeySource) -> TokenOptions {
    TokenOptions {
        keys,
        trust: None,
        refresh: Duration::from_secs(3600),
        retry: (Duration::from_millis(100), Duration::from_secs(10)),
        audiences: BTreeSet::from(["kafka".to_owned()]),
        issuer: Some("https://id.example".to_owned()),
        clock_skew: Duration::from_secs(30),
        subject_claim: "sub".to_owned(),
    }
}

/// A file that is removed in the end.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, text: &str) -> KeyFile {
        let name = format!("freezeframe-keys-{}-{name}.json", std::process::id());
        let file = KeyFile(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }

    async fn validator(&self) -> TokenValidator {
        let validator = TokenValidator::new(options(KeySource::File(self.0.clone())));
        validator.refresh().await.unwrap();
        validator
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_far_expiry_is_clamped_and_a_name_is_taken_as_it_is() {
    let issuer = TokenIssuer::new("one");
    let file = KeyFile::new("far", &key_set(&[&issuer]));
    let validator = file.validator().await;
    for expiry in [json!(1_u64 << 62), json!(u64::MAX), json!(1e18)] {
        let token = issuer.token(&with("exp", expiry.clone()));
        let accepted = validator.validate(&token).await;
        assert_eq!(accepted.unwrap().expires, SystemTime::UNIX_EPOCH + EXPIRY_MAX, "{expiry}");
    }
    for (name, expected) in [(" alice", Some(" alice")), ("alice\t", Some("alice\t")), (" ", None)]
    {
        let token = issuer.token(&with("sub", json!(name)));
        let subject = validator.validate(&token).await.ok().map(|token| token.subject);
        assert_eq!(subject.as_deref(), expected);
    }
}

#[tokio::test]
async fn a_token_is_accepted_if_all_of_it_is_right() {
    let issuer = TokenIssuer::new("one");
    let file = KeyFile::new("accepted", &key_set(&[&issuer]));
    let validator = file.validator().await;
    let token = validator.validate(&issuer.token(&claims())).await.unwrap();
    assert_eq!(token.subject, "alice");
    let left = token.expires.duration_since(SystemTime::now()).unwrap();
    assert!((590..=600).contains(&left.as_secs()), "{left:?}");
    // Clocks differ a little.
    for (name, seconds) in [("exp", now() - 20), ("nbf", now() + 20)] {
        let token = issuer.token(&with(name, json!(seconds)));
        assert!(validator.validate(&token).await.is_ok(), "{name}");
    }
    // A token without a key id is checked with each key.
    let unnamed = issuer.sign(&json!({"alg": "ES256"}), &claims());
    assert!(validator.validate(&unnamed).await.is_ok());
    let one_audience = with("aud", json!("kafka"));
    assert!(validator.validate(&issuer.token(&one_audience)).await.is_ok());
}

#[tokio::test]
async fn a_token_is_refused_for_anything_that_is_wrong() {
    let (issuer, stranger) = (TokenIssuer::new("one"), TokenIssuer::new("one"));
    let file = KeyFile::new("refused", &key_set(&[&issuer]));
    let validator = file.validator().await;
    let missing = |name: &str| TokenError::MissingClaim(name.to_owned());
    let mut without_exp = claims();
    without_exp.as_object_mut().unwrap().remove("exp");
    let mut without_aud = claims();
    without_aud.as_object_mut().unwrap().remove("aud");
    let good = issuer.token(&claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (header, body) = signed.split_once('.').unwrap();
    let other_body = token_part(&with("sub", json!("admin")));
    // The classic confusion: a symmetric algorithm, with the public key as its secret.
    let confused =
        format!("{}.{}", token_part(&json!({"alg": "HS256", "kid": "one"})), token_part(&claims()));
    let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, issuer.public_key());
    let tag = aws_lc_rs::hmac::sign(&secret, confused.as_bytes());
    let confused = format!("{confused}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
    let unsigned = format!("{}.{}.", token_part(&json!({"alg": "none"})), token_part(&claims()));
    let cases = [
        (issuer.token(&with("exp", json!(now() - 60))), TokenError::Expired),
        (issuer.token(&with("nbf", json!(now() + 60))), TokenError::NotYetValid),
        (issuer.token(&with("aud", json!("another"))), TokenError::Audience),
        (issuer.token(&with("aud", json!([]))), TokenError::Audience),
        (issuer.token(&with("iss", json!("https://evil.example"))), TokenError::Issuer),
        (issuer.token(&with("sub", json!(""))), missing("sub")),
        (issuer.token(&with("sub", json!(5))), missing("sub")),
        (issuer.token(&without_exp), missing("exp")),
        (issuer.token(&without_aud), missing("aud")),
        (stranger.token(&claims()), TokenError::Signature),
        (format!("{header}.{other_body}.{signature}"), TokenError::Signature),
        (format!("{header}.{body}."), TokenError::Signature),
        (issuer.sign(&json!({"alg": "ES256", "kid": "two"}), &claims()), TokenError::UnknownKey),
        (issuer.sign(&json!({"alg": "RS256", "kid": "one"}), &claims()), TokenError::UnknownKey),
        (confused, TokenError::Algorithm),
        (unsigned, TokenError::Malformed),
        (String::new(), TokenError::Malformed),
        ("..".to_owned(), TokenError::Malformed),
        (signed.to_owned(), TokenError::Malformed),
        ("a".repeat(100_000), TokenError::Malformed),
    ];
    for (token, expected) in cases {
        let shown = &token[..token.len().min(100)];
        assert_eq!(validator.validate(&token).await, Err(expected), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn new_keys_are_found_when_a_token_needs_them_and_not_too_often() {
    let (old, new) = (TokenIssuer::new("old"), TokenIssuer::new("new"));
    let file = KeyFile::new("rotated", &key_set(&[&old]));
    let validator = file.validator().await;
    file.write(&key_set(&[&old, &new]));
    let token = new.token(&claims());
    assert_eq!(validator.validate(&token).await, Err(TokenError::UnknownKey));
    tokio::time::advance(UNKNOWN_KEY_REFRESH_MIN).await;
    assert!(validator.validate(&token).await.is_ok());
    // Keys that do not read do not replace those that are there.
    file.write("{");
    assert!(validator.refresh().await.is_err());
    assert!(validator.validate(&token).await.is_ok());
}

#[tokio::test]
async fn without_keys_no_token_is_accepted() {
    let issuer = TokenIssuer::new("one");
    let file = KeyFile::new("none", "[]");
    let validator = TokenValidator::new(options(KeySource::File(file.0.clone())));
    assert_eq!(validator.validate(&issuer.token(&claims())).await, Err(TokenError::NoKeys));
    file.write(&" ".repeat((1 << 20) + 1));
    assert!(validator.refresh().await.unwrap_err().contains("too long"));
}

#[tokio::test]
async fn keys_come_over_http_and_what_is_no_answer_is_refused() {
    let issuer = TokenIssuer::new("one");
    let document = key_set(&[&issuer]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let good = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{document}", document.len());
    let answers = [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat((1 << 20) + 1)),
        String::new(),
        good,
    ];
    let count = answers.len();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"GET /keys?a=b HTTP/1.1\r\n"));
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let source = KeySource::parse(&format!("http://127.0.0.1:{port}/keys?a=b")).unwrap();
    let validator = TokenValidator::new(options(source));
    for _ in 1..count {
        assert!(validator.refresh().await.is_err());
    }
    validator.refresh().await.unwrap();
    assert!(validator.validate(&issuer.token(&claims())).await.is_ok());
}

#[tokio::test]
async fn keys_come_over_https_from_a_server_that_is_trusted() {
    let (issuer, certificates) = (TokenIssuer::new("one"), CertificateDirectory::new());
    let key_store = StoreFile { path: certificates.file("server.pem"), ..StoreFile::default() };
    let client_authentication = ClientAuthentication::None;
    let tls = TlsOptions { key_store, client_authentication, ..TlsOptions::default() };
    let server = tls::TlsServer::new(tls).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let document = key_set(&[&issuer]);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = server.accept(stream).await else { continue };
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", document.len());
            let _ = stream.write_all((answer + &document).as_bytes()).await;
            let _ = stream.flush().await;
        }
    });
    let validator = |host: &str, trust: &str| {
        let source = KeySource::parse(&format!("https://{host}:{port}/keys")).unwrap();
        let trust = Some(certificates.file(trust));
        TokenValidator::new(TokenOptions { trust, ..options(source) })
    };
    let trusting = validator("localhost", "trust.pem");
    trusting.refresh().await.unwrap();
    assert!(trusting.validate(&issuer.token(&claims())).await.is_ok());
    // The certificate is of another host, or of an authority that is not trusted.
    assert!(validator("127.0.0.1", "trust.pem").refresh().await.is_err());
    certificates.write("other.pem", &TestAuthority::new().pem());
    assert!(validator("localhost", "other.pem").refresh().await.is_err());
}
