//! Kafka's clients who say who they are, by SASL, and do what rules allow.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use client::{Client, ClientError, ClientLogin, LoginMechanism, NewTopic, Options, ResponseError};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiVersionsRequest, CreateDelegationTokenRequest, ExpireDelegationTokenRequest,
    ListGroupsRequest, MetadataRequest, SaslAuthenticateRequest, SaslAuthenticateResponse,
    SaslHandshakeRequest, SaslHandshakeResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use scram::{ScramClient, ScramMechanism};
use serde_json::json;
use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, RawKafkaConnection, TestServer, run};
use testkit::rng::SeededRng;
use testkit::tokens::{TokenIssuer, key_set};
use tls::Secret;

const LISTENERS: &str = "listeners=SASL_PLAINTEXT://127.0.0.1:0";
const MECHANISMS: &str = "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512";

fn serve(data: &TestDirectory, settings: &[&str]) -> TestServer {
    let all = [LISTENERS, MECHANISMS];
    let all = all.iter().chain(settings).flat_map(|setting| ["--set", *setting]);
    TestServer::start(data.path(), &all.collect::<Vec<_>>()).expect("it starts")
}

fn add_user(data: &TestDirectory, name: &str, password: &str) {
    let directory = data.path().to_str().expect("a path in UTF-8");
    let added = run(&["users", "add", name, "--data-dir", directory], &format!("{password}\n"));
    assert_eq!(added.code, Some(0), "{}", added.stderr);
}

fn login(user: &str, password: &str, mechanism: LoginMechanism) -> Options {
    let (user, password) = (user.to_owned(), Secret::new(password));
    Options { login: Some(ClientLogin { user, password, mechanism }), ..Options::default() }
}

async fn connect(
    address: SocketAddr,
    user: &str,
    password: &str,
    mechanism: LoginMechanism,
) -> Result<Client, ClientError> {
    Client::connect(&address.to_string(), login(user, password, mechanism)).await
}

fn handshake(wire: &mut RawKafkaConnection, mechanism: &str) -> SaslHandshakeResponse {
    let mechanism = StrBytes::from_string(mechanism.to_owned());
    let request = SaslHandshakeRequest::default().with_mechanism(mechanism);
    wire.call(1, &request).expect("an answer")
}

fn authenticate(wire: &mut RawKafkaConnection, message: &[u8]) -> SaslAuthenticateResponse {
    let message = Bytes::copy_from_slice(message);
    let request = SaslAuthenticateRequest::default().with_auth_bytes(message);
    wire.call(2, &request).expect("an answer")
}

fn log_in(server: &TestServer, user: &str) -> (RawKafkaConnection, SaslAuthenticateResponse) {
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_eq!(handshake(&mut wire, "PLAIN").error_code, 0);
    let answer = authenticate(&mut wire, format!("\0{user}\0secret").as_bytes());
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
    (wire, answer)
}

fn is_served(wire: &mut RawKafkaConnection) -> bool {
    wire.call(12, &MetadataRequest::default()).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn users_log_in_by_each_mechanism_and_nobody_else_does() {
    let data = TestDirectory::new();
    // Before there is a server, which makes the directory, and while it runs.
    add_user(&data, "alice", "secret");
    let server = serve(&data, &[]);
    add_user(&data, "bob=,x", "another");
    for mechanism in LoginMechanism::ALL {
        let name = mechanism.as_str();
        for (user, password) in [("alice", "secret"), ("bob=,x", "another")] {
            let mut client = connect(server.kafka, user, password, mechanism).await.expect(name);
            client.topics().await.expect("it is served");
        }
        let mut refusals = Vec::new();
        for (user, password) in [("alice", "another"), ("alice", "Secret"), ("carol", "secret")] {
            let begun = Instant::now();
            let refused = connect(server.kafka, user, password, mechanism).await;
            let Err(ClientError::Login { why, .. }) = refused else { panic!("{user} logs in") };
            assert!(begun.elapsed() >= Duration::from_millis(100), "it is refused late");
            refusals.push(why);
        }
        // Nobody learns which names there are.
        assert!(refusals.iter().all(|why| *why == refusals[0]), "{refusals:?}");
    }
    // Nothing of a password is in the log.
    assert!(!server.stderr().contains("secret") && !server.stderr().contains("another"));
    server.stop().expect("it stops");
    let server = serve(&data, &["sasl.enabled.mechanisms=SCRAM-SHA-512"]);
    let [strong, _, plain] = LoginMechanism::ALL;
    assert!(connect(server.kafka, "bob=,x", "another", strong).await.is_ok(), "users stay");
    let refused = connect(server.kafka, "alice", "secret", plain).await;
    let Err(ClientError::Login { why, .. }) = refused else { panic!("it is not offered") };
    assert!(why.contains("SCRAM-SHA-512"), "{why}");
}

#[test]
fn nothing_is_served_before_a_login() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve(&data, &[]);
    let connect = || RawKafkaConnection::connect(server.kafka);
    // ApiVersions is answered before a login, and nothing else.
    let mut wire = connect();
    assert!(wire.call(3, &ApiVersionsRequest::default()).is_ok());
    assert!(!is_served(&mut wire));
    let mut wire = connect();
    let answer = authenticate(&mut wire, b"\0alice\0secret");
    assert_eq!(answer.error_code, ResponseError::IllegalSaslState.code());
    assert!(!is_served(&mut wire));
    // In the middle of an exchange, too.
    let mut wire = connect();
    handshake(&mut wire, "SCRAM-SHA-256");
    assert_eq!(authenticate(&mut wire, b"n,,n=alice,r=abc").error_code, 0);
    let named =
        MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_static_str("t"))));
    let request = MetadataRequest::default().with_topics(Some(vec![named]));
    let refused = wire.call(6, &request).expect("an answer");
    assert!(refused.brokers.is_empty() && refused.controller_id.0 == -1, "{refused:?}");
    assert_eq!(refused.topics[0].error_code, ResponseError::IllegalSaslState.code());
    assert!(wire.read_until_closed().is_empty());
    let mut wire = connect();
    handshake(&mut wire, "SCRAM-SHA-256");
    assert!(wire.call(0, &ListGroupsRequest::default()).is_err());
    let mut wire = connect();
    let answer = handshake(&mut wire, "GSSAPI");
    assert_eq!(answer.error_code, ResponseError::UnsupportedSaslMechanism.code());
    assert_eq!(answer.mechanisms.len(), 3);
    assert!(wire.read_until_closed().is_empty());
    // The API key that stands for messages without a header is for no client, with SASL and
    // without.
    let mut wire = connect();
    let bare = [&16u32.to_be_bytes()[..], &i16::MIN.to_be_bytes(), &[0; 14]].concat();
    wire.send(&bare).expect("it is sent");
    assert!(wire.read_until_closed().is_empty());
    let (plain_data, plain) = (TestDirectory::new(), LISTENERS.replace("SASL_", ""));
    let open = TestServer::start(plain_data.path(), &["--set", &plain]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(open.kafka);
    wire.send(&bare).expect("it is sent");
    assert!(wire.read_until_closed().is_empty());
    assert!(!open.stderr().contains("panicked"), "{}", open.stderr());
    // A frame that is longer than a login is not read.
    let mut wire = connect();
    wire.send(&(600_000i32).to_be_bytes()).expect("it is sent");
    assert!(wire.read_until_closed().is_empty());
    // A refused client is disconnected.
    let mut wire = connect();
    handshake(&mut wire, "PLAIN");
    let answer = authenticate(&mut wire, b"\0alice\0wrong");
    assert_eq!(answer.error_code, ResponseError::SaslAuthenticationFailed.code());
    assert!(wire.read_until_closed().is_empty());
    let (mut wire, answer) = log_in(&server, "alice");
    assert!(answer.session_lifetime_ms == 0 && is_served(&mut wire));
}

#[test]
fn a_challenge_does_not_say_whether_there_is_such_a_user() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve(&data, &[]);
    let challenge = |user: &str| {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        handshake(&mut wire, "SCRAM-SHA-256");
        let answer = authenticate(&mut wire, format!("n,,n={user},r=abc").as_bytes());
        assert_eq!(answer.error_code, 0);
        let text = String::from_utf8(answer.auth_bytes.to_vec()).expect("it is text");
        // Without the nonce, which differs each time.
        let (_, rest) = text.split_once(",s=").expect("a salt");
        let (salt, iterations) = rest.split_once(",i=").expect("a count");
        (salt.to_owned(), iterations.to_owned())
    };
    let (salt, iterations) = challenge("alice");
    for nobody in ["al", "bob", "zoe"] {
        let (other, count) = challenge(nobody);
        assert_eq!((other.len(), &count), (salt.len(), &iterations), "{nobody}");
        assert_ne!(other, salt);
        assert_eq!(challenge(nobody).0, other, "it is the same each time");
    }
}

#[test]
fn old_clients_send_messages_without_headers() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve(&data, &[]);
    let message = |bytes: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_i32(bytes.len() as i32);
        frame.put_slice(bytes);
        frame
    };
    for (password, is_right) in [("secret", true), ("wrong", false)] {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        let request =
            SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str("PLAIN"));
        assert_eq!(wire.call(0, &request).expect("an answer").error_code, 0);
        wire.send(&message(format!("\0alice\0{password}").as_bytes())).expect("it is sent");
        if is_right {
            assert!(wire.receive().expect("an answer").is_empty());
            assert!(is_served(&mut wire));
        } else {
            assert!(wire.read_until_closed().is_empty());
        }
    }
}

#[test]
fn a_client_has_to_say_again_who_it_is() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    add_user(&data, "bob", "secret");
    let server = serve(&data, &["connections.max.reauth.ms=2000"]);
    let (mut wire, answer) = log_in(&server, "alice");
    assert_eq!(answer.session_lifetime_ms, 2000);
    // In time, and as often as it likes.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3000) {
        assert!(is_served(&mut wire));
        assert_eq!(handshake(&mut wire, "PLAIN").error_code, 0);
        assert!(is_served(&mut wire), "requests go on meanwhile");
        assert_eq!(authenticate(&mut wire, b"\0alice\0secret").error_code, 0);
    }
    // Nobody becomes somebody else.
    handshake(&mut wire, "PLAIN");
    let answer = authenticate(&mut wire, b"\0bob\0secret");
    assert_eq!(answer.error_code, ResponseError::SaslAuthenticationFailed.code());
    assert!(answer.error_message.expect("why").contains("Cannot change principals"));
    assert!(wire.read_until_closed().is_empty());
    // A client that does not re-authenticate is disconnected with its next request.
    let begun = Instant::now();
    let (mut wire, _) = log_in(&server, "alice");
    while is_served(&mut wire) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is served for ever");
    }
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
}

#[test]
fn logins_that_break_the_rules_harm_nobody() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve(&data, &["connection.failed.authentication.delay.ms=0"]);
    let (mut good, _) = log_in(&server, "alice");
    let mut rng = SeededRng::new(11);
    let seeds: [&[u8]; 5] = [
        b"\0alice\0secret",
        b"n,,n=alice,r=abcdefgh",
        b"c=biws,r=abc,p=AAAA",
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"",
    ];
    for nth in 0..300 {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        let mechanism = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"][nth % 3];
        assert_eq!(handshake(&mut wire, mechanism).error_code, 0);
        let mut message = seeds[rng.below(5) as usize].to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.below(message.len() as u64 + 1) as usize;
            message.insert(at, rng.below(256) as u8);
        }
        let is_login = mechanism == "PLAIN" && message == b"\0alice\0secret";
        let answer = authenticate(&mut wire, &message);
        if answer.error_code == 0 && !is_login {
            // A challenge, whose answer is wrong.
            assert_ne!(authenticate(&mut wire, b"c=biws,r=x,p=AAAA").error_code, 0);
        }
        assert!(nth % 20 != 0 || is_served(&mut good));
    }
    assert!(is_served(&mut good));
}

/// Logs in by a delegation token; returns the server's last answer.
fn log_in_by_token(
    wire: &mut RawKafkaConnection,
    mechanism: ScramMechanism,
    id: &str,
    secret: &[u8],
) -> SaslAuthenticateResponse {
    assert_eq!(handshake(wire, mechanism.as_str()).error_code, 0);
    let client = ScramClient::with_token(mechanism, id);
    let challenge = authenticate(wire, client.first_message().as_bytes());
    assert_eq!(challenge.error_code, 0, "{:?}", challenge.error_message);
    let password = STANDARD.encode(secret);
    let (last, _) = client.final_message(&password, &challenge.auth_bytes).expect("a challenge");
    authenticate(wire, last.as_bytes())
}

#[test]
fn a_delegation_token_stands_for_its_owner_until_it_ends() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve_tokens(&data);
    let (mut alice, _) = log_in(&server, "alice");
    let request = CreateDelegationTokenRequest::default()
        .with_owner_principal_type(None)
        .with_owner_principal_name(None)
        .with_max_lifetime_ms(-1);
    let token = alice.call(3, &request).expect("an answer");
    assert_eq!((token.error_code, &*token.principal_name), (0, "alice"));
    let id = token.token_id.to_string();
    // Also after a restart: it is in the journal, and its secret is not.
    server.stop().expect("it stops");
    let server = serve_tokens(&data);
    for mechanism in ScramMechanism::ALL {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        let answer = log_in_by_token(&mut wire, *mechanism, &id, &token.hmac);
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
        assert!(answer.session_lifetime_ms > 0, "it ends when the token does");
        assert!(is_served(&mut wire));
        // No token is had by a token.
        let refused = wire.call(3, &request).expect("an answer").error_code;
        assert_eq!(refused, ResponseError::DelegationTokenRequestNotAllowed.code());
        for (id, secret) in [(&*id, &b"wrong"[..]), ("unknown", &token.hmac)] {
            let mut wire = RawKafkaConnection::connect(server.kafka);
            let answer = log_in_by_token(&mut wire, *mechanism, id, secret);
            assert_eq!(answer.error_code, ResponseError::SaslAuthenticationFailed.code());
            assert!(wire.read_until_closed().is_empty());
        }
    }
    let (mut alice, _) = log_in(&server, "alice");
    let end = ExpireDelegationTokenRequest::default()
        .with_hmac(token.hmac.clone())
        .with_expiry_time_period_ms(-1);
    assert_eq!(alice.call(2, &end).expect("an answer").error_code, 0);
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let answer = log_in_by_token(&mut wire, ScramMechanism::Sha256, &id, &token.hmac);
    assert_eq!(answer.error_code, ResponseError::SaslAuthenticationFailed.code());
}

/// A server on a directory with a key of delegation tokens, and the user `alice`.
fn serve_tokens(data: &TestDirectory) -> TestServer {
    let config = data.path().with_extension("toml");
    std::fs::write(&config, "[kafka]\n\"delegation.token.secret.key\" = \"a key\"\n")
        .expect("a file");
    let config = config.to_str().expect("a path in UTF-8");
    let settings = ["--set", LISTENERS, "--set", MECHANISMS, "--config", config];
    TestServer::start(data.path(), &settings).expect("it starts")
}

#[test]
fn tokens_end_with_a_password_and_old_connections_get_no_more() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve_tokens(&data);
    let directory = data.path().to_str().expect("a path in UTF-8");
    let (mut alice, _) = log_in(&server, "alice");
    let request = CreateDelegationTokenRequest::default()
        .with_owner_principal_type(None)
        .with_owner_principal_name(None)
        .with_max_lifetime_ms(-1);
    let token = alice.call(3, &request).expect("an answer");
    assert_eq!(token.error_code, 0);
    let words = |output: &CommandOutput, words: &str| {
        assert!(output.code == Some(0) && output.stderr.contains(words), "{}", output.stderr);
    };
    let address = server.kafka.to_string();
    let file = data.path().with_extension("password");
    std::fs::write(&file, "secret").expect("it is written");
    let file = file.to_str().expect("UTF-8");
    let as_alice = ["--bootstrap", &address, "--sasl-user", "alice", "--sasl-password-file", file];
    // Over the network, by a user whom nobody asks what it may do.
    let changed =
        run(&[&as_alice[..], &["users", "add", "alice", "--password-file", file]].concat(), "");
    words(&changed, "1 delegation token of alice ended; its open connections go on");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let id = token.token_id.to_string();
    let answer = log_in_by_token(&mut wire, ScramMechanism::Sha256, &id, &token.hmac);
    assert_eq!(answer.error_code, ResponseError::SaslAuthenticationFailed.code());
    // The connection goes on, and gets no token.
    let refused = alice.call(3, &request).expect("an answer").error_code;
    assert_eq!(refused, ResponseError::DelegationTokenRequestNotAllowed.code());
    assert!(is_served(&mut alice));
    let (mut alice, _) = log_in(&server, "alice");
    assert_eq!(alice.call(3, &request).expect("an answer").error_code, 0);
    // And on the machine.
    let removed = run(&["users", "remove", "alice", "--data-dir", directory], "");
    words(&removed, "1 delegation token of alice ended");
}

/// Each mechanism counts, and the right password is refused too: else guesses would go on.
#[test]
fn guesses_from_an_address_are_limited_for_each_user() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    add_user(&data, "bob", "secret");
    let server = serve(&data, &["connection.failed.authentication.delay.ms=0"]);
    let plain = |user: &str, password: &str| {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        handshake(&mut wire, "PLAIN");
        authenticate(&mut wire, format!("\0{user}\0{password}").as_bytes()).error_code
    };
    let scram = |password: &str| {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        handshake(&mut wire, "SCRAM-SHA-256");
        let client = ScramClient::new(ScramMechanism::Sha256, "alice");
        let challenge = authenticate(&mut wire, client.first_message().as_bytes());
        let (last, _) = client.final_message(password, &challenge.auth_bytes).expect("a challenge");
        authenticate(&mut wire, last.as_bytes()).error_code
    };
    let refused = ResponseError::SaslAuthenticationFailed.code();
    for _ in 0..5 {
        assert_eq!((plain("alice", "wrong"), scram("wrong")), (refused, refused));
    }
    assert_eq!((plain("alice", "secret"), scram("secret")), (refused, refused));
    assert_eq!(plain("bob", "secret"), 0, "another user");
}

/// The proof of a client is compared with the credential that is known when the proof arrives.
#[test]
fn a_user_that_is_removed_in_the_middle_of_a_login_is_not_logged_in() {
    let data = TestDirectory::new();
    add_user(&data, "alice", "secret");
    let server = serve(&data, &[]);
    let directory = data.path().to_str().expect("a path in UTF-8");
    let begin = || {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        assert_eq!(handshake(&mut wire, "SCRAM-SHA-512").error_code, 0);
        let client = ScramClient::new(ScramMechanism::Sha512, "alice");
        let challenge = authenticate(&mut wire, client.first_message().as_bytes()).auth_bytes;
        let (last, _) = client.final_message("secret", &challenge).expect("a challenge");
        (wire, last)
    };
    let (mut first, last) = begin();
    assert_eq!(authenticate(&mut first, last.as_bytes()).error_code, 0);
    let (mut second, last) = begin();
    let removed = run(&["users", "remove", "alice", "--data-dir", directory], "");
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    let refused = authenticate(&mut second, last.as_bytes()).error_code;
    assert_eq!(refused, ResponseError::SaslAuthenticationFailed.code());
}

#[test]
fn tokens_say_who_clients_are_until_they_expire() {
    let (data, issuer) = (TestDirectory::new(), TokenIssuer::new("one"));
    let keys: PathBuf = data.path().with_extension("keys.json");
    std::fs::write(&keys, key_set(&[&issuer])).expect("it is written");
    let url = format!("sasl.oauthbearer.jwks.endpoint.url=file://{}", keys.display());
    let settings = [
        "sasl.enabled.mechanisms=OAUTHBEARER",
        &url,
        "sasl.oauthbearer.expected.audience=kafka",
        "sasl.oauthbearer.expected.issuer=https://id.example",
    ];
    let server = serve(&data, &settings);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs();
    let claims = |audience: &str, expires: u64| json!({"sub": "alice", "exp": expires, "iss": "https://id.example", "aud": audience});
    let message = |token: &str| format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into_bytes();
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_eq!(handshake(&mut wire, "OAUTHBEARER").error_code, 0);
    let answer = authenticate(&mut wire, &message(&issuer.token(&claims("kafka", now + 600))));
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
    assert!((500_000..=600_000).contains(&answer.session_lifetime_ms));
    assert!(is_served(&mut wire));
    // A time that nobody lives to see is shortened: Java counts the nanoseconds of a session.
    let mut wire = RawKafkaConnection::connect(server.kafka);
    handshake(&mut wire, "OAUTHBEARER");
    let far = authenticate(&mut wire, &message(&issuer.token(&claims("kafka", 1 << 62))));
    assert_eq!((far.error_code, far.session_lifetime_ms), (0, 100 * 365 * 24 * 3600 * 1000));
    for token in [
        issuer.token(&claims("other", now + 600)),
        issuer.token(&claims("kafka", now - 600)),
        TokenIssuer::new("one").token(&claims("kafka", now + 600)),
        "a.b.c".to_owned(),
    ] {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        handshake(&mut wire, "OAUTHBEARER");
        // First the client is told, and then it says that it has heard.
        let told = authenticate(&mut wire, &message(&token));
        assert_eq!(
            (told.error_code, &*told.auth_bytes),
            (0, &br#"{"status":"invalid_token"}"#[..])
        );
        let answer = authenticate(&mut wire, b"\x01");
        assert_eq!(answer.error_code, ResponseError::SaslAuthenticationFailed.code());
        assert!(answer.error_message.expect("why").contains("token"));
        assert!(wire.read_until_closed().is_empty());
    }
    std::fs::remove_file(&keys).expect("it is removed");
}

/// The settings of a server that authorizes.
const AUTHORIZED: [&str; 2] = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:admin",
];

/// A run of the binary as a user whose password is in the directory.
fn run_as(server: &TestServer, data: &TestDirectory, user: &str, words: &[&str]) -> CommandOutput {
    let file = data.path().with_extension("password");
    std::fs::write(&file, "secret").expect("it is written");
    let (address, file) = (server.kafka.to_string(), file.to_str().expect("UTF-8").to_owned());
    let login = ["--bootstrap", &address, "--sasl-user", user, "--sasl-password-file", &file];
    run(&[&login[..], words].concat(), "")
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_added_and_removed_over_the_network_by_those_who_may() {
    let data = TestDirectory::new();
    add_user(&data, "admin", "secret");
    let server = serve(&data, &AUTHORIZED);
    let file = data.path().with_extension("new-password");
    std::fs::write(&file, "another\n").expect("it is written");
    let file = file.to_str().expect("UTF-8");
    // The second time, the password is set again.
    for _ in 0..2 {
        let added =
            run_as(&server, &data, "admin", &["users", "add", "bob", "--password-file", file]);
        assert!(added.code == Some(0) && added.stderr.contains("can log in"), "{}", added.stderr);
        for mechanism in LoginMechanism::ALL {
            assert!(connect(server.kafka, "bob", "another", mechanism).await.is_ok());
        }
    }
    // As bob, whose password is in the other file.
    let address = server.kafka.to_string();
    let as_bob = ["--bootstrap", &address, "--sasl-user", "bob", "--sasl-password-file", file];
    for words in [&["users"][..], &["users", "remove", "admin"]] {
        let refused = run(&[&as_bob, words].concat(), "");
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.contains("ClusterAuthorizationFailed"), "{}", refused.stderr);
    }
    let listed = run_as(&server, &data, "admin", &["users"]);
    assert_eq!(listed.stdout().lines().count(), 2, "{}", listed.stdout());
    let removed = run_as(&server, &data, "admin", &["users", "remove", "bob"]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    for mechanism in LoginMechanism::ALL {
        assert!(connect(server.kafka, "bob", "another", mechanism).await.is_err());
    }
    let again = run_as(&server, &data, "admin", &["users", "remove", "bob"]);
    assert!(again.stderr.contains("there is no user bob"), "{}", again.stderr);
    let wrong = ["acls", "add", "--allow", "User:bob", "--operation", "write", "--group", "g"];
    let wrong = run_as(&server, &data, "admin", &wrong);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("no WRITE on a GROUP"), "{}", wrong.stderr);
}

fn code_of<T>(result: Result<T, ClientError>) -> Option<ResponseError> {
    result.err().and_then(|error| error.response_error())
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_say_who_may_read_a_topic_and_its_past() {
    let data = TestDirectory::new();
    add_user(&data, "admin", "secret");
    add_user(&data, "alice", "secret");
    let server = serve(&data, &AUTHORIZED);
    let [strong, ..] = LoginMechanism::ALL;
    let mut admin = connect(server.kafka, "admin", "secret", strong).await.expect("it logs in");
    let mut alice = connect(server.kafka, "alice", "secret", strong).await.expect("it logs in");
    let topic = |name: &str| NewTopic { name: name.to_owned(), ..NewTopic::default() };
    let denied = Some(ResponseError::TopicAuthorizationFailed);
    assert_eq!(code_of(alice.create_topic(&topic("t")).await), denied);
    admin.create_topic(&topic("t")).await.expect("it may do everything");
    let batch = kafka_records::BatchBuilder::new(kafka_records::CompressionType::None)
        .record(0, None, Some(b"v"), &[])
        .build();
    let batches = || BTreeMap::from([(0, batch.clone())]);
    admin.produce("t", client::RequiredAcks::All, batches()).await.expect("it is taken");
    // The moment is after the record.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    let past = format!("t@s{}", now.as_millis() + 1);
    assert!(alice.topics().await.expect("an answer").is_empty(), "a name is not shown");
    let options = client::FetchOptions::default();
    for name in ["t", past.as_str()] {
        assert_eq!(code_of(alice.fetch(name, &[(0, 0)], &options).await), denied, "{name}");
    }
    let add = ["acls", "add", "--allow", "User:alice", "--operation", "read", "--topic", "t"];
    assert_eq!(run_as(&server, &data, "alice", &add).code, Some(1), "alice may not change rules");
    let added = run_as(&server, &data, "admin", &add);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    for name in ["t", past.as_str()] {
        let fetched = alice.fetch(name, &[(0, 0)], &options).await.expect("it may read");
        assert!(!fetched[0].batches.is_empty(), "{name}");
    }
    let written = alice.produce("t", client::RequiredAcks::All, batches()).await;
    assert_eq!(code_of(written), denied, "to read is not to write");
    let ruled =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_millis();
    // Rules are there after a restart; and once one is removed, the past is closed too.
    server.stop().expect("it stops");
    let server = serve(&data, &AUTHORIZED);
    let listed = run_as(&server, &data, "admin", &["acls", "--topic", "t"]);
    assert!(listed.stdout().contains("User:alice"), "{}", listed.stdout());
    let mut alice = connect(server.kafka, "alice", "secret", strong).await.expect("it logs in");
    alice.fetch(&past, &[(0, 0)], &options).await.expect("it may read");
    let mut remove = add;
    remove[1] = "remove";
    let removed = run_as(&server, &data, "admin", &remove);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    for name in ["t", past.as_str()] {
        assert_eq!(code_of(alice.fetch(name, &[(0, 0)], &options).await), denied, "{name}");
    }
    // The rules at that moment, and who changed them.
    let then = format!("s{}", ruled + 1);
    let listed = run_as(&server, &data, "admin", &["acls", "--topic", "t", "--at", &then]);
    assert!(listed.stdout().contains("User:alice"), "{}{}", listed.stdout(), listed.stderr);
    let listed = run_as(&server, &data, "admin", &["acls", "--topic", "t"]);
    assert!(!listed.stdout().contains("User:alice"), "{}", listed.stdout());
    let users = run_as(&server, &data, "admin", &["users", "--at", &then]);
    assert_eq!(users.stdout().lines().count(), 2, "{}{}", users.stdout(), users.stderr);
    let log = run_as(&server, &data, "admin", &["acls", "log"]);
    let changed: Vec<&str> =
        log.stdout().lines().filter(|line| line.contains("READ on TOPIC t")).collect();
    let [added, removed] = changed.as_slice() else { panic!("{}{}", log.stdout(), log.stderr) };
    for (line, what) in [(added, "rule added"), (removed, "rule removed")] {
        let cells: Vec<&str> = line.split('\t').collect();
        let [_, by, from, change, of, how] = cells.as_slice() else { panic!("{line}") };
        assert_eq!((*by, *change, *of), ("User:admin", what, "User:alice"));
        assert_eq!((*from, *how), ("127.0.0.1", "ALLOW READ on TOPIC t"));
    }
    let since = run_as(&server, &data, "admin", &["acls", "log", "--from", &then, "--json"]);
    assert_eq!(since.stdout().lines().count(), 1, "{}{}", since.stdout(), since.stderr);
    assert!(since.stdout().contains(r#""kind":"acl_removed""#), "{}", since.stdout());
    assert_eq!(run_as(&server, &data, "alice", &["acls", "log"]).code, Some(1));
    // A new client finds it closed, whatever the server has cached of the moment.
    let mut again = connect(server.kafka, "alice", "secret", strong).await.expect("it logs in");
    assert_eq!(code_of(again.fetch(&past, &[(0, 0)], &options).await), denied);
}

#[test]
fn a_user_with_all_connections_keeps_nobody_out() {
    let data = TestDirectory::new();
    add_user(&data, "admin", "secret");
    add_user(&data, "bob", "secret");
    let server = serve(&data, &["max.connections=32"]);
    let mut bobs: Vec<_> = (0..40).map(|_| log_in(&server, "bob").0).collect();
    let (mut admin, _) = log_in(&server, "admin");
    assert!(is_served(&mut admin));
    assert!(!is_served(&mut bobs[0]), "the one that was idle for longest makes room");
    assert!(is_served(bobs.last_mut().expect("there are some")));
}
