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
