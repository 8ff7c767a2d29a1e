//! The reasons that stored data cannot be read or written: one type for everything above the disk.
//!
//! The traits of [`crate::disk`] return `io::Error`: they are the boundary to the operating system.
//! Their errors become a [`StorageError`] in two places, and nowhere else:
//! [`StorageError::of_file`], where the file is known, and `From<io::Error>`, where no file is
//! involved.
//!
//! The variants differ where a caller acts differently. Callers ask the predicates, each of which
//! is defined here once: [`StorageError::is_corruption`], [`StorageError::is_data_loss`],
//! [`StorageError::is_full`] and [`StorageError::is_out_of_descriptors`].

use std::sync::Arc;
use std::{fmt, io};

use rustix::io::Errno;

use crate::disk::{is_full, is_out_of_descriptors};

/// The reason stored data cannot be read or written. Clones are cheap: an error may be the answer
/// to many appends.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system failed. The same operation may succeed later, unless the medium does
    /// not return what was written ([`StorageError::is_data_loss`]).
    #[error("{}", IoReport { doing, file, error })]
    Io {
        /// The operation that failed, if that says more than the file does.
        doing: Option<Arc<str>>,
        /// The file, unless none is involved.
        file: Option<Arc<str>>,
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// The disk is full, or a quota is used up. The same operation succeeds once there is room.
    #[error("{}; free space on the disk", IoReport { doing, file, error })]
    NoSpace {
        /// The operation that failed, if that says more than the file does.
        doing: Option<Arc<str>>,
        /// The file, unless none is involved.
        file: Option<Arc<str>>,
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// A file that must exist does not.
    #[error("{file} is missing; `freezeframe check` says more")]
    Missing { file: Arc<str> },
    /// Bytes were read, and they are not what was written: a checksum does not match, the file ends
    /// early, or its content contradicts itself or another file.
    #[error("{file}{}: {what}; `freezeframe check` says more", Position(*at))]
    Corrupt {
        file: Arc<str>,
        /// The position in the file, if that is known.
        at: Option<u64>,
        /// A description of the corruption.
        what: Arc<str>,
    },
    /// The store takes no more writes until it is opened again: a write or a sync of the journal
    /// failed in a way that leaves the content of the disk unknown, or the store is closed.
    #[error("{why}")]
    Stopped {
        /// The reason for the stop.
        why: Arc<str>,
    },
    /// The work was ended before it was done: the store is being closed, or the caller asked for
    /// that. Nothing has failed.
    #[error("the work was interrupted: the store is being closed")]
    Interrupted,
}

impl StorageError {
    /// The error of an operation on `file`.
    pub fn of_file(file: &str, error: io::Error) -> StorageError {
        match error.kind() {
            io::ErrorKind::NotFound => StorageError::Missing { file: file.into() },
            io::ErrorKind::UnexpectedEof => {
                StorageError::corrupt(file, None, "the file is cut short")
            }
            io::ErrorKind::InvalidData => StorageError::corrupt(file, None, error.to_string()),
            _ => StorageError::of_system(Some(file.into()), error),
        }
    }

    fn of_system(file: Option<Arc<str>>, error: io::Error) -> StorageError {
        let (doing, is_full, error) = (None, is_full(&error), Arc::new(error));
        if is_full {
            StorageError::NoSpace { doing, file, error }
        } else {
            StorageError::Io { doing, file, error }
        }
    }

    /// The error of creating `file`: what is not found then is the directory, and nothing is lost.
    pub(crate) fn of_new_file(file: &str, error: io::Error) -> StorageError {
        StorageError::of_system(Some(file.into()), error)
    }

    /// Says that `file` is corrupt: at the position `at`, if that is known. `what` is a clause such
    /// as "a payload is corrupt".
    pub fn corrupt(
        file: &str,
        at: impl Into<Option<u64>>,
        what: impl Into<Arc<str>>,
    ) -> StorageError {
        StorageError::Corrupt { file: file.into(), at: at.into(), what: what.into() }
    }

    /// Says that `file` cannot be read although it was written just now. It is not
    /// [corruption](StorageError::is_corruption) of what it was made from: the next attempt makes
    /// another file.
    pub(crate) fn unreadable_output(file: &str) -> StorageError {
        let error = io::Error::other("a file cannot be read that was just written");
        StorageError::of_new_file(file, error)
    }

    /// The same error, which also says what was being done. `Missing`, `Stopped` and `Interrupted`
    /// say enough themselves.
    #[must_use]
    pub(crate) fn during(self, doing: &str) -> StorageError {
        let join = |inner: Option<Arc<str>>| {
            Some(inner.map_or_else(|| doing.into(), |inner| format!("{doing}: {inner}").into()))
        };
        match self {
            StorageError::Io { doing, file, error } => {
                StorageError::Io { doing: join(doing), file, error }
            }
            StorageError::NoSpace { doing, file, error } => {
                StorageError::NoSpace { doing: join(doing), file, error }
            }
            StorageError::Corrupt { file, at, what } => {
                StorageError::Corrupt { file, at, what: format!("{doing}: {what}").into() }
            }
            error @ (StorageError::Missing { .. }
            | StorageError::Stopped { .. }
            | StorageError::Interrupted) => error,
        }
    }

    /// Returns true if bytes were read and are wrong or cut short. Never true of an error that may
    /// be gone at the next attempt, nor of an error of the operating system.
    ///
    /// Sorting, merging and compaction rely on it: they read some files and write others, and leave
    /// a corrupt source where it is instead of trying again. An I/O error may be one of the output,
    /// so it is retried. Retention relies on it to tell a fault of one log from a disk that fails
    /// for all of them.
    pub fn is_corruption(&self) -> bool {
        match self {
            StorageError::Corrupt { .. } => true,
            StorageError::Io { .. }
            | StorageError::NoSpace { .. }
            | StorageError::Missing { .. }
            | StorageError::Stopped { .. }
            | StorageError::Interrupted => false,
        }
    }

    /// Returns true if a read error means that written data is lost: the file is gone or too short,
    /// its bytes are wrong, or the medium does not return them. Any other error may be gone at the
    /// next attempt. It says nothing about errors of writes.
    ///
    /// Two kinds of callers rely on it. Readers of payloads answer with an error for the one entry,
    /// and go on after it. Readers of files that can be made again from others (indexes, latest-run
    /// tables, the stage's state) make them again: the new file is not in the sector that cannot be
    /// read.
    pub fn is_data_loss(&self) -> bool {
        match self {
            StorageError::Corrupt { .. } | StorageError::Missing { .. } => true,
            StorageError::Io { error, .. } => is_medium_error(error),
            StorageError::NoSpace { .. }
            | StorageError::Stopped { .. }
            | StorageError::Interrupted => false,
        }
    }

    /// Returns true if the disk is full, or a quota is used up. Code that advances a log start
    /// relies on it: it uses the space that is reserved for that. So does the file view, for which
    /// it is `ENOSPC`.
    pub fn is_full(&self) -> bool {
        matches!(self, StorageError::NoSpace { .. })
    }

    /// Returns true if no file can be opened now: nothing was done, and it can be retried. The
    /// journal relies on it to tell a sync that was not attempted from one that failed.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, StorageError::Io { error, .. } if is_out_of_descriptors(error))
    }

    /// Returns true if a file does not exist. A search for a file that need not exist relies on it.
    pub fn is_missing(&self) -> bool {
        matches!(self, StorageError::Missing { .. })
    }
}

/// For operations that involve no file, such as listing a directory or starting a thread. So it is
/// never data that is missing or corrupt.
impl From<io::Error> for StorageError {
    fn from(error: io::Error) -> StorageError {
        StorageError::of_system(None, error)
    }
}

/// Returns true if an error says that the medium does not return what was written.
fn is_medium_error(error: &io::Error) -> bool {
    // The last five are how Linux reports errors of a medium, and of a file system's own checksums.
    const LOSSES: [Errno; 6] =
        [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN];
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    code.is_some_and(|code| LOSSES.contains(&code))
}

/// Adds the file to the errors of the operating system.
pub(crate) trait FileContext<T> {
    /// [`StorageError::of_file`] for the error of a result.
    fn of_file(self, file: &str) -> Result<T, StorageError>;
}

impl<T> FileContext<T> for io::Result<T> {
    fn of_file(self, file: &str) -> Result<T, StorageError> {
        self.map_err(|error| StorageError::of_file(file, error))
    }
}

/// Turns the error of a missing file into `None`.
pub(crate) fn if_exists<T>(result: Result<T, StorageError>) -> Result<Option<T>, StorageError> {
    match result {
        Err(error) if error.is_missing() => Ok(None),
        result => result.map(Some),
    }
}

struct IoReport<'a> {
    doing: &'a Option<Arc<str>>,
    file: &'a Option<Arc<str>>,
    error: &'a io::Error,
}

impl fmt::Display for IoReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in [self.doing, self.file].into_iter().flatten() {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}", self.error)?;
        if is_out_of_descriptors(self.error) {
            f.write_str("; let the process open more files (ulimit -Hn, LimitNOFILE=)")?;
        }
        Ok(())
    }
}

struct Position(Option<u64>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |at| write!(f, " at byte {at}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    fn of_file(error: impl Into<io::Error>) -> StorageError {
        StorageError::of_file("00.index", error.into())
    }

    /// One error of each kind that a disk can give, and which predicates are true of it:
    /// corruption, data loss, full, out of descriptors, missing.
    #[test]
    fn each_error_of_a_file_is_of_one_kind_and_answers_each_question() {
        let [none, loss, full, descriptors, missing, corrupt] = [
            [false, false, false, false, false],
            [false, true, false, false, false],
            [false, false, true, false, false],
            [false, false, false, true, false],
            [false, true, false, false, true],
            [true, true, false, false, false],
        ];
        let cases: [(io::Error, &str, [bool; 5]); 18] = [
            (raw(Errno::NOSPC), "NoSpace", full),
            (raw(Errno::DQUOT), "NoSpace", full),
            (io::ErrorKind::StorageFull.into(), "NoSpace", full),
            (raw(Errno::NOENT), "Missing", missing),
            (io::ErrorKind::NotFound.into(), "Missing", missing),
            (io::ErrorKind::UnexpectedEof.into(), "Corrupt", corrupt),
            (io::ErrorKind::InvalidData.into(), "Corrupt", corrupt),
            (raw(Errno::IO), "Io", loss),
            (raw(Errno::NODATA), "Io", loss),
            (raw(Errno::BADMSG), "Io", loss),
            (raw(Errno::UCLEAN), "Io", loss),
            (raw(Errno::MFILE), "Io", descriptors),
            (raw(Errno::NFILE), "Io", descriptors),
            (raw(Errno::ACCESS), "Io", none),
            (raw(Errno::INTR), "Io", none),
            (raw(Errno::AGAIN), "Io", none),
            (raw(Errno::NOMEM), "Io", none),
            (io::Error::other("the machine is down"), "Io", none),
        ];
        for (error, kind, expected) in cases {
            let text = error.to_string();
            let error = of_file(error);
            assert_eq!(kind_of(&error), kind, "{text}");
            assert_eq!(answers(&error), expected, "{text}");
            assert_eq!(answers(&error.clone().during("sort")), expected, "{text}");
        }
    }

    fn kind_of(error: &StorageError) -> &'static str {
        match error {
            StorageError::Io { .. } => "Io",
            StorageError::NoSpace { .. } => "NoSpace",
            StorageError::Missing { .. } => "Missing",
            StorageError::Corrupt { .. } => "Corrupt",
            StorageError::Stopped { .. } => "Stopped",
            StorageError::Interrupted => "Interrupted",
        }
    }

    fn answers(error: &StorageError) -> [bool; 5] {
        [
            error.is_corruption(),
            error.is_data_loss(),
            error.is_full(),
            error.is_out_of_descriptors(),
            error.is_missing(),
        ]
    }

    /// A directory that is gone, or a thread that cannot be made, must not be taken for lost data.
    #[test]
    fn without_a_file_nothing_is_missing_or_corrupt() {
        for kind in [
            io::ErrorKind::NotFound,
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::InvalidData,
            io::ErrorKind::Interrupted,
        ] {
            let error = StorageError::from(io::Error::from(kind));
            assert_eq!(kind_of(&error), "Io");
            assert_eq!(answers(&error), [false; 5], "{kind}");
        }
        let no_directory = StorageError::of_new_file("00.index", raw(Errno::NOENT));
        assert_eq!(answers(&no_directory), [false; 5]);
        assert!(StorageError::from(raw(Errno::NOSPC)).is_full());
        assert!(StorageError::from(raw(Errno::MFILE)).is_out_of_descriptors());
    }

    #[test]
    fn a_store_that_stopped_or_is_closing_has_lost_nothing() {
        let why = "sync journal: broken".into();
        for error in [StorageError::Stopped { why }, StorageError::Interrupted] {
            assert_eq!(answers(&error), [false; 5], "{error}");
        }
    }

    #[test]
    fn messages_name_the_file_the_place_and_what_to_do() {
        let damage = StorageError::corrupt("0.journal", 77, "a payload is corrupt");
        let check = "; `freezeframe check` says more";
        assert_eq!(
            damage.to_string(),
            format!("0.journal at byte 77: a payload is corrupt{check}")
        );
        let short = of_file(io::ErrorKind::UnexpectedEof).to_string();
        assert_eq!(short, format!("00.index: the file is cut short{check}"));
        let missing = of_file(io::ErrorKind::NotFound).to_string();
        assert_eq!(missing, format!("00.index is missing{check}"));
        let full = of_file(raw(Errno::NOSPC)).during("write journal/manifest").to_string();
        let begin = "write journal/manifest: 00.index: No space left on device";
        assert!(full.starts_with(begin), "{full}");
        assert!(full.ends_with("; free space on the disk"), "{full}");
        let limit = of_file(raw(Errno::MFILE)).to_string();
        assert!(limit.ends_with("open more files (ulimit -Hn, LimitNOFILE=)"), "{limit}");
        let twice = of_file(io::Error::other("broken")).during("inner").during("outer");
        assert_eq!(twice.to_string(), "outer: inner: 00.index: broken");
    }

    #[test]
    fn only_a_missing_file_is_none() {
        assert!(matches!(if_exists(Ok(3)), Ok(Some(3))));
        assert!(matches!(if_exists::<()>(Err(of_file(io::ErrorKind::NotFound))), Ok(None)));
        assert!(if_exists::<()>(Err(of_file(raw(Errno::ACCESS)))).is_err());
    }
}
