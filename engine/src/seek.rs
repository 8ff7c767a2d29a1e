//! Reading the past: from a requested moment to the offsets that a reader may see.
//!
//! Invariants of every answer here, for a cut by system time:
//! - It is given only once the frontier has closed the cut, so nothing can enter the cut any more:
//!   the same query always gets the same answer.
//! - It is never silently incomplete: where records that belong to it have been removed, the answer
//!   is an error that names each such partition.
//!
//! [`Engine::wait_until_closed`] implements the table of TIME.md 3.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hlc::{Cut, Hlc, Moment, MomentSelector, SysTime, UserTime};
use storage::manifest::LogHorizon;
use storage::{EntryPayload, Offset, StorageError};

use crate::blocking::{read_log_from, tip_at};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic};
use crate::user_time::NO_TIMES;

/// What to do if the requested moment is not past yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Wait for it, if it is not further ahead than this.
    Wait(Duration),
    /// Refuse, and return the frontier.
    Refuse,
    /// Answer at the frontier instead, and say so in the answer.
    AtFrontier,
}

/// Why a moment cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SeekError {
    /// The moment is not past yet.
    #[error(
        "the moment is not past yet: ask again in {retry_ms} ms, or wait for it. moment={}, now={}",
        Moment::Sys(*.cut), Moment::Sys(Cut::before(.frontier.time()))
    )]
    NotYet {
        /// The requested cut.
        cut: Cut,
        /// The frontier.
        frontier: Hlc,
        /// In how many milliseconds the moment is past.
        retry_ms: u64,
    },
    /// The moment is further ahead than the caller's patience.
    #[error(
        "the moment lies in the future. moment={}, now={}",
        Moment::Sys(*.cut), Moment::Sys(Cut::before(.frontier.time()))
    )]
    FarFuture {
        /// The requested cut.
        cut: Cut,
        /// The frontier.
        frontier: Hlc,
    },
    /// Records that belong to the moment have been removed.
    #[error("history before the moment has been removed. {}", list(.lost))]
    BeforeHistory {
        /// Each such partition, and its earliest readable moment.
        lost: Vec<TruncatedPartition>,
    },
    /// Offsets and groups of that moment have been removed.
    #[error(
        "offsets and groups before the moment have been removed. they begin at {}",
        Moment::Sys(Cut::below(*.earliest))
    )]
    BeforeOffsets {
        /// The bound of their earliest readable cut.
        earliest: Hlc,
    },
    /// A topic of the moment may have been removed, because none of its records were left; or the
    /// events of pins of that moment have been removed.
    #[error(
        "what topics and pins there were at the moment is not known any more. it is from {} on",
        Moment::Sys(Cut::below(*.earliest))
    )]
    BeforeNames {
        /// The bound of the first later cut at which topics and pins are known.
        earliest: Hlc,
    },
    /// No such topic existed at that moment.
    #[error("there was no such topic at that moment. topic={topic}, moment={selector}")]
    NoTopic {
        /// The topic.
        topic: String,
        /// The moment.
        selector: MomentSelector,
    },
    /// Stored data cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<StorageError> for SeekError {
    fn from(error: StorageError) -> SeekError {
        SeekError::Engine(error.into())
    }
}

/// A partition whose history does not reach back to a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruncatedPartition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// The bound of its earliest readable cut.
    pub earliest: Hlc,
}

fn list(lost: &[TruncatedPartition]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = lost
        .iter()
        .take(SHOWN)
        .map(|lost| {
            let earliest = Moment::Sys(Cut::below(lost.earliest));
            format!("{}/{} begins at {earliest}", lost.topic, lost.partition)
        })
        .collect();
    if lost.len() > SHOWN {
        text.push(format!("and {} more", lost.len() - SHOWN));
    }
    text.join(", ")
}

/// The range of one partition that a reader may see: `[start, end)`.
#[derive(Clone, Debug)]
pub struct PartitionView {
    /// The partition.
    pub partition: Arc<Partition>,
    /// The first offset.
    pub start: Offset,
    /// The offset after the last; `None` for the present, which grows.
    pub end: Option<Offset>,
}

impl PartitionView {
    /// The present of a partition.
    pub fn present(partition: &Arc<Partition>) -> PartitionView {
        PartitionView { partition: Arc::clone(partition), start: Offset(0), end: None }
    }

    /// The first offset that can be read.
    pub fn start(&self) -> Offset {
        self.start.max(self.partition.start())
    }

    /// The offset after the last that can be read.
    pub fn end(&self) -> Offset {
        self.end.unwrap_or_else(|| self.partition.end())
    }

    /// The batches from the one that holds `from`, whole, up to `bytes_max`; the first one whatever
    /// its length. Empty at the end of the view, which may be inside a batch.
    ///
    /// # Errors
    /// `from` is outside of the readable range.
    pub fn read(&self, from: i64, bytes_max: usize) -> Result<Vec<EntryPayload>, EngineError> {
        let (start, end) = (self.start(), self.end());
        let inside = u64::try_from(from).is_ok_and(|from| from >= start.0 && from <= end.0);
        if !inside {
            return Err(EngineError::OffsetOutOfRange { offset: from, start, end });
        }
        let (log, offset) = (&self.partition.log, Offset(from as u64));
        if offset == end {
            return Ok(Vec::new());
        }
        let pieces = read_log_from(log, offset, || log.read(offset, end, bytes_max))?;
        // The log start may have advanced meanwhile: then the batches begin after the requested
        // offset.
        let start = self.start();
        if (from as u64) < start.0 {
            return Err(EngineError::OffsetOutOfRange { offset: from, start, end });
        }
        Ok(pieces)
    }
}

/// What a reader may see of a topic.
#[derive(Clone, Debug)]
pub struct TopicView {
    /// The topic as of the moment.
    pub topic: Arc<Topic>,
    /// The requested moment, as an absolute one.
    pub selector: MomentSelector,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionView>,
}

impl TopicView {
    /// Checks that everything that belongs to the view is still retained. Called at each use,
    /// because records may be removed after a view was made.
    ///
    /// # Errors
    /// [`SeekError::BeforeHistory`].
    pub fn check_retained(&self) -> Result<(), SeekError> {
        let lost: Vec<TruncatedPartition> =
            self.partitions.iter().filter_map(|view| self.truncation_of(view)).collect();
        if lost.is_empty() { Ok(()) } else { Err(SeekError::BeforeHistory { lost }) }
    }

    /// [`TopicView::check_retained`] for the `nth` partition alone, because a topic may have many.
    ///
    /// # Errors
    /// [`SeekError::BeforeHistory`].
    pub fn check_partition_retained(&self, nth: usize) -> Result<(), SeekError> {
        match self.partitions.get(nth).and_then(|view| self.truncation_of(view)) {
            None => Ok(()),
            Some(lost) => Err(SeekError::BeforeHistory { lost: vec![lost] }),
        }
    }

    /// The partition of a view, if something that belongs to the view is not retained any more.
    fn truncation_of(&self, view: &PartitionView) -> Option<TruncatedPartition> {
        let horizon = view.partition.log.horizon();
        let is_whole = match self.selector {
            MomentSelector::At(Moment::Sys(cut)) | MomentSelector::Window(Moment::Sys(cut), _) => {
                is_retained(&horizon, cut)
            }
            MomentSelector::At(Moment::User { before, known }) => {
                is_retained_by_user_time(&horizon, before, known.unwrap_or(Cut::ALL), view.end())
            }
            MomentSelector::Window(Moment::User { before, .. }, last) => {
                let known = match last {
                    Moment::User { known, .. } => known,
                    Moment::Sys(cut) => Some(cut),
                };
                view.start >= horizon.start
                    && is_uncompacted(&horizon, known)
                    && is_user_time_retained(&horizon, before)
            }
        };
        (!is_whole).then(|| TruncatedPartition {
            topic: Arc::clone(&self.topic.name),
            partition: view.partition.index,
            earliest: earliest_bound(&horizon),
        })
    }
}

/// Whether a log's history reaches back to `cut`: the cut admits everything that was removed, and
/// everything that superseded what compaction dropped.
pub(crate) fn is_retained(horizon: &LogHorizon, cut: Cut) -> bool {
    let given_up = horizon.start > Offset(0) && cut.bound() <= horizon.lost_to;
    !given_up && is_uncompacted(horizon, Some(cut))
}

/// Whether a prefix by user time that ends at `end` still reads as before.
pub(crate) fn is_retained_by_user_time(
    horizon: &LogHorizon,
    before: UserTime,
    known: Cut,
    end: Offset,
) -> bool {
    end >= horizon.start
        && is_uncompacted(horizon, Some(known))
        && is_user_time_retained(horizon, before)
}

/// Whether the first record at or after a user time can still be found.
///
/// A removed record with that time or a later one may have been the first such record. Then the
/// prefix ended within the removed range, and the first remaining record would be another answer
/// than before.
fn is_user_time_retained(horizon: &LogHorizon, time: UserTime) -> bool {
    let is_whole = horizon.start == Offset(0) && horizon.compacted_to == Hlc::ZERO;
    is_whole || time > horizon.released_user_time_max()
}

fn is_uncompacted(horizon: &LogHorizon, known: Option<Cut>) -> bool {
    known.is_none_or(|cut| cut.bound() >= horizon.compacted_to)
}

/// A record found by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAndTimestamp {
    /// Its offset.
    pub offset: Offset,
    /// Its user time.
    pub time: UserTime,
    /// The epoch of its batch.
    pub epoch: u32,
}

/// The smallest user time of a record. The number below it is the largest user time of a batch
/// without any.
const USER_TIME_MIN: UserTime = UserTime(NO_TIMES.1.0 + 1);

/// How long an answer may wait until a later bound of the clock is on the disk.
const BOUND_RENEWAL_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long an answer may wait for appends and events in flight.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(30);

impl Engine {
    /// The frontier: every event that will ever appear has a stamp above it. It alone decides what
    /// is closed to readers.
    pub fn frontier(&self) -> Hlc {
        self.store.timekeeper().frontier()
    }

    /// The frontier as of now. If nobody has read it for a while, it is at the clock's bound until
    /// a later bound is on the disk; this call waits for that.
    pub async fn present_frontier(&self) -> Hlc {
        let timekeeper = self.store.timekeeper();
        timekeeper.frontier();
        if !timekeeper.is_held_by_bound() {
            // Read again, because a later bound may have been written in between.
            return timekeeper.frontier();
        }
        let deadline = tokio::time::Instant::now() + BOUND_RENEWAL_WAIT_MAX;
        loop {
            let advanced = self.shared.frontier_advanced.notified();
            if !timekeeper.is_renewing()
                || tokio::time::timeout_at(deadline, advanced).await.is_err()
            {
                return timekeeper.frontier();
            }
        }
    }

    /// Waits until nothing can enter `cut` any more. Returns the closed cut, which differs from
    /// `cut` only for [`WaitPolicy::AtFrontier`], and the frontier.
    ///
    /// # Errors
    /// [`SeekError::NotYet`], [`SeekError::FarFuture`].
    pub async fn wait_until_closed(
        &self,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc), SeekError> {
        let timekeeper = self.store.timekeeper();
        if !cut.is_closed_by(self.frontier()) {
            self.present_frontier().await;
        }
        let deadline = match when {
            WaitPolicy::Wait(patience) => {
                // A wall clock that was set back does not make a past moment a future one.
                let frontier = timekeeper.frontier();
                if !cut.is_closed_by(frontier) && timekeeper.time_until(cut) > patience {
                    return Err(SeekError::FarFuture { cut, frontier });
                }
                patience.max(Duration::from_secs(1))
            }
            // Only to let appends in flight complete.
            _ => CLOSE_WAIT_MAX,
        };
        let deadline = tokio::time::Instant::now() + deadline;
        loop {
            let advanced = self.shared.frontier_advanced.notified();
            let frontier = self.frontier();
            let (cut, closed) = match when {
                WaitPolicy::AtFrontier if !cut.is_closed_by(frontier) => {
                    (Cut::through(frontier), true)
                }
                _ => (cut, cut.is_closed_by(frontier)),
            };
            if closed && self.has_applied(cut)? {
                return Ok((cut, frontier));
            }
            let ahead = timekeeper.time_until(cut);
            let not_yet =
                || SeekError::NotYet { cut, frontier, retry_ms: (ahead.as_millis() as u64).max(1) };
            if when == WaitPolicy::Refuse && !closed {
                return Err(not_yet());
            }
            // The wall clock closes the cut, an append in flight ends, or the clock's bound is
            // renewed. The last two notify.
            let pause = ahead.clamp(Duration::from_millis(1), Duration::from_millis(500));
            if tokio::time::Instant::now() >= deadline {
                return Err(not_yet());
            }
            let _ = tokio::time::timeout(pause, advanced).await;
        }
    }

    /// The topic `name` as of `ask`.
    ///
    /// A moment of user time is served as a prefix of each partition, up to the first record at or
    /// after it, among the records known at a system time. If `ask` does not give that system time,
    /// it is the frontier of this call. The answer's `selector` contains it.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn view(
        &self,
        name: &str,
        ask: MomentSelector,
        when: WaitPolicy,
    ) -> Result<TopicView, SeekError> {
        self.view_partitions(name, 0..u32::MAX, ask, when).await
    }

    /// [`Engine::view`] for these partitions alone, because a topic may have many.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn view_partitions(
        &self,
        name: &str,
        partitions: Range<u32>,
        ask: MomentSelector,
        when: WaitPolicy,
    ) -> Result<TopicView, SeekError> {
        let wanted = partitions;
        let (first, mut last) = match ask {
            MomentSelector::At(moment) => (None, moment),
            MomentSelector::Window(first, last) => (Some(first), last),
        };
        // A window is read as known at one moment: the later of those that its ends name.
        if let (Some(Moment::User { known: Some(earlier), .. }), Moment::User { known, .. }) =
            (first, &mut last)
        {
            *known = Some(known.map_or(earlier, |known| known.max(earlier)));
        }
        let (last, known) = self.resolve_moment(last, when).await?;
        let topic = self.shared.namespace.read().require_topic_at(name, known, ask)?;
        let mut partitions = Vec::new();
        for partition in topic.partitions.iter().filter(|held| wanted.contains(&held.index)) {
            let end = self.end_at(partition, last, known)?;
            let start = match first {
                Some(first) => self.end_at(partition, first, known)?.min(end),
                None => Offset(0),
            };
            partitions.push(PartitionView {
                partition: Arc::clone(partition),
                start,
                end: Some(end),
            });
        }
        let ask = match first {
            Some(first) => MomentSelector::Window(first, last),
            None => MomentSelector::At(last),
        };
        let view = TopicView { topic, selector: ask, partitions };
        view.check_retained()?;
        Ok(view)
    }

    /// Waits until a moment is closed. Returns the moment as an absolute one, and the cut of system
    /// time that bounds it.
    pub(crate) async fn resolve_moment(
        &self,
        moment: Moment,
        when: WaitPolicy,
    ) -> Result<(Moment, Cut), SeekError> {
        match moment {
            Moment::Sys(cut) => {
                let (cut, _) = self.wait_until_closed(cut, when).await?;
                Ok((Moment::Sys(cut), cut))
            }
            Moment::User { before, known } => {
                let cut = self.known_or_now(known).await;
                let (cut, _) = self.wait_until_closed(cut, when).await?;
                Ok((Moment::User { before, known: Some(cut) }, cut))
            }
        }
    }

    /// The system time as of which records are known: the requested one, or now.
    pub(crate) async fn known_or_now(&self, known: Option<Cut>) -> Cut {
        match known {
            Some(known) => known,
            None => Cut::through(self.present_frontier().await),
        }
    }

    /// The first offset of a partition that is not in the moment, among the records known in
    /// `known`.
    pub(crate) fn end_at(
        &self,
        partition: &Partition,
        moment: Moment,
        known: Cut,
    ) -> Result<Offset, SeekError> {
        match moment {
            Moment::Sys(cut) => Ok(tip_at(&partition.log, cut)?.end),
            Moment::User { before, .. } => {
                let end = tip_at(&partition.log, known)?.end;
                let found = self.first_in_log(partition, before, Offset(0))?;
                Ok(found.map_or(end, |found| found.offset.min(end)))
            }
        }
    }

    /// The first record of a view whose user time is `time` or later. Exact, even if times are out
    /// of order.
    ///
    /// # Errors
    /// A stored batch cannot be read.
    pub fn first_at_or_after(
        &self,
        view: &PartitionView,
        time: UserTime,
    ) -> Result<Option<OffsetAndTimestamp>, EngineError> {
        let found = self.first_in_log(&view.partition, time, view.start())?;
        Ok(found.filter(|found| found.offset < view.end()))
    }

    fn first_in_log(
        &self,
        partition: &Partition,
        time: UserTime,
        from: Offset,
    ) -> Result<Option<OffsetAndTimestamp>, EngineError> {
        let mut from = from;
        let log = &partition.log;
        // A shortcut that reads no history: no record has such a time.
        if log.tip().user_time_max < time {
            return Ok(None);
        }
        while let Some(piece) = read_log_from(log, from, || log.first_reaching(time, from))? {
            let times = self.user_times(partition, &piece)?;
            let record = times.into_iter().find_map(|(offset, found)| {
                let found = found.filter(|found| offset >= from && *found >= time)?;
                Some((offset, found))
            });
            if let Some((offset, time)) = record {
                return Ok(Some(OffsetAndTimestamp { offset, time, epoch: piece.entry.epoch }));
            }
            // The batch reaches the time only before `from`, or its header claims a later time than
            // its records have.
            from = piece.entry.end();
        }
        Ok(None)
    }

    /// The record of a view with the largest user time; the first one of equals (KIP-734).
    ///
    /// # Errors
    /// A stored batch cannot be read.
    pub fn latest_by_user_time(
        &self,
        view: &PartitionView,
    ) -> Result<Option<OffsetAndTimestamp>, EngineError> {
        let (start, end) = (view.start(), view.end());
        let log = &view.partition.log;
        if start >= end {
            return Ok(None);
        }
        // A view may begin and end inside a batch: there the records have to be read.
        let pieces = read_log_from(log, start, || -> Result<_, StorageError> {
            let edges = [log.payload_at(start)?, log.payload_at(Offset(end.0 - 1))?];
            Ok(edges.into_iter().chain([log.latest_by_user_time(start, end)?]))
        });
        let mut best: Option<OffsetAndTimestamp> = None;
        for piece in pieces?.flatten() {
            for (offset, time) in self.user_times(&view.partition, &piece)? {
                let Some(time) = time else { continue };
                let better = best.is_none_or(|best| {
                    time > best.time || (time == best.time && offset < best.offset)
                });
                if offset >= start && offset < end && better {
                    best = Some(OffsetAndTimestamp { offset, time, epoch: piece.entry.epoch });
                }
            }
        }
        // In a compacted batch, the record with the largest time may be gone. Then another batch
        // may hold a later record than the one found.
        let mut later =
            best.map_or(Some(USER_TIME_MIN), |best| best.time.0.checked_add(1).map(UserTime));
        while let Some(time) = later
            && let Some(found) = self.first_at_or_after(view, time)?
        {
            best = Some(found);
            later = found.time.0.checked_add(1).map(UserTime);
        }
        Ok(best)
    }

    /// The reading of the wall clock.
    pub fn wall_now(&self) -> SysTime {
        self.store.timekeeper().wall_now()
    }
}

/// The bound of the earliest cut to which a log's history reaches back.
pub(crate) fn earliest_bound(horizon: &LogHorizon) -> Hlc {
    let given_up = match horizon.start {
        Offset(0) => Hlc::ZERO,
        _ => horizon.lost_to.next(),
    };
    given_up.max(horizon.compacted_to)
}
