//! The tree of hashes over the leaves of a segment, after RFC 6962, section 2.1. Leaves can be
//! pruned from a proof, and the rest still leads to the same root.

use super::Digest;

/// A hash that stands for `leaves` adjacent leaves, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subtree {
    pub(super) leaves: u64,
    pub(super) digest: Digest,
}

impl Subtree {
    /// The subtree of two of the same size.
    fn join(left: Subtree, right: Subtree) -> Subtree {
        Subtree { leaves: left.leaves * 2, digest: left.digest.follow(right.digest) }
    }
}

/// The root of a tree, computed as its leaves and subtrees arrive, in order. It takes memory that
/// grows with the logarithm of their number.
#[derive(Clone, Debug, Default)]
pub(super) struct HashTree {
    leaves: u64,
    /// Each smaller than the one before.
    peaks: Vec<Subtree>,
}

impl HashTree {
    /// Adds the next subtree. `None` if no subtree of that size can begin here.
    pub(super) fn add(&mut self, next: Subtree) -> Option<()> {
        if !next.leaves.is_power_of_two() || !self.leaves.is_multiple_of(next.leaves) {
            return None;
        }
        self.leaves = self.leaves.checked_add(next.leaves)?;
        self.peaks.push(next);
        while let [.., left, right] = self.peaks[..]
            && left.leaves == right.leaves
        {
            self.peaks.truncate(self.peaks.len() - 2);
            self.peaks.push(Subtree::join(left, right));
        }
        Some(())
    }

    /// The number of its leaves.
    pub(super) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Its root; zeros if it has no leaves.
    pub(super) fn root(&self) -> Digest {
        let peaks = self.peaks.iter().rev().map(|peak| peak.digest);
        peaks.reduce(|right, left| left.follow(right)).unwrap_or_default()
    }
}

/// Joins adjacent leaves that are to be pruned, as far as the tree allows.
#[derive(Debug, Default)]
pub(super) struct SubtreePruner {
    /// The number of leaves that were added so far.
    leaves: u64,
    pruned: Vec<Subtree>,
}

impl SubtreePruner {
    /// Passes over a leaf that stays. Subtrees that were pruned before it have to be
    /// [taken](SubtreePruner::take) first.
    pub(super) fn keep(&mut self) {
        debug_assert!(self.pruned.is_empty(), "what comes before it is taken first");
        self.leaves += 1;
    }

    /// Prunes the next subtree.
    pub(super) fn remove(&mut self, next: Subtree) {
        self.leaves += next.leaves;
        self.pruned.push(next);
        while let [.., left, right] = self.pruned[..]
            && left.leaves == right.leaves
            && (self.leaves - 2 * left.leaves).is_multiple_of(2 * left.leaves)
        {
            self.pruned.truncate(self.pruned.len() - 2);
            self.pruned.push(Subtree::join(left, right));
        }
    }

    /// The subtrees that stand for all that was pruned since the last call.
    pub(super) fn take(&mut self) -> Vec<Subtree> {
        std::mem::take(&mut self.pruned)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition of RFC 6962: split at the largest power of two below the number of leaves.
    fn root_of(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => Digest::default(),
            [leaf] => *leaf,
            _ => {
                let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
                root_of(left).follow(root_of(right))
            }
        }
    }

    type Stays = fn(&(bool, bool)) -> bool;

    fn leaf(nth: u64) -> Subtree {
        Subtree { leaves: 1, digest: Digest(*blake3::hash(&nth.to_le_bytes()).as_bytes()) }
    }

    proptest! {
        #[test]
        fn what_is_taken_out_again_and_again_leaves_the_root_as_it_was(
            kept in prop::collection::vec((any::<bool>(), any::<bool>()), 0..200),
        ) {
            let leaves: Vec<Digest> = (0..kept.len() as u64).map(|nth| leaf(nth).digest).collect();
            let mut row: Vec<(Subtree, bool)> =
                (0..kept.len() as u64).map(|nth| (leaf(nth), true)).collect();
            let mut at_first = HashTree::default();
            row.iter().for_each(|(leaf, _)| at_first.add(*leaf).unwrap());
            prop_assert_eq!(at_first.root(), root_of(&leaves));
            let rounds: [Stays; 3] = [|kept| kept.0, |kept| kept.0 && kept.1, |_| false];
            for stays in rounds {
                let (mut thinning, mut thinned, mut nth) = (SubtreePruner::default(), Vec::new(), 0);
                for (subtree, is_leaf) in row {
                    let stays = is_leaf && stays(&kept[nth]);
                    nth += subtree.leaves as usize;
                    if stays {
                        thinned.extend(thinning.take().into_iter().map(|gone| (gone, false)));
                        thinning.keep();
                        thinned.push((subtree, true));
                    } else {
                        thinning.remove(subtree);
                    }
                }
                thinned.extend(thinning.take().into_iter().map(|gone| (gone, false)));
                row = thinned;
                let mut tree = HashTree::default();
                for (subtree, _) in &row {
                    prop_assert!(tree.add(*subtree).is_some());
                }
                prop_assert_eq!((tree.leaves(), tree.root()), (leaves.len() as u64, root_of(&leaves)));
            }
            prop_assert!(row.len() <= 8, "nothing is kept, and {} hashes are", row.len());
        }
    }

    #[test]
    fn a_subtree_where_none_can_begin_is_refused() {
        let mut tree = HashTree::default();
        tree.add(leaf(0)).unwrap();
        for leaves in [0, 2, 3, 1 << 63] {
            assert_eq!(tree.add(Subtree { leaves, ..leaf(1) }), None, "{leaves}");
        }
    }
}
