//! Puts a subtree back to what it was.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use engine_core::SeekError;
use hlc::Cut;

use crate::acl::Acl;
use crate::history::{PastZnode, ZnodeHistory};
use crate::path::{OWN, key_of};
use crate::request::{ZnodeLifetime, ZnodeOp};
use crate::table::ZnodeData;
use crate::tree::ZnodeTree;
use crate::znodes::Znodes;

/// How many bytes of data and paths a subtree may have that is put back.
const BYTES_MAX: usize = 256 << 20;

/// Why a subtree cannot be put back.
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
        match znodes.contains_key(&path) {
            true => Ok(PastSubtree { path, znodes }),
            false => Err(not_there()),
        }
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

    /// The changes that put it back: each expects the version that there is now. Ephemeral znodes stay. It may
    /// wait for disks. That nothing else changes meanwhile, [`Znodes::guard_subtree`] knows.
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
        let (mut ops, mut unsure) = (Vec::new(), Vec::new());
        for (path, then) in &self.znodes {
            match tree.get(path) {
                Some(znode) if znode.stat().ephemeral_owner != 0 => {
                    return Err(RestoreError::Ephemeral { path: path.clone() });
                }
                Some(znode) => {
                    let (key, path, stat) = (path, shown(path), znode.stat());
                    let is_same = match znode.data() {
                        ZnodeData::Here(data) => data == then.data.as_deref(),
                        ZnodeData::Elsewhere => false,
                    };
                    if !is_same {
                        if znode.data() == ZnodeData::Elsewhere {
                            unsure.push(UnsureChange {
                                op: ops.len(),
                                path: key,
                                mzxid: stat.mzxid,
                            });
                        }
                        let (path, data) = (path.clone(), data_of(then));
                        ops.push(ZnodeOp::SetData { path, data, version: stat.version });
                    }
                    if *znode.acl() != then.acl {
                        let acl = Acl::clone(&then.acl);
                        ops.push(ZnodeOp::SetAcl { path, acl, version: stat.aversion });
                    }
                }
                None => ops.push(ZnodeOp::Create {
                    path: path.clone(),
                    data: data_of(then),
                    acl: Acl::clone(&then.acl),
                    lifetime: then.lifetime,
                    is_sequential: false,
                }),
            }
        }
        // Children come before their parents: a longer path is later in this order.
        for path in now.iter().rev().filter(|path| !self.znodes.contains_key(*path)) {
            let Some(znode) = tree.get(path) else { continue };
            if znode.stat().ephemeral_owner == 0 {
                let version = znode.stat().version;
                ops.push(ZnodeOp::Delete { path: path.clone(), version });
                continue;
            }
            let (parent, _) = path.rsplit_once('/').unwrap_or_default();
            if !self.znodes.contains_key(parent) {
                return Err(RestoreError::Ephemeral { path: path.clone() });
            }
        }
        Ok((ops, unsure))
    }

    fn paths_now(&self, tree: &ZnodeTree) -> BTreeSet<String> {
        let mut open = vec![self.path.clone()];
        let mut paths = BTreeSet::new();
        while let Some(path) = open.pop() {
            let Some(znode) = tree.get(&path).filter(|_| path != OWN) else { continue };
            open.extend(znode.children().map(|name| format!("{path}/{name}")));
            paths.insert(path);
        }
        paths
    }
}

fn data_of(znode: &PastZnode) -> Option<Bytes> {
    znode.data.as_ref().map(|data| Bytes::copy_from_slice(data))
}

/// The root's path in a request.
fn shown(path: &str) -> String {
    if path.is_empty() { "/".to_owned() } else { path.to_owned() }
}
