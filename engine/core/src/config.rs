//! Settings of a topic, by their Kafka names.
//!
//! A topic stores only the settings that were set on it. All others come from the broker's
//! defaults. A setting that has no effect here is accepted if Kafka's clients and tools commonly
//! set it, and is listed with its value.

mod value;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use value::ConfigValueKind;

/// The setting for the source of user time: a [`user_time::UserTimeSpec`].
pub const USER_TIME: &str = "freezeframe.user.time";
/// The setting that says whether user time may decrease.
pub const USER_TIME_ORDER: &str = "freezeframe.user.time.order";
/// The setting that says what happens to records without a user time.
pub const USER_TIME_UNREADABLE: &str = "freezeframe.user.time.unreadable";

/// The reason that a setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No topic has such a setting.
    #[error("unknown topic config name: {0}")]
    Unknown(String),
    /// The value is not valid for this setting.
    #[error("invalid value {value} for configuration {key}: {expected}")]
    Value {
        key: String,
        value: String,
        /// The form of a valid value.
        expected: Cow<'static, str>,
    },
}

/// The type names that Kafka's DescribeConfigs uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigType {
    /// True or false.
    Boolean,
    String,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    /// A fraction.
    Double,
    /// Words separated by commas.
    List,
}

impl ConfigType {
    /// Kafka's name for the type.
    pub fn name(self) -> &'static str {
        match self {
            ConfigType::Boolean => "BOOLEAN",
            ConfigType::String => "STRING",
            ConfigType::Int => "INT",
            ConfigType::Long => "LONG",
            ConfigType::Double => "DOUBLE",
            ConfigType::List => "LIST",
        }
    }
}

const TOPIC_CONFIGS: &[(&str, &str, ConfigValueKind)] = &[
    ("cleanup.policy", "delete", ConfigValueKind::ListOf(&["delete", "compact"])),
    // They have no effect: batches are stored as they arrive, and are not compressed again.
    ("compression.gzip.level", "-1", ConfigValueKind::Level { min: 1, max: 9, or: Some(-1) }),
    ("compression.lz4.level", "9", ConfigValueKind::Level { min: 1, max: 17, or: None }),
    (
        "compression.type",
        "producer",
        ConfigValueKind::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
    ),
    ("compression.zstd.level", "3", ConfigValueKind::Level { min: -131_072, max: 22, or: None }),
    ("delete.retention.ms", "86400000", ConfigValueKind::Long { min: 0 }),
    ("file.delete.delay.ms", "60000", ConfigValueKind::Long { min: 0 }),
    ("flush.messages", "9223372036854775807", ConfigValueKind::Long { min: 1 }),
    ("flush.ms", "9223372036854775807", ConfigValueKind::Long { min: 0 }),
    ("follower.replication.throttled.replicas", "", ConfigValueKind::Replicas),
    (USER_TIME, "timestamp", ConfigValueKind::UserTime),
    (USER_TIME_ORDER, "lenient", ConfigValueKind::OneOf(&["lenient", "strict"])),
    (USER_TIME_UNREADABLE, "refuse", ConfigValueKind::OneOf(&["refuse", "keep"])),
    ("index.interval.bytes", "4096", ConfigValueKind::Int { min: 0 }),
    ("leader.replication.throttled.replicas", "", ConfigValueKind::Replicas),
    ("local.retention.bytes", "-2", ConfigValueKind::Long { min: -2 }),
    ("local.retention.ms", "-2", ConfigValueKind::Long { min: -2 }),
    ("max.compaction.lag.ms", "9223372036854775807", ConfigValueKind::Long { min: 1 }),
    ("max.message.bytes", "1048588", ConfigValueKind::Int { min: 0 }),
    ("message.timestamp.after.max.ms", "3600000", ConfigValueKind::Long { min: 0 }),
    ("message.timestamp.before.max.ms", "9223372036854775807", ConfigValueKind::Long { min: 0 }),
    (
        "message.timestamp.type",
        "CreateTime",
        ConfigValueKind::OneOf(&["CreateTime", "LogAppendTime"]),
    ),
    ("min.cleanable.dirty.ratio", "0.5", ConfigValueKind::Ratio),
    ("min.compaction.lag.ms", "0", ConfigValueKind::Long { min: 0 }),
    ("min.insync.replicas", "1", ConfigValueKind::Int { min: 1 }),
    ("preallocate", "false", ConfigValueKind::Bool),
    ("remote.log.copy.disable", "false", ConfigValueKind::Bool),
    ("remote.log.delete.on.disable", "false", ConfigValueKind::Bool),
    ("remote.storage.enable", "false", ConfigValueKind::Bool),
    ("retention.bytes", "-1", ConfigValueKind::Long { min: i64::MIN }),
    ("retention.ms", "604800000", ConfigValueKind::Long { min: -1 }),
    ("segment.bytes", "1073741824", ConfigValueKind::Int { min: 1 << 20 }),
    ("segment.index.bytes", "10485760", ConfigValueKind::Int { min: 4 }),
    ("segment.jitter.ms", "0", ConfigValueKind::Long { min: 0 }),
    ("segment.ms", "604800000", ConfigValueKind::Long { min: 1 }),
    ("unclean.leader.election.enable", "false", ConfigValueKind::Bool),
];

/// All settings that a topic has: name, Kafka's default, and type.
pub fn topic_config_keys() -> impl Iterator<Item = (&'static str, &'static str, ConfigType)> {
    TOPIC_CONFIGS.iter().map(|(name, default, kind)| {
        let config_type = match kind {
            ConfigValueKind::Long { .. } => ConfigType::Long,
            ConfigValueKind::Int { .. } | ConfigValueKind::Level { .. } => ConfigType::Int,
            ConfigValueKind::Ratio => ConfigType::Double,
            ConfigValueKind::Bool => ConfigType::Boolean,
            ConfigValueKind::OneOf(_) | ConfigValueKind::UserTime => ConfigType::String,
            ConfigValueKind::ListOf(_) | ConfigValueKind::Replicas => ConfigType::List,
        };
        (*name, *default, config_type)
    })
}

fn value_kind(key: &str) -> Option<ConfigValueKind> {
    TOPIC_CONFIGS.iter().find(|(name, ..)| *name == key).map(|(.., kind)| *kind)
}

/// The value of a setting, as it is stored and listed.
fn parse_value(key: &str, value: &str) -> Result<String, ConfigError> {
    let kind = value_kind(key).ok_or_else(|| ConfigError::Unknown(key.to_owned()))?;
    kind.parse(value).map_err(|expected| value_error(key, value, expected))
}

fn value_error(key: &str, value: &str, expected: impl Into<Cow<'static, str>>) -> ConfigError {
    ConfigError::Value { key: key.to_owned(), value: value.to_owned(), expected: expected.into() }
}

/// The broker's defaults for topic settings: Kafka's `log.*` settings and `message.max.bytes`,
/// under the topic-level names.
pub type TopicDefaults = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TopicConfig {
    set: BTreeMap<String, String>,
}

impl TopicConfig {
    /// Settings from a client or from a journal.
    ///
    /// # Errors
    /// A name is unknown, or a value is not valid.
    pub fn new(set: BTreeMap<String, String>) -> Result<TopicConfig, ConfigError> {
        let parsed = set.into_iter().map(|(key, value)| {
            let value = parse_value(&key, &value)?;
            Ok((key, value))
        });
        Ok(TopicConfig { set: parsed.collect::<Result<_, ConfigError>>()? })
    }

    /// Checks that these settings may be set from now on, with the broker's defaults. A journal may
    /// hold others, which an earlier version accepted.
    ///
    /// # Errors
    /// A value asks for something unsupported, or contradicts another one.
    pub(crate) fn check_new(&self, defaults: &TopicDefaults) -> Result<(), ConfigError> {
        for (key, value) in &self.set {
            let kind = value_kind(key).expect("settings were checked when they were set");
            kind.check_new(value).map_err(|expected| value_error(key, value, expected))?;
        }
        let remote = "remote.storage.enable";
        if self.set.get(remote).is_some_and(|value| value == "true") {
            return Err(value_error(remote, "true", "false, for there is no remote tier"));
        }
        let [min_key, max_key] = ["min.compaction.lag.ms", "max.compaction.lag.ms"];
        let (min, max) = (self.number(min_key, defaults), self.number(max_key, defaults));
        if min > max {
            let expected = format!("at most {max_key}, which is {max}");
            return Err(value_error(min_key, &min.to_string(), expected));
        }
        Ok(())
    }

    /// The settings that are set on the topic itself.
    pub fn overrides(&self) -> &BTreeMap<String, String> {
        &self.set
    }

    /// The effective value.
    pub fn value<'a>(&'a self, key: &str, defaults: &'a TopicDefaults) -> &'a str {
        let kafka =
            || TOPIC_CONFIGS.iter().find(|(name, ..)| *name == key).map(|(_, default, _)| *default);
        self.set
            .get(key)
            .or_else(|| defaults.get(key))
            .map(String::as_str)
            .or_else(kafka)
            .expect("a setting that is asked for is in the table")
    }

    /// The effective value of a numeric setting.
    pub fn number(&self, key: &str, defaults: &TopicDefaults) -> i64 {
        self.value(key, defaults).parse().expect("settings were checked when they were set")
    }

    /// Returns true if records get the time of their append as timestamp.
    pub fn is_log_append_time(&self, defaults: &TopicDefaults) -> bool {
        self.value("message.timestamp.type", defaults) == "LogAppendTime"
    }

    /// Returns true if the cleanup policy includes compaction.
    pub fn is_compacted(&self, defaults: &TopicDefaults) -> bool {
        self.has_policy("compact", defaults)
    }

    /// Returns true if the cleanup policy includes deletion by age and by size.
    pub fn has_delete_policy(&self, defaults: &TopicDefaults) -> bool {
        self.has_policy("delete", defaults)
    }

    fn has_policy(&self, policy: &str, defaults: &TopicDefaults) -> bool {
        self.value("cleanup.policy", defaults).split(',').any(|word| word.trim() == policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(key: &str, value: &str) -> Result<TopicConfig, ConfigError> {
        TopicConfig::new(BTreeMap::from([(key.to_owned(), value.to_owned())]))
    }

    #[test]
    fn every_default_is_a_value_that_could_be_set() {
        for (key, default, _) in TOPIC_CONFIGS {
            assert_eq!(parse_value(key, default).as_deref(), Ok(*default), "{key}={default}");
            let set = config(key, default).unwrap();
            assert_eq!(set.check_new(&TopicDefaults::new()), Ok(()), "{key}={default}");
        }
    }

    #[test]
    fn what_is_no_value_is_refused_by_name() {
        for (key, value) in [
            ("retention.ms", "-2"),
            ("max.message.bytes", "99999999999"),
            ("cleanup.policy", "shred"),
            ("min.cleanable.dirty.ratio", "2"),
            ("preallocate", "yes"),
            ("compression.gzip.level", "0"),
            ("compression.lz4.level", "18"),
            ("compression.zstd.level", "23"),
        ] {
            assert!(matches!(config(key, value), Err(ConfigError::Value { .. })), "{key}");
        }
        assert!(matches!(config("retention.days", "1"), Err(ConfigError::Unknown(_))));
    }

    #[test]
    fn what_contradicts_is_not_set_and_is_still_read_from_a_journal() {
        let lags = |min: &str, max: &str| {
            let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let set = [pair("min.compaction.lag.ms", min), pair("max.compaction.lag.ms", max)];
            TopicConfig::new(set.into()).unwrap().check_new(&TopicDefaults::new())
        };
        assert_eq!(lags("100", "100"), Ok(()));
        let refused = lags("100", "99").unwrap_err().to_string();
        let words = "invalid value 100 for configuration min.compaction.lag.ms: \
                     at most max.compaction.lag.ms, which is 99";
        assert_eq!(refused, words);
        let defaults = TopicDefaults::from([("max.compaction.lag.ms".to_owned(), "5".to_owned())]);
        assert!(config("min.compaction.lag.ms", "6").unwrap().check_new(&defaults).is_err());
        for (key, value) in [
            ("remote.storage.enable", "true"),
            ("leader.replication.throttled.replicas", "everything"),
        ] {
            let old = config(key, value).unwrap();
            assert!(old.check_new(&TopicDefaults::new()).is_err(), "{key}");
        }
    }

    #[test]
    fn a_topic_that_neither_deletes_nor_compacts_keeps_everything() {
        let config = config("cleanup.policy", " ").unwrap();
        assert_eq!(config.value("cleanup.policy", &TopicDefaults::new()), "");
        assert!(!config.is_compacted(&TopicDefaults::new()));
        assert!(!config.has_delete_policy(&TopicDefaults::new()));
    }

    #[test]
    fn a_topic_s_own_value_wins_over_the_broker_s_and_that_over_kafka_s() {
        let defaults = TopicDefaults::from([("retention.ms".to_owned(), "5".to_owned())]);
        assert_eq!(config("retention.ms", "7").unwrap().number("retention.ms", &defaults), 7);
        assert_eq!(TopicConfig::default().number("retention.ms", &defaults), 5);
        assert_eq!(TopicConfig::default().number("segment.ms", &defaults), 604_800_000);
    }
}
