//! Spellings of moments, by people and in names.

use hlc::{Moment, MomentSelector, SysTime, parse_selector, split_moment_topic};
use jiff::tz::TimeZone;

use crate::texts;
use crate::world::NOW;

/// A time zone with a gap and a fold each year.
const ZONE: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(moment) = text.parse::<Moment>() {
        assert_eq!(moment.to_string().parse::<Moment>(), Ok(moment), "{text}");
    }
    if let Ok(selector) = text.parse::<MomentSelector>() {
        let again = selector.to_string().parse::<MomentSelector>();
        assert_eq!(again.as_ref(), Ok(&selector), "{text}");
    }
    let zone = TimeZone::posix(ZONE).unwrap();
    for now in [NOW, SysTime(0), SysTime(u64::MAX >> 20)] {
        if let Ok(selector) = parse_selector(text, now, &zone) {
            assert!(selector.to_string().parse::<MomentSelector>().is_ok(), "{text} {selector}");
        }
    }
    if let Some((topic, _)) = split_moment_topic(text) {
        assert!(text.starts_with(topic), "{text}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    texts(&[
        "s1795252948000",
        "sh000001a1b2c3d4e5",
        "u5@s6",
        "u-5",
        "s5..s6",
        "2026-11-21T09:00:00Z",
        "2026-11-21T09:00:00.123+01:00[Europe/Berlin]",
        "yesterday 14:00",
        "5 minutes ago",
        "2 weeks ago..1 hour ago",
        "monday",
        "9:30",
        "now",
        "t.__at.s5",
        "@1795252948",
    ])
}
