//! Reading the past: from a requested moment to the offsets that a reader may see.
//!
//! Invariants of every answer here, for a cut by system time:
//! - It is given only once the frontier has closed the cut, so nothing can enter the cut any more:
//!   the same query always gets the same answer.
//! - It is never silently incomplete: where records that belong to it have been removed, the answer
//!   is an error that names each such partition.
//!
//! [`EngineCore::wait_until_closed`] implements the table of TIME.md 3.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use hlc::{Cut, Moment, MomentSelector, UserTime};
use storage::{EntryPayload, Offset, StorageError};

use crate::blocking::{read_log_from, tip_at};
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::frontier::WaitPolicy;
use crate::namespace::Partition;
use crate::seek_error::SeekError;
use crate::user_time::NO_TIMES;
use crate::view::{PartitionView, TopicView};

/// A record found by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAndTimestamp {
    pub offset: Offset,
    /// Its user time.
    pub time: UserTime,
    /// The epoch of its batch.
    pub epoch: u32,
}

/// The smallest user time of a record. The number below it is the largest user time of a batch
/// without any.
const USER_TIME_MIN: UserTime = UserTime(NO_TIMES.1.0 + 1);

/// Reads of topics as of a moment, and by user time.
#[derive(Clone, Copy, Debug)]
pub struct Seek<'a> {
    core: &'a EngineCore,
}

impl EngineCore {
    /// Reads of topics as of a moment, and by user time.
    pub fn seek(&self) -> Seek<'_> {
        Seek { core: self }
    }
}

impl Seek<'_> {
    /// The topic `name` as of `ask`.
    ///
    /// A moment of user time is served as a prefix of each partition, up to the first record at or
    /// after it, among the records known at a system time. If `ask` does not give that system time,
    /// it is the frontier of this call. The answer's `selector` contains it.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn view(
        self,
        name: &str,
        ask: MomentSelector,
        when: WaitPolicy,
    ) -> Result<TopicView, SeekError> {
        self.view_partitions(name, 0..u32::MAX, ask, when).await
    }

    /// [`Seek::view`] for these partitions alone, because a topic may have many.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn view_partitions(
        self,
        name: &str,
        partitions: Range<u32>,
        ask: MomentSelector,
        when: WaitPolicy,
    ) -> Result<TopicView, SeekError> {
        let indexes = partitions;
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
        let topic = self.core.shared.namespace.read().require_topic_at(name, known, ask)?;
        let mut partitions = Vec::new();
        for partition in
            topic.partitions.iter().filter(|partition| indexes.contains(&partition.index))
        {
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
        let selector = match first {
            Some(first) => MomentSelector::Window(first, last),
            None => MomentSelector::At(last),
        };
        let view = TopicView { topic, selector, partitions };
        view.check_retained()?;
        Ok(view)
    }

    /// Waits until a moment is closed. Returns the moment as an absolute one, and the cut of system
    /// time that bounds it.
    pub async fn resolve_moment(
        self,
        moment: Moment,
        when: WaitPolicy,
    ) -> Result<(Moment, Cut), SeekError> {
        match moment {
            Moment::Sys(cut) => {
                let (cut, _) = self.core.wait_until_closed(cut, when).await?;
                Ok((Moment::Sys(cut), cut))
            }
            Moment::User { before, known } => {
                let cut = self.known_or_now(known).await;
                let (cut, _) = self.core.wait_until_closed(cut, when).await?;
                Ok((Moment::User { before, known: Some(cut) }, cut))
            }
        }
    }

    /// The system time as of which records are known: the requested one, or now.
    pub(crate) async fn known_or_now(self, known: Option<Cut>) -> Cut {
        match known {
            Some(known) => known,
            None => Cut::through(self.core.present_frontier().await),
        }
    }

    /// The first offset of a partition that is not in the moment, among the records known in
    /// `known`.
    pub fn end_at(
        self,
        partition: &Partition,
        moment: Moment,
        known: Cut,
    ) -> Result<Offset, SeekError> {
        match moment {
            Moment::Sys(cut) => Ok(tip_at(&partition.log, cut)?.end),
            Moment::User { before, .. } => {
                let end = tip_at(&partition.log, known)?.end;
                let record = self.first_in_log(partition, before, Offset(0))?;
                Ok(record.map_or(end, |record| record.offset.min(end)))
            }
        }
    }

    /// The first record of a view whose user time is `time` or later. Exact, even if times are out
    /// of order.
    ///
    /// # Errors
    /// A stored batch cannot be read.
    pub fn first_at_or_after(
        self,
        view: &PartitionView,
        time: UserTime,
    ) -> Result<Option<OffsetAndTimestamp>, EngineError> {
        let record = self.first_in_log(&view.partition, time, view.start())?;
        Ok(record.filter(|record| record.offset < view.end()))
    }

    fn first_in_log(
        self,
        partition: &Partition,
        time: UserTime,
        from: Offset,
    ) -> Result<Option<OffsetAndTimestamp>, EngineError> {
        Ok(self.first_reaching(partition, time, from)?.map(|(_, record)| record))
    }

    /// The same, with its batch.
    fn first_reaching(
        self,
        partition: &Partition,
        time: UserTime,
        from: Offset,
    ) -> Result<Option<(EntryPayload, OffsetAndTimestamp)>, EngineError> {
        let mut from = from;
        let log = &partition.log;
        // A shortcut that reads no history: no record has such a time.
        if log.tip().user_time_max < time {
            return Ok(None);
        }
        while let Some(piece) = read_log_from(log, from, || log.first_reaching(time, from))? {
            let times = self.core.user_times().of_batch(partition, &piece)?;
            let record = times.into_iter().find_map(|(offset, user_time)| {
                let user_time =
                    user_time.filter(|user_time| offset >= from && *user_time >= time)?;
                Some((offset, user_time))
            });
            if let Some((offset, time)) = record {
                let record = OffsetAndTimestamp { offset, time, epoch: piece.entry.epoch };
                return Ok(Some((piece, record)));
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
        self,
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
            for (offset, time) in self.core.user_times().of_batch(&view.partition, &piece)? {
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
        let mut from = start;
        while let Some(time) = later
            && let Some((piece, first)) = self.first_reaching(&view.partition, time, from)?
            && first.offset < end
        {
            // Nothing in front of it is that late, so each batch is read once.
            from = piece.entry.end();
            let times = self.core.user_times().of_batch(&view.partition, &piece)?;
            let in_batch =
                times.into_iter().filter(|(offset, _)| *offset >= first.offset && *offset < end);
            let in_batch = in_batch.filter_map(|(offset, time)| Some((time?, Reverse(offset))));
            let (time, Reverse(offset)) =
                in_batch.max().unwrap_or((first.time, Reverse(first.offset)));
            best = Some(OffsetAndTimestamp { offset, time, epoch: piece.entry.epoch });
            later = time.0.checked_add(1).map(UserTime);
        }
        Ok(best)
    }
}
