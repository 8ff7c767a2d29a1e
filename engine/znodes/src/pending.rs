//! Transactions that were decided and are not applied yet: on their way to the disk, or behind it.
//!
//! A transaction is checked against the tree and against all that waits in front of it, so that many
//! transactions that depend on each other share one sync. ZooKeeper calls these `outstandingChanges`.
//!
//! Invariant: what this says of a path is what the tree will say once all that waits is applied.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::acl::{self, AclId, check_permission};
use crate::code::ZkCode;
use crate::path::{check_path, sequential_path, split_path};
use crate::request::{CheckedOp, SessionId, ZnodeOp, ZnodeRefusal};
use crate::tree::{TransactionTime, ZnodeOwner, ZnodeSummary, ZnodeTree};

/// A znode as some transactions that wait will leave it.
#[derive(Clone, Debug)]
struct PendingZnode {
    /// The last of these transactions.
    zxid: i64,
    /// `None` once it is deleted.
    znode: Option<ZnodeSummary>,
}

/// A change of [`PendingTree::znodes`], so that it can be undone.
#[derive(Debug)]
struct PendingUndo {
    zxid: i64,
    path: String,
    before: Option<PendingZnode>,
}

/// What is asked for, where the tree is needed to decide about it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PendingRequest<'a> {
    Ops(&'a [CheckedOp]),
    SessionCreated,
    SessionClosed,
    Reaped { path: &'a str },
}

#[derive(Debug, Default)]
pub(crate) struct PendingTree {
    znodes: HashMap<String, PendingZnode>,
    undo: VecDeque<PendingUndo>,
    /// The sessions whose end waits, and the transaction that ends them.
    closing: HashMap<SessionId, i64>,
    /// The sessions that begin with a transaction that waits.
    beginning: HashMap<SessionId, i64>,
    applied: i64,
}

impl PendingTree {
    /// Decides about a transaction of `session`, and takes it into account if it is not refused.
    pub(crate) fn decide(
        &mut self,
        tree: &ZnodeTree,
        at: TransactionTime,
        session: SessionId,
        held: &[AclId],
        request: PendingRequest<'_>,
    ) -> Option<ZnodeRefusal> {
        match request {
            PendingRequest::Ops(ops) => self.decide_ops(tree, at, session, held, ops).err(),
            PendingRequest::SessionCreated => {
                self.beginning.insert(session, at.zxid);
                None
            }
            PendingRequest::SessionClosed => {
                self.close_session(tree, at.zxid, session);
                None
            }
            PendingRequest::Reaped { path } => {
                self.reap(tree, at, path).err().map(|code| ZnodeRefusal { code, op: 0 })
            }
        }
    }

    fn decide_ops(
        &mut self,
        tree: &ZnodeTree,
        at: TransactionTime,
        session: SessionId,
        held: &[AclId],
        ops: &[CheckedOp],
    ) -> Result<(), ZnodeRefusal> {
        for (place, checked) in ops.iter().enumerate() {
            let decided = match self.has_ended(tree, session) {
                true => Err(ZkCode::SessionExpired),
                false => checked
                    .refusal
                    .map_or(Ok(()), Err)
                    .and_then(|()| self.decide_op(tree, at, session, held, &checked.op)),
            };
            if let Err(code) = decided {
                self.roll_back(at.zxid);
                return Err(ZnodeRefusal { code, op: place as u32 });
            }
        }
        Ok(())
    }

    fn decide_op(
        &mut self,
        tree: &ZnodeTree,
        at: TransactionTime,
        session: SessionId,
        held: &[AclId],
        op: &ZnodeOp,
    ) -> Result<(), ZkCode> {
        match op {
            ZnodeOp::Create { path, acl, lifetime, is_sequential, .. } => {
                let (parent, _) = split_path(path)?;
                let above = self.existing(tree, parent)?;
                check_permission(&above.acl, acl::CREATE, held)?;
                let path = match is_sequential {
                    true => sequential_path(path, above.creates),
                    false => path.clone(),
                };
                check_path(&path)?;
                if self.existing(tree, &path).is_ok() {
                    return Err(ZkCode::NodeExists);
                }
                if matches!(above.owner, ZnodeOwner::Session(_)) {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                let creates = above.creates.wrapping_add(1);
                let children = above.children + 1;
                self.set(at.zxid, parent, Some(ZnodeSummary { creates, children, ..above }));
                let created = ZnodeSummary {
                    version: 0,
                    aversion: 0,
                    creates: 0,
                    children: 0,
                    owner: ZnodeOwner::of(*lifetime, session),
                    mtime: at.ms,
                    acl: acl::Acl::clone(acl),
                };
                self.set(at.zxid, &path, Some(created));
            }
            ZnodeOp::Delete { path, version } => {
                let (parent, _) = split_path(path)?;
                let above = self.existing(tree, parent)?;
                check_permission(&above.acl, acl::DELETE, held)?;
                let deleted = self.existing(tree, path)?;
                check_version(deleted.version, *version)?;
                if deleted.children > 0 {
                    return Err(ZkCode::NotEmpty);
                }
                self.delete(at.zxid, path, parent, above);
            }
            ZnodeOp::SetData { path, version, .. } => {
                let znode = self.existing(tree, path)?;
                check_permission(&znode.acl, acl::WRITE, held)?;
                let version = check_version(znode.version, *version)?;
                self.set(at.zxid, path, Some(ZnodeSummary { version, mtime: at.ms, ..znode }));
            }
            ZnodeOp::SetAcl { path, acl, version } => {
                let znode = self.existing(tree, path)?;
                check_permission(&znode.acl, acl::ADMIN, held)?;
                let aversion = check_version(znode.aversion, *version)?;
                let acl = acl::Acl::clone(acl);
                self.set(at.zxid, path, Some(ZnodeSummary { aversion, acl, ..znode }));
            }
            ZnodeOp::Check { path, version } => {
                let znode = self.existing(tree, path)?;
                check_permission(&znode.acl, acl::READ, held)?;
                check_version(znode.version, *version)?;
            }
        }
        Ok(())
    }

    fn reap(&mut self, tree: &ZnodeTree, at: TransactionTime, path: &str) -> Result<(), ZkCode> {
        let (parent, _) = split_path(path)?;
        let reaped = self.existing(tree, path)?;
        let above = self.existing(tree, parent)?;
        if reaped.children > 0 {
            return Err(ZkCode::NotEmpty);
        }
        let is_due = match reaped.owner {
            ZnodeOwner::Container => true,
            ZnodeOwner::Ttl(ms) => at.ms - reaped.mtime > ms,
            ZnodeOwner::None | ZnodeOwner::Session(_) => false,
        };
        if !is_due {
            return Err(ZkCode::BadVersion);
        }
        self.delete(at.zxid, path, parent, above);
        Ok(())
    }

    fn delete(&mut self, zxid: i64, path: &str, parent: &str, above: ZnodeSummary) {
        let children = above.children - 1;
        self.set(zxid, parent, Some(ZnodeSummary { children, ..above }));
        self.set(zxid, path, None);
    }

    /// Its ephemeral znodes are those of the tree, and those that wait.
    fn close_session(&mut self, tree: &ZnodeTree, zxid: i64, session: SessionId) {
        let applied = tree.session(session).into_iter().flat_map(|session| session.ephemerals());
        let is_own = |pending: &PendingZnode| {
            let znode = pending.znode.as_ref();
            znode.is_some_and(|znode| znode.owner == ZnodeOwner::Session(session))
        };
        let mut paths: HashSet<String> = applied
            .filter(|path| self.znodes.get(*path).is_none_or(is_own))
            .map(str::to_owned)
            .collect();
        let waiting = self.znodes.iter().filter(|(_, pending)| is_own(pending));
        paths.extend(waiting.map(|(path, _)| path.clone()));
        for path in paths {
            let (parent, _) = split_path(&path).expect("a znode has a path");
            let Ok(above) = self.existing(tree, parent) else { continue };
            self.delete(zxid, &path, parent, above);
        }
        self.beginning.remove(&session);
        self.closing.insert(session, zxid);
    }

    fn has_ended(&self, tree: &ZnodeTree, session: SessionId) -> bool {
        self.closing.contains_key(&session)
            || (tree.session(session).is_none() && !self.beginning.contains_key(&session))
    }

    fn existing(&self, tree: &ZnodeTree, path: &str) -> Result<ZnodeSummary, ZkCode> {
        match self.znodes.get(key_of(path)) {
            Some(pending) => pending.znode.clone(),
            None => tree.summary(path),
        }
        .ok_or(ZkCode::NoNode)
    }

    fn set(&mut self, zxid: i64, path: &str, znode: Option<ZnodeSummary>) {
        let path = key_of(path).to_owned();
        let before = self.znodes.insert(path.clone(), PendingZnode { zxid, znode });
        self.undo.push_back(PendingUndo { zxid, path, before });
    }

    /// Undoes the transactions from `zxid` on: they will never be applied.
    pub(crate) fn roll_back(&mut self, zxid: i64) {
        while let Some(undo) = self.undo.pop_back_if(|undo| undo.zxid >= zxid) {
            // What is applied meanwhile is in the tree.
            match undo.before.filter(|before| before.zxid > self.applied) {
                Some(before) => self.znodes.insert(undo.path, before),
                None => self.znodes.remove(&undo.path),
            };
        }
        self.closing.retain(|_, ends| *ends < zxid);
        self.beginning.retain(|_, begins| *begins < zxid);
    }

    /// Forgets the transactions up to `zxid`: the tree has them.
    pub(crate) fn forget_applied(&mut self, zxid: i64) {
        self.applied = zxid;
        while let Some(undo) = self.undo.pop_front_if(|undo| undo.zxid <= zxid) {
            if self.znodes.get(&undo.path).is_some_and(|pending| pending.zxid <= zxid) {
                self.znodes.remove(&undo.path);
            }
        }
        self.closing.retain(|_, ends| *ends > zxid);
        self.beginning.retain(|_, begins| *begins > zxid);
    }
}

/// The root has two spellings.
fn key_of(path: &str) -> &str {
    if path == "/" { "" } else { path }
}

/// The version after `current`, if `wanted` is it, or -1 for any.
fn check_version(current: i32, wanted: i32) -> Result<i32, ZkCode> {
    match wanted == -1 || wanted == current {
        true => Ok(crate::tree::next_version(current)),
        false => Err(ZkCode::BadVersion),
    }
}
