//! Why a request is refused: a number, as the kernel wants it.

use engine::files::FileError;
use fuser::Errno;

use crate::tree::TreeError;

/// An error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(i32);

impl Refused {
    pub(super) const IO: Refused = Refused(5);
    pub(super) const BAD_HANDLE: Refused = Refused(9);
    pub(super) const EXISTS: Refused = Refused(17);
    pub(super) const NOT_DIRECTORY: Refused = Refused(20);
    pub(super) const IS_DIRECTORY: Refused = Refused(21);
    pub(super) const INVALID: Refused = Refused(22);
    pub(super) const TOO_MANY_OPEN: Refused = Refused(23);
    pub(super) const NO_SUCH_PLACE: Refused = Refused(6);
    pub(super) const TOO_LARGE: Refused = Refused(27);
    pub(super) const READ_ONLY: Refused = Refused(30);
    pub(super) const OUT_OF_RANGE: Refused = Refused(34);
    pub(super) const NAME_TOO_LONG: Refused = Refused(36);
    pub(super) const NO_DATA: Refused = Refused(61);
    pub(super) const NOT_SUPPORTED: Refused = Refused(95);
    pub(super) const STALE: Refused = Refused(116);

    pub(super) fn errno(self) -> Errno {
        Errno::from_i32(self.0)
    }
}

impl From<FileError> for Refused {
    fn from(error: FileError) -> Refused {
        if matches!(error, FileError::Io(_) | FileError::Corrupt(_)) {
            tracing::warn!(%error, "a file cannot be served");
        }
        Refused(error.errno())
    }
}

impl From<TreeError> for Refused {
    fn from(error: TreeError) -> Refused {
        if matches!(error, TreeError::Io(_)) {
            tracing::warn!(%error, "a part of the tree cannot be served");
        }
        Refused(error.errno())
    }
}
