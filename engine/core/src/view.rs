//! Views: the part of a topic that a reader may see as of a moment.

use std::sync::Arc;

use hlc::{Cut, Moment, MomentSelector};
use storage::{EntryPayload, Offset};

use crate::blocking::read_log_from;
use crate::error::EngineError;
use crate::log_history::{
    earliest_bound, is_retained, is_retained_by_user_time, is_uncompacted, is_user_time_retained,
};
use crate::namespace::{Partition, Topic};
use crate::seek_error::{SeekError, TruncatedPartition};

/// The range of one partition that a reader may see: `[start, end)`.
#[derive(Clone, Debug)]
pub struct PartitionView {
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

/// The part of a topic that a reader may see.
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
    /// The cut that bounds what the view shows, and that says which transactions are decided.
    pub fn cut(&self) -> Cut {
        let (MomentSelector::At(last) | MomentSelector::Window(_, last)) = self.selector;
        match last {
            Moment::Sys(cut) => cut,
            Moment::User { known, .. } => known.unwrap_or(Cut::ALL),
        }
    }

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
