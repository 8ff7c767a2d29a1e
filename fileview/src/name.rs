//! The rules for topic names. They are Kafka's, which also keep a topic from being a path.

pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// The highest partition number.
pub const PARTITION_MAX: u32 = i32::MAX as u32;

/// The reasons why a text is not a topic name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    #[error("a topic's name is not empty")]
    Empty,
    /// `.` and `..` have another meaning in a path.
    #[error("{0:?} is no topic: . and .. lead nowhere here")]
    Dots(String),
    /// A character that topic names do not allow.
    #[error(
        "a topic's name has letters, digits, '.', '_' and '-', but not {character:?}: {name:?}"
    )]
    InvalidCharacter {
        name: String,
        /// The first invalid character.
        character: char,
    },
    #[error("a topic's name has at most {TOPIC_NAME_BYTES_MAX} characters, and this has {0}")]
    TooLong(usize),
}

/// Checks a topic name.
///
/// # Errors
/// The name is invalid.
pub fn check_topic(name: &str) -> Result<(), TopicNameError> {
    if name.is_empty() {
        return Err(TopicNameError::Empty);
    }
    if name == "." || name == ".." {
        return Err(TopicNameError::Dots(name.to_owned()));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(character) = name.chars().find(|c| !legal(*c)) {
        return Err(TopicNameError::InvalidCharacter { name: name.to_owned(), character });
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return Err(TopicNameError::TooLong(name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_kafka_takes_for_one() {
        for name in ["a", "a.b", "...", "_-", "0", &"x".repeat(249)] {
            assert_eq!(check_topic(name), Ok(()), "{name}");
        }
        assert_eq!(check_topic(""), Err(TopicNameError::Empty));
        assert!(matches!(check_topic(".."), Err(TopicNameError::Dots(_))));
        assert_eq!(check_topic(&"x".repeat(250)), Err(TopicNameError::TooLong(250)));
        for name in ["a b", "a\0", "a/b", "ä", "a@s5", "a\n", "%2e"] {
            assert!(
                matches!(check_topic(name), Err(TopicNameError::InvalidCharacter { .. })),
                "{name:?}"
            );
        }
    }
}
