//! What the clients know, and what the node was ever seen to have: plain maps, beside the real thing.

use std::collections::BTreeMap;

use hlc::Hlc;

use crate::audit::{AuditBatch, AuditOccasion, AuditPartition, NodeAudit, PartitionKey};
use crate::small_files::SmallFile;
use crate::tree_versions::TreeVersions;

/// A moment of the run, in which order facts became known. Whatever was answered at an earlier step than
/// another thing was sent, happened before it.
pub(crate) type LedgerStep = u64;

/// Whose word a producer takes for it that its batch is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckMode {
    /// Nobody's.
    None,
    /// The node's; the batch may go with the machine.
    Leader,
    /// The disk's.
    All,
}

/// A batch that a client sent.
#[derive(Clone, Debug)]
pub(crate) struct SentBatch {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) acks: AckMode,
    /// Its producer's id, and its first sequence number.
    pub(crate) sequence: Option<(i64, i32)>,
    /// When it was first sent.
    pub(crate) sent: LedgerStep,
    /// The wall clock was set so often before that.
    pub(crate) clock_steps: u64,
    /// When its producer was told where it is.
    pub(crate) acked: Option<BatchAck>,
}

/// An answer that says that a batch is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchAck {
    pub(crate) step: LedgerStep,
    pub(crate) base: u64,
    /// What the wall clock showed, and how often it had been set.
    pub(crate) wall_ms: u64,
    pub(crate) clock_steps: u64,
}

/// A partition as it was ever seen.
#[derive(Clone, Debug)]
pub(crate) struct PartitionRecord {
    /// As it is now, without entries.
    pub(crate) now: AuditPartition,
    /// All entries that it ever had, by offset, as they were at first: what was removed is here too.
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

    /// The stamp of the last entry of which something was removed at the front.
    pub(crate) fn deleted_up_to(&self) -> Option<Hlc> {
        let lost = self.entries.range(..self.now.start).next_back();
        lost.map(|(_, entry)| entry.stamp)
    }
}

/// A pin that somebody was told was set.
#[derive(Clone, Debug, Default)]
pub(crate) struct LedgerPin {
    pub(crate) name: String,
    pub(crate) at: Hlc,
    pub(crate) expires_ms: u64,
    /// Those that it is about; `None` for all.
    pub(crate) topics: Option<Vec<String>>,
    /// Where the partitions that it is about began.
    pub(crate) starts: BTreeMap<PartitionKey, u64>,
    /// The wall clock has shown its expiry since, be it right or wrong; or somebody wants it gone.
    pub(crate) is_over: bool,
    /// Somebody was told that it is gone.
    pub(crate) is_removed: bool,
}

impl LedgerPin {
    /// Whether it keeps a partition.
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
    pub(crate) partitions: BTreeMap<PartitionKey, PartitionRecord>,
    pub(crate) small_files: Vec<SmallFile>,
    pub(crate) pins: Vec<LedgerPin>,
    pub(crate) files: TreeVersions,
    /// The incarnation of the node in which it is known what files are.
    pub(crate) files_incarnation: Option<u64>,
}

impl SimLedger {
    /// The next step.
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

    /// Enters what an audit found.
    pub(crate) fn record_audit(&mut self, audit: &NodeAudit) {
        if audit.occasion == (AuditOccasion::Start { lost_power: true }) {
            // A topic whose creation was not on stable storage is gone with all that it had.
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
            // Offsets that a crash took back are given out again.
            seen.entries.split_off(&partition.end);
            for entry in &partition.entries {
                seen.entries.entry(entry.base).or_insert_with(|| entry.clone());
            }
        }
    }
}
