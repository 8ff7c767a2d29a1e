//! Finds the setting that a source names: a row of the table, or one of Kafka's names that have no
//! effect or are refused here.

use strsim::osa_distance;

use super::problem::SettingOrigin;
use super::setting::{ServerSetting, variable};
use super::sources::SourceValue;
use super::{kafka, kafka_names, listeners, nearest, own, zoo_cfg};

/// A variable this near to a known one is refused as a typing error.
const VARIABLE_TYPO_DISTANCE: usize = 2;

/// The result of looking a name up.
pub(super) enum SettingLookup {
    Setting(&'static ServerSetting),
    /// A setting of one listener alone. The name is folded.
    OfListener(String, &'static ServerSetting),
    NoEffect(&'static str),
    Refused(&'static str),
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
        SettingOrigin::Flag(_) => {
            own_setting(key).ok_or_else(|| unknown(key, own::SETTINGS.iter()))
        }
        SettingOrigin::Set(_) => own_setting(key)
            .or_else(|| kafka_name(key))
            .ok_or_else(|| unknown(key, ServerSetting::all())),
        SettingOrigin::File { .. } => find_in_file(key),
        SettingOrigin::ZooCfg { .. } => {
            own_setting(key).map_or_else(|| zoo_cfg::without_setting(source), Ok)
        }
    }
}

fn find_in_file(key: &str) -> Result<SettingLookup, UnknownSetting> {
    if let Some(name) = key.strip_prefix("kafka.") {
        return kafka_name(name).ok_or_else(|| unknown(name, kafka::SETTINGS.iter()));
    }
    own_setting(key).ok_or_else(|| match kafka_name(key) {
        Some(_) => UnknownSetting::Refused(format!("{key}: Kafka's settings stand under [kafka]")),
        None => unknown(key, own::SETTINGS.iter()),
    })
}

fn find_variable(name: &str) -> Result<SettingLookup, UnknownSetting> {
    if let Some(setting) = ServerSetting::all().find(|setting| setting.variable() == name) {
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
    let variables: Vec<String> = ServerSetting::all().map(ServerSetting::variable).collect();
    let suggestion = nearest::nearest(name, variables.iter().map(String::as_str));
    let suggestion =
        suggestion.filter(|suggestion| osa_distance(name, suggestion) <= VARIABLE_TYPO_DISTANCE);
    let of_kafka = name.replacen(&variable(""), &kafka_prefix, 1);
    match suggestion.or_else(|| variables.iter().find(|known| **known == of_kafka).map(|v| &**v)) {
        Some(suggestion) => {
            Err(UnknownSetting::Refused(format!("it is no setting's; did you mean {suggestion}?")))
        }
        None => Err(UnknownSetting::Ignored("it is no setting's, and has no effect".to_owned())),
    }
}

fn own_setting(key: &str) -> Option<SettingLookup> {
    own::SETTINGS.iter().find(|setting| setting.name == key).map(SettingLookup::Setting)
}

/// Looks a Kafka name up.
fn kafka_name(name: &str) -> Option<SettingLookup> {
    if let Some(setting) = kafka_setting(name) {
        return Some(SettingLookup::Setting(setting));
    }
    let kafka_settings = kafka::SETTINGS.iter().map(|setting| setting.name);
    if let Some((listener, of_all)) = listeners::split_name(name, kafka_settings)
        && let Some(setting) = kafka_setting(of_all)
    {
        return Some(SettingLookup::OfListener(listeners::fold(listener), setting));
    }
    kafka_names::reason_for(kafka_names::REFUSED, name).map(SettingLookup::Refused).or_else(|| {
        kafka_names::reason_for(kafka_names::NO_EFFECT, name).map(SettingLookup::NoEffect)
    })
}

fn kafka_setting(name: &str) -> Option<&'static ServerSetting> {
    kafka::SETTINGS.iter().find(|setting| setting.name == name)
}

fn unknown(
    key: &str,
    settings: impl Iterator<Item = &'static ServerSetting> + Clone,
) -> UnknownSetting {
    let names = settings.map(|setting| setting.name);
    // The section of a file does not belong to the name of a setting of Kafka's.
    let of_kafka = key.strip_prefix("kafka.").unwrap_or(key);
    // The topic's name of a setting that is `log.*` here, or one of our own names without its
    // section.
    let is_meant = |name: &&str| {
        *name == of_kafka || name.split_once('.').is_some_and(|(_, rest)| rest == of_kafka)
    };
    let suggestion = names.clone().find(is_meant);
    UnknownSetting::Refused(match suggestion.or_else(|| nearest::nearest(of_kafka, names)) {
        Some(suggestion) => format!("{key} is no setting; did you mean {suggestion}?"),
        None => format!("{key} is no setting"),
    })
}
