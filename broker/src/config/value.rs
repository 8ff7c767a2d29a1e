//! Parsing of a setting's value from text: integers, sizes and times with units, addresses.
//!
//! Parsing also normalizes the text to the form that Kafka's tools expect (`64MiB` becomes
//! `67108864`). So DescribeConfigs shows the values that are in force.

use std::fmt;
use std::time::Duration;

use compat_kafka::AdvertisedAddress;

/// The form that would have been right.
pub(super) type ExpectedForm = String;

/// The text of a value that is being parsed.
#[derive(Debug)]
pub(super) struct SettingValue {
    text: String,
    /// True if the name of the setting contains its unit, as Kafka's names do (`…ms`, `…bytes`).
    named_unit: bool,
}

impl SettingValue {
    pub(super) fn new(text: &str, named_unit: bool) -> SettingValue {
        SettingValue { text: text.trim().to_owned(), named_unit }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// An integer.
    pub(super) fn whole(&mut self, min: i64, max: i64) -> Result<i64, ExpectedForm> {
        let number = self.text.parse().ok().filter(|number| (min..=max).contains(number));
        let number = number.ok_or_else(|| format!("give a whole number from {min} to {max}"))?;
        self.text = number.to_string();
        Ok(number)
    }

    /// A size in bytes. A bare number counts bytes if the setting's name says so.
    pub(super) fn bytes(&mut self, min: i64, max: i64) -> Result<i64, ExpectedForm> {
        let bytes = self.scaled(BYTE_UNITS).filter(|bytes| (min..=max).contains(bytes));
        let bytes = bytes.ok_or_else(|| {
            format!(
                "give a size from {} to {}{}",
                SizeWithUnit(min),
                SizeWithUnit(max),
                self.example(", with its unit, such as 64MiB")
            )
        })?;
        self.text = bytes.to_string();
        Ok(bytes)
    }

    /// A duration. A bare number counts milliseconds if the setting's name says so.
    pub(super) fn time(&mut self, min: Duration, max: Duration) -> Result<Duration, ExpectedForm> {
        let range = min.as_millis() as i64..=max.as_millis() as i64;
        let ms = self.scaled(TIME_UNITS).filter(|ms| range.contains(ms));
        let ms = ms.ok_or_else(|| {
            format!(
                "give a time from {min:?} to {max:?}{}",
                self.example(", with its unit, such as 5s or 500ms")
            )
        })?;
        self.text = ms.to_string();
        Ok(Duration::from_millis(ms as u64))
    }

    fn example(&self, text: &'static str) -> &'static str {
        if self.named_unit { "" } else { text }
    }

    /// A value of a type of Kafka's, by its name, of which nothing else is asked.
    pub(super) fn of_type(&mut self, type_name: &str) -> Result<(), ExpectedForm> {
        match type_name {
            "BOOLEAN" => self.boolean().map(drop),
            "SHORT" => self.whole(i16::MIN.into(), i16::MAX.into()).map(drop),
            "INT" => self.whole(i32::MIN.into(), i32::MAX.into()).map(drop),
            "LONG" => self.whole(i64::MIN, i64::MAX).map(drop),
            "DOUBLE" if self.text.parse::<f64>().is_err() => Err("give a number".to_owned()),
            _ => Ok(()),
        }
    }

    /// true or false.
    pub(super) fn boolean(&mut self) -> Result<bool, ExpectedForm> {
        match self.text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("give true or false".to_owned()),
        }
    }

    /// The choice of one of several words.
    pub(super) fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, ExpectedForm> {
        let choice = choices.iter().find(|(word, _)| *word == self.text);
        choice.map(|(_, choice)| *choice).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            format!("give one of: {}", words.join(", "))
        })
    }

    /// An address to listen on.
    pub(super) fn listen(&mut self) -> Result<ListenAddress, ExpectedForm> {
        if self.text == "off" {
            return Ok(ListenAddress::Off);
        }
        let address = address(&self.text);
        address.map(ListenAddress::At).ok_or_else(|| {
            "give HOST:PORT, such as 127.0.0.1:9092 (port 0 takes any free one), or off".to_owned()
        })
    }

    /// Host names, separated by commas; `*` for any.
    pub(super) fn host_names(&mut self) -> Result<Vec<String>, ExpectedForm> {
        let names: Vec<String> = list(&self.text).map(str::to_owned).collect();
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = |name: &String| name == "*" || name.bytes().all(is_host);
        if names.iter().all(is_name) {
            return Ok(names);
        }
        Err("give names of hosts without ports, with commas between, such as broker-1.example; or *"
            .to_owned())
    }

    /// The value of a topic setting. The engine checks it, and this function only converts the
    /// unit. `scale` is how many of the topic's units are in one unit of this setting.
    pub(super) fn for_topic(&mut self, key: &str, scale: i64) -> String {
        let units: &[_] = if key.ends_with("bytes") { BYTE_UNITS } else { TIME_UNITS };
        let is_quantity = key.ends_with("bytes") || key.ends_with("ms");
        match self.text.parse::<i64>() {
            // -1 means no limit, in every unit.
            Ok(number) if number >= 0 => number.saturating_mul(scale).to_string(),
            Err(_) if is_quantity => match self.scaled(units) {
                Some(number) => {
                    self.text = (number / scale).to_string();
                    number.to_string()
                }
                None => self.text.clone(),
            },
            _ => self.text.clone(),
        }
    }

    fn scaled(&self, units: &[(&str, i64)]) -> Option<i64> {
        let digits = self.text.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            // Kafka writes "no limit" as -1.
            return if self.named_unit { self.text.parse().ok() } else { None };
        }
        let (number, unit) = self.text.split_at(digits);
        let number: i64 = number.parse().ok()?;
        let unit = unit.trim();
        if unit.is_empty() {
            return (self.named_unit || number == 0).then_some(number);
        }
        let (_, scale) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
        number.checked_mul(*scale)
    }
}

/// The entries of a list with commas between them, without empty ones.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// The text of a setting that is off while it is empty.
pub(super) fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

const BYTE_UNITS: &[(&str, i64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIME_UNITS: &[(&str, i64)] = &[
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("days", 86_400_000),
];

/// Formats a size with the largest unit that divides it.
struct SizeWithUnit(i64);

impl fmt::Display for SizeWithUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 1_i64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.iter().find(|(_, scale)| self.0 > 0 && self.0 % scale == 0) {
            Some((name, scale)) => write!(f, "{}{name}", self.0 / scale),
            None => write!(f, "{}", self.0),
        }
    }
}

/// An address to listen on, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// Do not listen.
    Off,
    /// Listen on this address. Port 0 is any free one.
    At(AdvertisedAddress),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Off => f.write_str("off"),
            ListenAddress::At(AdvertisedAddress { host, port }) if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            ListenAddress::At(AdvertisedAddress { host, port }) => write!(f, "{host}:{port}"),
        }
    }
}

/// Parses HOST:PORT. An IPv6 address stands in brackets.
pub(super) fn address(text: &str) -> Option<AdvertisedAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/');
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let port = port.parse().ok()?;
    is_host.then(|| AdvertisedAddress { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str) -> SettingValue {
        SettingValue::new(text, false)
    }

    #[test]
    fn sizes_and_times_carry_units_and_come_out_as_plain_numbers() {
        let mut size = own("64MiB");
        assert_eq!(size.bytes(0, i64::MAX), Ok(64 << 20));
        assert_eq!(size.text(), "67108864");
        assert_eq!(own("5 kB").bytes(0, i64::MAX), Ok(5000));
        assert_eq!(own("0").bytes(0, 5), Ok(0));
        let range = (Duration::ZERO, Duration::from_secs(60));
        assert_eq!(own("5s").time(range.0, range.1), Ok(Duration::from_secs(5)));
        assert_eq!(own("500ms").time(range.0, range.1), Ok(Duration::from_millis(500)));
        for text in ["64", "MiB", "-1MiB", "1.5MiB", "64 parsecs", "99999999999TiB", ""] {
            assert!(own(text).bytes(0, i64::MAX).is_err(), "{text}");
        }
    }

    #[test]
    fn a_unit_that_is_in_the_name_need_not_be_in_the_value() {
        assert_eq!(SettingValue::new("64", true).bytes(0, 100), Ok(64));
        assert_eq!(SettingValue::new("-1", true).bytes(-1, 100), Ok(-1));
        assert!(SettingValue::new("-1", true).bytes(0, 100).is_err());
        let day = Duration::from_secs(86_400);
        assert_eq!(SettingValue::new("10m", true).time(Duration::ZERO, day), Ok(day / 144));
    }

    #[test]
    fn what_would_be_right_is_said_in_the_setting_s_own_terms() {
        let expected = own("64").bytes(1 << 20, 1 << 30).unwrap_err();
        assert_eq!(expected, "give a size from 1MiB to 1GiB, with its unit, such as 64MiB");
        let expected = SettingValue::new("x", true).bytes(0, 1 << 31).unwrap_err();
        assert_eq!(expected, "give a size from 0 to 2GiB");
        assert_eq!(own("0").whole(1, 9).unwrap_err(), "give a whole number from 1 to 9");
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let expected = |host: &str, port| Some(AdvertisedAddress { host: host.to_owned(), port });
        assert_eq!(address("127.0.0.1:0"), expected("127.0.0.1", 0));
        assert_eq!(address("broker-1.example:9092"), expected("broker-1.example", 9092));
        assert_eq!(address("[::1]:9092"), expected("::1", 9092));
        for text in ["9092", ":9092", "::1:9092", "host:", "host:65536", "host:+1", "http://h:1"] {
            assert_eq!(address(text), None, "{text}");
        }
        assert_eq!(own("off").listen(), Ok(ListenAddress::Off));
        assert_eq!(own("[::1]:1").listen().unwrap().to_string(), "[::1]:1");
        assert!(own("on").listen().is_err());
    }

    #[test]
    fn names_of_hosts_have_no_ports() {
        let names = own("a.example, b").host_names();
        assert_eq!(names, Ok(vec!["a.example".to_owned(), "b".to_owned()]));
        assert_eq!(own("").host_names(), Ok(Vec::new()));
        assert_eq!(own("*").host_names(), Ok(vec!["*".to_owned()]));
        for text in ["a:80", "http://a", "a b", "*.example"] {
            assert!(own(text).host_names().is_err(), "{text}");
        }
    }

    #[test]
    fn a_topic_s_value_is_in_the_topic_s_unit() {
        let hours = 3_600_000;
        assert_eq!(SettingValue::new("168", true).for_topic("retention.ms", hours), "604800000");
        assert_eq!(SettingValue::new("-1", true).for_topic("retention.ms", hours), "-1");
        let mut week = SettingValue::new("7d", true);
        assert_eq!(week.for_topic("retention.ms", hours), "604800000");
        assert_eq!(week.text(), "168");
        assert_eq!(SettingValue::new("compact", true).for_topic("cleanup.policy", 1), "compact");
        assert_eq!(SettingValue::new("junk", true).for_topic("retention.ms", 1), "junk");
    }
}
