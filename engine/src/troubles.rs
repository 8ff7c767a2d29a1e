//! What went wrong with single partitions in rounds that go on all the same: each is named once.

use std::collections::HashMap;

use parking_lot::Mutex;
use storage::LogId;

use crate::error::EngineError;
use crate::namespace::Partition;

/// What was said of each log, by what was being done: not said again until it is another, or was well
/// in between.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    said: Mutex<HashMap<(LogId, &'static str), String>>,
}

impl Troubles {
    /// A round that does `doing` to one partition after the other.
    pub(crate) fn round(&self, doing: &'static str) -> Round<'_> {
        Round { troubles: self, doing, first: None }
    }

    /// Whether it is news.
    fn note(&self, log: LogId, doing: &'static str, error: &EngineError) -> bool {
        let error = error.to_string();
        let mut said = self.said.lock();
        let is_news = said.get(&(log, doing)) != Some(&error);
        said.insert((log, doing), error);
        is_news
    }
}

/// A round that no partition ends for the others.
pub(crate) struct Round<'a> {
    troubles: &'a Troubles,
    doing: &'static str,
    first: Option<EngineError>,
}

impl Round<'_> {
    /// What was done to a partition; `None` if it could not be.
    pub(crate) fn done<T>(
        &mut self,
        topic: &str,
        partition: &Partition,
        done: Result<T, EngineError>,
    ) -> Option<T> {
        let (log, doing) = (partition.log.id, self.doing);
        match done {
            Ok(done) => {
                self.troubles.said.lock().remove(&(log, doing));
                Some(done)
            }
            Err(error) => {
                if self.troubles.note(log, doing, &error) {
                    let partition = partition.index;
                    tracing::error!(%error, topic, partition, doing, "a partition is passed over");
                }
                self.first.get_or_insert(error);
                None
            }
        }
    }

    /// # Errors
    /// The first that there was.
    pub(crate) fn end(self) -> Result<(), EngineError> {
        self.first.map_or(Ok(()), Err)
    }
}
