//! The newest record of each key of a topic, in bounded memory.
//!
//! Keys are ordered by a hash. A table has all keys whose hashes lie in a range, and the range is as
//! wide as memory allows: it begins with everything to its end, and whenever there are too many keys,
//! its upper half goes. So any number of keys is found in as many passes over the topic as it takes.
//!
//! Of two records of one key, the one with the later stamp counts, in whatever partition; of one
//! partition that is the one with the higher offset. A record without a key is nobody's state, and one
//! without a value says that there is none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::blocking::on_disk;
use engine::{Offset, TopicId};
use hlc::{Ask, Cut, Hlc};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::names::encode;
use super::raw::raw_size;
use super::recent::{Recent, Weigh};
use super::scan::{Generation, Seen, Step, each_record, step};
use super::stat::TRIES;
use super::{TopicNode, Tree, TreeError};

/// What an entry takes beside its key, about.
const ENTRY_BYTES: usize = 128;
/// How many bytes of batches are looked at in one go.
const STEP_BYTES: usize = 1 << 20;
/// How many tables may be made at a time: each takes its room before it is kept.
const MAKING_MAX: usize = 2;
/// How many bytes of memory may say how far searches for single keys have come.
const SEARCHES_BYTES_MAX: usize = 4 << 20;
/// Where cookies begin; those before are for others to use.
pub(crate) const COOKIE_MIN: u64 = 16;
/// Behind all cookies.
pub(crate) const COOKIE_END: u64 = (1 << 62) + COOKIE_MIN;

/// A name's place among all names.
pub(crate) fn cookie(bytes: &[u8], seed: u64) -> u64 {
    (xxh3_64_with_seed(bytes, seed) >> 2) + COOKIE_MIN
}

/// Where the newest record of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub(crate) stamp: Hlc,
    pub(crate) partition: u32,
    pub(crate) offset: Offset,
    /// How long its value is; `None` if it has none.
    pub(crate) length: Option<u64>,
}

impl Newest {
    fn rank(&self) -> (Hlc, Offset) {
        (self.stamp, self.offset)
    }
}

/// How many bytes of batches may still be looked through.
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

    /// How many to look at next; `None` once all are spent.
    fn step_bytes(&self) -> Option<usize> {
        match self.left {
            None => Some(STEP_BYTES),
            Some(0) => None,
            Some(left) => Some(STEP_BYTES.min(usize::try_from(left).unwrap_or(STEP_BYTES))),
        }
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
    }
}

/// The newest record of each key in a range of cookies.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) range: Range<u64>,
    /// If it is about one key: its name.
    name: Option<Box<[u8]>>,
    pub(crate) entries: BTreeMap<(u64, Box<[u8]>), Newest>,
    /// As of when.
    cut: Cut,
    /// How far each partition has been read.
    ends: Vec<Offset>,
    /// That of each partition which was read.
    generations: Vec<Generation>,
    bytes: usize,
    /// How many records without a value were put in since these were taken out.
    tombstones: usize,
}

impl Table {
    fn new(range: Range<u64>, cut: Cut) -> Table {
        Table {
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

    /// One of a single key, which has not read anything.
    fn of_name(range: Range<u64>, name: &[u8], generations: &[Generation]) -> Table {
        Table {
            name: Some(name.into()),
            generations: generations.to_vec(),
            ..Table::new(range, Cut::before(hlc::SysTime(0)))
        }
    }

    fn holds(&self, place: u64, key: &[u8]) -> bool {
        let is_wanted = || self.name.as_ref().is_none_or(|name| encode(key) == **name);
        self.range.contains(&place) && is_wanted()
    }

    fn put(&mut self, place: u64, key: &[u8], newest: Newest, bytes_max: usize) {
        self.tombstones += usize::from(newest.length.is_none());
        let entry = (place, Box::from(key));
        match self.entries.get_mut(&entry) {
            Some(held) if held.rank() >= newest.rank() => {}
            Some(held) => *held = newest,
            None => {
                self.bytes += ENTRY_BYTES + key.len();
                self.entries.insert(entry, newest);
                if self.bytes > bytes_max {
                    self.narrow();
                }
            }
        }
    }

    /// Lets the upper half go; unless one cookie has it all.
    fn narrow(&mut self) {
        let middle = self.entries.keys().nth(self.entries.len() / 2).map(|(place, _)| *place);
        let first = self.entries.keys().next().map(|(place, _)| *place);
        let (Some(mut middle), Some(first)) = (middle, first) else { return };
        if middle == first {
            let next = self.entries.range((first + 1, Box::default())..).next();
            let Some(((place, _), _)) = next else { return };
            middle = *place;
        }
        let gone = self.entries.split_off(&(middle, Box::default()));
        self.bytes -= gone.keys().map(|(_, key)| ENTRY_BYTES + key.len()).sum::<usize>();
        self.range.end = middle;
    }

    /// Reads on in every partition. What has been read stays read, also where it ends early.
    ///
    /// # Errors
    /// [`TreeError::Unfinished`] if the budget is spent before the end.
    async fn advance(
        &mut self,
        keyed: &Keyed,
        seed: u64,
        bytes_max: usize,
        budget: &mut ScanBudget,
    ) -> Result<(), TreeError> {
        self.ends.resize(keyed.seen.len().max(self.ends.len()), Offset(0));
        for (nth, seen) in keyed.seen.iter().enumerate() {
            let mut next = self.ends[nth].max(seen.start);
            while next < seen.end {
                let step_bytes = budget.step_bytes().ok_or_else(|| unfinished(seen, next))?;
                let step = on_disk(|| step(&seen.partition, next, seen.end, step_bytes))?;
                on_disk(|| self.put_all(seen, &step, next, seed, bytes_max))?;
                budget.spend(step.batches.iter().map(|batch| batch.bytes.len().max(1)).sum());
                next = step.next;
                self.ends[nth] = next;
                tokio::task::yield_now().await;
            }
            self.ends[nth] = next;
        }
        keyed.check()?;
        self.cut = keyed.cut;
        self.generations.clone_from(&keyed.generations);
        if self.tombstones > 0 {
            // What is read later is newer than all of this: nothing has to be held against it.
            self.entries.retain(|_, newest| newest.length.is_some());
            self.bytes = self.entries.keys().map(|(_, key)| ENTRY_BYTES + key.len()).sum();
            self.tombstones = 0;
        }
        Ok(())
    }

    fn put_all(
        &mut self,
        seen: &Seen,
        step: &Step,
        from: Offset,
        seed: u64,
        bytes_max: usize,
    ) -> Result<(), TreeError> {
        for batch in &step.batches {
            each_record(batch, &(from..seen.end), seen.user.as_ref(), |record| {
                let Some(key) = &record.key else { return Ok(()) };
                let place = cookie(key, seed);
                if self.holds(place, key) {
                    let newest = Newest {
                        stamp: batch.stamp(),
                        partition: seen.partition.index,
                        offset: Offset(record.offset as u64),
                        length: record.value.as_ref().map(|value| value.len() as u64),
                    };
                    self.put(place, key, newest, bytes_max);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether it was read in the state that the partitions are in. In another one, a tombstone may be
    /// gone that takes away what was read: it would never be met.
    fn is_of(&self, keyed: &Keyed) -> bool {
        self.generations.iter().zip(&keyed.generations).all(|(read, now)| read == now)
    }

    /// Whether there is more in what is seen than has been read.
    fn is_behind(&self, seen: &[Seen]) -> bool {
        let read = self.ends.iter().copied().chain(std::iter::repeat(Offset(0)));
        seen.iter().zip(read).any(|(seen, read)| seen.end > read.max(seen.start))
    }

    /// How much memory it takes, about.
    fn weight(&self) -> usize {
        self.bytes + (self.ends.len() + self.generations.len()) * size_of::<u64>() + ENTRY_BYTES
    }

    pub(crate) fn get(&self, place: u64, key: &[u8]) -> Option<Newest> {
        self.entries.get(&(place, Box::from(key))).copied()
    }
}

fn unfinished(seen: &Seen, next: Offset) -> TreeError {
    TreeError::Unfinished(format!(
        "topic={}, partition={}, offset={}, of={}",
        seen.topic, seen.partition.index, next.0, seen.end.0
    ))
}

/// What of a topic's keys is known, as of one moment or of now.
#[derive(Default)]
pub(crate) struct Slot {
    table: tokio::sync::Mutex<Option<Arc<Table>>>,
    weight: AtomicUsize,
}

impl Weigh for Slot {
    fn bytes(&self) -> usize {
        size_of::<Slot>() + self.weight.load(Ordering::Relaxed)
    }
}

type TableKey = (TopicId, Option<Ask>);
/// A topic, its moment, and the name of a key.
type SearchKey = (TableKey, Box<[u8]>);

/// The tables that are known.
pub(crate) struct Tables {
    recent: Recent<TableKey, Slot>,
    /// Those of one key each.
    searches: Recent<SearchKey, Slot>,
    making: Semaphore,
    bytes_max: usize,
}

impl Tables {
    pub(crate) fn new(bytes_max: usize) -> Tables {
        Tables {
            recent: Recent::new(bytes_max),
            searches: Recent::new(SEARCHES_BYTES_MAX),
            making: Semaphore::new(MAKING_MAX),
            bytes_max: bytes_max / 2,
        }
    }

    fn slot(&self, topic: &TopicNode) -> Arc<Slot> {
        self.recent.get(&(topic.id, topic.at), Slot::default)
    }
}

/// A topic's keys: what is seen of its partitions, and as of when.
pub(crate) struct Keyed {
    pub(crate) seen: Vec<Seen>,
    /// That of each partition.
    generations: Vec<Generation>,
    cut: Cut,
}

impl Keyed {
    /// Whether everything that belongs to it is still kept.
    ///
    /// # Errors
    /// [`TreeError::BeforeHistory`].
    pub(crate) fn check_kept(&self) -> Result<(), TreeError> {
        // One knows of all.
        self.seen.first().map_or(Ok(()), Seen::check_kept)
    }

    /// Whether a pass over it, which ends now, has met everything: a record may have gone before it
    /// came there, or a tombstone behind the record that it came to before.
    fn check(&self) -> Result<(), TreeError> {
        self.check_kept()?;
        match self.generations == generations(&self.seen) {
            true => Ok(()),
            false => Err(TreeError::Gone("the topic was compacted meanwhile".to_owned())),
        }
    }

    /// Whether a record that was the newest is still there.
    pub(crate) fn keeps(&self, newest: &Newest) -> bool {
        let seen = self.seen.iter().find(|seen| seen.partition.index == newest.partition);
        seen.is_some_and(|seen| newest.offset >= seen.partition.start())
    }
}

fn generations(seen: &[Seen]) -> Vec<Generation> {
    seen.iter().map(|seen| Generation::of(&seen.partition)).collect()
}

/// Whether to look again: what was looked at is there no more, but another state of it may be.
pub(crate) fn is_moved(topic: &TopicNode, error: &TreeError) -> bool {
    match error {
        TreeError::Gone(_) => true,
        // There is always a present.
        TreeError::BeforeHistory(_) => topic.at.is_none(),
        _ => false,
    }
}

impl Tree {
    /// What is seen of a topic for its keys. Of the present, what is final: whatever comes later is
    /// newer.
    pub(crate) async fn keyed(&self, topic: &TopicNode) -> Result<Keyed, TreeError> {
        let (topic, cut) = match topic.at {
            Some(ask) => (topic.clone(), super::moments::bound(&ask)),
            None => {
                self.topic_then(topic).await?;
                let cut = Cut::through(self.engine.frontier());
                let ask = self.settle(Ask::At(hlc::Moment::Sys(cut))).await?;
                (TopicNode { at: Some(ask), ..topic.clone() }, cut)
            }
        };
        let seen = self.seen(&topic, 0..u32::MAX).await?;
        for seen in seen.iter().filter(|seen| seen.user.is_some()) {
            // What superseded a record may have a later user time than was asked for.
            if seen.partition.log.horizon().compacted_to != Hlc::ZERO {
                return Err(TreeError::BeforeHistory(
                    format!(
                        "the topic is compacted, so its keys are not known by user time: ask by system time. topic={}, partition={}",
                        topic.name, seen.partition.index
                    )
                    .into(),
                ));
            }
        }
        Ok(Keyed { generations: generations(&seen), seen, cut })
    }

    /// The keys of a topic from a cookie on, as many as there is room for.
    pub(crate) async fn table(
        &self,
        topic: &TopicNode,
        keyed: &Keyed,
        from: u64,
    ) -> Result<Arc<Table>, TreeError> {
        let key = (topic.id, topic.at);
        let slot = self.tables.slot(topic);
        let mut held = slot.table.lock().await;
        let serves = |known: &Arc<Table>| known.range.contains(&from) && known.is_of(keyed);
        let mut known = held.take().filter(serves);
        let made = match &mut known {
            Some(known) if known.cut >= keyed.cut || !known.is_behind(&keyed.seen) => {
                Arc::clone(known)
            }
            Some(known) => {
                let table = Arc::make_mut(known);
                let bytes_max = self.tables.bytes_max;
                table.advance(keyed, self.seed, bytes_max, &mut ScanBudget::unbounded()).await?;
                Arc::clone(known)
            }
            None => {
                // One that begins at the first key serves lookups too, if there is room for all.
                let first = self.make(keyed, COOKIE_MIN.max(from)..COOKIE_END).await?;
                Arc::new(first)
            }
        };
        // Too many came: what was asked for may have had to go.
        let made = match made.range.contains(&from) {
            true => made,
            false => Arc::new(self.make(keyed, from..COOKIE_END).await?),
        };
        slot.weight.store(made.bytes, Ordering::Relaxed);
        *held = Some(Arc::clone(&made));
        drop(held);
        self.tables.recent.grew(&key);
        Ok(made)
    }

    /// The keys in a range: as many as there is room for, or those that a table at hand has.
    pub(crate) async fn table_from(
        &self,
        topic: &TopicNode,
        keyed: &Keyed,
        range: Range<u64>,
        may_be_less: bool,
    ) -> Result<Arc<Table>, TreeError> {
        let slot = self.tables.slot(topic);
        let mut held = slot.table.lock().await;
        let serves = |known: &Range<u64>| match may_be_less {
            true => known.start == range.start && known.end <= range.end,
            false => *known == range,
        };
        let known = held.as_ref().filter(|known| serves(&known.range) && known.is_of(keyed));
        if let Some(known) = known {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.make(keyed, range).await?);
        slot.weight.store(made.bytes, Ordering::Relaxed);
        *held = Some(Arc::clone(&made));
        drop(held);
        self.tables.recent.grew(&(topic.id, topic.at));
        Ok(made)
    }

    async fn make(&self, keyed: &Keyed, range: Range<u64>) -> Result<Table, TreeError> {
        let making = self.tables.making.acquire().await;
        let mut table = Table::new(range, keyed.cut);
        let bytes_max = self.tables.bytes_max;
        table.advance(keyed, self.seed, bytes_max, &mut ScanBudget::unbounded()).await?;
        drop(making);
        Ok(table)
    }

    /// A table at hand that has all keys in a range as they are seen.
    fn known_table(
        &self,
        topic: &TopicNode,
        keyed: &Keyed,
        range: &Range<u64>,
    ) -> Option<Arc<Table>> {
        let slot = self.tables.slot(topic);
        self.tables.recent.grew(&(topic.id, topic.at));
        // One that is being made is not waited for: that may take as long as a pass over the topic.
        let known = slot.table.try_lock().ok()?.clone()?;
        let has_all = known.range.start <= range.start && range.end <= known.range.end;
        let is_of_then = known.cut >= keyed.cut || !known.is_behind(&keyed.seen);
        (has_all && is_of_then && known.is_of(keyed)).then_some(known)
    }

    /// How many bytes may be looked through, if a topic has more.
    pub(crate) fn key_scan_bound(&self, keyed: &Keyed) -> Result<Option<u64>, TreeError> {
        let Some(bytes_max) = self.key_scan_bytes_max else { return Ok(None) };
        let mut bytes = 0_u64;
        for seen in &keyed.seen {
            bytes = bytes.saturating_add(raw_size(seen)?);
        }
        Ok((bytes > bytes_max).then_some(bytes_max))
    }

    /// The key of a name and its newest record, if it has a value, without a table of all: it would take
    /// longer to make than one question may. `range` is where the key's cookie can be.
    pub(crate) async fn search(
        &self,
        topic: &TopicNode,
        keyed: &Keyed,
        name: &[u8],
        range: Range<u64>,
        bytes_max: u64,
    ) -> Result<Option<(Box<[u8]>, Newest)>, TreeError> {
        if let Some(known) = self.known_table(topic, keyed, &range) {
            let mut found =
                known.entries.range((range.start, Box::default())..(range.end, Box::default()));
            let found = found.find(|((_, key), _)| encode(key) == name);
            let found = found.map(|((_, key), newest)| (key.clone(), *newest));
            return Ok(found.filter(|(_, newest)| newest.length.is_some() && keyed.keeps(newest)));
        }
        let mut budget = ScanBudget::of(bytes_max);
        let slot_key = ((topic.id, topic.at), Box::from(name));
        let slot = self.tables.searches.get(&slot_key, Slot::default);
        let mut held = slot.table.lock().await;
        if held.as_ref().is_some_and(|known| !known.is_of(keyed)) {
            *held = None;
        }
        // In its place, so that what was read stays there whoever goes away meanwhile.
        let table = Arc::make_mut(
            held.get_or_insert_with(|| Arc::new(Table::of_name(range, name, &keyed.generations))),
        );
        let advanced = table.advance(keyed, self.seed, usize::MAX, &mut budget).await;
        slot.weight.store(table.weight() + 2 * name.len(), Ordering::Relaxed);
        let found = table.entries.iter().next().map(|((_, key), newest)| (key.clone(), *newest));
        if advanced.as_ref().is_err_and(|error| !matches!(error, TreeError::Unfinished(_))) {
            *held = None;
        }
        drop(held);
        self.tables.searches.grew(&slot_key);
        advanced?;
        Ok(found.filter(|(_, newest)| newest.length.is_some() && keyed.keeps(newest)))
    }

    /// The newest record of one key, if it has a value.
    pub(crate) async fn newest(
        &self,
        topic: &TopicNode,
        key: &[u8],
    ) -> Result<Option<Newest>, TreeError> {
        let mut tries = 1;
        loop {
            match self.newest_once(topic, key).await {
                Err(error) if tries < TRIES && is_moved(topic, &error) => tries += 1,
                found => return found,
            }
        }
    }

    async fn newest_once(
        &self,
        topic: &TopicNode,
        key: &[u8],
    ) -> Result<Option<Newest>, TreeError> {
        let keyed = self.keyed(topic).await?;
        let place = cookie(key, self.seed);
        if let Some(bytes_max) = self.key_scan_bound(&keyed)? {
            let found =
                self.search(topic, &keyed, &encode(key), place..place + 1, bytes_max).await?;
            return Ok(found.map(|(_, newest)| newest));
        }
        let slot = self.tables.slot(topic);
        // Asked in a statement of its own: the lock is taken again below.
        let held = slot.table.lock().await.as_ref().map(|held| held.range.clone());
        let from = match &held {
            Some(range) if range.contains(&place) => place,
            _ => COOKIE_MIN,
        };
        let is_partial = held.is_some_and(|range| !range.contains(&place));
        let mut table = None;
        if !is_partial {
            table = Some(self.table(topic, &keyed, from).await?);
        }
        let table = match table.filter(|table| table.range.contains(&place)) {
            Some(table) => table,
            // There is no room for all of them: this one alone, and what somebody lists stays.
            None => Arc::new(self.make(&keyed, place..place + 1).await?),
        };
        let found = table.get(place, key);
        Ok(found.filter(|newest| newest.length.is_some() && keyed.keeps(newest)))
    }
}
