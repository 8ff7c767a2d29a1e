//! The newest record of each key of a topic, in bounded memory.
//!
//! Keys are ordered by a hash. A table holds all keys whose hashes lie in a range, and memory
//! limits that range. The range starts as everything up to the end. Whenever the table has too many
//! keys, it drops the upper half. So it takes as many passes over the topic as needed, whatever the
//! number of keys.
//!
//! Of two records with the same key, the one with the later stamp wins, in whatever partition.
//! Within one partition that is the one with the higher offset. A record without a key belongs to
//! no key's state. A record without a value (a tombstone) says that the key has no value.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::blocking::block_in_place;
use engine::{CacheWeight, Isolation, LruCache, Offset, TopicId};
use hlc::{Cut, Hlc, MomentSelector};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::names::encode;
use super::raw::raw_size;
use super::scan::{LogGeneration, ScanStep, VisibleRange, for_each_record, read_step};
use super::stat::ATTEMPTS_MAX;
use super::{TopicNode, TreeError, ViewTree};

/// The approximate memory of an entry, without its key.
const ENTRY_BYTES: usize = 128;
/// The number of bytes of batches that are scanned in one step.
const STEP_BYTES: usize = 1 << 20;
/// The most tables that are built at a time. Each one uses its memory before the cache counts
/// it.
const BUILDS_MAX: usize = 2;
/// The memory for the progress of searches for single keys, in bytes.
const SEARCHES_BYTES_MAX: usize = 4 << 20;
/// The lowest cookie. Callers use the values below it.
pub(crate) const COOKIE_MIN: u64 = 16;
/// One past the highest cookie.
pub(crate) const COOKIE_END: u64 = (1 << 62) + COOKIE_MIN;

/// The cookie of a name: its position in the order of all names.
pub(crate) fn cookie(bytes: &[u8], seed: u64) -> u64 {
    (xxh3_64_with_seed(bytes, seed) >> 2) + COOKIE_MIN
}

/// The position of the newest record of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewestRecord {
    pub(crate) stamp: Hlc,
    pub(crate) partition: u32,
    pub(crate) offset: Offset,
    /// The length of its value; `None` for a tombstone.
    pub(crate) length: Option<u64>,
}

impl NewestRecord {
    fn rank(&self) -> (Hlc, Offset) {
        (self.stamp, self.offset)
    }
}

/// The number of bytes of batches that a call may still scan.
struct ScanBudget {
    left: Option<u64>,
}

impl ScanBudget {
    fn unbounded() -> ScanBudget {
        ScanBudget { left: None }
    }

    fn of(bytes: u64) -> ScanBudget {
        ScanBudget { left: Some(bytes) }
    }

    /// The size of the next step; `None` when the budget is spent.
    fn step_bytes(&self) -> Option<usize> {
        match self.left {
            None => Some(STEP_BYTES),
            Some(0) => None,
            Some(bytes_left) => {
                Some(STEP_BYTES.min(usize::try_from(bytes_left).unwrap_or(STEP_BYTES)))
            }
        }
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.map(|bytes_left| bytes_left.saturating_sub(bytes as u64));
    }
}

/// The newest record of each key in a range of cookies.
#[derive(Clone, Debug)]
pub(crate) struct KeyTable {
    pub(crate) range: Range<u64>,
    /// If the table is for a single key: the name of that key.
    name: Option<Box<[u8]>>,
    pub(crate) entries: BTreeMap<(u64, Box<[u8]>), NewestRecord>,
    /// The cut up to which the table is complete.
    cut: Cut,
    /// The end of what has been read, for each partition.
    ends: Vec<Offset>,
    /// The log generation of each partition that has been read.
    generations: Vec<LogGeneration>,
    bytes: usize,
    /// The number of tombstones that were inserted since the last cleanup.
    tombstones: usize,
}

impl KeyTable {
    fn new(range: Range<u64>, cut: Cut) -> KeyTable {
        KeyTable {
            range,
            name: None,
            entries: BTreeMap::new(),
            cut,
            ends: Vec::new(),
            generations: Vec::new(),
            bytes: 0,
            tombstones: 0,
        }
    }

    /// A table for a single key. It has read nothing yet.
    fn for_key_name(range: Range<u64>, name: &[u8], generations: &[LogGeneration]) -> KeyTable {
        KeyTable {
            name: Some(name.into()),
            generations: generations.to_vec(),
            ..KeyTable::new(range, Cut::before(hlc::SysTime(0)))
        }
    }

    fn covers(&self, place: u64, key: &[u8]) -> bool {
        let is_wanted = || self.name.as_ref().is_none_or(|name| encode(key) == **name);
        self.range.contains(&place) && is_wanted()
    }

    fn insert(&mut self, place: u64, key: &[u8], newest: NewestRecord, bytes_max: usize) {
        self.tombstones += usize::from(newest.length.is_none());
        let entry = (place, Box::from(key));
        match self.entries.get_mut(&entry) {
            Some(present) if present.rank() >= newest.rank() => {}
            Some(present) => *present = newest,
            None => {
                self.bytes += ENTRY_BYTES + key.len();
                self.entries.insert(entry, newest);
                if self.bytes > bytes_max {
                    self.drop_upper_half();
                }
            }
        }
    }

    /// Drops the upper half of the entries, unless all have the same cookie.
    fn drop_upper_half(&mut self) {
        let middle = self.entries.keys().nth(self.entries.len() / 2).map(|(place, _)| *place);
        let first = self.entries.keys().next().map(|(place, _)| *place);
        let (Some(mut middle), Some(first)) = (middle, first) else { return };
        if middle == first {
            let next = self.entries.range((first + 1, Box::default())..).next();
            let Some(((place, _), _)) = next else { return };
            middle = *place;
        }
        let dropped = self.entries.split_off(&(middle, Box::default()));
        self.bytes -= dropped.keys().map(|(_, key)| ENTRY_BYTES + key.len()).sum::<usize>();
        self.range.end = middle;
    }

    /// Reads on in every partition. Records that were read stay read, even if it stops early.
    ///
    /// # Errors
    /// [`TreeError::Unfinished`] if the budget is spent before the end.
    async fn advance(
        &mut self,
        keyed: &KeySnapshot,
        seed: u64,
        bytes_max: usize,
        budget: &mut ScanBudget,
    ) -> Result<(), TreeError> {
        self.ends.resize(keyed.ranges.len().max(self.ends.len()), Offset(0));
        for (nth, visible) in keyed.ranges.iter().enumerate() {
            let mut next = self.ends[nth].max(visible.start);
            while next < visible.end {
                let step_bytes = budget.step_bytes().ok_or_else(|| unfinished(visible, next))?;
                let step = block_in_place(|| {
                    read_step(
                        &visible.partition,
                        &visible.transactions,
                        next,
                        visible.end,
                        step_bytes,
                    )
                })?;
                block_in_place(|| self.insert_step(visible, &step, next, seed, bytes_max))?;
                budget.spend(step.batches.iter().map(|batch| batch.bytes.len().max(1)).sum());
                next = step.next;
                self.ends[nth] = next;
                tokio::task::yield_now().await;
            }
            self.ends[nth] = next;
        }
        keyed.check_unchanged()?;
        self.cut = keyed.cut;
        self.generations.clone_from(&keyed.generations);
        if self.tombstones > 0 && keyed.is_decided {
            // Everything read later is newer than these records, so the tombstones are not needed
            // for comparison.
            self.entries.retain(|_, newest| newest.length.is_some());
            self.bytes = self.entries.keys().map(|(_, key)| ENTRY_BYTES + key.len()).sum();
            self.tombstones = 0;
        }
        Ok(())
    }

    fn insert_step(
        &mut self,
        visible: &VisibleRange,
        step: &ScanStep,
        from: Offset,
        seed: u64,
        bytes_max: usize,
    ) -> Result<(), TreeError> {
        for batch in &step.batches {
            for_each_record(batch, &(from..visible.end), visible.user.as_ref(), |record| {
                let Some(key) = &record.key else { return Ok(()) };
                let place = cookie(key, seed);
                if self.covers(place, key) {
                    let newest = NewestRecord {
                        stamp: batch.stamp(),
                        partition: visible.partition.index,
                        offset: Offset(record.offset as u64),
                        length: record.value.as_ref().map(|value| value.len() as u64),
                    };
                    self.insert(place, key, newest, bytes_max);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// True if the table was read in the current generations of the partitions. In another
    /// generation, compaction may have removed a tombstone of a record in the table, and the table
    /// would never see it.
    fn matches_generations(&self, keyed: &KeySnapshot) -> bool {
        self.generations.iter().zip(&keyed.generations).all(|(read, now)| read == now)
    }

    /// True if the visible ranges have records that the table has not read.
    fn is_behind(&self, ranges: &[VisibleRange]) -> bool {
        let read = self.ends.iter().copied().chain(std::iter::repeat(Offset(0)));
        ranges.iter().zip(read).any(|(range, read)| range.end > read.max(range.start))
    }

    /// The approximate memory of the table.
    fn weight(&self) -> usize {
        self.bytes + (self.ends.len() + self.generations.len()) * size_of::<u64>() + ENTRY_BYTES
    }

    pub(crate) fn get(&self, place: u64, key: &[u8]) -> Option<NewestRecord> {
        self.entries.get(&(place, Box::from(key))).copied()
    }
}

fn unfinished(range: &VisibleRange, next: Offset) -> TreeError {
    TreeError::Unfinished(format!(
        "at {}/{}, offset {} of {}",
        range.topic, range.partition.index, next.0, range.end.0
    ))
}

/// The cached table of a topic's keys, as of one moment or of now.
#[derive(Default)]
pub(crate) struct KeyTableSlot {
    table: tokio::sync::Mutex<Option<Arc<KeyTable>>>,
    weight: AtomicUsize,
}

impl CacheWeight for KeyTableSlot {
    fn bytes(&self) -> usize {
        size_of::<KeyTableSlot>() + self.weight.load(Ordering::Relaxed)
    }
}

type TableKey = (TopicId, Option<MomentSelector>, Isolation);
/// A topic, its moment, and the name of a key.
type SearchKey = (TableKey, Box<[u8]>);

pub(crate) struct KeyTableCache {
    by_topic: LruCache<TableKey, KeyTableSlot>,
    /// The tables of single keys.
    searches: LruCache<SearchKey, KeyTableSlot>,
    builds: Semaphore,
    bytes_max: usize,
}

impl KeyTableCache {
    pub(crate) fn new(bytes_max: usize) -> KeyTableCache {
        KeyTableCache {
            by_topic: LruCache::new(bytes_max),
            searches: LruCache::new(SEARCHES_BYTES_MAX),
            builds: Semaphore::new(BUILDS_MAX),
            bytes_max: bytes_max / 2,
        }
    }

    fn slot(&self, key: &TableKey) -> Arc<KeyTableSlot> {
        self.by_topic.get_or_insert_with(key, KeyTableSlot::default)
    }
}

/// A topic's visible ranges for its keys, and the cut that they show.
pub(crate) struct KeySnapshot {
    pub(crate) ranges: Vec<VisibleRange>,
    /// The log generation of each partition.
    generations: Vec<LogGeneration>,
    cut: Cut,
    /// True if all transactions in the cut were decided: then all that is read later is newer.
    is_decided: bool,
}

impl KeySnapshot {
    /// Checks that everything that belongs to it is still retained.
    ///
    /// # Errors
    /// [`TreeError::BeforeHistory`].
    pub(crate) fn check_kept(&self) -> Result<(), TreeError> {
        // Each range checks the whole topic view.
        self.ranges.first().map_or(Ok(()), VisibleRange::check_kept)
    }

    /// Checks that a pass over the snapshot, which ends now, has missed nothing. A record may have
    /// been removed before the pass reached it. So may a tombstone of a record that the pass has
    /// read.
    fn check_unchanged(&self) -> Result<(), TreeError> {
        self.check_kept()?;
        if self.generations != generations(&self.ranges) {
            return Err(TreeError::Gone("the topic was compacted meanwhile".to_owned()));
        }
        Ok(())
    }

    /// True if a record that was the newest is still there.
    pub(crate) fn still_holds(&self, newest: &NewestRecord) -> bool {
        let range = self.ranges.iter().find(|range| range.partition.index == newest.partition);
        range.is_some_and(|range| newest.offset >= range.partition.start())
    }
}

fn generations(ranges: &[VisibleRange]) -> Vec<LogGeneration> {
    ranges.iter().map(|range| LogGeneration::of(&range.partition)).collect()
}

/// True if a retry can succeed: the records were deleted during the read, but a later state of them
/// may be complete.
pub(crate) fn is_retriable(topic: &TopicNode, error: &TreeError) -> bool {
    match error {
        TreeError::Gone(_) => true,
        // The present always exists.
        TreeError::BeforeHistory(_) => topic.at.is_none(),
        _ => false,
    }
}

impl ViewTree {
    fn table_key(&self, topic: &TopicNode) -> TableKey {
        (topic.id, topic.at, self.isolation)
    }

    /// The visible ranges of a topic for its keys. For the present, only the final part: the
    /// records of an open transaction are read once it is decided, with all behind them.
    pub(crate) async fn key_snapshot(&self, topic: &TopicNode) -> Result<KeySnapshot, TreeError> {
        let is_present = topic.at.is_none();
        let (topic, cut) = match topic.at {
            Some(selector) => (topic.clone(), super::moments::system_cut(&selector)),
            None => {
                self.topic_at_moment(topic).await?;
                let cut = Cut::through(self.engine.frontier());
                let selector =
                    self.wait_until_closed(MomentSelector::At(hlc::Moment::Sys(cut))).await?;
                (TopicNode { at: Some(selector), ..topic.clone() }, cut)
            }
        };
        let mut ranges = self.visible_ranges(&topic, 0..u32::MAX).await?;
        let mut is_decided = true;
        if is_present {
            for range in &mut ranges {
                is_decided &= !block_in_place(|| range.end_before_undecided(cut))?;
            }
        }
        for range in ranges.iter().filter(|range| range.user.is_some()) {
            // The record that superseded another one may have a later user time than the requested
            // one.
            if range.partition.log.horizon().compacted_to != Hlc::ZERO {
                return Err(TreeError::BeforeHistory(
                    format!(
                        "{}/{} is compacted, so its keys are not known by user time: ask by system time",
                        topic.name, range.partition.index
                    )
                    .into(),
                ));
            }
        }
        Ok(KeySnapshot { generations: generations(&ranges), ranges, cut, is_decided })
    }

    /// The keys of a topic from a cookie on, as many as fit in memory.
    pub(crate) async fn key_table(
        &self,
        topic: &TopicNode,
        keyed: &KeySnapshot,
        from: u64,
    ) -> Result<Arc<KeyTable>, TreeError> {
        let key = self.table_key(topic);
        let slot = self.key_tables.slot(&key);
        let mut cached = slot.table.lock().await;
        let serves =
            |known: &Arc<KeyTable>| known.range.contains(&from) && known.matches_generations(keyed);
        let mut known = cached.take().filter(serves);
        let table = match &mut known {
            Some(table) if table.cut >= keyed.cut || !table.is_behind(&keyed.ranges) => {
                Arc::clone(table)
            }
            Some(stale) => {
                let table = Arc::make_mut(stale);
                let bytes_max = self.key_tables.bytes_max;
                table.advance(keyed, self.seed, bytes_max, &mut ScanBudget::unbounded()).await?;
                Arc::clone(stale)
            }
            None => {
                // A table that begins at the first key serves lookups too, if all keys fit.
                let first = self.build_key_table(keyed, COOKIE_MIN.max(from)..COOKIE_END).await?;
                Arc::new(first)
            }
        };
        // There were too many keys. The requested one may have been dropped.
        let table = if table.range.contains(&from) {
            table
        } else {
            Arc::new(self.build_key_table(keyed, from..COOKIE_END).await?)
        };
        slot.weight.store(table.bytes, Ordering::Relaxed);
        *cached = Some(Arc::clone(&table));
        drop(cached);
        self.key_tables.by_topic.update_weight(&key);
        Ok(table)
    }

    /// The keys in a range: as many as fit in memory, or those of a cached table.
    pub(crate) async fn key_table_from(
        &self,
        topic: &TopicNode,
        keyed: &KeySnapshot,
        range: Range<u64>,
        may_be_less: bool,
    ) -> Result<Arc<KeyTable>, TreeError> {
        let slot = self.key_tables.slot(&self.table_key(topic));
        let mut cached = slot.table.lock().await;
        let serves = |known: &Range<u64>| {
            if may_be_less {
                known.start == range.start && known.end <= range.end
            } else {
                *known == range
            }
        };
        let same = cached
            .as_ref()
            .filter(|known| serves(&known.range) && known.matches_generations(keyed));
        if let Some(same) = same {
            return Ok(Arc::clone(same));
        }
        let table = Arc::new(self.build_key_table(keyed, range).await?);
        slot.weight.store(table.bytes, Ordering::Relaxed);
        *cached = Some(Arc::clone(&table));
        drop(cached);
        self.key_tables.by_topic.update_weight(&self.table_key(topic));
        Ok(table)
    }

    async fn build_key_table(
        &self,
        keyed: &KeySnapshot,
        range: Range<u64>,
    ) -> Result<KeyTable, TreeError> {
        let making = self.key_tables.builds.acquire().await;
        let mut table = KeyTable::new(range, keyed.cut);
        let bytes_max = self.key_tables.bytes_max;
        table.advance(keyed, self.seed, bytes_max, &mut ScanBudget::unbounded()).await?;
        drop(making);
        Ok(table)
    }

    /// A cached table that has all keys in a range as the snapshot shows them.
    fn cached_key_table(
        &self,
        topic: &TopicNode,
        keyed: &KeySnapshot,
        range: &Range<u64>,
    ) -> Option<Arc<KeyTable>> {
        let slot = self.key_tables.slot(&self.table_key(topic));
        self.key_tables.by_topic.update_weight(&self.table_key(topic));
        // Do not wait for a table that is being built: that may take as long as a pass over the
        // topic.
        let table = slot.table.try_lock().ok()?.clone()?;
        let has_all = table.range.start <= range.start && range.end <= table.range.end;
        let is_of_then = table.cut >= keyed.cut || !table.is_behind(&keyed.ranges);
        (has_all && is_of_then && table.matches_generations(keyed)).then_some(table)
    }

    /// The number of bytes that one call may scan, if the topic has more.
    pub(crate) fn key_scan_bound(&self, keyed: &KeySnapshot) -> Result<Option<u64>, TreeError> {
        let Some(bytes_max) = self.key_scan_bytes_max else { return Ok(None) };
        let mut bytes = 0_u64;
        for range in &keyed.ranges {
            bytes = bytes.saturating_add(raw_size(range)?);
        }
        Ok((bytes > bytes_max).then_some(bytes_max))
    }

    /// The key of a name and its newest record, if it has a value, without a table of all keys.
    ///
    /// Such a table would take longer to build than one call may take. `range` is where the key's
    /// cookie can be.
    pub(crate) async fn search_key(
        &self,
        topic: &TopicNode,
        keyed: &KeySnapshot,
        name: &[u8],
        range: Range<u64>,
        bytes_max: u64,
    ) -> Result<Option<(Box<[u8]>, NewestRecord)>, TreeError> {
        if let Some(table) = self.cached_key_table(topic, keyed, &range) {
            let mut entries =
                table.entries.range((range.start, Box::default())..(range.end, Box::default()));
            let entry = entries.find(|((_, key), _)| encode(key) == name);
            let newest = entry.map(|((_, key), newest)| (key.clone(), *newest));
            return Ok(
                newest.filter(|(_, newest)| newest.length.is_some() && keyed.still_holds(newest))
            );
        }
        let mut budget = ScanBudget::of(bytes_max);
        let slot_key = (self.table_key(topic), Box::from(name));
        let slot = self.key_tables.searches.get_or_insert_with(&slot_key, KeyTableSlot::default);
        let mut cached = slot.table.lock().await;
        if cached.as_ref().is_some_and(|known| !known.matches_generations(keyed)) {
            *cached = None;
        }
        // Updated in place, so that the progress stays if the caller is cancelled.
        let table = Arc::make_mut(cached.get_or_insert_with(|| {
            Arc::new(KeyTable::for_key_name(range, name, &keyed.generations))
        }));
        let advanced = table.advance(keyed, self.seed, usize::MAX, &mut budget).await;
        slot.weight.store(table.weight() + 2 * name.len(), Ordering::Relaxed);
        let newest = table.entries.iter().next().map(|((_, key), newest)| (key.clone(), *newest));
        if advanced.as_ref().is_err_and(|error| !matches!(error, TreeError::Unfinished(_))) {
            *cached = None;
        }
        drop(cached);
        self.key_tables.searches.update_weight(&slot_key);
        advanced?;
        Ok(newest.filter(|(_, newest)| newest.length.is_some() && keyed.still_holds(newest)))
    }

    /// The newest record of one key, if it has a value.
    pub(crate) async fn newest_record(
        &self,
        topic: &TopicNode,
        key: &[u8],
    ) -> Result<Option<NewestRecord>, TreeError> {
        let mut tries = 1;
        loop {
            match self.newest_record_once(topic, key).await {
                Err(error) if tries < ATTEMPTS_MAX && is_retriable(topic, &error) => tries += 1,
                found => return found,
            }
        }
    }

    async fn newest_record_once(
        &self,
        topic: &TopicNode,
        key: &[u8],
    ) -> Result<Option<NewestRecord>, TreeError> {
        let keyed = self.key_snapshot(topic).await?;
        let place = cookie(key, self.seed);
        if let Some(bytes_max) = self.key_scan_bound(&keyed)? {
            let entry =
                self.search_key(topic, &keyed, &encode(key), place..place + 1, bytes_max).await?;
            return Ok(entry.map(|(_, newest)| newest));
        }
        let slot = self.key_tables.slot(&self.table_key(topic));
        // A statement of its own, because the lock is taken again below.
        let range = slot.table.lock().await.as_ref().map(|table| table.range.clone());
        let from = match &range {
            Some(range) if range.contains(&place) => place,
            _ => COOKIE_MIN,
        };
        let is_partial = range.is_some_and(|range| !range.contains(&place));
        let mut table = None;
        if !is_partial {
            table = Some(self.key_table(topic, &keyed, from).await?);
        }
        let table = match table.filter(|table| table.range.contains(&place)) {
            Some(table) => table,
            // Not all keys fit. Build a table for this cookie alone, and keep the table that a
            // listing uses.
            None => Arc::new(self.build_key_table(&keyed, place..place + 1).await?),
        };
        let newest = table.get(place, key);
        Ok(newest.filter(|newest| newest.length.is_some() && keyed.still_holds(newest)))
    }
}
