//! The state of a topic by key: the directory `by-key/`, and the same as a stream.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use engine::Offset;
use engine::blocking::block_in_place;
use hlc::{Cut, Hlc, Moment, MomentSelector};
use kafka_records::KafkaRecord;

use super::keys::{COOKIE_END, COOKIE_MIN, KeySnapshot, KeyTable, cookie, is_retriable};
use super::names::{DecodedKey, decode, encode, escaped};
use super::scan::{VisibleRange, for_each_record, read_step};
use super::stat::ATTEMPTS_MAX;
use super::{GuardedPlace, TopicNode, TreeError, ViewEntry, ViewNode, ViewNodeKind, ViewTree};
use crate::{RecordRenderer, RecordSelection, ViewFormat};

/// The number of bytes of batches that are read for one page, approximately.
const PAGE_READ_BYTES: usize = 8 << 20;
/// The number of bytes of batches that are read in one step.
const STEP_BYTES: usize = 1 << 20;
/// The name of a key shorter than this is never shortened to a hash.
const SHORT_KEY: usize = 80;

/// The position where a stream of keys continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeysCursor {
    /// The range of keys of the current pass: as many as fit in memory.
    range: Range<u64>,
    /// The position up to which their records have been returned.
    partition: u32,
    offset: u64,
    /// Identifies the incarnation of the server: each one orders keys differently.
    seed: u32,
}

impl fmt::Display for KeysCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        let KeysCursor { partition, offset, seed, .. } = self;
        write!(f, "{start:x}-{end:x}-{partition:x}-{offset:x}-{seed:x}")
    }
}

impl FromStr for KeysCursor {
    type Err = TreeError;

    fn from_str(text: &str) -> Result<KeysCursor, TreeError> {
        let bad = || TreeError::Invalid("not a cursor of keys".to_owned());
        let numbers: Vec<u64> = text
            .split('-')
            .take(6)
            .map(|field| u64::from_str_radix(field, 16).map_err(|_| bad()))
            .collect::<Result<_, _>>()?;
        let [start, end, partition, offset, seed] = numbers[..] else { return Err(bad()) };
        if start < COOKIE_MIN || start >= end || end > COOKIE_END {
            return Err(bad());
        }
        let partition = u32::try_from(partition).map_err(|_| bad())?;
        let seed = u32::try_from(seed).map_err(|_| bad())?;
        Ok(KeysCursor { range: start..end, partition, offset, seed })
    }
}

/// A page of the state of a topic.
#[derive(Clone, Debug)]
pub struct KeysPage {
    /// The moment of the page. The next request must name the same one.
    pub at: MomentSelector,
    /// The rendered lines.
    pub text: Vec<u8>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<KeysCursor>,
}

impl ViewTree {
    /// A page of the newest record of each key of `topic`, as lines: `KEY`, a tab and its value; or
    /// JSON.
    ///
    /// A page has about `bytes_max` bytes, and there are as many pages as it takes. A page may be
    /// empty. The order has no meaning.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn keys_page(
        &self,
        topic: &TopicNode,
        format: ViewFormat,
        cursor: Option<KeysCursor>,
        bytes_max: usize,
    ) -> Result<KeysPage, TreeError> {
        self.check(GuardedPlace::Records(&topic.name))?;
        let mut tries = 1;
        loop {
            match self.keys_page_once(topic, format, cursor.clone(), bytes_max).await {
                // Retention or compaction has overtaken this present. Retry with a newer one.
                Err(TreeError::BeforeHistory(_)) if tries < ATTEMPTS_MAX && topic.at.is_none() => {
                    tries += 1;
                }
                page => return page,
            }
        }
    }

    async fn keys_page_once(
        &self,
        topic: &TopicNode,
        format: ViewFormat,
        cursor: Option<KeysCursor>,
        bytes_max: usize,
    ) -> Result<KeysPage, TreeError> {
        let at = match topic.at {
            Some(at) => at,
            None => {
                let now = Cut::through(self.engine.frontier());
                self.wait_until_closed(MomentSelector::At(Moment::Sys(now))).await?
            }
        };
        let topic = &TopicNode { at: Some(at), ..topic.clone() };
        let (keyed, table, cursor) = self.begin_keys_page(topic, cursor).await?;
        let mut page = KeysPageBuilder {
            table: &table,
            keyed: &keyed,
            format,
            seed: self.seed,
            bytes_max,
            text: Vec::new(),
            read: 0,
        };
        let next = page.fill(&cursor).await?;
        keyed.check_kept()?;
        let seed = cursor.seed;
        let next = match next {
            Some((partition, offset)) => {
                Some(KeysCursor { range: table.range.clone(), partition, offset: offset.0, seed })
            }
            None if table.range.end < COOKIE_END => Some(KeysCursor {
                // The next page finds out how many keys fit.
                range: table.range.end..COOKIE_END,
                partition: 0,
                offset: 0,
                seed,
            }),
            None => None,
        };
        Ok(KeysPage { at, text: page.text, next })
    }

    async fn begin_keys_page(
        &self,
        topic: &TopicNode,
        cursor: Option<KeysCursor>,
    ) -> Result<(KeySnapshot, Arc<KeyTable>, KeysCursor), TreeError> {
        let seed = self.seed as u32;
        let first = KeysCursor { range: COOKIE_MIN..COOKIE_END, partition: 0, offset: 0, seed };
        let cursor = cursor.unwrap_or(first);
        if cursor.seed != seed {
            return Err(TreeError::Gone("the server was started again".to_owned()));
        }
        let begins = (cursor.partition, cursor.offset) == (0, 0);
        let range = cursor.range.clone();
        let mut tries = 1;
        let (keyed, table) = loop {
            let keyed = self.key_snapshot(topic).await?;
            match self.key_table_from(topic, &keyed, range.clone(), begins).await {
                Err(TreeError::Gone(_)) if tries < ATTEMPTS_MAX => tries += 1,
                table => break (keyed, table?),
            }
        };
        if !begins && table.range != range {
            // Fewer keys fit than before, and some keys have been returned already.
            return Err(TreeError::Gone(format!(
                "the list of keys of {} is not kept any more",
                topic.name
            )));
        }
        Ok((keyed, table, cursor))
    }

    pub(crate) async fn key_child(
        &self,
        topic: &TopicNode,
        name: &[u8],
    ) -> Result<ViewNode, TreeError> {
        let missing = || TreeError::NotFound(format!("the key {}", escaped(name)));
        let key = match decode(name).ok_or_else(missing)? {
            DecodedKey::Whole(key) => key,
            DecodedKey::Long => self.long_key(topic, name).await?.ok_or_else(missing)?,
        };
        self.newest_record(topic, &key).await?.ok_or_else(missing)?;
        Ok(ViewNode::Key { topic: topic.clone(), key: key.into() })
    }

    /// Finds the key whose name is too long to hold the key itself.
    async fn long_key(&self, topic: &TopicNode, name: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        let mut tries = 1;
        loop {
            match self.long_key_once(topic, name).await {
                Err(error) if tries < ATTEMPTS_MAX && is_retriable(topic, &error) => tries += 1,
                found => return found,
            }
        }
    }

    async fn long_key_once(
        &self,
        topic: &TopicNode,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, TreeError> {
        let keyed = self.key_snapshot(topic).await?;
        if let Some(bytes_max) = self.key_scan_bound(&keyed)? {
            let anywhere = COOKIE_MIN..COOKIE_END;
            let key = self.search_key(topic, &keyed, name, anywhere, bytes_max).await?;
            return Ok(key.map(|(key, _)| key.into_vec()));
        }
        let mut from = COOKIE_MIN;
        while from < COOKIE_END {
            let table = self.key_table(topic, &keyed, from).await?;
            let long = table.entries.keys().map(|(_, key)| key);
            let mut long = long.filter(|key| key.len() >= SHORT_KEY);
            if let Some(key) = long.find(|key| encode(key) == name) {
                return Ok(Some(key.to_vec()));
            }
            from = table.range.end;
        }
        Ok(None)
    }

    pub(crate) async fn list_keys(
        &self,
        topic: &TopicNode,
        after: u64,
        max: usize,
    ) -> Result<Vec<ViewEntry>, TreeError> {
        let mut tries = 1;
        loop {
            match self.list_keys_once(topic, after, max).await {
                Err(error) if tries < ATTEMPTS_MAX && is_retriable(topic, &error) => tries += 1,
                result => return result,
            }
        }
    }

    async fn list_keys_once(
        &self,
        topic: &TopicNode,
        after: u64,
        max: usize,
    ) -> Result<Vec<ViewEntry>, TreeError> {
        let keyed = self.key_snapshot(topic).await?;
        let mut from = after.saturating_add(1).max(COOKIE_MIN);
        let mut children: Vec<ViewEntry> = Vec::new();
        while children.is_empty() && from < COOKIE_END {
            let table = self.key_table(topic, &keyed, from).await?;
            let entries = table.entries.range((from, Box::default())..);
            // A tombstone stays in the table while something older may still be read.
            let is_there = |newest: &super::keys::NewestRecord| {
                newest.length.is_some() && keyed.still_holds(newest)
            };
            for ((place, key), _) in entries.filter(|(_, newest)| is_there(newest)) {
                // Names with the same cookie stay on one page: the cookie cannot separate them.
                if children.len() >= max
                    && children.last().is_some_and(|last| last.cookie != *place)
                {
                    break;
                }
                let node = ViewNode::Key { topic: topic.clone(), key: Arc::from(&**key) };
                children.push(ViewEntry {
                    cookie: *place,
                    name: encode(key),
                    node,
                    kind: ViewNodeKind::File,
                });
            }
            from = table.range.end;
        }
        Ok(children)
    }
}

/// A page under construction.
struct KeysPageBuilder<'a> {
    table: &'a KeyTable,
    keyed: &'a KeySnapshot,
    format: ViewFormat,
    seed: u64,
    bytes_max: usize,
    text: Vec<u8>,
    read: usize,
}

impl KeysPageBuilder<'_> {
    /// Continues at `cursor`. Returns where the next page continues; `None` at the end.
    async fn fill(&mut self, cursor: &KeysCursor) -> Result<Option<(u32, Offset)>, TreeError> {
        for range in &self.keyed.ranges {
            let index = range.partition.index;
            if index < cursor.partition || self.table.entries.is_empty() {
                continue;
            }
            let begin = if index == cursor.partition { Offset(cursor.offset) } else { Offset(0) };
            let mut next = begin.max(range.start).max(range.partition.start());
            while next < range.end {
                if self.text.len() >= self.bytes_max || self.read >= PAGE_READ_BYTES {
                    return Ok(Some((index, next)));
                }
                next = block_in_place(|| self.read_step(range, next))?;
                tokio::task::yield_now().await;
            }
        }
        Ok(None)
    }

    /// Appends the lines of some batches, until the page is full.
    fn read_step(&mut self, range: &VisibleRange, from: Offset) -> Result<Offset, TreeError> {
        let renderer = RecordRenderer::new(
            &range.topic,
            range.partition.index,
            self.format,
            RecordSelection::all(),
        )
        .map_err(|error| TreeError::Invalid(error.to_string()))?;
        let step = read_step(&range.partition, &range.transactions, from, range.end, STEP_BYTES)?;
        self.read += step.bytes;
        let mut stopped = None;
        for batch in &step.batches {
            for_each_record(batch, &(from..range.end), range.user.as_ref(), |record| {
                let offset = Offset(record.offset as u64);
                if stopped.is_some() || !self.is_newest(range, offset, record) {
                    return Ok(());
                }
                if self.text.len() >= self.bytes_max {
                    stopped = Some(offset);
                    return Ok(());
                }
                self.push_line(&renderer, record, batch.stamp());
                Ok(())
            })?;
            if stopped.is_some() {
                break;
            }
        }
        Ok(stopped.unwrap_or(step.next))
    }

    fn is_newest(&self, range: &VisibleRange, offset: Offset, record: &KafkaRecord) -> bool {
        let Some(key) = &record.key else { return false };
        let newest = self.table.get(cookie(key, self.seed), key);
        newest.is_some_and(|newest| {
            (newest.partition, newest.offset) == (range.partition.index, offset)
        })
    }

    fn push_line(&mut self, renderer: &RecordRenderer, record: &KafkaRecord, stamp: Hlc) {
        if self.format != ViewFormat::Jsonl {
            self.text.extend_from_slice(record.key.as_deref().unwrap_or_default());
            self.text.push(b'\t');
        }
        renderer.append_record(record, Some(stamp), &mut self.text);
    }
}
