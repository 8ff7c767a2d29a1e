//! The errors of files, grouped by the POSIX error that a caller gets.

use std::sync::Arc;

use engine_core::EngineError;
use hlc::{Cut, Hlc, Moment};
use rustix::io::Errno;
use storage::StorageError;
use storage::catalog::CatalogError;

use crate::interval_tree::IntervalTreeError;

/// The reason that a file operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FileError {
    /// The name does not exist, or did not exist at that moment.
    #[error("no such file or directory: {0}")]
    NotFound(String),
    /// The name is taken.
    #[error("file exists: {0}")]
    Exists(String),
    /// A component of the path, or what should be a directory, is none.
    #[error("not a directory: {0}")]
    NotDirectory(String),
    /// It is a directory, and must not be one.
    #[error("is a directory: {0}")]
    IsDirectory(String),
    /// A directory that is to be removed or replaced is not empty.
    #[error("directory not empty: {0}")]
    NotEmpty(String),
    /// The operation is not permitted to anybody.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The file or the write would be too large.
    #[error("file too large: {length} bytes at offset {offset}")]
    TooLarge {
        /// The offset of the write.
        offset: u64,
        /// The length of the write.
        length: u64,
    },
    /// A name or a path is too long.
    #[error("file name too long: {0} bytes")]
    NameTooLong(usize),
    /// The moment is not past yet: call [`engine_core::EngineCore::wait_until_closed`] first.
    #[error(
        "the moment {} is not past yet: now is {}",
        Moment::Sys(*.cut), Moment::Sys(Cut::before(.frontier.time()))
    )]
    NotYet {
        /// The requested cut.
        cut: Cut,
        frontier: Hlc,
    },
    /// Names are being loaded from the journal: retry.
    #[error(transparent)]
    Loading(#[from] CatalogError),
    /// The disk is full; there may be room later.
    #[error("{0}")]
    NoSpace(Arc<str>),
    /// The disk fails, or the service is stopping.
    #[error("{0}")]
    Io(Arc<str>),
    /// Stored data cannot be read.
    #[error("stored file cannot be read: {0}")]
    Corrupt(String),
}

impl FileError {
    /// The Linux errno.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            FileError::NotPermitted(_) => Errno::PERM,
            FileError::NotFound(_) => Errno::NOENT,
            FileError::Io(_) | FileError::Corrupt(_) => Errno::IO,
            FileError::NotYet { .. } | FileError::Loading(_) => Errno::AGAIN,
            FileError::Exists(_) => Errno::EXIST,
            FileError::NotDirectory(_) => Errno::NOTDIR,
            FileError::IsDirectory(_) => Errno::ISDIR,
            FileError::Invalid(_) => Errno::INVAL,
            FileError::TooLarge { .. } => Errno::FBIG,
            FileError::NoSpace(_) => Errno::NOSPC,
            FileError::NameTooLong(_) => Errno::NAMETOOLONG,
            FileError::NotEmpty(_) => Errno::NOTEMPTY,
        };
        errno.raw_os_error()
    }
}

impl From<StorageError> for FileError {
    fn from(error: StorageError) -> FileError {
        let why = error.to_string();
        match error {
            StorageError::NoSpace { .. } => FileError::NoSpace(why.into()),
            StorageError::Corrupt { .. } | StorageError::Missing { .. } => FileError::Corrupt(why),
            StorageError::Io { .. } | StorageError::Stopped { .. } | StorageError::Interrupted => {
                FileError::Io(why.into())
            }
        }
    }
}

impl From<IntervalTreeError> for FileError {
    fn from(error: IntervalTreeError) -> FileError {
        match error {
            IntervalTreeError::Read(error) => error.into(),
            IntervalTreeError::Corrupt { .. } => FileError::Corrupt(error.to_string()),
        }
    }
}

impl From<EngineError> for FileError {
    fn from(error: EngineError) -> FileError {
        match error {
            EngineError::Loading(error) => FileError::Loading(error),
            EngineError::Storage(error) => error.into(),
            EngineError::Corrupt(why) => FileError::Corrupt(why),
            // None of these comes from what files do, but for the last: the clock is fenced, or the
            // service stops.
            EngineError::UnknownPartition { .. }
            | EngineError::UnknownTopic(_)
            | EngineError::TopicExists(_)
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
            | EngineError::OffsetOutOfRange { .. }
            | EngineError::Pinned { .. }
            | EngineError::UserTimeChanged
            | EngineError::UserTimeOutOfOrder { .. }
            | EngineError::UserTime(_)
            | EngineError::Internal(_)
            | EngineError::Fenced(_)
            | EngineError::Stopping(_) => FileError::Io(error.to_string().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_a_full_disk_is_enospc_and_what_else_the_storage_says_is_eio() {
        let of_disk = |error: io::Error| StorageError::of_file("0.journal", error);
        let cases = [
            (of_disk(io::ErrorKind::StorageFull.into()), 28),
            (of_disk(io::ErrorKind::QuotaExceeded.into()), 28),
            (of_disk(io::Error::from_raw_os_error(5)), 5),
            (of_disk(io::Error::from_raw_os_error(24)), 5),
            (of_disk(io::ErrorKind::NotFound.into()), 5),
            (StorageError::corrupt("0.journal", 7, "a payload is corrupt"), 5),
            (StorageError::Stopped { why: "sync journal".into() }, 5),
            (StorageError::Interrupted, 5),
        ];
        for (error, errno) in cases {
            let text = error.to_string();
            assert_eq!(FileError::from(error.clone()).errno(), errno, "{text}");
            assert_eq!(FileError::from(EngineError::Storage(error)).errno(), errno, "{text}");
        }
        let failed = EngineError::Internal("an event cannot be applied".into());
        assert_eq!(FileError::from(failed).errno(), 5);
    }
}
