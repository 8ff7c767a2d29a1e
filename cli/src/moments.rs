//! Moments as they are typed. A relative time is resolved once, and what it came to is said, so that
//! the same question can be put again.

use std::sync::OnceLock;

use fileview::{PathError, ViewPath};
use hlc::{Ask, Moment, MomentError, OsClock, SysTime, WallClock, parse_ask};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::output::UsageError;

/// A moment or a window, as the command line said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) ask: Ask,
    /// Whether the text would come to something else at another time or place.
    pub(crate) was_relative: bool,
}

impl At {
    /// Reads what follows `--at`.
    pub(crate) fn parse(text: &str) -> Result<At, MomentError> {
        let ask = parse_ask(text, now(), &TimeZone::system())?;
        Ok(At { ask, was_relative: text.parse::<Ask>().is_err() })
    }

    /// As [`At::parse`], for commands that a window makes no sense to.
    pub(crate) fn parse_moment(text: &str) -> Result<At, String> {
        let at = At::parse(text).map_err(|error| error.to_string())?;
        match at.ask {
            Ask::At(_) => Ok(at),
            Ask::Window(..) => Err("give one moment here, not a window".to_owned()),
        }
    }

    /// The moment of an [`At::parse_moment`].
    pub(crate) fn moment(&self) -> Moment {
        match self.ask {
            Ask::At(moment) | Ask::Window(_, moment) => moment,
        }
    }

    /// Says what a relative time came to.
    pub(crate) fn announce(&self) {
        if self.was_relative {
            eprintln!("at {}", described(&self.ask));
        }
    }
}

/// A path as the command line said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypedPath {
    pub(crate) topic: String,
    pub(crate) partition: Option<u32>,
    pub(crate) at: Option<At>,
}

impl TypedPath {
    /// Reads a path whose moment may be relative.
    pub(crate) fn parse(text: &str) -> Result<TypedPath, PathError> {
        let mut at = None;
        let path = ViewPath::parse_with(text, |text| {
            let read = At::parse(text)?;
            let ask = read.ask;
            at = Some(read);
            Ok(ask)
        })?;
        Ok(TypedPath { topic: path.topic, partition: path.partition, at })
    }

    /// The path with a moment given besides, by `--at`.
    pub(crate) fn with_at(mut self, at: Option<At>) -> Result<TypedPath, UsageError> {
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

/// One now for the whole run, so that two relative times have the same origin.
pub(crate) fn now() -> SysTime {
    static NOW: OnceLock<SysTime> = OnceLock::new();
    *NOW.get_or_init(|| OsClock.read().wall)
}

/// The ask, and the same as dates.
pub(crate) fn described(ask: &Ask) -> String {
    let dates = match ask {
        Ask::At(moment) => date_of(moment),
        Ask::Window(first, second) => format!("{}..{}", date_of(first), date_of(second)),
    };
    format!("{ask}, which is {dates}")
}

fn date_of(moment: &Moment) -> String {
    match moment {
        Moment::Sys(cut) => date(cut.bound().time()),
        Moment::User { before, .. } => date(SysTime(before.0.max(0) as u64)),
    }
}

/// A time as RFC 3339, or as milliseconds if no calendar reaches that far.
pub(crate) fn date(time: SysTime) -> String {
    i64::try_from(time.0)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| time.0.to_string(), |date| date.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_depends_on_when_and_where_it_is_said_is_announced() {
        assert!(At::parse("5 minutes ago").unwrap().was_relative);
        assert!(At::parse("10 minutes ago..now").unwrap().was_relative);
        assert!(!At::parse("s5").unwrap().was_relative);
        assert!(!At::parse("s5..s6").unwrap().was_relative);
    }

    #[test]
    fn a_moment_is_described_as_itself_and_as_a_date() {
        let ask = "s1795251600000".parse().unwrap();
        assert_eq!(described(&ask), "s1795251600000, which is 2026-11-21T09:00:00Z");
        let ask = "u0..u1500".parse().unwrap();
        assert_eq!(
            described(&ask),
            "u0..u1500, which is 1970-01-01T00:00:00Z..1970-01-01T00:00:01.5Z"
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
        assert!(path.clone().with_at(Some(At::parse("s6").unwrap())).is_err());
        assert!(path.with_at(None).is_ok());
    }
}
