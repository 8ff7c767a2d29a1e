//! The attributes of a file: everything besides its bytes and names.

use super::event::{FileKind, FileTime, Inode};

/// The owner and the permissions of a new file.
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
    /// Owned by root.
    fn from(mode: u32) -> FilePermissions {
        FilePermissions { mode, uid: 0, gid: 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    pub inode: Inode,
    /// The type: a file, a directory, a link and so on.
    pub kind: FileKind,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The number of its names; of a directory, two and one for each directory in it.
    pub links: u32,
    /// The device number, if it is a device.
    pub device: u64,
    /// The length in bytes, of a file or of a link's target.
    pub size: u64,
    /// The last change of its bytes or names, or the time that was set since.
    pub modified: FileTime,
    /// The last change of its bytes, names or attributes (`ctime`).
    pub changed: FileTime,
    /// The time that was set, or else when it was modified: reads leave no trace.
    pub accessed: FileTime,
    /// The time of its creation.
    pub born: FileTime,
}
