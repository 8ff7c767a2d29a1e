//! The records of many partitions as of one moment, complete or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use hlc::{Moment, MomentSelector};
use kafka_records::BatchIterator;

use crate::fetch::FetchPosition;
use crate::history::{CutResponse, PendingMomentPolicy, moment_topic};
use crate::{Client, ClientError, FetchOptions, OffsetSpec};

/// The first response is about so long: most cuts are short, and memory for the answer is pinned.
const FIRST_BYTES_MAX: i32 = 4 << 20;
/// Later responses are up to so long.
const BYTES_MAX: i32 = 32 << 20;

/// The records of partitions as of one moment, or of a window of time.
#[derive(Clone, Debug)]
pub struct CutRecords {
    /// The selector that was read. It always selects the same records.
    pub selector: MomentSelector,
    /// The cut at its end: its hash, and how precise it is.
    pub cut: CutResponse,
    /// The partitions, by topic and number.
    pub partitions: Vec<CutPartitionRecords>,
}

/// The records of one partition in a cut.
#[derive(Clone, Debug)]
pub struct CutPartitionRecords {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset that was selected.
    pub start: i64,
    /// The first offset after what was selected.
    pub end: i64,
    /// Whole batches, in order, in runs of any length. The first one may begin before `start`, and
    /// the last one may end after `end`.
    pub batches: Vec<Bytes>,
}

/// A partition that is being read.
struct PendingPartition {
    /// Its topic's name at the moment.
    name: String,
    leader: String,
    next: i64,
    records: CutPartitionRecords,
}

impl PendingPartition {
    fn is_complete(&self) -> bool {
        self.next >= self.records.end
    }

    /// Takes the batches of a response. Returns true if one of them was whole.
    fn add(&mut self, batches: &Bytes) -> Result<bool, ClientError> {
        let mut complete = BatchIterator::new(batches);
        for batch in complete.by_ref() {
            let (header, _) = batch.map_err(|error| ClientError::Malformed {
                address: self.leader.clone(),
                what: format!("a batch of {} does not read: {error}", self.name),
            })?;
            self.next = self.next.max(header.last_offset() + 1);
        }
        let complete_bytes = batches.slice(..batches.len() - complete.rest().len());
        let is_news = !complete_bytes.is_empty();
        if is_news {
            self.records.batches.push(complete_bytes);
        }
        Ok(is_news)
    }
}

impl Client {
    /// Reads all that `selector` selects of `topics`, or of all topics: by system time, one moment
    /// of all of them, which holds with each record everything that happened before it. Where both
    /// sides have an RDMA device, the server writes the records into the memory of this process,
    /// and the result keeps that memory.
    ///
    /// # Errors
    ///
    /// As [`Client::cut`] and [`Client::fetch`]. No records are returned then.
    pub async fn read_cut(
        &mut self,
        selector: &MomentSelector,
        topics: Option<&[String]>,
        patience: Duration,
    ) -> Result<CutRecords, ClientError> {
        let (MomentSelector::At(last) | MomentSelector::Window(_, last)) = selector;
        let cut = self.cut(last, topics, PendingMomentPolicy::Wait, patience).await?;
        let selector = self.resolve(selector, &cut.at)?;
        let mut pending = self.begin(&selector, &cut).await?;
        let mut bytes_max = FIRST_BYTES_MAX;
        while let Some(leader) = first_leader(&pending) {
            self.read_some(&leader, &mut pending, bytes_max).await?;
            bytes_max = bytes_max.saturating_mul(2).min(BYTES_MAX);
        }
        let partitions = pending.into_iter().map(|pending| pending.records).collect();
        Ok(CutRecords { selector, cut, partitions })
    }

    /// The selector with the moment that the server answered for, so that it always selects the
    /// same.
    fn resolve(&self, selector: &MomentSelector, at: &str) -> Result<MomentSelector, ClientError> {
        let malformed = |error: hlc::MomentError| ClientError::Malformed {
            address: self.bootstrap.join(","),
            what: format!("the moment of a cut does not read: {error}"),
        };
        let last: Moment = at.parse().map_err(malformed)?;
        match (*selector, last) {
            (MomentSelector::At(_), last) => Ok(MomentSelector::At(last)),
            (MomentSelector::Window(Moment::User { before, known: None }, _), last) => {
                let known_cut = match last {
                    Moment::User { known: known_cut, .. } => known_cut,
                    Moment::Sys(_) => None,
                };
                MomentSelector::window(Moment::User { before, known: known_cut }, last)
                    .map_err(malformed)
            }
            (MomentSelector::Window(first, _), last) => {
                MomentSelector::window(first, last).map_err(malformed)
            }
        }
    }

    /// The partitions of a cut, and the first offset to read in each.
    async fn begin(
        &mut self,
        selector: &MomentSelector,
        cut: &CutResponse,
    ) -> Result<Vec<PendingPartition>, ClientError> {
        let mut topics: BTreeMap<&str, BTreeMap<i32, (i64, i64)>> = BTreeMap::new();
        for partition in &cut.partitions {
            let partitions = topics.entry(&partition.topic).or_default();
            partitions.insert(partition.partition, (partition.start, partition.end));
        }
        let names: Vec<String> = topics.keys().map(|topic| moment_topic(topic, selector)).collect();
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.metadata(Some(&names)).await?;
        }
        let mut pending = Vec::with_capacity(cut.partitions.len());
        for ((topic, mut partitions), name) in topics.into_iter().zip(names) {
            if let MomentSelector::Window(..) = selector {
                let numbers: Vec<i32> = partitions.keys().copied().collect();
                let starts = self.offsets(&name, &numbers, OffsetSpec::Earliest).await?;
                let ends = self.offsets(&name, &numbers, OffsetSpec::Latest).await?;
                let range =
                    |partition| Some(((*starts.get(partition)?)?, (*ends.get(partition)?)?));
                for (partition, bounds) in &mut partitions {
                    *bounds = range(partition).ok_or_else(|| ClientError::Malformed {
                        address: self.bootstrap.join(","),
                        what: format!("the window of {name}/{partition} has no bounds"),
                    })?;
                }
            }
            for (leader, partitions) in self.by_leader(&name, partitions).await? {
                pending.extend(partitions.into_iter().map(|(partition, (start, end))| {
                    let records = CutPartitionRecords {
                        topic: topic.to_owned(),
                        partition,
                        start,
                        end,
                        batches: Vec::new(),
                    };
                    let (name, leader) = (name.clone(), leader.clone());
                    PendingPartition { name, leader, next: start, records }
                }));
            }
        }
        pending.sort_by(|a, b| {
            (&a.records.topic, a.records.partition).cmp(&(&b.records.topic, b.records.partition))
        });
        Ok(pending)
    }

    /// Reads more of the partitions that are not complete, from one server.
    async fn read_some(
        &mut self,
        leader: &str,
        pending: &mut [PendingPartition],
        bytes_max: i32,
    ) -> Result<(), ClientError> {
        let mut requested: Vec<&mut PendingPartition> = pending
            .iter_mut()
            .filter(|pending| pending.leader == leader && !pending.is_complete())
            .collect();
        let positions: Vec<FetchPosition> = requested
            .iter()
            .map(|pending| FetchPosition {
                topic: pending.name.clone(),
                partition: pending.records.partition,
                offset: pending.next,
            })
            .collect();
        let options = FetchOptions {
            wait_max: Duration::ZERO,
            partition_bytes_max: bytes_max,
            bytes_max,
            ..FetchOptions::default()
        };
        let fetched = self.fetch_from(leader, &positions, &options).await?;
        let is_empty = fetched.iter().all(|(_, partition)| partition.batches.is_empty());
        let mut fetched: BTreeMap<(String, i32), Bytes> = fetched
            .into_iter()
            .map(|(topic, partition)| ((topic, partition.partition), partition.batches))
            .collect();
        let mut is_news = is_empty;
        for pending in &mut requested {
            let key = (pending.name.clone(), pending.records.partition);
            match fetched.remove(&key) {
                // The first batch that is there is always in a response: these offsets have none.
                Some(_) if is_empty => pending.next = pending.records.end,
                Some(batches) => is_news |= pending.add(&batches)?,
                None => {
                    let what = format!("a response leaves out {}/{}", key.0, key.1);
                    return Err(ClientError::Malformed { address: leader.to_owned(), what });
                }
            }
        }
        if is_news {
            return Ok(());
        }
        let problem = "a response has only parts of batches".to_owned();
        Err(ClientError::Malformed { address: leader.to_owned(), what: problem })
    }
}

/// The server of the first partition that is not complete.
fn first_leader(pending: &[PendingPartition]) -> Option<String> {
    let incomplete = pending.iter().find(|pending| !pending.is_complete());
    incomplete.map(|pending| pending.leader.clone())
}
