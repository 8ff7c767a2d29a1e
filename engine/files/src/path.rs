//! Paths: from names to inodes, as of a moment. Symbolic links are not followed: a mount does that
//! itself, and every other caller names the file itself.

use hlc::Cut;

use super::error::FileError;
use super::event::{FileKind, Inode, check_name};
use super::names::FileNames;

/// The maximum length of a path, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// The location of a file: a path from the root, or a name in a directory.
#[derive(Clone, Copy, Debug)]
pub enum FileLocation<'a> {
    /// Names separated by slashes.
    Path(&'a [u8]),
    /// One name.
    Child(Inode, &'a [u8]),
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for FileLocation<'a> {
    fn from(path: &'a T) -> FileLocation<'a> {
        FileLocation::Path(path.as_ref())
    }
}

impl<'a> From<(Inode, &'a [u8])> for FileLocation<'a> {
    fn from((parent, name): (Inode, &'a [u8])) -> FileLocation<'a> {
        FileLocation::Child(parent, name)
    }
}

impl FileLocation<'_> {
    /// The location in readable form.
    pub(super) fn display(&self) -> String {
        match self {
            FileLocation::Path(path) => display_path(path),
            FileLocation::Child(parent, name) => {
                format!("inode {}/{}", parent.0, display_path(name))
            }
        }
    }
}

/// A name, and the directory that it is in.
pub(super) struct ResolvedName<'a> {
    pub(super) parent: Inode,
    pub(super) name: &'a [u8],
}

/// A path in readable form.
pub(super) fn display_path(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl FileNames {
    /// The inode at `at` in `cut`.
    pub(super) fn resolve(&self, at: FileLocation<'_>, cut: Cut) -> Result<Inode, FileError> {
        match at {
            FileLocation::Path(path) => self.walk(path, cut),
            FileLocation::Child(parent, name) => self.resolve_component(parent, name, cut, name),
        }
    }

    fn walk(&self, path: &[u8], cut: Cut) -> Result<Inode, FileError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(FileError::NameTooLong(path.len()));
        }
        let mut inode = Inode::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            inode = self.resolve_component(inode, name, cut, path)?;
        }
        if path.ends_with(b"/") && self.record(inode, cut)?.1.kind != FileKind::Directory {
            return Err(FileError::NotDirectory(display_path(path)));
        }
        Ok(inode)
    }

    fn resolve_component(
        &self,
        from: Inode,
        name: &[u8],
        cut: Cut,
        path: &[u8],
    ) -> Result<Inode, FileError> {
        if name.is_empty() {
            return Ok(from);
        }
        let (_, record) = self.record(from, cut)?;
        if record.kind != FileKind::Directory {
            return Err(FileError::NotDirectory(display_path(path)));
        }
        match name {
            b"." => return Ok(from),
            b".." => return Ok(record.parent),
            _ => check_name(name)?,
        }
        self.lookup(from, name, cut)?.ok_or_else(|| FileError::NotFound(display_path(path)))
    }

    /// The parent directory of a location, as of now, and the name in it. The name need not exist.
    pub(super) fn resolve_parent<'a>(
        &self,
        at: FileLocation<'a>,
    ) -> Result<ResolvedName<'a>, FileError> {
        let (parent, name) = match at {
            FileLocation::Path(path) => self.parent_of(path)?,
            FileLocation::Child(parent, name) => (parent, name),
        };
        check_name(name)?;
        let (_, record) = self.record(parent, Cut::ALL)?;
        match (record.kind, record.links) {
            // A removed directory still exists for open handles, and accepts no names.
            (FileKind::Directory, 0) => Err(FileError::NotFound(at.display())),
            (FileKind::Directory, _) => Ok(ResolvedName { parent, name }),
            _ => Err(FileError::NotDirectory(at.display())),
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
