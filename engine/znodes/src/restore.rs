//! Puts a subtree back to what it was.
//!
//! A znode that is there, but is persistent, a container or one with a time to live where it was
//! another of these, is deleted and created again, with all below it: the lifetime of a znode
//! cannot be changed. The numbers of sequential znodes go on: behind those that were given then,
//! and since.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use engine_core::SeekError;
use hlc::Cut;

use crate::acl::Acl;
use crate::history::{PastZnode, ZnodeHistory};
use crate::path::{OWN, key_of};
use crate::request::{ZnodeLifetime, ZnodeOp};
use crate::table::ZnodeData;
use crate::tree::{ZnodeRef, ZnodeTree};
use crate::znodes::Znodes;

/// The most bytes of data and paths in a subtree that is put back.
const BYTES_MAX: usize = 256 << 20;

/// The reason that a subtree cannot be put back.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{path} did not exist then")]
    NotThere { path: String },
    #[error("the ephemeral znode {path} is in the way. Close its session, and try again")]
    Ephemeral { path: String },
    #[error("it has more than {} MiB. Restore smaller subtrees of it", BYTES_MAX >> 20)]
    TooLarge,
    #[error("{0}")]
    Seek(#[from] SeekError),
}

/// A subtree as it was.
#[derive(Debug)]
pub struct PastSubtree {
    path: String,
    znodes: BTreeMap<String, PastZnode>,
    /// The number of the next sequential znode beside it.
    next_beside: i32,
}

impl ZnodeHistory {
    /// Reads `path` and all below it in `cut`, without ephemeral znodes.
    ///
    /// # Errors
    /// It did not exist, or it is too large.
    pub fn subtree(&self, path: &str, cut: Cut) -> Result<PastSubtree, RestoreError> {
        let not_there = || RestoreError::NotThere { path: path.to_owned() };
        let path = key_of(path).to_owned();
        let mut open = vec![path.clone()];
        let (mut znodes, mut bytes) = (BTreeMap::new(), 0);
        while let Some(path) = open.pop() {
            let Some(znode) = self.get(&path, cut)? else { continue };
            if znode.lifetime == ZnodeLifetime::Ephemeral || path == OWN {
                continue;
            }
            bytes += path.len() + znode.data.as_ref().map_or(0, Vec::len);
            if bytes > BYTES_MAX {
                return Err(RestoreError::TooLarge);
            }
            if znode.stat.num_children > 0 {
                let names = self.children(&path, cut)?;
                open.extend(names.iter().map(|name| format!("{path}/{name}")));
            }
            znodes.insert(path, znode);
        }
        if !znodes.contains_key(&path) {
            return Err(not_there());
        }
        let above = match path.rsplit_once('/') {
            Some((parent, _)) => self.get(parent, cut)?,
            None => None,
        };
        let next_beside = above.map_or(0, |above| above.stat.next_sequence());
        Ok(PastSubtree { path, znodes, next_beside })
    }
}

/// A change that sets data which is not in memory.
struct UnsureChange<'a> {
    /// Its place among all changes.
    op: usize,
    path: &'a str,
    mzxid: i64,
}

impl PastSubtree {
    /// The lists of all its znodes.
    pub fn acls(&self) -> impl Iterator<Item = &Acl> {
        self.znodes.values().map(|znode| &znode.acl)
    }

    /// The changes that put it back: each expects the version that there is now. Ephemeral znodes
    /// stay. It may wait for disks. That nothing else changes meanwhile, [`Znodes::guard_subtree`]
    /// knows.
    ///
    /// # Errors
    /// [`RestoreError::Ephemeral`], or data that is not in memory cannot be read.
    pub fn changes_from(&self, znodes: &Znodes) -> Result<Vec<ZnodeOp>, RestoreError> {
        let (ops, unsure) = self.changes_from_tree(&znodes.tree())?;
        let mut needless = BTreeSet::new();
        for UnsureChange { op, path, mzxid } in unsure {
            let now = znodes.history().data_since(path, mzxid).map_err(SeekError::from)?;
            if now.as_deref() == self.znodes[path].data.as_deref() {
                needless.insert(op);
            }
        }
        let ops = ops.into_iter().enumerate().filter(|(place, _)| !needless.contains(place));
        Ok(ops.map(|(_, op)| op).collect())
    }

    /// The changes, and which of them set data that may be there already.
    fn changes_from_tree(
        &self,
        tree: &ZnodeTree,
    ) -> Result<(Vec<ZnodeOp>, Vec<UnsureChange<'_>>), RestoreError> {
        let now = self.paths_now(tree);
        let (mut stays, mut removed) = (BTreeSet::new(), Vec::new());
        // Parents come before their children: a longer path is later in this order.
        for path in &now {
            let Some(znode) = tree.get(path) else { continue };
            let parent_stays = *path == self.path
                || path.rsplit_once('/').is_some_and(|(parent, _)| stays.contains(parent));
            let past = if parent_stays { self.znodes.get(path) } else { None };
            let is_ephemeral = znode.stat().ephemeral_owner != 0;
            match past {
                Some(past) if past.lifetime == znode.lifetime() => {
                    stays.insert(path.as_str());
                }
                // One that is not in the way stays.
                None if is_ephemeral && parent_stays => {}
                Some(_) | None if is_ephemeral => {
                    return Err(RestoreError::Ephemeral { path: path.clone() });
                }
                Some(_) | None => removed.push((path, znode.stat().version)),
            }
        }
        let delete =
            |(path, version): (&String, i32)| ZnodeOp::Delete { path: path.clone(), version };
        let mut ops: Vec<ZnodeOp> = removed.into_iter().rev().map(delete).collect();
        let mut unsure = Vec::new();
        for (path, past) in &self.znodes {
            match tree.get(path) {
                Some(znode) if stays.contains(path.as_str()) => {
                    unsure.extend(put_back(path, past, znode, &mut ops));
                }
                Some(_) | None => ops.push(ZnodeOp::Create {
                    path: path.clone(),
                    data: data_of(past),
                    acl: Acl::clone(&past.acl),
                    lifetime: past.lifetime,
                    is_sequential: false,
                }),
            }
        }
        let mut raise = |path: &str, next: i32, current: i32| {
            if next.wrapping_sub(current) > 0 {
                ops.push(ZnodeOp::RaiseSequence { path: shown(path), next });
            }
        };
        let next_now = |path: &str| tree.get(path).map_or(0, |znode| znode.stat().next_sequence());
        if let Some((parent, _)) = self.path.rsplit_once('/')
            && !stays.contains(self.path.as_str())
        {
            raise(parent, self.next_beside, next_now(parent));
        }
        for (path, past) in &self.znodes {
            let current = if stays.contains(path.as_str()) { next_now(path) } else { 0 };
            raise(path, past.stat.next_sequence(), current);
        }
        Ok((ops, unsure))
    }

    fn paths_now(&self, tree: &ZnodeTree) -> BTreeSet<String> {
        let mut open = vec![self.path.clone()];
        let mut paths = BTreeSet::new();
        while let Some(path) = open.pop() {
            if path == OWN {
                continue;
            }
            let Some(znode) = tree.get(&path) else { continue };
            open.extend(znode.children().map(|name| format!("{path}/{name}")));
            paths.insert(path);
        }
        paths
    }
}

/// Adds the changes of a znode that stays. Returns the one that sets its data, if that may be there
/// already.
fn put_back<'a>(
    path: &'a str,
    past: &PastZnode,
    znode: ZnodeRef<'_>,
    ops: &mut Vec<ZnodeOp>,
) -> Option<UnsureChange<'a>> {
    let stat = znode.stat();
    let mut unsure = None;
    if znode.data() != ZnodeData::Here(past.data.as_deref()) {
        if znode.data() == ZnodeData::Elsewhere {
            unsure = Some(UnsureChange { op: ops.len(), path, mzxid: stat.mzxid });
        }
        let (path, data) = (shown(path), data_of(past));
        ops.push(ZnodeOp::SetData { path, data, version: stat.version });
    }
    if *znode.acl() != past.acl {
        let (path, acl) = (shown(path), Acl::clone(&past.acl));
        ops.push(ZnodeOp::SetAcl { path, acl, version: stat.aversion });
    }
    unsure
}

fn data_of(znode: &PastZnode) -> Option<Bytes> {
    znode.data.as_ref().map(|data| Bytes::copy_from_slice(data))
}

/// The root's path in a request.
fn shown(path: &str) -> String {
    if path.is_empty() { "/".to_owned() } else { path.to_owned() }
}
