//! Moments as users type them. A relative time is resolved once, and the result is printed, so that
//! the user can repeat the request.

use std::sync::OnceLock;
use std::time::Duration;

use fileview::{PathError, ViewPath};
use hlc::{Moment, MomentError, MomentSelector, OsClock, SysTime, WallClock, parse_selector};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::output::UsageError;

/// A moment or a window from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MomentArg {
    pub(crate) ask: MomentSelector,
    /// Whether the same text would mean something else at another time or place.
    pub(crate) was_relative: bool,
}

impl MomentArg {
    /// Parses the value of `--at`.
    pub(crate) fn parse(text: &str) -> Result<MomentArg, MomentError> {
        let ask = parse_selector(text, now(), &TimeZone::system())?;
        Ok(MomentArg { ask, was_relative: text.parse::<MomentSelector>().is_err() })
    }

    /// As [`MomentArg::parse`], for commands that do not accept a window.
    pub(crate) fn parse_moment(text: &str) -> Result<MomentArg, String> {
        let at = MomentArg::parse(text).map_err(|error| error.to_string())?;
        match at.ask {
            MomentSelector::At(_) => Ok(at),
            MomentSelector::Window(..) => Err("give one moment here, not a window".to_owned()),
        }
    }

    /// As [`MomentArg::parse_moment`], for commands that accept system time only.
    pub(crate) fn parse_system_moment(text: &str) -> Result<MomentArg, String> {
        let at = MomentArg::parse_moment(text)?;
        match at.moment() {
            Moment::Sys(_) => Ok(at),
            Moment::User { .. } => Err("give a moment of system time (s…)".to_owned()),
        }
    }

    /// The moment of an [`MomentArg::parse_moment`].
    pub(crate) fn moment(&self) -> Moment {
        match self.ask {
            MomentSelector::At(moment) | MomentSelector::Window(_, moment) => moment,
        }
    }

    /// Prints what a relative time was resolved to.
    pub(crate) fn announce(&self) {
        if self.was_relative {
            eprintln!("at {}", describe_ask(&self.ask));
        }
    }
}

/// Parses a duration.
pub(crate) fn parse_length(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "give a number above 0 and its unit, such as 500ms, 30m, 12h, 7d or 4w";
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60 * 1000),
        ("h", 60 * 60 * 1000),
        ("d", DAY_MS),
        ("w", 7 * DAY_MS),
    ];
    let read = |(unit, in_ms): (&str, u64)| {
        let count: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        count.checked_mul(in_ms).filter(|ms| *ms > 0).map(Duration::from_millis)
    };
    units.into_iter().find_map(read).ok_or_else(|| EXPECTED.to_owned())
}

/// Parses how long a server may wait for a moment. The limit is a minute.
pub(crate) fn parse_patience(text: &str) -> Result<Duration, String> {
    let patience = parse_length(text)?;
    match patience <= Duration::from_secs(60) {
        true => Ok(patience),
        false => Err("the server waits for 60s at most".to_owned()),
    }
}

/// A path from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypedPath {
    pub(crate) topic: String,
    pub(crate) partition: Option<u32>,
    pub(crate) at: Option<MomentArg>,
}

impl TypedPath {
    /// Parses a path whose moment may be relative.
    pub(crate) fn parse(text: &str) -> Result<TypedPath, PathError> {
        let mut at = None;
        let path = ViewPath::parse_with(text, |text| {
            let read = MomentArg::parse(text)?;
            let ask = read.ask;
            at = Some(read);
            Ok(ask)
        })?;
        Ok(TypedPath { topic: path.topic, partition: path.partition, at })
    }

    /// Adds the moment of `--at` to the path.
    pub(crate) fn with_at(mut self, at: Option<MomentArg>) -> Result<TypedPath, UsageError> {
        match (&self.at, at) {
            (Some(_), Some(_)) => {
                return Err(UsageError(
                    "a moment is given twice: after @ and with --at".to_owned(),
                ));
            }
            (None, Some(at)) => self.at = Some(at),
            (_, None) => {}
        }
        Ok(self)
    }
}

/// The current time, read once per run, so that two relative times have the same origin.
pub(crate) fn now() -> SysTime {
    static NOW: OnceLock<SysTime> = OnceLock::new();
    *NOW.get_or_init(|| OsClock.read().wall)
}

/// The moment selector, and the same as dates.
pub(crate) fn describe_ask(ask: &MomentSelector) -> String {
    let dates = match ask {
        MomentSelector::At(moment) => date_of(moment),
        MomentSelector::Window(first, second) => format!("{}..{}", date_of(first), date_of(second)),
    };
    format!("{ask}, which is {dates}")
}

fn date_of(moment: &Moment) -> String {
    match moment {
        Moment::Sys(cut) => date(cut.bound().time()),
        Moment::User { before, .. } => date(SysTime(before.0.max(0) as u64)),
    }
}

/// A time as RFC 3339 in milliseconds, so that columns align; as a bare number of milliseconds if
/// it is outside the calendar.
pub(crate) fn date(time: SysTime) -> String {
    i64::try_from(time.0)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| time.0.to_string(), |date| format!("{date:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit_and_is_not_nothing() {
        for (text, seconds) in
            [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2 w", 1_209_600)]
        {
            assert_eq!(parse_length(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "7", "d", "0d", "-1d", "1.5h", "7x", "99999999999999999999w", "1y", "ä"] {
            assert!(parse_length(text).is_err(), "{text}");
        }
        assert!(parse_length(&format!("{}w", u64::MAX)).is_err());
        assert_eq!(parse_length("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_patience("60s"), Ok(Duration::from_secs(60)));
        assert!(parse_patience("61s").is_err() && parse_patience("5000").is_err());
    }

    #[test]
    fn only_what_depends_on_when_and_where_it_is_said_is_announced() {
        assert!(MomentArg::parse("5 minutes ago").unwrap().was_relative);
        assert!(MomentArg::parse("10 minutes ago..now").unwrap().was_relative);
        assert!(!MomentArg::parse("s5").unwrap().was_relative);
        assert!(!MomentArg::parse("s5..s6").unwrap().was_relative);
    }

    #[test]
    fn a_moment_is_described_as_itself_and_as_a_date() {
        let ask = "s1795251600000".parse().unwrap();
        assert_eq!(describe_ask(&ask), "s1795251600000, which is 2026-11-21T09:00:00.000Z");
        let ask = "u0..u1500".parse().unwrap();
        assert_eq!(
            describe_ask(&ask),
            "u0..u1500, which is 1970-01-01T00:00:00.000Z..1970-01-01T00:00:01.500Z"
        );
    }

    #[test]
    fn a_path_takes_a_relative_moment() {
        let path = TypedPath::parse("orders/3@5 minutes ago").unwrap();
        assert_eq!((path.topic.as_str(), path.partition), ("orders", Some(3)));
        assert!(path.at.unwrap().was_relative);
    }

    #[test]
    fn a_moment_given_twice_is_refused() {
        let path = TypedPath::parse("orders@s5").unwrap();
        assert!(path.clone().with_at(Some(MomentArg::parse("s6").unwrap())).is_err());
        assert!(path.with_at(None).is_ok());
    }
}
