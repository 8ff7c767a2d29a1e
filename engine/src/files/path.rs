//! Paths: from names to inodes, as of a moment. Symbolic links are not followed: who mounts files
//! does that, and every other caller names the file itself.

use hlc::Cut;

use super::error::FileError;
use super::event::{FileKind, Inode, check_name};
use super::names::Names;

/// No path is longer, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Where something is: by a path from the root, or by a name in a directory.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    /// Names with slashes between them.
    Path(&'a [u8]),
    /// One name.
    In(Inode, &'a [u8]),
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for At<'a> {
    fn from(path: &'a T) -> At<'a> {
        At::Path(path.as_ref())
    }
}

impl<'a> From<(Inode, &'a [u8])> for At<'a> {
    fn from((parent, name): (Inode, &'a [u8])) -> At<'a> {
        At::In(parent, name)
    }
}

impl At<'_> {
    /// As it is shown to a person.
    pub(super) fn shown(&self) -> String {
        match self {
            At::Path(path) => shown(path),
            At::In(parent, name) => format!("inode {}/{}", parent.0, shown(name)),
        }
    }
}

/// A name, and the directory that it is in.
pub(super) struct Place<'a> {
    pub(super) parent: Inode,
    pub(super) name: &'a [u8],
}

/// A path as it is shown to a person.
pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Names {
    /// What `at` means in `cut`.
    pub(super) fn resolve(&self, at: At<'_>, cut: Cut) -> Result<Inode, FileError> {
        match at {
            At::Path(path) => self.walk(path, cut),
            At::In(parent, name) => self.step(parent, name, cut, name),
        }
    }

    fn walk(&self, path: &[u8], cut: Cut) -> Result<Inode, FileError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(FileError::NameTooLong(path.len()));
        }
        let mut inode = Inode::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            inode = self.step(inode, name, cut, path)?;
        }
        if path.ends_with(b"/") && self.record(inode, cut)?.1.kind != FileKind::Directory {
            return Err(FileError::NotDirectory(shown(path)));
        }
        Ok(inode)
    }

    fn step(&self, from: Inode, name: &[u8], cut: Cut, path: &[u8]) -> Result<Inode, FileError> {
        if name.is_empty() {
            return Ok(from);
        }
        let (_, record) = self.record(from, cut)?;
        if record.kind != FileKind::Directory {
            return Err(FileError::NotDirectory(shown(path)));
        }
        match name {
            b"." => return Ok(from),
            b".." => return Ok(record.parent),
            _ => check_name(name)?,
        }
        self.lookup(from, name, cut)?.ok_or_else(|| FileError::NotFound(shown(path)))
    }

    /// The directory that something is or will be in, as it is now, and its name.
    pub(super) fn place<'a>(&self, at: At<'a>) -> Result<Place<'a>, FileError> {
        let (parent, name) = match at {
            At::Path(path) => self.parent_of(path)?,
            At::In(parent, name) => (parent, name),
        };
        check_name(name)?;
        let (_, record) = self.record(parent, Cut::ALL)?;
        match (record.kind, record.links) {
            // What was removed is still there for those who have it open, and takes no names.
            (FileKind::Directory, 0) => Err(FileError::NotFound(at.shown())),
            (FileKind::Directory, _) => Ok(Place { parent, name }),
            _ => Err(FileError::NotDirectory(at.shown())),
        }
    }

    fn parent_of<'a>(&self, path: &'a [u8]) -> Result<(Inode, &'a [u8]), FileError> {
        let trimmed = match path.iter().rposition(|byte| *byte != b'/') {
            Some(last) => &path[..=last],
            None => return Err(FileError::Invalid("the root is in no directory")),
        };
        let begin = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        Ok((self.walk(&trimmed[..begin], Cut::ALL)?, &trimmed[begin..]))
    }
}
