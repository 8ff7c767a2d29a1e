//! Space that is kept for what makes space: without it, nothing could be given up once the disk is
//! full, for that has to be written down first.
//!
//! A file of zeros takes it. Whoever gives up history, or says that a topic ends, removes that file when
//! the disk is full, and tries again. From then on nothing else is appended until the file could be
//! made again: it would take at once what was let go of.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::{Disk, create_or_replace, is_full};

/// The name of the file, in the journal's directory.
pub const RESERVE_FILE: &str = "reserve";
/// The least that is kept: for some events, in a segment of their own if need be.
const BYTES_MIN: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReserveState {
    Available,
    /// It was let go of, or there never was room for it.
    Spent,
    /// The disk cannot keep space.
    Unsupported,
}

/// Space that is kept.
pub(crate) struct SpaceReserve {
    disk: Arc<dyn Disk>,
    bytes: u64,
    state: Mutex<ReserveState>,
}

impl SpaceReserve {
    /// Sees to it that space is kept, if there is so much, where the manifest takes `manifest_bytes`: a
    /// new one stands beside the old one for a while.
    pub(crate) fn open(disk: Arc<dyn Disk>, manifest_bytes: u64) -> SpaceReserve {
        let bytes = (BYTES_MIN + 2 * manifest_bytes).next_multiple_of(BYTES_MIN);
        let reserve = SpaceReserve { disk, bytes, state: Mutex::new(ReserveState::Spent) };
        reserve.renew();
        reserve
    }

    /// Whether it was let go of, and there is still no room for it.
    pub(crate) fn is_spent(&self) -> bool {
        *self.state.lock() == ReserveState::Spent && !self.renew()
    }

    /// Does `act`, and if there is no room for that, once more with the space that was kept.
    pub(crate) fn retry_with_reserve<T>(
        &self,
        mut act: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        match act() {
            Err(error) if is_full(&error) && self.spend() => act(),
            done => done,
        }
    }

    /// Lets go of it; whether it was held.
    pub(crate) fn spend(&self) -> bool {
        let mut state = self.state.lock();
        let is_spent = *state == ReserveState::Available && self.disk.remove(RESERVE_FILE).is_ok();
        if is_spent {
            tracing::warn!(
                bytes = self.bytes,
                "the disk is full: the reserve for advancing log starts is used now; other writes are refused until the reserve can be allocated again"
            );
            *state = ReserveState::Spent;
        }
        is_spent
    }

    /// Takes the space again; whether it is held, or none can be.
    fn renew(&self) -> bool {
        let mut state = self.state.lock();
        if *state != ReserveState::Spent {
            return true;
        }
        *state = match self.take() {
            Ok(()) => ReserveState::Available,
            Err(error) if is_full(&error) => ReserveState::Spent,
            Err(error) => {
                tracing::warn!(%error, "no reserve can be allocated for advancing log starts on a full disk");
                ReserveState::Unsupported
            }
        };
        *state != ReserveState::Spent
    }

    fn take(&self) -> io::Result<()> {
        // What an earlier life kept is kept still, unless the manifest has outgrown it.
        let file = match self.disk.open(RESERVE_FILE) {
            Ok(file) if file.length()? >= self.bytes => return Ok(()),
            Ok(file) => file,
            Err(_) => create_or_replace(&*self.disk, RESERVE_FILE)?,
        };
        file.allocate(self.bytes).inspect_err(|_| {
            let _ = self.disk.remove(RESERVE_FILE);
        })
    }
}

/// Says that nothing is appended before there is more room.
pub(crate) fn no_space_error() -> io::Error {
    let why = "the disk is full, and the remaining space is reserved for advancing log starts";
    io::Error::new(io::ErrorKind::StorageFull, why)
}
