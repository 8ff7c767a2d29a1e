//! A group from its snapshot, and its snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::effects::GroupEffect;
use super::super::member::ClassicGroupMember;
use super::super::options::Options;
use super::super::snapshot::{GroupSnapshot, GroupSnapshotError, MemberSnapshot, millis};
use super::super::state::ClassicGroupState;
use super::ClassicGroup;

impl ClassicGroup {
    /// Restores a group from its snapshot. Its members' sessions restart. If there are more members
    /// than the limits allow now, a rebalance starts too: hence the effects.
    pub fn restore(
        options: Arc<Options>,
        snapshot: GroupSnapshot,
        now: Duration,
    ) -> Result<(ClassicGroup, Vec<GroupEffect>), GroupSnapshotError> {
        snapshot.check()?;
        let mut group = ClassicGroup::new(options);
        group.generation = snapshot.generation;
        group.protocol_type = snapshot.protocol_type;
        group.protocol = snapshot.protocol;
        for member in snapshot.members {
            group.state = ClassicGroupState::Stable;
            group.sessions.set(&member.member_id, now + millis(member.session_timeout_ms));
            group.roster.insert(member.into());
        }
        group.roster.set_leader(snapshot.leader);
        group.subscriptions = group.read_subscriptions();
        if group.roster.len() > group.options.group_max_size {
            group.prepare_rebalance(now, "the group came back with too many members");
        }
        let effects = group.take_effects();
        Ok((group, effects))
    }

    /// A snapshot of the current state.
    pub(crate) fn snapshot(&self) -> GroupSnapshot {
        self.snapshot_with(&BTreeMap::new())
    }

    /// A snapshot with these assignments.
    pub(super) fn snapshot_with(&self, assignments: &BTreeMap<String, Bytes>) -> GroupSnapshot {
        let snapshot = |member: &ClassicGroupMember| {
            let assignment = assignments.get(&member.id).or(member.assignment.as_ref());
            MemberSnapshot::of(member, assignment)
        };
        GroupSnapshot {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.roster.leader().map(str::to_owned),
            members: self.roster.iter().map(snapshot).collect(),
        }
    }
}
