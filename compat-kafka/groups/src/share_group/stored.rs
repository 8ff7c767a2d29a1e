//! The state that survives a restart: a header of the group, and each member by itself.
//! `docs/FORMAT.md` has their fields.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::groups::StoredGroup;
use serde::{Deserialize, Serialize};

use super::super::effects::GroupChange;
use super::super::group_header::SHARE_GROUP;
use super::super::modern_group::{StoredMember, StoredModernGroup, encode_member};
use super::super::options::Options;
use super::super::partitions::PartitionSet;
use super::super::snapshot::{GroupSnapshotError, encode_versioned};
use super::super::topic_subscription::GroupTopics;
use super::{ShareGroup, ShareGroupMember, ShareGroupState};

/// The state of a member that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredShareMember {
    pub rack: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub topics: BTreeSet<String>,
    pub epoch: i32,
    pub previous_epoch: i32,
    pub assigned: PartitionSet,
    pub target: PartitionSet,
}

/// The state of a group that survives a restart.
pub type StoredShareGroup = StoredModernGroup<StoredShareMember>;

impl StoredMember for StoredShareMember {
    const HEADER_VERSION: u8 = SHARE_GROUP;
}

impl StoredShareGroup {
    /// The state of the group when it was stored.
    pub fn state(&self) -> ShareGroupState {
        ShareGroupState::of(self.members.len())
    }
}

impl StoredShareMember {
    fn of(member: &ShareGroupMember) -> StoredShareMember {
        let ShareGroupMember {
            rack,
            client_id,
            client_host,
            topics,
            epoch,
            previous_epoch,
            assigned,
            target,
        } = member.clone();
        StoredShareMember {
            rack,
            client_id,
            client_host,
            topics,
            epoch,
            previous_epoch,
            assigned,
            target,
        }
    }

    fn into_member(self) -> ShareGroupMember {
        ShareGroupMember {
            rack: self.rack,
            client_id: self.client_id,
            client_host: self.client_host,
            topics: self.topics,
            epoch: self.epoch,
            previous_epoch: self.previous_epoch,
            assigned: self.assigned,
            target: self.target,
        }
    }
}

impl ShareGroup {
    /// Restores a group. Its members' sessions restart.
    ///
    /// # Errors
    /// The bytes are not a group.
    pub fn restore(
        options: Arc<Options>,
        stored: &StoredGroup,
        now: Duration,
        topics: &dyn GroupTopics,
    ) -> Result<ShareGroup, GroupSnapshotError> {
        let StoredShareGroup { header, members } = StoredShareGroup::decode(stored)?;
        let until = now + options.share.session_timeout;
        let mut group = ShareGroup::new(options);
        group.base.begin_restore(&header);
        for (id, member) in members {
            group.put(&id, member.into_member(), topics);
            group.sessions.set(id, until);
        }
        group.base.end_restore(now, &header);
        Ok(group)
    }

    /// Takes the changes that the log lacks, with the number of the last one.
    pub fn take_unsaved(&mut self) -> (u64, GroupChange) {
        let encode = |member: &_| encode_member(&StoredShareMember::of(member));
        let header = |header| encode_versioned(SHARE_GROUP, &header);
        self.base.take_unsaved([], header, |_, member| member.map(encode))
    }

    /// The log may lack what [`ShareGroup::take_unsaved`] gave: it is tried again.
    pub fn save_failed(&mut self, change: &GroupChange) {
        self.base.unsaved.save_failed(change);
    }
}
