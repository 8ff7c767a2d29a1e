//! A setting of the server: one row of [`own::SETTINGS`] or [`kafka::SETTINGS`].
//!
//! A row has the name, the default, a sentence about it, the form and bounds of its value, the option of
//! [`Config`] that it sets, and who may change it while the server runs. Everything else follows from
//! the rows: what a source may name, the environment variables, `config show`, `config example`,
//! docs/SETTINGS.md, suggestions for mistyped names, the settings of ZooKeeper that a `zoo.cfg` shares
//! with us, and what DescribeConfigs says. Names of Kafka without an effect have no row: they
//! are in [`kafka_names`](super::kafka_names).

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{ConfigError, TopicConfig};

use super::sources::VARIABLE_PREFIX;
use super::value::{ExpectedForm, ListenAddress, SettingValue};
use super::{Config, kafka, own};

/// The type of a secret setting, by Kafka's name.
pub(super) const SECRET_TYPE: &str = "PASSWORD";

#[derive(Debug)]
pub(super) struct ServerSetting {
    /// As `--set` takes it: section and name, or Kafka's name.
    pub(super) name: &'static str,
    /// `None` if leaving it out has a meaning of its own.
    pub(super) default: Option<&'static str>,
    /// A sentence that says what it is.
    pub(super) about: &'static str,
    pub(super) family: SettingFamily,
    pub(super) form: SettingForm,
}

/// The family of a setting, and the properties of that family alone.
#[derive(Clone, Copy, Debug)]
pub(super) enum SettingFamily {
    /// Ours. Its section in a file is the first part of its name.
    Own,
    /// Apache ZooKeeper's. In a `zoo.cfg` it stands without `zookeeper.`
    ZooKeeper,
    /// A Kafka broker's. It stands under `[kafka]`, and DescribeConfigs lists it.
    Kafka { type_name: &'static str, update: UpdateMode },
}

/// The dynamic update mode of a setting (KIP-226), by Kafka's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateMode {
    ReadOnly,
    /// For one server only. The settings of TLS are those of one listener only, too.
    PerBroker,
    /// For one server, or for all.
    ClusterWide,
}

/// The form of a setting's value, and what it sets.
#[derive(Clone, Copy, Debug)]
pub(super) enum SettingForm {
    Whole {
        min: i64,
        max: i64,
        set: fn(&mut Config, i64),
    },
    Bytes {
        min: i64,
        max: i64,
        set: fn(&mut Config, i64),
    },
    Time {
        min: Duration,
        max: Duration,
        set: fn(&mut Config, Duration),
    },
    Boolean(fn(&mut Config, bool)),
    Address(fn(&mut Config, ListenAddress)),
    Text(fn(&mut Config, &str)),
    /// A text that is never shown.
    Secret(fn(&mut Config, &str)),
    /// A form of its own.
    Parsed(fn(&mut Config, &mut SettingValue) -> Result<(), ExpectedForm>),
    /// The default of the topic setting `key`, which has `scale` of its units in one of this one's.
    TopicDefault {
        key: &'static str,
        scale: i64,
    },
}

/// A row without the form of its value.
pub(super) struct SettingRow {
    name: &'static str,
    default: Option<&'static str>,
    about: &'static str,
    family: SettingFamily,
}

/// One of our settings.
pub(super) const fn own(name: &'static str, default: &'static str) -> SettingRow {
    SettingRow { name, default: Some(default), about: "", family: SettingFamily::Own }
}

/// A setting of Apache ZooKeeper.
pub(super) const fn zookeeper(name: &'static str, default: &'static str) -> SettingRow {
    SettingRow { name, default: Some(default), about: "", family: SettingFamily::ZooKeeper }
}

/// A setting of Kafka's brokers.
pub(super) const fn kafka(
    name: &'static str,
    type_name: &'static str,
    default: &'static str,
) -> SettingRow {
    SettingRow { default: Some(default), ..kafka_unset(name, type_name) }
}

/// A setting of Kafka's brokers without a default.
pub(super) const fn kafka_unset(name: &'static str, type_name: &'static str) -> SettingRow {
    let family = SettingFamily::Kafka { type_name, update: UpdateMode::ReadOnly };
    SettingRow { name, default: None, about: "", family }
}

impl SettingRow {
    pub(super) const fn about(self, about: &'static str) -> SettingRow {
        SettingRow { about, ..self }
    }

    pub(super) const fn update(self, update: UpdateMode) -> SettingRow {
        let SettingFamily::Kafka { type_name, .. } = self.family else {
            panic!("clients can change none but Kafka's settings");
        };
        SettingRow { family: SettingFamily::Kafka { type_name, update }, ..self }
    }

    pub(super) const fn whole(
        self,
        min: i64,
        max: i64,
        set: fn(&mut Config, i64),
    ) -> ServerSetting {
        self.with(SettingForm::Whole { min, max, set })
    }

    pub(super) const fn bytes(
        self,
        min: i64,
        max: i64,
        set: fn(&mut Config, i64),
    ) -> ServerSetting {
        self.with(SettingForm::Bytes { min, max, set })
    }

    pub(super) const fn time(
        self,
        min: Duration,
        max: Duration,
        set: fn(&mut Config, Duration),
    ) -> ServerSetting {
        self.with(SettingForm::Time { min, max, set })
    }

    pub(super) const fn boolean(self, set: fn(&mut Config, bool)) -> ServerSetting {
        self.with(SettingForm::Boolean(set))
    }

    pub(super) const fn address(self, set: fn(&mut Config, ListenAddress)) -> ServerSetting {
        self.with(SettingForm::Address(set))
    }

    pub(super) const fn text(self, set: fn(&mut Config, &str)) -> ServerSetting {
        self.with(SettingForm::Text(set))
    }

    pub(super) const fn secret(self, set: fn(&mut Config, &str)) -> ServerSetting {
        self.with(SettingForm::Secret(set))
    }

    pub(super) const fn parsed(
        self,
        parse: fn(&mut Config, &mut SettingValue) -> Result<(), ExpectedForm>,
    ) -> ServerSetting {
        self.with(SettingForm::Parsed(parse))
    }

    pub(super) const fn topic_default(self, key: &'static str, scale: i64) -> ServerSetting {
        self.with(SettingForm::TopicDefault { key, scale })
    }

    const fn with(self, form: SettingForm) -> ServerSetting {
        let SettingRow { name, default, about, family } = self;
        ServerSetting { name, default, about, family, form }
    }
}

impl ServerSetting {
    /// All settings: ours, then Kafka's.
    pub(super) fn all() -> impl Iterator<Item = &'static ServerSetting> + Clone {
        own::SETTINGS.iter().chain(kafka::SETTINGS)
    }

    /// The place of the setting among all. Within one source, settings apply in that order.
    pub(super) fn rank(&self) -> usize {
        let place = ServerSetting::all().position(|setting| setting.name == self.name);
        place.expect("every setting is a row")
    }

    pub(super) fn is_kafka(&self) -> bool {
        matches!(self.family, SettingFamily::Kafka { .. })
    }

    /// True if its value is never shown.
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.form, SettingForm::Secret(_))
    }

    /// The environment variable of the setting.
    pub(super) fn variable(&self) -> String {
        if self.is_kafka() {
            variable(&format!("kafka.{}", self.name))
        } else {
            variable(self.name.strip_prefix("server.").unwrap_or(self.name))
        }
    }

    /// Parses a value, and sets the option. The value is normalized after it.
    pub(super) fn apply(
        &self,
        config: &mut Config,
        value: &mut SettingValue,
    ) -> Result<(), ExpectedForm> {
        match self.form {
            SettingForm::Whole { min, max, set } => set(config, value.whole(min, max)?),
            SettingForm::Bytes { min, max, set } => set(config, value.bytes(min, max)?),
            SettingForm::Time { min, max, set } => set(config, value.time(min, max)?),
            SettingForm::Boolean(set) => set(config, value.boolean()?),
            SettingForm::Address(set) => set(config, value.listen()?),
            SettingForm::Text(set) | SettingForm::Secret(set) => set(config, value.text()),
            SettingForm::Parsed(parse) => parse(config, value)?,
            SettingForm::TopicDefault { key, scale } => topic_default(config, key, scale, value)?,
        }
        Ok(())
    }
}

/// The environment variable of a name.
pub(super) fn variable(name: &str) -> String {
    VARIABLE_PREFIX.to_owned() + &name.to_ascii_uppercase().replace(['.', '-'], "_")
}

fn topic_default(
    config: &mut Config,
    key: &str,
    scale: i64,
    value: &mut SettingValue,
) -> Result<(), ExpectedForm> {
    let text = value.for_topic(key, scale);
    let topic = TopicConfig::new(BTreeMap::from([(key.to_owned(), text)]));
    let topic = topic.map_err(|error| match error {
        ConfigError::Value { expected, .. } => format!("give {expected}"),
        ConfigError::Unknown(key) => unreachable!("topics have a setting {key}"),
    })?;
    config.engine.core.topic_defaults.extend(topic.overrides().clone());
    Ok(())
}
