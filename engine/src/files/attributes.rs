//! What is known of a file besides its bytes and names.

use super::event::{FileKind, FileTime, Inode};

/// Whose something new is, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FilePermissions {
    /// The permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl From<u32> for FilePermissions {
    /// Root's.
    fn from(mode: u32) -> FilePermissions {
        FilePermissions { mode, uid: 0, gid: 0 }
    }
}

/// What is known of a file without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    /// Its number.
    pub inode: Inode,
    /// What it is.
    pub kind: FileKind,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// How many names it has; of a directory, two and one for each directory in it.
    pub links: u32,
    /// Which device, if it is one.
    pub device: u64,
    /// Bytes, of a file or of a link's target.
    pub size: u64,
    /// When its bytes or names changed last, or what was set since.
    pub modified: FileTime,
    /// When anything of it changed last.
    pub changed: FileTime,
    /// What was set, or else when it was modified: reads leave no trace.
    pub accessed: FileTime,
    /// When it was made.
    pub born: FileTime,
}
