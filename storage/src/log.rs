//! A log: its entries, and the newest payloads in memory.
//!
//! Two invariants hold, and publishing asserts them: stamps rise strictly, and offsets are dense.
//! So a cut by system time is a prefix, found by binary search. The running maximum of user time
//! rises too, so the first entry that reaches a user time is found the same way.
//!
//! Entries that are not sealed and indexed yet, and those whose payload is in memory, are held in
//! memory. All others are found in index files (`log/sealed_log.rs`).
//!
//! A visible entry is final: it is published after its group was written (and synced, if that was
//! asked for), and never changes.

mod sealed_log;

use std::collections::VecDeque;
use std::sync::Arc;

use hlc::{Cut, UserTime};
use parking_lot::{Mutex, RwLock};

use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::index::{IndexEntry, LogTip, RunLocation};
use crate::journal::JournalSegments;
use crate::manifest::LogHorizon;
use crate::payload::{EntryPayload, Payload, PayloadLocation};
use crate::sealed_segment::SealedSegments;
use sealed_log::EntryLocation;
pub(crate) use sealed_log::{CompactedPrefix, SealedLog, SegmentRun};

/// The number of entries that a long search examines under one lock.
const ENTRIES_PER_LOCK: usize = 256;

/// An entry is no longer in memory.
struct MemoryMiss;

fn reserve_one<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() == 0 {
        queue.reserve_exact(1);
    }
}

/// The part of a log that is in memory.
struct LogState {
    /// The last entries.
    entries: VecDeque<Entry>,
    /// The payloads of the last of these.
    recent: VecDeque<Payload>,
    /// The number of payloads that were dropped here and that the tail still counts as this log's
    /// oldest.
    evicted_early: usize,
    /// The end of the log.
    tip: LogTip,
    /// The end of the log at `indexed_to`.
    indexed_tip: LogTip,
    /// Its newest run at `indexed_to`.
    latest_run: Option<RunLocation>,
    /// Everything below this position of the journal is indexed in files.
    indexed_to: u64,
    compacted_prefix: Option<Arc<CompactedPrefix>>,
    horizon: LogHorizon,
}

impl LogState {
    /// The first offset whose entry is in memory.
    fn memory_base(&self) -> Offset {
        self.entries.front().map_or(self.tip.end, |entry| entry.base)
    }

    /// The index of the entry in memory that holds `offset`, or of the first after it.
    fn position_of(&self, offset: Offset) -> usize {
        self.entries.partition_point(|entry| entry.end() <= offset)
    }

    fn payload_location(&self, index: usize, segments: &JournalSegments) -> PayloadLocation {
        let in_files = self.entries.len() - self.recent.len();
        match index.checked_sub(in_files).and_then(|recent| self.recent.get(recent)) {
            Some(payload) => PayloadLocation::Memory(payload.clone()),
            None => {
                let position = self.entries[index].position;
                let segment = segments.segment_at(self.entries[index].frame());
                PayloadLocation::File { at: segment.at(position), file: Arc::clone(&segment.data) }
            }
        }
    }

    fn entry_payload(&self, index: usize, segments: &JournalSegments) -> EntryPayload {
        EntryPayload {
            entry: self.entries[index],
            location: self.payload_location(index, segments),
        }
    }

    /// Drops entries that are removed, or that the compacted prefix replaces. They are not visible
    /// any more, just as after a restart.
    fn drop_released(&mut self) {
        let (freed, indexed_to) = (self.horizon.released_tip.end, self.indexed_to);
        let is_freed = |entry: &Entry| entry.end() <= freed && entry.frame() < indexed_to;
        while self.entries.front().is_some_and(is_freed) {
            self.entries.pop_front();
            if self.recent.len() > self.entries.len() {
                self.recent.pop_front();
                self.evicted_early += 1;
            }
        }
    }

    /// Drops entries that can be found in files and have no payload in memory.
    fn drop_indexed(&mut self) {
        while self.entries.len() > self.recent.len()
            && self.entries.front().is_some_and(|entry| entry.frame() < self.indexed_to)
        {
            self.entries.pop_front();
        }
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}

/// Called once when a log that it watches grows.
pub trait LogWatcher: Send + Sync {
    /// The log has grown.
    fn on_append(&self);
}

pub struct Log {
    /// Its name in the store.
    pub id: LogId,
    segments: Arc<JournalSegments>,
    sealed_segments: Arc<SealedSegments>,
    state: RwLock<LogState>,
    watchers: Mutex<Vec<std::sync::Weak<dyn LogWatcher>>>,
}

/// The end of a log in what is indexed in files, and its newest run there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedTip {
    pub(crate) tip: LogTip,
    pub(crate) latest_run: Option<RunLocation>,
}

/// The removed beginning of a log, and what replaces it, as the manifest has it.
#[derive(Debug)]
pub(crate) struct LogPrefix {
    pub(crate) horizon: LogHorizon,
    pub(crate) compacted_prefix: Option<Arc<CompactedPrefix>>,
}

impl Log {
    /// A log whose indexed entries end at `reached`.
    pub(crate) fn new(
        id: LogId,
        segments: Arc<JournalSegments>,
        sealed_segments: Arc<SealedSegments>,
        reached: IndexedTip,
        beginning: LogPrefix,
    ) -> Log {
        let state = LogState {
            entries: VecDeque::new(),
            recent: VecDeque::new(),
            evicted_early: 0,
            tip: reached.tip,
            indexed_tip: reached.tip,
            latest_run: reached.latest_run,
            indexed_to: 0,
            compacted_prefix: beginning.compacted_prefix,
            horizon: beginning.horizon,
        };
        Log { id, segments, sealed_segments, state: RwLock::new(state), watchers: Mutex::default() }
    }

    /// Makes an entry visible.
    pub(crate) fn publish(&self, mut entry: Entry, payload: Option<Payload>) {
        let mut state = self.state.write();
        let tip = state.tip;
        assert!(entry.base == tip.end, "offsets are dense: {entry:?} after {:?}", tip.end);
        assert!(entry.stamp > tip.stamp, "stamps rise: {entry:?} after {:?}", tip.stamp);
        entry.user_time_max = entry.user_max.max(tip.user_time_max);
        entry.bytes = tip.bytes + u64::from(entry.length);
        entry.chain = Entry::link(tip.chain, &entry);
        state.tip = LogTip::of(&entry, entry.user_time_max);
        // Most logs of files have one entry, and there may be very many of them.
        reserve_one(&mut state.entries);
        state.entries.push_back(entry);
        if let Some(payload) = payload {
            reserve_one(&mut state.recent);
            state.recent.push_back(payload);
        }
    }

    pub(crate) fn evict_oldest(&self) {
        let mut state = self.state.write();
        if state.evicted_early > 0 {
            state.evicted_early -= 1;
            return;
        }
        state.recent.pop_front();
        state.drop_indexed();
    }

    /// The entries in memory that lie in the journal from `start` to `end`, and the tip of the log
    /// at `start`, where the indexed part ends.
    pub(crate) fn unindexed_entries(&self, start: u64, end: u64) -> (IndexedTip, Vec<Entry>) {
        let state = self.state.read();
        assert!(state.indexed_to <= start, "segments are indexed in order");
        let from = state.entries.partition_point(|entry| entry.frame() < start);
        let to = state.entries.partition_point(|entry| entry.frame() < end);
        let reached = IndexedTip { tip: state.indexed_tip, latest_run: state.latest_run };
        (reached, state.entries.range(from..to).copied().collect())
    }

    /// Sets the position below which everything is found in files, and the log's tip there.
    pub(crate) fn set_indexed(&self, position: u64, reached: IndexedTip) {
        let mut state = self.state.write();
        state.indexed_to = position;
        (state.indexed_tip, state.latest_run) = (reached.tip, reached.latest_run);
        state.drop_indexed();
    }

    /// Returns true if everything about it that is held in memory is also in files.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.read();
        state.entries.is_empty()
            && state.evicted_early == 0
            && state.compacted_prefix.is_none()
            && self.watchers.lock().iter().all(|watcher| watcher.strong_count() == 0)
    }

    /// Sets the removed beginning of the log, and what replaces it.
    pub(crate) fn set_prefix(&self, beginning: LogPrefix) {
        let mut state = self.state.write();
        state.horizon = beginning.horizon;
        state.compacted_prefix = beginning.compacted_prefix;
        state.drop_released();
    }

    /// The removed beginning of the log, and what replaces it.
    pub(crate) fn prefix(&self) -> LogPrefix {
        let state = self.state.read();
        LogPrefix { horizon: state.horizon, compacted_prefix: state.compacted_prefix.clone() }
    }

    pub(crate) fn compacted_prefix(&self) -> Option<Arc<CompactedPrefix>> {
        self.state.read().compacted_prefix.clone()
    }

    pub(crate) fn notify_watchers(&self) {
        let watchers = std::mem::take(&mut *self.watchers.lock());
        for watcher in watchers {
            if let Some(watcher) = watcher.upgrade() {
                watcher.on_append();
            }
        }
    }

    /// Calls `watcher` once, when the log next grows. Read the log after this call, not before.
    pub fn watch(&self, watcher: &Arc<dyn LogWatcher>) {
        let mut watchers = self.watchers.lock();
        // Watchers that were dropped before their call are removed before the list doubles.
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| watcher.strong_count() > 0);
        }
        watchers.push(Arc::downgrade(watcher));
    }

    /// The offset after the last visible record.
    pub fn end(&self) -> Offset {
        self.state.read().tip.end
    }

    /// The log start: the first offset that is not removed.
    pub fn start(&self) -> Offset {
        self.state.read().horizon.start
    }

    /// The horizon: what has been removed or compacted.
    pub fn horizon(&self) -> LogHorizon {
        self.state.read().horizon
    }

    /// The end of the log.
    pub fn tip(&self) -> LogTip {
        self.state.read().tip
    }

    /// The first offset that can be looked up without reading files.
    pub fn memory_start(&self) -> Offset {
        self.state.read().memory_base()
    }

    /// The sealed part of the log. It is made under the lock of the state, so that both are of one
    /// moment.
    fn sealed_log(&self, state: &LogState) -> SealedLog {
        SealedLog {
            log: self.id,
            compacted_prefix: state.compacted_prefix.clone(),
            segments: self.sealed_segments.all(),
            released_tip: state.horizon.released_tip,
            tip: state.indexed_tip,
            latest_run: state.latest_run,
        }
    }

    /// The sealed part of the log, as of now.
    pub(crate) fn current_sealed_log(&self) -> SealedLog {
        self.sealed_log(&self.state.read())
    }

    /// The end of the log in `cut`.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn tip_at(&self, cut: Cut) -> Result<LogTip, StorageError> {
        let state = self.state.read();
        if cut.admits(state.tip.stamp) {
            return Ok(state.tip);
        }
        let count = state.entries.partition_point(|entry| cut.admits(entry.stamp));
        if let Some(last) = count.checked_sub(1) {
            let entry = &state.entries[last];
            return Ok(LogTip::of(entry, entry.user_time_max));
        }
        let sealed = self.sealed_log(&state);
        drop(state);
        sealed.tip_at(cut)
    }

    /// The first offset that is not in `cut`.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn offset_at(&self, cut: Cut) -> Result<Offset, StorageError> {
        Ok(self.tip_at(cut)?.end)
    }

    /// The position up to which the journal has to be on stable storage so that all of the log in
    /// `cut` is. It is 0 if that is so already: what index files cover was synced before.
    pub fn journal_end_of(&self, cut: Cut) -> u64 {
        let state = self.state.read();
        let count = state.entries.partition_point(|entry| cut.admits(entry.stamp));
        let last = count.checked_sub(1).map(|last| &state.entries[last]);
        last.map_or(0, |last| last.position + u64::from(last.length))
    }

    /// The entry that holds `offset`, or the first after it.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn entry_at(&self, offset: Offset) -> Result<Option<Entry>, StorageError> {
        let state = self.state.read();
        if offset >= state.memory_base() {
            return Ok(state.entries.get(state.position_of(offset)).copied());
        }
        // Entries that are in memory now may have moved to files before the next lookup.
        let (sealed, memory_base) = (self.sealed_log(&state), state.memory_base());
        drop(state);
        match sealed.at_offset(offset)? {
            Some(spot) => Ok(Some(spot.index_entry()?.entry)),
            None => self.entry_at(memory_base),
        }
    }

    /// The first entry, among those that end after `from`, that holds a user time of `time` or
    /// later. The running maximum finds it if no earlier entry reaches `time`; otherwise each entry
    /// is examined.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn first_reaching(
        &self,
        time: UserTime,
        from: Offset,
    ) -> Result<Option<EntryPayload>, StorageError> {
        let state = self.state.read();
        if state.tip.user_time_max < time {
            return Ok(None);
        }
        let memory_base = state.memory_base();
        if from < memory_base {
            let sealed = self.sealed_log(&state);
            drop(state);
            let spot = sealed.first_reaching(time, from)?;
            if let Some(spot) = spot {
                let placed = spot.index_entry()?;
                // It may be both in memory and in files: memory is nearer.
                if placed.entry.base < memory_base {
                    return Ok(Some(located_payload(&spot, placed)));
                }
            }
            return self.first_reaching(time, memory_base);
        }
        let first = state.position_of(from);
        // Entries before the one where the running maximum reaches `time` hold no such record.
        let by_peak = state.entries.partition_point(|entry| entry.user_time_max < time);
        let index = (first.max(by_peak)..state.entries.len())
            .find(|index| state.entries[*index].user_max >= time);
        Ok(index.map(|index| state.entry_payload(index, &self.segments)))
    }

    /// The entry with the largest user time, among those that lie wholly in `[from, until)`; the
    /// first of equals.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn latest_by_user_time(
        &self,
        from: Offset,
        until: Offset,
    ) -> Result<Option<EntryPayload>, StorageError> {
        let (sealed, memory_base, newest) = loop {
            let state = self.state.read();
            let memory_base = state.memory_base();
            let sealed = (from < memory_base).then(|| self.sealed_log(&state));
            drop(state);
            if let Ok(newest) = self.latest_in_memory(from.max(memory_base), until) {
                break (sealed, memory_base, newest);
            }
        };
        let Some(sealed) = sealed else { return Ok(newest) };
        let oldest = sealed.latest_by_user_time(from, until.min(memory_base))?;
        let Some((spot, placed)) = oldest else { return Ok(newest) };
        Ok(match newest {
            Some(newest) if newest.entry.user_max > placed.entry.user_max => Some(newest),
            _ => Some(located_payload(&spot, placed)),
        })
    }

    /// The same among entries in memory. It examines a few entries under each lock, because
    /// publishing waits for the lock.
    ///
    /// # Errors
    /// Some of the entries were dropped before they were examined, and are found in files.
    fn latest_in_memory(
        &self,
        mut from: Offset,
        until: Offset,
    ) -> Result<Option<EntryPayload>, MemoryMiss> {
        let mut newest: Option<EntryPayload> = None;
        loop {
            let state = self.state.read();
            if from < state.memory_base() {
                return Err(MemoryMiss);
            }
            let first = state.entries.partition_point(|entry| entry.base < from);
            let behind = state.entries.partition_point(|entry| entry.end() <= until);
            let next = behind.min(first + ENTRIES_PER_LOCK);
            let user_max = |index: usize| state.entries[index].user_max;
            // `max_by_key` returns the last of equals: in reverse order, that is the first of them.
            let best = (first..next).rev().max_by_key(|index| user_max(*index));
            let larger = |index: &usize| {
                newest.as_ref().is_none_or(|newest| user_max(*index) > newest.entry.user_max)
            };
            if let Some(index) = best.filter(larger) {
                newest = Some(state.entry_payload(index, &self.segments));
            }
            if next >= behind {
                return Ok(newest);
            }
            from = state.entries[next].base;
        }
    }

    /// The entry that holds `offset`, with its payload; `None` at or behind the end.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn payload_at(&self, offset: Offset) -> Result<Option<EntryPayload>, StorageError> {
        Ok(self.read(offset, Offset(u64::MAX), 0)?.into_iter().next())
    }

    /// The entries from the one that holds `from`, up to those that begin at `until` or later,
    /// until `bytes_max` is reached. The first is returned whatever its length.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn read(
        &self,
        from: Offset,
        until: Offset,
        bytes_max: usize,
    ) -> Result<Vec<EntryPayload>, StorageError> {
        let mut take = PayloadBatch { payloads: Vec::new(), bytes: 0, bytes_max, until };
        let mut from = from;
        loop {
            let state = self.state.read();
            if from >= state.memory_base() {
                for index in state.position_of(from)..state.entries.len() {
                    if !take.wants(&state.entries[index]) {
                        break;
                    }
                    take.add(state.entry_payload(index, &self.segments));
                }
                return Ok(take.payloads);
            }
            let (sealed, memory_base) = (self.sealed_log(&state), state.memory_base());
            drop(state);
            let mut next = sealed.at_offset(from)?;
            'sealed: while let Some(spot) = next {
                for number in spot.number..spot.run.entries().end {
                    let placed = spot.entry(number)?;
                    if placed.entry.base >= memory_base {
                        break 'sealed;
                    }
                    if !take.wants(&placed.entry) {
                        return Ok(take.payloads);
                    }
                    take.add(located_payload(&spot, placed));
                }
                next = sealed.next_run(&spot)?;
            }
            from = memory_base;
        }
    }

    /// Bytes of payload that the log holds.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn bytes(&self) -> Result<u64, StorageError> {
        let (start, end) = {
            let state = self.state.read();
            (state.horizon.start, state.tip.end)
        };
        self.bytes_between(start, end)
    }

    /// The bytes of payload that the log stores, with those in front of its start that are not
    /// released yet. No index is read for it.
    pub fn stored_bytes(&self) -> u64 {
        let state = self.state.read();
        let prefix = state.compacted_prefix.as_ref().map_or(0, |prefix| prefix.run.tip.bytes);
        let released = state.horizon.released_tip.bytes;
        prefix.saturating_add(state.tip.bytes.saturating_sub(released))
    }

    /// The bytes of payload from the entry that holds `from` up to the first entry that begins at
    /// `until` or later. No payload is read.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn bytes_between(&self, from: Offset, until: Offset) -> Result<u64, StorageError> {
        if from >= until {
            return Ok(0);
        }
        // Up to the end of the entry that holds the offset before `until`.
        let last = self.entry_at(Offset(until.0 - 1))?;
        let behind = match last.filter(|last| last.base < until) {
            Some(last) => last.end(),
            None => until,
        };
        Ok(self.bytes_before(behind)?.saturating_sub(self.bytes_before(from)?))
    }

    /// Bytes of payload in front of the entry that holds `offset` or follows it. It includes what
    /// retention removed, but not what compaction removed.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn bytes_before(&self, offset: Offset) -> Result<u64, StorageError> {
        let state = self.state.read();
        let (base, freed) = (state.compacted_prefix.clone(), state.horizon.released_tip);
        let bytes_kept = |bytes: u64, begins: Offset| match &base {
            Some(base) if begins >= freed.end => {
                base.run.tip.bytes.saturating_add(bytes).saturating_sub(freed.bytes)
            }
            _ => bytes,
        };
        let before = |entry: &Entry| {
            bytes_kept(entry.bytes.saturating_sub(u64::from(entry.length)), entry.base)
        };
        if offset >= state.tip.end {
            return Ok(bytes_kept(state.tip.bytes, state.tip.end));
        }
        if offset >= state.memory_base() {
            return Ok(before(&state.entries[state.position_of(offset)]));
        }
        let (sealed, memory_base) = (self.sealed_log(&state), state.memory_base());
        drop(state);
        match sealed.at_offset(offset)? {
            Some(spot) => Ok(before(&spot.index_entry()?.entry)),
            None => self.bytes_before(memory_base),
        }
    }

    /// The last offset of `epoch` or an earlier one, and that epoch (KIP-101's end offset for an
    /// epoch).
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn epoch_end(&self, epoch: u32) -> Result<Option<(u32, Offset)>, StorageError> {
        let state = self.state.read();
        let count = state.entries.partition_point(|entry| entry.epoch <= epoch);
        let tip = match count.checked_sub(1) {
            _ if state.tip.epoch <= epoch => state.tip,
            Some(last) => LogTip::of(&state.entries[last], UserTime(0)),
            None => {
                let sealed = self.sealed_log(&state);
                drop(state);
                sealed.tip_of_epoch(epoch)?
            }
        };
        Ok((tip.end > Offset(0)).then_some((tip.epoch, tip.end)))
    }
}

/// Entries with their payloads, up to a number of bytes.
struct PayloadBatch {
    payloads: Vec<EntryPayload>,
    bytes: usize,
    bytes_max: usize,
    until: Offset,
}

impl PayloadBatch {
    fn wants(&self, entry: &Entry) -> bool {
        let first = self.payloads.is_empty();
        entry.base < self.until
            && (first
                || (self.bytes < self.bytes_max
                    && self.bytes + entry.length as usize <= self.bytes_max))
    }

    fn add(&mut self, piece: EntryPayload) {
        self.bytes += piece.entry.length as usize;
        self.payloads.push(piece);
    }
}

fn located_payload(spot: &EntryLocation, placed: IndexEntry) -> EntryPayload {
    let file = Arc::clone(&spot.files().data);
    EntryPayload { entry: placed.entry, location: PayloadLocation::File { file, at: placed.at } }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("id", &self.id).field("end", &self.end()).finish()
    }
}
