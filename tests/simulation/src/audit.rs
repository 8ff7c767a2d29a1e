//! Everything that a node has stored, read from the beginning of each log to its end. It uses no
//! time index, and no path that serves clients.

use std::collections::BTreeSet;

use engine::{Engine, Offset, TopicId};
use hlc::Hlc;
use kafka_records::{BatchHeader, DecompressionLimit, records};

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };
const READ_BYTES: usize = 64 << 10;

/// The header that names the batch that a tombstone was sent in.
pub(crate) const BATCH_HEADER: &str = "batch";

/// A stored record. Its value names the batch that it was sent in, or a header does, if it has no
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditRecord {
    pub(crate) offset: u64,
    pub(crate) time: i64,
    pub(crate) key: Option<String>,
    pub(crate) is_tombstone: bool,
    pub(crate) batch: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditBatch {
    pub(crate) base: u64,
    pub(crate) end: u64,
    pub(crate) stamp: Hlc,
    /// True if it is the marker of a transaction.
    pub(crate) is_marker: bool,
    pub(crate) records: Vec<AuditRecord>,
}

impl AuditBatch {
    /// The number of its batch in the ledger; `None` of a marker, and if compaction left nothing of
    /// it.
    pub(crate) fn batch(&self) -> Option<u64> {
        self.records.first().map(|record| record.batch)
    }
}

/// A partition, identified by its topic's id.
pub(crate) type PartitionKey = (TopicId, u32);

#[derive(Clone, Debug)]
pub(crate) struct AuditPartition {
    pub(crate) place: PartitionKey,
    pub(crate) topic: String,
    /// The stamps at which its topic was created, and deleted.
    pub(crate) created: Hlc,
    pub(crate) deleted: Option<Hlc>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// A bound of system time below which compaction may have removed records.
    pub(crate) compacted_to: Hlc,
    /// Its topic was deleted, nothing of it is kept, and the node has forgotten it.
    pub(crate) is_removed: bool,
    pub(crate) entries: Vec<AuditBatch>,
}

impl AuditPartition {
    /// True if its topic had that name in the cut with this bound.
    pub(crate) fn exists_at(&self, bound: Hlc) -> bool {
        self.created < bound && self.deleted.is_none_or(|deleted| bound <= deleted)
    }
}

/// The occasion of an audit of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuditOccasion {
    /// Reads only what was appended since the last audit.
    NewEntries,
    /// Reads everything, in the middle of an incarnation.
    AllEntries,
    /// Reads everything, as clients could see it when the node exited.
    NodeExit,
    /// Reads everything, at the start of an incarnation. After a power loss, what was not on stable
    /// storage may be gone.
    Start { lost_power: bool },
}

/// Everything that a node has stored.
#[derive(Clone, Debug)]
pub(crate) struct NodeAudit {
    pub(crate) occasion: AuditOccasion,
    /// The latest time that the node's wall clock had ever shown by then.
    pub(crate) shown_ms: u64,
    pub(crate) partitions: Vec<AuditPartition>,
}

impl NodeAudit {
    /// Reads what `engine` has, for each partition from the offset in `from` on.
    pub(crate) fn read(
        engine: &Engine,
        occasion: AuditOccasion,
        shown_ms: u64,
        from: impl Fn(&PartitionKey) -> u64,
    ) -> Result<NodeAudit, String> {
        let mut partitions = Vec::new();
        for (topic, deleted) in engine.topics().including_deleted() {
            for partition in &topic.partitions {
                let place = (topic.id, partition.index);
                let horizon = partition.log.horizon();
                let from = match occasion {
                    AuditOccasion::NewEntries => Offset(from(&place)).max(partition.start()),
                    _ => partition.start(),
                };
                partitions.push(AuditPartition {
                    place,
                    topic: topic.name.to_string(),
                    created: topic.created,
                    deleted,
                    start: partition.start().0,
                    end: partition.end().0,
                    compacted_to: horizon.compacted_to,
                    is_removed: false,
                    entries: read_batches(partition, from)
                        .map_err(|error| format!("read {}/{}: {error}", topic.name, place.1))?,
                });
            }
        }
        Ok(NodeAudit { occasion, shown_ms, partitions })
    }

    /// Adds the partitions that were seen before and that the node has forgotten: as they were seen
    /// last.
    pub(crate) fn add_removed_partitions<'a>(
        &mut self,
        seen: impl Iterator<Item = &'a AuditPartition>,
    ) {
        let places: BTreeSet<PartitionKey> =
            self.partitions.iter().map(|held| held.place).collect();
        let may_be = |held: &&AuditPartition| held.deleted.is_some() && held.start >= held.end;
        let forgotten = seen.filter(may_be).filter(|held| !places.contains(&held.place));
        self.partitions
            .extend(forgotten.map(|held| AuditPartition { is_removed: true, ..held.clone() }));
    }

    /// True if it has every entry that is kept.
    pub(crate) fn has_all_entries(&self) -> bool {
        self.occasion != AuditOccasion::NewEntries
    }
}

fn read_batches(partition: &engine::Partition, from: Offset) -> Result<Vec<AuditBatch>, String> {
    let (mut found, mut next, end) = (Vec::new(), from, partition.end());
    while next < end {
        let pieces = partition.log.read(next, end, READ_BYTES).map_err(|e| e.to_string())?;
        let Some(last) = pieces.last() else { break };
        next = last.entry.end();
        for piece in &pieces {
            let payload = piece.read().map_err(|error| error.to_string())?;
            found.push(AuditBatch {
                base: piece.entry.base.0,
                end: piece.entry.end().0,
                stamp: piece.entry.stamp,
                is_marker: BatchHeader::parse(&payload).is_ok_and(|header| header.is_control()),
                records: read_records(&payload)?,
            });
        }
    }
    Ok(found)
}

/// The records of a stored batch; none of a transaction's marker.
pub(crate) fn read_records(batch: &bytes::Bytes) -> Result<Vec<AuditRecord>, String> {
    if BatchHeader::parse(batch).map_err(|error| error.to_string())?.is_control() {
        return Ok(Vec::new());
    }
    let read = records(batch, LIMIT).map_err(|error| error.to_string())?;
    read.map(|record| {
        let record = record.map_err(|error| error.to_string())?;
        let text = |bytes: Option<bytes::Bytes>| {
            bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
        };
        let is_tombstone = record.value.is_none();
        let named = |(name, value): (bytes::Bytes, Option<bytes::Bytes>)| {
            if name == BATCH_HEADER { value } else { None }
        };
        let header = || record.headers.into_iter().find_map(named);
        let named = text(record.value.or_else(header)).unwrap_or_default();
        let batch = named.split(':').next().and_then(|id| id.parse().ok());
        let batch = batch.ok_or("a value that nobody sent")?;
        let (offset, time, key) = (record.offset as u64, record.timestamp, text(record.key));
        Ok(AuditRecord { offset, time, key, is_tombstone, batch })
    })
    .collect()
}
