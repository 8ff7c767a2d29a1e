//! The events of offsets and groups: the entries of log 1. `docs/FORMAT.md` has their layout.

use std::collections::BTreeMap;

use hlc::Hlc;
use serde::{Deserialize, Serialize};

use crate::transaction_state::{StoredDecision, TransactionState};

/// The content of an entry of the groups' log, encoded with postcard. New variants go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupEvent {
    /// A group committed offsets.
    OffsetsCommitted {
        group: String,
        /// The offsets that it committed.
        offsets: Vec<OffsetCommit>,
    },
    /// Committed offsets were removed.
    OffsetsDeleted {
        group: String,
        /// Topics and partitions.
        partitions: Vec<(String, u32)>,
    },
    /// A group's membership changed. Its snapshot holds all its members.
    GroupSaved {
        group: String,
        /// Its coordinator's snapshot.
        snapshot: Vec<u8>,
    },
    /// A group was deleted, with its offsets.
    GroupDeleted { group: String },
    /// The state of offsets and groups at a moment, restated before all older entries are removed.
    ///
    /// It changes nothing: only the rebuild of a catalog begins with it.
    GroupsRestated {
        /// The bits of the bound of the moment's cut.
        horizon: u64,
        /// Some of the offsets.
        offsets: Vec<RestatedOffset>,
        /// Some of the groups.
        groups: Vec<RestatedGroup>,
        /// True for the last event of that moment.
        is_last: bool,
    },
    /// The committed offsets of a group were set, all at once: to a moment, or back to an earlier
    /// state.
    OffsetsSet {
        group: String,
        /// Its new offsets. Partition 2³²−1 stands for the partitions that the topic gets later.
        offsets: Vec<OffsetCommit>,
        /// Topics and partitions without an offset from now on.
        removed: Vec<(String, u32)>,
    },
    /// Committed offsets expired. Each one is removed only if it is old enough: one that was
    /// committed meanwhile stays.
    OffsetsExpired {
        group: String,
        /// Topics and partitions.
        partitions: Vec<(String, u32)>,
        /// The bits of a stamp: offsets committed at it or before are expired.
        until: u64,
        /// The time, in milliseconds since 1970, against which offsets with their own retention are
        /// checked.
        now_ms: u64,
    },
    /// A transactional id was made, or changed otherwise than by the end of a transaction.
    TransactionSaved { id: String, state: TransactionState },
    /// Offsets were added to an open transaction. They are committed when it is.
    TransactionOffsetsAdded { id: String, group: String, offsets: Vec<OffsetCommit> },
    /// A transaction was decided. Its markers, and the offsets that it commits, follow from this
    /// event alone.
    TransactionDecided {
        id: String,
        decision: StoredDecision,
        /// The transactional id from now on.
        state: TransactionState,
        /// The offsets that it commits, by group; none if it is aborted.
        offsets: Vec<(String, Vec<OffsetCommit>)>,
    },
    /// Transactional ids were removed, because they were not used for long.
    TransactionalIdsExpired { ids: Vec<String> },
    /// Transactional ids at the moment of the [`GroupEvent::GroupsRestated`] that follows.
    TransactionsRestated {
        /// The bits of the bound of the moment's cut.
        horizon: u64,
        transactions: Vec<RestatedTransaction>,
        /// Some of the offsets of open transactions.
        offsets: Vec<RestatedTransactionOffset>,
    },
    /// A group changed, of a kind whose members are stored one by one.
    GroupChanged {
        group: String,
        /// Its coordinator's snapshot, without the members.
        snapshot: Vec<u8>,
        /// The members that changed: each with its coordinator's snapshot of it, or `None` if it is
        /// gone.
        members: Vec<(String, Option<Vec<u8>>)>,
        /// True if all other members are gone.
        is_whole: bool,
    },
    /// Members at the moment of the [`GroupEvent::GroupsRestated`] that follows.
    MembersRestated {
        /// The bits of the bound of the moment's cut.
        horizon: u64,
        members: Vec<RestatedMember>,
    },
    /// The settings of a resource that is no topic and no broker changed.
    ConfigChanged {
        /// Kafka's number of its type: 16 for metrics of clients, 32 for a group.
        resource: u8,
        name: String,
        /// All settings, after the change.
        config: BTreeMap<String, String>,
    },
    /// Settings at the moment of the [`GroupEvent::GroupsRestated`] that follows.
    ConfigsRestated {
        /// The bits of the bound of the moment's cut.
        horizon: u64,
        configs: Vec<RestatedConfig>,
    },
}

/// In place of a partition: the partitions that a topic gets after its group was set to a moment.
///
/// `offset` is the number of partitions that the topic had then, and `metadata` the moment. Later
/// partitions are read from their beginning, because nothing of them existed at the moment.
pub(crate) const LATER_PARTITIONS: u32 = u32::MAX;

/// An offset that was committed before the moment of [`GroupEvent::GroupsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedOffset {
    pub group: String,
    /// The bits of the stamp at which it was committed.
    pub stamp: u64,
    /// The committed offset.
    pub commit: OffsetCommit,
}

/// A group as it was at the moment of [`GroupEvent::GroupsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedGroup {
    pub group: String,
    /// The bits of the stamp at which it was saved.
    pub stamp: u64,
    /// Its coordinator's snapshot.
    pub snapshot: Vec<u8>,
}

/// A member as it was at the moment of [`GroupEvent::MembersRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedMember {
    pub group: String,
    pub member: String,
    /// The bits of the stamp at which it was saved.
    pub stamp: u64,
    /// Its coordinator's snapshot of it.
    pub snapshot: Vec<u8>,
}

/// The settings of a resource at the moment of [`GroupEvent::ConfigsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedConfig {
    /// Kafka's number of its type.
    pub resource: u8,
    pub name: String,
    /// The bits of the stamp at which they were changed last.
    pub stamp: u64,
    pub config: BTreeMap<String, String>,
}

/// A transactional id as it was at the moment of [`GroupEvent::TransactionsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedTransaction {
    pub id: String,
    /// The bits of the stamp of its last event.
    pub stamp: u64,
    pub state: TransactionState,
    /// The bits of the stamp of its last decision, and the decision.
    pub decided: Option<(u64, StoredDecision)>,
}

/// An offset in an open transaction, at the moment of [`GroupEvent::TransactionsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedTransactionOffset {
    pub id: String,
    pub group: String,
    /// The bits of the stamp at which it was added.
    pub stamp: u64,
    pub commit: OffsetCommit,
}

/// One offset of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetCommit {
    pub topic: String,
    pub partition: u32,
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record read; -1 if not known.
    pub leader_epoch: i32,
    /// The metadata that the client stores with it.
    pub metadata: String,
    /// The time that it is kept after its commit, in milliseconds; `None` for the group's
    /// retention.
    pub retention_ms: Option<u64>,
}

impl GroupEvent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an event can be encoded")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<GroupEvent, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("decode group event: {error}"))
    }
}

/// The bound of the cut that an event of offsets and groups restates, if it is a part of a
/// restatement.
///
/// # Errors
/// It is no event.
pub fn restated_bound(payload: &[u8]) -> Result<Option<Hlc>, String> {
    Ok(match GroupEvent::decode(payload)? {
        GroupEvent::GroupsRestated { horizon, .. }
        | GroupEvent::TransactionsRestated { horizon, .. }
        | GroupEvent::MembersRestated { horizon, .. }
        | GroupEvent::ConfigsRestated { horizon, .. } => Some(Hlc::from_bits(horizon)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins down the bytes on disk.
    #[test]
    fn an_event_is_encoded_as_the_format_says() {
        let committed = GroupEvent::OffsetsCommitted {
            group: "g".into(),
            offsets: vec![OffsetCommit {
                topic: "t".into(),
                partition: 1,
                offset: 3,
                leader_epoch: -1,
                metadata: String::new(),
                retention_ms: Some(300),
            }],
        };
        assert_eq!(committed.encode(), [0, 1, b'g', 1, 1, b't', 1, 6, 1, 0, 1, 0xac, 0x02]);
        assert_eq!(GroupEvent::decode(&committed.encode()).as_ref(), Ok(&committed));
        let GroupEvent::OffsetsCommitted { group, mut offsets } = committed else { unreachable!() };
        let commit = offsets.remove(0);
        let restated = GroupEvent::GroupsRestated {
            horizon: 300,
            offsets: vec![RestatedOffset { group: group.clone(), stamp: 2, commit }],
            groups: vec![RestatedGroup { group, stamp: 3, snapshot: vec![9, 8] }],
            is_last: true,
        };
        let offset = [1, 1, b'g', 2, 1, b't', 1, 6, 1, 0, 1, 0xac, 0x02];
        let expected = [&[4, 0xac, 0x02][..], &offset, &[1, 1, b'g', 3, 2, 9, 8, 1]].concat();
        assert_eq!(restated.encode(), expected);
        assert_eq!(GroupEvent::decode(&expected), Ok(restated));
        let later = OffsetCommit {
            topic: "t".into(),
            partition: LATER_PARTITIONS,
            offset: 2,
            leader_epoch: -1,
            metadata: "s5".into(),
            retention_ms: None,
        };
        let set = GroupEvent::OffsetsSet {
            group: "g".into(),
            offsets: vec![later],
            removed: vec![("u".into(), 1)],
        };
        let offset = [1, b't', 0xff, 0xff, 0xff, 0xff, 0x0f, 4, 1, 2, b's', b'5', 0];
        let expected = [&[5, 1, b'g', 1][..], &offset, &[1, 1, b'u', 1]].concat();
        assert_eq!(set.encode(), expected);
        let partitions = vec![("u".into(), 1)];
        let group = "g".into();
        let expired = GroupEvent::OffsetsExpired { group, partitions, until: 300, now_ms: 5 };
        assert_eq!(expired.encode(), [6, 1, b'g', 1, 1, b'u', 1, 0xac, 0x02, 5]);
        let (group, member) = ("g".to_owned(), "m".to_owned());
        let members = vec![(member.clone(), Some(vec![7])), ("n".into(), None)];
        let changed = GroupEvent::GroupChanged {
            group: group.clone(),
            snapshot: vec![9],
            members,
            is_whole: true,
        };
        let expected = [12, 1, b'g', 1, 9, 2, 1, b'm', 1, 1, 7, 1, b'n', 0, 1];
        assert_eq!(changed.encode(), expected);
        let members = vec![RestatedMember { group, member, stamp: 3, snapshot: vec![7] }];
        let restated = GroupEvent::MembersRestated { horizon: 300, members };
        assert_eq!(restated.encode(), [13, 0xac, 0x02, 1, 1, b'g', 1, b'm', 3, 1, 7]);
        let (resource, name) = (32, "g".to_owned());
        let config = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let changed =
            GroupEvent::ConfigChanged { resource, name: name.clone(), config: config.clone() };
        assert_eq!(changed.encode(), [14, 32, 1, b'g', 1, 1, b'k', 1, b'v']);
        let configs = vec![RestatedConfig { resource, name, stamp: 3, config }];
        let restated = GroupEvent::ConfigsRestated { horizon: 300, configs };
        let expected = [15, 0xac, 0x02, 1, 32, 1, b'g', 3, 1, 1, b'k', 1, b'v'];
        assert_eq!(restated.encode(), expected);
    }

    #[test]
    fn bytes_that_are_no_event_are_an_error() {
        assert!(GroupEvent::decode(&[99]).is_err());
        assert!(GroupEvent::decode(&[0, 200]).is_err());
    }
}
