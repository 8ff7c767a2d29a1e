//! A log: the index over its entries, and the newest payloads in memory.
//!
//! What holds true of it, asserted on publishing: stamps rise strictly, and offsets are dense. So a
//! cut by system time is a prefix, found by binary search; and the running maximum of user time
//! rises, so the first entry that reaches a user time is found the same way.
//!
//! What is visible here is final: an entry is published after its group was written (and synced, if
//! that was asked for), and never changes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use hlc::{Cut, Hlc, UserTime};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::journal::{Segment, Segments};
use crate::tail::Payload;

/// Names a log within its store.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct LogId(pub u64);

/// A record's place in its log.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct Offset(pub u64);

/// One entry of a log, as its index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was accepted.
    pub stamp: Hlc,
    /// The first offset that it takes.
    pub base: Offset,
    /// How many offsets it takes.
    pub count: u32,
    /// Length of its payload in bytes.
    pub length: u32,
    /// Where its payload lies in the journal.
    pub position: u64,
    /// The smallest user time in it.
    pub user_min: UserTime,
    /// The largest user time in it.
    pub user_max: UserTime,
    /// The largest user time in the log up to and with it.
    pub user_peak: UserTime,
    /// CRC-32C of its payload.
    pub payload_crc: u32,
    /// A leader epoch.
    pub epoch: u32,
    /// What its user says it is.
    pub kind: u8,
    /// Identifies the log's whole content up to and with this entry.
    pub chain: u128,
}

impl Entry {
    /// The offset behind its last.
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.count))
    }

    /// The chain value that follows `previous`.
    pub(crate) fn link(previous: u128, entry: &Entry) -> u128 {
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&previous.to_le_bytes());
        bytes[16..24].copy_from_slice(&entry.stamp.bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&entry.base.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&entry.count.to_le_bytes());
        bytes[36..40].copy_from_slice(&entry.length.to_le_bytes());
        bytes[40..44].copy_from_slice(&entry.payload_crc.to_le_bytes());
        xxhash_rust::xxh3::xxh3_128(&bytes)
    }
}

/// The bytes of an entry, wherever they are.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The entry.
    pub entry: Entry,
    /// Its payload.
    pub data: PieceData,
}

/// Where a payload is.
#[derive(Clone, Debug)]
pub enum PieceData {
    /// In memory.
    Memory(Payload),
    /// In a file of the journal, at the entry's position.
    File(Arc<Segment>),
}

impl Piece {
    /// The whole payload in one piece, read from the file if need be.
    ///
    /// # Errors
    /// The disk fails, or gives other bytes than were written.
    pub fn read(&self) -> io::Result<Bytes> {
        match &self.data {
            PieceData::Memory(payload) => Ok(payload.to_bytes()),
            PieceData::File(segment) => read_checked(segment, &self.entry),
        }
    }
}

/// The payload of `entry`, from its file.
pub(crate) fn read_checked(segment: &Segment, entry: &Entry) -> io::Result<Bytes> {
    let mut bytes = vec![0; entry.length as usize];
    segment.read_exact(&mut bytes, entry.position)?;
    if crc32c::crc32c(&bytes) != entry.payload_crc {
        let (file, position) = (&segment.name, entry.position);
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the journal is damaged: a payload's checksum does not match. file={file}, position={position}; `freezeframe check` says more"
            ),
        ));
    }
    Ok(bytes.into())
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// The payloads of the last entries.
    recent: VecDeque<Payload>,
}

impl State {
    fn end(&self) -> Offset {
        self.entries.last().map_or(Offset(0), Entry::end)
    }

    /// The index of the entry that holds `offset`, or of the first after it.
    fn holding(&self, offset: Offset) -> usize {
        self.entries.partition_point(|entry| entry.end() <= offset)
    }

    fn data(&self, index: usize, segments: &Segments) -> PieceData {
        let in_files = self.entries.len() - self.recent.len();
        match index.checked_sub(in_files).and_then(|recent| self.recent.get(recent)) {
            Some(payload) => PieceData::Memory(payload.clone()),
            None => PieceData::File(segments.holding(self.entries[index].position)),
        }
    }
}

/// Told once when a log that it watches grows.
pub trait Watcher: Send + Sync {
    /// The log has grown.
    fn grew(&self);
}

/// A log.
pub struct Log {
    /// Its name in the store.
    pub id: LogId,
    segments: Arc<Segments>,
    state: RwLock<State>,
    watchers: Mutex<Vec<std::sync::Weak<dyn Watcher>>>,
}

impl Log {
    pub(crate) fn new(id: LogId, segments: Arc<Segments>) -> Log {
        Log { id, segments, state: RwLock::default(), watchers: Mutex::default() }
    }

    /// Makes an entry visible.
    pub(crate) fn publish(&self, mut entry: Entry, payload: Option<Payload>) {
        let mut state = self.state.write();
        assert!(entry.base == state.end(), "offsets are dense: {entry:?} after {:?}", state.end());
        let (mut peak, mut chain) = (entry.user_max, 0);
        if let Some(last) = state.entries.last() {
            assert!(entry.stamp > last.stamp, "stamps rise: {entry:?} after {last:?}");
            (peak, chain) = (peak.max(last.user_peak), last.chain);
        }
        entry.user_peak = peak;
        entry.chain = Entry::link(chain, &entry);
        state.entries.push(entry);
        if let Some(payload) = payload {
            state.recent.push_back(payload);
        }
    }

    pub(crate) fn evict_oldest(&self) {
        self.state.write().recent.pop_front();
    }

    pub(crate) fn wake(&self) {
        let watchers = std::mem::take(&mut *self.watchers.lock());
        for watcher in watchers {
            if let Some(watcher) = watcher.upgrade() {
                watcher.grew();
            }
        }
    }

    /// Has `watcher` told once, when the log next grows. Look at the log after this, not before.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        let mut watchers = self.watchers.lock();
        // Those who left without being told are swept out before the list doubles.
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| watcher.strong_count() > 0);
        }
        watchers.push(Arc::downgrade(watcher));
    }

    /// The offset behind the last visible record.
    pub fn end(&self) -> Offset {
        self.state.read().end()
    }

    /// How many entries it has.
    pub fn entry_count(&self) -> usize {
        self.state.read().entries.len()
    }

    /// Bytes of payload in it.
    pub fn bytes(&self) -> u64 {
        self.state.read().entries.iter().map(|entry| u64::from(entry.length)).sum()
    }

    /// The newest entry.
    pub fn last_entry(&self) -> Option<Entry> {
        self.state.read().entries.last().copied()
    }

    /// The first offset that is not in `cut`.
    pub fn offset_at(&self, cut: Cut) -> Offset {
        let state = self.state.read();
        let count = state.entries.partition_point(|entry| cut.admits(entry.stamp));
        count.checked_sub(1).map_or(Offset(0), |last| state.entries[last].end())
    }

    /// The last entry in `cut`.
    pub fn last_in(&self, cut: Cut) -> Option<Entry> {
        let state = self.state.read();
        let count = state.entries.partition_point(|entry| cut.admits(entry.stamp));
        count.checked_sub(1).map(|last| state.entries[last])
    }

    /// The entry that holds `offset`, or the first after it.
    pub fn entry_at(&self, offset: Offset) -> Option<Entry> {
        let state = self.state.read();
        state.entries.get(state.holding(offset)).copied()
    }

    /// The first entry, among those that end after `from`, in which some user time is `time` or
    /// later: by the running maximum where the log begins at `from`, and else by looking at each.
    pub fn first_reaching(&self, time: UserTime, from: Offset) -> Option<Piece> {
        let state = self.state.read();
        let first = state.holding(from);
        // Entries before the one where the running maximum reaches `time` have no such record.
        let by_peak = state.entries.partition_point(|entry| entry.user_peak < time);
        let index = (first.max(by_peak)..state.entries.len())
            .find(|index| state.entries[*index].user_max >= time)?;
        Some(Piece { entry: state.entries[index], data: state.data(index, &self.segments) })
    }

    /// The entry with the largest user time, among those that lie wholly in `[from, until)`; the first
    /// of equals.
    pub fn latest_by_user_time(&self, from: Offset, until: Offset) -> Option<Piece> {
        let state = self.state.read();
        let first = state.entries.partition_point(|entry| entry.base < from);
        let behind = state.entries.partition_point(|entry| entry.end() <= until);
        let mut best: Option<usize> = None;
        for index in first..behind {
            if best.is_none_or(|best| state.entries[index].user_max > state.entries[best].user_max)
            {
                best = Some(index);
            }
        }
        let index = best?;
        Some(Piece { entry: state.entries[index], data: state.data(index, &self.segments) })
    }

    /// The entry that holds `offset`, with its payload; `None` behind the end.
    pub fn piece_at(&self, offset: Offset) -> Option<Piece> {
        let state = self.state.read();
        let index = state.holding(offset);
        let entry = *state.entries.get(index)?;
        Some(Piece { entry, data: state.data(index, &self.segments) })
    }

    /// The entries from the one that holds `from`, up to those that begin at `until` or later, until
    /// `bytes_max` is reached; the first is given whatever its length.
    pub fn read(&self, from: Offset, until: Offset, bytes_max: usize) -> Vec<Piece> {
        let state = self.state.read();
        let mut pieces = Vec::new();
        let mut bytes = 0usize;
        for index in state.holding(from)..state.entries.len() {
            let entry = state.entries[index];
            let length = entry.length as usize;
            if entry.base >= until || (!pieces.is_empty() && bytes + length > bytes_max) {
                break;
            }
            bytes += length;
            pieces.push(Piece { entry, data: state.data(index, &self.segments) });
            if bytes >= bytes_max {
                break;
            }
        }
        pieces
    }

    /// Bytes of payload between two offsets, up to `enough`; without touching any of them.
    pub fn bytes_between(&self, from: Offset, until: Offset, enough: u64) -> u64 {
        let state = self.state.read();
        let mut bytes = 0;
        for entry in &state.entries[state.holding(from)..] {
            if entry.base >= until || bytes >= enough {
                break;
            }
            bytes += u64::from(entry.length);
        }
        bytes
    }

    /// The last offset of `epoch` or an earlier one, and that epoch (KIP-101's end offset for an
    /// epoch).
    pub fn epoch_end(&self, epoch: u32) -> Option<(u32, Offset)> {
        let state = self.state.read();
        let count = state.entries.partition_point(|entry| entry.epoch <= epoch);
        let last = state.entries[..count].last()?;
        Some((last.epoch, last.end()))
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("id", &self.id).field("end", &self.end()).finish()
    }
}
