//! The file attributes that the kernel gets, and how long it may cache them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::files::{FileAttributes, FileKind, FileTime};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use crate::tree::{ViewNodeKind, ViewStat};

/// The time for which the kernel may cache files, if all changes come through its mount.
pub(super) const FILES_TTL: Duration = Duration::from_secs(60);
/// The same, if other mounts change files too. The mount is notified of each change, but an older
/// reply may still be on its way. The kernel may receive it after the notification and cache it.
pub(super) const FILES_SHARED_TTL: Duration = Duration::from_secs(1);

/// The time for which the kernel may cache a moment, which does not change: one year.
pub(super) const PAST_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
/// The kernel may not cache topics and groups, because they change without it.
pub(super) const PRESENT_TTL: Duration = Duration::ZERO;

/// The preferred I/O size that `stat` reports.
const BLOCK_BYTES: u32 = 128 << 10;

/// Converts a file time to the standard library's type.
fn system_time(time: FileTime) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => UNIX_EPOCH.checked_add(seconds),
        _ => UNIX_EPOCH.checked_sub(seconds),
    };
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

/// A requested time; `None` stands for the time of the change itself.
///
/// For times before 1970, `fuser` subtracts the nanoseconds instead of adding them. This function
/// corrects that.
pub(super) fn file_time(time: TimeOrNow) -> Option<FileTime> {
    let TimeOrNow::SpecificTime(time) = time else { return None };
    Some(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            let seconds = 0_i64.saturating_add_unsigned(since.as_secs());
            FileTime { seconds, nanoseconds: since.subsec_nanos() }
        }
        Err(before) => {
            let before = before.duration();
            let seconds = 0_i64.saturating_sub_unsigned(before.as_secs());
            FileTime { seconds, nanoseconds: before.subsec_nanos() }
        }
    })
}

/// The FUSE type of a file.
pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharacterDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The attributes of the node `number`, which is read only.
pub(super) fn read_only_attributes(number: u64, stat: &ViewStat) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.accessed),
        mtime: system_time(stat.modified),
        ctime: system_time(stat.changed),
        crtime: system_time(stat.created),
        kind: kind_type(stat.kind),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.links,
        uid: stat.owner.0,
        gid: stat.owner.1,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The FUSE type of a node of the tree.
pub(super) fn kind_type(kind: ViewNodeKind) -> FileType {
    match kind {
        ViewNodeKind::Directory => FileType::Directory,
        ViewNodeKind::File => FileType::RegularFile,
        ViewNodeKind::Symlink => FileType::Symlink,
        ViewNodeKind::Other(kind) => file_type(kind),
    }
}

/// The attributes of the file `node`.
pub(super) fn attributes(node: u64, file: &FileAttributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: file.size,
        blocks: file.size.div_ceil(512),
        atime: system_time(file.accessed),
        mtime: system_time(file.modified),
        ctime: system_time(file.changed),
        crtime: system_time(file.born),
        kind: file_type(file.kind),
        perm: (file.mode & 0o7777) as u16,
        nlink: file.links,
        uid: file.uid,
        gid: file.gid,
        rdev: file.device as u32,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The attributes in a listing of the text `number`, whose size is not known yet: only its type.
/// The kernel must not cache them.
pub(super) fn unread_text_attributes(number: u64) -> FileAttr {
    let kind = FileType::RegularFile;
    FileAttr { ino: INodeNo(number), kind, perm: 0o444, nlink: 1, ..negative_entry() }
}

/// The entry of a name that does not exist. The kernel caches that too.
pub(super) fn negative_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were() {
        for (seconds, nanoseconds) in [(0, 0), (5, 999_999_999), (1 << 40, 3), (i64::MAX, 0)] {
            let time = FileTime { seconds, nanoseconds };
            assert_eq!(file_time(TimeOrNow::SpecificTime(system_time(time))), Some(time));
        }
        assert_eq!(file_time(TimeOrNow::Now), None);
    }

    #[test]
    fn times_before_1970_come_back_through_the_crate_that_turns_them_over() {
        for (seconds, nanoseconds) in [(-7, 0), (-7, 8), (-1, 999_999_999), (i64::MIN, 0)] {
            let time =
                UNIX_EPOCH.checked_sub(Duration::new(i64::unsigned_abs(seconds), nanoseconds));
            let parsed = file_time(TimeOrNow::SpecificTime(time.unwrap()));
            assert_eq!(parsed, Some(FileTime { seconds, nanoseconds }));
        }
        let half = system_time(FileTime { seconds: -4, nanoseconds: 500_000_000 });
        assert_eq!(half, UNIX_EPOCH - Duration::from_millis(3500));
        let first = system_time(FileTime { seconds: i64::MIN, nanoseconds: 0 });
        assert_eq!(first, UNIX_EPOCH - Duration::from_secs(1 << 63));
    }
}
