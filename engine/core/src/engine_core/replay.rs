//! What the spine rebuilds when it opens: producer states from the journal, and topics from their
//! log.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use storage::journal::RecoverError;
use storage::{LogId, Offset, ReplayHandler, ReplayedEntry};

use super::{EngineState, EngineStore};
use crate::append::BatchFormat;
use crate::log_transactions::partition_log_of;
use crate::namespace::event::namespace_events;
use crate::namespace::load_restatement;
use crate::numbering::{
    KIND_ENDED_TRANSACTION, KIND_MARKER, KIND_RECORDS, NAMESPACE_LOG, is_known_kind,
};
use crate::producers::ProducerStates;

/// Rebuilds the state of producers from the journal.
pub(super) struct ProducerReplay {
    pub(super) format: Arc<dyn BatchFormat>,
    pub(super) producers: ProducerStates,
    /// The last markers of each log, as far as no entry in its transaction log was seen. A crash may leave
    /// one without.
    pub(super) unfinished: HashMap<LogId, VecDeque<UnfinishedMarker>>,
}

/// A marker without an entry in its transaction log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnfinishedMarker {
    pub(crate) producer: i64,
    pub(crate) first: Offset,
    pub(crate) marker: Offset,
}

impl ReplayHandler for ProducerReplay {
    fn restore(&mut self, state: &[u8]) -> Result<(), RecoverError> {
        self.producers =
            ProducerStates::decode(state).map_err(|why| RecoverError::Unusable(why.to_string()))?;
        Ok(())
    }

    fn skip_to(&mut self, log: LogId, below: Offset) {
        self.producers.forget_open_below(log, below);
    }

    fn entry(&mut self, replayed: &ReplayedEntry<'_>) -> Result<(), RecoverError> {
        let entry = replayed.entry;
        self.producers.advance_activity(entry.stamp);
        match entry.kind {
            KIND_RECORDS => {
                if let Some(mut note) = self.format.producer(replayed.start) {
                    // What was compacted is decided, and its marker may be gone.
                    note.is_transactional &= entry.base >= replayed.clean_to;
                    self.producers.record(replayed.log, &note, entry.base, entry.stamp);
                }
                Ok(())
            }
            KIND_MARKER => {
                let found = self.format.marker_producer(replayed.start);
                let ended = found.and_then(|(producer, epoch)| {
                    self.producers.record_marker(replayed.log, producer, epoch, entry.stamp)
                });
                let ended = ended.filter(|open| open.first >= replayed.clean_to);
                if let (Some((producer, _)), Some(open)) = (found, ended) {
                    let (first, marker) = (open.first, entry.base);
                    let unfinished = UnfinishedMarker { producer, first, marker };
                    self.unfinished.entry(replayed.log).or_default().push_back(unfinished);
                }
                Ok(())
            }
            KIND_ENDED_TRANSACTION => {
                let log = partition_log_of(replayed.log);
                if let Some(waiting) = log.and_then(|log| self.unfinished.get_mut(&log)) {
                    waiting.pop_front();
                }
                Ok(())
            }
            // The logs of events are replayed once the store is open.
            kind if is_known_kind(kind) => Ok(()),
            kind => Err(RecoverError::Unusable(format!(
                "entry of a kind that this version does not know. kind={kind}, position={}",
                entry.position
            ))),
        }
    }

    fn state(&self) -> Vec<u8> {
        self.producers.encode()
    }
}

/// Rebuilds the namespace from its log.
pub(super) fn replay_namespace(store: &EngineStore, shared: &EngineState) -> Result<(), String> {
    let logs = store.log_source();
    let log = store.log(NAMESPACE_LOG).map_err(|error| error.to_string())?;
    let mut namespace = shared.namespace.write();
    load_restatement(&mut namespace, &log, &logs)?;
    for event in namespace_events(Arc::clone(&log), Offset(0)) {
        let (event, stamp, _) = event?;
        namespace.apply(&event, stamp, &logs)?;
    }
    drop(namespace);
    shared.applied_stamp.fetch_max(log.tip().stamp.bits(), Ordering::AcqRel);
    Ok(())
}
