//! Settings that clients give while the server runs (KIP-226): they are in force at once and after
//! a restart, and go when they are removed.

use client::{Client, Options};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    ApiVersionsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
};
use kafka_protocol::protocol::StrBytes;
use testkit::certificates::{CertificateDirectory, TestAuthority};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer};
use tls::{StoreFile, TlsClient, TlsClientOptions};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;

/// The sources of values, by Kafka's numbers.
const OF_TOPIC: i8 = 1;
const OF_BROKER: i8 = 2;
const OF_ALL: i8 = 3;
const DEFAULT: i8 = 5;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Changes settings of a server, or of all of them; the error and its message.
fn alter(
    wire: &mut RawKafkaConnection,
    broker: &str,
    changes: &[(&str, i8, &str)],
) -> (i16, String) {
    let configs = changes.iter().map(|(name, operation, value)| {
        AlterableConfig::default()
            .with_name(text(name))
            .with_config_operation(*operation)
            .with_value((*operation != DELETE).then(|| text(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(BROKER)
        .with_resource_name(text(broker))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let response = wire.call(1, &request).expect("an answer").responses.remove(0);
    (response.error_code, response.error_message.map_or(String::new(), |text| text.to_string()))
}

fn done(wire: &mut RawKafkaConnection, broker: &str, changes: &[(&str, i8, &str)]) {
    assert_eq!(alter(wire, broker, changes), (0, String::new()));
}

/// The settings of a resource.
fn described(
    wire: &mut RawKafkaConnection,
    kind: i8,
    name: &str,
    keys: &[&str],
) -> Vec<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(keys.iter().map(|key| text(key)).collect()));
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true);
    wire.call(4, &request).expect("an answer").results.remove(0).configs
}

/// The value of a setting, and where it comes from.
fn value(wire: &mut RawKafkaConnection, kind: i8, name: &str, key: &str) -> (String, i8) {
    let config = described(wire, kind, name, &[key]).remove(0);
    (config.value.map_or(String::new(), |value| value.to_string()), config.config_source)
}

#[test]
fn a_default_of_topics_changes_at_once_and_stays_after_a_restart() {
    let data = TestDirectory::new();
    let mut server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[("retention.ms", "7")]);
    wire.create_topic("u", 1, &[]);
    done(&mut wire, "", &[("log.retention.ms", SET, "2000000")]);
    done(
        &mut wire,
        "1",
        &[("log.segment.bytes", SET, "1048576"), ("log.cleanup.policy", APPEND, "compact")],
    );
    for is_restarted in [false, true] {
        if is_restarted {
            server.stop().expect("it stops");
            server = TestServer::start(data.path(), &[]).expect("it starts again");
            wire = RawKafkaConnection::connect(server.kafka);
        }
        let wire = &mut wire;
        assert_eq!(value(wire, TOPIC, "u", "retention.ms"), ("2000000".to_owned(), OF_ALL));
        assert_eq!(value(wire, TOPIC, "t", "retention.ms"), ("7".to_owned(), OF_TOPIC));
        assert_eq!(value(wire, TOPIC, "u", "segment.bytes"), ("1048576".to_owned(), OF_BROKER));
        assert_eq!(
            value(wire, BROKER, "1", "log.cleanup.policy"),
            ("delete,compact".to_owned(), OF_BROKER)
        );
        assert_eq!(value(wire, TOPIC, "u", "cleanup.policy").0, "delete,compact");
        // Of all there are only those that clients have given.
        let of_all = described(wire, BROKER, "", &[]);
        let names: Vec<&str> = of_all.iter().map(|config| &*config.name).collect();
        assert_eq!(names, ["log.retention.ms"]);
    }
    done(&mut wire, "", &[("log.retention.ms", DELETE, "")]);
    assert_eq!(value(&mut wire, TOPIC, "u", "retention.ms"), ("604800000".to_owned(), DEFAULT));
}

#[test]
fn records_are_taken_up_to_the_size_that_is_in_force() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    let batch = kafka_records::BatchBuilder::new(kafka_records::CompressionType::None)
        .record(0, None, Some(&[7; 3000]), &[])
        .build();
    assert_eq!(wire.produce("t", 0, &batch).0, 0);
    done(&mut wire, "", &[("message.max.bytes", SET, "2000")]);
    assert_eq!(wire.produce("t", 0, &batch).0, 10, "MESSAGE_TOO_LARGE");
    done(&mut wire, "1", &[("message.max.bytes", SET, "4000")]);
    assert_eq!(wire.produce("t", 0, &batch).0, 0);
}

#[test]
fn connections_are_limited_from_then_on() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut first = RawKafkaConnection::connect(server.kafka);
    // A limit of a listener may be given for all servers.
    for (broker, limit) in [
        ("1", "max.connections.per.ip"),
        ("1", "listener.name.plaintext.max.connections"),
        ("", "listener.name.plaintext.max.connections"),
    ] {
        done(&mut first, broker, &[(limit, SET, "1")]);
        let mut second = RawKafkaConnection::connect(server.kafka);
        assert!(second.call(0, &ApiVersionsRequest::default()).is_err(), "{limit}");
        done(&mut first, broker, &[(limit, DELETE, "")]);
        let mut third = RawKafkaConnection::connect(server.kafka);
        assert!(third.call(0, &ApiVersionsRequest::default()).is_ok(), "{limit}");
        // It ends before the next turn begins.
        third.shutdown_write();
        third.read_until_closed();
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let one = ("log.retention.ms", SET, "5");
    for refused in [
        ("log.retention.hours", SET, "5"),
        ("no.such.setting", SET, "5"),
        ("max.connections", SET, "none"),
        ("max.connections", APPEND, "5"),
        ("sasl.jaas.config", SET, "x"),
    ] {
        let (code, message) = alter(&mut wire, "1", &[one, refused]);
        assert_ne!(code, 0);
        assert!(message.contains(refused.0), "{message}");
    }
    assert_eq!(value(&mut wire, BROKER, "1", "log.retention.ms").1, DEFAULT);
    assert!(described(&mut wire, BROKER, "", &[]).is_empty());
    // A setting that was never given can be removed.
    done(&mut wire, "1", &[("log.retention.hours", DELETE, ""), ("no.such.setting", DELETE, "")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_gets_another_key_and_one_that_does_not_read_is_refused() {
    let (certificates, data) = (CertificateDirectory::new(), TestDirectory::new());
    let settings = [
        "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0".to_owned(),
        "advertised.listeners=PLAINTEXT://127.0.0.1:0,SSL://localhost:0".to_owned(),
        certificates.setting("ssl.keystore.location", "server.pem"),
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let server = TestServer::start(data.path(), &settings).expect("it starts");
    let other = TestAuthority::new();
    certificates.write("other.pem", &other.sign("localhost").pem());
    let theirs = certificates.file("other.pem");
    certificates.write("other-trust.pem", &other.pem());
    let trusting = |trust: &str| {
        let trust_store = StoreFile { path: certificates.file(trust), ..StoreFile::default() };
        TlsClient::new(&TlsClientOptions { trust_store, ..TlsClientOptions::default() })
            .expect("it fits")
    };
    let connects = async |server: &TestServer, trust: &str| {
        let address = format!("localhost:{}", server.kafka_tls.expect("it is asked for").port());
        let options = Options { tls: Some(trusting(trust)), ..Options::default() };
        Client::connect(&address, options).await.is_ok()
    };
    const KEY: &str = "listener.name.ssl.ssl.keystore.location";
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert!(connects(&server, "trust.pem").await);
    let (code, message) = alter(&mut wire, "1", &[(KEY, SET, "/no/such/file.pem")]);
    assert!(code != 0 && message.contains("/no/such/file.pem"), "{code} {message}");
    let (code, message) = alter(&mut wire, "1", &[(KEY, SET, "/dev/zero")]);
    assert!(code != 0 && message.contains("not a regular file"), "{code} {message}");
    assert!(connects(&server, "trust.pem").await);
    done(&mut wire, "1", &[(KEY, SET, theirs.to_str().expect("it is text"))]);
    assert!(connects(&server, "other-trust.pem").await);
    assert!(!connects(&server, "trust.pem").await);
    server.stop().expect("it stops");
    let server = TestServer::start(data.path(), &settings).expect("it starts again");
    assert!(connects(&server, "other-trust.pem").await);
    // A file that is gone does not keep the server from starting.
    server.stop().expect("it stops");
    std::fs::remove_file(&theirs).expect("it was there");
    let server = TestServer::start(data.path(), &settings).expect("it starts again");
    assert!(connects(&server, "trust.pem").await);
    // One that keeps clients out does.
    certificates.write("guard.pem", &other.pem());
    let guard = certificates.file("guard.pem");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    done(&mut wire, "1", &[(KEY, DELETE, "")]);
    const TRUST: &str = "listener.name.ssl.ssl.truststore.location";
    const ASK: &str = "listener.name.ssl.ssl.client.auth";
    let guard_path = guard.to_str().expect("it is text");
    done(&mut wire, "1", &[(TRUST, SET, guard_path), (ASK, SET, "required")]);
    assert!(!connects(&server, "trust.pem").await);
    server.stop().expect("it stops");
    std::fs::remove_file(&guard).expect("it was there");
    let refused = TestServer::start(data.path(), &settings).err().expect("anybody would get in");
    assert!(refused.to_string().contains("guard.pem"), "{refused}");
    certificates.write("guard.pem", &other.pem());
    let server = TestServer::start(data.path(), &settings).expect("it starts again");
    assert!(!connects(&server, "trust.pem").await);
}
