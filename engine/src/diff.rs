//! Differences between two moments: topics, appended records, pins, offsets, groups, znodes.
//!
//! Invariants:
//! - Both moments are final, so the same query always has the same answer, page by page too.
//! - An answer is never silently incomplete. If something between the moments has been removed, the
//!   answer is an error that names the earliest moment from which the query can be answered.
//! - It lists what *differs*, not every event. An offset that was committed twice appears once. An
//!   offset that returned to its old value does not appear. Only pins are listed event by event, as
//!   they were set and removed.
//! - A page takes bounded memory and time, whatever the size of the difference. One thing is not
//!   bounded: where a transaction stayed open for long around a moment, those that ended meanwhile
//!   are read past, once a page.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use hlc::{Cut, Hlc, SysTime};
use storage::{Log, Offset};

use engine_core::blocking::{block_in_place, read_log_from, tip_at};
use engine_core::log_history::{earliest_bound, is_retained};
use engine_core::namespace::event::{NamespaceEvent, namespace_events};
use engine_core::namespace::{Namespace, Partition, Topic, TopicDelta};
use engine_core::numbering::NAMESPACE_LOG;
use engine_core::{
    CommittedDifference, DifferencePart, EngineError, Isolation, SeekError, TruncatedPartition,
    WaitPolicy,
};
use engine_groups::{GroupDifference, KeyComparison, OffsetDifference, StoredGroup};
use engine_znodes::ZnodeDifference;

use crate::engine::Engine;

/// The most items that are scanned for one page. Equal items are scanned too, but are not on the
/// page.
const SCANNED_MAX: usize = 20_000;
/// The most bytes of client-supplied data (group members, commit metadata) that are on a page
/// before its last difference.
const TEXT_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Debug)]
pub enum Difference {
    /// A topic was created. This is its last state.
    TopicCreated(Arc<Topic>),
    /// The settings or the number of partitions of a topic changed.
    TopicChanged {
        /// Its earlier state.
        before: Arc<Topic>,
        /// Its last state.
        after: Arc<Topic>,
    },
    /// A partition shows records that it did not show at the earlier moment. Of committed records,
    /// there may be several of these for a partition, one for each page: each with the next of
    /// them.
    Appended {
        topic: Arc<Topic>,
        partition: u32,
        /// The offset of the first. It is below the earlier end of the partition if a transaction
        /// that began before the earlier moment was committed after it.
        start: Offset,
        /// The offset after the last.
        end: Offset,
        /// The number of records. Of committed records, this is less than the range if it has
        /// records of aborted or undecided transactions, or markers.
        records: u64,
        /// The bytes of the batches that hold them.
        bytes: u64,
    },
    TopicDeleted {
        /// Its last state.
        topic: Arc<Topic>,
        /// The stamp of its deletion.
        stamp: Hlc,
    },
    /// A pin was set, or its expiry extended.
    PinSet {
        name: String,
        /// The cut that it keeps.
        at: Cut,
        expires: SysTime,
        /// The stamp of the change.
        stamp: Hlc,
    },
    /// A pin was removed, or expired.
    PinRemoved {
        name: String,
        /// The stamp of its removal.
        stamp: Hlc,
    },
    /// The offset that a group committed for a partition differs.
    Offset(OffsetDifference),
    /// The members or the generation of a group differ.
    Group(GroupDifference),
    /// A znode differs.
    Znode(ZnodeDifference),
}

/// A section of a difference. Each section has its own horizon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffSection {
    /// Topics and their settings. Readable as long as no topic of either moment has been removed.
    Topics,
    /// Appended records. Readable as long as none of them has been removed.
    Records,
    /// Pins. Readable as long as their events are retained.
    Pins,
    /// Committed offsets.
    Offsets,
    /// Group members and generations.
    Groups,
    /// Znodes. Readable as long as their history is retained.
    Znodes,
}

/// The start of the next page of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffCursor {
    /// At a topic and a line of it.
    Topic {
        /// The number of the topic in the list of topics between the moments.
        topic: usize,
        /// The line: 0 for its creation or change, then one for each partition, then its deletion.
        line: usize,
        /// Within the line of a partition: the offset.
        offset: Option<Offset>,
    },
    /// At an event of the namespace.
    Pin(u64),
    /// After an offset's key; empty before the first.
    Offset(Vec<u8>),
    /// After a group's key; empty before the first.
    Group(Vec<u8>),
    /// After a znode's key; empty before the first.
    Znode(Vec<u8>),
}

impl fmt::Display for DiffCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, key: &[u8]| {
            key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match self {
            DiffCursor::Topic { topic, line, offset: None } => write!(f, "t{topic}.{line}"),
            DiffCursor::Topic { topic, line, offset: Some(offset) } => {
                write!(f, "t{topic}.{line}.{}", offset.0)
            }
            DiffCursor::Pin(offset) => write!(f, "p{offset}"),
            DiffCursor::Offset(key) => f.write_str("o").and_then(|()| hex(f, key)),
            DiffCursor::Group(key) => f.write_str("g").and_then(|()| hex(f, key)),
            DiffCursor::Znode(key) => f.write_str("z").and_then(|()| hex(f, key)),
        }
    }
}

/// A text that is not a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not where a page begins: give what the page before it gave as next")]
pub struct DiffCursorError(String);

impl FromStr for DiffCursor {
    type Err = DiffCursorError;

    fn from_str(text: &str) -> Result<DiffCursor, DiffCursorError> {
        parse_cursor(text).ok_or_else(|| DiffCursorError(text.chars().take(100).collect()))
    }
}

fn parse_cursor(text: &str) -> Option<DiffCursor> {
    let rest = text.get(1..)?;
    match text.as_bytes()[0] {
        b't' => {
            let (topic, line) = rest.split_once('.')?;
            let (line, offset) = match line.split_once('.') {
                Some((line, offset)) => (line, Some(Offset(offset.parse().ok()?))),
                None => (line, None),
            };
            Some(DiffCursor::Topic { topic: topic.parse().ok()?, line: line.parse().ok()?, offset })
        }
        b'p' => Some(DiffCursor::Pin(rest.parse().ok()?)),
        b'o' => Some(DiffCursor::Offset(unhex(rest).filter(|key| !key.contains(&0))?)),
        b'g' => Some(DiffCursor::Group(unhex(rest).filter(|key| !key.contains(&0))?)),
        b'z' => Some(DiffCursor::Znode(unhex(rest)?)),
        _ => None,
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(digits, 16).ok()
    };
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks(2).map(byte).collect())?
}

/// A query for one page of a difference.
#[derive(Clone, Copy, Debug)]
pub struct DiffPageRequest<'a> {
    /// The earlier moment.
    pub from: Cut,
    /// The later one.
    pub until: Cut,
    /// Only these topics, and the offsets committed for them. Pins, groups and znodes are left out
    /// then.
    pub topics: Option<&'a [String]>,
    /// Only these sections.
    pub only: Option<&'a [DiffSection]>,
    /// The isolation level. Appended records are those that the later moment has and the earlier
    /// one has not.
    pub isolation: Isolation,
    /// The start of the page; `None` for the first page.
    pub after: Option<&'a DiffCursor>,
    /// The maximum number of differences on the page.
    pub limit: usize,
}

/// Returns true if a difference includes what a section has of the topic of that name.
pub type DiffTopicFilter<'a> = &'a (dyn Fn(DiffSection, &str) -> bool + Sync);

/// One page of a difference.
#[derive(Clone, Debug)]
pub struct DiffPage {
    /// The earlier moment.
    pub from: Cut,
    /// The later moment: the requested one, unless it was answered at the frontier.
    pub until: Cut,
    /// The frontier at the time of the answer.
    pub frontier: Hlc,
    pub differences: Vec<Difference>,
    /// The cursor of the next page, if there is one.
    pub next: Option<DiffCursor>,
}

impl Engine {
    /// The differences of one moment of system time from an earlier one, one page at a time. There
    /// are none if `from` is not the earlier moment.
    ///
    /// # Errors
    /// [`SeekError`]; also where the later moment is to be answered at the frontier, and the
    /// frontier is before the earlier one.
    pub async fn diff(
        &self,
        ask: DiffPageRequest<'_>,
        when: WaitPolicy,
    ) -> Result<DiffPage, SeekError> {
        self.diff_of_topics(ask, &|_, _| true, when).await
    }

    /// [`Engine::diff`] of the topics that `filter` includes. Of others, not even an error says
    /// anything. The next page may begin after any key, also after one with the name of such a
    /// topic.
    ///
    /// # Errors
    /// As [`Engine::diff`].
    pub async fn diff_of_topics(
        &self,
        ask: DiffPageRequest<'_>,
        filter: DiffTopicFilter<'_>,
        when: WaitPolicy,
    ) -> Result<DiffPage, SeekError> {
        let (until, frontier) = self.wait_until_closed(ask.until, when).await?;
        if until <= ask.from && until < ask.until {
            return Err(SeekError::NotYet { cut: ask.from, frontier, retry_ms: 1 });
        }
        let from = ask.from;
        let mut page = DiffPageBuilder {
            engine: self,
            from,
            until,
            topics: ask.topics,
            filter,
            only: ask.only,
            isolation: ask.isolation,
            limit: ask.limit.max(1),
            scanned: 0,
            text_bytes: 0,
            differences: Vec::new(),
        };
        let begin =
            ask.after.cloned().unwrap_or(DiffCursor::Topic { topic: 0, line: 0, offset: None });
        let next = if from < until { block_in_place(|| page.fill(begin))? } else { None };
        Ok(DiffPage { from, until, frontier, differences: page.differences, next })
    }
}

/// A page while it is filled.
struct DiffPageBuilder<'a> {
    engine: &'a Engine,
    from: Cut,
    until: Cut,
    topics: Option<&'a [String]>,
    filter: DiffTopicFilter<'a>,
    only: Option<&'a [DiffSection]>,
    isolation: Isolation,
    limit: usize,
    scanned: usize,
    text_bytes: usize,
    differences: Vec<Difference>,
}

impl DiffPageBuilder<'_> {
    /// Fills the page from `place` on. Returns the cursor where it stopped, unless that is the end.
    fn fill(&mut self, mut place: DiffCursor) -> Result<Option<DiffCursor>, SeekError> {
        loop {
            let next = match &place {
                DiffCursor::Topic { topic, line, offset } => self.topics(*topic, *line, *offset)?,
                DiffCursor::Pin(from) => self.pins(Offset(*from))?,
                DiffCursor::Offset(last) => self.offsets(last)?,
                DiffCursor::Group(last) => self.groups(last)?,
                DiffCursor::Znode(last) => self.znodes(last)?,
            };
            match next {
                SectionProgress::Cursor(next) => place = next,
                SectionProgress::End => return Ok(None),
            }
            if self.is_full() {
                return Ok(Some(place));
            }
        }
    }

    fn is_full(&self) -> bool {
        self.differences.len() >= self.limit
            || self.scanned >= SCANNED_MAX
            || self.text_bytes >= TEXT_BYTES_MAX
    }

    fn includes_topic(&self, topic: &str) -> bool {
        self.topics.is_none_or(|names| names.iter().any(|name| name == topic))
    }

    /// Returns true if the difference includes what a section has of a topic.
    fn includes(&self, section: DiffSection, topic: &str) -> bool {
        self.includes_section(section) && (self.filter)(section, topic)
    }

    fn includes_section(&self, section: DiffSection) -> bool {
        let is_of_topics =
            !matches!(section, DiffSection::Pins | DiffSection::Groups | DiffSection::Znodes);
        (is_of_topics || self.topics.is_none())
            && self.only.is_none_or(|sections| sections.contains(&section))
    }

    fn topics(
        &mut self,
        mut topic: usize,
        mut line: usize,
        mut offset: Option<Offset>,
    ) -> Result<SectionProgress, SeekError> {
        let behind = SectionProgress::Cursor(DiffCursor::Pin(0));
        let mut all = {
            let namespace = self.engine.namespace();
            let all = namespace.topics_between(self.from, self.until);
            self.check_topics_known(&namespace)?;
            self.check_topics(&all, &namespace)?;
            all
        };
        // A topic that was created and deleted in between exists at neither moment.
        let is_at_either =
            |between: &TopicDelta| between.before.is_some() || between.deleted.is_none();
        all.retain(|between| self.includes_topic(&between.last.name) && is_at_either(between));
        while let Some(between) = all.get(topic) {
            // Check also if the page continues within a topic: the log start may have advanced
            // since the last page.
            if self.includes(DiffSection::Records, &between.last.name) {
                self.check_retained(between)?;
            }
            while line < between.last.partitions.len() + 2 {
                if self.is_full() {
                    return Ok(SectionProgress::Cursor(DiffCursor::Topic { topic, line, offset }));
                }
                self.scanned += 1;
                offset = match line.checked_sub(1).and_then(|nth| between.last.partitions.get(nth))
                {
                    Some(partition) => self.appended(between, partition, offset)?,
                    None => {
                        self.differences.extend(self.topic_difference(between, line));
                        None
                    }
                };
                line += usize::from(offset.is_none());
            }
            (topic, line) = (topic + 1, 0);
        }
        Ok(behind)
    }

    /// The topics of both moments have to be known. A topic that was created and deleted in between
    /// is in no answer.
    fn check_topics_known(&self, namespace: &Namespace) -> Result<(), SeekError> {
        if !self.includes_section(DiffSection::Topics)
            && !self.includes_section(DiffSection::Records)
        {
            return Ok(());
        }
        for cut in [self.from, self.until] {
            let is_known = |name: &String| namespace.topic_at(name, cut).is_some();
            let are_known = self.topics.is_some_and(|names| names.iter().all(is_known));
            if !are_known && let Some(earliest) = namespace.removed_in(cut) {
                return Err(SeekError::BeforeNames { earliest });
            }
        }
        Ok(())
    }

    /// A topic that was requested by name has to have existed.
    fn check_topics(&self, all: &[TopicDelta], namespace: &Namespace) -> Result<(), SeekError> {
        let is_there = |name: &String| all.iter().any(|between| *between.last.name == **name);
        match self.topics.into_iter().flatten().find(|name| !is_there(name)) {
            Some(name) => {
                if let Some(earliest) = namespace.removed_between(self.from, self.until) {
                    return Err(SeekError::BeforeNames { earliest });
                }
                let (from, until) = (hlc::Moment::Sys(self.from), hlc::Moment::Sys(self.until));
                Err(SeekError::NoTopic {
                    topic: name.clone(),
                    selector: hlc::MomentSelector::Window(from, until),
                })
            }
            None => Ok(()),
        }
    }

    fn check_retained(&self, between: &TopicDelta) -> Result<(), SeekError> {
        let mut lost = Vec::new();
        for partition in &between.last.partitions {
            let horizon = partition.log.horizon();
            if !is_retained(&horizon, self.from) {
                lost.push(TruncatedPartition {
                    topic: Arc::clone(&between.last.name),
                    partition: partition.index,
                    earliest: earliest_bound(&horizon),
                });
            }
        }
        if lost.is_empty() { Ok(()) } else { Err(SeekError::BeforeHistory { lost }) }
    }

    /// The difference of a line that is not of a partition.
    fn topic_difference(&self, between: &TopicDelta, line: usize) -> Option<Difference> {
        let TopicDelta { before, last, deleted } = between;
        if !self.includes(DiffSection::Topics, &last.name) {
            return None;
        }
        let topic = || Arc::clone(last);
        match (line, before) {
            (0, None) => Some(Difference::TopicCreated(topic())),
            (0, Some(before)) if is_changed(before, last) => {
                Some(Difference::TopicChanged { before: Arc::clone(before), after: topic() })
            }
            (0, Some(_)) => None,
            _ => deleted.map(|stamp| Difference::TopicDeleted { topic: topic(), stamp }),
        }
    }

    /// The records that were appended to a partition, from `offset` on. Returns the start of the
    /// rest, if the page is full before all of it was looked at.
    fn appended(
        &mut self,
        between: &TopicDelta,
        partition: &Partition,
        offset: Option<Offset>,
    ) -> Result<Option<Offset>, SeekError> {
        let topic = &between.last;
        if !self.includes(DiffSection::Records, &topic.name) {
            return Ok(None);
        }
        let counts = match self.isolation {
            Isolation::Committed => self.committed_difference(between, partition, offset)?,
            Isolation::Uncommitted => self.written(between, &partition.log)?,
        };
        // Check last, because the log start may have advanced meanwhile; also where nothing is left
        // between the moments.
        let horizon = partition.log.horizon();
        if !is_retained(&horizon, self.from) {
            return Err(truncated(topic, partition, earliest_bound(&horizon)));
        }
        self.scanned += counts.batches + counts.transactions;
        if counts.records > 0 {
            let (topic, partition) = (Arc::clone(topic), partition.index);
            let DifferencePart { range: Range { start, end }, records, bytes, .. } = counts;
            let appended = Difference::Appended { topic, partition, start, end, records, bytes };
            self.differences.push(appended);
        }
        Ok(counts.next)
    }

    fn committed_difference(
        &self,
        between: &TopicDelta,
        partition: &Partition,
        offset: Option<Offset>,
    ) -> Result<DifferencePart, SeekError> {
        let difference = self.committed(between, partition)?;
        let counts = difference.part(offset, SCANNED_MAX.saturating_sub(self.scanned).max(1))?;
        match difference.earliest() {
            Some(_) => Err(self.committed_lost(between)?),
            None => Ok(counts),
        }
    }

    fn committed<'b>(
        &'b self,
        between: &TopicDelta,
        partition: &'b Partition,
    ) -> Result<CommittedDifference<'b>, EngineError> {
        let until = self.shown_until(between);
        self.engine.core().committed_difference(partition, self.from, until)
    }

    /// The cut until which a topic was shown: decisions after its deletion do not count.
    fn shown_until(&self, between: &TopicDelta) -> Cut {
        between.deleted.map_or(self.until, |stamp| self.until.min(Cut::below(stamp)))
    }

    /// The partitions of a topic that have lost records of transactions which were committed
    /// between the moments.
    fn committed_lost(&self, between: &TopicDelta) -> Result<SeekError, EngineError> {
        let mut lost = Vec::new();
        for partition in &between.last.partitions {
            if let Some(earliest) = self.committed(between, partition)?.earliest() {
                let (topic, partition) = (Arc::clone(&between.last.name), partition.index);
                lost.push(TruncatedPartition { topic, partition, earliest: earliest.bound() });
            }
        }
        Ok(SeekError::BeforeHistory { lost })
    }

    /// Everything written to a log between the moments.
    fn written(&self, between: &TopicDelta, log: &Log) -> Result<DifferencePart, SeekError> {
        let until = self.shown_until(between);
        let (start, end) = (tip_at(log, self.from)?.end, tip_at(log, until)?.end);
        let bytes = if start < end {
            read_log_from(log, start, || log.bytes_between(start, end))?
        } else {
            0
        };
        let records = end.0.saturating_sub(start.0);
        Ok(DifferencePart { range: start..end, records, bytes, ..DifferencePart::default() })
    }

    fn pins(&mut self, from: Offset) -> Result<SectionProgress, SeekError> {
        let behind = SectionProgress::Cursor(DiffCursor::Offset(Vec::new()));
        if !self.includes_section(DiffSection::Pins) {
            return Ok(behind);
        }
        let log = self.engine.store().log(NAMESPACE_LOG)?;
        check_pins_retained(&log, self.from)?;
        let (first, end) = (tip_at(&log, self.from)?.end, tip_at(&log, self.until)?.end);
        let mut next = from.max(first);
        let mut events = namespace_events(Arc::clone(&log), next);
        while next < end {
            if self.is_full() {
                break;
            }
            let Some(event) = events.next() else { break };
            let (event, stamp, _) = event.map_err(EngineError::Corrupt)?;
            self.scanned += 1;
            next = Offset(next.0 + 1);
            self.differences.extend(pin_difference(event, stamp));
        }
        // The log start may have advanced meanwhile: then the events that were read begin too late.
        check_pins_retained(&log, self.from)?;
        let is_cut_off = next < end && self.is_full();
        Ok(if is_cut_off { SectionProgress::Cursor(DiffCursor::Pin(next.0)) } else { behind })
    }

    fn offsets(&mut self, last: &[u8]) -> Result<SectionProgress, SeekError> {
        let behind_all = SectionProgress::Cursor(DiffCursor::Group(Vec::new()));
        if !self.includes_section(DiffSection::Offsets) {
            return Ok(behind_all);
        }
        let mut last = last.to_vec();
        while !self.is_full() {
            let behind = (!last.is_empty()).then_some(&*last);
            let compared = self.engine.groups().compare_offset(behind, self.from, self.until)?;
            let Some(KeyComparison { key, difference }) = compared else {
                self.engine.groups().check_retained(self.from)?;
                return Ok(behind_all);
            };
            self.scanned += 1;
            last = key;
            let included = difference.filter(|difference| {
                self.includes_topic(&difference.topic)
                    && self.includes(DiffSection::Offsets, &difference.topic)
            });
            if let Some(difference) = included {
                let noted = [&difference.before, &difference.after].into_iter().flatten();
                self.text_bytes += noted.map(|noted| noted.metadata.len()).sum::<usize>();
                self.differences.push(Difference::Offset(difference));
            }
        }
        self.engine.groups().check_retained(self.from)?;
        Ok(SectionProgress::Cursor(DiffCursor::Offset(last)))
    }

    fn groups(&mut self, last: &[u8]) -> Result<SectionProgress, SeekError> {
        let behind_all = SectionProgress::Cursor(DiffCursor::Znode(Vec::new()));
        if !self.includes_section(DiffSection::Groups) {
            return Ok(behind_all);
        }
        let mut last = last.to_vec();
        while !self.is_full() {
            let behind = (!last.is_empty()).then_some(&*last);
            let compared = self.engine.groups().compare_group(behind, self.from, self.until)?;
            let Some(KeyComparison { key, difference }) = compared else {
                self.engine.groups().check_retained(self.from)?;
                return Ok(behind_all);
            };
            self.scanned += 1;
            last = key;
            if let Some(difference) = difference {
                let snapshots = [&difference.before, &difference.after].into_iter().flatten();
                self.text_bytes += snapshots.map(StoredGroup::bytes).sum::<usize>();
                self.differences.push(Difference::Group(difference));
            }
        }
        self.engine.groups().check_retained(self.from)?;
        Ok(SectionProgress::Cursor(DiffCursor::Group(last)))
    }

    fn znodes(&mut self, last: &[u8]) -> Result<SectionProgress, SeekError> {
        if !self.includes_section(DiffSection::Znodes) {
            return Ok(SectionProgress::End);
        }
        let mut last = (!last.is_empty()).then(|| last.to_vec());
        let history = self.engine.znodes().history();
        while !self.is_full() {
            let limit = self.limit - self.differences.len();
            let page = history.diff("/", (self.from, self.until), last.as_deref(), limit)?;
            self.scanned += page.scanned;
            let differences = page.differences;
            self.text_bytes += differences.iter().map(ZnodeDifference::bytes).sum::<usize>();
            self.differences.extend(differences.into_iter().map(Difference::Znode));
            let Some(next) = page.next else { return Ok(SectionProgress::End) };
            last = Some(next);
        }
        Ok(SectionProgress::Cursor(DiffCursor::Znode(last.unwrap_or_default())))
    }
}

/// The place where a section stopped.
enum SectionProgress {
    Cursor(DiffCursor),
    End,
}

fn is_changed(before: &Topic, after: &Topic) -> bool {
    before.partitions.len() != after.partitions.len() || before.config != after.config
}

/// The error for the removed history of one partition.
fn truncated(topic: &Topic, partition: &Partition, earliest: Hlc) -> SeekError {
    let (topic, partition) = (Arc::clone(&topic.name), partition.index);
    SeekError::BeforeHistory { lost: vec![TruncatedPartition { topic, partition, earliest }] }
}

/// The pins section is read from the namespace's events, so they must be retained from `from` on.
fn check_pins_retained(log: &Log, from: Cut) -> Result<(), SeekError> {
    let horizon = log.horizon();
    if is_retained(&horizon, from) {
        Ok(())
    } else {
        Err(SeekError::BeforeNames { earliest: earliest_bound(&horizon) })
    }
}

fn pin_difference(event: NamespaceEvent, stamp: Hlc) -> Option<Difference> {
    match event {
        NamespaceEvent::PinSet { name, at, expires_ms, .. } => {
            let (at, expires) = (Cut::below(Hlc::from_bits(at)), SysTime(expires_ms));
            Some(Difference::PinSet { name, at, expires, stamp })
        }
        NamespaceEvent::PinRemoved { name } => Some(Difference::PinRemoved { name, stamp }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_back_as_it_was_written_and_nothing_else_is_one() {
        for place in [
            DiffCursor::Topic { topic: 7, line: 12, offset: None },
            DiffCursor::Topic { topic: 7, line: 12, offset: Some(Offset(3)) },
            DiffCursor::Pin(9),
            DiffCursor::Offset(Vec::new()),
            DiffCursor::Offset(b"og\x01\x03t".to_vec()),
            DiffCursor::Group(b"g\xff".to_vec()),
            DiffCursor::Znode(vec![7, 0, 255]),
        ] {
            assert_eq!(place.to_string().parse::<DiffCursor>(), Ok(place));
        }
        for text in [
            "",
            "t",
            "t1",
            "t1.x",
            "t1.2.",
            "t1.2.3.4",
            "p-1",
            "oabc",
            "o00",
            "ozz",
            "x1",
            "ö",
            "g\u{e9}\u{e9}",
        ] {
            assert!(text.parse::<DiffCursor>().is_err(), "{text:?}");
        }
    }
}
