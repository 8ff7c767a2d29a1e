//! What the numbers mean by which the kernel knows files.
//!
//! A file of the present is its inode's number, and so is found without being remembered. Everything
//! else is remembered for as long as the kernel does, which says so: it counts what it was told, and
//! forgets that many.
//!
//! What the kernel keeps it keeps by number. So a node of the past that shows other bytes than before,
//! because some were given up or compacted, has another number: what was open stays what it was.

use std::collections::HashMap;

use engine::files::Inode;
use fuser::FileAttr;
use parking_lot::Mutex;

use super::refused::Refused;
use crate::tree::Node;

/// What a number means.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A file or directory that can be changed.
    File(Inode),
    /// Anything else of the tree, and in which version ([`crate::tree::Tree::version`]).
    Tree(Node, u64),
}

struct Known {
    node: Node,
    version: u64,
    /// What the kernel was told of it last.
    attributes: Option<FileAttr>,
    /// How often the kernel was told of it.
    told: u64,
}

/// What the kernel knows and we cannot tell from the number.
#[derive(Default)]
pub(super) struct Nodes {
    known: Mutex<HashMap<u64, Known>>,
}

/// Numbers from here on are of what has no inode of its own.
const MADE: u64 = 1 << 63;

impl Place {
    /// A node in a version.
    pub(super) fn of(node: Node, version: u64) -> Place {
        match node {
            Node::File { inode, cut: None } => Place::File(inode),
            node => Place::Tree(node, version),
        }
    }

    /// The number by which the kernel knows it.
    pub(super) fn number(&self) -> u64 {
        match self {
            Place::File(inode) => number(*inode),
            Place::Tree(node, 0) => node.inode(),
            // Both are hashes.
            Place::Tree(node, version) => (node.inode() ^ version) | MADE,
        }
    }

    /// The node that the tree knows.
    pub(super) fn node(&self) -> Node {
        match self {
            Place::File(inode) => Node::File { inode: *inode, cut: None },
            Place::Tree(node, _) => node.clone(),
        }
    }
}

/// The number of a file of the present.
pub(super) fn number(inode: Inode) -> u64 {
    Node::File { inode, cut: None }.inode()
}

impl Nodes {
    /// What `number` means.
    pub(super) fn find(&self, number: u64) -> Result<Place, Refused> {
        if number == Node::Root(None).inode() {
            return Ok(Place::Tree(Node::Root(None), 0));
        }
        if number == self::number(Inode::ROOT) {
            return Ok(Place::File(Inode::ROOT));
        }
        if number < MADE {
            return Ok(Place::File(Inode(number)));
        }
        let known = self.known.lock();
        let known = known.get(&number).ok_or(Refused::STALE)?;
        Ok(Place::Tree(known.node.clone(), known.version))
    }

    /// What the kernel was told last of a number that it knows.
    pub(super) fn attributes(&self, number: u64) -> Option<FileAttr> {
        self.known.lock().get(&number)?.attributes
    }

    /// The kernel is about to be told of `place` once more, and of what is known of it; returns the
    /// number.
    pub(super) fn tell(&self, place: &Place, attributes: Option<FileAttr>) -> Result<u64, Refused> {
        let number = place.number();
        let Place::Tree(node, version) = place else { return Ok(number) };
        let mut known = self.known.lock();
        let entry = known.entry(number).or_insert_with(|| Known {
            node: node.clone(),
            version: *version,
            attributes: None,
            told: 0,
        });
        // Two nodes of one number: one in 2^63.
        if entry.node != *node || entry.version != *version {
            return Err(Refused::IO);
        }
        entry.attributes = attributes.or(entry.attributes);
        entry.told += 1;
        Ok(number)
    }

    /// The kernel was told of `number` so often, and has forgotten it.
    pub(super) fn forget(&self, number: u64, times: u64) {
        if number < MADE {
            return;
        }
        let mut known = self.known.lock();
        if let Some(entry) = known.get_mut(&number) {
            entry.told = entry.told.saturating_sub(times);
            if entry.told == 0 {
                known.remove(&number);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use hlc::Cut;

    use super::*;

    #[test]
    fn what_is_forgotten_as_often_as_it_was_told_is_gone() {
        let nodes = Nodes::default();
        let place = Place::Tree(Node::Topics(None), 0);
        let number = nodes.tell(&place, None).unwrap();
        assert_eq!(nodes.tell(&place, None).unwrap(), number);
        nodes.forget(number, 1);
        assert!(matches!(nodes.find(number), Ok(Place::Tree(Node::Topics(None), 0))));
        nodes.forget(number, 1);
        assert_eq!(nodes.find(number).unwrap_err(), Refused::STALE);
        assert_eq!(nodes.count(), 0);
    }

    #[test]
    fn files_of_the_present_are_found_without_being_told_of() {
        let nodes = Nodes::default();
        for inode in [Inode::ROOT, Inode(2), Inode(1 << 40)] {
            let number = nodes.tell(&Place::File(inode), None).unwrap();
            assert!(matches!(nodes.find(number), Ok(Place::File(found)) if found == inode));
        }
        assert!(matches!(nodes.find(1), Ok(Place::Tree(Node::Root(None), 0))));
        let past = Node::File { inode: Inode(2), cut: Some(Cut::ALL) };
        assert!(nodes.tell(&Place::Tree(past, 0), None).unwrap() >= MADE);
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn each_version_has_a_number_of_its_own_and_what_was_told_of_it() {
        let nodes = Nodes::default();
        let of = |version| Place::Tree(Node::Pin("p".into()), version);
        let told = |size| Some(FileAttr { size, ..super::super::attributes::absent() });
        let [first, second] = [7, 8].map(|nth| nodes.tell(&of(nth), told(nth)).unwrap());
        assert_ne!(first, second);
        assert_eq!(nodes.tell(&of(7), None).unwrap(), first);
        assert_eq!(nodes.attributes(first).unwrap().size, 7);
        nodes.forget(second, 1);
        assert_eq!(nodes.attributes(second), None);
        assert!(matches!(nodes.find(first), Ok(Place::Tree(Node::Pin(_), 7))));
    }
}
