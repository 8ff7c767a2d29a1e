//! Disk space that is reserved for freeing space. Without it, a log start could not advance once
//! the disk is full, because that has to be written down first.
//!
//! A file of zeros takes the space. An operation that advances a log start, or deletes a topic,
//! removes that file when the disk is full, and tries again. From then on nothing else is appended
//! until the file could be allocated again: other appends would take the released space at once.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::Disk;
use crate::error::StorageError;
use crate::storage_file::{StorageFile, remove_file};

/// The name of the file, in the journal's directory.
pub const RESERVE_FILE: &str = "reserve";
/// The minimum that is reserved: for some events, in a segment of their own if necessary.
const BYTES_MIN: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReserveState {
    Available,
    /// It was released, or there never was space for it.
    Spent,
    /// The disk cannot reserve space.
    Unsupported,
}

pub(crate) struct SpaceReserve {
    disk: Arc<dyn Disk>,
    bytes: u64,
    state: Mutex<ReserveState>,
}

impl SpaceReserve {
    /// Reserves space, if there is enough. `manifest_bytes` is the size of the manifest: a new one
    /// exists next to the old one for a while.
    pub(crate) fn open(disk: Arc<dyn Disk>, manifest_bytes: u64) -> SpaceReserve {
        let bytes = (BYTES_MIN + 2 * manifest_bytes).next_multiple_of(BYTES_MIN);
        let reserve = SpaceReserve { disk, bytes, state: Mutex::new(ReserveState::Spent) };
        reserve.renew();
        reserve
    }

    /// Returns true if it was released, and there is still no space for it.
    pub(crate) fn is_spent(&self) -> bool {
        *self.state.lock() == ReserveState::Spent && !self.renew()
    }

    /// Calls `act`. If the disk is full, releases the reserve and calls it once more.
    pub(crate) fn retry_with_reserve<T>(
        &self,
        mut act: impl FnMut() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match act() {
            Err(error) if error.is_full() && self.spend() => act(),
            result => result,
        }
    }

    /// Releases the reserve; returns whether it was held.
    pub(crate) fn spend(&self) -> bool {
        let mut state = self.state.lock();
        let is_spent =
            *state == ReserveState::Available && remove_file(&*self.disk, RESERVE_FILE).is_ok();
        if is_spent {
            tracing::warn!(
                bytes = self.bytes,
                "the disk is full: the reserve for advancing log starts is used now; other writes are refused until the reserve can be allocated again"
            );
            *state = ReserveState::Spent;
        }
        is_spent
    }

    /// Allocates the reserve again; returns whether it is held, or cannot exist.
    fn renew(&self) -> bool {
        let mut state = self.state.lock();
        if *state != ReserveState::Spent {
            return true;
        }
        *state = match self.take() {
            Ok(()) => ReserveState::Available,
            Err(error) if error.is_full() => ReserveState::Spent,
            Err(error) => {
                tracing::warn!(%error, "no reserve can be allocated for advancing log starts on a full disk");
                ReserveState::Unsupported
            }
        };
        *state != ReserveState::Spent
    }

    fn take(&self) -> Result<(), StorageError> {
        // The file of an earlier incarnation still counts, unless the manifest has outgrown it.
        let file = match StorageFile::open(&*self.disk, RESERVE_FILE) {
            Ok(file) if file.length()? >= self.bytes => return Ok(()),
            Ok(file) => file,
            Err(_) => StorageFile::create_or_replace(&*self.disk, RESERVE_FILE)?,
        };
        file.allocate(self.bytes).inspect_err(|_| {
            let _ = remove_file(&*self.disk, RESERVE_FILE);
        })
    }
}

/// The error for an append that waits for more space.
pub(crate) fn no_space_error() -> StorageError {
    let reason = "the disk is full, and the remaining space is reserved for advancing log starts";
    io::Error::new(io::ErrorKind::StorageFull, reason).into()
}
