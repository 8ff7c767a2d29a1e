//! The clock, the persisted bound, and what is in flight: everything that a frontier depends on.
//!
//! What holds true of it:
//! - A stamp or a promise is given out only below a bound that is on stable storage.
//! - While a group of appends is between its first stamp and being visible, the frontier stays below
//!   that stamp.
//!
//! The bound lies in one small file of two slots, written in turn, so that a write that fails leaves
//! the other. A thread renews it ahead of need while stamps are being asked for; an idle store writes
//! nothing.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hlc::{Clock, ClockError, ClockOptions, Cut, Fence, Hlc, Reading, WallClock};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::{Disk, DiskFile};

/// The name of the bound file, in the journal's directory.
pub const BOUND_FILE: &str = "bound";
const MAGIC: &[u8; 8] = b"FFBOUND1";
const SLOT_BYTES: usize = 48;
const SLOT_STRIDE: u64 = 4096;

/// What a slot of the bound file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Which write this was; the larger of two slots is the newer.
    pub sequence: u64,
    /// No stamp and no promise at or above it was given out.
    pub bound: Hlc,
    /// Everything in the journal below this position was on stable storage.
    pub synced_to: u64,
    /// Whether the store was closed after this was written.
    pub clean: bool,
    /// The sequence of the manifest that was on stable storage: an older one is not the right one.
    pub manifest: u64,
}

impl Bound {
    /// The bytes of a slot.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bound.bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced_to.to_le_bytes());
        bytes[32] = u8::from(self.clean);
        bytes[33..41].copy_from_slice(&self.manifest.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a slot; `None` if it is damaged or was never written.
    pub fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Bound> {
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a slot"))
        };
        let crc = u32::from_le_bytes(bytes[44..].try_into().ok()?);
        (&bytes[..8] == MAGIC && crc == crc32c::crc32c(&bytes[..44])).then(|| Bound {
            sequence: u64_at(8),
            bound: Hlc::from_bits(u64_at(16)),
            synced_to: u64_at(24),
            clean: bytes[32] != 0,
            manifest: u64_at(33),
        })
    }
}

/// The bound file.
pub struct BoundFile {
    file: Arc<dyn DiskFile>,
    newest: Bound,
}

/// Why the bound file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// A slot holds something that is no bound. A crash leaves a slot as it was or as it was to be,
    /// for it lies within one sector; so what it said may have been promised on.
    #[error(
        "journal/bound is damaged: promises about the past are not known any more. position={position}; nothing was changed. If the wall clock was never set back, write {SLOT_BYTES} zeros over that position, and start again a minute later; else restore the whole data directory from a backup"
    )]
    Damaged {
        /// Where in the file the slot lies.
        position: u64,
    },
    /// The disk failed.
    #[error("read journal/bound: {0}")]
    Disk(#[from] io::Error),
}

impl BoundFile {
    /// What the bound file says; `None` if there is none yet, or nothing in it.
    ///
    /// # Errors
    /// [`BoundError`].
    pub fn read(disk: &dyn Disk) -> Result<Option<Bound>, BoundError> {
        let file = match disk.open(BOUND_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut newest: Option<Bound> = None;
        for (index, slot) in read_slots(&*file)?.into_iter().enumerate() {
            match slot {
                Slot::Empty => {}
                Slot::Damaged => {
                    return Err(BoundError::Damaged { position: index as u64 * SLOT_STRIDE });
                }
                Slot::Whole(bound) if newest.is_none_or(|seen| seen.sequence < bound.sequence) => {
                    newest = Some(bound);
                }
                Slot::Whole(_) => {}
            }
        }
        Ok(newest)
    }

    /// Opens or creates it, to be written after `newest`.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open(disk: &dyn Disk, newest: Option<Bound>) -> io::Result<BoundFile> {
        let file = match disk.open(BOUND_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = disk.create(BOUND_FILE)?;
                // A bound takes no more room then, however full the disk is.
                let zeros = [0; SLOT_STRIDE as usize + SLOT_BYTES];
                file.write_at(&mut [io::IoSlice::new(&zeros)], 0)?;
                disk.sync_names()?;
                file
            }
            Err(error) => return Err(error),
        };
        Ok(BoundFile { file, newest: newest.unwrap_or_default() })
    }

    /// Puts `bound` on stable storage.
    fn write(&mut self, bound: Hlc, reached: (u64, u64), clean: bool) -> io::Result<()> {
        let (sequence, (synced_to, manifest)) = (self.newest.sequence + 1, reached);
        let next = Bound { sequence, bound, synced_to, clean, manifest };
        assert!(bound >= self.newest.bound, "the persisted bound never falls");
        let position = (next.sequence % 2) * SLOT_STRIDE;
        let written = self.file.write_at(&mut [io::IoSlice::new(&next.encode())], position);
        written.and_then(|()| self.file.sync()).map_err(|error| {
            io::Error::new(error.kind(), format!("write journal/bound: {error}"))
        })?;
        self.newest = next;
        Ok(())
    }
}

/// What a slot of a bound file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Never written.
    Empty,
    /// A bound.
    Whole(Bound),
    /// Something else.
    Damaged,
}

/// Both slots of a bound file.
///
/// # Errors
/// The disk fails.
pub fn read_slots(file: &dyn DiskFile) -> io::Result<[Slot; 2]> {
    let mut slots = [Slot::Empty; 2];
    for (index, slot) in slots.iter_mut().enumerate() {
        let mut bytes = [0; SLOT_BYTES];
        file.read_at(&mut bytes, index as u64 * SLOT_STRIDE)?;
        *slot = match Bound::decode(&bytes) {
            Some(bound) => Slot::Whole(bound),
            None if bytes == [0; SLOT_BYTES] => Slot::Empty,
            None => Slot::Damaged,
        };
    }
    Ok(slots)
}

/// What is on stable storage besides the bound, to be said in the bound file.
pub(crate) struct Reached {
    /// Everything in the journal below this position.
    pub(crate) synced_to: u64,
    /// The manifest of this sequence. A newer one may be; an older one is not.
    pub(crate) manifest: Arc<AtomicU64>,
}

/// Why no stamp can be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The clock cannot be trusted.
    #[error("writes are fenced: {0}")]
    Fenced(Fence),
    /// The bound cannot be persisted.
    #[error("the clock's bound cannot be written: {0}; free space on the disk, or replace it")]
    Bound(String),
}

struct State {
    clock: Clock,
    /// The first stamp of the group that is on its way, if one is.
    in_flight: Option<Hlc>,
    renewal: Renewal,
    synced_to: u64,
    closing: bool,
}

impl State {
    /// Closes the clock. While the store closes, only repeats what was promised: the bound on disk
    /// is about to fall to that.
    fn promise(&mut self, reading: Reading) -> Hlc {
        if !self.closing {
            self.clock.close(reading);
        }
        self.clock.last()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Renewal {
    Idle,
    Wanted,
    Failed(String),
}

/// Called when the frontier may have advanced.
pub type Advanced = Box<dyn Fn() + Send + Sync>;

/// Gives out stamps, promises and frontiers.
pub struct Timekeeper {
    state: Mutex<State>,
    changed: Condvar,
    wall: Arc<dyn WallClock>,
    options: ClockOptions,
    advanced: Advanced,
    /// Who renews the bound where no thread does.
    by_hand: OnceLock<Mutex<Keeper>>,
}

impl Timekeeper {
    /// Starts from what the bound file and the journal say, and renews the bound once.
    ///
    /// A store that crashed may have promised times up to a second ahead: this waits until the wall
    /// clock has passed them, so that its first stamps need not run ahead of it.
    pub(crate) fn start(
        mut file: BoundFile,
        floor: Hlc,
        reached: Reached,
        wall: Arc<dyn WallClock>,
        options: ClockOptions,
        advanced: Advanced,
    ) -> io::Result<(Arc<Timekeeper>, Keeper)> {
        let ahead_ms = floor.time().0.saturating_sub(wall.read().wall.0);
        let patience_ms = (options.bound_ahead + options.skew_max).as_millis() as u64;
        if ahead_ms > 0 && ahead_ms <= patience_ms {
            wall.pause(Duration::from_millis(ahead_ms));
        }
        let Reached { synced_to, manifest } = reached;
        let mut clock = Clock::new(floor, options);
        let reading = wall.read();
        clock.close(reading);
        if let Some(bound) = clock.bound_due(reading) {
            file.write(bound, (synced_to, manifest.load(Ordering::Acquire)), false)?;
            clock.extend_bound(bound);
        }
        let state =
            State { clock, in_flight: None, renewal: Renewal::Idle, synced_to, closing: false };
        let timekeeper = Arc::new(Timekeeper {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wall,
            options,
            advanced,
            by_hand: OnceLock::new(),
        });
        Ok((timekeeper, Keeper { file, manifest }))
    }

    /// From here on the bound is renewed where it is needed, and by [`Timekeeper::renew_by_hand`].
    pub(crate) fn keep_by_hand(&self, keeper: Keeper) {
        let _ = self.by_hand.set(Mutex::new(keeper));
    }

    /// Renews the bound if that is wanted and no thread does it; whether it was.
    pub(crate) fn renew_by_hand(&self) -> bool {
        let keeper = self.by_hand.get().filter(|_| self.is_renewing());
        keeper.inspect(|keeper| keeper.lock().renew(self)).is_some()
    }

    /// Begins a group of appends: from here on the frontier stays below its stamps.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        assert!(state.in_flight.is_none(), "one group is on its way at a time");
        let promised = state.promise(self.wall.read());
        state.in_flight = Some(promised.next());
    }

    /// The next stamp of the group. Blocks while the bound is being renewed.
    pub(crate) fn stamp(&self) -> Result<Hlc, TimeError> {
        let mut state = self.state.lock();
        assert!(state.in_flight.is_some(), "a stamp belongs to a group");
        let mut asked = false;
        loop {
            let reading = self.wall.read();
            match state.clock.now(reading) {
                Ok(stamp) => {
                    if state.clock.bound_due(reading).is_some() {
                        self.want_renewal(&mut state);
                    }
                    return Ok(stamp);
                }
                Err(ClockError::BoundReached { .. }) => {
                    // A failure of long ago says nothing of the disk now: only one after asking.
                    if let (true, Renewal::Failed(why)) = (asked, &state.renewal) {
                        return Err(TimeError::Bound(why.clone()));
                    }
                    self.want_renewal(&mut state);
                    asked = true;
                    match self.by_hand.get() {
                        // Not let go in between: whoever renews must not be missed.
                        None => self.changed.wait(&mut state),
                        Some(_) => {
                            MutexGuard::unlocked(&mut state, || self.renew_by_hand());
                        }
                    }
                }
                Err(ClockError::Fenced(fence)) => return Err(TimeError::Fenced(fence)),
                Err(ClockError::PeerAhead { .. }) => unreachable!("now() hears no peer"),
            }
        }
    }

    /// Ends the group: its appends are visible, or will never be.
    pub(crate) fn end(&self, synced_to: u64) {
        let mut state = self.state.lock();
        state.in_flight = None;
        state.synced_to = synced_to;
        drop(state);
        (self.advanced)();
    }

    fn want_renewal(&self, state: &mut State) {
        if state.renewal != Renewal::Wanted {
            state.renewal = Renewal::Wanted;
            self.changed.notify_all();
        }
    }

    /// The frontier: every event that will ever appear has a stamp above it. Moves the clock (a
    /// closed promise), and asks for a later bound if that is what holds it back.
    pub fn frontier(&self) -> Hlc {
        let mut state = self.state.lock();
        let reading = self.wall.read();
        let promised = state.promise(reading);
        if !state.closing && state.clock.bound_due(reading).is_some() {
            self.want_renewal(&mut state);
        }
        match state.in_flight {
            Some(first) => first.previous().min(promised),
            None => promised,
        }
    }

    /// How long until the wall clock alone could close `cut`; zero if it has passed it.
    pub fn until(&self, cut: Cut) -> Duration {
        let target = cut.bound().next().time().0;
        Duration::from_millis(target.saturating_sub(self.wall.read().wall.0))
    }

    /// The wall clock's reading.
    pub fn wall_now(&self) -> hlc::SysTime {
        self.wall.read().wall
    }

    /// Steady time, for measuring.
    pub fn steady_now(&self) -> Duration {
        self.wall.read().steady
    }

    /// The largest skew that this clock accepts.
    pub fn skew_max(&self) -> Duration {
        self.options.skew_max
    }

    /// Why no stamps are issued, if so.
    pub fn fence(&self) -> Option<Fence> {
        let mut state = self.state.lock();
        state.promise(self.wall.read());
        state.clock.fence()
    }

    /// An operator says that the wall clock is right.
    pub fn confirm(&self) {
        self.state.lock().clock.confirm(self.wall.read());
        (self.advanced)();
    }

    /// Whether a later bound was asked for and is not on stable storage yet. A simulation waits for
    /// this to end before it goes on, so that its runs replay.
    pub fn is_renewing(&self) -> bool {
        self.state.lock().renewal == Renewal::Wanted
    }

    /// Counter overflows, and stamps of peers refused.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.clock.carries(), state.clock.peers_refused())
    }
}

/// Renews the bound, on a thread of its own if not by hand.
pub(crate) struct Keeper {
    file: BoundFile,
    manifest: Arc<AtomicU64>,
}

impl Keeper {
    fn manifest(&self) -> u64 {
        self.manifest.load(Ordering::Acquire)
    }

    /// Runs until [`Timekeeper::close`], then writes that the store was closed.
    pub(crate) fn run(mut self, timekeeper: &Timekeeper) {
        loop {
            let mut state = timekeeper.state.lock();
            while state.renewal != Renewal::Wanted && !state.closing {
                timekeeper.changed.wait(&mut state);
            }
            let closing = state.closing;
            drop(state);
            if closing {
                return self.end(timekeeper);
            }
            self.renew(timekeeper);
        }
    }

    /// Puts a later bound on stable storage, if one is due.
    fn renew(&mut self, timekeeper: &Timekeeper) {
        let mut state = timekeeper.state.lock();
        let due = state.clock.bound_due(timekeeper.wall.read());
        let synced_to = state.synced_to;
        let Some(bound) = due else {
            state.renewal = Renewal::Idle;
            timekeeper.changed.notify_all();
            return;
        };
        drop(state);
        let written = self.file.write(bound, (synced_to, self.manifest()), false);
        let mut state = timekeeper.state.lock();
        match written {
            Ok(()) => {
                state.clock.extend_bound(bound);
                state.renewal = Renewal::Idle;
            }
            Err(error) => {
                tracing::error!(%error, "the clock's bound cannot be written");
                state.renewal = Renewal::Failed(error.to_string());
            }
        }
        drop(state);
        timekeeper.changed.notify_all();
        (timekeeper.advanced)();
    }

    /// Writes that the store was closed.
    fn end(&mut self, timekeeper: &Timekeeper) {
        let state = timekeeper.state.lock();
        let (bound, synced_to) = (state.clock.last().next(), state.synced_to);
        drop(state);
        // The bound in force may lie ahead of every stamp; a clean end takes it back, so that the next
        // start need not wait. It is the one fall that is safe: nothing at or above the new bound was
        // given out, and nothing will be.
        self.file.newest.bound = self.file.newest.bound.min(bound);
        if let Err(error) = self.file.write(bound, (synced_to, self.manifest()), true) {
            tracing::warn!(%error, "the bound file was not closed; the next start waits a second");
        }
    }
}

impl Timekeeper {
    /// No more stamps will be asked for, and no more promises given.
    pub(crate) fn close(&self, synced_to: u64) {
        let mut state = self.state.lock();
        state.closing = true;
        state.synced_to = synced_to;
        drop(state);
        self.changed.notify_all();
        if let Some(keeper) = self.by_hand.get() {
            keeper.lock().end(self);
        }
    }
}
