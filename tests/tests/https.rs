//! HTTP over TLS, with passwords, tokens and certificates of clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::StreamOwned;
use serde_json::json;
use testkit::certificates::{CertificateDirectory, TestAuthority};
use testkit::directory::TestDirectory;
use testkit::process::{TestServer, http_get, run, wait_until};
use testkit::tokens::{TokenIssuer, key_set};
use tls::{StoreFile, TlsClient, TlsClientOptions};

/// TLS as the client of this name, or as nobody.
fn tls_of(certificates: &CertificateDirectory, name: Option<&str>) -> TlsClient {
    let store = |name: &str| StoreFile { path: certificates.file(name), ..StoreFile::default() };
    let key_store = match name {
        Some(name) => {
            certificates.write("client.pem", &certificates.authority.sign(name).pem());
            store("client.pem")
        }
        None => StoreFile::default(),
    };
    TlsClient::new(&TlsClientOptions { trust_store: store("trust.pem"), key_store })
        .expect("the files fit")
}

/// The status of `GET path`, with one more header if it is not empty.
fn get(server: &TestServer, tls: &TlsClient, path: &str, header: &str) -> std::io::Result<u16> {
    let stream = TcpStream::connect(server.http_tls.expect("it is asked for"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut stream = StreamOwned::new(tls.begin("localhost")?, stream);
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    Ok(status.unwrap_or_else(|| panic!("{answer}")))
}

fn serve(
    certificates: &CertificateDirectory,
    data: &TestDirectory,
    settings: &[&str],
) -> TestServer {
    let key = certificates.setting("ssl.keystore.location", "server.pem");
    let trust = certificates.setting("ssl.truststore.location", "trust.pem");
    let own = ["server.http-tls=127.0.0.1:0", &key, &trust];
    let all = own.iter().chain(settings).flat_map(|setting| ["--set", *setting]);
    TestServer::start(data.path(), &all.collect::<Vec<_>>()).expect("it starts")
}

const AUTHORIZER: &str =
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";

#[test]
fn who_asks_over_tls_is_known_by_password_token_or_certificate() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let issuer = TokenIssuer::new("one");
    let keys = data.path().with_extension("keys.json");
    std::fs::write(&keys, key_set(&[&issuer])).expect("it is written");
    let url = format!("sasl.oauthbearer.jwks.endpoint.url=file://{}", keys.display());
    let directory = data.path().to_str().expect("a path in UTF-8");
    let added = run(&["users", "add", "admin", "--data-dir", directory], "secret\n");
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let settings = [
        AUTHORIZER,
        "super.users=User:admin;User:CN=operator",
        "listener.name.http.ssl.client.auth=requested",
        "sasl.oauthbearer.expected.audience=freezeframe",
        &url,
    ];
    let server = serve(&certificates, &data, &settings);
    let (nobody, operator) = (tls_of(&certificates, None), tls_of(&certificates, Some("operator")));
    let stranger = tls_of(&certificates, Some("stranger"));
    let basic = |words: &str| format!("Authorization: Basic {}", STANDARD.encode(words));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs();
    let bearer = |user: &str, audience: &str, expires: u64| {
        let claims = json!({"sub": user, "exp": expires, "aud": audience});
        format!("Authorization: Bearer {}", issuer.token(&claims))
    };
    for (tls, path, header, expected) in [
        (&nobody, "/healthz", String::new(), 200),
        (&nobody, "/metrics", String::new(), 401),
        (&nobody, "/metrics", basic("admin:secret"), 200),
        (&nobody, "/metrics", basic("admin:wrong"), 401),
        (&nobody, "/v1/topics", bearer("admin", "freezeframe", now + 600), 200),
        (&nobody, "/v1/topics", bearer("admin", "other", now + 600), 401),
        (&nobody, "/v1/topics", bearer("admin", "freezeframe", now - 600), 401),
        (&nobody, "/v1/topics", bearer("bob", "freezeframe", now + 600), 403),
        (&nobody, "/v1/topics", "Authorization: Bearer x".to_owned(), 401),
        (&operator, "/metrics", String::new(), 200),
        (&operator, "/v1/security-log", String::new(), 200),
        (&stranger, "/metrics", String::new(), 403),
        // The header of a request counts before the certificate.
        (&operator, "/metrics", bearer("bob", "freezeframe", now + 600), 403),
    ] {
        let found = get(&server, tls, path, &header).expect("it is served");
        assert_eq!(found, expected, "{path} {header}");
    }
    // A client that speaks no TLS there harms nobody.
    let mut junk =
        TcpStream::connect(server.http_tls.expect("it is asked for")).expect("it listens");
    junk.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    assert_eq!(get(&server, &nobody, "/healthz", "").expect("it is served"), 200);
    assert_eq!(http_get(server.http, "/healthz").expect("it is served").0, 200);
    assert!(!server.stderr().contains("secret"));
}

#[test]
fn a_new_certificate_is_used_without_a_restart() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &[]);
    let before = tls_of(&certificates, None);
    assert_eq!(get(&server, &before, "/metrics", "").expect("it is served"), 200);
    let authority = TestAuthority::new();
    certificates.write("trust.pem", &authority.pem());
    certificates.replace("server.pem", &authority.sign("localhost").pem());
    let after = tls_of(&certificates, None);
    wait_until("the new certificate is shown", || get(&server, &after, "/healthz", "").is_ok());
    assert!(get(&server, &before, "/healthz", "").is_err(), "it is trusted no more");
}
