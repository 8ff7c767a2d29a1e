//! A tree of files under POSIX rules, in plain maps: what names lead to, and how they change.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use hlc::Hlc;

/// The number of an inode that was created by a change without a response.
pub(crate) const UNKNOWN_INODE: u64 = 0;
/// The stamp of such a change.
pub(crate) const UNKNOWN_STAMP: Hlc = Hlc::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelChange {
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

/// The state of an inode, without its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelInode {
    pub(crate) inode: u64,
    pub(crate) is_directory: bool,
    pub(crate) mode: u32,
    pub(crate) bytes: Bytes,
    /// The stamp of the last change to its bytes; [`Hlc::ZERO`] if there was none.
    pub(crate) modified: Hlc,
}

/// A node under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelEntry {
    pub(crate) node: ModelInode,
    /// The number of names; not counted for a directory.
    pub(crate) links: u32,
}

/// All names with what they lead to: the result of a read of the whole tree.
pub(crate) type TreeSnapshot = BTreeMap<String, ModelEntry>;

/// Files, and names for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelTree {
    names: BTreeMap<String, u64>,
    /// Including open files without a name.
    inodes: BTreeMap<u64, ModelInode>,
}

/// The directory that a name is in; empty for the root.
fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl ModelTree {
    /// The visible state.
    pub(crate) fn snapshot(&self) -> TreeSnapshot {
        let found = |(name, inode): (&String, &u64)| {
            let node = self.inodes[inode].clone();
            let names = self.names.values().filter(|named| *named == inode).count();
            let links = if node.is_directory { 0 } else { names as u32 };
            (name.clone(), ModelEntry { node, links })
        };
        self.names.iter().map(found).collect()
    }

    /// All names, of directories or of files.
    pub(crate) fn names(&self, of_directories: bool) -> Vec<String> {
        let is_one = |inode: &u64| self.inodes[inode].is_directory == of_directories;
        let names = self.names.iter().filter(|(_, inode)| is_one(inode));
        names.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn inode(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// The state of an inode, whether it has a name or not.
    pub(crate) fn node(&self, inode: u64) -> Option<&ModelInode> {
        self.inodes.get(&inode)
    }

    pub(crate) fn has_name(&self, inode: u64) -> bool {
        self.names.values().any(|named| *named == inode)
    }

    /// The tree after a change; `None` if the change is refused. A new inode gets the number
    /// `made`, and the bytes that it changes get the stamp `stamp`.
    pub(crate) fn after(&self, change: &ModelChange, made: u64, stamp: Hlc) -> Option<ModelTree> {
        let mut tree = self.clone();
        let is_done = match change {
            ModelChange::Create { name, mode } => tree.create(name, made, *mode, false),
            ModelChange::MakeDirectory { name, mode } => tree.create(name, made, *mode, true),
            ModelChange::Rename { from, to } => tree.rename(from, to),
            ModelChange::Link { from, to } => tree.link(from, to),
            ModelChange::Unlink { name } => tree.is_file(name) && tree.names.remove(name).is_some(),
            ModelChange::RemoveDirectory { name } => {
                tree.is_empty_directory(name) && tree.names.remove(name).is_some()
            }
            ModelChange::SetMode { inode, mode } => {
                tree.inodes.get_mut(inode).map(|node| node.mode = *mode).is_some()
            }
            ModelChange::Write { inode, offset, data } => tree.modify(*inode, stamp, |bytes| {
                let (from, to) = (*offset as usize, *offset as usize + data.len());
                bytes.resize(bytes.len().max(to), 0);
                bytes[from..to].copy_from_slice(data);
            }),
            ModelChange::Truncate { inode, length } => {
                tree.modify(*inode, stamp, |bytes| bytes.resize(*length as usize, 0))
            }
            ModelChange::Punch { inode, range } => tree.modify(*inode, stamp, |bytes| {
                let (from, to) = (range.start as usize, range.end as usize);
                let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
                bytes[from..to].fill(0);
            }),
        };
        is_done.then_some(tree)
    }

    /// True if an allowed change changes nothing: a file gets a name that it has.
    pub(crate) fn is_no_op(&self, change: &ModelChange) -> bool {
        match change {
            ModelChange::Rename { from, to } => self.inode(from) == self.inode(to),
            _ => false,
        }
    }

    fn is_directory(&self, name: &str) -> bool {
        name.is_empty() || self.names.get(name).is_some_and(|inode| self.inodes[inode].is_directory)
    }

    fn is_file(&self, name: &str) -> bool {
        self.names.contains_key(name) && !self.is_directory(name)
    }

    fn is_empty_directory(&self, name: &str) -> bool {
        self.is_directory(name) && !self.names.keys().any(|other| parent(other) == name)
    }

    /// True if a new name can be created.
    fn can_create(&self, name: &str) -> bool {
        !self.names.contains_key(name) && self.is_directory(parent(name))
    }

    fn create(&mut self, name: &str, inode: u64, mode: u32, is_directory: bool) -> bool {
        if !self.can_create(name) {
            return false;
        }
        let (bytes, modified) = (Bytes::new(), Hlc::ZERO);
        self.names.insert(name.to_owned(), inode);
        self.inodes.insert(inode, ModelInode { inode, is_directory, mode, bytes, modified });
        true
    }

    fn link(&mut self, from: &str, to: &str) -> bool {
        if !(self.is_file(from) && self.can_create(to)) {
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
        let can_replace = if is_directory { self.is_empty_directory(to) } else { self.is_file(to) };
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

    fn modify(&mut self, inode: u64, stamp: Hlc, act: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(node) = self.inodes.get_mut(&inode).filter(|node| !node.is_directory) else {
            return false;
        };
        let mut bytes = node.bytes.to_vec();
        act(&mut bytes);
        (node.bytes, node.modified) = (bytes.into(), stamp);
        true
    }
}

impl ModelTree {
    /// Forgets nodes without a name that `earlier` does not have: it is unknown whether they were
    /// ever created, and nothing has them open.
    pub(crate) fn drop_unlinked_since(&mut self, earlier: &ModelTree) {
        let named: Vec<u64> = self.names.values().copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode) || earlier.inodes.contains_key(inode));
    }

    /// Fills in what was unknown from what is seen.
    pub(crate) fn fill_unknowns(&mut self, sight: &TreeSnapshot) {
        for (name, inode) in &mut self.names {
            let Some(found) = sight.get(name) else { continue };
            let Some(mut node) = self.inodes.remove(inode) else { continue };
            (*inode, node.inode) = (found.node.inode, found.node.inode);
            if node.modified == UNKNOWN_STAMP {
                node.modified = found.node.modified;
            }
            self.inodes.insert(node.inode, node);
        }
    }
}

/// The first difference between what should be seen and what is, as text.
pub(crate) fn first_difference(expected: &TreeSnapshot, seen: &TreeSnapshot) -> Option<String> {
    let added = seen.keys().find(|name| !expected.contains_key(*name));
    if let Some(name) = added {
        return Some(format!("{name} should not be there"));
    }
    expected.iter().find_map(|(name, expected)| match seen.get(name) {
        Some(seen) if expected.matches(seen) => None,
        Some(seen) => Some(format!(
            "{name} is {}, and not {}; bytes differ at {:?}",
            seen.describe(),
            expected.describe(),
            first_byte_difference(&expected.node.bytes, &seen.node.bytes),
        )),
        None => Some(format!("{name} is missing")),
    })
}

fn first_byte_difference(expected: &[u8], seen: &[u8]) -> Option<usize> {
    let common = expected.len().min(seen.len());
    let differs = (0..common).find(|at| expected[*at] != seen[*at]);
    differs.or_else(|| (expected.len() != seen.len()).then_some(common))
}

impl ModelEntry {
    /// True if this is what was seen, as far as it is known.
    fn matches(&self, seen: &ModelEntry) -> bool {
        let mut node = self.node.clone();
        if node.inode == UNKNOWN_INODE {
            node.inode = seen.node.inode;
        }
        if node.modified == UNKNOWN_STAMP {
            node.modified = seen.node.modified;
        }
        (node, self.links) == (seen.node.clone(), seen.links)
    }

    fn describe(&self) -> String {
        let ModelInode { inode, is_directory, mode, bytes, modified } = &self.node;
        let kind = if *is_directory { "directory" } else { "file" };
        let (links, length) = (self.links, bytes.len());
        format!(
            "{kind} {inode}, mode {mode:o}, {links} names, {length} bytes, modified at {modified}"
        )
    }
}
