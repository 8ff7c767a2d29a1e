//! Encoding and decoding of the tree's names. No I/O.
//!
//! Keys of records and names of groups may hold any bytes, but the name of a file may not. Bytes
//! that a name cannot hold, and `%` and `@`, are written as `%` and two hex digits. Each key has
//! exactly one name.

use std::ops::Range;

use hlc::MomentSelector;

use super::TreeError;
use crate::{PARTITION_MAX, ViewFormat};

pub const NAME_BYTES_MAX: usize = 255;
pub const PATH_BYTES_MAX: usize = 4096;
/// The name of the empty key.
const EMPTY: &[u8] = b"%";
/// The prefix of the hash in the name of a key that is too long.
const LONG: &[u8] = b"%~";
/// The number of bytes of the encoded key that such a name shows.
const LONG_SHOWN: usize = 180;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The key that a name encodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecodedKey {
    Whole(Vec<u8>),
    /// The key is longer than a name. To find it, compare the name with those of all keys.
    Long,
}

/// Encodes a key or group name.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return EMPTY.to_vec();
    }
    let is_dots = bytes == b"." || bytes == b"..";
    // Encoding triples the length at most. A key that is far too long is not encoded to its end.
    let shown = &bytes[..bytes.len().min(NAME_BYTES_MAX + 1)];
    let mut name = Vec::with_capacity(shown.len());
    let text = std::str::from_utf8(shown).map_or_else(|error| error.valid_up_to(), str::len);
    for (at, byte) in shown.iter().enumerate() {
        let is_plain = match byte {
            b'%' | b'@' | b'/' | 0..=31 | 127 => false,
            128.. => at < text,
            _ => !is_dots,
        };
        if is_plain {
            name.push(*byte);
        } else {
            name.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    if name.len() <= NAME_BYTES_MAX && shown.len() == bytes.len() {
        return name;
    }
    // Do not cut inside a character or an escape.
    let mut end = LONG_SHOWN;
    while end > 0 && (name[end] & 0xc0 == 0x80 || name[end - 1] == b'%' || name[end - 2] == b'%') {
        end -= 1;
    }
    name.truncate(end);
    name.extend_from_slice(LONG);
    name.extend_from_slice(&blake3::hash(bytes).to_hex().as_bytes()[..32]);
    name
}

/// Decodes a name; `None` if no key has it.
pub(crate) fn decode(name: &[u8]) -> Option<DecodedKey> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    if name == EMPTY {
        return Some(DecodedKey::Whole(Vec::new()));
    }
    if name.windows(LONG.len()).any(|pair| pair == LONG) {
        return Some(DecodedKey::Long);
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        rest = behind;
        bytes.push(digit(digits[0])? << 4 | digit(digits[1])?);
    }
    // Each key has exactly one name: other spellings are invalid.
    (encode(&bytes) == name).then_some(DecodedKey::Whole(bytes))
}

fn digit(byte: u8) -> Option<u8> {
    HEX.iter().position(|hex| *hex == byte).map(|at| at as u8)
}

/// The file extension of a format.
pub(crate) fn extension(format: ViewFormat) -> &'static str {
    match format {
        ViewFormat::Raw => "log",
        ViewFormat::Values => "values",
        ViewFormat::Jsonl => "jsonl",
    }
}

pub(crate) const FORMATS: [ViewFormat; 3] =
    [ViewFormat::Raw, ViewFormat::Values, ViewFormat::Jsonl];

/// Parses `3.jsonl` as a partition and a format.
pub(crate) fn partition_file(name: &[u8]) -> Option<(u32, ViewFormat)> {
    let name = std::str::from_utf8(name).ok()?;
    let (partition, extension_of) = name.split_once('.')?;
    let format = FORMATS.into_iter().find(|format| extension(*format) == extension_of)?;
    Some((parse_partition_number(partition)?, format))
}

/// Parses a partition number. Each number has one spelling.
pub(crate) fn parse_partition_number(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text.len() == 1 || !text.starts_with('0');
    if !is_plain || !is_short {
        return None;
    }
    text.parse().ok().filter(|number| *number <= PARTITION_MAX)
}

/// The ways to split a name into a name and a moment, in the order in which they are tried. Both
/// the name and the moment may contain an `@`.
pub(crate) fn split_moments(name: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let places = name.iter().enumerate().filter(|(_, byte)| **byte == b'@');
    places.filter(|(at, _)| *at > 0).map(|(at, _)| (&name[..at], &name[at + 1..]))
}

/// True if a name has a moment that is spelled out, and so refers to the same for ever. A pin may
/// get another moment.
pub(crate) fn has_fixed_moment(name: &[u8]) -> bool {
    split_moments(name).any(|(_, text)| parse_moment(text).is_ok())
}

pub(crate) fn parse_moment(name: &[u8]) -> Result<MomentSelector, TreeError> {
    let text = std::str::from_utf8(name)
        .map_err(|_| TreeError::Moment("a moment is plain text".to_owned()))?;
    text.parse().map_err(|error: hlc::MomentError| TreeError::Moment(error.to_string()))
}

/// Checks that a name can exist in the tree.
///
/// # Errors
/// It has a zero byte or a slash, is empty, or is too long.
pub(crate) fn check_name(name: &[u8]) -> Result<(), TreeError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(TreeError::NameTooLong(name.len()));
    }
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(TreeError::Invalid(format!(
            "a name is not empty, and has no slash and no zero byte: {}",
            escaped(name)
        )));
    }
    Ok(())
}

/// A name as it is shown to a person.
pub(crate) fn escaped(name: &[u8]) -> String {
    name[..name.len().min(PATH_BYTES_MAX)].escape_ascii().to_string()
}

/// The components of a path, from the root down. `..` removes the name before it. `.` and empty
/// components are skipped.
///
/// # Errors
/// The path leaves the tree, is too long, or has an invalid component.
pub(crate) fn path_components(path: &[u8]) -> Result<Vec<&[u8]>, TreeError> {
    if path.len() > PATH_BYTES_MAX {
        return Err(TreeError::NameTooLong(path.len()));
    }
    let mut steps = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                if steps.pop().is_none() {
                    return Err(TreeError::Escapes(escaped(path)));
                }
            }
            name => {
                check_name(name)?;
                steps.push(name);
            }
        }
    }
    Ok(steps)
}

/// Checks that a path does not leave its root, and that its names can exist in the tree.
///
/// # Errors
/// [`TreeError::Escapes`], or why a name is not one.
pub fn check_path(path: &[u8]) -> Result<(), TreeError> {
    path_components(path).map(drop)
}

/// The range of user times that a moment or window selects; `None` if it is of system time.
pub(crate) fn user_times(at: &Option<MomentSelector>) -> Option<Range<hlc::UserTime>> {
    crate::RecordSelection::user_times(at.as_ref()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(key: &[u8]) -> String {
        String::from_utf8(encode(key)).unwrap()
    }

    #[test]
    fn a_key_is_a_name_that_a_shell_can_type() {
        assert_eq!(name(b"order-17"), "order-17");
        assert_eq!(name("größe".as_bytes()), "größe");
        assert_eq!(name(b"a/b@c%d\n\0"), "a%2Fb%40c%25d%0A%00");
        assert_eq!(name(b"\xff\xfe"), "%FF%FE");
        assert_eq!(
            (name(b""), name(b"."), name(b"..")),
            ("%".into(), "%2E".into(), "%2E%2E".into())
        );
        let long = name(&[b'k'; 1000]);
        assert!(long.starts_with("kkk") && long.len() < 256, "{long}");
        assert_ne!(long, name(&[b'k'; 1001]));
        assert!(name("ü".repeat(200).as_bytes()).len() < 256);
    }

    #[test]
    fn what_is_no_name_of_a_key_is_refused() {
        for name in ["%4", "%zz", "%61", "a%2f", ".", "..", "a/b", "a@b", "%%"] {
            assert_eq!(decode(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_partition_has_one_name_for_each_format() {
        assert_eq!(partition_file(b"3.jsonl"), Some((3, ViewFormat::Jsonl)));
        assert_eq!(partition_file(b"0.log"), Some((0, ViewFormat::Raw)));
        for name in ["00.log", "3", "3.", ".log", "-1.log", "3.LOG", "3.log.log", "4294967296.log"]
        {
            assert_eq!(partition_file(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_path_cannot_leave_the_tree() {
        assert_eq!(path_components(b"/a/./b//c/../d/").unwrap(), [b"a", b"b", b"d"]);
        for path in ["..", "/..", "a/../..", "a/b/../../../c"] {
            assert!(
                matches!(path_components(path.as_bytes()), Err(TreeError::Escapes(_))),
                "{path}"
            );
        }
        assert!(matches!(path_components(b"a\0b"), Err(TreeError::Invalid(_))));
        assert!(matches!(path_components(&[b'x'; 256]), Err(TreeError::NameTooLong(256))));
        assert!(matches!(path_components(&b"x/".repeat(3000)), Err(TreeError::NameTooLong(_))));
    }

    #[test]
    fn a_moment_may_stand_behind_a_name_that_has_an_at_of_its_own() {
        let ways = |name: &str| -> Vec<(String, bool)> {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let ways = split_moments(name.as_bytes());
            ways.map(|(name, moment)| (text(name), parse_moment(moment).is_ok())).collect()
        };
        assert_eq!(ways("a@s5"), [("a".into(), true)]);
        assert_eq!(ways("a@b@s5"), [("a".into(), false), ("a@b".into(), true)]);
        assert_eq!(ways("a@u5@s6"), [("a".into(), true), ("a@u5".into(), true)]);
        assert_eq!(ways("@s5"), []);
    }

    proptest! {
        #[test]
        fn every_key_has_one_name_and_gets_it_back(key: Vec<u8>) {
            let name = encode(&key);
            check_name(&name).unwrap();
            prop_assert!(!matches!(&*name, b"." | b".."));
            match decode(&name) {
                Some(DecodedKey::Whole(decoded)) => prop_assert_eq!(decoded, key),
                other => {
                    prop_assert_eq!(other, Some(DecodedKey::Long));
                    prop_assert!(key.len() > 80);
                }
            }
        }

        #[test]
        fn whatever_a_path_holds_its_steps_stay_inside(path in "[a.@/%\\x00s5u]{0,40}") {
            if let Ok(steps) = path_components(path.as_bytes()) {
                for step in steps {
                    prop_assert!(check_name(step).is_ok() && step != b".." && step != b".");
                    for (name, _) in split_moments(step) {
                        prop_assert!(!name.is_empty());
                    }
                    let _ = (decode(step), partition_file(step));
                }
            }
        }
    }
}
