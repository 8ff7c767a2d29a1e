//! Paths in the server's tree of files, as users type them, and formatting of their attributes.

use std::fmt;

use client::tree::{TreeName, TreeNodeKind};
use fileview::PathError;
use hlc::SysTime;

use crate::moments::{MomentArg, TypedPath, date};
use crate::output::UsageError;

/// A path of either kind. One that begins with a slash is in the tree of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnyPath {
    Topic(TypedPath),
    Tree(TreePath),
}

impl AnyPath {
    pub(crate) fn parse(text: &str) -> Result<AnyPath, PathError> {
        if text.starts_with('/') {
            return Ok(AnyPath::Tree(TreePath { path: text.to_owned(), at: None }));
        }
        TypedPath::parse(text).map(AnyPath::Topic)
    }
}

/// A path in the tree of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreePath {
    path: String,
    at: Option<MomentArg>,
}

impl TreePath {
    pub(crate) fn parse(text: &str) -> Result<TreePath, String> {
        if text.starts_with('/') {
            return Ok(TreePath { path: text.to_owned(), at: None });
        }
        Err(format!("a path in the tree of files begins with a slash: /{text}"))
    }

    /// The same path as of a moment.
    pub(crate) fn with_at(self, at: Option<MomentArg>) -> Result<TreePath, UsageError> {
        if at.is_some() && (self.path == "/.at" || self.path.starts_with("/.at/")) {
            let message = "a moment is given twice: in the path and with --at".to_owned();
            return Err(UsageError(message));
        }
        Ok(TreePath { at, ..self })
    }

    /// Prints what a relative time was resolved to.
    pub(crate) fn announce(&self) {
        if let Some(at) = &self.at {
            at.announce();
        }
    }
}

/// The path as the request has it.
impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            write!(f, "/.at/{}", at.ask())?;
        }
        f.write_str(&self.path)
    }
}

/// A name as text.
pub(crate) fn name_of(name: &TreeName) -> String {
    let bytes = name.clone().into_bytes().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A name in the format of `ls -F`.
pub(crate) fn print_name(name: &str, kind: TreeNodeKind, target: Option<&str>) -> String {
    match (kind, target) {
        (TreeNodeKind::Directory, _) => format!("{name}/"),
        (_, Some(target)) => format!("{name} -> {target}"),
        _ => name.to_owned(),
    }
}

/// The letter of a file type.
pub(crate) fn kind_of(kind: TreeNodeKind) -> char {
    match kind {
        TreeNodeKind::Directory => 'd',
        TreeNodeKind::File => '-',
        TreeNodeKind::Symlink => 'l',
        TreeNodeKind::Other => '?',
    }
}

/// Permission bits as letters.
pub(crate) fn mode_of(mode: u32) -> String {
    let letters = "rwxrwxrwx".chars().enumerate();
    letters.map(|(nth, letter)| if mode >> (8 - nth) & 1 == 1 { letter } else { '-' }).collect()
}

/// A time as a date.
pub(crate) fn time_of((seconds, nanoseconds): (i64, u32)) -> String {
    let ms = seconds.saturating_mul(1000).saturating_add(i64::from(nanoseconds / 1_000_000));
    u64::try_from(ms).map_or_else(|_| format!("{seconds}s"), |ms| date(SysTime(ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_beginning_tells_a_path_of_the_tree_from_a_topic() {
        assert!(matches!(AnyPath::parse("orders/0"), Ok(AnyPath::Topic(_))));
        assert!(matches!(AnyPath::parse("/topics/orders"), Ok(AnyPath::Tree(_))));
        assert!(AnyPath::parse("a//b").is_err());
        assert!(TreePath::parse("topics").is_err());
    }

    #[test]
    fn a_moment_is_where_the_path_begins() {
        let at = || Some(MomentArg::parse("s5").unwrap());
        let path = TreePath::parse("/topics/a").unwrap();
        assert_eq!(path.clone().with_at(at()).unwrap().to_string(), "/.at/s5/topics/a");
        assert_eq!(path.with_at(None).unwrap().to_string(), "/topics/a");
        assert!(TreePath::parse("/.at/s6/files").unwrap().with_at(at()).is_err());
    }

    #[test]
    fn permissions_read_as_ls_prints_them() {
        assert_eq!(mode_of(0o754), "rwxr-xr--");
        assert_eq!(time_of((1_795_251_600, 123_456_789)), "2026-11-21T09:00:00.123Z");
        assert_eq!(time_of((-5, 0)), "-5s");
    }
}
