//! A transaction, replayed over the versions that it found: what it changed.
//!
//! It can be replayed at any time, for the catalog has the versions of then. That fills the
//! catalog, and shows later what a transaction did: an entry names neither the numbers of
//! sequential znodes nor the ephemeral znodes that go with a session.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use engine_core::EngineError;
use hlc::{Cut, Hlc};
use storage::catalog::{Catalog, CatalogError, unescape};
use zk_wire::ZnodeStat;

use crate::acl::Acl;
use crate::checkpoint::CheckpointSession;
use crate::child_list::{ChildExtent, ChildListPlace};
use crate::meta::{TransactionTime, ZnodeMeta, ZnodeOwner};
use crate::path::{key_of, sequential_path, split_path};
use crate::request::{SessionId, ZnodeOp, ZnodeTransaction};
use crate::versions::{
    VersionWriter, ZnodeVersion, data_key, decode, encode, ephemeral_key, put_session,
    session_end_key, version, version_key,
};

/// A change that a transaction made to a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeChange {
    pub kind: ZnodeChangeKind,
    pub path: String,
    /// The znode's stat after it; at a deletion, before it.
    pub stat: ZnodeStat,
    /// Its list, after it; at a deletion, before it.
    pub acl: Acl,
    /// The data, if the change set it.
    pub data: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZnodeChangeKind {
    Created,
    Deleted,
    DataChanged,
    AclChanged,
    /// The number of the next sequential child was raised.
    SequenceRaised,
}

/// The reason that a transaction cannot be replayed.
pub(crate) enum ReplayError {
    Catalog(CatalogError),
    /// In words: the versions are not those that it was decided on.
    Journal(String),
}

impl From<CatalogError> for ReplayError {
    fn from(error: CatalogError) -> ReplayError {
        ReplayError::Catalog(error)
    }
}

impl From<EngineError> for ReplayError {
    fn from(error: EngineError) -> ReplayError {
        match error {
            EngineError::Loading(error) => ReplayError::Catalog(error),
            error => ReplayError::Journal(error.to_string()),
        }
    }
}

/// The newest versions of some znodes: of those that were written to a catalog and may not be in it
/// yet, and of others.
pub(crate) type NewestVersions = HashMap<String, Option<ZnodeVersion>, ahash::RandomState>;

/// A znode in a replay.
struct ReplayedZnode {
    version: Option<ZnodeVersion>,
    /// True if its data was apart before.
    was_apart: bool,
    /// The place of its children before.
    children_before: ChildExtent,
    /// Data that is apart, and new.
    apart: Option<Bytes>,
}

impl ReplayedZnode {
    fn new(before: Option<ZnodeVersion>) -> ReplayedZnode {
        let was_apart = before.as_ref().is_some_and(ZnodeVersion::is_apart);
        let children = before.as_ref().map(|before| before.children.extent());
        let children_before = children.unwrap_or_default();
        ReplayedZnode { version: before, was_apart, children_before, apart: None }
    }

    fn set_data(&mut self, data: Option<&Bytes>) {
        let Some(version) = &mut self.version else { return };
        version.set_data(data);
        self.apart = if version.is_apart() { data.cloned() } else { None };
    }
}

/// One transaction over a catalog that has all before it, together with `newest`. Its later changes
/// see its earlier ones.
pub(crate) struct TransactionReplay<'a> {
    catalog: &'a Catalog,
    newest: &'a NewestVersions,
    stamp: Hlc,
    at: TransactionTime,
    session: SessionId,
    changes: Vec<ZnodeChange>,
    znodes: BTreeMap<String, ReplayedZnode>,
    ephemerals: BTreeMap<(SessionId, String), bool>,
    /// The session that begins.
    begun: Option<CheckpointSession>,
    /// The ephemeral znodes that went with their session, if this ended it.
    ended: Option<Vec<String>>,
}

impl<'a> TransactionReplay<'a> {
    /// Replays a transaction of `session` that was not refused.
    pub(crate) fn run(
        catalog: &'a Catalog,
        newest: &'a NewestVersions,
        zxid: i64,
        stamp: Hlc,
        session: SessionId,
        transaction: &ZnodeTransaction,
    ) -> Result<TransactionReplay<'a>, ReplayError> {
        let at = TransactionTime::new(zxid, stamp);
        let mut replay = TransactionReplay {
            catalog,
            newest,
            stamp,
            at,
            session,
            changes: Vec::new(),
            znodes: BTreeMap::new(),
            ephemerals: BTreeMap::new(),
            begun: None,
            ended: None,
        };
        match transaction {
            ZnodeTransaction::Ops(ops) => ops.iter().try_for_each(|op| replay.replay_op(op))?,
            ZnodeTransaction::SessionCreated { timeout_ms, password } => {
                let (timeout_ms, password) = (*timeout_ms, *password);
                replay.begun = Some(CheckpointSession { id: session, timeout_ms, password });
            }
            ZnodeTransaction::SessionClosed => {
                let ended = replay.ephemerals_at_end()?;
                ended.iter().try_for_each(|path| replay.delete(path))?;
                replay.ended = Some(ended);
            }
            ZnodeTransaction::Reaped { path } => replay.delete(path)?,
        }
        Ok(replay)
    }

    /// The ephemeral znodes that its session has now, if this is the first replay, or had at its
    /// end.
    fn ephemerals_at_end(&self) -> Result<Vec<String>, ReplayError> {
        let recorded =
            self.catalog.get(&session_end_key(self.session), Cut::through(self.stamp))?;
        if let Some((stamp, paths)) = recorded
            && stamp == self.stamp
        {
            return Ok(decode(&paths)?);
        }
        let prefix = ephemeral_key(self.session, "");
        let keys = self.catalog.scan(&prefix, Cut::ALL)?;
        Ok(keys.iter().map(|(key, ..)| unescape(&key[prefix.len()..])).collect())
    }

    fn replay_op(&mut self, op: &ZnodeOp) -> Result<(), ReplayError> {
        let at = self.at;
        match op {
            ZnodeOp::Create { path, data, acl, lifetime, is_sequential } => {
                let owner = ZnodeOwner::of(*lifetime, self.session);
                let (parent, _) = split(path)?;
                let above = self.existing(parent)?;
                let path = if *is_sequential {
                    sequential_path(path, above.meta.creates)
                } else {
                    path.clone()
                };
                above.meta.create_child(at);
                above.children.insert(split(&path)?.1);
                let znode = ZnodeMeta::new(at, owner, Acl::clone(acl), data.as_deref());
                if let ZnodeOwner::Session(session) = owner {
                    self.ephemerals.insert((session, path.clone()), true);
                }
                self.record(ZnodeChangeKind::Created, &path, &znode, data.clone());
                let version = ZnodeVersion::new(znode, data.as_ref());
                // It is not there, unless this transaction deleted it.
                let absent = || ReplayedZnode::new(None);
                let created = self.znodes.entry(path).or_insert_with(absent);
                created.version = Some(version);
                created.set_data(data.as_ref());
            }
            ZnodeOp::Delete { path, .. } => self.delete(path)?,
            ZnodeOp::SetData { path, data, .. } => {
                let znode = &mut self.existing(path)?.meta;
                znode.set_data(at, data.as_deref());
                let znode = znode.clone();
                self.look_up(key_of(path))?.set_data(data.as_ref());
                self.record(ZnodeChangeKind::DataChanged, path, &znode, data.clone());
            }
            ZnodeOp::SetAcl { path, acl, .. } => {
                let znode = &mut self.existing(path)?.meta;
                znode.set_acl(Acl::clone(acl));
                let znode = znode.clone();
                self.record(ZnodeChangeKind::AclChanged, path, &znode, None);
            }
            ZnodeOp::Check { .. } => {}
            ZnodeOp::RaiseSequence { path, next } => {
                let znode = &mut self.existing(path)?.meta;
                if znode.is_below_sequence(*next) {
                    znode.raise_sequence(at, *next);
                    let znode = znode.clone();
                    self.record(ZnodeChangeKind::SequenceRaised, path, &znode, None);
                }
            }
        }
        Ok(())
    }

    fn delete(&mut self, path: &str) -> Result<(), ReplayError> {
        let (parent, name) = split(path)?;
        let at = self.at;
        let above = self.existing(parent)?;
        above.meta.delete_child(at);
        above.children.remove(name);
        let deleted = self.existing(path)?.meta.clone();
        if let ZnodeOwner::Session(session) = deleted.owner {
            self.ephemerals.insert((session, path.to_owned()), false);
        }
        self.record(ZnodeChangeKind::Deleted, path, &deleted, None);
        let deleted = self.look_up(path)?;
        (deleted.version, deleted.apart) = (None, None);
        Ok(())
    }

    fn record(
        &mut self,
        kind: ZnodeChangeKind,
        path: &str,
        znode: &ZnodeMeta,
        data: Option<Bytes>,
    ) {
        let (path, stat, acl) = (path.to_owned(), znode.stat(), Acl::clone(&znode.acl));
        self.changes.push(ZnodeChange { kind, path, stat, acl, data });
    }

    fn existing(&mut self, path: &str) -> Result<&mut ZnodeVersion, ReplayError> {
        let path = key_of(path);
        let znode = self.look_up(path)?.version.as_mut();
        znode.ok_or_else(|| ReplayError::Journal(format!("there is no {path}")))
    }

    /// A znode that may be there.
    fn look_up(&mut self, path: &str) -> Result<&mut ReplayedZnode, ReplayError> {
        if !self.znodes.contains_key(path) {
            let before = match self.newest.get(path) {
                Some(newest) => newest.clone(),
                None => version(self.catalog, path, Cut::below(self.stamp))?,
            };
            self.znodes.insert(path.to_owned(), ReplayedZnode::new(before));
        }
        Ok(self.znodes.get_mut(path).expect("it was just put there"))
    }

    /// The changes that it made, in order.
    pub(crate) fn into_changes(self) -> Vec<ZnodeChange> {
        self.changes
    }

    /// Writes the new versions, and returns those of its znodes. A transaction that is replayed
    /// over some of its own versions gives the same ones again: it reads what was there before it,
    /// and which ephemeral znodes go with a session is written first.
    pub(crate) fn write_versions(
        mut self,
        writer: &mut VersionWriter<'_>,
    ) -> Result<impl IntoIterator<Item = (String, Option<ZnodeVersion>)> + use<>, EngineError> {
        if let Some(begun) = &self.begun {
            put_session(writer.next()?, self.stamp, self.session, Some(begun));
        }
        if let Some(ended) = &self.ended {
            let key = session_end_key(self.session);
            writer.next()?.put(&key, self.stamp, Some(&encode(ended)));
            // Nobody asks for it at another moment, and so it goes with the history.
            writer.next()?.put(&key, self.stamp.next(), None);
            put_session(writer.next()?, self.stamp, self.session, None);
        }
        let (catalog, stamp) = (self.catalog, self.stamp);
        for (path, ReplayedZnode { version, was_apart, children_before, apart }) in &mut self.znodes
        {
            match version {
                Some(version) => {
                    let place = ChildListPlace { catalog, path, stamp };
                    let children = version.meta.children;
                    version.children.settle(writer, place, *children_before, children)?;
                }
                None => children_before.clear(writer, path, stamp, ChildExtent::default())?,
            }
            let value = version.as_ref().map(encode);
            writer.next()?.put(&version_key(path), self.stamp, value.as_deref());
            let ends = *was_apart && !version.as_ref().is_some_and(ZnodeVersion::is_apart);
            if ends || apart.is_some() {
                writer.next()?.put(&data_key(path), self.stamp, apart.as_deref());
            }
        }
        for ((session, path), is_there) in &self.ephemerals {
            let value = is_there.then_some(&b""[..]);
            writer.next()?.put_unversioned(&ephemeral_key(*session, path), value);
        }
        Ok(self.znodes.into_iter().map(|(path, znode)| (path, znode.version)))
    }
}

fn split(path: &str) -> Result<(&str, &str), ReplayError> {
    split_path(path).map_err(|_| ReplayError::Journal(format!("{path} is no path")))
}
