//! Committed offsets and the state of groups, present and past, as versions in the catalog.

mod comparison;
mod configs;
mod expiry;
mod members;
mod restatement;
mod transactions;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use hlc::{Cut, Hlc, SysTime};
use serde::{Deserialize, Serialize};
use storage::catalog::{
    AppliedPosition, Catalog, CatalogError, CatalogWriteBatch, KeyVersion, escape, unescape,
};

use crate::event::{GroupEvent, LATER_PARTITIONS, OffsetCommit};
use configs::put_config;
use members::put_changed_group;
use transactions::{put_transaction_offsets, transaction_key};

pub use comparison::{GroupDifference, KeyComparison, StoredGroup};
pub use configs::ResourceConfig;
pub use expiry::{ExpiredOffset, ExpiredOffsets, OffsetExpiry};
pub use members::StoredMembers;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record read; -1 if not known.
    pub leader_epoch: i32,
    /// The metadata that the client stored with it.
    pub metadata: String,
    /// The time that it is kept after its commit, in milliseconds; `None` for the group's
    /// retention.
    pub retention_ms: Option<u64>,
}

impl CommittedOffset {
    /// The commit of it for a partition.
    pub(crate) fn into_commit(self, topic: String, partition: u32) -> OffsetCommit {
        let CommittedOffset { offset, leader_epoch, metadata, retention_ms } = self;
        OffsetCommit { topic, partition, offset, leader_epoch, metadata, retention_ms }
    }
}

/// A committed offset with its group and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOffset {
    pub group: String,
    pub topic: String,
    pub partition: u32,
    pub committed: CommittedOffset,
    /// The stamp of the commit.
    pub stamp: Hlc,
}

/// The committed offsets of a group for a partition, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetDifference {
    pub group: String,
    pub topic: String,
    pub partition: u32,
    /// The commit at the earlier end.
    pub before: Option<CommittedOffset>,
    /// The commit at the later end.
    pub after: Option<CommittedOffset>,
}

/// Separates the parts of a key. [`escape`] produces no such bytes.
const SEPARATOR: &[u8] = &[SEPARATOR_MARK, SEPARATOR_KIND];
const SEPARATOR_MARK: u8 = 1;
const SEPARATOR_KIND: u8 = 3;
const OFFSETS: u8 = b'o';
const GROUPS: u8 = b'g';
/// The members that are stored one by one.
const MEMBERS: u8 = b'm';
/// The settings of resources that are no topics and no brokers.
const CONFIGS: u8 = b'c';
/// The groups that may hold offsets of a topic: all that do, and perhaps others.
const READERS: u8 = b'r';
/// The key prefixes of everything of groups that has versions.
const PREFIXES: &[u8] = &[OFFSETS, GROUPS];
const TRANSACTIONS: u8 = b't';
/// The offsets of open transactions.
const TRANSACTION_OFFSETS: u8 = b'u';
/// The open transactions that may hold an offset of a partition: all that do, and perhaps others.
const PENDING: u8 = b'p';
/// The key prefixes of everything of transactions.
const TRANSACTION_PREFIXES: &[u8] = &[TRANSACTIONS, TRANSACTION_OFFSETS];

fn offsets_prefix(group: Option<&str>) -> Vec<u8> {
    let mut key = vec![OFFSETS];
    if let Some(group) = group {
        escape(group, &mut key);
        key.extend_from_slice(SEPARATOR);
    }
    key
}

fn offset_key(group: &str, topic: &str, partition: u32) -> Vec<u8> {
    let mut key = topic_offsets_prefix(group, topic);
    key.extend_from_slice(format!("{partition:08x}").as_bytes());
    key
}

fn group_key(group: &str) -> Vec<u8> {
    let mut key = vec![GROUPS];
    escape(group, &mut key);
    key
}

fn parse_offset_key(key: &[u8]) -> Option<(String, String, u32)> {
    let rest = key.strip_prefix(&[OFFSETS])?;
    let (group, rest) = split_at_separator(rest)?;
    let (topic, partition) = split_at_separator(rest)?;
    let partition = u32::from_str_radix(std::str::from_utf8(partition).ok()?, 16).ok()?;
    Some((unescape(group), unescape(topic), partition))
}

/// The bytes before the first separator, and those after it. The second byte of an escaped pair
/// does not begin a separator.
fn split_at_separator(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        match bytes.get(at..)? {
            [SEPARATOR_MARK, SEPARATOR_KIND, rest @ ..] => return Some((&bytes[..at], rest)),
            [SEPARATOR_MARK, _, ..] => at += 2,
            [_, ..] => at += 1,
            [] => return None,
        }
    }
}

fn topic_offsets_prefix(group: &str, topic: &str) -> Vec<u8> {
    let mut key = offsets_prefix(Some(group));
    escape(topic, &mut key);
    key.extend_from_slice(SEPARATOR);
    key
}

fn readers_prefix(topic: &str) -> Vec<u8> {
    let mut key = vec![READERS];
    escape(topic, &mut key);
    key.extend_from_slice(SEPARATOR);
    key
}

fn reader_key(topic: &str, group: &str) -> Vec<u8> {
    let mut key = readers_prefix(topic);
    escape(group, &mut key);
    key
}

fn put_offset(changes: &mut CatalogWriteBatch, group: &str, commit: &OffsetCommit, stamp: Hlc) {
    let committed = CommittedOffset {
        offset: commit.offset,
        leader_epoch: commit.leader_epoch,
        metadata: commit.metadata.clone(),
        retention_ms: commit.retention_ms,
    };
    let value = postcard::to_stdvec(&committed).expect("an offset can be encoded");
    let key = offset_key(group, &commit.topic, commit.partition);
    changes.put(&key, stamp, Some(&value));
}

fn topics_of(offsets: &[OffsetCommit]) -> BTreeSet<&str> {
    offsets.iter().map(|commit| commit.topic.as_str()).collect()
}

fn read_offsets(versions: Vec<KeyVersion>) -> Vec<GroupOffset> {
    let read = |(key, stamp, value): KeyVersion| {
        let (group, topic, partition) = parse_offset_key(&key)?;
        let committed = postcard::from_bytes(&value).ok()?;
        Some(GroupOffset { group, topic, partition, committed, stamp })
    };
    versions.into_iter().filter_map(read).collect()
}

/// The state of all groups, in one catalog.
pub(crate) struct GroupCatalog {
    catalog: Arc<Catalog>,
}

impl GroupCatalog {
    pub(crate) fn new(catalog: Arc<Catalog>) -> GroupCatalog {
        GroupCatalog { catalog }
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Applies an event. An event removes only what was committed before it, even if the catalog
    /// already holds later versions.
    pub(crate) fn apply(
        &self,
        event: &GroupEvent,
        at: AppliedPosition,
    ) -> Result<(), CatalogError> {
        let stamp = at.stamp;
        let mut changes = CatalogWriteBatch::default();
        match event {
            GroupEvent::OffsetsCommitted { group, offsets } => {
                self.supersede_offsets(&mut changes, group, offsets, stamp)?;
                self.put_offsets(&mut changes, group, offsets, stamp)?;
            }
            GroupEvent::OffsetsDeleted { group, partitions } => {
                self.supersede_partitions(&mut changes, group, partitions, stamp)?;
                self.remove_offsets(&mut changes, group, partitions, None, stamp)?;
            }
            GroupEvent::OffsetsSet { group, offsets, removed } => {
                self.supersede_partitions(&mut changes, group, removed, stamp)?;
                self.supersede_offsets(&mut changes, group, offsets, stamp)?;
                self.remove_offsets(&mut changes, group, removed, None, stamp)?;
                self.put_offsets(&mut changes, group, offsets, stamp)?;
                // The removals may have deleted the entry that the group reads a topic.
                for topic in topics_of(offsets) {
                    changes.put_unversioned(&reader_key(topic, group), Some(&[]));
                }
            }
            GroupEvent::OffsetsExpired { group, partitions, until, now_ms } => {
                let expiry = OffsetExpiry { until: Hlc::from_bits(*until), now: SysTime(*now_ms) };
                self.remove_offsets(&mut changes, group, partitions, Some(expiry), stamp)?;
            }
            GroupEvent::GroupSaved { group, snapshot } => {
                self.remove_members(&mut changes, group, stamp)?;
                changes.put(&group_key(group), stamp, Some(snapshot));
            }
            GroupEvent::GroupChanged { group, snapshot, members, is_whole } => {
                if *is_whole {
                    self.remove_members(&mut changes, group, stamp)?;
                }
                put_changed_group(&mut changes, group, snapshot, members, stamp);
            }
            GroupEvent::GroupDeleted { group } => {
                self.supersede_group(&mut changes, group, stamp)?;
                self.remove_members(&mut changes, group, stamp)?;
                for (key, ..) in
                    self.catalog.scan(&offsets_prefix(Some(group)), Cut::below(stamp))?
                {
                    if let Some((_, topic, _)) = parse_offset_key(&key) {
                        changes.put_unversioned(&reader_key(&topic, group), None);
                    }
                    changes.put(&key, stamp, None);
                }
                changes.put(&group_key(group), stamp, None);
            }
            GroupEvent::TransactionSaved { id, state } => {
                self.save_transaction(&mut changes, id, state, stamp)?;
            }
            GroupEvent::TransactionOffsetsAdded { id, group, offsets } => {
                put_transaction_offsets(&mut changes, id, group, offsets, stamp);
            }
            GroupEvent::TransactionDecided { id, decision, state, offsets } => {
                self.commit_transaction_offsets(&mut changes, id, offsets, stamp)?;
                self.decide_transaction(&mut changes, id, *decision, state, stamp)?;
            }
            GroupEvent::TransactionalIdsExpired { ids } => {
                ids.iter().for_each(|id| changes.put(&transaction_key(id), stamp, None));
            }
            GroupEvent::ConfigChanged { resource, name, config } => {
                put_config(&mut changes, *resource, name, config, stamp);
            }
            GroupEvent::GroupsRestated { .. }
            | GroupEvent::ConfigsRestated { .. }
            | GroupEvent::TransactionsRestated { .. }
            | GroupEvent::MembersRestated { .. } => {}
        }
        self.catalog.apply(changes, at)
    }

    /// Applies the deletion of a topic: it ends the offsets that were committed for it before.
    pub(crate) fn apply_topic_deletion(
        &self,
        topic: &str,
        at: AppliedPosition,
    ) -> Result<(), CatalogError> {
        let mut changes = CatalogWriteBatch::default();
        self.remove_topic(&mut changes, topic, at.stamp)?;
        self.catalog.apply(changes, at)
    }

    fn put_offsets(
        &self,
        changes: &mut CatalogWriteBatch,
        group: &str,
        offsets: &[OffsetCommit],
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        for commit in offsets {
            put_offset(changes, group, commit, stamp);
        }
        for topic in topics_of(offsets) {
            let reader = reader_key(topic, group);
            // It usually exists, and a read is cheaper than a write.
            if self.catalog.get(&reader, Cut::ALL)?.is_none() {
                changes.put_unversioned(&reader, Some(&[]));
            }
        }
        Ok(())
    }

    /// Removes offsets: all the named ones, or only the expired ones of them.
    fn remove_offsets(
        &self,
        changes: &mut CatalogWriteBatch,
        group: &str,
        partitions: &[(String, u32)],
        expiry: Option<OffsetExpiry>,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        let mut by_topic = BTreeMap::<&str, HashSet<u32>>::new();
        for (topic, partition) in partitions {
            by_topic.entry(topic).or_default().insert(*partition);
        }
        for (topic, named_partitions) in by_topic {
            let offsets = self.stored_topic_offsets(group, topic, Cut::below(stamp))?;
            let removed = match expiry {
                Some(expiry) => expiry.expired_among(&offsets, &named_partitions),
                None => named_partitions,
            };
            for partition in &removed {
                changes.put(&offset_key(group, topic, *partition), stamp, None);
            }
            // A group without offsets for the topic does not read it any more.
            if offsets.iter().all(|offset| removed.contains(&offset.partition)) {
                changes.put_unversioned(&reader_key(topic, group), None);
            }
        }
        Ok(())
    }

    /// Removes the offsets of a topic from all groups. The cost depends only on the offsets of that
    /// topic.
    fn remove_topic(
        &self,
        changes: &mut CatalogWriteBatch,
        topic: &str,
        stamp: Hlc,
    ) -> Result<(), CatalogError> {
        let readers = readers_prefix(topic);
        for (reader, ..) in self.catalog.scan(&readers, Cut::ALL)? {
            let group = unescape(&reader[readers.len()..]);
            let offsets = topic_offsets_prefix(&group, topic);
            for (key, ..) in self.catalog.scan(&offsets, Cut::below(stamp))? {
                changes.put(&key, stamp, None);
            }
            changes.put_unversioned(&reader, None);
        }
        Ok(())
    }

    pub(crate) fn committed_offset(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
        cut: Cut,
    ) -> Result<Option<CommittedOffset>, CatalogError> {
        let stored = self.catalog.get(&offset_key(group, topic, partition), cut)?;
        Ok(stored.and_then(|(_, value)| postcard::from_bytes(&value).ok()))
    }

    /// All offsets of a group, or of all groups.
    pub(crate) fn offsets(
        &self,
        group: Option<&str>,
        cut: Cut,
    ) -> Result<Vec<GroupOffset>, CatalogError> {
        let mut offsets = self.stored_offsets(group, cut)?;
        offsets.retain(|offset| offset.partition != LATER_PARTITIONS);
        Ok(offsets)
    }

    /// All offsets, including the entries for [`LATER_PARTITIONS`].
    pub(crate) fn stored_offsets(
        &self,
        group: Option<&str>,
        cut: Cut,
    ) -> Result<Vec<GroupOffset>, CatalogError> {
        Ok(read_offsets(self.catalog.scan(&offsets_prefix(group), cut)?))
    }

    /// The offsets of up to `count` keys behind `after`, and the last of these keys, if there are
    /// so many.
    pub(crate) fn stored_offsets_after(
        &self,
        after: Option<&[u8]>,
        count: usize,
        cut: Cut,
    ) -> Result<(Vec<GroupOffset>, Option<Vec<u8>>), CatalogError> {
        let prefix = offsets_prefix(None);
        let (mut versions, mut last) = (Vec::new(), after.map(<[u8]>::to_vec));
        for _ in 0..count {
            let Some(key) = self.catalog.next_key(&prefix, last.as_deref())? else {
                return Ok((read_offsets(versions), None));
            };
            if let Some((stamp, value)) = self.catalog.get(&key, cut)? {
                versions.push((key.clone(), stamp, value));
            }
            last = Some(key);
        }
        Ok((read_offsets(versions), last))
    }

    pub(crate) fn has_offsets(&self, group: &str) -> Result<bool, CatalogError> {
        self.catalog.has_any(&offsets_prefix(Some(group)), Cut::ALL)
    }

    fn stored_topic_offsets(
        &self,
        group: &str,
        topic: &str,
        cut: Cut,
    ) -> Result<Vec<GroupOffset>, CatalogError> {
        Ok(read_offsets(self.catalog.scan(&topic_offsets_prefix(group, topic), cut)?))
    }

    /// A group's snapshot, and when it was saved.
    pub(crate) fn snapshot(
        &self,
        group: &str,
        cut: Cut,
    ) -> Result<Option<(Hlc, Vec<u8>)>, CatalogError> {
        self.catalog.get(&group_key(group), cut)
    }

    /// The snapshots of all groups, and when each was saved.
    pub(crate) fn snapshots_with_stamps(
        &self,
        cut: Cut,
    ) -> Result<Vec<(String, Hlc, Vec<u8>)>, CatalogError> {
        let versions = self.catalog.scan(&[GROUPS], cut)?;
        let decode =
            |(key, stamp, value): (Vec<u8>, Hlc, Vec<u8>)| (unescape(&key[1..]), stamp, value);
        Ok(versions.into_iter().map(decode).collect())
    }

    pub(crate) fn snapshots(&self, cut: Cut) -> Result<Vec<(String, Vec<u8>)>, CatalogError> {
        let snapshots = self.snapshots_with_stamps(cut)?;
        Ok(snapshots.into_iter().map(|(group, _, snapshot)| (group, snapshot)).collect())
    }
}
