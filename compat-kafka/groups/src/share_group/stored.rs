//! The state that survives a restart: a header of the group, and each member by itself.
//! `docs/FORMAT.md` has their fields.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use engine::groups::StoredGroup;
use serde::{Deserialize, Serialize};

use super::super::effects::GroupChange;
use super::super::group_header::{GroupHeader, SHARE_GROUP};
use super::super::options::Options;
use super::super::partitions::PartitionSet;
use super::super::snapshot::{GroupSnapshotError, decode_versioned, encode_versioned};
use super::super::topic_subscription::GroupTopics;
use super::super::unsaved_changes::{TakenChanges, UnsavedChanges};
use super::{ShareGroup, ShareGroupMember, ShareGroupState};

/// The first byte of a member.
const MEMBER_VERSION: u8 = 1;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredShareGroup {
    pub header: GroupHeader,
    /// By member id.
    pub members: BTreeMap<String, StoredShareMember>,
}

impl StoredShareGroup {
    /// Returns true if bytes of the log are of a group of this kind.
    pub fn is_one(stored: &StoredGroup) -> bool {
        stored.snapshot.first() == Some(&SHARE_GROUP)
    }

    /// Decodes it from the log.
    ///
    /// # Errors
    /// The bytes are not a group of this kind.
    pub fn decode(stored: &StoredGroup) -> Result<StoredShareGroup, GroupSnapshotError> {
        let member = |(id, bytes): (&String, &Vec<u8>)| {
            Ok((id.clone(), decode_versioned(MEMBER_VERSION, bytes)?))
        };
        let members = stored.members.iter().map(member);
        Ok(StoredShareGroup {
            header: decode_versioned(SHARE_GROUP, &stored.snapshot)?,
            members: members.collect::<Result<_, GroupSnapshotError>>()?,
        })
    }

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
        (group.epoch, group.assignment_epoch) = (header.epoch, header.assignment_epoch);
        group.topics_hash = header.topics_hash;
        for (id, member) in members {
            group.put(&id, member.into_member(), topics);
            group.sessions.set(id, until);
        }
        group.unsaved = UnsavedChanges::restored(header.changes);
        Ok(group)
    }

    /// True if the log lacks anything.
    pub fn has_unsaved(&self) -> bool {
        self.unsaved.is_any()
    }

    /// Takes the changes that the log lacks, with the number of the last one.
    pub fn take_unsaved(&mut self) -> (u64, GroupChange) {
        let TakenChanges { count, members, is_whole } = self.unsaved.take(self.members.keys());
        let header = GroupHeader {
            epoch: self.epoch,
            assignment_epoch: self.assignment_epoch,
            topics_hash: self.topics_hash,
            changes: count,
        };
        let member = |id: String| {
            let encode = |member| encode_versioned(MEMBER_VERSION, &StoredShareMember::of(member));
            let member = self.members.get(&id).map(encode);
            (id, member)
        };
        let change = GroupChange {
            snapshot: encode_versioned(SHARE_GROUP, &header),
            members: members.into_iter().map(member).collect(),
            is_whole,
        };
        (count, change)
    }

    /// The log has all changes up to a number.
    pub fn saved(&mut self, count: u64) {
        self.unsaved.saved(count);
    }

    /// The log may lack what [`ShareGroup::take_unsaved`] gave: it is tried again.
    pub fn save_failed(&mut self, change: &GroupChange) {
        self.unsaved.save_failed(change);
    }
}
