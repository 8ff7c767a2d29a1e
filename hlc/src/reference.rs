//! Moments that have another name: a server knows which moments they are.
//!
//! ```text
//! reference := 'pin:' name | name       a pin; a bare name after '@' alone
//!            | topic '/' partition ':' offset     when that record was accepted
//!            | 'zxid:' number           after that transaction of znodes
//!            | 'start' | 'now'
//! ```

use std::fmt;
use std::str::FromStr;

const PIN: &str = "pin:";
/// The same in the characters of a topic's name that every client accepts.
const TOPIC_PIN: &str = "pin.";
const ZXID: &str = "zxid:";

/// A name of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MomentReference {
    /// The moment of a pin.
    Pin(String),
    /// The moment at which a record was accepted: it has everything that was accepted before.
    Record {
        /// The topic.
        topic: String,
        /// Its partition.
        partition: u32,
        /// The offset of the record.
        offset: u64,
    },
    /// After a transaction of znodes: with it, and what was accepted before it.
    Zxid(i64),
    /// Before everything that can still be read.
    Start,
    /// The moment of the request, with all that was acknowledged before it.
    Now,
}

/// A text that is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name of a moment: give pin:NAME, TOPIC/PARTITION:OFFSET, zxid:NUMBER, start or now"
)]
pub struct ReferenceError(pub String);

impl FromStr for MomentReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<MomentReference, ReferenceError> {
        let parsed = match text {
            "start" => Some(MomentReference::Start),
            "now" => Some(MomentReference::Now),
            _ => pin(text).or_else(|| zxid(text)).or_else(|| record(text)),
        };
        parsed.ok_or_else(|| ReferenceError(text.to_owned()))
    }
}

fn pin(text: &str) -> Option<MomentReference> {
    let name = text.strip_prefix(PIN).or_else(|| text.strip_prefix(TOPIC_PIN))?;
    // Two dots separate the ends of a window.
    let is_name = !name.is_empty() && !name.contains("..");
    is_name.then(|| MomentReference::Pin(name.to_owned()))
}

fn zxid(text: &str) -> Option<MomentReference> {
    let number = text.strip_prefix(ZXID)?;
    let parsed = match number.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => number.parse().ok(),
    };
    parsed.filter(|zxid| *zxid >= 0).map(MomentReference::Zxid)
}

fn record(text: &str) -> Option<MomentReference> {
    let (topic, place) = text.split_once('/')?;
    let (partition, offset) = place.split_once(':')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if topic.is_empty() || !is_number(partition) || !is_number(offset) {
        return None;
    }
    let (partition, offset) = (partition.parse().ok()?, offset.parse().ok()?);
    Some(MomentReference::Record { topic: topic.to_owned(), partition, offset })
}

impl fmt::Display for MomentReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MomentReference::Pin(name) => write!(f, "{PIN}{name}"),
            MomentReference::Record { topic, partition, offset } => {
                write!(f, "{topic}/{partition}:{offset}")
            }
            MomentReference::Zxid(zxid) => write!(f, "{ZXID}{zxid:#x}"),
            MomentReference::Start => f.write_str("start"),
            MomentReference::Now => f.write_str("now"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_prints_as_it_is_parsed() {
        for text in ["pin:audit", "orders/3:17", "zxid:0x3b", "start", "now", "pin:a:b", "a.b/0:0"]
        {
            assert_eq!(text.parse::<MomentReference>().unwrap().to_string(), text);
        }
        assert_eq!("zxid:59".parse(), Ok(MomentReference::Zxid(59)));
        assert_eq!("pin.audit".parse(), Ok(MomentReference::Pin("audit".to_owned())));
    }

    #[test]
    fn what_names_no_moment_is_refused() {
        for text in [
            "",
            "pin:",
            "zxid:",
            "zxid:-1",
            "zxid:0xg",
            "orders/3",
            "orders/:1",
            "/0:1",
            "o/0:+1",
            "s5",
            "Now",
        ] {
            assert!(text.parse::<MomentReference>().is_err(), "{text}");
        }
    }
}
