use std::fs;
use std::path::Path;
use std::time::Duration;

use storage::Durability;
use tls::ClientAuthentication;

use super::*;

/// A configuration file that is removed when it is dropped.
struct TestConfigFile(PathBuf);

impl TestConfigFile {
    fn new(name: &str, text: &str) -> TestConfigFile {
        let name = format!("freezeframe-config-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        TestConfigFile(path)
    }
}

impl Drop for TestConfigFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn set(pairs: &[(&str, &str)]) -> ConfigSources {
    let set = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ConfigSources { set: set.collect(), ..ConfigSources::default() }
}

fn variables(pairs: &[(&str, &str)]) -> ConfigSources {
    let variables = pairs.iter().map(|(name, value)| (name.into(), value.into())).collect();
    ConfigSources { variables, ..ConfigSources::default() }
}

fn problems(sources: &ConfigSources) -> Vec<String> {
    let ConfigProblems(problems) = Config::load(sources).unwrap_err();
    problems.into_iter().map(|ConfigProblem { origin, what }| format!("{origin}: {what}")).collect()
}

fn described(config: &Config, name: &str) -> Option<String> {
    let settings = &config.kafka_server.dynamic.broker_settings;
    settings.iter().find(|setting| setting.name == name)?.value.clone()
}

#[test]
fn every_default_is_a_value_and_gives_what_the_crates_themselves_take() {
    let config = Config::default();
    let storage = storage::Options::default();
    let memory = memory::limit(Path::new("/"));
    assert_eq!(config.engine.core.storage.tail_bytes_max, memory::tail_bytes(memory));
    assert_eq!(config.engine.core.storage.segment_bytes_max, storage.segment_bytes_max);
    assert_eq!(config.engine.core.storage.durability, Durability::Synced);
    let engine = EngineOptions::default();
    assert_eq!(config.engine.core.pins_max, engine.core.pins_max);
    assert_eq!(config.engine.core.deleted_topic_retention, engine.core.deleted_topic_retention);
    assert_eq!(config.engine.groups.offsets_retention, engine.groups.offsets_retention);
    assert_eq!(config.engine.core.cut_cache_bytes_max, engine.core.cut_cache_bytes_max);
    assert_eq!(config.kafka_server.groups, KafkaOptions::default().groups);
    assert_eq!(config.kafka.to_string(), "127.0.0.1:9092");
    assert_eq!((config.http, config.zookeeper), (ListenAddress::Off, ListenAddress::Off));
    assert!(config.engine.core.topic_defaults.is_empty());
    assert!(config.warnings.is_empty());
}

#[test]
fn the_later_source_wins() {
    let file = TestConfigFile::new(
        "layers",
        "[server]\nkafka = \"a:1\"\nhttp = \"a:2\"\n[kafka]\nnum.partitions = 2\nnode.id = 2\n",
    );
    let sources = ConfigSources {
        file: Some(file.0.clone()),
        flags: vec![("--http", "server.http", "c:2".to_owned())],
        set: vec![("num.partitions".to_owned(), "4".to_owned())],
        ..variables(&[
            ("FREEZEFRAME_KAFKA", "b:1"),
            ("FREEZEFRAME_HTTP", "b:2"),
            ("FREEZEFRAME_KAFKA_NUM_PARTITIONS", "3"),
        ])
    };
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.kafka.to_string(), "b:1");
    assert_eq!(config.http.to_string(), "c:2");
    assert_eq!((config.kafka_server.partitions, config.kafka_server.node_id), (4, 2));
}

#[test]
fn a_file_has_sections_of_its_own_and_one_of_kafka_s_names() {
    let file = TestConfigFile::new(
        "sections",
        r#"
[server]
data-dir = "/var/lib/freezeframe"
durability = "os"
[storage]
tail-bytes = "16MiB"
segment-bytes = "1GiB"
[clock]
skew-max = "250ms"
start-gap = "30m"
trust-after = "2h"
[limits]
groups-max = 1_000
[kafka]
"max.connections" = 100
max.connections.per.ip = 10
group.initial.rebalance.delay.ms = 0
log.retention.hours = 24
message.max.bytes = "2MiB"
log.cleanup.policy = ["compact", "delete"]
auto.create.topics.enable = false
advertised.listeners = "PLAINTEXT://kafka.example:9092"
broker.rack = "r1"
"#,
    );
    // A table and a value with the same name both need quotes.
    let text = fs::read_to_string(&file.0)
        .unwrap()
        .replace("max.connections.per.ip", "\"max.connections.per.ip\"");
    fs::write(&file.0, text).unwrap();
    let config =
        Config::load(&ConfigSources { file: Some(file.0.clone()), ..ConfigSources::default() })
            .unwrap();
    assert_eq!(config.data_dir, PathBuf::from("/var/lib/freezeframe"));
    assert_eq!(config.engine.core.storage.durability, Durability::Written);
    assert_eq!(config.engine.core.storage.tail_bytes_max, 16 << 20);
    let clock = &config.engine.core.storage.clock;
    assert_eq!(clock.skew_max, Duration::from_millis(250));
    assert_eq!(clock.start_gap, Duration::from_secs(30 * 60));
    assert_eq!(clock.trust_after, Duration::from_secs(2 * 60 * 60));
    assert_eq!(config.kafka_server.groups.groups_max, 1000);
    assert_eq!(config.kafka_server.dynamic.limits.max, 100);
    assert_eq!(config.kafka_server.dynamic.connections_per_ip_max, 10);
    assert_eq!(config.kafka_server.groups.initial_rebalance_delay, Duration::ZERO);
    assert!(!config.kafka_server.auto_create_topics);
    let topics = &config.engine.core.topic_defaults;
    assert_eq!(topics["retention.ms"], "86400000");
    assert_eq!(topics["max.message.bytes"], "2097152");
    assert_eq!(topics["cleanup.policy"], "compact,delete");
    assert_eq!(described(&config, "message.max.bytes").unwrap(), "2097152");
    assert_eq!(described(&config, "log.retention.hours").unwrap(), "24");
    assert_eq!(described(&config, "log.retention.ms"), None);
}

#[test]
fn all_problems_are_reported_at_once_each_with_its_place() {
    let file = TestConfigFile::new(
        "problems",
        "[server]\ndata-dirr = \"x\"\n[storage]\ntail-bytes = 64\n[kafka]\nnum.partitons = 1\n\
         \"num.io.threads\" = 8\nsuper.users = \"k\"\n",
    );
    let sources = ConfigSources {
        file: Some(file.0.clone()),
        flags: vec![("--kafka", "server.kafka", "9092".to_owned())],
        set: vec![("log.retention.ms".to_owned(), "soon".to_owned())],
        ..variables(&[("FREEZEFRAME_HTTPP", "127.0.0.1:1"), ("FREEZEFRAME_KAFKA_NODE_ID", "-1")])
    };
    let path = file.0.display();
    let mut refusals = problems(&sources);
    refusals.sort();
    let mut expected = [
        format!("{path}:2: server.data-dirr is no setting; did you mean server.data-dir?"),
        format!(
            "{path}:4: storage.tail-bytes: \"64\" is no value for it; give a size from 0 to 1TiB, with its unit, such as 64MiB, or auto"
        ),
        format!("{path}:6: num.partitons is no setting; did you mean num.partitions?"),
        format!(
            "{path}:8: super.users: \"k\" is no value for it; give User:NAME, with semicolons between"
        ),
        "variable FREEZEFRAME_HTTPP: it is no setting's; did you mean FREEZEFRAME_HTTP?".to_owned(),
        "variable FREEZEFRAME_KAFKA_NODE_ID: node.id: \"-1\" is no value for it; give a whole number from 0 to 2147483647".to_owned(),
        "--kafka: server.kafka: \"9092\" is no value for it; give HOST:PORT, such as 127.0.0.1:9092 (port 0 takes any free one), or off".to_owned(),
        "--set log.retention.ms: \"soon\" is no value for it; give a whole number, -1 or more".to_owned(),
    ];
    expected.sort();
    assert_eq!(refusals, expected);
}

#[test]
fn a_name_without_its_prefix_is_suggested_whole() {
    let refusal = |key: &str| {
        let set = vec![(key.to_owned(), "1".to_owned())];
        problems(&ConfigSources { set, ..ConfigSources::default() }).remove(0)
    };
    assert!(refusal("retention.ms").ends_with("did you mean log.retention.ms?"));
    assert!(refusal("tail-bytes").ends_with("did you mean storage.tail-bytes?"));
    assert!(refusal("ms").ends_with("ms is no setting"), "{}", refusal("ms"));
}

#[test]
fn a_file_that_does_not_read_says_where_and_so_does_one_that_is_not_there() {
    let file = TestConfigFile::new("syntax", "[server]\nkafka = \n[kafka]\nx = 1\nx.y = 2\n");
    let sources = ConfigSources { file: Some(file.0.clone()), ..ConfigSources::default() };
    let refusals = problems(&sources);
    assert!(refusals[0].contains(".toml:2: "), "{refusals:?}");
    assert!(refusals.iter().any(|problem| problem.contains(".toml:5: ")), "{refusals:?}");
    let sources =
        ConfigSources { file: Some("/nowhere/at/all.toml".into()), ..ConfigSources::default() };
    let refusals = problems(&sources);
    assert!(refusals[0].starts_with("--config: cannot read /nowhere/at/all.toml"), "{refusals:?}");
    let refusals = problems(&variables(&[("FREEZEFRAME_CONFIG", "/nowhere.toml")]));
    assert!(refusals[0].starts_with("variable FREEZEFRAME_CONFIG: cannot read"), "{refusals:?}");
}

#[test]
fn kafka_s_settings_at_the_top_of_a_file_are_pointed_to_their_section() {
    let file = TestConfigFile::new("top", "num.partitions = 3\n");
    let refusals =
        problems(&ConfigSources { file: Some(file.0.clone()), ..ConfigSources::default() });
    assert!(refusals[0].ends_with(":1: num.partitions: Kafka's settings stand under [kafka]"));
}

#[test]
fn of_settings_that_say_the_same_the_finer_wins_within_a_source_and_the_later_source_across() {
    let retention = |config: Config| config.engine.core.topic_defaults["retention.ms"].clone();
    let settings = set(&[("log.retention.ms", "5"), ("log.retention.hours", "1")]);
    assert_eq!(retention(Config::load(&settings).unwrap()), "5");
    let file = TestConfigFile::new("finer", "[kafka]\nlog.retention.ms = 5\n");
    let later =
        ConfigSources { file: Some(file.0.clone()), ..set(&[("log.retention.minutes", "1")]) };
    assert_eq!(retention(Config::load(&later).unwrap()), "60000");
    let duplicate = set(&[("num.partitions", "2"), ("num.partitions", "3")]);
    assert_eq!(Config::load(&duplicate).unwrap().kafka_server.partitions, 3);
    let id = set(&[("broker.id", "7")]);
    assert_eq!(Config::load(&id).unwrap().kafka_server.node_id, 7);
}

#[test]
fn what_has_no_meaning_here_is_accepted_with_a_reason() {
    let config = Config::load(&set(&[
        ("process.roles", "broker,controller"),
        ("offsets.topic.replication.factor", "1"),
        ("log.dirs", "/tmp/x"),
    ]))
    .unwrap();
    assert_eq!(config.warnings.len(), 3);
    assert!(config.warnings[2].contains("--data-dir"), "{:?}", config.warnings);
}

#[test]
fn zookeeper_s_settings_have_its_names_and_kafka_s_of_that_name_still_mean_nothing() {
    let config = Config::load(&set(&[
        ("zookeeper.tickTime", "500"),
        ("zookeeper.maxSessionTimeout", "9000"),
        ("zookeeper.4lw.commands.whitelist", "ruok, srvr"),
        ("zookeeper.connect", "zk:2181"),
    ]))
    .unwrap();
    let zookeeper = config.zookeeper_server;
    assert_eq!((zookeeper.tick_ms, zookeeper.session_timeout_ms_max), (500, Some(9000)));
    assert_eq!(zookeeper.session_timeout_ms_min, None);
    assert_eq!(zookeeper.four_letter_words.len(), 2);
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
}

#[test]
fn the_environment_is_not_only_ours() {
    let config = Config::load(&variables(&[
        ("FREEZEFRAME_SERVICE_HOST", "10.0.0.1"),
        ("FREEZEFRAME_HTTP_PORT", "tcp://10.0.0.1:80"),
        ("FREEZEFRAME_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("FREEZEFRAME_LOG", "debug"),
        ("FREEZEFRAME_LOG_FORMAT", "json"),
        ("FREEZEFRAME_BOOTSTRAP", "x:1"),
        ("FREEZEFRAME_CLIENTS_CACHE", "/tmp"),
        ("FREEZEFRAME_KAFKA_ZOOKEEPER_CONNECT", "zk:2181"),
        ("PATH", "/bin"),
    ]))
    .unwrap();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}

#[test]
fn two_settings_that_contradict_each_other_are_reported() {
    let refusals = problems(&set(&[("group.min.session.timeout.ms", "2h")]));
    assert!(refusals[0].contains("group.max.session.timeout.ms"), "{refusals:?}");
    let timeouts = [("group.min.session.timeout.ms", "1"), ("group.max.session.timeout.ms", "2")];
    assert!(Config::load(&set(&timeouts)).is_ok());
    let refusals = problems(&set(&[("group.consumer.heartbeat.interval.ms", "1min")]));
    assert!(refusals[0].contains("group.consumer.session.timeout.ms"), "{refusals:?}");
    let refusals = problems(&set(&[("group.consumer.assignors", "uniform,best")]));
    assert!(refusals[0].contains("uniform, range"), "{refusals:?}");
}

#[test]
fn a_misspelt_setting_of_offsets_is_not_taken_for_one_that_means_nothing_here() {
    let refusals = problems(&set(&[("offsets.retention.minuts", "5")]));
    assert!(refusals[0].contains("offsets.retention.minutes"), "{refusals:?}");
}

#[test]
fn only_one_replica_can_be_asked_for() {
    let refusals = problems(&set(&[("default.replication.factor", "3")]));
    assert!(refusals[0].ends_with("give 1: there is one server"), "{refusals:?}");
}

#[test]
fn a_signing_key_is_read_from_its_file_and_one_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    // The key of RFC 8410, section 10.3.
    let text = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
        -----END PRIVATE KEY-----\n";
    let file = TestConfigFile::new("key", text);
    let path = file.0.to_str().unwrap();
    let allow = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    assert!(Config::default().engine.core.signing_key.is_none());
    assert!(
        Config::load(&set(&[("storage.signing-key", "")]))
            .unwrap()
            .engine
            .core
            .signing_key
            .is_none()
    );
    allow(0o600);
    let config = Config::load(&set(&[("storage.signing-key", path)])).unwrap();
    let key = config.engine.core.signing_key.as_ref().unwrap();
    assert_eq!(key.verifying_key().to_bytes()[..4], [0x19, 0xbf, 0x44, 0x09]);
    assert_eq!(config.warnings, [""; 0]);
    let debug_text = format!("{config:?}");
    assert!(!debug_text.contains("212, 238, 114"), "a secret is not shown");
    allow(0o644);
    let from_variable = variables(&[("FREEZEFRAME_STORAGE_SIGNING_KEY", path)]);
    let config = Config::load(&from_variable).unwrap();
    assert!(config.engine.core.signing_key.is_some());
    assert_eq!(config.warnings.len(), 1);
    assert!(config.warnings[0].contains("chmod 600"), "{:?}", config.warnings);
}

#[test]
fn a_signing_key_that_is_none_is_a_problem_that_says_how_to_make_one() {
    let file = TestConfigFile::new("no-key", "hello");
    let path = file.0.to_str().unwrap();
    let refusals = problems(&set(&[("storage.signing-key", path)]));
    assert_eq!(refusals.len(), 1);
    for word in ["--set storage.signing-key", path, "openssl genpkey -algorithm ed25519"] {
        assert!(refusals[0].contains(word), "{refusals:?}");
    }
    let refusals = problems(&set(&[("storage.signing-key", "/nowhere/key.pem")]));
    assert!(refusals[0].contains("cannot read /nowhere/key.pem"), "{refusals:?}");
}

#[test]
fn a_listener_has_sasl_its_own_way_and_authorization_is_for_all() {
    let set = |pairs: &[(&str, &str)]| ConfigSources {
        set: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..ConfigSources::default()
    };
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let config = Config::load(&set(&[
        ("listeners", "IN://127.0.0.1:0,OUT://127.0.0.1:0"),
        ("listener.security.protocol.map", "IN:SASL_PLAINTEXT,OUT:SASL_SSL"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("listener.name.out.sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256"),
        ("listener.name.out.connections.max.reauth.ms", "60000"),
        ("ssl.keystore.location", "all.pem"),
        ("authorizer.class.name", authorizer),
        ("super.users", "User:admin; User:CN=duke,O=Org"),
    ]))
    .unwrap();
    let sasl_of = |name| &config.kafka_security_of(name).sasl;
    let names = |name| -> Vec<&str> {
        sasl_of(name).mechanisms.iter().map(|mechanism| mechanism.as_str()).collect()
    };
    assert_eq!(names("IN"), ["SCRAM-SHA-512"]);
    assert_eq!(names("OUT"), ["PLAIN", "SCRAM-SHA-256"]);
    assert_eq!(sasl_of("IN").reauthentication_max, None);
    assert_eq!(sasl_of("OUT").reauthentication_max, Some(Duration::from_secs(60)));
    let authorizer_options = &config.engine.security.authorizer;
    assert!(authorizer_options.is_enabled);
    let users: Vec<&str> = authorizer_options.super_users.iter().map(String::as_str).collect();
    assert_eq!(users, ["User:CN=duke,O=Org", "User:admin"]);
    for (pairs, expected) in [
        (vec![("super.users", "User:a")], "nobody is asked what they may do"),
        (vec![("allow.everyone.if.no.acl.found", "true")], "nobody is asked what they may do"),
        (vec![("authorizer.class.name", "com.example.Other")], "give org.apache.kafka.metadata"),
        (vec![("sasl.enabled.mechanisms", "GSSAPI")], "give some of OAUTHBEARER"),
        (vec![("sasl.enabled.mechanisms", "")], "give some of OAUTHBEARER"),
        (vec![("ssl.principal.mapping.rules", "RULE:x")], "give DEFAULT, or RULE:"),
        (
            vec![
                ("listeners", "A://:0"),
                ("listener.security.protocol.map", "A:SSL"),
                ("listener.name.a.sasl.enabled.mechanisms", "PLAIN"),
            ],
            "no listener of that name has SASL",
        ),
        // One that is right hides no other.
        (
            vec![
                ("listeners", "A://127.0.0.1:0"),
                ("listener.security.protocol.map", "A:PLAINTEXT"),
                ("listener.name.a.ssl.client.auth", "required"),
                ("listener.name.a.max.connections", "100"),
            ],
            "no listener of that name speaks TLS",
        ),
    ] {
        let refusals = problems(&set(&pairs));
        assert!(refusals.len() == 1 && refusals[0].contains(expected), "{pairs:?}: {refusals:?}");
    }
}

#[test]
fn a_listener_speaks_tls_its_own_way_and_has_the_rest_from_all() {
    let file = TestConfigFile::new(
        "listeners",
        "[kafka]\nlisteners = \"IN://127.0.0.1:0,OUT://127.0.0.1:0,OPEN://127.0.0.1:0\"\n\
         \"listener.security.protocol.map\" = \"IN:SSL,OUT:SSL,OPEN:PLAINTEXT\"\n\
         \"listener.name.out.ssl.client.auth\" = \"required\"\n\
         \"ssl.keystore.location\" = \"all.pem\"\n\"ssl.client.auth\" = \"none\"\n",
    );
    let sources = ConfigSources {
        file: Some(file.0.clone()),
        ..variables(&[("FREEZEFRAME_KAFKA_LISTENER_NAME_OUT_SSL_KEY_PASSWORD", "secret")])
    };
    let config = Config::load(&sources).unwrap();
    let tls_of = |name| &config.kafka_security_of(name).tls;
    assert_eq!(tls_of("IN").client_authentication, ClientAuthentication::None);
    assert_eq!(tls_of("OUT").client_authentication, ClientAuthentication::Need);
    assert!(tls_of("IN").key_store.key_password.is_empty());
    assert!(!tls_of("OUT").key_store.key_password.is_empty());
    for name in ["IN", "OUT"] {
        assert_eq!(tls_of(name).key_store.path, PathBuf::from("all.pem"));
    }
    assert_eq!(described(&config, "ssl.client.auth").unwrap(), "none");
    // A listener's inline certificate wins over a file for all listeners.
    let variable = [("FREEZEFRAME_KAFKA_LISTENER_NAME_OUT_SSL_KEYSTORE_CERTIFICATE_CHAIN", "pem")];
    let config =
        Config::load(&ConfigSources { file: Some(file.0.clone()), ..variables(&variable) })
            .unwrap();
    let key_store = &config.kafka_security_of("OUT").tls.key_store;
    assert_eq!((&*key_store.path, key_store.pem_certificates.is_empty()), (Path::new(""), false));
    assert_eq!(config.kafka_security_of("IN").tls.key_store.path, PathBuf::from("all.pem"));
    let variable = [("FREEZEFRAME_KAFKA_SSL_KEYSTORE_CERTIFICATE_CHAIN", "pem")];
    let refusals = problems(&ConfigSources { file: Some(file.0.clone()), ..variables(&variable) });
    assert!(refusals[0].contains("leave one out"), "{refusals:?}");
    let set = |key: &str| vec![(key.to_owned(), "x".to_owned())];
    for (key, expected) in [
        ("listener.name.out.ssl.client.auth", "give one of: none, requested, required"),
        ("listener.name.out.ssl.key.password", "everybody on this machine can read a command line"),
        ("listener.name.out.sasl.jaas.config", "freezeframe users add"),
        ("listener.name.out.max.connections.per.ip", "give it without listener.name"),
        ("listener.name.none.max.connections", "no listener of that name serves Kafka's clients"),
        ("listener.name.out.max.connections", "a whole number"),
        ("listener.name.out.ssl.keystore.location", "no listener of that name speaks TLS"),
    ] {
        let refusals = problems(&ConfigSources { set: set(key), ..ConfigSources::default() });
        assert!(refusals.iter().any(|problem| problem.contains(expected)), "{key}: {refusals:?}");
    }
}

#[test]
fn the_digest_of_the_super_user_is_a_secret() {
    let name = "zookeeper.superDigest";
    let refusals = problems(&set(&[(name, "super:hash")]));
    let expected = "FREEZEFRAME_ZOOKEEPER_SUPERDIGEST";
    assert!(refusals.len() == 1 && refusals[0].contains(expected), "{refusals:?}");
    let config = Config::load(&variables(&[(expected, "super:hash")])).unwrap();
    let digest = config.zookeeper_server.super_digest.as_ref().unwrap();
    assert_eq!(digest.expose(), "super:hash");
    assert!(!format!("{:?}", config.zookeeper_server).contains("hash"));
}

#[test]
fn single_addresses_have_limits_of_their_own() {
    let name = "max.connections.per.ip.overrides";
    let config = Config::load(&set(&[(name, "10.0.0.7:5, ::1:0,[::ffff:10.0.0.8]:9")])).unwrap();
    let limits: Vec<String> = config
        .kafka_server
        .dynamic
        .connections_per_ip_overrides
        .iter()
        .map(|(address, count)| format!("{address} {count}"))
        .collect();
    assert_eq!(limits, ["10.0.0.7 5", "10.0.0.8 9", "::1 0"]);
    for wrong in ["10.0.0.7", "host:5", "10.0.0.7:-1", "10.0.0.7:x"] {
        let problems = problems(&set(&[(name, wrong)]));
        assert!(problems[0].contains("give ADDRESS:COUNT"), "{problems:?}");
    }
}

#[test]
fn each_setting_says_its_value_and_where_that_is_said_and_no_secret() {
    let text = "[server]\ndata-dir = \"/d\"\n[kafka]\n\"ssl.keystore.password\" = \"hush\"\n";
    let file = TestConfigFile::new("effective", text);
    let mut sources = set(&[("num.partitions", "3")]);
    sources.file = Some(file.0.clone());
    let config = Config::load(&sources).unwrap();
    let setting = |name: &str| config.settings.iter().find(|one| one.name == name).unwrap();
    let shown = |name: &str| {
        let EffectiveSetting { value, origin, .. } = setting(name);
        (value.clone(), origin.as_ref().map(ToString::to_string))
    };
    let path = file.0.display();
    assert_eq!(shown("server.data-dir"), (Some("/d".into()), Some(format!("{path}:2"))));
    assert_eq!(
        shown("num.partitions"),
        (Some("3".into()), Some("--set num.partitions".to_owned()))
    );
    assert_eq!(shown("ssl.keystore.password"), (None, Some(format!("{path}:4"))));
    assert!(setting("ssl.keystore.password").is_secret);
    assert_eq!(shown("storage.segment-bytes"), (Some("256MiB".into()), None));
    assert_eq!(config.settings.len(), ServerSetting::all().count());
    assert!(!format!("{:?}", config.settings).contains("hush"));
}
