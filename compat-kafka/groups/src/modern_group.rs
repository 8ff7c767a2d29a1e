//! The state that consumer, share and streams groups have in common, as in Kafka's `ModernGroup`:
//! members with epochs, whose assignment the server computes.
//!
//! An answer shows only stored state. Each change has a number; the caller holds an answer until the
//! log has the change that [`ModernState::unsaved_change_of`] returns for its member. A failed write
//! is retried with the next one; until then the answers count as lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;
use engine::groups::StoredGroup;
use serde::de::DeserializeOwned;

use super::commit::{CommitFence, CommitKind, OffsetExpirationCondition};
use super::effects::GroupChange;
use super::error::GroupError;
use super::group_header::GroupHeader;
use super::options::{Options, assignment_interval};
use super::snapshot::{GroupSnapshotError, decode_versioned, encode_versioned};
use super::subscriptions::GroupSubscriptions;
use super::unsaved_changes::{TakenChanges, UnsavedChanges};

/// The first byte of a stored member.
pub(super) const MEMBER_VERSION: u8 = 1;

/// A partition that a member commits for.
pub type CommittedPartition = (TopicId, u32);

/// A member of such a group.
pub(super) trait ModernMember {
    /// The assignment that a member moves to.
    type Target: PartialEq;

    fn epoch(&self) -> i32;

    fn target_mut(&mut self) -> &mut Self::Target;

    /// The bytes that it takes, with its id.
    fn bytes(&self, id: &str) -> usize;

    /// True for a member that speaks the classic protocol, where epochs are generations.
    fn is_classic(&self) -> bool {
        false
    }
}

/// The members of a group, and how far their assignment is. Times are of a monotonic clock of the
/// caller.
#[derive(Debug, Clone)]
pub(super) struct ModernGroup<M> {
    pub(super) options: Arc<Options>,
    /// The group epoch: rises with every change of members, subscriptions or partitions.
    pub(super) epoch: i32,
    /// The epoch of the members' targets. It is never above `epoch`.
    pub(super) assignment_epoch: i32,
    /// The time at which the targets were computed, if that was in this incarnation.
    assigned_at: Option<Duration>,
    /// A hash of the topics at `epoch`.
    pub(super) topics_hash: u64,
    /// By id.
    pub(super) members: BTreeMap<String, M>,
    /// The bytes that the members take.
    pub(super) member_bytes: usize,
    /// The time at which its last member left, if that was in this incarnation.
    empty_since: Option<Duration>,
    pub(super) unsaved: UnsavedChanges,
}

impl<M: ModernMember> ModernGroup<M> {
    /// A group that nobody has joined.
    pub(super) fn new(options: Arc<Options>, epoch: i32) -> ModernGroup<M> {
        ModernGroup {
            options,
            epoch,
            assignment_epoch: epoch,
            assigned_at: None,
            topics_hash: 0,
            members: BTreeMap::new(),
            member_bytes: 0,
            empty_since: None,
            unsaved: UnsavedChanges::of_new_group(),
        }
    }

    /// Inserts a member, or replaces it.
    pub(super) fn put(&mut self, id: &str, member: M) {
        self.take(id);
        self.member_bytes += member.bytes(id);
        self.empty_since = None;
        self.unsaved.mark(id);
        self.members.insert(id.to_owned(), member);
    }

    /// Takes a member out to put it in again.
    pub(super) fn take(&mut self, id: &str) -> Option<M> {
        let member = self.members.remove(id)?;
        self.member_bytes -= member.bytes(id);
        Some(member)
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, now: Duration, id: &str) -> Option<M> {
        let member = self.take(id)?;
        if self.members.is_empty() {
            self.empty_since = Some(now);
        }
        self.unsaved.mark_removed(id);
        Some(member)
    }

    pub(super) fn raise_epoch(&mut self) {
        self.epoch += 1;
        self.unsaved.mark_group();
    }

    /// Raises the epoch if the topics have another hash, or the members' subscriptions changed.
    pub(super) fn update_topics(&mut self, is_changed: bool, topics_hash: u64) {
        if is_changed || topics_hash != self.topics_hash {
            self.topics_hash = topics_hash;
            self.raise_epoch();
        }
    }

    /// True if the targets are not those of the epoch.
    pub(super) fn is_assignment_due(&self) -> bool {
        self.assignment_epoch < self.epoch
    }

    /// True if targets were computed just now, so that the next have to wait.
    pub(super) fn is_assignment_recent(&self, now: Duration, interval: Duration) -> bool {
        let interval = assignment_interval(interval, self.members.len());
        self.assigned_at.is_some_and(|at| now.saturating_sub(at) < interval)
    }

    /// Gives the members their targets, in the order of their ids.
    pub(super) fn set_targets(
        &mut self,
        now: Duration,
        targets: impl IntoIterator<Item = M::Target>,
    ) {
        for ((id, member), target) in self.members.iter_mut().zip(targets) {
            if *member.target_mut() != target {
                self.member_bytes -= member.bytes(id);
                *member.target_mut() = target;
                self.member_bytes += member.bytes(id);
                self.unsaved.mark_untold(id.clone());
            }
        }
        self.assignment_epoch = self.epoch;
        self.assigned_at = Some(now);
        self.unsaved.mark_group();
    }

    /// Checks whether this client may commit offsets. A member may name an earlier epoch of its
    /// own, as long as it has had each partition since then (KIP-1251): `since` is the epoch at
    /// which it got a partition that it has.
    pub(super) fn check_commit(
        &self,
        fence: &CommitFence,
        partitions: &dyn Fn() -> Vec<CommittedPartition>,
        since: impl Fn(&M, CommittedPartition) -> Option<i32>,
    ) -> Result<(), GroupError> {
        let names_nobody = fence.member_id.is_empty() && fence.group_instance_id.is_none();
        let is_outside = fence.generation_id < 0 && self.members.is_empty();
        let is_old = fence.kind == CommitKind::Transactional && names_nobody;
        if is_outside || is_old && fence.generation_id == -1 {
            return Ok(());
        }
        let member = self.members.get(&fence.member_id).ok_or(GroupError::UnknownMemberId)?;
        if !member.is_classic() && !fence.knows_epochs {
            return Err(GroupError::UnsupportedVersion);
        }
        if fence.generation_id == member.epoch() {
            return Ok(());
        }
        let is_covered =
            |partition| since(member, partition).is_some_and(|since| fence.generation_id >= since);
        let is_earlier = fence.generation_id < member.epoch();
        if is_earlier && partitions().into_iter().all(is_covered) {
            Ok(())
        } else {
            Err(stale(member))
        }
    }

    /// Checks whether a member that names its epoch may see offsets.
    pub(super) fn check_fetch(&self, member: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        let Some(id) = member else {
            return if epoch < 0 { Ok(()) } else { Err(GroupError::UnknownMemberId) };
        };
        let member = self.members.get(id).ok_or(GroupError::UnknownMemberId)?;
        if member.epoch() == epoch { Ok(()) } else { Err(stale(member)) }
    }

    /// The condition under which offsets of the group may expire.
    pub(super) fn offset_expiration_condition(
        &self,
        now: Duration,
        subscriptions: impl FnOnce() -> GroupSubscriptions,
    ) -> OffsetExpirationCondition {
        let retention = self.options.offsets_retention;
        let is_long = self.empty_since.is_none_or(|since| now.saturating_sub(since) >= retention);
        if !self.members.is_empty() {
            OffsetExpirationCondition::Subscribed(subscriptions())
        } else if is_long {
            OffsetExpirationCondition::Unused
        } else {
            OffsetExpirationCondition::RecentlyUsed
        }
    }

    /// Takes over a header of the log, before the members are put.
    pub(super) fn begin_restore(&mut self, header: &GroupHeader) {
        self.epoch = header.epoch;
        self.assignment_epoch = header.assignment_epoch;
        self.topics_hash = header.topics_hash;
    }

    /// Ends a restore, after all members are put. Nothing is unsaved then.
    pub(super) fn end_restore(&mut self, now: Duration, header: &GroupHeader) {
        self.empty_since = self.members.is_empty().then_some(now);
        self.unsaved = UnsavedChanges::restored(header.changes);
    }

    /// Takes the changes that the log lacks, with the number of the last one. `others` are the ids
    /// of stored entries besides members. `encode` gets each id, with its member if it has one.
    pub(super) fn take_unsaved<'a>(
        &'a mut self,
        others: impl IntoIterator<Item = &'a String>,
        encode_header: impl FnOnce(GroupHeader) -> Vec<u8>,
        encode: impl Fn(&str, Option<&M>) -> Option<Vec<u8>>,
    ) -> (u64, GroupChange) {
        let ids = self.members.keys().chain(others);
        let TakenChanges { count, members, is_whole } = self.unsaved.take(ids);
        let header = GroupHeader {
            epoch: self.epoch,
            assignment_epoch: self.assignment_epoch,
            topics_hash: self.topics_hash,
            changes: count,
        };
        let member = |id: String| {
            let bytes = encode(&id, self.members.get(&id));
            (id, bytes)
        };
        let members = members.into_iter().map(member).collect();
        (count, GroupChange { snapshot: encode_header(header), members, is_whole })
    }

    /// Asserts what must hold between any two events.
    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        assert!(self.assignment_epoch <= self.epoch);
        let bytes: usize = self.members.iter().map(|(id, member)| member.bytes(id)).sum();
        assert_eq!(bytes, self.member_bytes);
    }
}

fn stale(member: &impl ModernMember) -> GroupError {
    if member.is_classic() { GroupError::IllegalGeneration } else { GroupError::StaleMemberEpoch }
}

/// The part of [`ModernGroup`] that does not depend on the kind of its members.
pub(super) trait ModernState {
    fn member_count(&self) -> usize;

    /// True if only the epoch would be lost if this group were removed.
    fn is_idle(&self) -> bool;

    /// Goes on with other options.
    fn set_options(&mut self, options: Arc<Options>);

    /// Checks whether the group may be deleted.
    ///
    /// # Errors
    /// It has members.
    fn check_delete(&self) -> Result<(), GroupError>;

    /// The number of the last change of a member, or of the group if there is no such member;
    /// `None` if the log has it.
    fn unsaved_change_of(&self, member: &str) -> Option<u64>;

    /// True if the log lacks anything.
    fn has_unsaved(&self) -> bool;

    /// The log has all changes up to a number.
    fn saved(&mut self, count: u64);
}

impl<M: ModernMember> ModernState for ModernGroup<M> {
    fn member_count(&self) -> usize {
        self.members.len()
    }

    fn is_idle(&self) -> bool {
        self.members.is_empty() && !self.unsaved.is_any()
    }

    fn set_options(&mut self, options: Arc<Options>) {
        self.options = options;
    }

    fn check_delete(&self) -> Result<(), GroupError> {
        if self.members.is_empty() { Ok(()) } else { Err(GroupError::NonEmptyGroup) }
    }

    fn unsaved_change_of(&self, member: &str) -> Option<u64> {
        self.unsaved.change_of(member, || self.members.contains_key(member))
    }

    fn has_unsaved(&self) -> bool {
        self.unsaved.is_any()
    }

    fn saved(&mut self, count: u64) {
        self.unsaved.saved(count);
    }
}

/// A member as it is stored.
pub(super) trait StoredMember: DeserializeOwned {
    /// The first byte of the header of its group.
    const HEADER_VERSION: u8;
}

/// The state of a group that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModernGroup<M> {
    pub header: GroupHeader,
    /// By member id.
    pub members: BTreeMap<String, M>,
}

#[expect(private_bounds, reason = "only this crate has kinds of groups")]
impl<M: StoredMember> StoredModernGroup<M> {
    /// Returns true if bytes of the log are of a group of this kind.
    pub fn is_one(stored: &StoredGroup) -> bool {
        stored.snapshot.first() == Some(&M::HEADER_VERSION)
    }

    /// Decodes it from the log.
    ///
    /// # Errors
    /// The bytes are not a group of this kind.
    pub fn decode(stored: &StoredGroup) -> Result<StoredModernGroup<M>, GroupSnapshotError> {
        Ok(StoredModernGroup {
            header: decode_versioned(M::HEADER_VERSION, &stored.snapshot)?,
            members: decode_members(&stored.members)?,
        })
    }
}

/// Decodes stored members.
///
/// # Errors
/// One is not what is stored of a member.
pub(super) fn decode_members<'a, M: DeserializeOwned>(
    stored: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>,
) -> Result<BTreeMap<String, M>, GroupSnapshotError> {
    let member = |(id, bytes): (&String, &Vec<u8>)| {
        Ok((id.clone(), decode_versioned(MEMBER_VERSION, bytes)?))
    };
    stored.into_iter().map(member).collect()
}

/// Encodes what is stored of a member.
pub(super) fn encode_member(member: &impl serde::Serialize) -> Vec<u8> {
    encode_versioned(MEMBER_VERSION, member)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone)]
    struct TestMember {
        epoch: i32,
        is_classic: bool,
        target: u32,
    }

    impl ModernMember for TestMember {
        type Target = u32;

        fn epoch(&self) -> i32 {
            self.epoch
        }

        fn target_mut(&mut self) -> &mut u32 {
            &mut self.target
        }

        fn bytes(&self, id: &str) -> usize {
            id.len() + 8
        }

        fn is_classic(&self) -> bool {
            self.is_classic
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn group(members: &[(&str, bool)]) -> ModernGroup<TestMember> {
        let options = Options { offsets_retention: MINUTE, ..Options::default() };
        let mut group = ModernGroup::new(Arc::new(options), 7);
        for (id, is_classic) in members {
            group.put(id, TestMember { epoch: 5, is_classic: *is_classic, target: 0 });
        }
        group.assert_sound();
        group
    }

    fn fence(member: &str, generation_id: i32) -> CommitFence {
        CommitFence {
            member_id: member.to_owned(),
            group_instance_id: None,
            generation_id,
            knows_epochs: true,
            kind: CommitKind::Plain,
        }
    }

    fn check(group: &ModernGroup<TestMember>, fence: &CommitFence) -> Result<(), GroupError> {
        // A member has partition 0 since epoch 3, and partition 1 not at all.
        let partitions = || vec![(TopicId::default(), 0)];
        group.check_commit(fence, &partitions, |_, (_, partition)| (partition == 0).then_some(3))
    }

    #[test]
    fn a_commit_names_a_member_and_an_epoch_since_which_it_has_the_partitions() {
        let group = group(&[("m", false), ("old", true)]);
        for (epoch, expected) in [
            (2, Err(GroupError::StaleMemberEpoch)),
            (3, Ok(())),
            (4, Ok(())),
            (5, Ok(())),
            (6, Err(GroupError::StaleMemberEpoch)),
            (-1, Err(GroupError::StaleMemberEpoch)),
        ] {
            assert_eq!(check(&group, &fence("m", epoch)), expected, "epoch {epoch}");
        }
        assert_eq!(check(&group, &fence("nobody", 5)), Err(GroupError::UnknownMemberId));
        assert_eq!(check(&group, &fence("", -1)), Err(GroupError::UnknownMemberId));
        // A client that knows generations alone is of the classic protocol.
        let without = |member| CommitFence { knows_epochs: false, ..fence(member, 5) };
        assert_eq!(check(&group, &without("m")), Err(GroupError::UnsupportedVersion));
        assert_eq!(check(&group, &without("old")), Ok(()));
        assert_eq!(check(&group, &fence("old", 6)), Err(GroupError::IllegalGeneration));
        let lacks =
            group.check_commit(&fence("m", 4), &|| vec![(TopicId::default(), 1)], |_, _| None);
        assert_eq!(lacks, Err(GroupError::StaleMemberEpoch));
    }

    #[test]
    fn who_is_in_no_group_commits_to_an_empty_one_and_an_old_transaction_to_any() {
        let empty = group(&[]);
        assert_eq!(check(&empty, &fence("", -1)), Ok(()));
        assert_eq!(check(&empty, &fence("m", -1)), Ok(()));
        assert_eq!(check(&empty, &fence("m", 0)), Err(GroupError::UnknownMemberId));
        let group = group(&[("m", false)]);
        let old = |member: &str, instance: Option<&str>, generation_id| CommitFence {
            kind: CommitKind::Transactional,
            group_instance_id: instance.map(str::to_owned),
            ..fence(member, generation_id)
        };
        assert_eq!(check(&group, &old("", None, -1)), Ok(()));
        assert_eq!(check(&group, &old("", None, 0)), Err(GroupError::UnknownMemberId));
        assert_eq!(check(&group, &old("", Some("i"), -1)), Err(GroupError::UnknownMemberId));
    }

    #[test]
    fn offsets_are_read_by_a_member_at_its_epoch_or_by_nobody_in_particular() {
        let group = group(&[("m", false)]);
        assert_eq!(group.check_fetch(None, -1), Ok(()));
        assert_eq!(group.check_fetch(None, 0), Err(GroupError::UnknownMemberId));
        assert_eq!(group.check_fetch(Some("n"), 5), Err(GroupError::UnknownMemberId));
        assert_eq!(group.check_fetch(Some("m"), 5), Ok(()));
        assert_eq!(group.check_fetch(Some("m"), 4), Err(GroupError::StaleMemberEpoch));
    }

    #[test]
    fn a_group_is_deleted_and_its_offsets_expire_once_nobody_is_in_it() {
        let mut group = group(&[("m", false)]);
        let condition = |group: &ModernGroup<TestMember>, now| {
            group.offset_expiration_condition(now, || GroupSubscriptions::Unknown)
        };
        let is_used = |found: &OffsetExpirationCondition| {
            matches!(found, OffsetExpirationCondition::Subscribed(_))
        };
        assert!(is_used(&condition(&group, 10 * MINUTE)));
        assert_eq!(
            (group.member_count(), group.check_delete()),
            (1, Err(GroupError::NonEmptyGroup))
        );
        assert!(!group.is_idle());
        group.remove(MINUTE, "m");
        assert_eq!((group.member_count(), group.check_delete()), (0, Ok(())));
        assert!(!group.is_idle(), "the log lacks that");
        let recently = condition(&group, 2 * MINUTE - Duration::from_millis(1));
        assert!(matches!(recently, OffsetExpirationCondition::RecentlyUsed));
        assert!(matches!(condition(&group, 2 * MINUTE), OffsetExpirationCondition::Unused));
        let options = Options { offsets_retention: 2 * MINUTE, ..Options::default() };
        group.set_options(Arc::new(options));
        let recently = condition(&group, 2 * MINUTE);
        assert!(matches!(recently, OffsetExpirationCondition::RecentlyUsed));
        let (count, _) = group.take_unsaved([], |_| Vec::new(), |_, _| None);
        group.saved(count);
        assert!(group.is_idle());
    }

    #[test]
    fn targets_wait_for_the_interval_after_the_last_ones() {
        let mut group = group(&[("m", false)]);
        let micros = |count| MINUTE + Duration::from_micros(count);
        assert!(!group.is_assignment_recent(MINUTE, MINUTE), "there were none");
        group.set_targets(MINUTE, [1]);
        group.assert_sound();
        // One member waits for 100 microseconds, or less if that is the most.
        assert!(group.is_assignment_recent(micros(99), MINUTE));
        assert!(!group.is_assignment_recent(micros(100), MINUTE));
        assert!(!group.is_assignment_recent(micros(50), Duration::from_micros(50)));
    }
}
