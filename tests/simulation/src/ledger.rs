//! The clients' knowledge, and everything that the node was ever seen to hold: plain maps beside
//! the real node.

use std::collections::BTreeMap;

use hlc::Hlc;

use crate::audit::{AuditBatch, AuditOccasion, AuditPartition, NodeAudit, PartitionKey};
use crate::small_files::SmallFile;
use crate::tree_versions::TreeVersions;

/// A step of the run, in which order facts became known. A request that was answered at an earlier
/// step than another thing was sent happened before it.
pub(crate) type LedgerStep = u64;

/// The acknowledgement that a producer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckMode {
    None,
    /// The node's; the batch may be lost with the machine.
    Leader,
    /// The disk's.
    All,
}

#[derive(Clone, Debug)]
pub(crate) struct SentBatch {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) acks: AckMode,
    /// Its producer's id, and its first sequence number.
    pub(crate) sequence: Option<(i64, i32)>,
    /// The number of its transaction.
    pub(crate) transaction: Option<usize>,
    /// The step at which it was first sent.
    pub(crate) sent: LedgerStep,
    /// The number of times that the wall clock had been set before that.
    pub(crate) clock_steps: u64,
    /// The acknowledgement with its offset.
    pub(crate) acked: Option<BatchAck>,
}

/// A response that acknowledges a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchAck {
    pub(crate) step: LedgerStep,
    pub(crate) base: u64,
    /// The wall clock at that time, and how often it had been set.
    pub(crate) wall_ms: u64,
    pub(crate) clock_steps: u64,
}

/// A transactional producer that was initialized.
#[derive(Clone, Debug)]
pub(crate) struct ProducerStart {
    /// Its transactional id, and its producer id.
    pub(crate) id: (&'static str, i64),
    pub(crate) epoch: i16,
    pub(crate) initialized: LedgerStep,
}

/// A transaction that a producer has begun.
#[derive(Clone, Debug)]
pub(crate) struct SimTransaction {
    /// The number of its producer.
    pub(crate) producer: usize,
    pub(crate) outcome: TransactionOutcome,
}

/// The known end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionOutcome {
    /// Nobody has asked for its commit: sooner or later it is aborted.
    Aborted,
    /// Its commit is not answered.
    Unknown,
    /// Its commit was answered.
    Committed(LedgerStep),
}

/// Everything that was ever seen of a partition.
#[derive(Clone, Debug)]
pub(crate) struct PartitionRecord {
    /// Its present state, without entries.
    pub(crate) now: AuditPartition,
    /// All entries that it ever had, by offset, as first seen: including removed ones.
    pub(crate) entries: BTreeMap<u64, AuditBatch>,
}

impl PartitionRecord {
    /// The first offset that is not in the cut with this bound.
    pub(crate) fn end_at(&self, bound: Hlc) -> u64 {
        self.entries_before(bound).last().map_or(0, |entry| entry.end)
    }

    /// The entries in the cut with this bound.
    pub(crate) fn entries_before(&self, bound: Hlc) -> impl Iterator<Item = &AuditBatch> {
        self.entries.values().take_while(move |entry| entry.stamp < bound)
    }
}

/// A pin whose setting was acknowledged.
#[derive(Clone, Debug, Default)]
pub(crate) struct LedgerPin {
    pub(crate) name: String,
    pub(crate) at: Hlc,
    pub(crate) expires_ms: u64,
    /// Its topics; `None` for all.
    pub(crate) topics: Option<Vec<String>>,
    /// The log starts of the partitions that it covers.
    pub(crate) starts: BTreeMap<PartitionKey, u64>,
    /// The wall clock has shown its expiry since, right or wrong; or its removal was requested.
    pub(crate) is_over: bool,
    /// Its removal was acknowledged.
    pub(crate) is_removed: bool,
}

impl LedgerPin {
    /// True if it covers a partition.
    pub(crate) fn covers(&self, held: &AuditPartition) -> bool {
        let is_named = self.topics.as_ref().is_none_or(|topics| topics.contains(&held.topic));
        is_named && held.exists_at(self.at)
    }
}

/// The model.
#[derive(Debug, Default)]
pub(crate) struct SimLedger {
    step: LedgerStep,
    pub(crate) batches: Vec<SentBatch>,
    pub(crate) producers: Vec<ProducerStart>,
    pub(crate) transactions: Vec<SimTransaction>,
    pub(crate) partitions: BTreeMap<PartitionKey, PartitionRecord>,
    pub(crate) small_files: Vec<SmallFile>,
    pub(crate) pins: Vec<LedgerPin>,
    pub(crate) files: TreeVersions,
    /// The incarnation of the node in which the files were last read.
    pub(crate) files_incarnation: Option<u64>,
}

impl SimLedger {
    pub(crate) fn next_step(&mut self) -> LedgerStep {
        self.step += 1;
        self.step
    }

    pub(crate) fn batch(&self, id: u64) -> &SentBatch {
        &self.batches[id as usize]
    }

    /// The partition that had a topic's name in the cut with this bound.
    pub(crate) fn partition_at(
        &self,
        topic: &str,
        index: u32,
        bound: Hlc,
    ) -> Option<&PartitionRecord> {
        self.partitions.values().find(|seen| {
            (&*seen.now.topic, seen.now.place.1) == (topic, index) && seen.now.exists_at(bound)
        })
    }

    /// Records the result of an audit.
    pub(crate) fn record_audit(&mut self, audit: &NodeAudit) {
        if audit.occasion == (AuditOccasion::Start { lost_power: true }) {
            // A topic whose creation was not on stable storage is lost with everything in it.
            let places: Vec<PartitionKey> = audit.partitions.iter().map(|p| p.place).collect();
            self.partitions.retain(|place, _| places.contains(place));
        }
        for partition in &audit.partitions {
            let now = AuditPartition { entries: Vec::new(), ..partition.clone() };
            let seen = self
                .partitions
                .entry(partition.place)
                .or_insert_with(|| PartitionRecord { now: now.clone(), entries: BTreeMap::new() });
            seen.now = now;
            // Offsets that a crash took back are assigned again.
            seen.entries.split_off(&partition.end);
            for entry in &partition.entries {
                seen.entries.entry(entry.base).or_insert_with(|| entry.clone());
            }
        }
    }
}
