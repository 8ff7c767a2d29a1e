//! What the numbers mean by which the kernel knows files.
//!
//! A file of the present is its inode's number, and so is found without being remembered. Everything
//! else is remembered for as long as the kernel does, which says so: it counts what it was told, and
//! forgets that many.

use std::collections::HashMap;

use engine::files::Inode;
use parking_lot::Mutex;

use super::refused::Refused;
use crate::tree::Node;

/// What a number means.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A file or directory that can be changed.
    File(Inode),
    /// Anything else of the tree.
    Tree(Node),
}

struct Known {
    node: Node,
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
    pub(super) fn of(node: Node) -> Place {
        match node {
            Node::File { inode, cut: None } => Place::File(inode),
            node => Place::Tree(node),
        }
    }

    /// The node that the tree knows.
    pub(super) fn node(&self) -> Node {
        match self {
            Place::File(inode) => Node::File { inode: *inode, cut: None },
            Place::Tree(node) => node.clone(),
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
            return Ok(Place::Tree(Node::Root(None)));
        }
        if number == self::number(Inode::ROOT) {
            return Ok(Place::File(Inode::ROOT));
        }
        if number < MADE {
            return Ok(Place::File(Inode(number)));
        }
        let known = self.known.lock();
        known.get(&number).map(|known| Place::Tree(known.node.clone())).ok_or(Refused::STALE)
    }

    /// The kernel is about to be told of `place` once more; returns the number.
    pub(super) fn tell(&self, place: &Place) -> Result<u64, Refused> {
        let node = match place {
            Place::File(inode) => return Ok(number(*inode)),
            Place::Tree(node) => node,
        };
        let number = node.inode();
        let mut known = self.known.lock();
        let entry = known.entry(number).or_insert_with(|| Known { node: node.clone(), told: 0 });
        // Two nodes of one number: one in 2^63.
        if entry.node != *node {
            return Err(Refused::IO);
        }
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
        let place = Place::Tree(Node::Topics(None));
        let number = nodes.tell(&place).unwrap();
        assert_eq!(nodes.tell(&place).unwrap(), number);
        nodes.forget(number, 1);
        assert!(matches!(nodes.find(number), Ok(Place::Tree(Node::Topics(None)))));
        nodes.forget(number, 1);
        assert_eq!(nodes.find(number).unwrap_err(), Refused::STALE);
        assert_eq!(nodes.count(), 0);
    }

    #[test]
    fn files_of_the_present_are_found_without_being_told_of() {
        let nodes = Nodes::default();
        for inode in [Inode::ROOT, Inode(2), Inode(1 << 40)] {
            let number = nodes.tell(&Place::File(inode)).unwrap();
            assert!(matches!(nodes.find(number), Ok(Place::File(found)) if found == inode));
        }
        assert!(matches!(nodes.find(1), Ok(Place::Tree(Node::Root(None)))));
        let past = Node::File { inode: Inode(2), cut: Some(Cut::ALL) };
        assert!(nodes.tell(&Place::Tree(past)).unwrap() >= MADE);
        assert_eq!(nodes.count(), 1);
    }
}
