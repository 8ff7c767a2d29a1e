//! All versions of the files, one after each change, and when each change happened, as far as that
//! is known.

use hlc::Hlc;

use crate::model_tree::ModelTree;

/// The tree from one change on.
#[derive(Clone, Debug)]
pub(crate) struct TreeVersion {
    pub(crate) tree: ModelTree,
    /// The change has a stamp above this one …
    pub(crate) stamp_above: Hlc,
    /// … and at most this one.
    pub(crate) stamp_at_most: Hlc,
}

impl TreeVersion {
    fn may_be_in(&self, bound: Hlc) -> bool {
        self.stamp_above.next() < bound
    }

    fn may_be_outside(&self, bound: Hlc) -> bool {
        self.stamp_at_most >= bound
    }
}

/// The versions, in order.
#[derive(Debug)]
pub(crate) struct TreeVersions {
    all: Vec<TreeVersion>,
    /// True if the last version is of a change that was sent, and may not have happened.
    is_pending: bool,
    /// The last version that is certainly on stable storage.
    synced_index: usize,
}

impl Default for TreeVersions {
    fn default() -> TreeVersions {
        let empty = TreeVersion {
            tree: ModelTree::default(),
            stamp_above: Hlc::ZERO,
            stamp_at_most: Hlc::ZERO,
        };
        TreeVersions { all: vec![empty], is_pending: false, synced_index: 0 }
    }
}

impl TreeVersions {
    pub(crate) fn last_certain(&self) -> &TreeVersion {
        &self.all[self.last_certain_index()]
    }

    /// The last version, certain or not.
    pub(crate) fn newest(&self) -> &TreeVersion {
        self.all.last().expect("there is always the empty one")
    }

    pub(crate) fn at(&self, nth: usize) -> &TreeVersion {
        &self.all[nth]
    }

    /// One of the retained versions, counted from the newest.
    pub(crate) fn nth_newest(&self, count: usize) -> &TreeVersion {
        &self.all[self.all.len().saturating_sub(count + 1)]
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    pub(crate) fn last_certain_index(&self) -> usize {
        self.all.len() - 1 - usize::from(self.is_pending)
    }

    /// Records that a change is sent, which makes `tree` and is stamped above `after`.
    pub(crate) fn begin_change(&mut self, tree: ModelTree, after: Hlc) {
        assert!(!self.is_pending, "one change is on its way at a time");
        self.all.push(TreeVersion { tree, stamp_above: after, stamp_at_most: Hlc::MAX });
        self.is_pending = true;
    }

    /// Records that it has happened, with this tree, and a stamp between these.
    pub(crate) fn complete_change(&mut self, tree: ModelTree, after: Hlc, by: Hlc) {
        assert!(self.is_pending, "a change was sent");
        self.is_pending = false;
        let newest = self.all.last_mut().expect("there is always the empty one");
        newest.tree = tree;
        newest.stamp_above = newest.stamp_above.max(after);
        newest.stamp_at_most = newest.stamp_at_most.min(by);
    }

    /// Records that it has not happened.
    pub(crate) fn cancel_change(&mut self) {
        assert!(self.is_pending, "a change was sent");
        self.is_pending = false;
        self.all.pop();
    }

    /// Records that all that has happened is on stable storage.
    pub(crate) fn mark_synced(&mut self) {
        self.synced_index = self.last_certain_index();
    }

    /// The versions that may be seen in the cut with this bound, earliest first, by index.
    pub(crate) fn within(&self, bound: Hlc) -> impl Iterator<Item = (usize, &TreeVersion)> {
        let may_be = move |(nth, version): &(usize, &TreeVersion)| {
            let next = self.all.get(nth + 1);
            (*nth == 0 || version.may_be_in(bound)) && next.is_none_or(|n| n.may_be_outside(bound))
        };
        self.all.iter().enumerate().filter(may_be)
    }

    /// The versions that may be there at the start of an incarnation, latest first.
    pub(crate) fn at_start(&self, lost_power: bool) -> impl Iterator<Item = (usize, &TreeVersion)> {
        let least = if lost_power { self.synced_index } else { self.last_certain_index() };
        self.all.iter().enumerate().skip(least).rev()
    }

    /// A version was seen in the cut with this bound: so its change is in it, and the next one's is
    /// not.
    pub(crate) fn narrow_stamps(&mut self, nth: usize, bound: Hlc) {
        let last = bound.previous();
        for version in &mut self.all[..=nth] {
            version.stamp_at_most = version.stamp_at_most.min(last);
        }
        for version in &mut self.all[nth + 1..] {
            version.stamp_above = version.stamp_above.max(last);
        }
    }

    /// An incarnation starts with one of the versions: the changes after it never happened. The
    /// versions from `first` on look the same, so it is unknown whether the changes between them
    /// happened. Files that those changes created without a name may be created again, and may not
    /// be seen at a later moment.
    pub(crate) fn restart_from(
        &mut self,
        first: usize,
        nth: usize,
        mut tree: ModelTree,
        frontier: Hlc,
    ) {
        tree.drop_unlinked_since(&self.all[first].tree);
        self.all.truncate(nth + 1);
        for version in &mut self.all[first + 1..] {
            version.stamp_at_most = frontier;
        }
        self.is_pending = false;
        self.synced_index = self.synced_index.min(nth);
        let newest = self.all.last_mut().expect("there is always the empty one");
        newest.tree = tree;
        newest.stamp_at_most = newest.stamp_at_most.min(frontier);
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;
    use crate::model_tree::ModelChange;

    /// A directory was created and removed, neither was synced, and the machine lost its power: the
    /// files look the same before and after.
    #[test]
    fn what_may_have_been_lost_unseen_may_be_made_again_and_may_not_be_seen() {
        let stamp = |ms| Hlc::at(SysTime(ms));
        let mut versions = TreeVersions::default();
        let made = ModelChange::MakeDirectory { name: "d".to_owned(), mode: 0o700 };
        let removed = ModelChange::RemoveDirectory { name: "d".to_owned() };
        for (change, ms) in [(made, 10), (removed, 20)] {
            let tree = versions.last_certain().tree.after(&change, 7, stamp(ms)).unwrap();
            versions.begin_change(tree.clone(), stamp(ms - 1));
            versions.complete_change(tree, stamp(ms - 1), stamp(ms));
        }
        let seen = |versions: &TreeVersions| {
            let within = versions.within(stamp(15));
            within.map(|(_, version)| version.tree.names(true)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&versions), [["d"]]);
        let newest = versions.newest().tree.clone();
        assert!(newest.node(7).is_some(), "somebody may have it open");
        versions.restart_from(0, 2, newest, stamp(30));
        assert!(versions.newest().tree.node(7).is_none());
        assert!(seen(&versions).contains(&Vec::new()));
    }
}
