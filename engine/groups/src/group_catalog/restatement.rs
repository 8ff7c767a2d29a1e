//! Restates offsets and groups at a moment, so that all older entries can be removed.

use std::collections::HashSet;

use engine_core::EngineError;
use hlc::{Cut, Hlc};
use storage::catalog::{CatalogError, CatalogWriteBatch};

use super::{
    CONFIGS, GROUPS, GroupCatalog, MEMBERS, OFFSETS, PENDING, PREFIXES, READERS,
    TRANSACTION_PREFIXES, group_key, parse_offset_key, put_offset, reader_key, unescape,
};
use crate::event::{GroupEvent, RestatedGroup, RestatedOffset};

/// The most that a value takes besides its strings: lengths, numbers and its stamp.
pub(super) const VALUE_BYTES: usize = 48;
/// The approximate excess of a restated value over its catalog entry: the stamp.
const STAMP_BYTES: usize = 8;

impl GroupCatalog {
    /// Passes the events that restate the state at `cut` to `emit`, in order. Each has at most
    /// `bytes_max`, or a single value. Everything that `cut` admits must have been applied.
    pub(crate) fn restate(
        &self,
        cut: Cut,
        bytes_max: usize,
        emit: &mut dyn FnMut(GroupEvent) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.restate_transactions(cut, bytes_max, emit)?;
        self.restate_members(cut, bytes_max, emit)?;
        self.restate_configs(cut, bytes_max, emit)?;
        let mut chunk = GroupRestatementChunk::default();
        for letter in PREFIXES {
            self.catalog.visit(&[*letter], cut, &mut |key, stamp, value| {
                let restated = RestatedItem::parse(key, stamp, value)?;
                if chunk.bytes > 0 && chunk.bytes + restated.bytes() > bytes_max {
                    emit(std::mem::take(&mut chunk).into_event(cut, false))?;
                }
                chunk.push(restated);
                Ok::<_, EngineError>(())
            })?;
        }
        emit(chunk.into_event(cut, true))
    }

    /// The approximate bytes of the events of [`GroupCatalog::restate`].
    pub(crate) fn restated_bytes(&self, cut: Cut) -> Result<u64, CatalogError> {
        let mut bytes = 0;
        for letter in PREFIXES.iter().chain(TRANSACTION_PREFIXES).chain(&[MEMBERS, CONFIGS]) {
            self.catalog.visit(&[*letter], cut, &mut |key, _, value| {
                bytes += (key.len() + value.len() + STAMP_BYTES) as u64;
                Ok::<_, CatalogError>(())
            })?;
        }
        Ok(bytes)
    }

    /// The names of the topics for which the catalog has any version of offsets, including
    /// tombstones.
    pub(crate) fn topics_with_versions(&self) -> Result<HashSet<String>, CatalogError> {
        let (mut topics, mut last): (HashSet<String>, Option<Vec<u8>>) = Default::default();
        while let Some(key) = self.catalog.next_key(&[OFFSETS], last.as_deref())? {
            topics.extend(parse_offset_key(&key).map(|(_, topic, _)| topic));
            last = Some(key);
        }
        Ok(topics)
    }

    /// Loads a restatement into a catalog that is being rebuilt.
    pub(crate) fn load_restatement(
        &self,
        offsets: &[RestatedOffset],
        groups: &[RestatedGroup],
    ) -> Result<(), CatalogError> {
        let mut changes = CatalogWriteBatch::default();
        for RestatedOffset { group, stamp, commit } in offsets {
            put_offset(&mut changes, group, commit, Hlc::from_bits(*stamp));
            changes.put_unversioned(&reader_key(&commit.topic, group), Some(&[]));
        }
        for RestatedGroup { group, stamp, snapshot } in groups {
            changes.put(&group_key(group), Hlc::from_bits(*stamp), Some(snapshot));
        }
        self.catalog.apply_unpositioned(changes)
    }

    /// Clears all offsets and groups, and the position up to which the journal was applied.
    pub(crate) fn clear(&self) -> Result<(), CatalogError> {
        self.catalog.reset_applied(
            &[PREFIXES, TRANSACTION_PREFIXES, &[MEMBERS, CONFIGS, READERS, PENDING]].concat(),
        )
    }

    /// Removes versions that no cut from `horizon` on shows; returns how many.
    pub(crate) fn prune(&self, horizon: Hlc) -> Result<u64, CatalogError> {
        let prefixes = PREFIXES.iter().chain(TRANSACTION_PREFIXES).chain(&[MEMBERS, CONFIGS]);
        prefixes.map(|letter| self.catalog.prune(&[*letter], horizon)).sum()
    }
}

enum RestatedItem {
    Offset(RestatedOffset),
    Group(RestatedGroup),
}

impl RestatedItem {
    fn parse(key: &[u8], stamp: Hlc, value: &[u8]) -> Result<RestatedItem, EngineError> {
        let stamp = stamp.bits();
        let corrupt =
            || EngineError::Corrupt(format!("cannot decode the catalog's value of key {key:?}"));
        match key.first() {
            Some(&OFFSETS) => {
                let (group, topic, partition) = parse_offset_key(key).ok_or_else(corrupt)?;
                let committed: super::CommittedOffset =
                    postcard::from_bytes(value).map_err(|_| corrupt())?;
                let commit = committed.into_commit(topic, partition);
                Ok(RestatedItem::Offset(RestatedOffset { group, stamp, commit }))
            }
            Some(&GROUPS) => {
                let (group, snapshot) = (unescape(&key[1..]), value.to_vec());
                Ok(RestatedItem::Group(RestatedGroup { group, stamp, snapshot }))
            }
            _ => Err(corrupt()),
        }
    }

    fn bytes(&self) -> usize {
        let texts = match self {
            RestatedItem::Offset(RestatedOffset { group, commit, .. }) => {
                group.len() + commit.topic.len() + commit.metadata.len()
            }
            RestatedItem::Group(RestatedGroup { group, snapshot, .. }) => {
                group.len() + snapshot.len()
            }
        };
        texts + VALUE_BYTES
    }
}

/// The content of one event.
#[derive(Default)]
struct GroupRestatementChunk {
    offsets: Vec<RestatedOffset>,
    groups: Vec<RestatedGroup>,
    bytes: usize,
}

impl GroupRestatementChunk {
    fn push(&mut self, restated: RestatedItem) {
        self.bytes += restated.bytes();
        match restated {
            RestatedItem::Offset(offset) => self.offsets.push(offset),
            RestatedItem::Group(group) => self.groups.push(group),
        }
    }

    fn into_event(self, cut: Cut, is_last: bool) -> GroupEvent {
        let GroupRestatementChunk { offsets, groups, .. } = self;
        GroupEvent::GroupsRestated { horizon: cut.bound().bits(), offsets, groups, is_last }
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;
    use storage::catalog::{AppliedPosition, Catalog};

    use super::*;
    use crate::event::{LATER_PARTITIONS, OffsetCommit};

    fn at(ms: u64) -> Hlc {
        Hlc::at(SysTime(ms))
    }

    fn groups() -> GroupCatalog {
        GroupCatalog::new(std::sync::Arc::new(Catalog::temporary().unwrap()))
    }

    fn filled() -> GroupCatalog {
        let groups = groups();
        let commit = |topic: &str, offset| OffsetCommit {
            topic: topic.to_owned(),
            partition: 3,
            offset,
            leader_epoch: -1,
            metadata: "x".repeat(offset as usize),
            retention_ms: (offset == 7).then_some(u64::MAX),
        };
        let saved = |snapshot| GroupEvent::GroupSaved { group: "g\0".to_owned(), snapshot };
        let committed = |topic, offset| GroupEvent::OffsetsCommitted {
            group: "g\u{1}".to_owned(),
            offsets: vec![commit(topic, offset)],
        };
        let events = [
            committed("t", 1),
            committed("u\0", 300),
            saved(vec![1]),
            committed("t", 2),
            GroupEvent::OffsetsDeleted {
                group: "g\u{1}".to_owned(),
                partitions: vec![("u\0".into(), 3)],
            },
            saved(vec![0; 500]),
            GroupEvent::OffsetsSet {
                group: "g\u{1}".to_owned(),
                offsets: vec![
                    OffsetCommit { partition: LATER_PARTITIONS, ..commit("t", 4) },
                    commit("t", 7),
                ],
                removed: Vec::new(),
            },
        ];
        for (nth, event) in events.iter().enumerate() {
            let stamp = at(10 * (nth as u64 + 1));
            groups.apply(event, AppliedPosition { position: 1, stamp }).unwrap();
        }
        groups
    }

    fn restated(groups: &GroupCatalog, cut: Cut, bytes_max: usize) -> Vec<GroupEvent> {
        let mut events = Vec::new();
        let emit = &mut |event| {
            events.push(event);
            Ok(())
        };
        groups.restate(cut, bytes_max, emit).unwrap();
        events
    }

    #[test]
    fn what_was_restated_reads_as_what_was_there_with_the_stamps_of_then() {
        let filled = filled();
        for ms in [0, 11, 31, 45, 55, 65, 99] {
            let cut = Cut::before(SysTime(ms));
            for bytes_max in [0, 300, 1 << 20] {
                let restored = groups();
                for event in restated(&filled, cut, bytes_max) {
                    let GroupEvent::GroupsRestated { horizon, offsets, groups, .. } = event else {
                        panic!("{event:?}")
                    };
                    assert_eq!(horizon, cut.bound().bits());
                    restored.load_restatement(&offsets, &groups).unwrap();
                }
                assert_eq!(
                    restored.stored_offsets(None, Cut::ALL).unwrap(),
                    filled.stored_offsets(None, cut).unwrap()
                );
                assert_eq!(restored.snapshots(Cut::ALL).unwrap(), filled.snapshots(cut).unwrap());
                assert_eq!(restored.catalog().applied().unwrap(), None);
            }
        }
    }

    #[test]
    fn an_event_is_no_longer_than_allowed_but_for_one_value_and_the_last_says_so() {
        let (filled, cut) = (filled(), Cut::ALL);
        for bytes_max in [0, 100, 400, 1 << 20] {
            let events = restated(&filled, cut, bytes_max);
            for (nth, event) in events.iter().enumerate() {
                let GroupEvent::GroupsRestated { offsets, groups, is_last, .. } = event else {
                    panic!("{event:?}")
                };
                assert_eq!(*is_last, nth + 1 == events.len());
                let values = offsets.len() + groups.len();
                assert!(event.encode().len() <= bytes_max || values == 1, "{bytes_max}: {event:?}");
            }
            let bytes: usize = events.iter().map(|event| event.encode().len()).sum();
            let counted = filled.restated_bytes(cut).unwrap() as usize;
            assert!(counted.abs_diff(bytes) <= 20 * events.len(), "{counted} {bytes}");
        }
    }
}
