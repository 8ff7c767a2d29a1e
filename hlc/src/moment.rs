//! The spelling of a moment, wherever one is: in a topic's name, a path, a flag.
//!
//! ```text
//! moment := axis time [ '@' 's' time ]       the second part only after axis u: bitemporal
//! axis   := 's' | 'u'
//! time   := milliseconds since 1970 | RFC 3339 | basic ISO (20261121T090000.123Z) | 'h' hex
//! window := moment '..' moment               what happened in [first, second)
//! ```
//! In a topic's name a moment follows `@`, or the mark `.__at.` where a client accepts no `@`;
//! after the mark, `.as.` stands for the second `@`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::{Cut, Hlc, SysTime, UserTime};

/// The text between a topic's name and a moment, in characters that every client accepts.
pub const TOPIC_MARK: &str = ".__at.";
const KNOWN_MARK: &str = ".as.";

/// A moment on one of the two axes of time. Both bounds are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Everything that the service accepted before it. Causally consistent across partitions.
    Sys(Cut),
    /// Every record whose user time is before it. Accurate, not causally closed.
    User {
        /// The exclusive bound on user time.
        before: UserTime,
        /// The system time as of which records are known; if `None`, the frontier of the first
        /// request.
        known: Option<Cut>,
    },
}

/// The selection of a reader: everything before a moment, or what happened between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MomentSelector {
    /// Everything before it.
    At(Moment),
    /// The events in `[first, second)`.
    Window(Moment, Moment),
}

/// The reason a text is not a moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MomentError {
    /// The axis is neither `s` nor `u`.
    #[error(
        "{0:?} is not a moment: one begins with s (system time) or u (user time), as in s1795252948259"
    )]
    Axis(String),
    /// Not a time.
    #[error(
        "{0:?} is not a time: give milliseconds since 1970, RFC 3339, 20261121T090000.123Z, or h and a stamp's 16 hex digits"
    )]
    Time(String),
    /// Not a time, where the text may also be relative.
    #[error(
        "{0:?} is not a time: give milliseconds since 1970, RFC 3339, or a local date or time of day, or say it as in \"5 minutes ago\", \"an hour ago\", \"-90s\", \"yesterday 14:00\", \"monday\" or \"now\"; a pin is pin:NAME"
    )]
    HumanTime(String),
    /// A number in a unit other than milliseconds.
    #[error(
        "times are milliseconds since 1970, and {time} looks like {unit}: did you mean {likely}?"
    )]
    Unit {
        /// The given number.
        time: String,
        /// The unit that it seems to have.
        unit: &'static str,
        /// The same time in milliseconds.
        likely: u64,
    },
    /// A stamp where only a time is valid.
    #[error("{0:?} is a stamp, which belongs to system time, and user time was requested")]
    StampOfUserTime(String),
    /// `s…@s…`
    #[error("{0:?} has a second part, which only a moment of user time takes, as in u…@s…")]
    KnownAtOfSysTime(String),
    /// The two ends are on different axes.
    #[error("both ends of a window are of one time, unlike those of {0:?}: give s…..s… or u…..u…")]
    MixedWindow(String),
    /// The window is empty.
    #[error("the window is empty: the end of {0} does not come after its start")]
    EmptyWindow(String),
}

impl Moment {
    /// The system time as of which user times are known.
    fn known(self) -> Option<Cut> {
        match self {
            Moment::Sys(_) => None,
            Moment::User { known, .. } => known,
        }
    }

    /// The same moment with its user time known as of `cut`.
    fn known_as_of(self, cut: Cut) -> Moment {
        match self {
            Moment::Sys(_) => self,
            Moment::User { before, .. } => Moment::User { before, known: Some(cut) },
        }
    }
}

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Moment, MomentError> {
        let (first, known) = match text.split_once('@') {
            Some((first, known)) => (first, Some(known)),
            None => (text, None),
        };
        if let Some(time) = first.strip_prefix('s') {
            if known.is_some() {
                return Err(MomentError::KnownAtOfSysTime(text.to_owned()));
            }
            return Ok(Moment::Sys(cut(time)?));
        }
        let Some(time) = first.strip_prefix('u') else {
            return Err(MomentError::Axis(text.to_owned()));
        };
        if time.starts_with('h') {
            return Err(MomentError::StampOfUserTime(time.to_owned()));
        }
        let before = UserTime(time_ms(time)? as i64);
        let known = known
            .map(|known| {
                let time =
                    known.strip_prefix('s').ok_or_else(|| MomentError::Axis(known.to_owned()))?;
                cut(time)
            })
            .transpose()?;
        Ok(Moment::User { before, known })
    }
}

fn cut(time: &str) -> Result<Cut, MomentError> {
    match time.strip_prefix('h') {
        Some(hex) if hex.len() == 16 => u64::from_str_radix(hex, 16)
            .map(|bits| Cut::below(Hlc::from_bits(bits)))
            .map_err(|_| MomentError::Time(time.to_owned())),
        Some(_) => Err(MomentError::Time(time.to_owned())),
        None => Ok(Cut::before(SysTime(time_ms(time)?))),
    }
}

/// Numbers that are a present-day time if they count seconds: 2001 to 5138. As milliseconds, such a
/// number is a time of 1970 to 1973, which is spelled as a date.
const LIKE_SECONDS: Range<u64> = 1_000_000_000..100_000_000_000;

/// The error for a number that is far more likely to be a time in another unit.
fn wrong_unit_error(time: &str) -> Option<MomentError> {
    let number: u64 = time.parse().ok()?;
    let error = |unit, likely| Some(MomentError::Unit { time: time.to_owned(), unit, likely });
    let times = |scale: u64| LIKE_SECONDS.start * scale..LIKE_SECONDS.end.saturating_mul(scale);
    if LIKE_SECONDS.contains(&number) {
        error("seconds", number * 1000)
    } else if times(1_000_000).contains(&number) {
        error("microseconds", number / 1000)
    } else if times(1_000_000_000).contains(&number) {
        error("nanoseconds", number / 1_000_000)
    } else {
        None
    }
}

/// Milliseconds since 1970, limited to what a stamp can hold.
pub(crate) fn time_ms(text: &str) -> Result<u64, MomentError> {
    let bad = || MomentError::Time(text.to_owned());
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let ms = if digits {
        if let Some(error) = wrong_unit_error(text) {
            return Err(error);
        }
        text.parse().map_err(|_| bad())?
    } else {
        let zoned = text.ends_with(['Z', 'z']) || text.contains('+') || {
            // An offset such as -05:00 after the time of day.
            text.rsplit_once(['T', 't']).is_some_and(|(_, time)| time.contains('-'))
        };
        if !zoned {
            return Err(bad());
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| bad())?;
        // A bound between two milliseconds admits the whole of the first one.
        let ns = time.as_nanosecond();
        u64::try_from(ns.div_euclid(1_000_000) + i128::from(ns.rem_euclid(1_000_000) != 0))
            .map_err(|_| bad())?
    };
    if ms > SysTime::MAX.0 { Err(bad()) } else { Ok(ms) }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Sys(cut) => write_cut(f, *cut),
            Moment::User { before, known } => {
                f.write_str("u")?;
                write_ms(f, before.0)?;
                match known {
                    Some(cut) => {
                        f.write_str("@")?;
                        write_cut(f, *cut)
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

fn write_cut(f: &mut fmt::Formatter<'_>, cut: Cut) -> fmt::Result {
    let bound = cut.bound();
    if bound.logical() == 0 {
        f.write_str("s")?;
        write_ms(f, bound.time().0 as i64)
    } else {
        write!(f, "{bound}")
    }
}

/// Writes a time as a number; where that would be read as seconds, as a date without signs that a
/// topic's name cannot have.
fn write_ms(f: &mut fmt::Formatter<'_>, ms: i64) -> fmt::Result {
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(time) if u64::try_from(ms).is_ok_and(|ms| LIKE_SECONDS.contains(&ms)) => {
            write!(f, "{}", time.strftime("%Y%m%dT%H%M%S.%3fZ"))
        }
        _ => write!(f, "{ms}"),
    }
}

impl FromStr for MomentSelector {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<MomentSelector, MomentError> {
        let Some((first, second)) = text.split_once("..") else {
            return Ok(MomentSelector::At(text.parse()?));
        };
        MomentSelector::window(first.parse()?, second.parse()?)
    }
}

impl MomentSelector {
    /// The events in `[first, second)`.
    ///
    /// # Errors
    /// The ends are on different axes, or the window is empty.
    pub fn window(first: Moment, second: Moment) -> Result<MomentSelector, MomentError> {
        let selector = MomentSelector::Window(first, second);
        let empty = match (first, second) {
            (Moment::Sys(first), Moment::Sys(second)) => first >= second,
            (Moment::User { before: first, .. }, Moment::User { before: second, .. }) => {
                first >= second
            }
            _ => return Err(MomentError::MixedWindow(selector.to_string())),
        };
        if empty { Err(MomentError::EmptyWindow(selector.to_string())) } else { Ok(selector) }
    }

    /// The system time as of which user times are known: of a window, the later of its ends'.
    pub fn known(&self) -> Option<Cut> {
        match self {
            MomentSelector::At(moment) => moment.known(),
            // The two ends name two views: the later one has everything that the earlier one has.
            MomentSelector::Window(first, second) => first.known().max(second.known()),
        }
    }

    /// The same moment with its user times known as of `cut`.
    #[must_use]
    pub fn known_as_of(self, cut: Cut) -> MomentSelector {
        match self {
            MomentSelector::At(moment) => MomentSelector::At(moment.known_as_of(cut)),
            MomentSelector::Window(first, second) => {
                MomentSelector::Window(first.known_as_of(cut), second.known_as_of(cut))
            }
        }
    }
}

impl fmt::Display for MomentSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MomentSelector::At(moment) => moment.fmt(f),
            MomentSelector::Window(first, second) => write!(f, "{first}..{second}"),
        }
    }
}

/// Splits a topic's name: `orders@s1795252948259` and `orders.__at.s1795252948259` mean the topic
/// `orders` as of a moment. `None` for a name with no moment in it.
///
/// # Errors
/// The name has the mark of a moment, and the text after it is not a moment.
pub fn split_moment_topic(name: &str) -> Option<(&str, Result<MomentSelector, MomentError>)> {
    let (topic, selector) = split_topic_mark(name)?;
    Some((topic, selector.replace(KNOWN_MARK, "@").parse()))
}

/// Splits a topic's name as [`split_moment_topic`] does, and leaves the moment as it is spelled.
pub fn split_topic_mark(name: &str) -> Option<(&str, &str)> {
    if let Some(split) = name.split_once('@') {
        return Some(split);
    }
    let at = name.rfind(TOPIC_MARK)?;
    Some((&name[..at], &name[at + TOPIC_MARK.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sys(ms: u64) -> Moment {
        Moment::Sys(Cut::before(SysTime(ms)))
    }

    fn user(ms: i64, known: Option<u64>) -> Moment {
        Moment::User { before: UserTime(ms), known: known.map(|ms| Cut::before(SysTime(ms))) }
    }

    #[test]
    fn every_spelling_of_one_moment_is_that_moment() {
        for text in [
            "s1795251600123",
            "s2026-11-21T09:00:00.123Z",
            "s2026-11-21T10:00:00.123+01:00",
            "s20261121T090000.123Z",
        ] {
            assert_eq!(text.parse::<Moment>().unwrap(), sys(1_795_251_600_123), "{text}");
        }
        let full = Hlc::new(SysTime(1_795_251_600_123), 5);
        let text = format!("sh{:016x}", full.bits());
        assert_eq!(text.parse::<Moment>().unwrap(), Moment::Sys(Cut::below(full)));
    }

    #[test]
    fn user_time_takes_a_second_part_and_system_time_does_not() {
        assert_eq!("u100".parse::<Moment>().unwrap(), user(100, None));
        assert_eq!("u100@s200".parse::<Moment>().unwrap(), user(100, Some(200)));
        assert!(matches!("s100@s200".parse::<Moment>(), Err(MomentError::KnownAtOfSysTime(_))));
        assert!(matches!("u100@u200".parse::<Moment>(), Err(MomentError::Axis(_))));
        assert!(matches!(
            "uh0000000000000000".parse::<Moment>(),
            Err(MomentError::StampOfUserTime(_))
        ));
    }

    #[test]
    fn a_moment_prints_as_it_is_parsed() {
        for moment in [
            sys(7),
            user(7, None),
            user(7, Some(9)),
            Moment::Sys(Cut::below(Hlc::from_bits(70_001))),
        ] {
            assert_eq!(moment.to_string().parse::<Moment>().unwrap(), moment);
        }
    }

    #[test]
    fn what_is_no_moment_is_refused_with_what_would_be_one() {
        for text in [
            "",
            "100",
            "x100",
            "s",
            "s-5",
            "sfive",
            "s2026-11-21",
            "s2026-11-21T09:00:00",
            "sh12",
            "shzzzzzzzzzzzzzzzz",
            "s999999999999999",
            "s99999999999999999999999",
            "s+5",
            "u",
            "s5 ",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text:?}");
        }
        let error = "s5 minutes ago".parse::<Moment>().unwrap_err().to_string();
        assert!(error.contains("milliseconds since 1970"), "{error}");
    }

    #[test]
    fn a_number_in_another_unit_is_refused_with_what_it_is_likely_to_mean() {
        for (text, unit, likely) in [
            ("s1795251600", "seconds", 1_795_251_600_000),
            ("u1795251600", "seconds", 1_795_251_600_000),
            ("s1000000000", "seconds", 1_000_000_000_000),
            ("s99999999999", "seconds", 99_999_999_999_000),
            ("s1795251600123456", "microseconds", 1_795_251_600_123),
            ("s1795251600123456789", "nanoseconds", 1_795_251_600_123),
        ] {
            let error = text.parse::<Moment>().unwrap_err();
            let time = text[1..].to_owned();
            assert_eq!(error, MomentError::Unit { time, unit, likely }, "{text}");
            assert!(error.to_string().contains(&likely.to_string()), "{error}");
        }
        for ms in [0, 5, 999_999_999, 100_000_000_000, 1_795_251_600_123] {
            assert_eq!(format!("s{ms}").parse::<Moment>().unwrap(), sys(ms));
        }
        // The time of such a number has another spelling, which can be parsed back.
        for moment in [sys(1_795_251_600), user(1_000_000_000, Some(99_999_999_999))] {
            assert_eq!(moment.to_string().parse::<Moment>().unwrap(), moment);
        }
        assert_eq!(sys(1_795_251_600).to_string(), "s19700121T184051.600Z");
    }

    #[test]
    fn a_bound_between_two_milliseconds_admits_the_whole_of_the_first() {
        assert_eq!("s1970-01-01T00:00:00.0051Z".parse::<Moment>().unwrap(), sys(6));
    }

    #[test]
    fn a_window_lies_on_one_axis_and_is_not_empty() {
        assert_eq!(
            "s1..s2".parse::<MomentSelector>().unwrap(),
            MomentSelector::Window(sys(1), sys(2))
        );
        assert!(matches!("s2..s2".parse::<MomentSelector>(), Err(MomentError::EmptyWindow(_))));
        assert!(matches!("s3..s2".parse::<MomentSelector>(), Err(MomentError::EmptyWindow(_))));
        assert!(matches!("s1..u2".parse::<MomentSelector>(), Err(MomentError::MixedWindow(_))));
        assert_eq!(
            "u1..u2".parse::<MomentSelector>().unwrap(),
            MomentSelector::Window(user(1, None), user(2, None))
        );
        assert!(matches!("u2..u2".parse::<MomentSelector>(), Err(MomentError::EmptyWindow(_))));
        assert!(matches!("u3..u2".parse::<MomentSelector>(), Err(MomentError::EmptyWindow(_))));
    }

    #[test]
    fn a_moment_of_user_time_is_pinned_to_what_was_known() {
        let pinned = |text: &str| {
            let selector: MomentSelector = text.parse().unwrap();
            selector.known_as_of(Cut::before(SysTime(9))).to_string()
        };
        assert_eq!(pinned("u5"), "u5@s9");
        assert_eq!(pinned("u5..u6"), "u5@s9..u6@s9");
        // It replaces what the moment says itself.
        assert_eq!(pinned("u5@s7"), "u5@s9");
        assert_eq!(pinned("u5@s10..u6@s8"), "u5@s9..u6@s9");
        for text in ["s5", "s5..s6"] {
            assert_eq!(pinned(text), text);
        }
    }

    #[test]
    fn of_two_views_of_a_window_the_later_is_read() {
        let known_ms = |text: &str| {
            let selector: MomentSelector = text.parse().unwrap();
            selector.known().map(|cut| cut.bound().time().0)
        };
        assert_eq!(known_ms("u5"), None);
        assert_eq!(known_ms("u5@s7"), Some(7));
        assert_eq!(known_ms("u5@s7..u6@s9"), Some(9));
        assert_eq!(known_ms("u5@s9..u6@s7"), Some(9));
        assert_eq!(known_ms("u5@s7..u6"), Some(7));
        assert_eq!(known_ms("u5..u6@s7"), Some(7));
        assert_eq!(known_ms("u5..u6"), None);
        assert_eq!(known_ms("s5"), None);
        assert_eq!(known_ms("s5..s6"), None);
    }

    #[test]
    fn the_last_millisecond_that_there_is_is_a_time() {
        let last = SysTime::MAX.0;
        assert_eq!(format!("s{last}").parse::<Moment>().unwrap(), sys(last));
        assert!(format!("s{}", last + 1).parse::<Moment>().is_err());
    }

    #[test]
    fn a_topic_name_carries_a_moment_behind_either_mark() {
        let split =
            |name| split_moment_topic(name).map(|(topic, selector)| (topic, selector.unwrap()));
        assert_eq!(split("orders@s5"), Some(("orders", MomentSelector::At(sys(5)))));
        assert_eq!(split("a.b.__at.s5..s6"), Some(("a.b", MomentSelector::Window(sys(5), sys(6)))));
        assert_eq!(
            split("a.__at.s20261121T090000.123Z"),
            Some(("a", MomentSelector::At(sys(1_795_251_600_123))))
        );
        assert_eq!(split("a.__at.u5.as.s6"), Some(("a", MomentSelector::At(user(5, Some(6))))));
        assert_eq!(split("a@u5@s6"), Some(("a", MomentSelector::At(user(5, Some(6))))));
        assert_eq!(split("orders"), None);
        assert!(split_moment_topic("orders@yesterday").unwrap().1.is_err());
    }
}
