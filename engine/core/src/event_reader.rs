//! The events of a log, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hlc::Hlc;
use storage::{EntryPayload, Log, Offset};

/// The payload of an entry, its stamp, and its position in the journal.
pub type LogEvent<E> = (E, Hlc, u64);

/// The payloads of a log, in order.
#[derive(Debug)]
pub struct EventReader {
    log: Arc<Log>,
    next: Offset,
    read: VecDeque<EntryPayload>,
}

impl EventReader {
    /// Reads from `from` on, or from the log start if that is later.
    pub fn new(log: Arc<Log>, from: Offset) -> EventReader {
        EventReader { next: from.max(log.start()), log, read: VecDeque::new() }
    }

    fn try_next(&mut self) -> Result<Option<LogEvent<Bytes>>, String> {
        const AT_ONCE: usize = 1 << 20;
        if self.read.is_empty() {
            let pieces = self.log.read(self.next, self.log.end(), AT_ONCE);
            self.read = pieces.map_err(|error| error.to_string())?.into();
        }
        let Some(piece) = self.read.pop_front() else { return Ok(None) };
        self.next = piece.entry.end();
        let payload = piece.read().map_err(|error| error.to_string())?;
        Ok(Some((payload, piece.entry.stamp, piece.entry.position)))
    }
}

impl Iterator for EventReader {
    type Item = Result<LogEvent<Bytes>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
