//! The events of names and attributes: the entries of the files' log. `docs/FORMAT.md` has their
//! layout.

use engine_core::numbering::FILE_KINDS;
use serde::{Deserialize, Serialize};
use storage::LogId;

use super::error::FileError;

/// The contents of the file with inode `n` are in the log with this number plus `n`: far above the
/// logs of partitions, which are numbered from the bottom.
const FIRST_CONTENTS_LOG: u64 = 1 << 48;

/// An entry of [`FILES_LOG`].
pub(crate) const KIND_FILE_EVENT: u8 = 32;
pub(crate) const KIND_FILE_WRITE: u8 = 33;
/// A new length of a file.
pub(crate) const KIND_FILE_TRUNCATE: u8 = 34;
/// A checkpoint of a file's index up to that entry.
pub(crate) const KIND_FILE_CHECKPOINT: u8 = 35;
pub(crate) const KIND_FILE_PUNCH_HOLE: u8 = 36;

// A start refuses entries of kinds that the spine does not know.
const _: () = assert!(KIND_FILE_EVENT == *FILE_KINDS.start());
const _: () = assert!(KIND_FILE_PUNCH_HOLE == *FILE_KINDS.end());

/// The maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Identifies a file, a directory or a link, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Inode(pub u64);

impl Inode {
    /// The root directory. No event creates it.
    pub const ROOT: Inode = Inode(1);

    /// The inode that the entry at `offset` of [`FILES_LOG`] creates: offsets are never reused, so
    /// inodes are not either.
    pub(crate) fn from_offset(offset: storage::Offset) -> Inode {
        Inode(offset.0 + 2)
    }

    pub(crate) fn contents_log(self) -> LogId {
        LogId(FIRST_CONTENTS_LOG + self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// Bytes.
    File,
    /// Names.
    Directory,
    /// A path to elsewhere.
    Symlink,
    /// A named pipe.
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
}

/// A time as POSIX has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct FileTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl From<hlc::Hlc> for FileTime {
    /// The counter becomes a fraction of the millisecond: later stamps have later times.
    fn from(stamp: hlc::Hlc) -> FileTime {
        let (ms, counter) = (stamp.time().0, u64::from(stamp.logical()));
        let nanoseconds = ms % 1000 * 1_000_000 + counter * 1_000_000 / (1 << 16);
        FileTime { seconds: (ms / 1000) as i64, nanoseconds: nanoseconds as u32 }
    }
}

/// One change. New variants go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileChange {
    /// An inode was created; it has no name yet.
    Made { inode: Inode, kind: FileKind, mode: u32, uid: u32, gid: u32, device: u64 },
    /// A name in a directory refers to this inode from now on, or was removed.
    Named { parent: Inode, name: Vec<u8>, inode: Option<Inode> },
    /// The given attributes were set.
    Set { inode: Inode, set: AttributeUpdate },
    /// The target of a symbolic link was set.
    Target { inode: Inode, target: Vec<u8> },
    /// An extended attribute was set, or removed.
    Extended { inode: Inode, name: Vec<u8>, value: Option<Vec<u8>> },
    /// Times were set to the time of this event.
    Touched { inode: Inode, now: TouchTimes },
}

/// Times to set to the time of the change itself, so that they are later than everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TouchTimes {
    /// The time of the last change of its bytes.
    pub modified: bool,
    /// The time of the last read.
    pub accessed: bool,
}

/// Attributes to set; the others stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttributeUpdate {
    /// The permissions.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The time of the last change of its bytes; a later write overrides it.
    pub modified: Option<FileTime>,
    /// The time of the last read.
    pub accessed: Option<FileTime>,
}

/// The content of an entry of [`FILES_LOG`], encoded with postcard: changes that take effect at
/// once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEvent {
    pub(crate) changes: Vec<FileChange>,
}

impl FileEvent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an event can be encoded")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FileEvent, FileError> {
        let event: FileEvent = postcard::from_bytes(bytes)
            .map_err(|error| FileError::Corrupt(format!("decode file event: {error}")))?;
        for change in &event.changes {
            let checked = match change {
                FileChange::Named { name, .. } => check_name(name),
                FileChange::Extended { name, .. } => check_xattr_name(name),
                _ => Ok(()),
            };
            checked.map_err(|error| FileError::Corrupt(error.to_string()))?;
        }
        Ok(event)
    }
}

/// Checks that `name` is a valid name in a directory.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FileError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FileError::NameTooLong(name.len()));
    }
    if name.is_empty() || name == b"." || name == b".." {
        return Err(FileError::Invalid("a name is not empty, `.` or `..`"));
    }
    if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(FileError::Invalid("a name has no slash and no zero byte"));
    }
    Ok(())
}

/// Checks that `name` is a valid name of an extended attribute.
pub(crate) fn check_xattr_name(name: &[u8]) -> Result<(), FileError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FileError::NameTooLong(name.len()));
    }
    if name.is_empty() || name.contains(&0) {
        return Err(FileError::Invalid("an attribute's name is not empty and has no zero byte"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hlc::{Hlc, SysTime};

    use super::*;

    /// Pins down the bytes on disk.
    #[test]
    fn an_event_is_encoded_as_the_format_says() {
        let event = FileEvent {
            changes: vec![
                FileChange::Made {
                    inode: Inode(300),
                    kind: FileKind::Directory,
                    mode: 0o755,
                    uid: 1,
                    gid: 2,
                    device: 0,
                },
                FileChange::Named { parent: Inode(1), name: b"a".into(), inode: Some(Inode(300)) },
                FileChange::Named { parent: Inode(1), name: b"b".into(), inode: None },
                FileChange::Set {
                    inode: Inode(2),
                    set: AttributeUpdate {
                        mode: Some(1),
                        modified: Some(FileTime { seconds: -1, nanoseconds: 5 }),
                        ..AttributeUpdate::default()
                    },
                },
                FileChange::Target { inode: Inode(2), target: b"/t".into() },
                FileChange::Extended {
                    inode: Inode(2),
                    name: b"x".into(),
                    value: Some(b"v".into()),
                },
                FileChange::Touched {
                    inode: Inode(2),
                    now: TouchTimes { modified: true, accessed: false },
                },
            ],
        };
        let mut expected = vec![7, 0, 0xac, 2, 1, 0xed, 3, 1, 2, 0];
        expected.extend([1, 1, 1, b'a', 1, 0xac, 2, 1, 1, 1, b'b', 0]);
        expected.extend([
            2, 2, 1, 1, 0, 0, 1, 1, 5, 0, 3, 2, 2, b'/', b't', 4, 2, 1, b'x', 1, 1, b'v', 5, 2, 1,
            0,
        ]);
        assert_eq!(event.encode(), expected);
        assert_eq!(FileEvent::decode(&expected).unwrap(), event);
    }

    #[test]
    fn a_name_that_cannot_be_is_no_event() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            let change = FileChange::Named { parent: Inode(1), name: name.into(), inode: None };
            assert!(FileEvent::decode(&FileEvent { changes: vec![change] }.encode()).is_err());
        }
        assert!(FileEvent::decode(&[1, 99]).is_err());
    }

    #[test]
    fn times_rise_with_stamps() {
        let time = |ms, counter| FileTime::from(Hlc::new(SysTime(ms), counter));
        assert_eq!(time(1999, 0), FileTime { seconds: 1, nanoseconds: 999_000_000 });
        assert!(time(1999, 0) < time(1999, 1) && time(1999, u16::MAX) < time(2000, 0));
    }
}
