//! Znodes as of any moment: versions in the catalog, built from the entries of the znodes' log.
//!
//! A transaction does not update the catalog, and a start does not wait for it. Whoever reads the past
//! applies the transactions that the catalog lacks, in order, and so finds every acknowledged one.
//! Maintenance applies some now and then ([`ZnodeHistory::catch_up`]), so that few are left.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine_core::numbering::{KIND_ZNODES, ZNODES_LOG};
use engine_core::projection::{CatalogFillError, ProjectionFill, ReaderProjection};
use engine_core::{CatalogSlot, EngineError};
use hlc::{Cut, Hlc};
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use storage::catalog::{AppliedOffset, Catalog, CatalogError, CatalogWriteBatch, escape, unescape};
use storage::{EntryPayload, Log, Offset};

use crate::acl::{self, Acl};
use crate::entry::decode_entry;
use crate::path::{sequential_path, split_path};
use crate::request::{SessionId, ZnodeOp, ZnodeTransaction};
use crate::stat::ZnodeStat;
use crate::tree::{TransactionTime, ZnodeOwner, next_version, time_of};

/// The key prefix of znodes. Groups and files use other letters.
const PREFIX: u8 = b'z';
/// A name in its parent: everything about a znode but its data.
const NAME: u8 = b'n';
/// The root, which has no name.
const ROOT: u8 = b'r';
/// The data of a znode. Apart, because a znode has a new version whenever a child comes or goes.
const DATA: u8 = b'd';
/// The ephemeral znodes of a session, now.
const EPHEMERAL: u8 = b'e';
/// Between a parent's path and a name. [`escape`] never writes it.
const SEPARATOR: &[u8] = &[1, 3];
/// The key of the layout version of all of these.
const LAYOUT: &[u8] = b"zv";
/// Catalogs with another version are rebuilt.
const LAYOUT_NOW: &[u8] = b"1";
/// How many bytes of entries are read at once.
const READ_BYTES: usize = 1 << 20;

/// A version of a znode.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ZnodeVersion {
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    ctime: i64,
    mtime: i64,
    version: i32,
    creates: i32,
    aversion: i32,
    children: i32,
    data_length: i32,
    owner: ZnodeOwner,
    acl: Acl,
}

impl ZnodeVersion {
    fn new(at: TransactionTime, owner: ZnodeOwner, acl: Acl) -> ZnodeVersion {
        ZnodeVersion {
            czxid: at.zxid,
            mzxid: at.zxid,
            pzxid: at.zxid,
            ctime: at.ms,
            mtime: at.ms,
            version: 0,
            creates: 0,
            aversion: 0,
            children: 0,
            data_length: 0,
            owner,
            acl,
        }
    }

    /// The znodes that are there before the first transaction.
    fn built_in(path: &str) -> Option<ZnodeVersion> {
        let (children, permissions, aversion) = match path {
            "" => (1, acl::ALL, 0),
            "/zookeeper" => (2, acl::ALL, 0),
            "/zookeeper/quota" => (0, acl::ALL, 0),
            "/zookeeper/config" => (0, acl::READ, -1),
            _ => return None,
        };
        let at = TransactionTime { zxid: 0, ms: 0 };
        let znode = ZnodeVersion::new(at, ZnodeOwner::None, acl::anyone(permissions));
        Some(ZnodeVersion { children, aversion, ..znode })
    }

    fn stat(&self) -> ZnodeStat {
        ZnodeStat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: self.creates.wrapping_mul(2).wrapping_sub(self.children),
            aversion: self.aversion,
            ephemeral_owner: self.owner.shown(),
            data_length: self.data_length,
            num_children: self.children,
            pzxid: self.pzxid,
        }
    }
}

/// A znode as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastZnode {
    pub stat: ZnodeStat,
    pub acl: Acl,
    pub data: Option<Vec<u8>>,
}

/// Znodes as of any moment.
pub struct ZnodeHistory {
    log: Arc<Log>,
    catalog: Arc<CatalogSlot>,
    /// The first offset that is not in the catalog yet.
    next: Mutex<Offset>,
}

impl ZnodeHistory {
    /// The history in the entries of `log`, which is [`ZNODES_LOG`].
    pub(crate) fn new(log: Arc<Log>, catalog: Arc<CatalogSlot>) -> ZnodeHistory {
        ZnodeHistory { log, catalog, next: Mutex::new(Offset(0)) }
    }

    /// Applies the transactions that the catalog lacks.
    fn caught_up(&self) -> Result<Arc<Catalog>, EngineError> {
        let mut next = self.next.lock();
        let catalog = self.catalog.get()?;
        advance(&self.log, &catalog, &mut next, usize::MAX)?;
        Ok(catalog)
    }

    /// Applies some of the transactions that the catalog lacks, at most about `count`. It may wait for
    /// disks.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn catch_up(&self, count: usize) -> Result<(), EngineError> {
        let mut next = self.next.lock();
        advance(&self.log, &*self.catalog.get()?, &mut next, count)
    }

    /// A znode in `cut`, if it existed.
    ///
    /// # Errors
    /// The catalog is being rebuilt, or the journal cannot be read.
    pub fn get(&self, path: &str, cut: Cut) -> Result<Option<PastZnode>, EngineError> {
        let (catalog, path) = (self.caught_up()?, key_of(path));
        let Some(znode) = version(&catalog, path, cut)? else { return Ok(None) };
        let data = match catalog.get(&data_key(path), cut)? {
            Some((_, data)) => decode(&data)?,
            None => Some(Vec::new()),
        };
        Ok(Some(PastZnode { stat: znode.stat(), acl: znode.acl, data }))
    }

    /// The names of a znode's children in `cut`, in byte order.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn children(&self, path: &str, cut: Cut) -> Result<Vec<String>, EngineError> {
        let (catalog, path) = (self.caught_up()?, key_of(path));
        let prefix = name_key(path, "");
        let mut names: Vec<String> = match path {
            "" => vec!["zookeeper".to_owned()],
            "/zookeeper" => vec!["config".to_owned(), "quota".to_owned()],
            _ => Vec::new(),
        };
        catalog.visit(&prefix, cut, &mut |key, _, _| {
            names.push(unescape(&key[prefix.len()..]));
            Ok::<_, CatalogError>(())
        })?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// How many znodes are below `path` in `cut`.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn descendants(&self, path: &str, cut: Cut) -> Result<usize, EngineError> {
        let mut open = vec![key_of(path).to_owned()];
        let mut count = 0;
        while let Some(path) = open.pop() {
            let names = self.children(&path, cut)?;
            count += names.len();
            open.extend(names.iter().map(|name| format!("{path}/{name}")));
        }
        Ok(count)
    }

    /// The zxid of the last transaction in `cut`.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn zxid_at(&self, cut: Cut) -> Result<i64, EngineError> {
        Ok(self.log.offset_at(cut)?.0 as i64)
    }
}

impl std::fmt::Debug for ZnodeHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZnodeHistory").finish_non_exhaustive()
    }
}

/// [`ZnodeHistory`] as a wing's projection.
pub(crate) struct ZnodeProjection(pub(crate) Arc<ZnodeHistory>);

impl ReaderProjection for ZnodeProjection {
    fn begin_fill(
        &self,
        catalog: &Arc<Catalog>,
    ) -> Result<Box<dyn ProjectionFill + '_>, CatalogFillError> {
        let layout = catalog.get(LAYOUT, Cut::ALL)?.map(|(_, layout)| layout);
        let applied = match layout.as_deref() == Some(LAYOUT_NOW) {
            true => catalog.applied_in(ZNODES_LOG)?,
            false => None,
        };
        let known = match applied {
            Some(applied) => {
                let entry = self.0.log.entry_at(applied.offset)?;
                entry.filter(|entry| entry.stamp == applied.stamp)
            }
            None => None,
        };
        let next = match known {
            Some(entry) => entry.end(),
            None => {
                // An interrupted rebuild, or a lost journal, may have left keys.
                clear(catalog)?;
                Offset(0)
            }
        };
        Ok(Box::new(ZnodeHistoryFill { history: &self.0, next, paused: None }))
    }
}

/// A catalog before it is put into use.
struct ZnodeHistoryFill<'a> {
    history: &'a ZnodeHistory,
    /// The first offset that it does not have.
    next: Offset,
    /// Held while readers are paused: the first offset that the catalog in use does not have.
    paused: Option<MutexGuard<'a, Offset>>,
}

impl ProjectionFill for ZnodeHistoryFill<'_> {
    /// Nothing: readers apply what the catalog lacks.
    fn advance(&mut self, _is_closing: &dyn Fn() -> bool) -> Result<u64, CatalogFillError> {
        Ok(0)
    }

    fn pause_readers(&mut self) {
        self.paused = Some(self.history.next.lock());
    }

    fn finish(&mut self) {
        if let Some(next) = &mut self.paused {
            **next = self.next;
        }
    }
}

/// Applies the entries of `log` from `next` on, at most about `count`.
fn advance(
    log: &Log,
    catalog: &Catalog,
    next: &mut Offset,
    count: usize,
) -> Result<(), EngineError> {
    let (end, from) = (log.end(), *next);
    while *next < end && next.0 - from.0 < count as u64 {
        let pieces = log.read(*next, end, READ_BYTES)?;
        if pieces.first().is_none_or(|piece| piece.entry.base != *next) {
            let why = format!("a transaction of znodes is not there. entry={}", next.0);
            return Err(EngineError::Corrupt(why));
        }
        for piece in pieces {
            apply(catalog, &piece)?;
            *next = piece.entry.end();
        }
    }
    Ok(())
}

fn apply(catalog: &Catalog, piece: &EntryPayload) -> Result<(), EngineError> {
    let (kind, offset, stamp) = (piece.entry.kind, piece.entry.base, piece.entry.stamp);
    let corrupt = |why: String| {
        EngineError::Corrupt(format!(
            "a transaction of znodes does not read: {why}. entry={}",
            offset.0
        ))
    };
    if kind != KIND_ZNODES {
        return Err(corrupt(format!("its kind is {kind}")));
    }
    let (header, body) = decode_entry(&piece.read()?).map_err(corrupt)?;
    let mut applier = VersionApplier {
        catalog,
        stamp,
        at: time_of(offset.0 as i64 + 1, stamp),
        session: header.session,
        changes: CatalogWriteBatch::default(),
        znodes: BTreeMap::new(),
        ephemerals: BTreeMap::new(),
    };
    if let Some(body) = body {
        applier.apply(&body.transaction).map_err(|error| match error {
            VersionError::Catalog(error) => EngineError::Loading(error),
            VersionError::Journal(why) => corrupt(why),
        })?;
    }
    let changes = applier.changes();
    Ok(catalog.apply_in(changes, ZNODES_LOG, AppliedOffset { offset, stamp })?)
}

fn clear(catalog: &Catalog) -> Result<(), CatalogError> {
    catalog.remove_log(&[PREFIX], ZNODES_LOG)?;
    let mut layout = CatalogWriteBatch::default();
    layout.put_unversioned(LAYOUT, Some(LAYOUT_NOW));
    catalog.apply_unpositioned(layout)
}

/// Why a transaction cannot be applied to a catalog.
enum VersionError {
    Catalog(CatalogError),
    Journal(String),
}

impl From<CatalogError> for VersionError {
    fn from(error: CatalogError) -> VersionError {
        VersionError::Catalog(error)
    }
}

impl From<EngineError> for VersionError {
    fn from(error: EngineError) -> VersionError {
        match error {
            EngineError::Loading(error) => VersionError::Catalog(error),
            error => VersionError::Journal(error.to_string()),
        }
    }
}

/// Applies one transaction to the catalog. Its later changes see its earlier ones.
struct VersionApplier<'a> {
    catalog: &'a Catalog,
    stamp: Hlc,
    at: TransactionTime,
    session: SessionId,
    changes: CatalogWriteBatch,
    znodes: BTreeMap<String, Option<ZnodeVersion>>,
    ephemerals: BTreeMap<(SessionId, String), bool>,
}

impl VersionApplier<'_> {
    fn apply(&mut self, transaction: &ZnodeTransaction) -> Result<(), VersionError> {
        match transaction {
            ZnodeTransaction::Ops(ops) => ops.iter().try_for_each(|op| self.apply_op(op)),
            ZnodeTransaction::SessionCreated { .. } => Ok(()),
            ZnodeTransaction::SessionClosed => {
                let prefix = ephemeral_key(self.session, "");
                for (key, ..) in self.catalog.scan(&prefix, Cut::ALL)? {
                    self.delete(&unescape(&key[prefix.len()..]))?;
                }
                Ok(())
            }
            ZnodeTransaction::Reaped { path } => self.delete(path),
        }
    }

    fn apply_op(&mut self, op: &ZnodeOp) -> Result<(), VersionError> {
        let at = self.at;
        match op {
            ZnodeOp::Create { path, data, acl, lifetime, is_sequential } => {
                let owner = ZnodeOwner::of(*lifetime, self.session);
                let (parent, _) = split(path)?;
                let above = self.existing(parent)?;
                let path = match is_sequential {
                    true => sequential_path(path, above.creates),
                    false => path.clone(),
                };
                above.creates = above.creates.wrapping_add(1);
                above.children += 1;
                above.pzxid = at.zxid;
                let znode = ZnodeVersion::new(at, owner, Acl::clone(acl));
                self.put_data(&path, data.as_ref());
                let data_length = length_of(data.as_ref());
                self.znodes.insert(path.clone(), Some(ZnodeVersion { data_length, ..znode }));
                if let ZnodeOwner::Session(session) = owner {
                    self.ephemerals.insert((session, path), true);
                }
            }
            ZnodeOp::Delete { path, .. } => self.delete(path)?,
            ZnodeOp::SetData { path, data, .. } => {
                let znode = self.existing(path)?;
                znode.version = next_version(znode.version);
                (znode.mzxid, znode.mtime) = (at.zxid, at.ms);
                znode.data_length = length_of(data.as_ref());
                self.put_data(key_of(path), data.as_ref());
            }
            ZnodeOp::SetAcl { path, acl, .. } => {
                let znode = self.existing(path)?;
                znode.aversion = next_version(znode.aversion);
                znode.acl = Acl::clone(acl);
            }
            ZnodeOp::Check { .. } => {}
        }
        Ok(())
    }

    fn delete(&mut self, path: &str) -> Result<(), VersionError> {
        let (parent, _) = split(path)?;
        let zxid = self.at.zxid;
        let above = self.existing(parent)?;
        above.children -= 1;
        above.pzxid = zxid;
        let deleted = self.existing(path)?;
        if let ZnodeOwner::Session(session) = deleted.owner {
            self.ephemerals.insert((session, path.to_owned()), false);
        }
        self.znodes.insert(path.to_owned(), None);
        self.changes.put(&data_key(path), self.stamp, None);
        Ok(())
    }

    fn existing(&mut self, path: &str) -> Result<&mut ZnodeVersion, VersionError> {
        let path = key_of(path);
        if !self.znodes.contains_key(path) {
            let before = version(self.catalog, path, Cut::below(self.stamp))?;
            self.znodes.insert(path.to_owned(), before);
        }
        let znode = self.znodes.get_mut(path).expect("it was just put there");
        znode.as_mut().ok_or_else(|| VersionError::Journal(format!("there is no {path}")))
    }

    fn put_data(&mut self, path: &str, data: Option<&Bytes>) {
        self.changes.put(&data_key(path), self.stamp, Some(&encode(&data)));
    }

    fn changes(mut self) -> CatalogWriteBatch {
        for (path, znode) in &self.znodes {
            let value = znode.as_ref().map(encode);
            self.changes.put(&version_key(path), self.stamp, value.as_deref());
        }
        for ((session, path), is_there) in &self.ephemerals {
            let value = is_there.then_some(&b""[..]);
            self.changes.put_unversioned(&ephemeral_key(*session, path), value);
        }
        self.changes
    }
}

fn split(path: &str) -> Result<(&str, &str), VersionError> {
    split_path(path).map_err(|_| VersionError::Journal(format!("{path} is no path")))
}

/// The version of a znode in `cut`.
fn version(catalog: &Catalog, path: &str, cut: Cut) -> Result<Option<ZnodeVersion>, EngineError> {
    match catalog.get(&version_key(path), cut)? {
        Some((_, value)) => decode(&value).map(Some),
        None => Ok(ZnodeVersion::built_in(path)),
    }
}

fn version_key(path: &str) -> Vec<u8> {
    match path.rsplit_once('/') {
        Some((parent, name)) => name_key(parent, name),
        None => vec![PREFIX, ROOT],
    }
}

fn name_key(parent: &str, name: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, NAME];
    escape(parent, &mut key);
    key.extend_from_slice(SEPARATOR);
    escape(name, &mut key);
    key
}

fn data_key(path: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, DATA];
    escape(path, &mut key);
    key
}

fn ephemeral_key(session: SessionId, path: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, EPHEMERAL];
    key.extend_from_slice(format!("{:016x}", session.0).as_bytes());
    escape(path, &mut key);
    key
}

/// The root has two spellings.
fn key_of(path: &str) -> &str {
    if path == "/" { "" } else { path }
}

fn length_of(data: Option<&Bytes>) -> i32 {
    data.map_or(0, |data| data.len() as i32)
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("a value of the catalog can be encoded")
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, EngineError> {
    postcard::from_bytes(value)
        .map_err(|error| EngineError::Corrupt(format!("decode the catalog's value: {error}")))
}
