//! All that files ever were, one version after each change, and when each change happened, as far as that
//! is known.

use hlc::Hlc;

use crate::tree::Tree;

/// The tree from one change on.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) tree: Tree,
    /// The change has a stamp above this one …
    pub(crate) after: Hlc,
    /// … and at most this one.
    pub(crate) by: Hlc,
}

impl Version {
    fn may_be_in(&self, bound: Hlc) -> bool {
        self.after.next() < bound
    }

    fn may_be_outside(&self, bound: Hlc) -> bool {
        self.by >= bound
    }
}

/// What files were, in order.
#[derive(Debug)]
pub(crate) struct Versions {
    all: Vec<Version>,
    /// Whether the last one is of a change that was sent, and of which it is not known that it happened.
    is_pending: bool,
    /// The last one that is on stable storage for certain.
    synced: usize,
}

impl Default for Versions {
    fn default() -> Versions {
        let empty = Version { tree: Tree::default(), after: Hlc::ZERO, by: Hlc::ZERO };
        Versions { all: vec![empty], is_pending: false, synced: 0 }
    }
}

impl Versions {
    /// The last one that is certain.
    pub(crate) fn last(&self) -> &Version {
        &self.all[self.last_place()]
    }

    /// The last one, certain or not.
    pub(crate) fn newest(&self) -> &Version {
        self.all.last().expect("there is always the empty one")
    }

    /// The one at a place.
    pub(crate) fn at(&self, nth: usize) -> &Version {
        &self.all[nth]
    }

    /// One of those that are kept in mind, counted from the newest.
    pub(crate) fn back(&self, count: usize) -> &Version {
        &self.all[self.all.len().saturating_sub(count + 1)]
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// The place of the last one that is certain.
    pub(crate) fn last_place(&self) -> usize {
        self.all.len() - 1 - usize::from(self.is_pending)
    }

    /// A change is sent, which makes `tree` and is stamped above `after`.
    pub(crate) fn send(&mut self, tree: Tree, after: Hlc) {
        assert!(!self.is_pending, "one change is on its way at a time");
        self.all.push(Version { tree, after, by: Hlc::MAX });
        self.is_pending = true;
    }

    /// It has happened: the tree is as said, and its stamp between those said.
    pub(crate) fn happened(&mut self, tree: Tree, after: Hlc, by: Hlc) {
        assert!(self.is_pending, "a change was sent");
        self.is_pending = false;
        let newest = self.all.last_mut().expect("there is always the empty one");
        newest.tree = tree;
        newest.after = newest.after.max(after);
        newest.by = newest.by.min(by);
    }

    /// It has not.
    pub(crate) fn failed(&mut self) {
        assert!(self.is_pending, "a change was sent");
        self.is_pending = false;
        self.all.pop();
    }

    /// All that has happened is on stable storage.
    pub(crate) fn synced(&mut self) {
        self.synced = self.last_place();
    }

    /// What may be seen in the cut with this bound, earliest first: each by its place.
    pub(crate) fn within(&self, bound: Hlc) -> impl Iterator<Item = (usize, &Version)> {
        let may_be = move |(nth, version): &(usize, &Version)| {
            let next = self.all.get(nth + 1);
            (*nth == 0 || version.may_be_in(bound)) && next.is_none_or(|n| n.may_be_outside(bound))
        };
        self.all.iter().enumerate().filter(may_be)
    }

    /// What may be there when a life begins, latest first.
    pub(crate) fn at_start(&self, lost_power: bool) -> impl Iterator<Item = (usize, &Version)> {
        let least = match lost_power {
            true => self.synced,
            false => self.last_place(),
        };
        self.all.iter().enumerate().skip(least).rev()
    }

    /// In the cut with this bound one was seen: so its change is in it, and the next one's is not.
    pub(crate) fn saw(&mut self, nth: usize, bound: Hlc) {
        let last = bound.previous();
        for version in &mut self.all[..=nth] {
            version.by = version.by.min(last);
        }
        for version in &mut self.all[nth + 1..] {
            version.after = version.after.max(last);
        }
    }

    /// A life begins with one of them: what came after it never happened. Those from `first` on look the
    /// same, and then whether it and what lies between happened is not known: what was made there and has no
    /// name may be made again, and at a moment from then on it may not be seen.
    pub(crate) fn begin_with(
        &mut self,
        (first, nth): (usize, usize),
        mut tree: Tree,
        frontier: Hlc,
    ) {
        tree.forget_nameless_since(&self.all[first].tree);
        self.all.truncate(nth + 1);
        for version in &mut self.all[first + 1..] {
            version.by = frontier;
        }
        self.is_pending = false;
        self.synced = self.synced.min(nth);
        let newest = self.all.last_mut().expect("there is always the empty one");
        newest.tree = tree;
        newest.by = newest.by.min(frontier);
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;
    use crate::tree::Change;

    /// A directory was made and removed, neither was synced, and the machine lost its power: files look as
    /// they did before, and as they did after.
    #[test]
    fn what_may_have_been_lost_unseen_may_be_made_again_and_may_not_be_seen() {
        let stamp = |ms| Hlc::at(SysTime(ms));
        let mut versions = Versions::default();
        let made = Change::MakeDirectory { name: "d".to_owned(), mode: 0o700 };
        let removed = Change::RemoveDirectory { name: "d".to_owned() };
        for (change, ms) in [(made, 10), (removed, 20)] {
            let tree = versions.last().tree.after(&change, 7, stamp(ms)).unwrap();
            versions.send(tree.clone(), stamp(ms - 1));
            versions.happened(tree, stamp(ms - 1), stamp(ms));
        }
        let seen = |versions: &Versions| {
            let within = versions.within(stamp(15));
            within.map(|(_, version)| version.tree.names(true)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&versions), [["d"]]);
        let newest = versions.newest().tree.clone();
        assert!(newest.node(7).is_some(), "somebody may have it open");
        versions.begin_with((0, 2), newest, stamp(30));
        assert!(versions.newest().tree.node(7).is_none());
        assert!(seen(&versions).contains(&Vec::new()));
    }
}
