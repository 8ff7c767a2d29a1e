//! Finds the setting that a source names: in one of the two tables, or among the names of Kafka that
//! have no effect or are refused here.

use strsim::osa_distance;

use super::kafka::{KafkaSetting, KafkaSettingEffect};
use super::own::OwnSetting;
use super::problem::SettingOrigin;
use super::sources::{SourceValue, VARIABLE_PREFIX};
use super::{kafka, kafka_names, listeners, nearest, own, zoo_cfg};

/// A variable this near to a known one is refused as a typing error.
const VARIABLE_TYPO_DISTANCE: usize = 2;

/// A setting of either table, with its rank: its position in the table. Within one source, settings
/// apply in that order.
#[derive(Clone, Copy)]
pub(super) enum ConfigSetting {
    Own(usize, &'static OwnSetting),
    Kafka(usize, &'static KafkaSetting),
}

/// The result of looking a name up.
pub(super) enum SettingLookup {
    Setting(ConfigSetting),
    /// A setting of one listener alone. The name is folded.
    OfListener(String, ConfigSetting),
    NoEffect(&'static str),
    Refused(&'static str),
}

impl ConfigSetting {
    pub(super) fn all() -> impl Iterator<Item = ConfigSetting> {
        let kafka = kafka::SETTINGS.iter().enumerate().map(|(i, row)| ConfigSetting::Kafka(i, row));
        own::SETTINGS.iter().enumerate().map(|(i, row)| ConfigSetting::Own(i, row)).chain(kafka)
    }

    /// The name, as `--set` takes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            ConfigSetting::Own(_, own) => own.key,
            ConfigSetting::Kafka(_, kafka) => kafka.name,
        }
    }

    /// True if its value is never shown.
    pub(super) fn is_secret(self) -> bool {
        match self {
            ConfigSetting::Kafka(_, kafka) => matches!(kafka.effect, KafkaSettingEffect::Secret(_)),
            ConfigSetting::Own(_, own) => {
                own.key.ends_with("Store.password") || own.key == "zookeeper.superDigest"
            }
        }
    }

    pub(super) fn rank(self) -> usize {
        match self {
            ConfigSetting::Own(rank, _) | ConfigSetting::Kafka(rank, _) => rank,
        }
    }

    /// The environment variable of the setting.
    pub(super) fn variable(self) -> String {
        match self {
            ConfigSetting::Own(_, own) => {
                variable(own.key.strip_prefix("server.").unwrap_or(own.key))
            }
            ConfigSetting::Kafka(_, kafka) => kafka_variable(kafka.name),
        }
    }
}

fn variable(name: &str) -> String {
    VARIABLE_PREFIX.to_owned() + &name.to_ascii_uppercase().replace(['.', '-'], "_")
}

fn kafka_variable(name: &str) -> String {
    variable("kafka.") + &variable(name)[VARIABLE_PREFIX.len()..]
}

/// A setting of Kafka's as Kafka spells it, whichever source it is from.
pub(super) fn kafka_spelling(key: &str) -> String {
    match key.strip_prefix(&variable("kafka.")) {
        Some(variable) => variable.to_ascii_lowercase().replace('_', "."),
        None => key.strip_prefix("kafka.").unwrap_or(key).to_owned(),
    }
}

/// An unknown name, and the message about it.
pub(super) enum UnknownSetting {
    Refused(String),
    Ignored(String),
}

pub(super) fn find_setting(source: &SourceValue) -> Result<SettingLookup, UnknownSetting> {
    let key = source.key.as_str();
    match &source.origin {
        SettingOrigin::Variable(_) => find_variable(key),
        SettingOrigin::Flag(_) => own_setting(key).ok_or_else(|| unknown(key, own_names())),
        SettingOrigin::Set(_) => own_setting(key)
            .or_else(|| kafka_name(key))
            .ok_or_else(|| unknown(key, own_names().chain(kafka_names()))),
        SettingOrigin::File { .. } => find_in_file(key),
        SettingOrigin::ZooCfg { .. } => {
            own_setting(key).map_or_else(|| zoo_cfg::without_setting(source), Ok)
        }
    }
}

fn find_in_file(key: &str) -> Result<SettingLookup, UnknownSetting> {
    if let Some(name) = key.strip_prefix("kafka.") {
        return kafka_name(name).ok_or_else(|| unknown(name, kafka_names()));
    }
    own_setting(key).ok_or_else(|| match kafka_name(key) {
        Some(_) => UnknownSetting::Refused(format!("{key}: Kafka's settings stand under [kafka]")),
        None => unknown(key, own_names()),
    })
}

fn find_variable(name: &str) -> Result<SettingLookup, UnknownSetting> {
    if let Some(setting) = ConfigSetting::all().find(|setting| setting.variable() == name) {
        return Ok(SettingLookup::Setting(setting));
    }
    let kafka_prefix = variable("kafka.");
    // Capitals do not show where the Kafka name has its dots. The lists have names with dots only.
    let kafka = name
        .strip_prefix(&kafka_prefix)
        .and_then(|rest| kafka_name(&rest.to_ascii_lowercase().replace('_', ".")));
    if let Some(lookup) = kafka {
        return Ok(lookup);
    }
    let variables: Vec<String> = ConfigSetting::all().map(ConfigSetting::variable).collect();
    let suggestion = nearest::nearest(name, variables.iter().map(String::as_str));
    match suggestion.filter(|suggestion| osa_distance(name, suggestion) <= VARIABLE_TYPO_DISTANCE) {
        Some(suggestion) => {
            Err(UnknownSetting::Refused(format!("it is no setting's; did you mean {suggestion}?")))
        }
        None => Err(UnknownSetting::Ignored("it is no setting's, and has no effect".to_owned())),
    }
}

fn own_setting(key: &str) -> Option<SettingLookup> {
    let (rank, row) = own::SETTINGS.iter().enumerate().find(|(_, row)| row.key == key)?;
    Some(SettingLookup::Setting(ConfigSetting::Own(rank, row)))
}

/// Looks a Kafka name up.
fn kafka_name(name: &str) -> Option<SettingLookup> {
    let find = |name: &str| {
        let (rank, row) = kafka::SETTINGS.iter().enumerate().find(|(_, row)| row.name == name)?;
        Some(ConfigSetting::Kafka(rank, row))
    };
    if let Some(setting) = find(name) {
        return Some(SettingLookup::Setting(setting));
    }
    if let Some((listener, of_all)) = listeners::split_name(name, kafka_names())
        && let Some(setting) = find(of_all)
    {
        return Some(SettingLookup::OfListener(listeners::fold(listener), setting));
    }
    kafka_names::reason_for(kafka_names::REFUSED, name).map(SettingLookup::Refused).or_else(|| {
        kafka_names::reason_for(kafka_names::NO_EFFECT, name).map(SettingLookup::NoEffect)
    })
}

fn own_names() -> impl Iterator<Item = &'static str> + Clone {
    own::SETTINGS.iter().map(|row| row.key)
}

fn kafka_names() -> impl Iterator<Item = &'static str> + Clone {
    kafka::SETTINGS.iter().map(|row| row.name)
}

fn unknown(key: &str, names: impl Iterator<Item = &'static str> + Clone) -> UnknownSetting {
    // The topic's name of a setting that is `log.*` here, or one of our own names without its
    // section.
    let listener_name =
        names.clone().find(|name| name.split_once('.').is_some_and(|(_, rest)| rest == key));
    UnknownSetting::Refused(match listener_name.or_else(|| nearest::nearest(key, names)) {
        Some(suggestion) => format!("{key} is no setting; did you mean {suggestion}?"),
        None => format!("{key} is no setting"),
    })
}
