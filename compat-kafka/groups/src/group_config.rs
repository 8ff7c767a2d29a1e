//! The settings of single groups, by Kafka's names: they replace options that hold for all groups.

use std::collections::BTreeMap;
use std::time::Duration;

use super::options::{Options, ShareStart};

/// A setting of a group.
pub struct GroupConfigKey {
    pub name: &'static str,
    /// The server's setting of which it takes the place, if there is one.
    pub synonym: Option<&'static str>,
    /// Its type, by Kafka's name.
    pub type_name: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
    show: fn(&Options) -> String,
}

/// A setting of a group that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupConfigError {
    #[error("Unknown group config name: {0}")]
    UnknownName(String),
    #[error("Invalid value {value} for configuration {name}: {expected}")]
    InvalidValue {
        name: &'static str,
        value: String,
        /// A description of the valid values.
        expected: String,
    },
    /// A member that follows the interval would be removed.
    #[error("{0}.session.timeout.ms must be greater than {0}.heartbeat.interval.ms")]
    SessionTooShort(&'static str),
}

/// The settings of groups, by name.
pub fn group_config_keys() -> &'static [GroupConfigKey] {
    KEYS
}

impl GroupConfigKey {
    /// Its value among these options.
    pub fn value(&self, options: &Options) -> String {
        (self.show)(options)
    }
}

/// The options of a group with these settings.
///
/// # Errors
/// There is no such setting, or it cannot have that value, or two contradict each other.
pub fn with_group_config(
    options: &Options,
    config: &BTreeMap<String, String>,
) -> Result<Options, GroupConfigError> {
    let mut options = options.clone();
    for (name, value) in config {
        let key = KEYS.iter().find(|key| key.name == name);
        let key = key.ok_or_else(|| GroupConfigError::UnknownName(name.clone()))?;
        (key.set)(&mut options, value.trim()).map_err(|expected| {
            let (name, value) = (key.name, value.clone());
            GroupConfigError::InvalidValue { name, value, expected }
        })?;
    }
    let (consumer, share) = (&options.consumer, &options.share);
    if consumer.session_timeout <= consumer.heartbeat_interval {
        return Err(GroupConfigError::SessionTooShort("consumer"));
    }
    if share.session_timeout <= share.heartbeat_interval {
        return Err(GroupConfigError::SessionTooShort("share"));
    }
    if options.streams.session_timeout <= options.streams.heartbeat_interval {
        return Err(GroupConfigError::SessionTooShort("streams"));
    }
    Ok(options)
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest time that a member has a record, as in Kafka.
const RECORD_LOCK_MIN: Duration = Duration::from_secs(1);

const fn int(
    name: &'static str,
    synonym: Option<&'static str>,
    set: fn(&mut Options, &str) -> Result<(), String>,
    show: fn(&Options) -> String,
) -> GroupConfigKey {
    GroupConfigKey { name, synonym, type_name: "INT", set, show }
}

const KEYS: &[GroupConfigKey] = &[
    int(
        "consumer.assignment.interval.ms",
        Some("group.consumer.assignment.interval.ms"),
        |options, value| set_time(&mut options.consumer.assignment_interval, value, Duration::ZERO),
        |options| millis(options.consumer.assignment_interval),
    ),
    int(
        "consumer.heartbeat.interval.ms",
        Some("group.consumer.heartbeat.interval.ms"),
        |options, value| set_time(&mut options.consumer.heartbeat_interval, value, SHORTEST),
        |options| millis(options.consumer.heartbeat_interval),
    ),
    int(
        "consumer.session.timeout.ms",
        Some("group.consumer.session.timeout.ms"),
        |options, value| set_time(&mut options.consumer.session_timeout, value, SHORTEST),
        |options| millis(options.consumer.session_timeout),
    ),
    int(
        "share.assignment.interval.ms",
        Some("group.share.assignment.interval.ms"),
        |options, value| set_time(&mut options.share.assignment_interval, value, Duration::ZERO),
        |options| millis(options.share.assignment_interval),
    ),
    GroupConfigKey {
        name: "share.auto.offset.reset",
        synonym: None,
        type_name: "STRING",
        set: |options, value| {
            options.share.begin_at = parse_start(value).ok_or(
                "must be earliest, latest, or by_duration:PnDTnHnMnS with a duration as ISO 8601 has it",
            )?;
            Ok(())
        },
        show: |options| match options.share.begin_at {
            ShareStart::Earliest => "earliest".to_owned(),
            ShareStart::Latest => "latest".to_owned(),
            ShareStart::Ago(age) => format!("{BY_DURATION}PT{}S", age.as_secs_f64()),
        },
    },
    int(
        "share.delivery.count.limit",
        Some("group.share.delivery.count.limit"),
        |options, value| {
            options.share.deliveries_max = whole(value, 2, 10)? as u16;
            Ok(())
        },
        |options| options.share.deliveries_max.to_string(),
    ),
    int(
        "share.heartbeat.interval.ms",
        Some("group.share.heartbeat.interval.ms"),
        |options, value| set_time(&mut options.share.heartbeat_interval, value, SHORTEST),
        |options| millis(options.share.heartbeat_interval),
    ),
    GroupConfigKey {
        name: "share.isolation.level",
        synonym: None,
        type_name: "STRING",
        set: |options, value| {
            options.share.is_committed = match value {
                "read_committed" => true,
                "read_uncommitted" => false,
                _ => return Err("must be read_committed or read_uncommitted".to_owned()),
            };
            Ok(())
        },
        show: |options| {
            let level =
                if options.share.is_committed { "read_committed" } else { "read_uncommitted" };
            level.to_owned()
        },
    },
    int(
        "share.partition.max.record.locks",
        Some("group.share.partition.max.record.locks"),
        |options, value| {
            options.share.in_flight_max = whole(value, 100, 10_000)? as usize;
            Ok(())
        },
        |options| options.share.in_flight_max.to_string(),
    ),
    int(
        "share.record.lock.duration.ms",
        Some("group.share.record.lock.duration.ms"),
        |options, value| set_time(&mut options.share.record_lock, value, RECORD_LOCK_MIN),
        |options| millis(options.share.record_lock),
    ),
    GroupConfigKey {
        name: "share.renew.acknowledge.enable",
        synonym: None,
        type_name: "BOOLEAN",
        set: |options, value| {
            options.share.may_renew =
                value.to_ascii_lowercase().parse().map_err(|_| "must be true or false")?;
            Ok(())
        },
        show: |options| options.share.may_renew.to_string(),
    },
    int(
        "share.session.timeout.ms",
        Some("group.share.session.timeout.ms"),
        |options, value| set_time(&mut options.share.session_timeout, value, SHORTEST),
        |options| millis(options.share.session_timeout),
    ),
    int(
        "streams.assignment.interval.ms",
        Some("group.streams.assignment.interval.ms"),
        |options, value| set_time(&mut options.streams.assignment_interval, value, Duration::ZERO),
        |options| millis(options.streams.assignment_interval),
    ),
    int(
        "streams.heartbeat.interval.ms",
        Some("group.streams.heartbeat.interval.ms"),
        |options, value| set_time(&mut options.streams.heartbeat_interval, value, SHORTEST),
        |options| millis(options.streams.heartbeat_interval),
    ),
    int(
        "streams.initial.rebalance.delay.ms",
        Some("group.streams.initial.rebalance.delay.ms"),
        |options, value| {
            set_time(&mut options.streams.initial_rebalance_delay, value, Duration::ZERO)
        },
        |options| millis(options.streams.initial_rebalance_delay),
    ),
    int(
        "streams.num.standby.replicas",
        Some("group.streams.num.standby.replicas"),
        |options, value| {
            options.streams.standbys = whole(value, 0, STANDBYS_MAX)? as u32;
            Ok(())
        },
        |options| options.streams.standbys.to_string(),
    ),
    int(
        "streams.session.timeout.ms",
        Some("group.streams.session.timeout.ms"),
        |options, value| set_time(&mut options.streams.session_timeout, value, SHORTEST),
        |options| millis(options.streams.session_timeout),
    ),
];

/// A task may have so many copies, as in Kafka.
const STANDBYS_MAX: u64 = 2;

const SHORTEST: Duration = Duration::from_millis(1);
const BY_DURATION: &str = "by_duration:";

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

fn whole(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("must be a number from {min} to {max}"))
}

fn set_time(time: &mut Duration, value: &str, least: Duration) -> Result<(), String> {
    let number = whole(value, least.as_millis() as u64, DAY.as_millis() as u64)?;
    *time = Duration::from_millis(number);
    Ok(())
}

fn parse_start(value: &str) -> Option<ShareStart> {
    match value {
        "earliest" => Some(ShareStart::Earliest),
        "latest" => Some(ShareStart::Latest),
        value => Some(ShareStart::Ago(parse_duration(value.strip_prefix(BY_DURATION)?)?)),
    }
}

/// A duration as ISO 8601 has it, of days and what is shorter.
fn parse_duration(text: &str) -> Option<Duration> {
    let (days, times) = match text.strip_prefix('P')?.split_once('T') {
        Some((_, "")) => return None,
        Some((days, times)) => (days, times),
        None => (text.strip_prefix('P')?, ""),
    };
    let days = parts(days, &[('D', 86_400.0)])?;
    let times = parts(times, &[('H', 3600.0), ('M', 60.0), ('S', 1.0)])?;
    let seconds = days.iter().chain(&times).sum::<f64>();
    let is_any = !days.is_empty() || !times.is_empty();
    is_any.then(|| Duration::try_from_secs_f64(seconds).ok())?
}

/// The seconds of numbers that end with these letters, each at most once, in this order.
fn parts(mut text: &str, mut units: &[(char, f64)]) -> Option<Vec<f64>> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(end);
        let nth = units.iter().position(|(letter, _)| rest.starts_with(*letter))?;
        parts.push(number.parse::<f64>().ok()? * units[nth].1);
        (text, units) = (&rest[1..], &units[nth + 1..]);
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Options, GroupConfigError> {
        let config = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        with_group_config(&Options::default(), &config)
    }

    #[test]
    fn each_setting_shows_what_was_set() {
        assert!(KEYS.is_sorted_by_key(|key| key.name));
        for key in KEYS {
            let value = match key.name {
                "share.auto.offset.reset" => "by_duration:PT90S",
                "share.isolation.level" => "read_committed",
                "share.renew.acknowledge.enable" => "false",
                "share.delivery.count.limit" => "7",
                "share.partition.max.record.locks" => "300",
                "streams.num.standby.replicas" => "2",
                _ => "20000",
            };
            let options = with(key.name, value).unwrap();
            assert_eq!(key.value(&options), value, "{}", key.name);
            assert!(with(key.name, "nothing").is_err());
            assert_ne!(options, Options::default());
        }
        assert!(with("no.such", "1").is_err() && with("share.delivery.count.limit", "1").is_err());
        let short_timeout = with("share.session.timeout.ms", "5000");
        assert_eq!(short_timeout, Err(GroupConfigError::SessionTooShort("share")));
    }

    #[test]
    fn a_duration_is_as_iso_8601_has_it() {
        let seconds = |text: &str| parse_duration(text).map(|time| time.as_secs_f64());
        assert_eq!(seconds("P1DT2H3M4.5S"), Some(86_400.0 + 7200.0 + 180.0 + 4.5));
        assert_eq!((seconds("P2D"), seconds("PT0S")), (Some(172_800.0), Some(0.0)));
        for wrong in ["", "P", "PT", "P1", "1D", "P1H", "PT1S2H", "PT1S1S", "PT-1S", "P1DT", "PTéS"]
        {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }
}
