//! Moments as users type them. A relative time is resolved once, and the result is printed, so that
//! the user can repeat the request.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context;
use client::Client;
use fileview::{PathError, RecordSelection, ViewPath};
use hlc::{
    Cut, Hlc, Moment, MomentError, MomentReference, MomentSelector, OsClock, SysTime, WallClock,
    parse_selector,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::output::UsageError;

/// A moment or a window from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MomentArg(TypedMoment);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TypedMoment {
    /// The same whenever and wherever it is typed.
    Absolute(MomentSelector),
    /// A time that was resolved here.
    Relative(MomentSelector),
    /// A name that the server knows, such as that of a pin. [`resolve_references`] asks for it.
    Reference(String),
}

/// The names of moments on the command line, and what the server says that they mean.
static REFERENCES: Mutex<BTreeMap<String, Option<MomentSelector>>> = Mutex::new(BTreeMap::new());

fn references() -> MutexGuard<'static, BTreeMap<String, Option<MomentSelector>>> {
    REFERENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the server for the moments that have names, before the command runs.
pub(crate) async fn resolve_references(
    connect: impl AsyncFnOnce() -> anyhow::Result<Client>,
) -> anyhow::Result<()> {
    let names: Vec<String> = references().keys().cloned().collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut client = connect().await?;
    for name in names {
        let answer = client.moment(Some(&name)).await;
        let answer = answer.with_context(|| format!("find the moment {name}"))?;
        let moment = answer.at.parse();
        let moment = moment.with_context(|| format!("the server answered with {:?}", answer.at))?;
        references().insert(name, Some(moment));
    }
    Ok(())
}

impl MomentArg {
    /// Parses the value of `--at`.
    pub(crate) fn parse(text: &str) -> Result<MomentArg, MomentError> {
        let text = text.trim();
        if let Ok(ask) = text.parse() {
            return Ok(MomentArg(TypedMoment::Absolute(ask)));
        }
        if let Some(reference) = reference_in(text)? {
            return Ok(MomentArg::reference(reference));
        }
        let ask = parse_selector(text, now(), &TimeZone::system())?;
        Ok(MomentArg(TypedMoment::Relative(ask)))
    }

    /// Parses what comes after `@`, where the name of a pin needs nothing before it.
    fn parse_after_at(text: &str) -> Result<MomentArg, MomentError> {
        let is_name = |text: &str| {
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            text.starts_with(|first: char| first.is_ascii_alphabetic())
                && text.bytes().all(is_of_name)
                && !text.contains("..")
        };
        match MomentArg::parse(text) {
            Err(MomentError::HumanTime(_)) if is_name(text) => {
                Ok(MomentArg::reference(text.to_owned()))
            }
            parsed => parsed,
        }
    }

    fn reference(name: String) -> MomentArg {
        references().entry(name.clone()).or_default();
        MomentArg(TypedMoment::Reference(name))
    }

    /// As [`MomentArg::parse`], for commands that do not accept a window.
    pub(crate) fn parse_moment(text: &str) -> Result<MomentArg, String> {
        let at = MomentArg::parse(text).map_err(|error| error.to_string())?;
        let is_window = match &at.0 {
            TypedMoment::Absolute(ask) | TypedMoment::Relative(ask) => {
                matches!(ask, MomentSelector::Window(..))
            }
            TypedMoment::Reference(name) => name.contains(".."),
        };
        if is_window { Err("give one moment here, not a window".to_owned()) } else { Ok(at) }
    }

    /// As [`MomentArg::parse_moment`], for commands that accept system time only.
    pub(crate) fn parse_system_moment(text: &str) -> Result<MomentArg, String> {
        let at = MomentArg::parse_moment(text)?;
        match &at.0 {
            TypedMoment::Absolute(MomentSelector::At(Moment::User { .. }))
            | TypedMoment::Relative(MomentSelector::At(Moment::User { .. })) => {
                Err("give a moment of system time (s…)".to_owned())
            }
            _ => Ok(at),
        }
    }

    /// As [`MomentArg::parse_system_moment`], for commands that ask no server.
    pub(crate) fn parse_without_server(text: &str) -> Result<MomentArg, String> {
        let at = MomentArg::parse_system_moment(text)?;
        match &at.0 {
            TypedMoment::Reference(name) => {
                Err(format!("{name} is known to a running server only: give a time"))
            }
            _ => Ok(at),
        }
    }

    /// The last stamp of a moment of system time.
    ///
    /// # Panics
    /// It is a moment of user time.
    pub(crate) fn last_stamp(&self) -> Hlc {
        match self.moment() {
            Moment::Sys(cut) => cut.bound().previous(),
            Moment::User { .. } => panic!("a moment of system time was parsed"),
        }
    }

    /// The moment or the window.
    ///
    /// # Panics
    /// It is a name that was not resolved.
    pub(crate) fn ask(&self) -> MomentSelector {
        match &self.0 {
            TypedMoment::Absolute(ask) | TypedMoment::Relative(ask) => *ask,
            TypedMoment::Reference(name) => {
                let moment = references().get(name).copied().flatten();
                moment.expect("names are resolved before a command runs")
            }
        }
    }

    /// True if the same text would mean something else at another time or place.
    pub(crate) fn was_relative(&self) -> bool {
        !matches!(self.0, TypedMoment::Absolute(_))
    }

    /// The moment of a [`MomentArg::parse_moment`].
    pub(crate) fn moment(&self) -> Moment {
        match self.ask() {
            MomentSelector::At(moment) | MomentSelector::Window(_, moment) => moment,
        }
    }

    /// Prints what a relative time was resolved to.
    pub(crate) fn announce(&self) {
        if self.was_relative() {
            eprintln!("at {}", describe_ask(&self.ask()));
        }
    }
}

/// The text with the times of its ends resolved here, if an end is a name; the server does not know
/// this place.
fn reference_in(text: &str) -> Result<Option<String>, MomentError> {
    // The clock of this machine says what is now, where no server has to be asked.
    let is_name = |text: &str| {
        text.trim().parse().is_ok_and(|reference| !matches!(reference, MomentReference::Now))
    };
    if is_name(text) {
        return Ok(Some(text.to_owned()));
    }
    let Some((first, second)) = text.split_once("..") else { return Ok(None) };
    if !is_name(first) && !is_name(second) {
        return Ok(None);
    }
    let end = |text: &str| -> Result<String, MomentError> {
        let text = text.trim();
        if is_name(text) {
            return Ok(text.to_owned());
        }
        Ok(parse_selector(text, now(), &TimeZone::system())?.to_string())
    };
    Ok(Some(format!("{}..{}", end(first)?, end(second)?)))
}

/// The moment of an argument, or now as the server knows it: with all that was acknowledged before.
pub(crate) async fn moment_or_now(
    client: &mut Client,
    at: Option<&MomentArg>,
) -> anyhow::Result<Moment> {
    match at {
        Some(at) => Ok(at.moment()),
        None => Ok(Moment::Sys(client.now().await?)),
    }
}

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
    if patience > Duration::from_secs(60) {
        return Err("the server waits for 60s at most".to_owned());
    }
    Ok(patience)
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
            let parsed = MomentArg::parse_after_at(text)?;
            // The path keeps no moment: a name has none yet.
            let moment = MomentSelector::At(Moment::Sys(Cut::ALL));
            at = Some(parsed);
            Ok(moment)
        })?;
        Ok(TypedPath { topic: path.topic, partition: path.partition, at })
    }

    /// Returns true for a moment of user time.
    pub(crate) fn is_of_user_time(&self) -> bool {
        self.at.as_ref().is_some_and(|at| RecordSelection::user_times(&at.ask()).is_some())
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
    let (moment, date) = (ask.to_string(), dates_of(ask));
    // A window is too long for a line of a terminal.
    let separator = if matches!(ask, MomentSelector::Window(..)) { "\n   " } else { " " };
    format!("{moment},{separator}which is {date}")
}

/// The times of a moment or a window, as [`date`] shows them.
pub(crate) fn dates_of(ask: &MomentSelector) -> String {
    dates_in(ask, &display_zone())
}

/// [`dates_of`] for documents.
pub(crate) fn utc_dates_of(ask: &MomentSelector) -> String {
    dates_in(ask, &TimeZone::UTC)
}

fn dates_in(ask: &MomentSelector, zone: &TimeZone) -> String {
    let date = |moment: &Moment| match moment {
        Moment::Sys(cut) => date_in(cut.bound().time(), zone),
        Moment::User { before, .. } => date_in(SysTime(before.0.max(0) as u64), zone),
    };
    match ask {
        MomentSelector::At(moment) => date(moment),
        MomentSelector::Window(first, second) => format!("{} to {}", date(first), date(second)),
    }
}

/// The zone in which times are shown: the user's on a terminal, and UTC in a pipe or with `--utc`.
static DISPLAY_ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Shows times in UTC, wherever they are printed.
pub(crate) fn show_utc() {
    DISPLAY_ZONE.get_or_init(|| TimeZone::UTC);
}

/// The zone in which times are shown.
pub(crate) fn display_zone() -> TimeZone {
    let zone = || if std::io::stdout().is_terminal() { TimeZone::system() } else { TimeZone::UTC };
    DISPLAY_ZONE.get_or_init(zone).clone()
}

/// A time as RFC 3339 in milliseconds, so that columns align; as a bare number of milliseconds if
/// it is outside the calendar.
pub(crate) fn date(time: SysTime) -> String {
    date_in(time, &display_zone())
}

/// [`date`] for documents, which are the same wherever they are printed.
pub(crate) fn utc_date(time: SysTime) -> String {
    date_in(time, &TimeZone::UTC)
}

fn date_in(time: SysTime, zone: &TimeZone) -> String {
    let timestamp = i64::try_from(time.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    match timestamp {
        None => time.0.to_string(),
        Some(time) if *zone == TimeZone::UTC => format!("{time:.3}"),
        Some(time) => time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S.%3f%:z").to_string(),
    }
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
        assert!(MomentArg::parse("5 minutes ago").unwrap().was_relative());
        assert!(MomentArg::parse("10 minutes ago..now").unwrap().was_relative());
        assert!(!MomentArg::parse("s5").unwrap().was_relative());
        assert!(!MomentArg::parse("s5..s6").unwrap().was_relative());
    }

    #[test]
    fn a_moment_is_described_as_itself_and_as_a_date() {
        let ask = "s1795251600000".parse().unwrap();
        assert_eq!(describe_ask(&ask), "s1795251600000, which is 2026-11-21T09:00:00.000Z");
        let ask = "u0..u1500".parse().unwrap();
        assert_eq!(
            describe_ask(&ask),
            "u0..u1500,\n   which is 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:01.500Z"
        );
    }

    #[test]
    fn a_date_has_the_offset_of_its_zone() {
        let time = SysTime(1_795_251_600_123);
        assert_eq!(date_in(time, &TimeZone::UTC), "2026-11-21T09:00:00.123Z");
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(date_in(time, &zone), "2026-11-21T10:00:00.123+01:00");
        assert_eq!(date_in(SysTime(u64::MAX), &zone), u64::MAX.to_string());
    }

    #[test]
    fn a_path_takes_a_relative_moment() {
        let path = TypedPath::parse("orders/3@5 minutes ago").unwrap();
        assert_eq!((path.topic.as_str(), path.partition), ("orders", Some(3)));
        assert!(path.at.unwrap().was_relative());
    }

    #[test]
    fn a_name_is_left_to_the_server_and_times_beside_it_are_not() {
        let name = |text: &str| match MomentArg::parse(text).unwrap().0 {
            TypedMoment::Reference(name) => Some(name),
            _ => None,
        };
        assert_eq!(name("pin:audit").as_deref(), Some("pin:audit"));
        assert_eq!(name("orders/0:17").as_deref(), Some("orders/0:17"));
        assert_eq!(name("start .. 1970-01-01T00:00:05Z").as_deref(), Some("start..s5000"));
        assert_eq!(name("now"), None);
        let path = |text: &str| TypedPath::parse(text).map(|path| path.at.unwrap().0);
        assert_eq!(path("orders@audit"), Ok(TypedMoment::Reference("audit".to_owned())));
        for text in ["orders@no such time", "orders@5x", "orders@a..b"] {
            assert!(path(text).is_err(), "{text}");
        }
        assert!(MomentArg::parse("audit").is_err(), "behind --at it needs pin:");
        assert!(MomentArg::parse_moment("start..s5").is_err());
    }

    #[test]
    fn a_moment_given_twice_is_refused() {
        let path = TypedPath::parse("orders@s5").unwrap();
        assert!(path.clone().with_at(Some(MomentArg::parse("s6").unwrap())).is_err());
        assert!(path.with_at(None).is_ok());
    }
}
