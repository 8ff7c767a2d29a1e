//! Replay at open: rebuilds producer states from the journal, and topics from their log.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hlc::Hlc;
use storage::journal::RecoverError;
use storage::{Entry, LogId, Offset, ReplayHandler, ReplayedEntry, StorageError};

use crate::append::BatchFormat;
use crate::engine_core::{EngineState, EngineStore};
use crate::log_transactions::{EndedTransaction, partition_log_of};
use crate::namespace::event::namespace_events;
use crate::namespace::load_restatement;
use crate::numbering::{
    KIND_ENDED_TRANSACTION, KIND_MARKER, KIND_RECORDS, NAMESPACE_LOG, is_known_kind,
};
use crate::producers::ProducerStates;

/// Rebuilds the state of producers from the journal.
pub(crate) struct ProducerReplay {
    pub(crate) format: Arc<dyn BatchFormat>,
    pub(crate) producers: ProducerStates,
    /// The last markers of each log, as far as no entry in its transaction log was seen. A crash
    /// may leave one without.
    pub(crate) unfinished: HashMap<LogId, VecDeque<UnfinishedMarker>>,
    /// The markers of each log whose payload is corrupt, each with its stamp. The entry in the
    /// transaction log says whose it is.
    pub(crate) corrupt_markers: HashMap<LogId, VecDeque<(Offset, Hlc)>>,
}

/// The error of an entry of a later version.
pub(crate) fn unknown_kind(entry: &Entry) -> RecoverError {
    RecoverError::Unusable(format!(
        "the entry at position {} is of kind {}, which this version does not know",
        entry.position, entry.kind
    ))
}

/// A marker without an entry in its transaction log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnfinishedMarker {
    pub(crate) producer: i64,
    pub(crate) first: Offset,
    pub(crate) marker: Offset,
    pub(crate) stamp: Hlc,
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
                let Some(mut note) = self.format.producer(replayed.start) else { return Ok(()) };
                if note.is_transactional && whole_payload(replayed)?.is_none() {
                    // A flipped bit would open a transaction that nobody ends. But the producer
                    // goes on behind the batch, if the header is what it wrote.
                    note.is_transactional = false;
                    if !self.producers.is_next(replayed.log, &note) {
                        return Ok(());
                    }
                }
                // Compacted transactions are decided, and their markers may be gone.
                note.is_transactional &= entry.base >= replayed.clean_to;
                self.producers.record(replayed.log, &note, entry.base, entry.stamp);
                Ok(())
            }
            KIND_MARKER => {
                match whole_payload(replayed)? {
                    Some(_) => self.marker(replayed),
                    None => {
                        let markers = self.corrupt_markers.entry(replayed.log).or_default();
                        markers.push_back((entry.base, entry.stamp));
                    }
                }
                Ok(())
            }
            KIND_ENDED_TRANSACTION => {
                let Some(log) = partition_log_of(replayed.log) else { return Ok(()) };
                // Of a compacted transaction, nothing else may tell.
                self.producers.note_transactional(log);
                if let Some(payload) = whole_payload(replayed)?
                    && let Some(ended) = EndedTransaction::decode(&payload)
                {
                    self.end(log, ended);
                }
                Ok(())
            }
            // The logs of events are replayed once the store is open.
            kind if is_known_kind(kind) => Ok(()),
            _ => Err(unknown_kind(entry)),
        }
    }

    fn state(&self) -> Vec<u8> {
        self.producers.encode()
    }
}

impl ProducerReplay {
    fn marker(&mut self, replayed: &ReplayedEntry<'_>) {
        let entry = replayed.entry;
        let found = self.format.marker_producer(replayed.start);
        let ended = found.and_then(|(producer, epoch)| {
            self.producers.record_marker(replayed.log, producer, epoch, entry.stamp)
        });
        let ended = ended.filter(|open| open.first >= replayed.clean_to);
        if let (Some((producer, _)), Some(open)) = (found, ended) {
            let (first, marker) = (open.first, entry.base);
            let unfinished = UnfinishedMarker { producer, first, marker, stamp: entry.stamp };
            self.unfinished.entry(replayed.log).or_default().push_back(unfinished);
        }
    }

    /// The transaction log of `log` has an entry. Its marker may be corrupt.
    fn end(&mut self, log: LogId, ended: EndedTransaction) {
        let EndedTransaction { producer, marker, .. } = ended;
        if let Some(waiting) = self.unfinished.get_mut(&log) {
            while waiting.pop_front_if(|waiting| waiting.marker <= marker).is_some() {}
        }
        let Some(markers) = self.corrupt_markers.get_mut(&log) else { return };
        while let Some((base, stamp)) = markers.pop_front_if(|(base, _)| *base <= marker) {
            if base == marker
                && let Some(open) = self.producers.open_transaction(log, producer).copied()
                && open.first < marker
            {
                self.producers.record_marker(log, producer, open.epoch, stamp);
            }
        }
    }
}

/// The payload; `None` if it is not what was written.
fn whole_payload(replayed: &ReplayedEntry<'_>) -> Result<Option<Bytes>, StorageError> {
    match replayed.payload() {
        Err(error) if error.is_data_loss() => {
            tracing::warn!(%error, "the state of producers is read back without a corrupt entry");
            Ok(None)
        }
        payload => payload.map(Some),
    }
}

/// Rebuilds the namespace from its log.
pub(crate) fn replay_namespace(store: &EngineStore, shared: &EngineState) -> Result<(), String> {
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
