//! Moments as a person types them at a prompt: "5 minutes ago", "yesterday 14:00".
//!
//! A relative time is resolved once, against a given now. The result is an absolute
//! [`MomentSelector`], which the caller prints, so that the same query can be repeated.

use jiff::civil::{self, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};

use crate::moment::time_ms;
use crate::{Cut, Moment, MomentError, MomentSelector, SysTime, UserTime};

/// Parses a selector from the command line.
///
/// It accepts everything that [`MomentSelector`] parses. It also accepts times without an axis
/// (system time), relative times ("5 minutes ago", "an hour ago", "-90s", and "5m", which is ago
/// too), local dates, days ("yesterday", "monday") and times of day ("10:30", "noon"), alone or
/// after a day, and `now`.
///
/// A query is about the past: a time of day or a weekday without a date is the last one before now.
/// At the end of a window it is the first one after its start.
///
/// # Errors
/// The text is none of these.
pub fn parse_selector(
    text: &str,
    now: SysTime,
    zone: &TimeZone,
) -> Result<MomentSelector, MomentError> {
    let Some((first, second)) = text.split_once("..") else {
        return Ok(MomentSelector::At(moment(text.trim(), now, None, zone)?));
    };
    let first = moment(first.trim(), now, None, zone)?;
    MomentSelector::window(first, moment(second.trim(), now, Some(moment_ms(&first)), zone)?)
}

fn moment_ms(moment: &Moment) -> u64 {
    match moment {
        Moment::Sys(cut) => cut.bound().time().0,
        Moment::User { before, .. } => u64::try_from(before.0).unwrap_or(0),
    }
}

fn moment(
    text: &str,
    now: SysTime,
    after: Option<u64>,
    zone: &TimeZone,
) -> Result<Moment, MomentError> {
    match text.parse() {
        Ok(moment) => return Ok(moment),
        Err(
            error @ (MomentError::Unit { .. }
            | MomentError::KnownAtOfSysTime(_)
            | MomentError::StampOfUserTime(_)),
        ) => return Err(error),
        Err(_) => {}
    }
    let (user, time) = match (text.strip_prefix("u:"), text.strip_prefix("s:")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => (false, text),
    };
    let time = time.trim();
    let ms = match time_ms(time) {
        Ok(ms) => ms,
        Err(error @ MomentError::Unit { .. }) => return Err(error),
        Err(_) => human_ms(time, now, after, zone)
            .ok_or_else(|| MomentError::HumanTime(time.to_owned()))?,
    };
    Ok(if user {
        Moment::User { before: UserTime(ms as i64), known: None }
    } else {
        Moment::Sys(Cut::before(SysTime(ms)))
    })
}

fn human_ms(text: &str, now: SysTime, after: Option<u64>, zone: &TimeZone) -> Option<u64> {
    let zoned = |ms: u64| {
        let time = Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
        Some(time.to_zoned(zone.clone()))
    };
    let now = zoned(now.0)?;
    let after = after.and_then(zoned);
    let words = text.to_ascii_lowercase();
    let time = day(&words, &now, zone)
        .or_else(|| text.parse::<Zoned>().ok())
        .or_else(|| text.parse::<civil::DateTime>().ok()?.to_zoned(zone.clone()).ok())
        // A time of day is tried before a span: "14:05:06" parses as both.
        .or_else(|| recurring(&words, &now, after.as_ref(), zone))
        .or_else(|| now.checked_add(span(&words)?).ok())?;
    u64::try_from(time.timestamp().as_millisecond()).ok().filter(|ms| *ms <= SysTime::MAX.0)
}

/// A day relative to today.
fn day(text: &str, now: &Zoned, zone: &TimeZone) -> Option<Zoned> {
    let (word, time) = text.split_once(' ').unwrap_or((text, ""));
    if word == "now" && time.is_empty() {
        return Some(now.clone());
    }
    let days = match word {
        "today" => 0,
        "yesterday" => -1,
        "tomorrow" => 1,
        _ => return None,
    };
    let date = now.date().checked_add(days.days()).ok()?;
    date.to_datetime(time_after_day(time)?).to_zoned(zone.clone()).ok()
}

/// A time that recurs each day or week: the last one before now, or the first one after a moment.
fn recurring(text: &str, now: &Zoned, after: Option<&Zoned>, zone: &TimeZone) -> Option<Zoned> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (weekday, time) = match weekday(word) {
        Some(weekday) => (Some(weekday), time_after_day(rest)?),
        None => (None, time_of_day(text)?),
    };
    let origin = after.unwrap_or(now);
    let step = if after.is_some() { 1 } else { -1 };
    // The day of the origin, or one of the eight next to it.
    (0..=8).find_map(|nth: i64| {
        let date = origin.date().checked_add((step * nth).days()).ok()?;
        if weekday.is_some_and(|weekday| date.weekday() != weekday) {
            return None;
        }
        let moment = date.to_datetime(time).to_zoned(zone.clone()).ok()?;
        let is_on_its_side = if after.is_some() { moment > *origin } else { moment <= *origin };
        is_on_its_side.then_some(moment)
    })
}

fn weekday(word: &str) -> Option<Weekday> {
    Some(match word {
        "monday" | "mon" => Weekday::Monday,
        "tuesday" | "tue" => Weekday::Tuesday,
        "wednesday" | "wed" => Weekday::Wednesday,
        "thursday" | "thu" => Weekday::Thursday,
        "friday" | "fri" => Weekday::Friday,
        "saturday" | "sat" => Weekday::Saturday,
        "sunday" | "sun" => Weekday::Sunday,
        _ => return None,
    })
}

/// A day without a time begins at midnight.
fn time_after_day(text: &str) -> Option<civil::Time> {
    match text.trim() {
        "" => Some(civil::Time::midnight()),
        time => time_of_day(time),
    }
}

fn time_of_day(text: &str) -> Option<civil::Time> {
    match text {
        "noon" => return Some(civil::time(12, 0, 0, 0)),
        "midnight" => return Some(civil::Time::midnight()),
        _ => {}
    }
    // Accepts "9:30" too.
    let hours = text.find(':')?;
    format!("{}{text}", if hours == 1 { "0" } else { "" }).parse().ok()
}

fn span(text: &str) -> Option<Span> {
    // "an hour ago" is one.
    let unit = text.strip_prefix("an ").or_else(|| text.strip_prefix("a "));
    let text = unit.map_or_else(|| text.to_owned(), |unit| format!("1 {unit}"));
    // A bare number is milliseconds since 1970 or invalid; a span has a unit.
    if !text.chars().any(|char| char.is_ascii_alphabetic()) {
        return None;
    }
    let span: Span = text.parse().ok()?;
    // A query is about the past.
    let is_bare = !text.starts_with(['+', '-']) && !text.ends_with("ago");
    Some(if is_bare && span.is_positive() { span.negate() } else { span })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SysTime = SysTime(1_795_251_600_000); // 2026-11-21T09:00:00Z

    fn ms(text: &str) -> Option<u64> {
        match parse_selector(text, NOW, &TimeZone::UTC).ok()? {
            MomentSelector::At(Moment::Sys(cut)) => Some(cut.bound().time().0),
            _ => None,
        }
    }

    #[test]
    fn relative_times_count_from_the_given_now() {
        assert_eq!(ms("now"), Some(NOW.0));
        assert_eq!(ms("5 minutes ago"), Some(NOW.0 - 300_000));
        assert_eq!(ms("1h 30m ago"), Some(NOW.0 - 5_400_000));
        assert_eq!(ms("-90s"), Some(NOW.0 - 90_000));
        assert_eq!(ms("5m"), Some(NOW.0 - 300_000));
        assert_eq!(ms("a day"), Some(NOW.0 - 86_400_000));
        assert_eq!(ms("1h 30m"), Some(NOW.0 - 5_400_000));
        assert_eq!(ms("+5m"), Some(NOW.0 + 300_000));
        assert_eq!(ms("an hour ago"), Some(NOW.0 - 3_600_000));
        assert_eq!(ms("a minute ago"), Some(NOW.0 - 60_000));
        assert_eq!(ms("5 Minutes Ago"), Some(NOW.0 - 300_000));
    }

    #[test]
    fn days_and_times_of_day_are_local() {
        assert_eq!(ms("today"), Some(NOW.0 - 9 * 3_600_000));
        assert_eq!(ms("yesterday 08:00"), Some(NOW.0 - 25 * 3_600_000));
        assert_eq!(ms("tomorrow 08:00"), Some(NOW.0 + 23 * 3_600_000));
        assert_eq!(ms("08:30"), Some(NOW.0 - 1_800_000));
        assert_eq!(ms("2026-11-21 08:30"), Some(NOW.0 - 1_800_000));
        assert_eq!(ms("2026-11-20"), Some(NOW.0 - 33 * 3_600_000));
        assert_eq!(ms("2026-11-21T10:30[Europe/Berlin]"), Some(NOW.0 + 1_800_000));
    }

    #[test]
    fn every_day_of_the_week_has_two_names() {
        let midnight = NOW.0 - 9 * 3_600_000;
        let names = "saturday friday thursday wednesday tuesday monday sunday";
        for (name, days_ago) in names.split(' ').zip(0..) {
            let expected = Some(midnight - days_ago * 24 * 3_600_000);
            assert_eq!((ms(name), ms(&name[..3])), (expected, expected), "{name}");
        }
    }

    #[test]
    fn a_window_may_mix_relative_and_absolute_ends() {
        let selector = parse_selector("10 minutes ago..now", NOW, &TimeZone::UTC).unwrap();
        assert_eq!(selector.to_string(), format!("s{}..s{}", NOW.0 - 600_000, NOW.0));
    }

    #[test]
    fn user_time_is_asked_for_with_its_letter() {
        let selector = parse_selector("u:5 minutes ago", NOW, &TimeZone::UTC).unwrap();
        assert_eq!(selector.to_string(), format!("u{}", NOW.0 - 300_000));
        let selector = parse_selector("s:5 minutes ago", NOW, &TimeZone::UTC).unwrap();
        assert_eq!(selector.to_string(), format!("s{}", NOW.0 - 300_000));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "soon",
            "5",
            "five minutes ago",
            "25:00",
            "now..",
            "yesterday soon",
            "monday soon",
            "someday",
            "a",
            "9:5",
            ":30",
        ] {
            assert!(ms(text).is_none_or(|ms| text == "5" || ms > NOW.0), "{text:?}");
        }
    }

    #[test]
    fn a_time_without_a_date_is_the_last_one_and_at_the_end_of_a_window_the_next() {
        const HOUR: u64 = 3_600_000;
        // It is a Saturday, 09:00.
        let midnight = NOW.0 - 9 * HOUR;
        assert_eq!(ms("10:30"), Some(midnight - 24 * HOUR + 10 * HOUR + HOUR / 2));
        assert_eq!(ms("9:00"), Some(NOW.0));
        assert_eq!(ms("noon"), Some(midnight - 12 * HOUR));
        assert_eq!(ms("midnight"), Some(midnight));
        assert_eq!(ms("Yesterday Noon"), Some(midnight - 12 * HOUR));
        assert_eq!(ms("saturday"), Some(midnight));
        assert_eq!(ms("sat 10:00"), Some(midnight - 7 * 24 * HOUR + 10 * HOUR));
        assert_eq!(ms("Monday"), Some(midnight - 5 * 24 * HOUR));
        assert_eq!(ms("friday 8:00"), Some(midnight - 16 * HOUR));
        assert_eq!(ms("today 10:30"), Some(NOW.0 + HOUR + HOUR / 2), "it has its date");
        let window = |text: &str| match parse_selector(text, NOW, &TimeZone::UTC).unwrap() {
            MomentSelector::Window(first, second) => (moment_ms(&first), moment_ms(&second)),
            selector => panic!("{selector}"),
        };
        assert_eq!(window("22:00..06:00"), (midnight - 2 * HOUR, midnight + 6 * HOUR));
        let yesterday = midnight - 24 * HOUR;
        assert_eq!(window("10:00..17:00"), (yesterday + 10 * HOUR, yesterday + 17 * HOUR));
        assert_eq!(window("08:00..17:00"), (midnight + 8 * HOUR, midnight + 17 * HOUR));
        assert_eq!(window("monday..friday"), (midnight - 120 * HOUR, midnight - 24 * HOUR));
        assert_eq!(window("8:00..8:00"), (midnight + 8 * HOUR, midnight + 32 * HOUR));
    }

    #[test]
    fn what_is_refused_is_told_in_which_words_it_could_be_said() {
        let error = parse_selector("a while ago", NOW, &TimeZone::UTC).unwrap_err();
        assert!(matches!(error, MomentError::HumanTime(_)), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("\"a while ago\" is not a time"), "{message}");
        // Every form that the error message names is valid.
        let forms: Vec<&str> = message.split('"').skip(1).step_by(2).skip(1).collect();
        assert_eq!(forms.len(), 6, "{message}");
        assert!(forms.iter().all(|form| ms(form).is_some()), "{forms:?}");
    }
}
