//! Operations that change files. A change is accepted when it is answered, and on stable storage
//! after the next `fsync` of anything.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use engine::Durability;
use engine::files::{
    AttributeUpdate, FileAttributes, FileError, FileKind, FilePermissions, Inode, RenameMode,
    TouchTimes,
};
use fuser::{FileHandle, FopenFlags, RenameFlags, TimeOrNow};
use hlc::Cut;
use rustix::fs::OFlags;

use super::attributes::{attributes, file_time};
use super::coherence::CacheInvalidation;
use super::errno::FuseErrno;
use super::handles::FuseHandle;
use super::inode_table::inode_number;
use super::mounted_tree::{EntryReply, FuseCaller, MountedTree, is_stored_attribute};

/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// The attributes to set on a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SetattrRequest {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
}

/// A node to create, with the arguments of `mknod`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MknodRequest {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) device: u64,
}

/// The flags of `fallocate`.
mod allocate {
    pub(super) const KEEP_SIZE: i32 = 1;
    pub(super) const PUNCH_HOLE: i32 = 2;
    pub(super) const ZERO_RANGE: i32 = 16;
}

/// The flags of `setxattr`.
mod extended {
    pub(super) const CREATE: i32 = 1;
    pub(super) const REPLACE: i32 = 2;
}

/// The file type in a mode.
pub(super) fn kind_of(mode: u32) -> Result<FileKind, FuseErrno> {
    match mode & 0o170_000 {
        0 | 0o100_000 => Ok(FileKind::File),
        0o010_000 => Ok(FileKind::Fifo),
        0o140_000 => Ok(FileKind::Socket),
        0o020_000 => Ok(FileKind::CharacterDevice),
        0o060_000 => Ok(FileKind::BlockDevice),
        _ => Err(FuseErrno::INVALID),
    }
}

/// The mode without the set-id bits. A change by another user clears them.
fn without_set_id(mode: u32) -> u32 {
    match mode & GROUP_EXECUTES {
        0 => mode & !SET_UID,
        _ => mode & !(SET_UID | SET_GID),
    }
}

impl MountedTree {
    fn invalidate_others(&self, changes: &[CacheInvalidation]) {
        self.invalidator.invalidate_others(self.id, changes);
    }

    fn invalidate_name(&self, parent: u64, name: &OsStr) {
        self.invalidate_others(&[
            CacheInvalidation::Entry(parent, name.to_owned()),
            CacheInvalidation::Inode(parent),
        ]);
    }

    /// The permissions of a new node in `parent`. A set-group-id directory passes its group to new
    /// nodes, and the bit itself to new directories.
    fn permissions(
        &self,
        parent: Inode,
        caller: FuseCaller,
        making: MknodRequest,
    ) -> Result<FilePermissions, FuseErrno> {
        let above = self.files.stat_inode(parent, Cut::ALL)?;
        let mut mode = making.mode & PERMISSIONS;
        let mut gid = caller.gid;
        if above.mode & SET_GID != 0 {
            gid = above.gid;
            if making.kind == FileKind::Directory {
                mode |= SET_GID;
            }
        }
        Ok(FilePermissions { mode, uid: caller.uid, gid })
    }

    // ---- Names ----

    pub(super) fn make_node(
        &self,
        parent: u64,
        name: &OsStr,
        making: MknodRequest,
        caller: FuseCaller,
    ) -> Result<EntryReply, FuseErrno> {
        let directory = self.directory(parent)?;
        let permissions = self.permissions(directory, caller, making)?;
        let at = (directory, name.as_bytes());
        let node = self.files.mknod(at, making.kind, permissions, making.device);
        let inode = self.wait(node)?;
        self.invalidate_name(parent, name);
        self.file_reply(inode)
    }

    /// Creates a file and opens it. Opens an existing file, if the flags allow it.
    pub(super) fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
        caller: FuseCaller,
    ) -> Result<(EntryReply, FileHandle, FopenFlags), FuseErrno> {
        let directory = self.directory(parent)?;
        let making = MknodRequest { kind: FileKind::File, mode, device: 0 };
        let permissions = self.permissions(directory, caller, making)?;
        let at = (directory, name.as_bytes());
        let file = match self.wait(self.files.create(at, permissions)) {
            // Another mount has created it in the meantime.
            Err(FileError::Exists(_)) if !flags.contains(OFlags::EXCL) => {
                let inode = self.files.lookup(directory, name.as_bytes(), Cut::ALL)?;
                let file = self.files.open_inode(inode)?;
                if flags.contains(OFlags::TRUNC) {
                    self.wait(file.truncate(0, Durability::Written))?;
                }
                file
            }
            result => result?,
        };
        self.invalidate_name(parent, name);
        let entry = self.file_reply(file.inode())?;
        Ok((entry, self.handles.add(FuseHandle::File(file))?, FopenFlags::FOPEN_KEEP_CACHE))
    }

    pub(super) fn symlink(
        &self,
        parent: u64,
        name: &OsStr,
        target: &[u8],
        caller: FuseCaller,
    ) -> Result<EntryReply, FuseErrno> {
        let directory = self.directory(parent)?;
        let making = MknodRequest { kind: FileKind::Symlink, mode: 0o777, device: 0 };
        let permissions = self.permissions(directory, caller, making)?;
        let at = (directory, name.as_bytes());
        let inode = self.wait(self.files.symlink(target, at, permissions))?;
        self.invalidate_name(parent, name);
        self.file_reply(inode)
    }

    pub(super) fn link(
        &self,
        file: u64,
        parent: u64,
        name: &OsStr,
    ) -> Result<EntryReply, FuseErrno> {
        let (inode, directory) = (self.file(file)?, self.directory(parent)?);
        self.wait(self.files.link_inode(inode, (directory, name.as_bytes())))?;
        self.invalidate_name(parent, name);
        self.invalidate_others(&[CacheInvalidation::Inode(file)]);
        self.file_reply(inode)
    }

    pub(super) fn remove(
        &self,
        parent: u64,
        name: &OsStr,
        is_directory: bool,
    ) -> Result<(), FuseErrno> {
        let directory = self.directory(parent)?;
        let at = (directory, name.as_bytes());
        let inode_before = self.files.lookup(directory, name.as_bytes(), Cut::ALL);
        let removed = if is_directory {
            self.wait(self.files.rmdir(at))
        } else {
            self.wait(self.files.unlink(at))
        };
        match removed {
            // A name with a moment: the file exists, but it is read only.
            Err(FileError::NotFound(_)) if self.is_past(directory, name.as_bytes()) => {
                return Err(FuseErrno::READ_ONLY);
            }
            removed => removed?,
        }
        self.invalidate_name(parent, name);
        if let Ok(inode) = inode_before {
            self.invalidate_others(&[CacheInvalidation::Inode(inode_number(inode))]);
        }
        Ok(())
    }

    pub(super) fn rename(
        &self,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<(), FuseErrno> {
        let target = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(FuseErrno::INVALID),
        };
        let old = (self.directory(parent)?, name.as_bytes());
        let new = (self.directory(new_parent)?, new_name.as_bytes());
        let replaced = self.files.lookup(new.0, new.1, Cut::ALL);
        self.wait(self.files.rename_to(old, new, target))?;
        self.invalidate_name(parent, name);
        self.invalidate_name(new_parent, new_name);
        if let Ok(inode) = replaced {
            self.invalidate_others(&[CacheInvalidation::Inode(inode_number(inode))]);
        }
        Ok(())
    }

    // ---- Attributes ----

    pub(super) fn set_attributes(
        &self,
        node: u64,
        setting: SetattrRequest,
        open: Option<u64>,
        caller: FuseCaller,
    ) -> Result<EntryReply, FuseErrno> {
        let inode = self.file(node)?;
        if let Some(size) = setting.size {
            self.truncate(inode, open, size)?;
        }
        let before = self.files.stat_inode(inode, Cut::ALL)?;
        let (set, now) = resolve_attributes(setting, &before, caller);
        if set != AttributeUpdate::default() || now != TouchTimes::default() {
            self.wait(self.files.set_attributes_and_times(inode, set, now))?;
        }
        self.invalidate_others(&[CacheInvalidation::Inode(node)]);
        let file = self.files.stat_inode(inode, Cut::ALL)?;
        Ok(EntryReply { attributes: attributes(node, &file), ttl: self.files_ttl() })
    }

    fn truncate(&self, inode: Inode, open: Option<u64>, size: u64) -> Result<(), FuseErrno> {
        let handle = open.and_then(|open| self.handles.find(open).ok());
        match handle.as_deref() {
            Some(FuseHandle::File(file)) => self.wait(file.truncate(size, Durability::Written))?,
            _ => {
                let file = self.files.open_inode(inode)?;
                self.wait(file.truncate(size, Durability::Written))?
            }
        };
        Ok(())
    }

    pub(super) fn set_extended_attribute(
        &self,
        node: u64,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Result<(), FuseErrno> {
        let (inode, name) = (self.file(node)?, name.as_bytes());
        if !is_stored_attribute(name) {
            return Err(FuseErrno::NOT_SUPPORTED);
        }
        let is_there = self.files.get_xattr(inode, name, Cut::ALL)?.is_some();
        match (is_there, value) {
            (true, Some(_)) if flags & extended::CREATE != 0 => return Err(FuseErrno::EXISTS),
            (false, Some(_)) if flags & extended::REPLACE != 0 => return Err(FuseErrno::NO_DATA),
            (false, None) => return Err(FuseErrno::NO_DATA),
            _ => {}
        }
        self.wait(self.files.set_xattr(inode, name, value))?;
        self.invalidate_others(&[CacheInvalidation::Inode(node)]);
        Ok(())
    }

    // ---- Bytes ----

    /// Writes. A write at the end goes to the current end, which another mount may have moved. In
    /// that case the kernel's cache is invalidated, because it assumed another end.
    pub(super) fn write(&self, open: u64, write: WriteRequest) -> Result<(), FuseErrno> {
        let handle = self.handles.find(open)?;
        let FuseHandle::File(file) = &*handle else { return Err(FuseErrno::READ_ONLY) };
        let node = inode_number(file.inode());
        if write.clears_set_id {
            self.clear_set_id(file.inode())?;
        }
        if write.at_end {
            let _end = self.append_locks[file.inode().0 as usize % self.append_locks.len()].lock();
            let end = file.view_at(Cut::ALL)?.length();
            self.wait(file.write_at(end, write.data, Durability::Written))?;
            if end != write.offset {
                self.invalidator.invalidate(self.id, &CacheInvalidation::Inode(node));
            }
        } else {
            self.wait(file.write_at(write.offset, write.data, Durability::Written))?;
        }
        self.invalidate_others(&[CacheInvalidation::Inode(node)]);
        Ok(())
    }

    /// Clears the set-id bits on a write by a user who is not root: the new contents must not run
    /// as the owner.
    fn clear_set_id(&self, inode: Inode) -> Result<(), FuseErrno> {
        let file = self.files.stat_inode(inode, Cut::ALL)?;
        let mode = without_set_id(file.mode);
        if mode != file.mode {
            let set = AttributeUpdate { mode: Some(mode), ..AttributeUpdate::default() };
            self.wait(self.files.set_attributes(inode, set))?;
        }
        Ok(())
    }

    /// Extends the file or punches a hole. It reserves no space: a log has no place for a byte
    /// before the byte is written.
    pub(super) fn allocate(
        &self,
        open: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<(), FuseErrno> {
        let handle = self.handles.find(open)?;
        let FuseHandle::File(file) = &*handle else { return Err(FuseErrno::READ_ONLY) };
        let end = offset.checked_add(length).ok_or(FuseErrno::TOO_LARGE)?;
        let grows = mode & allocate::KEEP_SIZE == 0;
        match mode & !allocate::KEEP_SIZE {
            0 => {}
            allocate::PUNCH_HOLE if grows => return Err(FuseErrno::NOT_SUPPORTED),
            allocate::PUNCH_HOLE | allocate::ZERO_RANGE => {
                self.wait(file.punch_hole(offset..end, Durability::Written))?;
            }
            _ => return Err(FuseErrno::NOT_SUPPORTED),
        }
        let grown = grows && self.wait(file.extend(end, Durability::Written))?.is_some();
        if !grown {
            let now = TouchTimes { modified: true, accessed: false };
            self.wait(self.files.set_attributes_and_times(
                file.inode(),
                AttributeUpdate::default(),
                now,
            ))?;
        }
        self.invalidate_others(&[CacheInvalidation::Inode(inode_number(file.inode()))]);
        Ok(())
    }

    /// The offset where data or a hole begins.
    pub(super) fn seek(&self, open: u64, offset: i64, data: bool) -> Result<i64, FuseErrno> {
        let offset = u64::try_from(offset).map_err(|_| FuseErrno::NO_SUCH_OFFSET)?;
        let position = match &*self.handles.find(open)? {
            FuseHandle::File(file) => file.view_at(Cut::ALL)?.seek_data_or_hole(offset, data)?,
            // There are no holes, except after the end.
            FuseHandle::Node(handle) => match self.wait(handle.open.size())? {
                size if offset >= size => None,
                size => Some(if data { offset } else { size }),
            },
            FuseHandle::Directory(_) => return Err(FuseErrno::IS_DIRECTORY),
        };
        Ok(position.ok_or(FuseErrno::NO_SUCH_OFFSET)? as i64)
    }
}

pub(super) struct WriteRequest {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// At the end of the file, wherever that is.
    pub(super) at_end: bool,
    /// The writer may not leave the set-id bits on the file.
    pub(super) clears_set_id: bool,
}

fn resolve_attributes(
    setting: SetattrRequest,
    before: &FileAttributes,
    caller: FuseCaller,
) -> (AttributeUpdate, TouchTimes) {
    let is_file = before.kind == FileKind::File;
    let owner_changes = setting.uid.is_some() || setting.gid.is_some();
    let shrinks_by_other = setting.size.is_some() && caller.uid != 0;
    let mode = match setting.mode {
        Some(mode) => Some(mode & PERMISSIONS),
        None if is_file && (owner_changes || shrinks_by_other) => {
            Some(without_set_id(before.mode)).filter(|mode| *mode != before.mode)
        }
        None => None,
    };
    let set = AttributeUpdate {
        mode,
        uid: setting.uid,
        gid: setting.gid,
        modified: setting.modified.and_then(file_time),
        accessed: setting.accessed.and_then(file_time),
    };
    let is_now = |time| matches!(time, Some(TimeOrNow::Now));
    let now = TouchTimes { modified: is_now(setting.modified), accessed: is_now(setting.accessed) };
    // A truncation sets the modification time itself.
    let now = if setting.size.is_some() { TouchTimes { modified: false, ..now } } else { now };
    (set, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_says_what_to_make() {
        assert_eq!(kind_of(0o100_644), Ok(FileKind::File));
        assert_eq!(kind_of(0o644), Ok(FileKind::File));
        assert_eq!(kind_of(0o010_600), Ok(FileKind::Fifo));
        assert_eq!(kind_of(0o040_755), Err(FuseErrno::INVALID));
        assert_eq!(kind_of(0o120_777), Err(FuseErrno::INVALID));
    }

    #[test]
    fn what_runs_as_its_owner_loses_that_when_others_change_it() {
        assert_eq!(without_set_id(0o6755), 0o755);
        // Without group execution the bit means mandatory locking, and stays.
        assert_eq!(without_set_id(0o6745), 0o2745);
        assert_eq!(without_set_id(0o1777), 0o1777);
    }
}
