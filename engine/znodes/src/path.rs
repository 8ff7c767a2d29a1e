//! Paths of znodes.

use zk_wire::ZkCode;

/// The znodes below this belong to ZooKeeper itself, and are not put back with the root.
pub(crate) const OWN: &str = "/zookeeper";
/// The paths of which no server is without, and that cannot be deleted.
pub const SPECIAL_PATHS: [&str; 4] = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];

/// Checks the whole form of a path, as ZooKeeper's `PathUtils.validatePath` does.
///
/// # Errors
/// [`ZkCode::BadArguments`].
pub fn check_path(path: &str) -> Result<(), ZkCode> {
    let Some(names) = path.strip_prefix('/') else { return Err(ZkCode::BadArguments) };
    let is_sound = |name: &str| {
        !name.is_empty() && name != "." && name != ".." && name.chars().all(|c| !is_forbidden(c))
    };
    if names.is_empty() || names.split('/').all(is_sound) {
        Ok(())
    } else {
        Err(ZkCode::BadArguments)
    }
}

/// Returns true if ZooKeeper refuses a character. Java sees characters above U+FFFF as two
/// surrogates, which it refuses.
fn is_forbidden(c: char) -> bool {
    matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

/// Splits a path into its parent's path, which is empty for the root, and its name.
///
/// # Errors
/// [`ZkCode::BadArguments`]: it has no slash, or a NUL.
pub fn split_path(path: &str) -> Result<(&str, &str), ZkCode> {
    match path.rsplit_once('/') {
        Some(split) if !path.contains('\0') => Ok(split),
        _ => Err(ZkCode::BadArguments),
    }
}

/// A path with the number that a sequential create appends: how many children were created before.
pub(crate) fn sequential_path(path: &str, creates: i32) -> String {
    format!("{path}{creates:010}")
}

/// The path under which the root is known here: it has two spellings.
pub(crate) fn key_of(path: &str) -> &str {
    if path == "/" { "" } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_refused_as_by_zookeeper() {
        for sound in ["/", "/a", "/a/b", "/a.b/..c", "/...", "/\u{e9}"] {
            assert_eq!(check_path(sound), Ok(()), "{sound}");
        }
        for refused in [
            "",
            "a",
            "/a/",
            "//",
            "/a//b",
            "/.",
            "/a/../b",
            "/a\0",
            "/a\u{1f}",
            "/\u{1f600}",
            "/\u{e000}",
        ] {
            assert_eq!(check_path(refused), Err(ZkCode::BadArguments), "{refused:?}");
        }
    }

    #[test]
    fn a_sequence_number_has_ten_characters_and_its_sign() {
        assert_eq!(sequential_path("/a-", 7), "/a-0000000007");
        assert_eq!(sequential_path("/a-", i32::MIN), "/a--2147483648");
        assert_eq!(sequential_path("/a-", -5), "/a--000000005");
    }
}
