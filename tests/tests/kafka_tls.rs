//! Kafka's clients over TLS: listeners with names, certificates of clients, keys that change, and
//! clients that stall, send junk, or read slowly.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, FetchOptions, NewTopic, Options, RequiredAcks};
use kafka_protocol::messages::{FetchRequest, MetadataRequest, ResponseHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};
use kafka_records::{BatchBuilder, CompressionType};
use rustls::{ClientConnection, StreamOwned};
use testkit::certificates::{CertificateDirectory, TestAuthority};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, http_get, resident_bytes, run, wait_until};
use testkit::requests::{encode_frame, fetch_request, produce_request};
use testkit::rng::SeededRng;
use tls::{StoreFile, TlsClient, TlsClientOptions};

const LISTENERS: &str = "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0";
const ADVERTISED: &str = "advertised.listeners=PLAINTEXT://127.0.0.1:0,SSL://localhost:0";

fn serve(
    certificates: &CertificateDirectory,
    data: &TestDirectory,
    settings: &[&str],
) -> TestServer {
    let key = certificates.setting("ssl.keystore.location", "server.pem");
    let trust = certificates.setting("ssl.truststore.location", "trust.pem");
    let own = [LISTENERS, ADVERTISED, &key, &trust];
    let all = own.iter().chain(settings).flat_map(|setting| ["--set", *setting]);
    TestServer::start(data.path(), &all.collect::<Vec<_>>()).expect("it starts")
}

fn secure(server: &TestServer) -> SocketAddr {
    server.kafka_tls.expect("it is asked for")
}

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
    let options = TlsClientOptions { trust_store: store("trust.pem"), key_store };
    TlsClient::new(&options).expect("the files fit")
}

async fn connect(server: &TestServer, tls: TlsClient) -> Result<Client, ClientError> {
    let address = format!("localhost:{}", secure(server).port());
    Client::connect(&address, Options { tls: Some(tls), ..Options::default() }).await
}

/// A connection that a test reads and writes itself.
fn raw(server: &TestServer, tls: &TlsClient) -> StreamOwned<ClientConnection, TcpStream> {
    let stream = TcpStream::connect(secure(server)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it can be set");
    StreamOwned::new(tls.begin("localhost").expect("a name"), stream)
}

fn batch(value: &[u8]) -> Bytes {
    BatchBuilder::new(CompressionType::None).record(0, None, Some(value), &[]).build()
}

fn random_bytes(rng: &mut SeededRng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.below(256) as u8).collect()
}

async fn create(client: &mut Client, topic: &str) {
    let topic = NewTopic {
        name: topic.to_owned(),
        partitions: Some(1),
        replication_factor: None,
        configs: BTreeMap::from([("max.message.bytes".to_owned(), "8388608".to_owned())]),
    };
    client.create_topic(&topic).await.expect("it is created");
}

async fn produce(client: &mut Client, topic: &str, batch: Bytes) {
    let batches = BTreeMap::from([(0, batch)]);
    client.produce(topic, RequiredAcks::All, batches).await.expect("it is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_over_tls_is_read_in_the_open_and_the_other_way_round() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &[]);
    let mut secret = connect(&server, tls_of(&certificates, None)).await.expect("it is served");
    let mut open =
        Client::connect(&server.kafka.to_string(), Options::default()).await.expect("it is served");
    create(&mut secret, "t").await;
    let mut rng = SeededRng::new(7);
    // Around the sizes of records of TLS and of buffers on the way.
    let lengths = [1, 100, 16_384 - 61, 16_384, 65_536, 131_072, 300_000, 3 << 20];
    let mut offset = 0;
    for length in lengths {
        for is_secret in [true, false] {
            let value = random_bytes(&mut rng, length);
            let sent = batch(&value);
            let (writer, reader) =
                if is_secret { (&mut secret, &mut open) } else { (&mut open, &mut secret) };
            produce(writer, "t", sent.clone()).await;
            let options = FetchOptions { partition_bytes_max: 8 << 20, ..FetchOptions::default() };
            let fetched = reader.fetch("t", &[(0, offset)], &options).await.expect("it is read");
            // All but the offset and the leader's epoch are as they were sent.
            assert!(fetched[0].batches[16..] == sent[16..], "{length} bytes, {is_secret}");
            offset += 1;
        }
    }
    // Each listener advertises its own address: the certificate is for no other name than
    // `localhost`.
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let cluster = wire.call(12, &MetadataRequest::default()).expect("an answer");
    let broker = &cluster.brokers[0];
    assert_eq!((&*broker.host, broker.port), ("127.0.0.1", i32::from(server.kafka.port())));
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_it() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &[]);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    let mut rng = SeededRng::new(9);
    for _ in 0..8 {
        assert_eq!(wire.produce("t", 0, &batch(&random_bytes(&mut rng, 500_000))).0, 0);
    }
    let (_, _, expected) = wire.fetch("t", 0, 0);
    let tls = tls_of(&certificates, None);
    let mut stream = raw(&server, &tls);
    // More than fits into sockets, before the first byte is read.
    let request: FetchRequest = fetch_request("t", 0, 0, Duration::ZERO);
    for _ in 0..8 {
        stream.write_all(&encode_frame(12, &request)).expect("it is sent");
    }
    for _ in 0..8 {
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("an answer");
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        for part in body.chunks_mut(7_777) {
            stream.read_exact(part).expect("the rest of it");
        }
        let mut body = Bytes::from(body);
        let header = <FetchRequest as Request>::Response::header_version(12);
        ResponseHeader::decode(&mut body, header).expect("a header");
        let answer = <FetchRequest as Request>::Response::decode(&mut body, 12).expect("an answer");
        let records = answer.responses[0].partitions[0].records.clone().expect("records");
        assert!(records == expected, "{} bytes of {}", records.len(), expected.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_whose_certificates_are_trusted_are_served() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &["ssl.client.auth=required"]);
    let mut known =
        connect(&server, tls_of(&certificates, Some("bob"))).await.expect("it is served");
    create(&mut known, "t").await;
    let nobody =
        connect(&server, tls_of(&certificates, None)).await.err().expect("nobody is refused");
    assert!(
        matches!(
            nobody,
            ClientError::Insecure { .. } | ClientError::Closed { .. } | ClientError::Io { .. }
        ),
        "{nobody}"
    );
    let stranger = CertificateDirectory::new();
    stranger.write("trust.pem", &certificates.authority.pem());
    assert!(connect(&server, tls_of(&stranger, Some("bob"))).await.is_err(), "another authority");
    let failed = || {
        let (_, metrics) = http_get(server.http, "/metrics").expect("it answers");
        metrics.contains("freezeframe_handshakes_failed_total 2")
    };
    wait_until("both are counted", failed);
    wait_until("it is logged", || server.stderr().contains("handshakes of TLS fail"));
    produce(&mut known, "t", batch(b"x")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_may_ask_for_certificates_where_another_does_not() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let key = certificates.setting("ssl.keystore.location", "server.pem");
    let trust = certificates.setting("listener.name.ssl.ssl.truststore.location", "trust.pem");
    let settings = [
        "listeners=ANYBODY://127.0.0.1:0,SSL://127.0.0.1:0",
        "advertised.listeners=ANYBODY://localhost:0,SSL://localhost:0",
        "listener.security.protocol.map=ANYBODY:SSL,SSL:SSL",
        "listener.name.ssl.ssl.client.auth=required",
        &key,
        &trust,
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let server = TestServer::start(data.path(), &arguments).expect("it starts");
    let nobody = || Options { tls: Some(tls_of(&certificates, None)), ..Options::default() };
    let anybody = format!("localhost:{}", server.kafka.port());
    let mut client = Client::connect(&anybody, nobody()).await.expect("it is served");
    create(&mut client, "t").await;
    assert!(connect(&server, tls_of(&certificates, None)).await.is_err());
    let mut bob = connect(&server, tls_of(&certificates, Some("bob"))).await.expect("he is served");
    produce(&mut bob, "t", batch(b"x")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_is_used_without_a_restart_and_connections_go_on() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &[]);
    let tls = tls_of(&certificates, None);
    let mut before = connect(&server, tls.clone()).await.expect("it is served");
    create(&mut before, "t").await;
    let shown = || {
        let mut stream = raw(&server, &tls);
        stream.conn.complete_io(&mut stream.sock).expect("the handshake");
        stream.conn.peer_certificates().expect("after the handshake")[0].to_vec()
    };
    let first = shown();
    certificates.replace("server.pem", "-----BEGIN CERTIFICATE-----\nhalf of one\n");
    wait_until("the broken file was seen", || server.stderr().contains("cannot be used"));
    assert_eq!(shown(), first);
    certificates.replace("server.pem", &certificates.authority.sign("second").pem());
    wait_until("the new certificate is shown", || shown() != first);
    produce(&mut before, "t", batch(b"still here")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_stall_or_send_junk_do_not_keep_others_from_theirs() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &["max.connections=60"]);
    let mut junk = RawKafkaConnection::connect(secure(&server));
    junk.send(&[0; 64]).expect("it is sent");
    junk.read_until_closed();
    let mut stalled: Vec<_> =
        (0..50).map(|_| RawKafkaConnection::connect(secure(&server))).collect();
    for (nth, half_open) in stalled.iter_mut().enumerate() {
        // The beginning of a handshake, cut off at different places.
        let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
        half_open.send(&hello[..nth % hello.len()]).expect("it is sent");
    }
    let tls = tls_of(&certificates, None);
    let mut client = connect(&server, tls).await.expect("it is served");
    create(&mut client, "t").await;
    // Stalled clients do not stay for ever.
    for mut half_open in stalled {
        half_open.read_until_closed();
    }
    produce(&mut client, "t", batch(b"x")).await;
}

/// `FREEZEFRAME_HALF_OPEN=10000` opens as many as that.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_half_open_connections_as_there_may_be_keep_nobody_out() {
    let half_open = std::env::var("FREEZEFRAME_HALF_OPEN")
        .map_or(300, |count| count.parse().expect("a number"));
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &["max.connections=100"]);
    let tls = tls_of(&certificates, None);
    let mut before = connect(&server, tls.clone()).await.expect("it is served");
    create(&mut before, "t").await;
    let memory_before = resident_bytes(server.pid());
    // The beginning of a handshake, and of nothing.
    let begun = [&[][..], &[22, 3, 1, 2, 0, 1, 0]];
    let mut stalled = Vec::new();
    for nth in 0..half_open {
        let mut stream =
            TcpStream::connect(secure(&server)).expect("it is accepted, or waits for that");
        stream.write_all(begun[nth % 2]).expect("it is sent");
        stalled.push(stream);
        if nth % 100 == 99 {
            let mut client = connect(&server, tls.clone()).await.expect("others are served");
            produce(&mut client, "t", batch(b"x")).await;
        }
    }
    produce(&mut before, "t", batch(b"still here")).await;
    let grown = resident_bytes(server.pid()).saturating_sub(memory_before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    wait_until("it is logged", || server.stderr().contains("make room"));
}

#[test]
fn what_comes_before_junk_is_served() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &[]);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    let mut stream = raw(&server, &tls_of(&certificates, None));
    // Once the server has answered, its handshake is over too.
    let known = fetch_request("t", 0, 0, Duration::ZERO);
    stream.write_all(&encode_frame(12, &known)).expect("it is sent");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    // Nobody waits for an answer, so the junk comes with it.
    let request = produce_request("t", 0, &batch(b"before")).with_acks(0);
    stream.conn.writer().write_all(&encode_frame(9, &request)).expect("it is encrypted");
    let mut bytes = Vec::new();
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut bytes).expect("a vector takes all");
    }
    bytes.extend([0x17, 3, 3, 0, 40]);
    bytes.extend([7; 40]);
    stream.sock.write_all(&bytes).expect("it is sent");
    wait_until("the record is there", || wire.fetch("t", 0, 0).1 == 1);
    // And then the connection ends, though nothing more comes.
    let mut rest = Vec::new();
    let ended = stream.sock.read_to_end(&mut rest).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(_) | Err(std::io::ErrorKind::ConnectionReset)), "{ended:?}");
}

#[test]
fn what_prevents_tls_is_said_at_the_start() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let key = certificates.setting("ssl.keystore.location", "server.pem");
    let tls = "listeners=SSL://127.0.0.1:0";
    let cases: &[(&[&str], &str)] = &[
        (&[tls], "name it with ssl.keystore.location"),
        (&[tls, &key, "ssl.client.auth=required"], "name it with ssl.truststore.location"),
        (&[tls, "ssl.keystore.password=secret"], "FREEZEFRAME_KAFKA_SSL_KEYSTORE_PASSWORD"),
        (&[tls, &key, "ssl.client.auth=need"], "give one of: none, requested, required"),
        (&[tls, "server.kafka=127.0.0.1:0"], "leave one out"),
        (&["listeners=FRONT://127.0.0.1:0"], "listener.security.protocol.map=FRONT:SSL"),
        (&["listeners=SASL_SSL://127.0.0.1:0"], "name it with ssl.keystore.location"),
        (&[tls, "advertised.listeners=PLAINTEXT://a:1"], "a name of listeners: SSL"),
    ];
    let data_dir = data.path().display().to_string();
    for (settings, expected) in cases {
        let mut arguments = vec!["serve", "--data-dir", &data_dir];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = run(&arguments, "");
        assert!(output.code != Some(0));
        assert!(output.stderr.contains(expected), "{settings:?}: {}", output.stderr);
    }
}

#[test]
fn the_command_line_speaks_tls() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let server = serve(&certificates, &data, &["ssl.client.auth=required"]);
    certificates.write("me.pem", &certificates.authority.sign("me").pem());
    certificates.write("other.pem", &TestAuthority::new().pem());
    let file = |name| certificates.file(name).display().to_string();
    let (me, trust, other) = (file("me.pem"), file("trust.pem"), file("other.pem"));
    let port = secure(&server).port();
    let cli = |host: &str, options: &[&str], command: &[&str], input: &str| {
        let bootstrap = format!("{host}:{port}");
        run(&[&["--bootstrap", &bootstrap], options, command].concat(), input)
    };
    let known = ["--tls-trust", &trust, "--tls-key", &me];
    assert_eq!(cli("localhost", &known, &["topics", "create", "t"], "").code, Some(0));
    assert_eq!(cli("localhost", &known, &["produce", "t"], "one\ntwo\n").code, Some(0));
    assert_eq!(cli("localhost", &known, &["cat", "t"], "").stdout(), "one\ntwo\n");
    let doctor = cli("localhost", &known, &["doctor"], "");
    assert!(doctor.stdout().contains("certificate\tSSL: it ends in"), "{}", doctor.stdout());
    for (host, options, expected) in [
        ("localhost", &["--tls-trust", &other][..], "give the certificates that sign for it"),
        ("127.0.0.1", &known[..], "not valid for name"),
        ("localhost", &[][..], "it speaks TLS"),
        ("localhost", &known[..2], "yours with --tls-key"),
    ] {
        let failed = cli(host, options, &["cat", "t"], "");
        assert_eq!(failed.code, Some(1));
        assert!(failed.stderr.contains(expected), "{host} {options:?}: {}", failed.stderr);
    }
}
