//! TLS on the port for ZooKeeper's clients: keys that change, clients that stall or show nothing.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testkit::certificates::{CertificateDirectory, TestAuthority};
use testkit::directory::TestDirectory;
use testkit::process::{TestServer, run, wait_until};
use zk_wire::JuteReader;

use super::client::*;

const WHO_AM_I: i32 = 107;

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

/// The files of a server and its clients.
struct TlsFixture(CertificateDirectory);

impl std::ops::Deref for TlsFixture {
    type Target = CertificateDirectory;

    fn deref(&self) -> &CertificateDirectory {
        &self.0
    }
}

impl TlsFixture {
    fn new() -> TlsFixture {
        TlsFixture(CertificateDirectory::new())
    }

    fn serve(&self, data: &TestDirectory, settings: &[&str]) -> TestServer {
        let key = setting("zookeeper.ssl.keyStore.location", &self.file("server.pem"));
        let trust = setting("zookeeper.ssl.trustStore.location", &self.file("trust.pem"));
        let own = ["server.zookeeper-tls=127.0.0.1:0", &key, &trust];
        serve_with(data, &[&own, settings].concat())
    }

    /// Connects, as the client of this name or as nobody. The handshake is not over.
    fn connect(&self, address: SocketAddr, name: Option<&str>) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().into()).expect("it is one");
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match name.map(|name| self.authority.sign(name)) {
            Some(own) => {
                use rustls::pki_types::pem::PemObject as _;
                let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes());
                let key = PrivateKeyDer::try_from(own.key.serialize_der()).expect("a key");
                config.with_client_auth_cert(vec![certificate.expect("one")], key).expect("fits")
            }
            None => config.with_no_client_auth(),
        };
        let server = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), server).expect("it fits");
        StreamOwned::new(connection, connect(address))
    }

    fn begin(&self, address: SocketAddr, name: &str) -> ZkClient<TlsClient> {
        ZkClient::begin_on(self.connect(address, Some(name)))
    }
}

fn setting(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn secure(server: &TestServer) -> SocketAddr {
    server.zookeeper_tls.expect("it is asked for")
}

/// The certificate that the server showed.
fn server_certificate(client: &ZkClient<TlsClient>) -> Vec<u8> {
    let shown = client.stream.conn.peer_certificates().expect("after the handshake");
    shown[0].to_vec()
}

fn ids(client: &mut ZkClient<TlsClient>) -> Vec<(String, String)> {
    client.ask(WHO_AM_I, |_| {});
    let (_, err, mut body) = client.reply();
    assert_eq!(err, 0);
    let id = |body: &mut JuteReader| Ok((body.required_string()?, body.required_string()?));
    body.vector(8, id).expect("it reads").expect("a list")
}

#[test]
fn a_client_is_who_its_certificate_says_also_where_tls_is_a_choice() {
    let (fixture, data) = (TlsFixture::new(), TestDirectory::new());
    let server = fixture.serve(&data, &["zookeeper.client.portUnification=true"]);
    let mut plain = ZkClient::begin(address(&server));
    assert_eq!(plain.create("/plain", b"x", 0), 0);
    for at in [secure(&server), address(&server)] {
        let mut client = fixture.begin(at, "bob");
        let ids = ids(&mut client);
        assert!(ids.contains(&("x509".to_owned(), "CN=bob".to_owned())), "{ids:?}");
        assert_eq!(client.get("/plain").expect("it is there"), b"x"[..]);
    }
    // Without a certificate, what comes after the handshake is refused.
    let mut nobody = fixture.connect(secure(&server), None);
    send(&mut nobody, |out| connect_request(0, &vec![0; 16].into()).write(out));
    assert!(receive(&mut nobody).is_none());
    // The open has no business at the port of TLS.
    let mut open = connect(secure(&server));
    send(&mut open, |out| connect_request(0, &vec![0; 16].into()).write(out));
    wait_until("the connection is closed", || receive(&mut open).is_none());
}

#[test]
fn a_new_key_is_used_without_a_restart_and_a_broken_one_is_not() {
    let (fixture, data) = (TlsFixture::new(), TestDirectory::new());
    let server = fixture.serve(&data, &[]);
    let at = secure(&server);
    let mut before = fixture.begin(at, "before");
    let first = server_certificate(&before);

    let replace = |text: &str| fixture.replace("server.pem", text);
    replace("-----BEGIN CERTIFICATE-----\nhalf of one\n");
    // A session that does nothing for two seconds expires.
    wait_until("the broken file was seen", || {
        assert!(before.get("/").is_ok());
        server.stderr().contains("cannot be used")
    });
    assert_eq!(server_certificate(&fixture.begin(at, "broken")), first);

    replace(&fixture.authority.sign("second").pem());
    wait_until("the new certificate is shown", || {
        assert!(before.get("/").is_ok());
        server_certificate(&fixture.begin(at, "after")) != first
    });
    assert_eq!(before.create("/still", b"", 0), 0, "connections that were there go on");
}

#[test]
fn clients_that_stall_in_the_handshake_do_not_keep_others_from_theirs() {
    let (fixture, data) = (TlsFixture::new(), TestDirectory::new());
    let most = "zookeeper.maxClientCnxns=40";
    let server = fixture.serve(&data, &[most, "zookeeper.4lw.commands.whitelist=*"]);
    let stalled: Vec<TcpStream> = (0..39).map(|_| connect(secure(&server))).collect();
    let mut client = fixture.begin(secure(&server), "patient");
    assert_eq!(client.create("/a", b"", 0), 0);
    // They count before their handshake, so that they cannot pile up, and they do not stay for
    // ever.
    let mut refused = connect(secure(&server));
    assert!(receive(&mut refused).is_none());
    for mut stream in stalled {
        assert!(receive(&mut stream).is_none(), "the server closes it");
    }
    assert_eq!(fixture.begin(secure(&server), "later").create("/b", b"", 0), 0);
}

#[test]
fn what_prevents_tls_is_said_at_the_start() {
    let (fixture, data) = (TlsFixture::new(), TestDirectory::new());
    let other = fixture.authority.sign("other");
    let mixed = fixture.authority.sign("mixed").certificate + &other.key.serialize_pem();
    std::fs::write(fixture.file("mixed.pem"), mixed).expect("written");
    std::fs::write(fixture.file("old.jks"), b"\xfe\xed\xfe\xed\0\0\0\x02").expect("written");
    std::fs::write(fixture.file("junk.p12"), b"junk").expect("written");
    let key = |name: &str| setting("zookeeper.ssl.keyStore.location", &fixture.file(name));
    let cases = [
        (vec![], "name it with zookeeper.ssl.keyStore.location"),
        (vec![key("server.pem")], "name it with zookeeper.ssl.trustStore.location"),
        (vec![key("none.pem")], "none.pem: No such file"),
        (vec![key("trust.pem")], "trust.pem: it has no private key"),
        (vec![key("old.jks")], "keytool -importkeystore"),
        (vec![key("junk.p12")], "neither PEM nor a PKCS#12 file"),
        (vec![key("mixed.pem"), "zookeeper.ssl.clientAuth=none".to_owned()], "do not fit together"),
        (vec!["zookeeper.ssl.crl=true".to_owned()], "give false"),
        (vec!["zookeeper.ssl.enabledProtocols=TLSv1.1".to_owned()], "give TLSv1.3, TLSv1.2"),
        (vec!["zookeeper.ssl.ciphersuites=TLS_NULL".to_owned()], "TLS_AES_128_GCM_SHA256"),
    ];
    let data_dir = data.path().display().to_string();
    for (settings, expected) in cases {
        let mut arguments = vec!["serve", "--data-dir", &data_dir, "--kafka", "off"];
        arguments.extend(["--zookeeper-tls", "127.0.0.1:0"]);
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = run(&arguments, "");
        assert!(output.code != Some(0));
        assert!(output.stderr.contains(expected), "{settings:?}: {}", output.stderr);
    }
}

#[test]
fn the_command_line_speaks_tls() {
    let (fixture, data) = (TlsFixture::new(), TestDirectory::new());
    let server = fixture.serve(&data, &[]);
    std::fs::write(fixture.file("me.pem"), fixture.authority.sign("me").pem()).expect("written");
    std::fs::write(fixture.file("other.pem"), TestAuthority::new().pem()).expect("written");
    let [me, trust, other] =
        ["me.pem", "trust.pem", "other.pem"].map(|name| fixture.file(name).display().to_string());
    let port = secure(&server).port();
    let zk = |host: &str, options: &[&str], command: &[&str]| {
        let address = format!("{host}:{port}");
        let options = [&["zk", "--zookeeper", &address], options, command].concat();
        run(&options, "")
    };
    let known = ["--tls-trust", &trust, "--tls-key", &me];
    let created = zk("localhost", &known, &["create", "/a", "x"]);
    assert_eq!(created.code, Some(0), "{}", created.stderr);
    assert_eq!(zk("localhost", &known, &["get", "/a"]).stdout(), "x");
    let log = zk("localhost", &known, &["log", "/a"]);
    assert!(log.stdout().contains("x509:CN=me"), "{}", log.stdout());
    for (host, options, expected) in [
        ("localhost", &known[..2], "did not answer"),
        ("localhost", &["--tls-trust", &other][..], "give the certificates that sign for it"),
        ("127.0.0.1", &known[..], "not valid for name"),
        ("localhost", &[][..], "did not answer"),
    ] {
        let failed = zk(host, options, &["get", "/a"]);
        assert_eq!(failed.code, Some(1));
        assert!(failed.stderr.contains(expected), "{}", failed.stderr);
    }
}
