//! A tree of files as POSIX has it, in plain maps: what names lead to, and what becomes of them.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use hlc::Hlc;

/// The number of an inode that is made by a change of which nobody was told.
pub(crate) const UNKNOWN_INODE: u64 = 0;
/// The stamp of such a change.
pub(crate) const UNKNOWN_STAMP: Hlc = Hlc::MAX;

/// A change to files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Create { name: String, mode: u32 },
    MakeDirectory { name: String, mode: u32 },
    Write { inode: u64, offset: u64, data: Bytes },
    Truncate { inode: u64, length: u64 },
    Punch { inode: u64, range: Range<u64> },
    Rename { from: String, to: String },
    Link { from: String, to: String },
    Unlink { name: String },
    RemoveDirectory { name: String },
    SetMode { inode: u64, mode: u32 },
}

/// What an inode is, without its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) inode: u64,
    pub(crate) is_directory: bool,
    pub(crate) mode: u32,
    pub(crate) bytes: Bytes,
    /// The stamp of the last change to its bytes; [`Hlc::ZERO`] if there was none.
    pub(crate) modified: Hlc,
}

/// A node under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) node: Node,
    /// How many names it has; of a directory it is not said.
    pub(crate) links: u32,
}

/// All names with what they lead to: what somebody who looks at the whole tree sees.
pub(crate) type Sight = BTreeMap<String, Found>;

/// Files, and names for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    names: BTreeMap<String, u64>,
    /// Also those that have no name any more, but somebody has open.
    nodes: BTreeMap<u64, Node>,
}

/// The directory that a name is in; empty for the root.
fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Tree {
    /// What is to be seen of it.
    pub(crate) fn sight(&self) -> Sight {
        let found = |(name, inode): (&String, &u64)| {
            let node = self.nodes[inode].clone();
            let names = self.names.values().filter(|named| *named == inode).count();
            let links = if node.is_directory { 0 } else { names as u32 };
            (name.clone(), Found { node, links })
        };
        self.names.iter().map(found).collect()
    }

    /// The names that there are, of directories or of files.
    pub(crate) fn names(&self, of_directories: bool) -> Vec<String> {
        let is_one = |inode: &u64| self.nodes[inode].is_directory == of_directories;
        let names = self.names.iter().filter(|(_, inode)| is_one(inode));
        names.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn inode(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// What an inode is, whether it has a name or not.
    pub(crate) fn node(&self, inode: u64) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    pub(crate) fn has_name(&self, inode: u64) -> bool {
        self.names.values().any(|named| *named == inode)
    }

    /// The tree after a change; `None` if that is refused. What it makes gets the number `made`, and the
    /// bytes that it changes the stamp `stamp`.
    pub(crate) fn after(&self, change: &Change, made: u64, stamp: Hlc) -> Option<Tree> {
        let mut tree = self.clone();
        let is_done = match change {
            Change::Create { name, mode } => tree.make(name, made, *mode, false),
            Change::MakeDirectory { name, mode } => tree.make(name, made, *mode, true),
            Change::Rename { from, to } => tree.rename(from, to),
            Change::Link { from, to } => tree.link(from, to),
            Change::Unlink { name } => tree.is_file(name) && tree.names.remove(name).is_some(),
            Change::RemoveDirectory { name } => {
                tree.is_empty_directory(name) && tree.names.remove(name).is_some()
            }
            Change::SetMode { inode, mode } => {
                tree.nodes.get_mut(inode).map(|node| node.mode = *mode).is_some()
            }
            Change::Write { inode, offset, data } => tree.edit(*inode, stamp, |bytes| {
                let (from, to) = (*offset as usize, *offset as usize + data.len());
                bytes.resize(bytes.len().max(to), 0);
                bytes[from..to].copy_from_slice(data);
            }),
            Change::Truncate { inode, length } => {
                tree.edit(*inode, stamp, |bytes| bytes.resize(*length as usize, 0))
            }
            Change::Punch { inode, range } => tree.edit(*inode, stamp, |bytes| {
                let (from, to) = (range.start as usize, range.end as usize);
                let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
                bytes[from..to].fill(0);
            }),
        };
        is_done.then_some(tree)
    }

    /// Whether a change that is allowed changes nothing: a file is given a name that it has.
    pub(crate) fn stays_with(&self, change: &Change) -> bool {
        match change {
            Change::Rename { from, to } => self.inode(from) == self.inode(to),
            _ => false,
        }
    }

    fn is_directory(&self, name: &str) -> bool {
        name.is_empty() || self.names.get(name).is_some_and(|inode| self.nodes[inode].is_directory)
    }

    fn is_file(&self, name: &str) -> bool {
        self.names.contains_key(name) && !self.is_directory(name)
    }

    fn is_empty_directory(&self, name: &str) -> bool {
        self.is_directory(name) && !self.names.keys().any(|other| parent(other) == name)
    }

    /// Whether a new name can be made.
    fn is_free(&self, name: &str) -> bool {
        !self.names.contains_key(name) && self.is_directory(parent(name))
    }

    fn make(&mut self, name: &str, inode: u64, mode: u32, is_directory: bool) -> bool {
        if !self.is_free(name) {
            return false;
        }
        let (bytes, modified) = (Bytes::new(), Hlc::ZERO);
        self.names.insert(name.to_owned(), inode);
        self.nodes.insert(inode, Node { inode, is_directory, mode, bytes, modified });
        true
    }

    fn link(&mut self, from: &str, to: &str) -> bool {
        if !(self.is_file(from) && self.is_free(to)) {
            return false;
        }
        self.names.insert(to.to_owned(), self.names[from]);
        true
    }

    fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(moved) = self.inode(from) else { return false };
        let (is_directory, replaced) = (self.is_directory(from), self.inode(to));
        if !self.is_directory(parent(to)) || (is_directory && to.starts_with(&format!("{from}/"))) {
            return false;
        }
        if replaced == Some(moved) {
            return true;
        }
        let can_replace = match is_directory {
            true => self.is_empty_directory(to),
            false => self.is_file(to),
        };
        if replaced.is_some() && !can_replace {
            return false;
        }
        let inside = format!("{from}/");
        let moves = |name: &String| name == from || name.starts_with(&inside);
        let old: Vec<String> = self.names.keys().filter(|name| moves(name)).cloned().collect();
        for name in old {
            let inode = self.names.remove(&name).expect("it was just found");
            self.names.insert(format!("{to}{}", &name[from.len()..]), inode);
        }
        true
    }

    fn edit(&mut self, inode: u64, stamp: Hlc, act: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(node) = self.nodes.get_mut(&inode).filter(|node| !node.is_directory) else {
            return false;
        };
        let mut bytes = node.bytes.to_vec();
        act(&mut bytes);
        (node.bytes, node.modified) = (bytes.into(), stamp);
        true
    }
}

impl Tree {
    /// Forgets nodes without a name that `earlier` does not have: whether they were ever made is not known,
    /// and nobody has them open.
    pub(crate) fn forget_nameless_since(&mut self, earlier: &Tree) {
        let named: Vec<u64> = self.names.values().copied().collect();
        self.nodes.retain(|inode, _| named.contains(inode) || earlier.nodes.contains_key(inode));
    }

    /// What was not known of it is as it is seen to be.
    pub(crate) fn learn(&mut self, sight: &Sight) {
        for (name, inode) in &mut self.names {
            let Some(found) = sight.get(name) else { continue };
            let Some(mut node) = self.nodes.remove(inode) else { continue };
            (*inode, node.inode) = (found.node.inode, found.node.inode);
            if node.modified == UNKNOWN_STAMP {
                node.modified = found.node.modified;
            }
            self.nodes.insert(node.inode, node);
        }
    }
}

/// What differs first between what should be seen and what is, in words.
pub(crate) fn difference(expected: &Sight, seen: &Sight) -> Option<String> {
    let added = seen.keys().find(|name| !expected.contains_key(*name));
    if let Some(name) = added {
        return Some(format!("{name} should not be there"));
    }
    expected.iter().find_map(|(name, expected)| match seen.get(name) {
        Some(seen) if expected.is(seen) => None,
        Some(seen) => Some(format!(
            "{name} is {}, and not {}; bytes differ at {:?}",
            seen.in_words(),
            expected.in_words(),
            first_difference(&expected.node.bytes, &seen.node.bytes),
        )),
        None => Some(format!("{name} is missing")),
    })
}

fn first_difference(expected: &[u8], seen: &[u8]) -> Option<usize> {
    let common = expected.len().min(seen.len());
    let differs = (0..common).find(|at| expected[*at] != seen[*at]);
    differs.or_else(|| (expected.len() != seen.len()).then_some(common))
}

impl Found {
    /// Whether this is what was seen, as far as it is known.
    fn is(&self, seen: &Found) -> bool {
        let mut node = self.node.clone();
        if node.inode == UNKNOWN_INODE {
            node.inode = seen.node.inode;
        }
        if node.modified == UNKNOWN_STAMP {
            node.modified = seen.node.modified;
        }
        (node, self.links) == (seen.node.clone(), seen.links)
    }

    fn in_words(&self) -> String {
        let Node { inode, is_directory, mode, bytes, modified } = &self.node;
        let kind = if *is_directory { "directory" } else { "file" };
        let (links, length) = (self.links, bytes.len());
        format!(
            "{kind} {inode}, mode {mode:o}, {links} names, {length} bytes, modified at {modified}"
        )
    }
}
