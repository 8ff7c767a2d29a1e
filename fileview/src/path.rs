//! The names of the file view.
//!
//! ```text
//! path := topic [ '/' partition ] [ '@' ask ]
//! ask  := moment | moment '..' moment
//! ```
//! Each thing has exactly one path: `a/00`, `a//0`, `a/` and `/a` are errors, not other spellings
//! of `a/0` and `a`.

use std::fmt;
use std::str::FromStr;

use hlc::{MomentError, MomentSelector};

use crate::{PARTITION_MAX, TopicNameError, check_topic};

/// The topic or partition that a path names, now or in the past.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewPath {
    pub topic: String,
    /// One partition; all if `None`.
    pub partition: Option<u32>,
    /// A moment or a window; the present if `None`.
    pub ask: Option<MomentSelector>,
}

/// The reasons why a text is not a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The topic name is invalid.
    #[error(transparent)]
    Topic(#[from] TopicNameError),
    /// A slash with nothing before or after it.
    #[error("a part of {0:?} is empty: write TOPIC or TOPIC/PARTITION")]
    EmptyPart(String),
    /// More components than a path has.
    #[error("{0:?} is deeper than a partition: write TOPIC or TOPIC/PARTITION")]
    TooDeep(String),
    /// The partition is not a number in range.
    #[error(
        "{0:?} is not a partition: it is a number from 0 to {PARTITION_MAX}, without sign or leading zeros"
    )]
    Partition(String),
    /// An `@` with nothing after it.
    #[error("a moment is missing after @ in {0:?}")]
    MissingMoment(String),
    #[error(transparent)]
    Moment(#[from] MomentError),
}

impl ViewPath {
    /// Parses a path whose moments `parse_ask` parses. A command line accepts more spellings than a
    /// file name.
    ///
    /// # Errors
    /// The text is not a path.
    pub fn parse_with(
        text: &str,
        parse_ask: impl FnOnce(&str) -> Result<MomentSelector, MomentError>,
    ) -> Result<ViewPath, PathError> {
        // The first @: a topic name contains none, and a moment may.
        let (place, selector) = match text.split_once('@') {
            Some((_, "")) => return Err(PathError::MissingMoment(text.to_owned())),
            Some((place, selector)) => (place, Some(selector)),
            None => (text, None),
        };
        let (topic, partition) = parse_topic_and_partition(place)?;
        Ok(ViewPath { topic, partition, ask: selector.map(parse_ask).transpose()? })
    }
}

impl FromStr for ViewPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<ViewPath, PathError> {
        ViewPath::parse_with(text, str::parse)
    }
}

fn parse_topic_and_partition(place: &str) -> Result<(String, Option<u32>), PathError> {
    let fields: Vec<&str> = place.split('/').collect();
    // Dots get an error of their own, wherever they stand.
    if let Some(dots) = fields.iter().find(|field| matches!(**field, "." | "..")) {
        return Err(TopicNameError::Dots((*dots).to_owned()).into());
    }
    if fields.len() > 1 && fields.contains(&"") {
        return Err(PathError::EmptyPart(place.to_owned()));
    }
    let (topic, partition) = match fields[..] {
        [topic] => (topic, None),
        [topic, partition] => (topic, Some(partition)),
        _ => return Err(PathError::TooDeep(place.to_owned())),
    };
    check_topic(topic)?;
    Ok((topic.to_owned(), partition.map(parse_partition).transpose()?))
}

fn parse_partition(text: &str) -> Result<u32, PathError> {
    let bad = || PathError::Partition(text.to_owned());
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || (text.len() > 1 && text.starts_with('0')) {
        return Err(bad());
    }
    text.parse().ok().filter(|partition| *partition <= PARTITION_MAX).ok_or_else(bad)
}

impl fmt::Display for ViewPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.topic)?;
        if let Some(partition) = self.partition {
            write!(f, "/{partition}")?;
        }
        if let Some(selector) = &self.ask {
            write!(f, "@{selector}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ViewPath {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_path_prints_as_it_is_parsed() {
        for text in [
            "orders",
            "orders/0",
            "orders/3@s5",
            "orders@s5..s6",
            "a.b-c_d/2147483647@u5@s6",
            "a@u1@s9..u2@s9",
        ] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn every_part_is_what_it_says() {
        let path = parsed("orders/3@s5..s6");
        assert_eq!(path.topic, "orders");
        assert_eq!(path.partition, Some(3));
        assert_eq!(path.ask, Some("s5..s6".parse().unwrap()));
        assert_eq!(parsed("orders@s5").partition, None);
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for text in ["..", ".", "../etc", "a/..", "a/../b", "./a", "a/.", "a/0/..", "..@s5"] {
            let error = text.parse::<ViewPath>().unwrap_err();
            assert!(matches!(error, PathError::Topic(TopicNameError::Dots(_))), "{text}: {error}");
        }
        for text in ["a\0b", "a b", "~", "a\\b", "%2e%2e", "a:b", "é"] {
            let error = text.parse::<ViewPath>().unwrap_err();
            assert!(
                matches!(error, PathError::Topic(TopicNameError::InvalidCharacter { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn empty_and_surplus_parts_are_refused() {
        for text in ["/", "a/", "/a", "a//0", "//", "a/@s5"] {
            assert!(
                matches!(text.parse::<ViewPath>(), Err(PathError::EmptyPart(_))),
                "{text}: {:?}",
                text.parse::<ViewPath>()
            );
        }
        assert_eq!("".parse::<ViewPath>(), Err(PathError::Topic(TopicNameError::Empty)));
        assert_eq!("@s5".parse::<ViewPath>(), Err(PathError::Topic(TopicNameError::Empty)));
        assert!(matches!("a/0/1".parse::<ViewPath>(), Err(PathError::TooDeep(_))));
        assert!(matches!("a@".parse::<ViewPath>(), Err(PathError::MissingMoment(_))));
    }

    #[test]
    fn one_partition_has_one_spelling() {
        for text in
            ["a/00", "a/01", "a/+1", "a/-1", "a/1x", "a/2147483648", "a/99999999999", "a/ 1"]
        {
            assert!(matches!(text.parse::<ViewPath>(), Err(PathError::Partition(_))), "{text}");
        }
    }

    #[test]
    fn a_moment_that_is_none_is_refused_with_the_grammars_words() {
        for text in ["a@5", "a/0@yesterday", "a@s5..", "a@..s5", "a@s6..s5", "a@s1..s2..s3"] {
            assert!(matches!(text.parse::<ViewPath>(), Err(PathError::Moment(_))), "{text}");
        }
    }

    #[test]
    fn a_prompt_may_bring_its_own_spelling_of_moments() {
        let path = ViewPath::parse_with("a/0@5 minutes ago", |text| {
            assert_eq!(text, "5 minutes ago");
            "s5".parse()
        });
        assert_eq!(path, Ok(parsed("a/0@s5")));
    }
}
