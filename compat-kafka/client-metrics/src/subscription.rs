//! A subscription: which clients are to push which metrics, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use regex::{Regex, RegexBuilder};
use uuid::Uuid;

/// The interval at which a client is to push, or to ask again, where no subscription says
/// otherwise.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(300);
const INTERVAL_MIN_MS: u64 = 100;
const INTERVAL_MAX_MS: u64 = 3_600_000;
/// The name that stands for all metrics.
const ALL: &str = "*";
const PATTERN_BYTES_MAX: usize = 1024;
/// The most memory of a compiled pattern.
const PATTERN_MEMORY_MAX: usize = 64 << 10;
/// The most patterns and metrics of a subscription.
const ITEMS_MAX: usize = 1000;

/// The facts known of a client, by Kafka's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    pub client_id: String,
    /// From ApiVersions; empty if it is not known.
    pub software_name: String,
    pub software_version: String,
    pub source_address: String,
    pub source_port: u16,
}

/// The attributes that the patterns of a subscription match.
const MATCHED: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

impl ClientIdentity {
    /// The bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = [&self.client_id, &self.software_name, &self.software_version];
        texts.iter().map(|text| text.len()).sum::<usize>() + self.source_address.len()
    }

    fn value(&self, name: &str, id: Uuid) -> String {
        match name {
            // As Kafka writes ids.
            "client_instance_id" => kafka_id(id),
            "client_id" => self.client_id.clone(),
            "client_software_name" => self.software_name.clone(),
            "client_software_version" => self.software_version.clone(),
            "client_source_address" => self.source_address.clone(),
            _ => self.source_port.to_string(),
        }
    }
}

/// An id as Kafka writes it: its bytes in URL-safe base 64, without padding.
pub(crate) fn kafka_id(id: Uuid) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bytes = id.as_u128();
    // 128 bits are 22 digits of 6, the last of which has two bits and four zeros.
    let digit = |nth: u32| match nth {
        21 => (bytes << 4) & 0x3f,
        nth => (bytes >> (122 - 6 * nth)) & 0x3f,
    };
    (0..22).map(|nth| char::from(DIGITS[digit(nth) as usize])).collect()
}

/// An error in the settings of a subscription. The words are Kafka's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionError {
    #[error("Unknown client metrics configuration: {0}")]
    UnknownName(String),
    #[error("Invalid value {0} for configuration interval.ms: Not a number of type INT")]
    NoNumber(String),
    #[error("Configuration '{0}' values must not be empty.")]
    EmptyItem(&'static str),
    #[error("Invalid value {0} for interval.ms, interval must be between 100 and 3600000 (1 hour)")]
    InvalidInterval(String),
    #[error("Illegal client matching pattern: {0}")]
    InvalidPattern(String),
    #[error("{0} has more than 1000 items")]
    TooMany(&'static str),
}

#[derive(Debug)]
pub(crate) struct Subscription {
    /// Prefixes of names of metrics.
    metrics: BTreeSet<String>,
    interval: Duration,
    /// The patterns that a client has to match, by name.
    patterns: BTreeMap<&'static str, Regex>,
}

impl Subscription {
    pub(crate) fn parse(
        config: &BTreeMap<String, String>,
    ) -> Result<Subscription, SubscriptionError> {
        let mut subscription = Subscription {
            metrics: BTreeSet::new(),
            interval: INTERVAL_DEFAULT,
            patterns: BTreeMap::new(),
        };
        for (name, value) in config {
            check_items(name, value)?;
            match name.as_str() {
                "metrics" => subscription.metrics = items(value).map(str::to_owned).collect(),
                "interval.ms" => {
                    let ms = value.trim().parse::<i32>();
                    let ms = ms.map_err(|_| SubscriptionError::NoNumber(value.clone()))?;
                    let ms = u64::try_from(ms).ok();
                    let ms = ms.filter(|ms| (INTERVAL_MIN_MS..=INTERVAL_MAX_MS).contains(ms));
                    let ms = ms.ok_or_else(|| SubscriptionError::InvalidInterval(value.clone()))?;
                    subscription.interval = Duration::from_millis(ms);
                }
                "match" => {
                    for item in items(value) {
                        let pattern = parse_pattern(item);
                        let invalid = || SubscriptionError::InvalidPattern(item.to_owned());
                        let (name, pattern) = pattern.ok_or_else(invalid)?;
                        subscription.patterns.insert(name, pattern);
                    }
                }
                _ => return Err(SubscriptionError::UnknownName(name.clone())),
            }
        }
        if subscription.metrics.len() > ITEMS_MAX {
            Err(SubscriptionError::TooMany("metrics"))
        } else {
            Ok(subscription)
        }
    }

    fn is_for(&self, id: Uuid, client: &ClientIdentity) -> bool {
        let matches = |(name, pattern): (&&str, &Regex)| pattern.is_match(&client.value(name, id));
        self.patterns.iter().all(matches)
    }
}

/// Refuses a list with an empty item. A list without any is empty itself.
fn check_items(name: &str, value: &str) -> Result<(), SubscriptionError> {
    let lists = super::SUBSCRIPTION_KEYS.into_iter().filter(|(_, kind)| *kind == "LIST");
    let list = lists.map(|(list, _)| list).find(|list| *list == name);
    let has_empty_item =
        !value.trim().is_empty() && value.split(',').any(|item| item.trim().is_empty());
    match list {
        Some(list) if has_empty_item => Err(SubscriptionError::EmptyItem(list)),
        _ => Ok(()),
    }
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// `name=pattern`. The pattern has to match the whole value.
fn parse_pattern(item: &str) -> Option<(&'static str, Regex)> {
    let (name, pattern) = item.split_once('=').filter(|(_, pattern)| !pattern.contains('='))?;
    let name = MATCHED.into_iter().find(|parameter| *parameter == name.trim())?;
    let build = |pattern: &str| RegexBuilder::new(pattern).size_limit(PATTERN_MEMORY_MAX).build();
    let pattern = pattern.trim();
    if pattern.len() > PATTERN_BYTES_MAX {
        return None;
    }
    build(pattern).ok()?;
    Some((name, build(&format!(r"\A(?:{pattern})\z")).ok()?))
}

/// The metrics that a client is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetricsRequest {
    /// Differs, as good as certainly, if anything else does.
    pub(crate) id: i32,
    pub(crate) interval: Duration,
    pub(crate) metrics: Vec<String>,
}

impl MetricsRequest {
    /// The union of the subscriptions that are for a client.
    pub(crate) fn of<'a>(
        subscriptions: impl Iterator<Item = &'a Subscription>,
        id: Uuid,
        client: &ClientIdentity,
    ) -> MetricsRequest {
        let (mut metrics, mut interval) = (BTreeSet::new(), INTERVAL_DEFAULT);
        for subscription in subscriptions.filter(|subscription| subscription.is_for(id, client)) {
            metrics.extend(subscription.metrics.iter().cloned());
            interval = interval.min(subscription.interval);
        }
        if metrics.contains(ALL) {
            metrics = BTreeSet::from([ALL.to_owned()]);
        }
        let metrics: Vec<String> = metrics.into_iter().collect();
        let text = format!("{}\0{}", metrics.join("\0"), interval.as_millis());
        let hash = crc32c::crc32c_append(crc32c::crc32c(text.as_bytes()), id.as_bytes());
        MetricsRequest { id: hash as i32, interval, metrics }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
        settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_id_is_written_as_kafka_writes_it() {
        // As Kafka's Uuid.toString() writes these.
        assert_eq!(kafka_id(Uuid::nil()), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(kafka_id(Uuid::from_u128(1)), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(kafka_id(Uuid::from_u128(u128::MAX)), "_____________________w");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        use SubscriptionError::{
            EmptyItem, InvalidInterval, InvalidPattern, NoNumber, UnknownName,
        };
        let refused = |name, value| Subscription::parse(&config(&[(name, value)])).err();
        assert_eq!(refused("no.such", "1"), Some(UnknownName("no.such".into())));
        assert_eq!(refused("interval.ms", "x"), Some(NoNumber("x".into())));
        assert_eq!(refused("metrics", "a,,b"), Some(EmptyItem("metrics")));
        assert_eq!(refused("metrics", " "), None);
        let long_pattern = format!("client_id={}", "a".repeat(PATTERN_BYTES_MAX + 1));
        assert_eq!(refused("match", &long_pattern), Some(InvalidPattern(long_pattern.clone())));
        for value in ["99", "3600001", "-1"] {
            assert_eq!(refused("interval.ms", value), Some(InvalidInterval(value.into())));
        }
        for value in ["client_id", "client_id=a=b", "name=a", "client_id=(", "client_id=a)("] {
            assert_eq!(refused("match", value), Some(InvalidPattern(value.into())), "{value}");
        }
    }

    #[test]
    fn a_client_is_asked_for_the_union_of_what_is_for_it() {
        let parse = |settings: &[(&str, &str)]| Subscription::parse(&config(settings)).unwrap();
        let subscriptions = [
            parse(&[("metrics", "a., b."), ("interval.ms", "1000")]),
            parse(&[("metrics", "c."), ("match", "client_id=app-.*,client_software_name=java")]),
            parse(&[("metrics", "d."), ("match", "client_source_port=12"), ("interval.ms", "100")]),
        ];
        let id = Uuid::from_u128(7);
        let client = |client_id: &str| ClientIdentity {
            client_id: client_id.to_owned(),
            software_name: "java".to_owned(),
            source_port: 123,
            ..ClientIdentity::default()
        };
        let requested = MetricsRequest::of(subscriptions.iter(), id, &client("app-1"));
        assert_eq!(requested.metrics, ["a.", "b.", "c."]);
        assert_eq!(requested.interval, Duration::from_secs(1));
        let other_request = MetricsRequest::of(subscriptions.iter(), id, &client("my-app-1"));
        assert_eq!(other_request.metrics, ["a.", "b."]);
        assert_ne!(other_request.id, requested.id);
        let everything = [parse(&[("metrics", "a.,*")])];
        assert_eq!(MetricsRequest::of(everything.iter(), id, &client("")).metrics, ["*"]);
        let nothing = MetricsRequest::of([].iter(), id, &client(""));
        assert_eq!((nothing.metrics.len(), nothing.interval), (0, INTERVAL_DEFAULT));
    }
}
