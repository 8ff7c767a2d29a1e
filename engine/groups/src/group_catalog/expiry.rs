//! Expiry of committed offsets.

use std::collections::HashSet;
use std::time::Duration;

use hlc::{Cut, Hlc, SysTime};
use storage::catalog::CatalogError;

use super::{
    GroupCatalog, GroupOffset, LATER_PARTITIONS, OFFSETS, offsets_prefix, parse_offset_key,
    topic_offsets_prefix,
};

/// The approximate number of expired offsets that are found at once; a topic with more yields all
/// of its own.
const EXPIRED_BATCH_MAX: usize = 1000;
/// The number of topics that are scanned for them at once.
const TOPIC_BATCH_MAX: usize = 1000;

/// The limits by which an offset is expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetExpiry {
    /// Offsets committed at this stamp or before are expired.
    pub until: Hlc,
    /// The time against which an offset with its own retention is checked.
    pub now: SysTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredOffset {
    pub topic: String,
    pub partition: u32,
    /// True if it was committed with its own retention. Always false where the group was set to a
    /// moment: all offsets of the topic expire together then.
    pub has_own_retention: bool,
}

/// Expired offsets of some topics of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredOffsets {
    /// By topic and partition; complete for each topic.
    pub offsets: Vec<ExpiredOffset>,
    /// The last topic that was scanned.
    pub last: String,
}

impl OffsetExpiry {
    /// The expiry for a retention at the time `now`.
    pub fn new(now: SysTime, retention: Duration) -> OffsetExpiry {
        // This includes all stamps of that millisecond.
        OffsetExpiry { until: Hlc::new(now.saturating_sub(retention), u16::MAX), now }
    }

    /// Returns true if something saved at that stamp is expired.
    pub fn is_expired(&self, saved: Hlc) -> bool {
        saved <= self.until
    }

    fn has_expired(&self, offset: &GroupOffset) -> bool {
        match offset.committed.retention_ms {
            Some(own_ms) => {
                offset.stamp.time().saturating_add(Duration::from_millis(own_ms)) <= self.now
            }
            None => self.is_expired(offset.stamp),
        }
    }

    /// The expired offsets of one topic. Where the group was set to a moment, the offsets together
    /// say where it continues, so they expire together.
    fn expired_of_topic(self, offsets: &[GroupOffset]) -> impl Iterator<Item = &GroupOffset> {
        let stays =
            is_set_to_moment(offsets) && !offsets.iter().all(|offset| self.has_expired(offset));
        offsets.iter().filter(move |offset| !stays && self.has_expired(offset))
    }

    /// The expired partitions of one topic among the named ones. Offsets that expire together are
    /// removed together: if one of them is not named, none is removed.
    pub(super) fn expired_among(
        self,
        offsets: &[GroupOffset],
        partitions: &HashSet<u32>,
    ) -> HashSet<u32> {
        if is_set_to_moment(offsets)
            && !offsets.iter().all(|offset| partitions.contains(&offset.partition))
        {
            return HashSet::new();
        }
        let old = self.expired_of_topic(offsets).map(|offset| offset.partition);
        old.filter(|partition| partitions.contains(partition)).collect()
    }
}

/// Returns true if the group was set to a moment in the topic of these offsets.
fn is_set_to_moment(offsets: &[GroupOffset]) -> bool {
    offsets.iter().any(|offset| offset.partition == LATER_PARTITIONS)
}

impl GroupCatalog {
    /// The first group after `last` that has an offset, or had one that can still be read. Starts
    /// with the first group if `last` is `None`.
    pub(crate) fn next_group(&self, last: Option<&str>) -> Result<Option<String>, CatalogError> {
        let last = last.map(|group| end_of_prefix(offsets_prefix(Some(group))));
        Ok(self.next_offset(&[OFFSETS], last)?.map(|(group, ..)| group))
    }

    /// The first offset after `last` whose key begins with `prefix`: its group, topic and
    /// partition. Starts with the first if `last` is `None`. Skips a key that is not of an offset:
    /// it must not hide the keys after it.
    fn next_offset(
        &self,
        prefix: &[u8],
        mut last: Option<Vec<u8>>,
    ) -> Result<Option<(String, String, u32)>, CatalogError> {
        while let Some(key) = self.catalog.next_key(prefix, last.as_deref())? {
            if let Some(fields) = parse_offset_key(&key) {
                return Ok(Some(fields));
            }
            last = Some(key);
        }
        Ok(None)
    }

    /// Expired offsets of the topics of a group after `last`, by name. Returns `None` after the
    /// last topic.
    pub(crate) fn expired_offsets(
        &self,
        group: &str,
        last: Option<&str>,
        expiry: OffsetExpiry,
    ) -> Result<Option<ExpiredOffsets>, CatalogError> {
        let (mut last, mut offsets) = (last.map(str::to_owned), Vec::new());
        for looked_at in 0.. {
            let from =
                last.as_deref().map(|topic| end_of_prefix(topic_offsets_prefix(group, topic)));
            let Some((_, topic, _)) = self.next_offset(&offsets_prefix(Some(group)), from)? else {
                if looked_at == 0 {
                    return Ok(None);
                }
                return Ok(last.map(|last| ExpiredOffsets { offsets, last }));
            };
            let topic_offsets = self.stored_topic_offsets(group, &topic, Cut::ALL)?;
            let is_one = is_set_to_moment(&topic_offsets);
            offsets.extend(expiry.expired_of_topic(&topic_offsets).map(|old| ExpiredOffset {
                topic: old.topic.clone(),
                partition: old.partition,
                has_own_retention: old.committed.retention_ms.is_some() && !is_one,
            }));
            last = Some(topic);
            if offsets.len() >= EXPIRED_BATCH_MAX || looked_at + 1 >= TOPIC_BATCH_MAX {
                break;
            }
        }
        Ok(last.map(|last| ExpiredOffsets { offsets, last }))
    }
}

/// The end of all keys with this prefix: no key of an offset continues with this byte.
fn end_of_prefix(mut prefix: Vec<u8>) -> Vec<u8> {
    prefix.push(u8::MAX);
    prefix
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use storage::catalog::{AppliedPosition, Catalog};

    use super::super::readers_prefix;
    use super::*;
    use crate::event::{GroupEvent, OffsetCommit};

    const GROUP: &str = "g";

    fn at(ms: u64) -> Hlc {
        Hlc::at(SysTime(ms))
    }

    fn position(ms: u64) -> AppliedPosition {
        AppliedPosition { position: 0, stamp: at(ms) }
    }

    fn groups() -> GroupCatalog {
        GroupCatalog::new(Arc::new(Catalog::temporary().unwrap()))
    }

    fn commit(groups: &GroupCatalog, ms: u64, partitions: &[(u32, Option<u64>)]) {
        let commit = |(partition, retention_ms): &(u32, Option<u64>)| OffsetCommit {
            topic: "t".into(),
            partition: *partition,
            offset: 1,
            leader_epoch: -1,
            metadata: String::new(),
            retention_ms: *retention_ms,
        };
        let offsets = partitions.iter().map(commit).collect();
        let event = GroupEvent::OffsetsCommitted { group: GROUP.into(), offsets };
        groups.apply(&event, position(ms)).unwrap();
    }

    fn expire(
        groups: &GroupCatalog,
        ms: u64,
        until: u64,
        now: u64,
        partitions: &[u32],
    ) -> Vec<u32> {
        let partitions = partitions.iter().map(|partition| ("t".into(), *partition)).collect();
        let (group, until) = (GROUP.into(), at(until).bits());
        let event = GroupEvent::OffsetsExpired { group, partitions, until, now_ms: now };
        groups.apply(&event, position(ms)).unwrap();
        held(groups)
    }

    fn held(groups: &GroupCatalog) -> Vec<u32> {
        let offsets = groups.stored_offsets(Some(GROUP), Cut::ALL).unwrap();
        offsets.into_iter().map(|offset| offset.partition).collect()
    }

    fn is_read(groups: &GroupCatalog) -> bool {
        groups.catalog().has_any(&readers_prefix("t"), Cut::ALL).unwrap()
    }

    #[test]
    fn what_is_named_goes_if_it_is_old_by_its_group_s_time_or_its_own() {
        let groups = groups();
        commit(&groups, 10, &[(0, None), (1, Some(5)), (2, Some(100)), (3, None)]);
        commit(&groups, 20, &[(4, None), (5, Some(5))]);
        assert_eq!(expire(&groups, 30, 10, 15, &[0, 1, 2, 4, 5, 9]), [2, 3, 4, 5]);
        assert_eq!(expire(&groups, 31, 9, 24, &[2, 3, 4, 5]), [2, 3, 4, 5]);
        assert_eq!(expire(&groups, 32, 19, 25, &[2, 3, 4, 5]), [2, 4]);
        assert_eq!(expire(&groups, 33, 20, 109, &[2, 4]), [2]);
        assert!(is_read(&groups));
        assert_eq!(expire(&groups, 34, 20, 110, &[2]), [0; 0]);
    }

    /// Together they say where the group continues; some of them alone would say something else.
    #[test]
    fn offsets_of_a_moment_go_together_or_not_at_all() {
        let groups = groups();
        commit(&groups, 10, &[(0, None), (1, None), (LATER_PARTITIONS, None)]);
        commit(&groups, 20, &[(1, None)]);
        let all = [0, 1, LATER_PARTITIONS];
        assert_eq!(expire(&groups, 30, 19, 30, &all), all);
        let expired_count = |until| {
            let expiry = OffsetExpiry { until: at(until), now: SysTime(0) };
            groups.expired_offsets(GROUP, None, expiry).unwrap().unwrap().offsets.len()
        };
        assert_eq!((expired_count(19), expired_count(20)), (0, 3));
        assert_eq!(expire(&groups, 31, 20, 30, &all), [0; 0]);
    }

    /// A client may commit with its own retention, for a partition that was added after the moment.
    #[test]
    fn a_part_of_the_offsets_of_a_moment_is_never_removed() {
        let groups = groups();
        commit(&groups, 10, &[(0, None), (LATER_PARTITIONS, None)]);
        commit(&groups, 11, &[(3, Some(1))]);
        let all = [0, 3, LATER_PARTITIONS];
        let expired =
            groups.expired_offsets(GROUP, None, OffsetExpiry { until: at(20), now: SysTime(20) });
        let offsets = expired.unwrap().unwrap().offsets;
        assert_eq!(offsets.len(), 3);
        assert!(offsets.iter().all(|old| !old.has_own_retention));
        assert_eq!(expire(&groups, 30, 20, 20, &[3]), all);
        assert_eq!(expire(&groups, 31, 20, 20, &all), [0; 0]);
    }

    /// A group name can be any text. A group whose key looked as if it had a separator hid all
    /// groups after it.
    #[test]
    fn groups_with_control_characters_in_their_names_hide_none() {
        let groups = groups();
        let names = ["\0\u{3}", "\0\u{1}\u{3}", "\u{1}\u{3}", "a\0\u{3}b", "g", "m\0\u{3}"];
        for name in names {
            let offsets = vec![OffsetCommit {
                topic: "t".into(),
                partition: 0,
                offset: 1,
                leader_epoch: -1,
                metadata: String::new(),
                retention_ms: None,
            }];
            let event = GroupEvent::OffsetsCommitted { group: name.into(), offsets };
            groups.apply(&event, position(10)).unwrap();
        }
        let (mut found_groups, mut last) = (Vec::new(), None::<String>);
        while let Some(group) = groups.next_group(last.as_deref()).unwrap() {
            let expiry = OffsetExpiry { until: at(10), now: SysTime(0) };
            let old = groups.expired_offsets(&group, None, expiry).unwrap().unwrap();
            assert_eq!(old.offsets.len(), 1, "{group:?}");
            assert_eq!(groups.offsets(Some(&group), Cut::ALL).unwrap().len(), 1, "{group:?}");
            found_groups.push(group.clone());
            last = Some(group);
        }
        found_groups.sort();
        let mut names = names.map(str::to_owned);
        names.sort();
        assert_eq!(found_groups, names);
        assert_eq!(groups.offsets(None, Cut::ALL).unwrap().len(), names.len());
    }

    #[test]
    fn a_group_that_is_set_to_other_topics_reads_the_old_ones_no_more() {
        let groups = groups();
        commit(&groups, 10, &[(0, None), (1, None)]);
        let set = |ms, offsets, removed: &[u32]| {
            let removed = removed.iter().map(|partition| ("t".into(), *partition)).collect();
            let event = GroupEvent::OffsetsSet { group: GROUP.into(), offsets, removed };
            groups.apply(&event, position(ms)).unwrap();
        };
        let of_t = OffsetCommit {
            topic: "t".into(),
            partition: 7,
            offset: 1,
            leader_epoch: -1,
            metadata: String::new(),
            retention_ms: None,
        };
        set(20, vec![of_t], &[0, 1]);
        assert!(is_read(&groups) && held(&groups) == [7]);
        set(21, Vec::new(), &[7]);
        assert!(!is_read(&groups) && held(&groups).is_empty());
    }

    /// Otherwise the names of unused groups would stay for ever, and slow down the removal of the
    /// topic.
    #[test]
    fn a_group_of_which_nothing_is_left_reads_the_topic_no_more() {
        for expires in [true, false] {
            let groups = groups();
            commit(&groups, 10, &[(0, None), (1, None)]);
            let remove = |ms, partition| {
                if expires {
                    drop(expire(&groups, ms, 10, 10, &[partition]));
                } else {
                    let partitions = vec![("t".into(), partition)];
                    let event = GroupEvent::OffsetsDeleted { group: GROUP.into(), partitions };
                    groups.apply(&event, position(ms)).unwrap();
                }
            };
            remove(20, 0);
            remove(21, 7);
            assert!(is_read(&groups) && held(&groups) == [1]);
            remove(22, 1);
            assert!(!is_read(&groups) && held(&groups).is_empty());
            commit(&groups, 30, &[(0, None)]);
            assert!(is_read(&groups), "and does so again");
        }
    }

    #[test]
    fn old_offsets_are_found_topic_by_topic_behind_the_last() {
        let groups = groups();
        commit(&groups, 10, &[(0, None), (3, Some(7))]);
        let expiry = OffsetExpiry::new(SysTime(17), Duration::from_millis(7));
        let expired = groups.expired_offsets(GROUP, None, expiry).unwrap().unwrap();
        let old = |partition, has_own_retention| ExpiredOffset {
            topic: "t".into(),
            partition,
            has_own_retention,
        };
        let expected =
            ExpiredOffsets { offsets: vec![old(0, false), old(3, true)], last: "t".into() };
        assert_eq!(expired, expected);
        assert_eq!(groups.expired_offsets(GROUP, Some("t"), expiry).unwrap(), None);
        assert_eq!(groups.expired_offsets("other", None, expiry).unwrap(), None);
        let younger = OffsetExpiry::new(SysTime(16), Duration::from_millis(7));
        assert!(groups.expired_offsets(GROUP, None, younger).unwrap().unwrap().offsets.is_empty());
        assert_eq!(groups.next_group(None).unwrap().as_deref(), Some(GROUP));
        assert_eq!(groups.next_group(Some(GROUP)).unwrap(), None);
        assert!(groups.has_offsets(GROUP).unwrap() && !groups.has_offsets("other").unwrap());
    }
}
