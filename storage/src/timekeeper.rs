//! The clock, the persisted bound, and appends in flight: everything that a frontier depends on.
//!
//! Invariants:
//! - A stamp or a promise is given out only below a bound that is on stable storage.
//! - Between a group's first stamp and the moment when its appends are visible or dropped, the
//!   frontier stays below that stamp.
//! - While the wall clock is fenced or in doubt, nothing expires by it
//!   ([`Timekeeper::confirmed_now`]).
//!
//! A thread renews the bound ahead of need while stamps are requested; an idle store writes
//! nothing.

mod bound_file;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hlc::{
    Clock, ClockDoubt, ClockError, ClockFence, ClockOptions, ClockSample, Cut, Hlc, SysTime,
    WallClock, WallMark,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::StorageError;

pub use bound_file::{BOUND_FILE, BoundError, BoundFile, BoundRecord, BoundSlot, read_slots};

/// The age of the bound file after which a later synced position is recorded in it for its own
/// sake.
const SYNC_RECORD_DELAY: Duration = Duration::from_millis(500);

/// The other state on stable storage that the bound file records.
pub(crate) struct DurableState {
    /// Everything in the journal below this position.
    pub(crate) synced_to: u64,
    /// The manifest with this sequence. A newer one may be; an older one is not.
    pub(crate) manifest: Arc<AtomicU64>,
}

/// The bound of promises where commits give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommittedBound {
    /// Promises are given below it.
    pub(crate) in_force: Hlc,
    /// Stamps are given above it.
    pub(crate) floor: Hlc,
}

/// The reason no stamp can be assigned.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimeError {
    /// The clock cannot be trusted.
    #[error("writes are fenced: {0}")]
    Fenced(ClockFence),
    /// The bound cannot be persisted.
    #[error("the clock's bound cannot be written: {0}; if the disk fails, replace it")]
    Bound(StorageError),
}

struct TimekeeperState {
    clock: Clock,
    /// The first stamp of each group in flight, oldest first.
    in_flight: VecDeque<Hlc>,
    /// The last frontier that was given out.
    promised: Hlc,
    /// The bound below which promises are given, if it is not that of the clock.
    promise_bound: Hlc,
    renewal: BoundRenewal,
    synced_to: u64,
    /// The position in the bound file, and the steady time of the write.
    durable_synced_to: u64,
    written_at: Duration,
    closing: bool,
    /// The confirmed reading of the wall clock that is on stable storage.
    durable_mark: WallMark,
    /// The time after which the mark is written again.
    mark_interval: Duration,
    reported: ClockReport,
}

/// The state of the clock that the log reported last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClockReport {
    is_fenced: bool,
    is_doubted: bool,
}

impl TimekeeperState {
    /// Closes the clock. While the store closes, it only repeats what was promised: the bound on
    /// disk is about to fall to that.
    fn promise(&mut self, reading: ClockSample) -> Hlc {
        if !self.closing {
            self.clock.close(reading);
        }
        self.report();
        self.clock.last()
    }

    /// The bound to write to the bound file now: a later one, or the same one with a changed mark.
    fn bound_due(&self) -> Option<Hlc> {
        let mark = self.clock.mark();
        let passed_ms = mark.wall.0.saturating_sub(self.durable_mark.wall.0);
        let is_news = mark.is_confirmed != self.durable_mark.is_confirmed
            || mark.wall < self.durable_mark.wall
            || u128::from(passed_ms) >= self.mark_interval.as_millis();
        let unchanged = (is_news && self.clock.fence().is_none()).then(|| self.file_bound());
        self.clock.bound_due().or(unchanged)
    }

    /// The bound that the bound file has, or may have.
    fn file_bound(&self) -> Hlc {
        if self.promise_bound == Hlc::MAX {
            return self.clock.bound();
        }
        self.promise_bound.max(self.clock.last().next())
    }

    /// Returns true if more is synced than the bound file says, and that can be written without a
    /// later bound.
    fn is_sync_unrecorded(&self) -> bool {
        self.synced_to > self.durable_synced_to && self.clock.fence().is_none()
    }

    /// Reports once when writes are fenced or the time is in doubt, and once when that is over.
    fn report(&mut self) {
        let (fence, doubt) = (self.clock.fence(), self.clock.doubt());
        let now = ClockReport { is_fenced: fence.is_some(), is_doubted: doubt.is_some() };
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

/// The precision of the clock, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPrecision {
    /// The largest error of the wall clock, in milliseconds: the kernel's estimate if it is
    /// synchronised, and `skew_max_ms` at most.
    pub error_ms: u64,
    /// The largest skew that is accepted, in milliseconds.
    pub skew_max_ms: u64,
    /// True if the kernel says that the wall clock is synchronised.
    pub is_synchronised: bool,
    /// The lead of stamps over the wall clock, in milliseconds: 0 as a rule.
    pub ahead_ms: u64,
}

#[derive(Clone, Debug)]
enum BoundRenewal {
    Idle,
    Wanted,
    Failed(StorageError),
}

impl BoundRenewal {
    fn is_wanted(&self) -> bool {
        matches!(self, BoundRenewal::Wanted)
    }
}

/// Called when the frontier may have advanced.
pub type FrontierCallback = Box<dyn Fn() + Send + Sync>;

/// Assigns stamps, and gives out promises and frontiers.
pub struct Timekeeper {
    state: Mutex<TimekeeperState>,
    changed: Condvar,
    wall: Arc<dyn WallClock>,
    options: ClockOptions,
    on_frontier: FrontierCallback,
    /// Renews the bound if no thread does.
    manual_renewer: OnceLock<Mutex<BoundRenewer>>,
}

impl Timekeeper {
    /// Starts from the state in the bound file and the journal, and renews the bound once.
    ///
    /// A store that crashed may have promised times up to a second ahead: this waits until the wall
    /// clock has passed them, so that its first stamps need not run ahead of it. If commits bound the
    /// promises, stamps need not lie above the bound in the file, and `commits` says what holds
    /// instead.
    pub(crate) fn start(
        mut file: BoundFile,
        commits: Option<CommittedBound>,
        reached: DurableState,
        wall: Arc<dyn WallClock>,
        options: ClockOptions,
        advanced: FrontierCallback,
    ) -> Result<(Arc<Timekeeper>, BoundRenewer), StorageError> {
        let by_file = file.newest().bound.previous();
        let floor = commits.map_or(by_file, |commits| by_file.max(commits.floor));
        let promise_bound = commits.map_or(Hlc::MAX, |commits| commits.in_force);
        let promised = commits.map_or(by_file, |commits| commits.in_force.previous());
        let ahead_ms = floor.time().0.saturating_sub(wall.read().wall.0);
        let patience_ms = (options.bound_ahead + options.skew_max).as_millis() as u64;
        if ahead_ms > 0 && ahead_ms <= patience_ms {
            wall.sleep(Duration::from_millis(ahead_ms));
        }
        let mut state = TimekeeperState {
            clock: Clock::resume(floor, file.newest().mark, options),
            in_flight: VecDeque::new(),
            promised,
            promise_bound,
            renewal: BoundRenewal::Idle,
            synced_to: reached.synced_to,
            durable_synced_to: file.newest().synced_to,
            written_at: wall.read().steady,
            closing: false,
            durable_mark: file.newest().mark,
            mark_interval: options.start_gap / 2,
            reported: ClockReport::default(),
        };
        if commits.is_some() {
            state.clock.extend_bound(Hlc::MAX);
        }
        state.clock.close(wall.read());
        if state.clock.doubt().is_some() && wall.discipline().is_synchronised {
            state.clock.trust();
        }
        state.report();
        if let Some(bound) = state.bound_due() {
            let mark = state.clock.mark();
            let (synced_to, manifest) =
                (reached.synced_to, reached.manifest.load(Ordering::Acquire));
            file.write(BoundRecord {
                bound,
                mark,
                synced_to,
                manifest_sequence: manifest,
                ..BoundRecord::default()
            })?;
            state.clock.extend_bound(bound);
            state.durable_mark = mark;
            state.durable_synced_to = synced_to;
        }
        let timekeeper = Arc::new(Timekeeper {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wall,
            options,
            on_frontier: advanced,
            manual_renewer: OnceLock::new(),
        });
        Ok((timekeeper, BoundRenewer { file, manifest: reached.manifest }))
    }

    /// From here on the bound is renewed when it is needed, and by [`Timekeeper::renew_manually`].
    pub(crate) fn set_manual_renewer(&self, keeper: BoundRenewer) {
        let _ = self.manual_renewer.set(Mutex::new(keeper));
    }

    /// Renews the bound if that is wanted and no thread does it; returns whether it did.
    pub(crate) fn renew_manually(&self) -> bool {
        match self.manual_renewer.get() {
            Some(keeper) if self.is_renewing() => {
                keeper.lock().renew(self);
                true
            }
            _ => false,
        }
    }

    /// Begins a group of appends: from here on the frontier stays below its stamps.
    pub(crate) fn begin_group(&self) {
        let mut state = self.state.lock();
        let promised = state.promise(self.wall.read());
        state.in_flight.push_back(promised.next());
    }

    /// Begins a group that has its stamps already, from `first` to `last`. Later stamps lie above them.
    ///
    /// # Errors
    /// The last frontier that was given out, if that is not below the group: no entry may appear there
    /// any more.
    pub(crate) fn begin_stamped_group(&self, first: Hlc, last: Hlc) -> Result<(), Hlc> {
        let mut state = self.state.lock();
        if first <= state.promised {
            return Err(state.promised);
        }
        state.in_flight.push_back(first);
        state.clock.raise(last);
        Ok(())
    }

    /// Begins a group that an earlier incarnation has written: the clock is above its stamps.
    pub(crate) fn begin_held_group(&self, first: Hlc) {
        self.state.lock().in_flight.push_back(first);
    }

    /// Later stamps lie above `floor`, which other nodes rely on.
    pub(crate) fn raise(&self, floor: Hlc) {
        self.state.lock().clock.raise(floor);
    }

    /// Lets promises be given below a later bound, if it is not that of the clock.
    pub(crate) fn extend_promises(&self, bound: Hlc) {
        let mut state = self.state.lock();
        state.promise_bound = state.promise_bound.max(bound);
        drop(state);
        (self.on_frontier)();
    }

    /// The next stamp of the newest group. Blocks while the bound is being renewed.
    pub(crate) fn stamp(&self) -> Result<Hlc, TimeError> {
        let mut state = self.state.lock();
        assert!(!state.in_flight.is_empty(), "a stamp belongs to a group");
        let mut has_asked = false;
        loop {
            let reading = self.wall.read();
            match state.clock.now(reading) {
                Ok(stamp) => {
                    state.report();
                    if state.bound_due().is_some() {
                        self.want_renewal(&mut state);
                    }
                    return Ok(stamp);
                }
                Err(ClockError::BoundReached { .. }) => {
                    // An old failure says nothing of the disk now: only one after this request
                    // counts.
                    if let (true, BoundRenewal::Failed(why)) = (has_asked, &state.renewal) {
                        return Err(TimeError::Bound(why.clone()));
                    }
                    self.want_renewal(&mut state);
                    has_asked = true;
                    match self.manual_renewer.get() {
                        // The lock is not released in between: otherwise a renewal could be missed.
                        None => self.changed.wait(&mut state),
                        Some(_) => {
                            MutexGuard::unlocked(&mut state, || self.renew_manually());
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

    /// The last stamp that was given out, promised or received: at or above that of all that is
    /// visible. It is what a message to a peer or a client carries.
    pub fn last(&self) -> Hlc {
        self.state.lock().clock.last()
    }

    /// Merges a stamp that came with a message: all that happens here from now on has a later one.
    ///
    /// # Errors
    /// As [`Clock::receive`]. After [`ClockError::BoundReached`] a later bound is on its way to the
    /// disk; try again when the frontier has advanced.
    pub fn receive(&self, peer: Hlc) -> Result<(), ClockError> {
        let mut state = self.state.lock();
        // After the last promise of a store that closes, nothing happens in it.
        if peer <= state.clock.last() || state.closing {
            return Ok(());
        }
        let received = state.clock.receive(peer, self.wall.read());
        state.report();
        if matches!(received, Err(ClockError::BoundReached { .. })) || state.bound_due().is_some() {
            self.want_renewal(&mut state);
        }
        received.map(drop)
    }

    /// Ends the oldest group: its appends are visible. Below `synced_to` the journal is on stable
    /// storage, and stays.
    pub(crate) fn end_group(&self, synced_to: u64) {
        let mut state = self.state.lock();
        let ended = state.in_flight.pop_front();
        assert!(ended.is_some(), "a group ends once");
        state.synced_to = synced_to;
        drop(state);
        (self.on_frontier)();
    }

    /// Ends the newest groups: their appends will never be visible, and are not in the journal.
    pub(crate) fn drop_groups(&self, count: usize) {
        let mut state = self.state.lock();
        let kept = state.in_flight.len().checked_sub(count).expect("a group ends once");
        state.in_flight.truncate(kept);
        drop(state);
        (self.on_frontier)();
    }

    /// Has what was synced recorded in the bound file if that was not written for a while. While
    /// stamps are requested, renewals of the bound record it; this is for the last group before a
    /// pause, which no later frame knows to be synced.
    pub(crate) fn record_synced(&self) {
        let mut state = self.state.lock();
        let age = self.wall.read().steady.saturating_sub(state.written_at);
        let has_failed = matches!(state.renewal, BoundRenewal::Failed(_));
        if state.is_sync_unrecorded() && age >= SYNC_RECORD_DELAY && !state.closing && !has_failed {
            self.want_renewal(&mut state);
        }
    }

    fn want_renewal(&self, state: &mut TimekeeperState) {
        if !state.renewal.is_wanted() {
            state.renewal = BoundRenewal::Wanted;
            self.changed.notify_all();
        }
    }

    /// The frontier: every event that will ever appear has a stamp above it. It advances the clock
    /// (a closed promise), and requests a later bound if the bound holds it back.
    pub fn frontier(&self) -> Hlc {
        let mut state = self.state.lock();
        let reading = self.wall.read();
        let promised = state.promise(reading);
        if !state.closing && state.bound_due().is_some() {
            self.want_renewal(&mut state);
        }
        let bounded = promised.min(state.promise_bound.previous());
        let frontier =
            state.in_flight.front().map_or(bounded, |first| first.previous().min(bounded));
        state.promised = state.promised.max(frontier);
        frontier
    }

    /// Returns true if the frontier stays below the present only because a later bound is not on
    /// the disk yet. This happens after a while without requests.
    pub fn is_held_by_bound(&self) -> bool {
        let state = self.state.lock();
        state.renewal.is_wanted() && state.clock.last().next() >= state.clock.bound()
    }

    /// The time until the wall clock alone could close `cut`; zero if the clock or stamps have
    /// passed it.
    pub fn time_until(&self, cut: Cut) -> Duration {
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

    /// Monotonic time, for measuring.
    pub fn steady_now(&self) -> Duration {
        self.wall.read().steady
    }

    /// The clock's precision now.
    pub fn precision(&self) -> ClockPrecision {
        let discipline = self.wall.discipline();
        let skew_max_ms = self.options.skew_max.as_millis() as u64;
        let measured = if discipline.is_synchronised { discipline.error_max } else { None };
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

    /// The reason no stamps are issued, if they are not.
    pub fn fence(&self) -> Option<ClockFence> {
        let mut state = self.state.lock();
        state.promise(self.wall.read());
        state.clock.fence()
    }

    /// The reason nothing may expire by the wall clock although it is not fenced, if so. It
    /// consults the kernel, whose confirmation ends a doubt.
    pub fn doubt(&self) -> Option<ClockDoubt> {
        self.with_reading(|state, _| state.clock.doubt())
    }

    /// The wall clock's time, for expiry; `None` while it is fenced or in doubt, because a wrong
    /// clock would make everything look old.
    pub fn confirmed_now(&self) -> Option<SysTime> {
        self.with_reading(|state, reading| {
            let is_confirmed = state.clock.fence().is_none() && state.clock.doubt().is_none();
            is_confirmed.then_some(reading.wall)
        })
    }

    /// Reads the clock, and consults the kernel if there is a doubt.
    fn with_reading<T>(&self, read: impl FnOnce(&TimekeeperState, ClockSample) -> T) -> T {
        let mut state = self.state.lock();
        let reading = self.wall.read();
        state.promise(reading);
        let is_doubted = state.clock.fence().is_none() && state.clock.doubt().is_some();
        if is_doubted && self.wall.discipline().is_synchronised && state.clock.trust() {
            tracing::info!("the kernel says that the wall clock is synchronised");
            state.report();
            self.want_renewal(&mut state);
        }
        read(&state, reading)
    }

    /// An operator confirms the wall clock. Returns why stamps are still not issued, if they are
    /// not.
    pub fn confirm(&self) -> Option<ClockFence> {
        let mut state = self.state.lock();
        state.clock.confirm(self.wall.read());
        state.report();
        if !state.closing {
            self.want_renewal(&mut state);
        }
        let fence = state.clock.fence();
        drop(state);
        (self.on_frontier)();
        fence
    }

    /// The confirmed reading of the wall clock that is on stable storage.
    pub(crate) fn durable_mark(&self) -> WallMark {
        self.state.lock().durable_mark
    }

    /// Returns true if a later bound was requested and is not on stable storage yet. A simulation
    /// waits for the end of this before it continues, so that its runs are reproducible.
    pub fn is_renewing(&self) -> bool {
        self.state.lock().renewal.is_wanted()
    }

    /// Counter overflows, and refused stamps of peers.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.clock.carries(), state.clock.peers_refused())
    }
}

/// Renews the bound, on a thread of its own unless it is stepped manually.
pub(crate) struct BoundRenewer {
    file: BoundFile,
    manifest: Arc<AtomicU64>,
}

impl BoundRenewer {
    fn manifest(&self) -> u64 {
        self.manifest.load(Ordering::Acquire)
    }

    /// Runs until [`Timekeeper::close`], then records that the store was closed.
    pub(crate) fn run(mut self, timekeeper: &Timekeeper) {
        loop {
            let mut state = timekeeper.state.lock();
            while !state.renewal.is_wanted() && !state.closing {
                timekeeper.changed.wait(&mut state);
            }
            let closing = state.closing;
            drop(state);
            if closing {
                return self.close_bound_file(timekeeper);
            }
            self.renew(timekeeper);
        }
    }

    /// Puts a later bound on stable storage, if one is due.
    fn renew(&mut self, timekeeper: &Timekeeper) {
        let mut state = timekeeper.state.lock();
        let reading = timekeeper.wall.read();
        // A clock that jumped since it was last read must not take the bound with it.
        if !state.closing {
            state.clock.observe(reading);
            state.report();
        }
        let (synced_to, mark) = (state.synced_to, state.clock.mark());
        let unchanged = state.is_sync_unrecorded().then(|| state.file_bound());
        let Some(bound) = state.bound_due().or(unchanged) else {
            state.renewal = BoundRenewal::Idle;
            timekeeper.changed.notify_all();
            return;
        };
        drop(state);
        let manifest = self.manifest();
        let next = BoundRecord {
            bound,
            mark,
            synced_to,
            manifest_sequence: manifest,
            ..BoundRecord::default()
        };
        let written = self.file.write(next);
        let mut state = timekeeper.state.lock();
        match written {
            Ok(()) => {
                state.clock.extend_bound(bound);
                state.durable_mark = mark;
                state.durable_synced_to = synced_to;
                state.written_at = reading.steady;
                state.renewal = BoundRenewal::Idle;
            }
            Err(error) => {
                tracing::error!(%error, "the clock's bound cannot be written");
                state.renewal = BoundRenewal::Failed(error);
            }
        }
        drop(state);
        timekeeper.changed.notify_all();
        (timekeeper.on_frontier)();
    }

    /// Records that the store was closed.
    fn close_bound_file(&mut self, timekeeper: &Timekeeper) {
        let mut state = timekeeper.state.lock();
        // This promises nothing: it only records how far the wall clock was right.
        state.clock.observe(timekeeper.wall.read());
        let (bound, mark) = (state.clock.last().next(), state.clock.mark());
        let synced_to = state.synced_to;
        drop(state);
        let manifest = self.manifest();
        let last = BoundRecord {
            bound,
            mark,
            synced_to,
            manifest_sequence: manifest,
            ..BoundRecord::default()
        };
        if let Err(error) = self.file.close(last) {
            tracing::warn!(%error, "the bound file was not closed; the next start waits a second");
        }
    }
}

impl Timekeeper {
    /// Ends the timekeeper: no more stamps and no more promises are requested.
    pub(crate) fn close(&self, synced_to: u64) {
        let mut state = self.state.lock();
        state.closing = true;
        state.synced_to = synced_to;
        drop(state);
        self.changed.notify_all();
        if let Some(keeper) = self.manual_renewer.get() {
            keeper.lock().close_bound_file(self);
        }
    }
}

#[cfg(test)]
mod tests;
