//! Lookups: paths, directory listings and attributes, now and as of a moment.

use hlc::{Cut, Hlc};

use super::FileSystem;
use super::attributes::FileAttributes;
use super::error::FileError;
use super::event::{FileKind, Inode};
use super::names::DirectoryEntry;
use super::path::{FileLocation, display_path};

impl FileSystem {
    /// The inode at a path.
    ///
    /// # Errors
    /// The path does not exist, or cannot be read.
    pub fn resolve<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        cut: Cut,
    ) -> Result<Inode, FileError> {
        self.names(cut)?.resolve(at.into(), cut)
    }

    /// The inode of a name in a directory.
    ///
    /// # Errors
    /// The name does not exist, or cannot be read.
    pub fn lookup(&self, parent: Inode, name: &[u8], cut: Cut) -> Result<Inode, FileError> {
        let inode = self.names(cut)?.lookup(parent, name, cut)?;
        inode.ok_or_else(|| FileError::NotFound(display_path(name)))
    }

    /// The names in a directory, in byte order.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub fn list<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        cut: Cut,
    ) -> Result<Vec<DirectoryEntry>, FileError> {
        let inode = self.resolve(at, cut)?;
        self.list_inode(inode, cut)
    }

    /// [`FileSystem::list`] by inode.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub fn list_inode(&self, inode: Inode, cut: Cut) -> Result<Vec<DirectoryEntry>, FileError> {
        let names = self.names(cut)?;
        match names.record(inode, cut)?.1.kind {
            FileKind::Directory => names.list(inode, cut),
            _ => Err(FileError::NotDirectory(format!("inode {}", inode.0))),
        }
    }

    /// The attributes of the file at a path.
    ///
    /// # Errors
    /// The path does not exist, or cannot be read.
    pub fn stat<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        cut: Cut,
    ) -> Result<FileAttributes, FileError> {
        let inode = self.resolve(at, cut)?;
        self.stat_inode(inode, cut)
    }

    /// [`FileSystem::stat`] by inode, even if it has no name any more.
    ///
    /// # Errors
    /// There was no such inode, or it cannot be read.
    pub fn stat_inode(&self, inode: Inode, cut: Cut) -> Result<FileAttributes, FileError> {
        let names = self.names(cut)?;
        let (since, record) = names.record(inode, cut)?;
        let born = Hlc::from_bits(record.born);
        let (size, written) = match record.kind {
            FileKind::File => {
                let view = self.view(inode, cut)?;
                (view.length(), view.modified())
            }
            FileKind::Directory => (0, names.names_changed_at(inode, cut)?),
            FileKind::Symlink => {
                (names.link_target(inode, cut)?.map_or(0, |target| target.len() as u64), Hlc::ZERO)
            }
            _ => (0, Hlc::ZERO),
        };
        let modified = match record.modified {
            Some((time, when)) if when > written.bits() => time,
            _ => written.max(born).into(),
        };
        Ok(FileAttributes {
            inode,
            kind: record.kind,
            mode: record.mode,
            uid: record.uid,
            gid: record.gid,
            links: record.posix_links(),
            device: record.device,
            size,
            modified,
            changed: since.max(written).into(),
            accessed: record.accessed.unwrap_or(modified),
            born: born.into(),
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The path does not exist, or is no link.
    pub fn read_link<'a>(
        &self,
        at: impl Into<FileLocation<'a>>,
        cut: Cut,
    ) -> Result<Vec<u8>, FileError> {
        let inode = self.resolve(at, cut)?;
        self.read_link_inode(inode, cut)
    }

    /// [`FileSystem::read_link`] by inode.
    ///
    /// # Errors
    /// It is no link, or cannot be read.
    pub fn read_link_inode(&self, inode: Inode, cut: Cut) -> Result<Vec<u8>, FileError> {
        let target = self.names(cut)?.link_target(inode, cut)?;
        target.ok_or(FileError::Invalid("it is no symbolic link"))
    }

    /// The value of an extended attribute; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get_xattr(
        &self,
        inode: Inode,
        name: &[u8],
        cut: Cut,
    ) -> Result<Option<Vec<u8>>, FileError> {
        self.names(cut)?.get_xattr(inode, name, cut)
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn list_xattrs(&self, inode: Inode, cut: Cut) -> Result<Vec<Vec<u8>>, FileError> {
        self.names(cut)?.list_xattrs(inode, cut)
    }
}
