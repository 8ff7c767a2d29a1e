//! Moments as a person says them at a prompt: "5 minutes ago", "yesterday 14:00".
//!
//! A relative time is resolved once, against a given now; what comes out is an absolute [`Ask`],
//! which the caller prints, so that the same question can be put again.

use jiff::civil;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};

use crate::moment::time_ms;
use crate::{Ask, Cut, Moment, MomentError, SysTime, UserTime};

/// Reads an ask as the command line takes it: everything that [`Ask`] parses, and besides times
/// without an axis (system time), relative times ("5 minutes ago", "-90s"), local dates and times of
/// day, `now`, `today`, `yesterday` and `tomorrow`.
///
/// # Errors
/// The text is no such thing.
pub fn parse_ask(text: &str, now: SysTime, zone: &TimeZone) -> Result<Ask, MomentError> {
    match text.split_once("..") {
        None => Ok(Ask::At(moment(text.trim(), now, zone)?)),
        Some((first, second)) => {
            Ask::window(moment(first.trim(), now, zone)?, moment(second.trim(), now, zone)?)
        }
    }
}

fn moment(text: &str, now: SysTime, zone: &TimeZone) -> Result<Moment, MomentError> {
    if let Ok(moment) = text.parse() {
        return Ok(moment);
    }
    let (user, time) = match (text.strip_prefix("u:"), text.strip_prefix("s:")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => (false, text),
    };
    let time = time.trim();
    let ms = match time_ms(time) {
        Ok(ms) => ms,
        Err(_) => {
            human_ms(time, now, zone).ok_or_else(|| MomentError::SpokenTime(time.to_owned()))?
        }
    };
    Ok(if user {
        Moment::User { before: UserTime(ms as i64), known: None }
    } else {
        Moment::Sys(Cut::before(SysTime(ms)))
    })
}

fn human_ms(text: &str, now: SysTime, zone: &TimeZone) -> Option<u64> {
    let now = Timestamp::from_millisecond(i64::try_from(now.0).ok()?).ok()?.to_zoned(zone.clone());
    let zoned = day(text, &now, zone)
        .or_else(|| text.parse::<Zoned>().ok())
        .or_else(|| text.parse::<civil::DateTime>().ok()?.to_zoned(zone.clone()).ok())
        // A time of day before a span: "14:05:06" parses as both.
        .or_else(|| now.date().to_datetime(time_of_day(text)?).to_zoned(zone.clone()).ok())
        .or_else(|| now.checked_add(span(text)?).ok())?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok().filter(|ms| *ms <= SysTime::MAX.0)
}

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
    let time = if time.is_empty() { civil::Time::midnight() } else { time_of_day(time.trim())? };
    let date = now.date().checked_add(days.days()).ok()?;
    date.to_datetime(time).to_zoned(zone.clone()).ok()
}

fn time_of_day(text: &str) -> Option<civil::Time> {
    text.contains(':').then(|| text.parse().ok()).flatten()
}

fn span(text: &str) -> Option<Span> {
    // A bare number is milliseconds since 1970 or nothing; a span has a unit.
    text.chars().any(|char| char.is_ascii_alphabetic()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SysTime = SysTime(1_795_251_600_000); // 2026-11-21T09:00:00Z

    fn ms(text: &str) -> Option<u64> {
        match parse_ask(text, NOW, &TimeZone::UTC).ok()? {
            Ask::At(Moment::Sys(cut)) => Some(cut.bound().time().0),
            _ => None,
        }
    }

    #[test]
    fn relative_times_count_from_the_given_now() {
        assert_eq!(ms("now"), Some(NOW.0));
        assert_eq!(ms("5 minutes ago"), Some(NOW.0 - 300_000));
        assert_eq!(ms("1h 30m ago"), Some(NOW.0 - 5_400_000));
        assert_eq!(ms("-90s"), Some(NOW.0 - 90_000));
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
    fn a_window_may_mix_relative_and_absolute_ends() {
        let ask = parse_ask("10 minutes ago..now", NOW, &TimeZone::UTC).unwrap();
        assert_eq!(ask.to_string(), format!("s{}..s{}", NOW.0 - 600_000, NOW.0));
    }

    #[test]
    fn user_time_is_asked_for_with_its_letter() {
        let ask = parse_ask("u:5 minutes ago", NOW, &TimeZone::UTC).unwrap();
        assert_eq!(ask.to_string(), format!("u{}", NOW.0 - 300_000));
        let ask = parse_ask("s:5 minutes ago", NOW, &TimeZone::UTC).unwrap();
        assert_eq!(ask.to_string(), format!("s{}", NOW.0 - 300_000));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "soon", "5", "five minutes ago", "25:00", "now..", "yesterday noon"] {
            assert!(ms(text).is_none() || text == "5", "{text:?}");
        }
    }

    #[test]
    fn what_is_refused_is_told_in_which_words_it_could_be_said() {
        let error = parse_ask("a while ago", NOW, &TimeZone::UTC).unwrap_err();
        assert!(matches!(error, MomentError::SpokenTime(_)), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("time=a while ago"), "{said}");
        // Every form that it names is one.
        let forms: Vec<&str> = said.split('"').skip(1).step_by(2).collect();
        assert_eq!(forms.len(), 4, "{said}");
        assert!(forms.iter().all(|form| ms(form).is_some()), "{forms:?}");
    }
}
