//! What changes files. Each change is accepted when it is answered, and on stable storage after the
//! next `fsync` of anything.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use engine::Durability;
use engine::files::{
    FileAttributes, FileError, FileKind, Inode, Now, Permissions, SetAttributes, Target,
};
use fuser::{FileHandle, FopenFlags, RenameFlags, TimeOrNow};
use hlc::Cut;
use rustix::fs::OFlags;

use super::attributes::{attributes, file_time};
use super::coherence::Changed;
use super::handles::Handle;
use super::mounted::{Caller, Mounted, Told, is_kept};
use super::nodes::number;
use super::refused::Refused;

/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// What is to be set of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setting {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
}

/// Something to be made, as `mknod` says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) device: u64,
}

/// What `fallocate` can be asked for, in its numbers.
mod allocate {
    pub(super) const KEEP_SIZE: i32 = 1;
    pub(super) const PUNCH_HOLE: i32 = 2;
    pub(super) const ZERO_RANGE: i32 = 16;
}

/// What `setxattr` can be asked for, in its numbers.
mod extended {
    pub(super) const CREATE: i32 = 1;
    pub(super) const REPLACE: i32 = 2;
}

/// What a mode says that something is.
pub(super) fn kind_of(mode: u32) -> Result<FileKind, Refused> {
    match mode & 0o170_000 {
        0 | 0o100_000 => Ok(FileKind::File),
        0o010_000 => Ok(FileKind::Fifo),
        0o140_000 => Ok(FileKind::Socket),
        0o020_000 => Ok(FileKind::CharacterDevice),
        0o060_000 => Ok(FileKind::BlockDevice),
        _ => Err(Refused::INVALID),
    }
}

/// The mode without what lets others act as the owner, which a change by others takes away.
fn without_set_id(mode: u32) -> u32 {
    match mode & GROUP_EXECUTES {
        0 => mode & !SET_UID,
        _ => mode & !(SET_UID | SET_GID),
    }
}

impl Mounted {
    fn told(&self, changes: &[Changed]) {
        self.audience.tell_others(self.id, changes);
    }

    fn named(&self, parent: u64, name: &OsStr) {
        self.told(&[Changed::Name(parent, name.to_owned()), Changed::Node(parent)]);
    }

    /// Whose a new thing in `parent` is. A directory that gives its group to what is in it gives that
    /// to directories too.
    fn permissions(
        &self,
        parent: Inode,
        caller: Caller,
        making: Making,
    ) -> Result<Permissions, Refused> {
        let above = self.files.stat_inode(parent, Cut::ALL)?;
        let mut mode = making.mode & PERMISSIONS;
        let mut gid = caller.gid;
        if above.mode & SET_GID != 0 {
            gid = above.gid;
            if making.kind == FileKind::Directory {
                mode |= SET_GID;
            }
        }
        Ok(Permissions { mode, uid: caller.uid, gid })
    }

    // ---- Names ----

    pub(super) fn make(
        &self,
        parent: u64,
        name: &OsStr,
        making: Making,
        caller: Caller,
    ) -> Result<Told, Refused> {
        let directory = self.directory(parent)?;
        let permissions = self.permissions(directory, caller, making)?;
        let at = (directory, name.as_bytes());
        let node = self.files.make_node(at, making.kind, permissions, making.device);
        let inode = self.wait(node)?;
        self.named(parent, name);
        self.told_of_file(inode)
    }

    /// Makes a file and opens it; or opens one that is there, if that will do.
    pub(super) fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
        caller: Caller,
    ) -> Result<(Told, FileHandle, FopenFlags), Refused> {
        let directory = self.directory(parent)?;
        let making = Making { kind: FileKind::File, mode, device: 0 };
        let permissions = self.permissions(directory, caller, making)?;
        let at = (directory, name.as_bytes());
        let file = match self.wait(self.files.create(at, permissions)) {
            // Somebody else has made it meanwhile, through another mount.
            Err(FileError::Exists(_)) if !flags.contains(OFlags::EXCL) => {
                let inode = self.files.lookup(directory, name.as_bytes(), Cut::ALL)?;
                let file = self.files.open_inode(inode)?;
                if flags.contains(OFlags::TRUNC) {
                    self.wait(file.truncate(0, Durability::Written))?;
                }
                file
            }
            made => made?,
        };
        self.named(parent, name);
        let told = self.told_of_file(file.inode())?;
        Ok((told, self.handles.add(Handle::File(file))?, FopenFlags::FOPEN_KEEP_CACHE))
    }

    pub(super) fn symlink(
        &self,
        parent: u64,
        name: &OsStr,
        target: &[u8],
        caller: Caller,
    ) -> Result<Told, Refused> {
        let directory = self.directory(parent)?;
        let making = Making { kind: FileKind::Symlink, mode: 0o777, device: 0 };
        let permissions = self.permissions(directory, caller, making)?;
        let at = (directory, name.as_bytes());
        let inode = self.wait(self.files.symlink(target, at, permissions))?;
        self.named(parent, name);
        self.told_of_file(inode)
    }

    pub(super) fn link(&self, file: u64, parent: u64, name: &OsStr) -> Result<Told, Refused> {
        let (inode, directory) = (self.file(file)?, self.directory(parent)?);
        self.wait(self.files.link_inode(inode, (directory, name.as_bytes())))?;
        self.named(parent, name);
        self.told(&[Changed::Node(file)]);
        self.told_of_file(inode)
    }

    pub(super) fn remove(
        &self,
        parent: u64,
        name: &OsStr,
        is_directory: bool,
    ) -> Result<(), Refused> {
        let directory = self.directory(parent)?;
        let at = (directory, name.as_bytes());
        let known = self.files.lookup(directory, name.as_bytes(), Cut::ALL);
        let removed = match is_directory {
            true => self.wait(self.files.rmdir(at)),
            false => self.wait(self.files.unlink(at)),
        };
        match removed {
            // A name and a moment: it is there, but only to be read.
            Err(FileError::NotFound(_)) if self.is_past(directory, name.as_bytes()) => {
                return Err(Refused::READ_ONLY);
            }
            removed => removed?,
        }
        self.named(parent, name);
        if let Ok(inode) = known {
            self.told(&[Changed::Node(number(inode))]);
        }
        Ok(())
    }

    pub(super) fn rename(
        &self,
        from: (u64, OsString),
        to: (u64, OsString),
        flags: RenameFlags,
    ) -> Result<(), Refused> {
        let target = match flags {
            flags if flags.is_empty() => Target::Replaced,
            RenameFlags::RENAME_NOREPLACE => Target::Absent,
            RenameFlags::RENAME_EXCHANGE => Target::Exchanged,
            _ => return Err(Refused::INVALID),
        };
        let (old, new) = (self.directory(from.0)?, self.directory(to.0)?);
        let (old, new) = ((old, from.1.as_bytes()), (new, to.1.as_bytes()));
        let replaced = self.files.lookup(new.0, new.1, Cut::ALL);
        self.wait(self.files.rename_to(old, new, target))?;
        self.named(from.0, &from.1);
        self.named(to.0, &to.1);
        if let Ok(inode) = replaced {
            self.told(&[Changed::Node(number(inode))]);
        }
        Ok(())
    }

    // ---- Attributes ----

    pub(super) fn set(
        &self,
        node: u64,
        setting: Setting,
        open: Option<u64>,
        caller: Caller,
    ) -> Result<Told, Refused> {
        let inode = self.file(node)?;
        if let Some(size) = setting.size {
            self.truncate(inode, open, size)?;
        }
        let before = self.files.stat_inode(inode, Cut::ALL)?;
        let (set, now) = what_to_set(setting, &before, caller);
        if set != SetAttributes::default() || now != Now::default() {
            self.wait(self.files.set(inode, set, now))?;
        }
        self.told(&[Changed::Node(node)]);
        let file = self.files.stat_inode(inode, Cut::ALL)?;
        Ok(Told { attributes: attributes(node, &file), ttl: self.files_ttl() })
    }

    fn truncate(&self, inode: Inode, open: Option<u64>, size: u64) -> Result<(), Refused> {
        let handle = open.and_then(|open| self.handles.find(open).ok());
        match handle.as_deref() {
            Some(Handle::File(file)) => self.wait(file.truncate(size, Durability::Written))?,
            _ => {
                let file = self.files.open_inode(inode)?;
                self.wait(file.truncate(size, Durability::Written))?
            }
        };
        Ok(())
    }

    pub(super) fn set_extended(
        &self,
        node: u64,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Result<(), Refused> {
        let (inode, name) = (self.file(node)?, name.as_bytes());
        if !is_kept(name) {
            return Err(Refused::NOT_SUPPORTED);
        }
        let is_there = self.files.extended(inode, name, Cut::ALL)?.is_some();
        match (is_there, value) {
            (true, Some(_)) if flags & extended::CREATE != 0 => return Err(Refused::EXISTS),
            (false, Some(_)) if flags & extended::REPLACE != 0 => return Err(Refused::NO_DATA),
            (false, None) => return Err(Refused::NO_DATA),
            _ => {}
        }
        self.wait(self.files.set_extended(inode, name, value))?;
        self.told(&[Changed::Node(node)]);
        Ok(())
    }

    // ---- Bytes ----

    /// Writes. A write at the end goes to the end as it is here: another mount may have moved it, and
    /// then the kernel is told that it thought otherwise.
    pub(super) fn write(&self, open: u64, write: Write) -> Result<(), Refused> {
        let handle = self.handles.find(open)?;
        let Handle::File(file) = &*handle else { return Err(Refused::READ_ONLY) };
        let node = number(file.inode());
        if write.takes_set_id {
            self.take_set_id(file.inode())?;
        }
        if write.at_end {
            let _end = self.ends[file.inode().0 as usize % self.ends.len()].lock();
            let end = file.at(Cut::ALL)?.length();
            self.wait(file.write_at(end, write.data, Durability::Written))?;
            if end != write.offset {
                self.audience.tell(self.id, &Changed::Node(node));
            }
        } else {
            self.wait(file.write_at(write.offset, write.data, Durability::Written))?;
        }
        self.told(&[Changed::Node(node)]);
        Ok(())
    }

    /// A write by somebody who is not root: what it writes is not to run as the owner.
    fn take_set_id(&self, inode: Inode) -> Result<(), Refused> {
        let file = self.files.stat_inode(inode, Cut::ALL)?;
        let mode = without_set_id(file.mode);
        if mode != file.mode {
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            self.wait(self.files.set_attributes(inode, set))?;
        }
        Ok(())
    }

    /// Makes room or a hole. Room is not set aside: a log has no place for a byte before it comes.
    pub(super) fn allocate(
        &self,
        open: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<(), Refused> {
        let handle = self.handles.find(open)?;
        let Handle::File(file) = &*handle else { return Err(Refused::READ_ONLY) };
        let end = offset.checked_add(length).ok_or(Refused::TOO_LARGE)?;
        let grows = mode & allocate::KEEP_SIZE == 0;
        match mode & !allocate::KEEP_SIZE {
            0 => {}
            allocate::PUNCH_HOLE if grows => return Err(Refused::NOT_SUPPORTED),
            allocate::PUNCH_HOLE | allocate::ZERO_RANGE => {
                self.wait(file.punch(offset..end, Durability::Written))?;
            }
            _ => return Err(Refused::NOT_SUPPORTED),
        }
        let grown = grows && self.wait(file.extend(end, Durability::Written))?.is_some();
        if !grown {
            let now = Now { modified: true, accessed: false };
            self.wait(self.files.set(file.inode(), SetAttributes::default(), now))?;
        }
        self.told(&[Changed::Node(number(file.inode()))]);
        Ok(())
    }

    /// Where data or a hole begins.
    pub(super) fn seek(&self, open: u64, offset: i64, data: bool) -> Result<i64, Refused> {
        let offset = u64::try_from(offset).map_err(|_| Refused::NO_SUCH_PLACE)?;
        let found = match &*self.handles.find(open)? {
            Handle::File(file) => file.at(Cut::ALL)?.next(offset, data)?,
            // There are no holes; behind the end is one.
            Handle::Open(open) => match self.wait(open.size())? {
                size if offset >= size => None,
                size => Some(if data { offset } else { size }),
            },
            Handle::Listing(_) => return Err(Refused::IS_DIRECTORY),
        };
        Ok(found.ok_or(Refused::NO_SUCH_PLACE)? as i64)
    }
}

/// Bytes to be written.
pub(super) struct Write {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// At the end, wherever that is.
    pub(super) at_end: bool,
    /// By somebody who may not leave the file running as its owner.
    pub(super) takes_set_id: bool,
}

fn what_to_set(setting: Setting, before: &FileAttributes, caller: Caller) -> (SetAttributes, Now) {
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
    let set = SetAttributes {
        mode,
        uid: setting.uid,
        gid: setting.gid,
        modified: setting.modified.and_then(file_time),
        accessed: setting.accessed.and_then(file_time),
    };
    let is_now = |time| matches!(time, Some(TimeOrNow::Now));
    let now = Now { modified: is_now(setting.modified), accessed: is_now(setting.accessed) };
    // A write says by itself when it was.
    let now = if setting.size.is_some() { Now { modified: false, ..now } } else { now };
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
        assert_eq!(kind_of(0o040_755), Err(Refused::INVALID));
        assert_eq!(kind_of(0o120_777), Err(Refused::INVALID));
    }

    #[test]
    fn what_runs_as_its_owner_loses_that_when_others_change_it() {
        assert_eq!(without_set_id(0o6755), 0o755);
        // Without execution by the group the bit means locks, and stays.
        assert_eq!(without_set_id(0o6745), 0o2745);
        assert_eq!(without_set_id(0o1777), 0o1777);
    }
}
