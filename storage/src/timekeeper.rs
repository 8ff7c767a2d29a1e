//! The clock, the persisted bound, and what is in flight: everything that a frontier depends on.
//!
//! What holds true of it:
//! - A stamp or a promise is given out only below a bound that is on stable storage.
//! - While a group of appends is between its first stamp and being visible, the frontier stays below
//!   that stamp.
//!
//! - By a wall clock that is fenced or in doubt nothing is old ([`Timekeeper::confirmed_now`]).
//!
//! The bound lies in one small file of two slots, written in turn, so that a write that fails leaves
//! the other. A thread renews it ahead of need while stamps are being asked for; an idle store writes
//! nothing. Beside the bound stands how far the wall clock was confirmed, so that neither a doubt ends
//! nor a confirmation is forgotten by starting again.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hlc::{
    Clock, ClockDoubt, ClockError, ClockOptions, Cut, Fence, Hlc, Reading, SysTime, WallClock,
    WallMark,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::{Disk, DiskFile};

/// The name of the bound file, in the journal's directory.
pub const BOUND_FILE: &str = "bound";
const MAGIC: &[u8; 8] = b"FFBOUND2";
const SLOT_BYTES: usize = 64;
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
    /// How far the wall clock was confirmed.
    pub mark: WallMark,
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
        bytes[41] = u8::from(self.mark.is_confirmed);
        bytes[42..50].copy_from_slice(&self.mark.wall.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a slot; `None` if it is damaged or was never written.
    pub fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Bound> {
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a slot"))
        };
        let crc = u32::from_le_bytes(bytes[60..].try_into().ok()?);
        (&bytes[..8] == MAGIC && crc == crc32c::crc32c(&bytes[..60])).then(|| Bound {
            sequence: u64_at(8),
            bound: Hlc::from_bits(u64_at(16)),
            synced_to: u64_at(24),
            clean: bytes[32] != 0,
            manifest: u64_at(33),
            mark: WallMark { wall: SysTime(u64_at(42)), is_confirmed: bytes[41] != 0 },
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

    /// Where in the file a slot lies that is empty although it was written: of two writes, one went to each.
    ///
    /// # Errors
    /// The disk fails.
    pub fn lost_slot(disk: &dyn Disk) -> io::Result<Option<u64>> {
        let slots = match disk.open(BOUND_FILE) {
            Ok(file) => read_slots(&*file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_second = |slot: &Slot| matches!(slot, Slot::Whole(bound) if bound.sequence >= 2);
        let lost = slots.iter().position(|slot| *slot == Slot::Empty);
        Ok(lost.filter(|_| slots.iter().any(is_second)).map(|index| index as u64 * SLOT_STRIDE))
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
        file.hold_open(true);
        Ok(BoundFile { file, newest: newest.unwrap_or_default() })
    }

    /// Puts `next` on stable storage, as the write after the newest.
    fn write(&mut self, next: Bound) -> io::Result<()> {
        let next = Bound { sequence: self.newest.sequence + 1, ..next };
        assert!(next.bound >= self.newest.bound, "the persisted bound never falls");
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
    /// What is on stable storage of how far the wall clock was confirmed.
    marked: WallMark,
    /// After how long that is to be written again.
    mark_every: Duration,
    reported: ReportedTrust,
}

/// What was last said of the clock in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReportedTrust {
    is_fenced: bool,
    is_doubted: bool,
}

impl State {
    /// Closes the clock. While the store closes, only repeats what was promised: the bound on disk
    /// is about to fall to that.
    fn promise(&mut self, reading: Reading) -> Hlc {
        if !self.closing {
            self.clock.close(reading);
        }
        self.report();
        self.clock.last()
    }

    /// What ought to be written to the bound file now: a later bound, or a mark that says something else.
    fn due(&self) -> Option<Hlc> {
        let mark = self.clock.mark();
        let passed_ms = mark.wall.0.saturating_sub(self.marked.wall.0);
        let is_news = mark.is_confirmed != self.marked.is_confirmed
            || mark.wall < self.marked.wall
            || u128::from(passed_ms) >= self.mark_every.as_millis();
        let unchanged = (is_news && self.clock.fence().is_none()).then(|| self.clock.bound());
        self.clock.bound_due().or(unchanged)
    }

    /// Says it once when writes are fenced or the time is in doubt, and once when that is over.
    fn report(&mut self) {
        let (fence, doubt) = (self.clock.fence(), self.clock.doubt());
        let now = ReportedTrust { is_fenced: fence.is_some(), is_doubted: doubt.is_some() };
        let before = std::mem::replace(&mut self.reported, now);
        if now == before {
            return;
        }
        match fence {
            Some(fence) if !before.is_fenced => tracing::warn!("writes are fenced: {fence}"),
            None if before.is_fenced => tracing::info!("the clock's fence is lifted"),
            _ => {}
        }
        match doubt {
            Some(doubt) if !before.is_doubted => tracing::warn!("{doubt}"),
            None if before.is_doubted => tracing::info!("the time is confirmed"),
            _ => {}
        }
    }
}

/// What is known of the clock's precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPrecision {
    /// How far the wall clock may be wrong, in milliseconds: by the kernel's word where it is synchronised,
    /// and `skew_max_ms` at most.
    pub error_ms: u64,
    /// The largest skew that is accepted, in milliseconds.
    pub skew_max_ms: u64,
    /// Whether the kernel says that the wall clock is synchronised.
    pub is_synchronised: bool,
    /// How far stamps run ahead of the wall clock, in milliseconds: 0 as a rule.
    pub ahead_ms: u64,
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
        reached: Reached,
        wall: Arc<dyn WallClock>,
        options: ClockOptions,
        advanced: Advanced,
    ) -> io::Result<(Arc<Timekeeper>, Keeper)> {
        let floor = file.newest.bound.previous();
        let ahead_ms = floor.time().0.saturating_sub(wall.read().wall.0);
        let patience_ms = (options.bound_ahead + options.skew_max).as_millis() as u64;
        if ahead_ms > 0 && ahead_ms <= patience_ms {
            wall.pause(Duration::from_millis(ahead_ms));
        }
        let mut state = State {
            clock: Clock::resume(floor, file.newest.mark, options),
            in_flight: None,
            renewal: Renewal::Idle,
            synced_to: reached.synced_to,
            closing: false,
            marked: file.newest.mark,
            mark_every: options.start_gap / 2,
            reported: ReportedTrust::default(),
        };
        state.clock.close(wall.read());
        if state.clock.doubt().is_some() && wall.discipline().is_synchronised {
            state.clock.trust();
        }
        state.report();
        if let Some(bound) = state.due() {
            let mark = state.clock.mark();
            let (synced_to, manifest) =
                (reached.synced_to, reached.manifest.load(Ordering::Acquire));
            file.write(Bound { bound, mark, synced_to, manifest, ..Bound::default() })?;
            state.clock.extend_bound(bound);
            state.marked = mark;
        }
        let timekeeper = Arc::new(Timekeeper {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wall,
            options,
            advanced,
            by_hand: OnceLock::new(),
        });
        Ok((timekeeper, Keeper { file, manifest: reached.manifest }))
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
                    state.report();
                    if state.due().is_some() {
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
                Err(ClockError::Fenced(fence)) => {
                    state.report();
                    return Err(TimeError::Fenced(fence));
                }
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
        if !state.closing && state.due().is_some() {
            self.want_renewal(&mut state);
        }
        match state.in_flight {
            Some(first) => first.previous().min(promised),
            None => promised,
        }
    }

    /// Whether the frontier stays below the present for no other reason than that a later bound is on its
    /// way to the disk: after a while in which nobody asked.
    pub fn is_held_by_bound(&self) -> bool {
        let state = self.state.lock();
        state.renewal == Renewal::Wanted && state.clock.last().next() >= state.clock.bound()
    }

    /// How long until the wall clock alone could close `cut`; zero if it has passed it, or stamps have.
    pub fn until(&self, cut: Cut) -> Duration {
        let target = cut.bound().next().time().0;
        let ahead_ms = target.saturating_sub(self.wall.read().wall.0);
        if ahead_ms > 0 && cut.bound() <= self.state.lock().clock.last().next() {
            return Duration::ZERO;
        }
        Duration::from_millis(ahead_ms)
    }

    /// The wall clock's reading.
    pub fn wall_now(&self) -> hlc::SysTime {
        self.wall.read().wall
    }

    /// Steady time, for measuring.
    pub fn steady_now(&self) -> Duration {
        self.wall.read().steady
    }

    /// What is known of the clock's precision now.
    pub fn precision(&self) -> ClockPrecision {
        let discipline = self.wall.discipline();
        let skew_max_ms = self.options.skew_max.as_millis() as u64;
        let measured = discipline.error_max.filter(|_| discipline.is_synchronised);
        let error_ms = measured.map_or(skew_max_ms, |error| {
            u64::try_from(error.as_micros().div_ceil(1000)).unwrap_or(skew_max_ms).min(skew_max_ms)
        });
        let ahead = self.state.lock().clock.ahead_of(self.wall.read().wall);
        ClockPrecision {
            error_ms,
            skew_max_ms,
            is_synchronised: discipline.is_synchronised,
            ahead_ms: ahead.as_millis() as u64,
        }
    }

    /// Why no stamps are issued, if so.
    pub fn fence(&self) -> Option<Fence> {
        let mut state = self.state.lock();
        state.promise(self.wall.read());
        state.clock.fence()
    }

    /// Why nothing may be given up by the wall clock although it is not fenced, if so. Asks the kernel,
    /// whose word ends a doubt.
    pub fn doubt(&self) -> Option<ClockDoubt> {
        self.looked(|state, _| state.clock.doubt())
    }

    /// The wall clock's time, by which things may be found old and given up; `None` while it is fenced or in
    /// doubt: a clock that is wrong would make everything look old.
    pub fn confirmed_now(&self) -> Option<SysTime> {
        self.looked(|state, reading| {
            let is_confirmed = state.clock.fence().is_none() && state.clock.doubt().is_none();
            is_confirmed.then_some(reading.wall)
        })
    }

    /// Looks at the clock, and asks the kernel where there is a doubt.
    fn looked<T>(&self, ask: impl FnOnce(&State, Reading) -> T) -> T {
        let mut state = self.state.lock();
        let reading = self.wall.read();
        state.promise(reading);
        let is_doubted = state.clock.fence().is_none() && state.clock.doubt().is_some();
        if is_doubted && self.wall.discipline().is_synchronised && state.clock.trust() {
            tracing::info!("the kernel says that the wall clock is synchronised");
            state.report();
            self.want_renewal(&mut state);
        }
        ask(&state, reading)
    }

    /// An operator says that the wall clock is right. Why stamps are not issued all the same, if so.
    pub fn confirm(&self) -> Option<Fence> {
        let mut state = self.state.lock();
        state.clock.confirm(self.wall.read());
        state.report();
        if !state.closing {
            self.want_renewal(&mut state);
        }
        let fence = state.clock.fence();
        drop(state);
        (self.advanced)();
        fence
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
        // A clock that jumped since somebody looked must not take the bound with it.
        if !state.closing {
            state.clock.look(timekeeper.wall.read());
            state.report();
        }
        let (synced_to, mark) = (state.synced_to, state.clock.mark());
        let Some(bound) = state.due() else {
            state.renewal = Renewal::Idle;
            timekeeper.changed.notify_all();
            return;
        };
        drop(state);
        let manifest = self.manifest();
        let next = Bound { bound, mark, synced_to, manifest, ..Bound::default() };
        let written = self.file.write(next);
        let mut state = timekeeper.state.lock();
        match written {
            Ok(()) => {
                state.clock.extend_bound(bound);
                state.marked = mark;
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
        let mut state = timekeeper.state.lock();
        // Nothing is promised by that: only how far the wall clock was right is to be known.
        state.clock.look(timekeeper.wall.read());
        let (bound, mark) = (state.clock.last().next(), state.clock.mark());
        let synced_to = state.synced_to;
        drop(state);
        // The bound in force may lie ahead of every stamp; a clean end takes it back, so that the next
        // start need not wait. It is the one fall that is safe: nothing at or above the new bound was
        // given out, and nothing will be.
        self.file.newest.bound = self.file.newest.bound.min(bound);
        let manifest = self.manifest();
        let last = Bound { bound, mark, synced_to, manifest, clean: true, ..Bound::default() };
        if let Err(error) = self.file.write(last) {
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
