//! The changes of a group that the log does not have yet. An answer waits for those that it shows.

use std::collections::{BTreeSet, HashMap};

use super::effects::GroupChange;

/// The changes of a group whose members are stored one by one. Each has a number.
#[derive(Debug, Clone, Default)]
pub(super) struct UnsavedChanges {
    /// The number of changes so far.
    count: u64,
    /// The number of the last change that the log has.
    saved: u64,
    /// The number of each member's last change.
    by_member: HashMap<String, u64>,
    members: BTreeSet<String>,
    is_any: bool,
    /// The log may have members of an earlier group of this name.
    is_whole: bool,
}

/// Changes that are about to be written.
pub(super) struct TakenChanges {
    /// The number of the last one.
    pub(super) count: u64,
    /// The members that changed.
    pub(super) members: BTreeSet<String>,
    /// True if the log is to have no other members.
    pub(super) is_whole: bool,
}

impl UnsavedChanges {
    /// The changes of a new group, whose id the log may have for an older one.
    pub(super) fn of_new_group() -> UnsavedChanges {
        UnsavedChanges { is_whole: true, ..UnsavedChanges::default() }
    }

    /// The changes of a restored group: the log has all of them.
    pub(super) fn restored(changes: u64) -> UnsavedChanges {
        UnsavedChanges { count: changes, saved: changes, ..UnsavedChanges::default() }
    }

    pub(super) fn is_any(&self) -> bool {
        self.is_any
    }

    /// The group changed, but no member.
    pub(super) fn mark_group(&mut self) {
        self.count += 1;
        self.is_any = true;
    }

    pub(super) fn mark(&mut self, member: &str) {
        self.mark_group();
        self.by_member.insert(member.to_owned(), self.count);
        self.members.insert(member.to_owned());
    }

    pub(super) fn mark_removed(&mut self, member: &str) {
        self.mark(member);
        self.by_member.remove(member);
    }

    /// A member changed in what nobody is told, so that no answer waits for it.
    pub(super) fn mark_untold(&mut self, member: String) {
        self.members.insert(member);
    }

    /// The number of the last change of a member, or of the group if there is no such member;
    /// `None` if the log has it.
    pub(super) fn change_of(&self, member: &str, is_there: impl FnOnce() -> bool) -> Option<u64> {
        if self.count <= self.saved {
            return None;
        }
        let change = if is_there() { *self.by_member.get(member)? } else { self.count };
        (change > self.saved).then_some(change)
    }

    /// Takes what the log lacks.
    pub(super) fn take<'a>(&mut self, keys: impl Iterator<Item = &'a String>) -> TakenChanges {
        let changed = std::mem::take(&mut self.members);
        let members = if self.is_whole { keys.cloned().collect() } else { changed };
        self.is_any = false;
        TakenChanges { count: self.count, members, is_whole: self.is_whole }
    }

    /// The log has all changes up to a number.
    pub(super) fn saved(&mut self, count: u64) {
        self.is_whole = false;
        self.saved = self.saved.max(count);
        self.by_member.retain(|_, changed| *changed > count);
    }

    /// The log may lack what [`UnsavedChanges::take`] gave: it is tried again.
    pub(super) fn save_failed(&mut self, change: &GroupChange) {
        self.is_any = true;
        self.members.extend(change.members.iter().map(|(id, _)| id.clone()));
    }

    /// Has all members written next time.
    #[cfg(test)]
    pub(super) fn mark_whole(&mut self) {
        self.is_whole = true;
    }
}
