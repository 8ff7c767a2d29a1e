//! The list of DescribeConfigs: all settings of a broker of Apache Kafka 4.3. Those with an effect are
//! rows of [`kafka::SETTINGS`](super::kafka); this file has those that have no effect here and those
//! that are refused, with the reason.

use std::collections::BTreeMap;

use compat_kafka::{BrokerSetting, SettingSource};

use super::listeners;
use super::setting::{SECRET_TYPE, ServerSetting, SettingFamily, UpdateMode};

/// A setting without a row, a line: its name, its type, how Kafka changes it while it runs (nothing
/// if it does not), and its default. Between them are tabs.
const NAMES: &str = include_str!("kafka_names.tsv");

/// The setting that lists where records are.
const DIRECTORY: &str = "log.dirs";

/// A setting of Kafka's.
pub(super) struct ListedName {
    pub(super) name: &'static str,
    pub(super) type_name: &'static str,
    pub(super) update: UpdateMode,
    default: Option<&'static str>,
    /// Its row, if it has an effect here.
    pub(super) setting: Option<&'static ServerSetting>,
}

fn listed_names() -> impl Iterator<Item = ListedName> + Clone {
    let with_effect = ServerSetting::all().filter_map(|setting| match setting.family {
        SettingFamily::Kafka { type_name, update } => {
            let ServerSetting { name, default, .. } = *setting;
            Some(ListedName { name, type_name, update, default, setting: Some(setting) })
        }
        SettingFamily::Own | SettingFamily::ZooKeeper => None,
    });
    let without_effect = NAMES.lines().map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_default();
        let (name, type_name) = (next(), next());
        let update = match next() {
            "per-broker" => UpdateMode::PerBroker,
            "cluster-wide" => UpdateMode::ClusterWide,
            _ => UpdateMode::ReadOnly,
        };
        ListedName { name, type_name, update, default: columns.next(), setting: None }
    });
    with_effect.chain(without_effect)
}

pub(super) fn names() -> impl Iterator<Item = &'static str> + Clone {
    listed_names().map(|setting| setting.name)
}

pub(super) fn find(name: &str) -> Option<ListedName> {
    listed_names().find(|setting| setting.name == name)
}

/// Lists all settings for DescribeConfigs: with their values, whether they were given or not, and
/// also the settings without effect. `is_given` says of a setting with an effect whether it was
/// given.
pub(super) fn describe(
    values: &BTreeMap<&'static str, String>,
    ineffective: &BTreeMap<String, String>,
    is_given: impl Fn(&str) -> bool,
    data_dir: &str,
) -> Vec<BrokerSetting> {
    let describe = |listed: ListedName| {
        let documentation = documentation(&listed);
        let ListedName { name, type_name, update, default, setting } = listed;
        let given_value = match setting {
            Some(_) if is_given(name) => values.get(name).cloned(),
            Some(_) => None,
            None => ineffective.get(name).cloned(),
        };
        let is_directory = name == DIRECTORY;
        let is_secret = type_name == SECRET_TYPE;
        let value = if is_directory {
            Some(data_dir.to_owned())
        } else {
            given_value.clone().or_else(|| values.get(name).cloned())
        };
        let is_set = is_directory || given_value.is_some() || is_given(name);
        let value = if is_secret { None } else { value.or_else(|| default.map(str::to_owned)) };
        BrokerSetting {
            name: name.to_owned(),
            type_name,
            given: Vec::from_iter(is_set.then(|| (SettingSource::Static, value.clone()))),
            value,
            default: if is_secret { None } else { default },
            is_dynamic: update != UpdateMode::ReadOnly,
            documentation,
        }
    };
    let mut settings: Vec<BrokerSetting> = listed_names().map(describe).collect();
    settings.sort_by(|a, b| a.name.cmp(&b.name));
    settings
}

/// The meaning here of a setting that is not in the list: a listener's own, or one without effect.
pub(super) fn documentation_of(name: &str) -> String {
    match listeners::split_name(name, names()) {
        Some((listener, of_all)) => format!("The {of_all} of the listener {listener}."),
        None => "It has no effect here: there is one server, which copies nothing.".to_owned(),
    }
}

/// The meaning of a setting here.
fn documentation(ListedName { name, setting, .. }: &ListedName) -> String {
    if *name == DIRECTORY {
        return "The data directory, as --data-dir says.".to_owned();
    }
    if let Some(setting) = setting {
        return setting.about.to_owned();
    }
    match (reason_for(REFUSED, name), reason_for(NO_EFFECT, name)) {
        (Some(reason), _) => format!("It is refused: {reason}."),
        (None, Some(reason)) => format!("It has no effect here: {reason}."),
        (None, None) => String::new(),
    }
}

/// Names without effect, by reason. A name that ends with `*` stands for all names with that
/// prefix.
pub(super) const NO_EFFECT: &[(&str, &[&str])] = &[
    (
        "there is neither ZooKeeper nor a quorum of controllers behind this server",
        &[
            "zookeeper.*",
            "process.roles",
            "controller.*",
            "broker.id.generation.enable",
            "reserved.broker.max.id",
            "broker.session.timeout.ms",
            "broker.heartbeat.interval.ms",
            "initial.broker.registration.timeout.ms",
            "metadata.log.*",
            "metadata.max.*",
            "inter.broker.*",
            "leader.imbalance.*",
            "auto.leader.rebalance.enable",
            "early.start.listeners",
        ],
    ),
    (
        "data lies in the data directory, --data-dir or [server] data-dir",
        &["log.dir", "log.dirs", "num.recovery.threads.per.data.dir"],
    ),
    (
        "say where to listen with listeners, or --kafka or [server] kafka",
        &["port", "host.name", "control.plane.listener.name"],
    ),
    ("advertised.listeners says where to connect", &["advertised.host.name", "advertised.port"]),
    (
        "there is one server, which connects to no other",
        &["security.inter.broker.protocol", "ssl.endpoint.identification.algorithm"],
    ),
    (
        "TLS is built in, and ssl.enabled.protocols says which versions are spoken",
        &[
            "ssl.protocol",
            "ssl.provider",
            "ssl.keymanager.algorithm",
            "ssl.trustmanager.algorithm",
            "ssl.secure.random.implementation",
        ],
    ),
    (
        "new certificates are used as soon as the files have changed, whatever they say",
        &["ssl.allow.dn.changes", "ssl.allow.san.changes"],
    ),
    (
        "threads are as many as the machine has cores",
        &["num.network.threads", "num.io.threads", "background.threads", "queued.max.requests"],
    ),
    (
        "the kernel sizes the buffers of sockets",
        &["socket.send.buffer.bytes", "socket.receive.buffer.bytes", "socket.listen.backlog.size"],
    ),
    (
        "there is one server, and no replica elsewhere",
        &["replica.*", "num.replica.*", "offsets.topic.replication.factor"],
    ),
    (
        "committed offsets lie in the journal, in no topic",
        &["offsets.commit.*", "offsets.load.*", "offsets.topic.*"],
    ),
    (
        "transactions are events in the journal: there is no topic for their state, and no check of partitions by another broker",
        &[
            "transaction.state.*",
            "transaction.partition.*",
            "transaction.two.*",
            "producer.id.expiration.*",
        ],
    ),
    (
        "the journal is synced as --durability says, and rolled as [storage] segment-bytes says",
        &[
            "log.flush.scheduler.interval.ms",
            "log.flush.offset.checkpoint.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms",
            "log.initial.task.delay.ms",
        ],
    ),
    (
        "the cleaner takes one log at a time, and always runs; it has log.cleaner.backoff.ms and log.cleaner.dedupe.buffer.size",
        &["log.cleaner.enable", "log.cleaner.threads", "log.cleaner.io.*"],
    ),
    (
        "the format of records is the newest",
        &["log.message.format.version", "log.message.downconversion.enable"],
    ),
    (
        "say how far clocks may differ with log.message.timestamp.before.max.ms and .after.max.ms",
        &["log.message.timestamp.difference.max.ms"],
    ),
    (
        "the bounds of settings of single groups are fixed",
        &[
            "group.share.min.*",
            "group.share.max.*",
            "group.consumer.min.*",
            "group.consumer.max.session.timeout.ms",
            "group.consumer.max.heartbeat.interval.ms",
            "group.consumer.max.assignment.interval.ms",
        ],
    ),
    (
        "assignments are computed where they are asked for, and topics are looked up again as soon as they change",
        &[
            "group.consumer.assignor.offload.enable",
            "group.consumer.regex.*",
            "group.share.assignor.offload.enable",
        ],
    ),
    (
        "there is one server, which has nobody to say who it is to, and no keys to renew",
        &[
            "sasl.mechanism.inter.broker.protocol",
            "sasl.mechanism.controller.protocol",
            "sasl.client.callback.handler.class",
            "sasl.login.*",
            "sasl.oauthbearer.token.endpoint.url",
        ],
    ),
    (
        "this version has no Kerberos: sasl.enabled.mechanisms says which logins there are",
        &["sasl.kerberos.*"],
    ),
    ("rules name users, and no scopes of tokens", &["sasl.oauthbearer.scope.claim.name"]),
    ("share groups have one assignor", &["group.share.assignors"]),
    (
        "what share groups know is in the journal, as offsets are",
        &[
            "share.coordinator.*",
            "group.share.persister.class.name",
            "group.share.initialize.retry.interval.ms",
        ],
    ),
    (
        "there is one server with one directory: nothing is moved, and nothing is copied to others",
        &[
            "alter.log.dirs.replication.*",
            "replication.quota.*",
            "log.dir.failure.timeout.ms",
            "follower.fetch.*",
            "socket.connection.setup.timeout.*",
        ],
    ),
    (
        "a transaction that is asked for is begun, or refused at once",
        &["add.partitions.to.txn.retry.*"],
    ),
    (
        "there is one server, which asks nobody for tokens",
        &[
            "sasl.oauthbearer.assertion.*",
            "sasl.oauthbearer.client.credentials.*",
            "sasl.oauthbearer.jwt.retriever.class",
            "sasl.oauthbearer.scope",
        ],
    ),
    ("values are taken from files and variables as they are", &["config.providers"]),
    (
        "delegation tokens that have expired are forgotten when another one is made",
        &["delegation.token.expiry.check.interval.ms"],
    ),
    (
        "this version does not have it",
        &[
            "remote.log.*",
            "remote.fetch.*",
            "remote.list.*",
            "max.request.partition.size.limit",
            "group.coordinator.*",
            "group.share.*",
            "share.fetch.purgatory.*",
            "group.streams.*",
            "kafka.metrics.*",
            "metric.*",
            "metrics.*",
            "auto.include.jmx.reporter",
            "client.quota.callback.class",
            "request.timeout.ms",
            "fetch.purgatory.purge.interval.requests",
            "producer.purgatory.purge.interval.requests",
            "delete.records.purgatory.purge.interval.requests",
            "purgatory.*",
            "create.topic.policy.class.name",
            "alter.config.policy.class.name",
            "controlled.shutdown.*",
            "unstable.*",
        ],
    ),
];

/// Names that ask for protection, and are refused.
pub(super) const REFUSED: &[(&str, &[&str])] = &[
    (
        "users and their passwords are in the server itself, not in its configuration: add one with `freezeframe users add NAME --data-dir DIR`",
        &["sasl.jaas.config", "*.sasl.jaas.config"],
    ),
    (
        "this version has no code of others for logins: there are SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER, by sasl.enabled.mechanisms",
        &["sasl.server.callback.handler.class", "sasl.oauthbearer.jwt.validator.class"],
    ),
    (
        "it is built in how principals are made and what is trusted: ssl.principal.mapping.rules says how certificates name them",
        &["security.providers", "principal.builder.class"],
    ),
    (
        "of a single listener, there are only how it speaks TLS and SASL (ssl.…, sasl.enabled.mechanisms, connections.max.reauth.ms) and its own limits (max.connections, max.connection.creation.rate): give it without listener.name",
        &["listener.name.*"],
    ),
    ("TLS is built in", &["ssl.engine.factory.class"]),
    (
        "there is one directory, and no other one for new partitions: stop producers by rules or quotas instead",
        &["cordoned.log.dirs"],
    ),
];

/// The reason why a name is in one of the lists above.
pub(super) fn reason_for(
    list: &'static [(&'static str, &'static [&'static str])],
    name: &str,
) -> Option<&'static str> {
    let is_meant = |pattern: &&str| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(prefix), _) => name.starts_with(prefix),
        (None, Some(suffix)) => name.ends_with(suffix),
        (None, None) => *pattern == name,
    };
    list.iter().find(|(_, names)| names.iter().any(is_meant)).map(|(reason, _)| *reason)
}

#[cfg(test)]
mod tests {
    use super::super::kafka::SETTINGS;
    use super::super::setting::SettingForm;
    use super::*;

    #[test]
    fn a_setting_with_an_effect_is_not_refused_or_listed_twice() {
        for ServerSetting { name, .. } in SETTINGS {
            assert_eq!(names().filter(|listed| listed == name).count(), 1, "{name}");
            assert_eq!(reason_for(REFUSED, name), None, "{name}");
        }
    }

    /// Each is one that has an effect, or says why it has none or is refused; and each that has one
    /// is there.
    #[test]
    fn every_setting_of_kafka_is_listed_and_says_what_it_means() {
        let settings = describe(&BTreeMap::new(), &BTreeMap::new(), |_| false, "/data");
        assert!(settings.is_sorted_by(|a, b| a.name < b.name));
        for setting in &settings {
            assert!(!setting.documentation.is_empty(), "{}", setting.name);
            let has_effect = SETTINGS.iter().any(|row| row.name == setting.name);
            let reasons =
                [REFUSED, NO_EFFECT].map(|list| reason_for(list, &setting.name).is_some());
            let ways = usize::from(has_effect) + reasons.into_iter().filter(|is| *is).count();
            assert!(ways == 1 || has_effect, "{} is {ways} things", setting.name);
        }
        for row in SETTINGS {
            let described = settings.iter().find(|setting| setting.name == row.name);
            assert_eq!(
                described.map(|setting| setting.type_name == SECRET_TYPE),
                Some(row.is_secret()),
                "{}",
                row.name
            );
        }
        assert_eq!(settings.len(), 342);
    }

    #[test]
    fn every_topic_setting_is_one_that_topics_have() {
        let keys: Vec<&str> = engine::topic_config_keys().map(|(name, ..)| name).collect();
        for ServerSetting { name, form, .. } in SETTINGS {
            if let SettingForm::TopicDefault { key, .. } = form {
                assert!(keys.contains(key), "{name}");
            }
        }
    }

    #[test]
    fn kafka_s_everyday_settings_are_known_and_protection_is_not_pretended() {
        for name in [
            "zookeeper.connect",
            "log.dirs",
            "process.roles",
            "controller.quorum.voters",
            "sasl.kerberos.min.time.before.relogin",
        ] {
            assert!(reason_for(NO_EFFECT, name).is_some(), "{name}");
            assert!(reason_for(REFUSED, name).is_none(), "{name}");
        }
        for name in [
            "sasl.jaas.config",
            "listener.name.a.plain.sasl.jaas.config",
            "sasl.server.callback.handler.class",
        ] {
            assert!(reason_for(REFUSED, name).is_some(), "{name}");
        }
        assert!(reason_for(NO_EFFECT, "log.dirsy").is_none());
    }
}
