//! Share groups, and the options of single groups.
//!
//! The progress of a share group in its partitions is kept in memory by others, and stored as the
//! group's offsets. They hold a lease: it ends when somebody else sets the offsets, or deletes the
//! group. Then the progress in memory is out of date, and may not be stored any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::error::GroupError;
use super::super::group::Group;
use super::super::group_config::{GroupConfigError, with_group_config};
use super::super::options::AssignmentIntervals;
use super::super::options::Options;
use super::super::share_group::{ShareGroupSummary, ShareHeartbeat, ShareHeartbeatAnswer};
use super::slot::{GroupSlot, GroupSlotState};
use super::{
    CoordinatorState, GroupCoordinator, GroupOptions, MissingGroupPolicy, check_group_id,
    wait_until_saved,
};

/// The right to keep a group's offsets in memory, and to store them.
#[derive(Clone, Debug, Default)]
pub struct OffsetsLease {
    is_over: Arc<AtomicBool>,
}

impl OffsetsLease {
    /// Returns true if somebody else has set the offsets since.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl GroupSlotState {
    /// Ends the lease: the group's offsets are about to be set, or the group to be deleted.
    pub(super) fn end_lease(&mut self) {
        self.lease.is_over.store(true, Ordering::Release);
        self.lease = OffsetsLease::default();
    }
}

impl GroupCoordinator {
    /// Handles a heartbeat of a member of a share group (KIP-932). It returns when what the answer
    /// shows is stored.
    pub async fn share_heartbeat(
        &self,
        group: &str,
        request: ShareHeartbeat,
    ) -> Result<ShareHeartbeatAnswer, GroupError> {
        check_group_id(group)?;
        request.check(&self.shared.options)?;
        let member_id = |answer: &ShareHeartbeatAnswer| answer.member_id.clone();
        self.modern_heartbeat(group, request.joins(), member_id, |inner, now| {
            let growth = inner.group.growth_by_share_heartbeat(&request);
            let (topics, is_new) = (&*self.shared.topics, inner.is_new());
            let answer = self
                .shared
                .check_growth(inner, growth)
                .and_then(|()| inner.group.share_heartbeat(now, &request, is_new, topics));
            (answer, Vec::new())
        })
        .await
    }

    /// Makes a share group without members, unless there is one. It returns when the group is
    /// stored.
    ///
    /// # Errors
    /// The group is of another kind, or its offsets are being set.
    pub async fn create_share(&self, group: &str) -> Result<(), GroupError> {
        check_group_id(group)?;
        let (created, saved) =
            self.update_group(group, MissingGroupPolicy::Create, |_, inner, _| {
                let is_new = inner.is_new();
                (inner.group.create_share(is_new), Some(String::new()), Vec::new())
            })?;
        created?;
        wait_until_saved(saved).await
    }

    /// A share group and its members.
    pub fn describe_share(&self, group: &str) -> Result<ShareGroupSummary, GroupError> {
        self.read_group(group, Group::describe_share)?
    }

    /// The right to keep the offsets of a share group in memory.
    ///
    /// # Errors
    /// There is no such share group, or its offsets are being set.
    pub fn lease_offsets(&self, group: &str) -> Result<OffsetsLease, GroupError> {
        self.with_share_group(group, |inner| Ok(inner.lease.clone()))
    }

    /// Stores offsets of a share group. The writes that `queue` puts into the log precede all later
    /// decisions about the group.
    ///
    /// # Errors
    /// There is no such share group, or the lease is over.
    pub fn store_leased<T>(
        &self,
        group: &str,
        lease: &OffsetsLease,
        queue: impl FnOnce() -> T,
    ) -> Result<T, GroupError> {
        self.with_share_group(group, |inner| {
            if lease.is_over() {
                return Err(GroupError::CoordinatorNotAvailable);
            }
            inner.is_stored = true;
            Ok(queue())
        })
    }

    fn with_share_group<T>(
        &self,
        group: &str,
        act: impl FnOnce(&mut GroupSlotState) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let slot = self.shared.find(group)?;
        let mut inner = slot.inner.lock();
        match inner.group {
            Group::Share(_) if inner.is_being_deleted || inner.is_held => {
                Err(GroupError::CoordinatorNotAvailable)
            }
            Group::Share(_) => act(&mut inner),
            Group::Classic(_) | Group::Consumer(_) | Group::Streams(_) => {
                Err(GroupError::OtherGroupType)
            }
            Group::Closed => Err(GroupError::GroupIdNotFound),
        }
    }

    /// The options of one group.
    pub fn options_of(&self, group: &str) -> Arc<Options> {
        self.shared.options_of(group)
    }

    /// Gives a group settings of its own; with no settings it has those of all.
    ///
    /// # Errors
    /// As [`with_group_config`]; nothing is changed then.
    pub fn set_config_of(
        &self,
        group: &str,
        config: &BTreeMap<String, String>,
    ) -> Result<(), GroupConfigError> {
        {
            let mut options = self.shared.group_options.lock();
            let group_options = Arc::new(with_group_config(&options.of_all, config)?);
            if config.is_empty() {
                options.own.remove(group);
            } else {
                options.own.insert(group.to_owned(), (group_options, config.clone()));
            }
        }
        if let Ok(slot) = self.shared.find(group) {
            self.shared.renew_options(&slot);
        }
        Ok(())
    }

    /// The options of groups without settings of their own.
    pub fn default_options(&self) -> Arc<Options> {
        Arc::clone(&self.shared.group_options.lock().of_all)
    }

    /// Changes how often assignments are computed at most in groups that do not say so themselves.
    pub fn set_assignment_intervals(&self, intervals: AssignmentIntervals) {
        {
            let mut options = self.shared.group_options.lock();
            let GroupOptions { of_all, own } = &mut *options;
            let mut changed = Options::clone(of_all);
            changed.consumer.assignment_interval = intervals.consumer;
            changed.share.assignment_interval = intervals.share;
            changed.streams.assignment_interval = intervals.streams;
            if **of_all == changed {
                return;
            }
            *of_all = Arc::new(changed);
            for (group_options, config) in own.values_mut() {
                *group_options =
                    Arc::new(with_group_config(of_all, config).expect("it was checked"));
            }
        }
        let slots: Vec<Arc<GroupSlot>> =
            self.shared.groups.lock().by_id.values().cloned().collect();
        for slot in slots {
            self.shared.renew_options(&slot);
        }
    }
}

impl CoordinatorState {
    /// Gives a group the options that it has by now.
    fn renew_options(&self, slot: &GroupSlot) {
        let mut inner = slot.inner.lock();
        // Read under the group's lock, so that of two changes at a time the later one stays.
        inner.group.set_options(self.options_of(&slot.id));
    }
}

impl GroupSlotState {
    /// True if the group was never used.
    fn is_new(&self) -> bool {
        let is_unused = matches!(&self.group, Group::Classic(group) if group.generation() == 0);
        is_unused && !self.is_stored && self.group.is_idle()
    }
}
