//! The inode numbers by which the kernel knows files, and their nodes.
//!
//! A file of the present has its own inode number, so it is found without a table. Every other node
//! stays in the table as long as the kernel remembers it. The kernel counts its lookups and says
//! how many of them it forgets.
//!
//! The kernel caches by number. So when retention or compaction removes records and a node of the
//! past shows other bytes, it gets another number. An open file stays the same.

use std::collections::HashMap;

use engine::files::Inode;
use fuser::FileAttr;
use parking_lot::Mutex;

use super::errno::FuseErrno;
use crate::tree::ViewNode;

/// The node that a number stands for.
#[derive(Clone, Debug)]
pub(super) enum MountNode {
    /// A file or directory that can be changed.
    File(Inode),
    /// Any other node of the tree, with its version ([`crate::tree::ViewTree::version`]).
    Tree(ViewNode, u64),
}

struct InodeEntry {
    node: ViewNode,
    version: u64,
    /// The attributes that the kernel received last.
    attributes: Option<FileAttr>,
    /// The kernel's lookup count.
    lookups: u64,
}

/// The nodes that the kernel knows and that do not follow from their number.
#[derive(Default)]
pub(super) struct InodeTable {
    entries: Mutex<HashMap<u64, InodeEntry>>,
}

/// Numbers from here on belong to nodes that have no inode of their own.
const SYNTHETIC_INODE_MIN: u64 = 1 << 63;

impl MountNode {
    /// A node in a version.
    pub(super) fn of(node: ViewNode, version: u64) -> MountNode {
        match node {
            ViewNode::File { inode, cut: None } => MountNode::File(inode),
            node => MountNode::Tree(node, version),
        }
    }

    /// The number by which the kernel knows the node.
    pub(super) fn number(&self) -> u64 {
        match self {
            MountNode::File(inode) => inode_number(*inode),
            MountNode::Tree(node, 0) => node.inode(),
            // Both are hashes.
            MountNode::Tree(node, version) => (node.inode() ^ version) | SYNTHETIC_INODE_MIN,
        }
    }

    pub(super) fn view_node(&self) -> ViewNode {
        match self {
            MountNode::File(inode) => ViewNode::File { inode: *inode, cut: None },
            MountNode::Tree(node, _) => node.clone(),
        }
    }
}

/// The number of a file of the present.
pub(super) fn inode_number(inode: Inode) -> u64 {
    ViewNode::File { inode, cut: None }.inode()
}

impl InodeTable {
    /// The node with this `number`.
    pub(super) fn find(&self, number: u64) -> Result<MountNode, FuseErrno> {
        if number == ViewNode::Root(None).inode() {
            return Ok(MountNode::Tree(ViewNode::Root(None), 0));
        }
        if number == self::inode_number(Inode::ROOT) {
            return Ok(MountNode::File(Inode::ROOT));
        }
        if number < SYNTHETIC_INODE_MIN {
            return Ok(MountNode::File(Inode(number)));
        }
        let entries = self.entries.lock();
        let entry = entries.get(&number).ok_or(FuseErrno::STALE)?;
        Ok(MountNode::Tree(entry.node.clone(), entry.version))
    }

    /// The attributes that the kernel received last for a number that it knows.
    pub(super) fn attributes(&self, number: u64) -> Option<FileAttr> {
        self.entries.lock().get(&number)?.attributes
    }

    /// Counts a lookup of `place` that the kernel is about to receive, with its attributes. Returns
    /// the number.
    pub(super) fn add_lookup(
        &self,
        place: &MountNode,
        attributes: Option<FileAttr>,
    ) -> Result<u64, FuseErrno> {
        let number = place.number();
        let MountNode::Tree(node, version) = place else { return Ok(number) };
        let mut entries = self.entries.lock();
        let entry = entries.entry(number).or_insert_with(|| InodeEntry {
            node: node.clone(),
            version: *version,
            attributes: None,
            lookups: 0,
        });
        // Two nodes have the same number: the chance is one in 2^63.
        if entry.node != *node || entry.version != *version {
            return Err(FuseErrno::IO);
        }
        entry.attributes = attributes.or(entry.attributes);
        entry.lookups += 1;
        Ok(number)
    }

    /// Subtracts `times` from the lookup count of `number`, because the kernel has forgotten that
    /// many lookups.
    pub(super) fn forget(&self, number: u64, times: u64) {
        if number < SYNTHETIC_INODE_MIN {
            return;
        }
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&number) {
            entry.lookups = entry.lookups.saturating_sub(times);
            if entry.lookups == 0 {
                entries.remove(&number);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.entries.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use hlc::Cut;

    use super::*;

    #[test]
    fn an_inode_forgotten_as_often_as_it_was_looked_up_is_removed() {
        let nodes = InodeTable::default();
        let place = MountNode::Tree(ViewNode::Topics(None), 0);
        let number = nodes.add_lookup(&place, None).unwrap();
        assert_eq!(nodes.add_lookup(&place, None).unwrap(), number);
        nodes.forget(number, 1);
        assert!(matches!(nodes.find(number), Ok(MountNode::Tree(ViewNode::Topics(None), 0))));
        nodes.forget(number, 1);
        assert_eq!(nodes.find(number).unwrap_err(), FuseErrno::STALE);
        assert_eq!(nodes.count(), 0);
    }

    #[test]
    fn present_files_are_found_without_a_lookup() {
        let nodes = InodeTable::default();
        for inode in [Inode::ROOT, Inode(2), Inode(1 << 40)] {
            let number = nodes.add_lookup(&MountNode::File(inode), None).unwrap();
            assert!(matches!(nodes.find(number), Ok(MountNode::File(found)) if found == inode));
        }
        assert!(matches!(nodes.find(1), Ok(MountNode::Tree(ViewNode::Root(None), 0))));
        let past = ViewNode::File { inode: Inode(2), cut: Some(Cut::ALL) };
        assert!(nodes.add_lookup(&MountNode::Tree(past, 0), None).unwrap() >= SYNTHETIC_INODE_MIN);
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn each_version_has_its_own_number_and_attributes() {
        let nodes = InodeTable::default();
        let node = |version| MountNode::Tree(ViewNode::Pin("p".into()), version);
        let attributes =
            |size| Some(FileAttr { size, ..super::super::attributes::negative_entry() });
        let [first, second] =
            [7, 8].map(|nth| nodes.add_lookup(&node(nth), attributes(nth)).unwrap());
        assert_ne!(first, second);
        assert_eq!(nodes.add_lookup(&node(7), None).unwrap(), first);
        assert_eq!(nodes.attributes(first).unwrap().size, 7);
        nodes.forget(second, 1);
        assert_eq!(nodes.attributes(second), None);
        assert!(matches!(nodes.find(first), Ok(MountNode::Tree(ViewNode::Pin(_), 7))));
    }
}
