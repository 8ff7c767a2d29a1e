//! The topic that a reader named, or a moment of it.

use std::sync::Arc;

use engine::{Offset, PartitionView, SeekError, Topic, TopicView};
use hlc::Cut;
use kafka_errors::seek_error;
use kafka_protocol::ResponseError;

/// A topic that a reader named: the present one, or a moment of it.
#[derive(Clone, Debug)]
pub enum ReadableTopic {
    Present(Arc<Topic>),
    Past(Arc<TopicView>),
}

impl ReadableTopic {
    pub fn topic(&self) -> &Arc<Topic> {
        match self {
            ReadableTopic::Present(topic) => topic,
            ReadableTopic::Past(view) => &view.topic,
        }
    }

    /// Checks that all of the topic is still there. A reader calls this after its reads. Otherwise
    /// records that retention or compaction removed meanwhile would be missing from the response
    /// without an error.
    pub(crate) fn check_kept(&self) -> Result<(), SeekError> {
        match self {
            ReadableTopic::Present(_) => Ok(()),
            ReadableTopic::Past(view) => view.check_retained(),
        }
    }

    /// `check_kept` for one partition: a topic may have many.
    pub fn check_partition_kept(&self, index: i32) -> Result<(), ResponseError> {
        let ReadableTopic::Past(view) = self else { return Ok(()) };
        let Ok(index) = usize::try_from(index) else { return Ok(()) };
        view.check_partition_retained(index).map_err(|error| seek_error(&error))
    }

    /// The cut of a moment; `None` for the present.
    pub fn cut(&self) -> Option<Cut> {
        match self {
            ReadableTopic::Present(_) => None,
            ReadableTopic::Past(view) => Some(view.cut()),
        }
    }

    /// The readable part of partition `index`, and its last stable offset. A moment is stable to
    /// its end: a transaction that was not decided before it counts as aborted (TIME.md 7).
    pub fn view_and_stable_end(&self, index: i32) -> Option<(PartitionView, Offset)> {
        let view = self.view(index)?;
        let stable_end = match self {
            ReadableTopic::Present(_) => view.partition.stable_end(),
            ReadableTopic::Past(_) => view.end(),
        };
        Some((view, stable_end))
    }

    /// The readable part of partition `index`.
    pub fn view(&self, index: i32) -> Option<PartitionView> {
        let index = usize::try_from(index).ok()?;
        match self {
            ReadableTopic::Present(topic) => {
                topic.partitions.get(index).map(PartitionView::present)
            }
            ReadableTopic::Past(view) => view.partitions.get(index).cloned(),
        }
    }
}
