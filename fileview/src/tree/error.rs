//! The failures of access to the tree, and the error number that a program gets: one table for
//! every access path.
//!
//! | what | number | |
//! | --- | --- | --- |
//! | there is no such name, or was none at that moment | `ENOENT` | 2 |
//! | the disk fails, or what is stored is corrupt | `EIO` | 5 |
//! | the moment is not final yet, or the search is not finished: retry | `EAGAIN` | 11 |
//! | the path leaves the tree | `EXDEV` | 18 |
//! | the access control list of a znode does not let everybody read it | `EACCES` | 13 |
//! | a component of the path is not a directory | `ENOTDIR` | 20 |
//! | a directory where bytes were wanted | `EISDIR` | 21 |
//! | not a moment, or one that does not apply there; a name with a zero byte | `EINVAL` | 22 |
//! | the moment lies in the far future | `ERANGE` | 34 |
//! | a name or path is too long | `ENAMETOOLONG` | 36 |
//! | below the horizon; or removed or compacted since it was opened | `ESTALE` | 116 |

use std::sync::Arc;

use engine::files::FileError;
use engine::{EngineError, SeekError, StorageError};
use rustix::io::Errno;

/// The failure of an access to the tree.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TreeError {
    /// The name does not exist, or did not exist at that moment.
    #[error("no such file or directory: {0}")]
    NotFound(String),
    /// Not everybody may read it.
    #[error("permission denied: {0}")]
    NotPermitted(String),
    /// A component of the path is not a directory.
    #[error("not a directory: {0}")]
    NotDirectory(String),
    /// The node is a directory, which has names but no bytes.
    #[error("is a directory: {0}")]
    IsDirectory(String),
    /// Not a moment, or one that does not apply to this node.
    #[error("{0}")]
    Moment(String),
    /// An invalid name or path.
    #[error("{0}")]
    Invalid(String),
    /// The path leaves the tree.
    #[error("the path leaves the tree: {0}")]
    Escapes(String),
    /// The name or path is too long.
    #[error("file name too long: {0} bytes")]
    NameTooLong(usize),
    /// The moment is not final yet. A later retry succeeds.
    #[error("{0}")]
    NotYet(Arc<str>),
    /// The moment lies too far in the future to wait for it.
    #[error("{0}")]
    FarFuture(Arc<str>),
    /// Retention or compaction removed records of the moment.
    #[error("{0}")]
    BeforeHistory(Arc<str>),
    /// Retention or compaction removed what was opened.
    #[error("{0}: open it again")]
    Gone(String),
    /// The search reached the limit of one call. The next call continues from there.
    #[error("there is more to look through ({0}): ask again to go on")]
    Unfinished(String),
    /// The disk fails, stored data is corrupt, or the service is stopping.
    #[error("{0}")]
    Io(Arc<str>),
}

impl TreeError {
    /// The Linux error number, from the table above.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            TreeError::NotFound(_) => Errno::NOENT,
            TreeError::Io(_) => Errno::IO,
            TreeError::NotYet(_) | TreeError::Unfinished(_) => Errno::AGAIN,
            TreeError::NotPermitted(_) => Errno::ACCESS,
            TreeError::Escapes(_) => Errno::XDEV,
            TreeError::NotDirectory(_) => Errno::NOTDIR,
            TreeError::IsDirectory(_) => Errno::ISDIR,
            TreeError::Moment(_) | TreeError::Invalid(_) => Errno::INVAL,
            TreeError::FarFuture(_) => Errno::RANGE,
            TreeError::NameTooLong(_) => Errno::NAMETOOLONG,
            TreeError::BeforeHistory(_) | TreeError::Gone(_) => Errno::STALE,
        };
        errno.raw_os_error()
    }
}

impl From<SeekError> for TreeError {
    fn from(error: SeekError) -> TreeError {
        let why = error.to_string();
        match error {
            SeekError::NotYet { .. } => TreeError::NotYet(why.into()),
            SeekError::FarFuture { .. } => TreeError::FarFuture(why.into()),
            SeekError::BeforeHistory { .. }
            | SeekError::BeforeOffsets { .. }
            | SeekError::BeforeZnodes { .. }
            | SeekError::BeforeNames { .. } => TreeError::BeforeHistory(why.into()),
            SeekError::NoTopic { .. } => TreeError::NotFound(why),
            SeekError::Engine(error) => error.into(),
        }
    }
}

impl From<EngineError> for TreeError {
    fn from(error: EngineError) -> TreeError {
        match error {
            EngineError::UnknownPartition { .. } | EngineError::UnknownTopic(_) => {
                TreeError::NotFound(error.to_string())
            }
            EngineError::OffsetOutOfRange { .. } => TreeError::Gone(error.to_string()),
            EngineError::Loading(_) => TreeError::NotYet(error.to_string().into()),
            EngineError::Storage(error) => error.into(),
            // None of these but the last four comes from a read: what is stored has no meaning, the
            // clock is fenced, or the service stops.
            EngineError::TopicExists(_)
            | EngineError::TopicName(_)
            | EngineError::PartitionCount(_)
            | EngineError::Config(_)
            | EngineError::Duplicate { .. }
            | EngineError::OutOfOrderSequence { .. }
            | EngineError::StaleProducerEpoch { .. }
            | EngineError::NotTransactional { .. }
            | EngineError::NoOpenTransaction { .. }
            | EngineError::TooManyTransactions { .. }
            | EngineError::OverBudget(_)
            | EngineError::Pinned { .. }
            | EngineError::UserTimeChanged
            | EngineError::UserTimeOutOfOrder { .. }
            | EngineError::UserTime(_)
            | EngineError::Internal(_)
            | EngineError::Corrupt(_)
            | EngineError::Fenced(_)
            | EngineError::Stopping(_) => TreeError::Io(error.to_string().into()),
        }
    }
}

impl From<FileError> for TreeError {
    fn from(error: FileError) -> TreeError {
        let why = error.to_string();
        match error {
            FileError::NotFound(path) => TreeError::NotFound(path),
            FileError::NotDirectory(path) => TreeError::NotDirectory(path),
            FileError::IsDirectory(path) => TreeError::IsDirectory(path),
            FileError::NameTooLong(bytes) => TreeError::NameTooLong(bytes),
            FileError::NotYet { .. } | FileError::Loading(_) => TreeError::NotYet(why.into()),
            FileError::Invalid(_) => TreeError::Invalid(why),
            // The errors in front of the last three are of changes, and the tree is only read.
            FileError::Exists(_)
            | FileError::NotEmpty(_)
            | FileError::NotPermitted(_)
            | FileError::TooLarge { .. }
            | FileError::NoSpace(_)
            | FileError::Io(_)
            | FileError::Corrupt(_) => TreeError::Io(why.into()),
        }
    }
}

impl From<StorageError> for TreeError {
    fn from(error: StorageError) -> TreeError {
        match error {
            // The tree is only read: no read is refused because the disk is full.
            StorageError::Io { .. }
            | StorageError::NoSpace { .. }
            | StorageError::Missing { .. }
            | StorageError::Corrupt { .. }
            | StorageError::Stopped { .. }
            | StorageError::Interrupted => TreeError::Io(error.to_string().into()),
        }
    }
}
