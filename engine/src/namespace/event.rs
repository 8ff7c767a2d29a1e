//! The events of the namespace: the entries of log 0. `docs/FORMAT.md` has their layout.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an entry of log 0 carries, encoded with postcard. New variants go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetadataEvent {
    TopicCreated {
        name: String,
        id: [u8; 16],
        /// The log of its partition 0; the others follow.
        first_log: u64,
        /// How many partitions it has.
        partitions: u32,
        /// The settings that are set on it.
        configs: BTreeMap<String, String>,
    },
    /// A topic was deleted; its past stays.
    TopicDeleted {
        /// Its id.
        id: [u8; 16],
    },
    /// A topic got more partitions.
    PartitionsAdded {
        id: [u8; 16],
        /// The log of the first new one; the others follow.
        first_log: u64,
        /// How many more.
        more: u32,
    },
    /// A topic's settings were changed.
    TopicConfigured {
        id: [u8; 16],
        /// All settings that are set on it now.
        configs: BTreeMap<String, String>,
    },
    /// Producer ids below this may have been allocated.
    ProducerIdsGranted {
        /// The bound.
        below: i64,
    },
    OffsetsCommitted {
        /// The group.
        group: String,
        /// What it committed.
        offsets: Vec<OffsetCommit>,
    },
    /// Committed offsets were removed.
    OffsetsDeleted {
        group: String,
        /// Topics and partitions.
        partitions: Vec<(String, u32)>,
    },
    /// A group's membership changed.
    GroupSaved {
        group: String,
        /// Its coordinator's snapshot.
        snapshot: Vec<u8>,
    },
    /// A group was deleted, with its offsets.
    GroupDeleted {
        /// The group.
        group: String,
    },
    /// A pin was set, or its expiry extended.
    PinSet {
        name: String,
        /// The bits of its cut's bound.
        at: u64,
        /// When it expires: milliseconds since 1970.
        expires_ms: u64,
        /// The ids of the topics that it covers; `None` for everything.
        topics: Option<Vec<[u8; 16]>>,
    },
    /// A pin was removed, or expired.
    PinRemoved {
        /// Its name.
        name: String,
    },
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
        /// Whether this is the last event of that moment.
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
    /// The state of topics and pins at a moment, restated before all older entries are removed.
    ///
    /// It changes nothing: only a start begins with it.
    NamespaceRestated {
        /// The bits of the bound of the moment's cut.
        horizon: u64,
        /// The index of this event in its restatement, from 0.
        part: u32,
        /// The lowest log number that no partition had.
        next_log: u64,
        /// Producer ids below this may have been allocated.
        producer_ids_below: i64,
        /// Some of the changes of topics, in their original order.
        changes: Vec<RestatedChange>,
        /// Some of the pins.
        pins: Vec<RestatedPin>,
        /// The time spans of removed topics: the bits of two stamps each, the creation of the first
        /// topic and the deletion of the last. All in the last event, by time.
        forgotten: Vec<(u64, u64)>,
        /// Whether it is the last of this restatement.
        is_last: bool,
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
}

/// In place of a partition: the partitions that a topic gets after its group was set to a moment.
///
/// `offset` is the number of partitions that the topic had then, and `metadata` the moment. Later
/// partitions are read from their beginning, because nothing of them existed at the moment.
pub(crate) const LATER_PARTITIONS: u32 = u32::MAX;

/// An offset that was committed before the moment of [`MetadataEvent::GroupsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedOffset {
    pub group: String,
    /// The bits of the stamp at which it was committed.
    pub stamp: u64,
    /// What was committed.
    pub commit: OffsetCommit,
}

/// A group as it was at the moment of [`MetadataEvent::GroupsRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedGroup {
    pub group: String,
    /// The bits of the stamp at which it was saved.
    pub stamp: u64,
    /// Its coordinator's snapshot.
    pub snapshot: Vec<u8>,
}

/// What happened to a topic before the moment of [`MetadataEvent::NamespaceRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedChange {
    /// The bits of the stamp at which it happened.
    pub stamp: u64,
    pub change: TopicChange,
}

/// A change of a topic: the first events of [`MetadataEvent`], with the same fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TopicChange {
    /// [`MetadataEvent::TopicCreated`].
    Created {
        name: String,
        id: [u8; 16],
        /// The log of its partition 0; the others follow.
        first_log: u64,
        /// How many partitions it has.
        partitions: u32,
        /// The settings that were set on it.
        configs: BTreeMap<String, String>,
    },
    /// [`MetadataEvent::TopicDeleted`].
    Deleted {
        /// Its id.
        id: [u8; 16],
    },
    /// [`MetadataEvent::PartitionsAdded`].
    PartitionsAdded {
        id: [u8; 16],
        /// The log of the first new one; the others follow.
        first_log: u64,
        /// How many more.
        more: u32,
    },
    /// [`MetadataEvent::TopicConfigured`].
    Configured {
        id: [u8; 16],
        /// All settings that were set on it.
        configs: BTreeMap<String, String>,
    },
}

impl From<TopicChange> for MetadataEvent {
    fn from(change: TopicChange) -> MetadataEvent {
        match change {
            TopicChange::Created { name, id, first_log, partitions, configs } => {
                MetadataEvent::TopicCreated { name, id, first_log, partitions, configs }
            }
            TopicChange::Deleted { id } => MetadataEvent::TopicDeleted { id },
            TopicChange::PartitionsAdded { id, first_log, more } => {
                MetadataEvent::PartitionsAdded { id, first_log, more }
            }
            TopicChange::Configured { id, configs } => {
                MetadataEvent::TopicConfigured { id, configs }
            }
        }
    }
}

/// A pin as it was at the moment of [`MetadataEvent::NamespaceRestated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestatedPin {
    pub name: String,
    /// The bits of its cut's bound.
    pub at: u64,
    /// When it expires: milliseconds since 1970.
    pub expires_ms: u64,
    /// The ids of the topics that it covers; `None` for everything.
    pub topics: Option<Vec<[u8; 16]>>,
    /// The bits of the stamp at which it was set.
    pub set: u64,
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
    /// How long it is kept after its commit, in milliseconds; `None` for the group's retention.
    pub retention_ms: Option<u64>,
}

/// Entries of this kind are replayed at every start.
pub(crate) const KIND_NAMESPACE: u8 = 1;
/// Entries of this kind are in the catalog. Only those that the catalog has not applied are
/// replayed.
pub(crate) const KIND_CATALOG: u8 = 2;
/// A batch of records.
pub(crate) const KIND_RECORDS: u8 = 16;

impl MetadataEvent {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            MetadataEvent::TopicCreated { .. }
            | MetadataEvent::TopicDeleted { .. }
            | MetadataEvent::PartitionsAdded { .. }
            | MetadataEvent::TopicConfigured { .. }
            | MetadataEvent::ProducerIdsGranted { .. }
            | MetadataEvent::PinSet { .. }
            | MetadataEvent::PinRemoved { .. }
            | MetadataEvent::NamespaceRestated { .. } => KIND_NAMESPACE,
            MetadataEvent::OffsetsCommitted { .. }
            | MetadataEvent::OffsetsDeleted { .. }
            | MetadataEvent::GroupSaved { .. }
            | MetadataEvent::GroupDeleted { .. }
            | MetadataEvent::GroupsRestated { .. }
            | MetadataEvent::OffsetsSet { .. }
            | MetadataEvent::OffsetsExpired { .. } => KIND_CATALOG,
        }
    }

    /// Whether the event leads to reclaimed space, sooner or later. Such an event must be accepted
    /// on a full disk too.
    pub(crate) fn reclaims_space(&self) -> bool {
        matches!(
            self,
            MetadataEvent::TopicDeleted { .. }
                | MetadataEvent::TopicConfigured { .. }
                | MetadataEvent::PinRemoved { .. }
        )
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an event can be encoded")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<MetadataEvent, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("decode namespace event: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins down the bytes on disk.
    #[test]
    fn an_event_is_encoded_as_the_format_says() {
        let created = MetadataEvent::TopicCreated {
            name: "t".into(),
            id: [7; 16],
            first_log: 300,
            partitions: 2,
            configs: BTreeMap::from([("k".into(), "v".into())]),
        };
        let mut expected = vec![0, 1, b't'];
        expected.extend([7; 16]);
        expected.extend([0xac, 0x02, 2, 1, 1, b'k', 1, b'v']);
        assert_eq!(created.encode(), expected);
        let committed = MetadataEvent::OffsetsCommitted {
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
        assert_eq!(committed.encode(), [5, 1, b'g', 1, 1, b't', 1, 6, 1, 0, 1, 0xac, 0x02]);
        assert_eq!(MetadataEvent::decode(&committed.encode()).as_ref(), Ok(&committed));
        let pinned =
            |topics| MetadataEvent::PinSet { name: "p".into(), at: 300, expires_ms: 5, topics };
        assert_eq!(pinned(None).encode(), [9, 1, b'p', 0xac, 0x02, 5, 0]);
        let mut expected = vec![9, 1, b'p', 0xac, 0x02, 5, 1, 1];
        expected.extend([7; 16]);
        assert_eq!(pinned(Some(vec![[7; 16]])).encode(), expected);
        assert_eq!(MetadataEvent::PinRemoved { name: "p".into() }.encode(), [10, 1, b'p']);
        let MetadataEvent::OffsetsCommitted { group, mut offsets } = committed else {
            unreachable!()
        };
        let commit = offsets.remove(0);
        let restated = MetadataEvent::GroupsRestated {
            horizon: 300,
            offsets: vec![RestatedOffset { group: group.clone(), stamp: 2, commit }],
            groups: vec![RestatedGroup { group, stamp: 3, snapshot: vec![9, 8] }],
            is_last: true,
        };
        let offset = [1, 1, b'g', 2, 1, b't', 1, 6, 1, 0, 1, 0xac, 0x02];
        let expected = [&[11, 0xac, 0x02][..], &offset, &[1, 1, b'g', 3, 2, 9, 8, 1]].concat();
        assert_eq!(restated.encode(), expected);
        assert_eq!(MetadataEvent::decode(&expected), Ok(restated));
        let later = OffsetCommit {
            topic: "t".into(),
            partition: LATER_PARTITIONS,
            offset: 2,
            leader_epoch: -1,
            metadata: "s5".into(),
            retention_ms: None,
        };
        let set = MetadataEvent::OffsetsSet {
            group: "g".into(),
            offsets: vec![later],
            removed: vec![("u".into(), 1)],
        };
        let offset = [1, b't', 0xff, 0xff, 0xff, 0xff, 0x0f, 4, 1, 2, b's', b'5', 0];
        let expected = [&[12, 1, b'g', 1][..], &offset, &[1, 1, b'u', 1]].concat();
        assert_eq!(set.encode(), expected);
        let partitions = vec![("u".into(), 1)];
        let group = "g".into();
        let expired = MetadataEvent::OffsetsExpired { group, partitions, until: 300, now_ms: 5 };
        assert_eq!(expired.encode(), [14, 1, b'g', 1, 1, b'u', 1, 0xac, 0x02, 5]);
    }

    #[test]
    fn a_restated_namespace_is_encoded_as_the_format_says() {
        let configs = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let (name, id) = ("t".to_owned(), [7; 16]);
        let changes = [
            TopicChange::Created {
                name,
                id,
                first_log: 300,
                partitions: 2,
                configs: configs.clone(),
            },
            TopicChange::Deleted { id },
            TopicChange::PartitionsAdded { id, first_log: 5, more: 6 },
            TopicChange::Configured { id, configs },
        ];
        // A change has the bytes of its event.
        let mut said: Vec<u8> = vec![4];
        for (stamp, change) in (1..).zip(&changes) {
            said.push(stamp);
            said.extend(MetadataEvent::from(change.clone()).encode());
        }
        let stamped = (1..).zip(changes);
        let restated = MetadataEvent::NamespaceRestated {
            horizon: 300,
            part: 1,
            next_log: 9,
            producer_ids_below: -2,
            changes: stamped.map(|(stamp, change)| RestatedChange { stamp, change }).collect(),
            pins: vec![RestatedPin {
                name: "p".into(),
                at: 300,
                expires_ms: 5,
                topics: Some(vec![[7; 16]]),
                set: 4,
            }],
            forgotten: vec![(1, 300)],
            is_last: true,
        };
        let mut expected = vec![13, 0xac, 0x02, 1, 9, 3];
        expected.extend(said);
        expected.extend([1, 1, b'p', 0xac, 0x02, 5, 1, 1]);
        expected.extend([7; 16]);
        expected.extend([4, 1, 1, 0xac, 0x02, 1]);
        assert_eq!(restated.encode(), expected);
        assert_eq!(MetadataEvent::decode(&expected), Ok(restated));
    }

    #[test]
    fn bytes_that_are_no_event_are_an_error() {
        assert!(MetadataEvent::decode(&[99]).is_err());
        assert!(MetadataEvent::decode(&[0, 200]).is_err());
    }
}
