//! The error numbers by which the kernel learns why a request is refused.

use engine::files::FileError;
use fuser::Errno;

use crate::tree::TreeError;

/// An error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuseErrno(i32);

impl FuseErrno {
    pub(super) const IO: FuseErrno = FuseErrno(5);
    pub(super) const BAD_HANDLE: FuseErrno = FuseErrno(9);
    pub(super) const EXISTS: FuseErrno = FuseErrno(17);
    pub(super) const NOT_DIRECTORY: FuseErrno = FuseErrno(20);
    pub(super) const IS_DIRECTORY: FuseErrno = FuseErrno(21);
    pub(super) const INVALID: FuseErrno = FuseErrno(22);
    pub(super) const TOO_MANY_OPEN: FuseErrno = FuseErrno(23);
    pub(super) const NO_SUCH_OFFSET: FuseErrno = FuseErrno(6);
    pub(super) const TOO_LARGE: FuseErrno = FuseErrno(27);
    pub(super) const READ_ONLY: FuseErrno = FuseErrno(30);
    pub(super) const OUT_OF_RANGE: FuseErrno = FuseErrno(34);
    pub(super) const NAME_TOO_LONG: FuseErrno = FuseErrno(36);
    pub(super) const NO_DATA: FuseErrno = FuseErrno(61);
    pub(super) const NOT_SUPPORTED: FuseErrno = FuseErrno(95);
    pub(super) const STALE: FuseErrno = FuseErrno(116);

    pub(super) fn errno(self) -> Errno {
        Errno::from_i32(self.0)
    }
}

impl From<FileError> for FuseErrno {
    fn from(error: FileError) -> FuseErrno {
        if matches!(error, FileError::Io(_) | FileError::Corrupt(_)) {
            tracing::warn!(%error, "a file cannot be served");
        }
        FuseErrno(error.errno())
    }
}

impl From<TreeError> for FuseErrno {
    fn from(error: TreeError) -> FuseErrno {
        if matches!(error, TreeError::Io(_)) {
            tracing::warn!(%error, "a part of the tree cannot be served");
        }
        FuseErrno(error.errno())
    }
}
