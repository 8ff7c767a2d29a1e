//! Znodes as of any moment: versions in the catalog, built from the entries of the znodes' log.
//!
//! A transaction does not update the catalog, and a start does not wait for it. A reader of the
//! past applies the transactions of its cut that the catalog lacks, in order, and so finds every
//! acknowledged one. Maintenance applies some now and then ([`ZnodeHistory::catch_up`]), so that
//! few are left.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use engine_core::blocking::block_in_place;
use engine_core::log_history::{earliest_bound, is_retained};
use engine_core::numbering::{KIND_ZNODES, ZNODES_LOG};
use engine_core::projection::{CatalogFillError, ProjectionFill, ReaderProjection};
use engine_core::{CatalogSlot, EngineCore, EngineError, SeekError};
use hlc::{Cut, Hlc};
use parking_lot::{Mutex, MutexGuard};
use storage::catalog::{AppliedOffset, Catalog, CatalogError, CatalogWriteBatch};
use storage::{EntryPayload, Log, Offset};
use zk_wire::ZnodeStat;

use crate::acl::Acl;
use crate::checkpoint::{
    CheckpointPart, CheckpointSeal, CheckpointWriter, CheckpointZnode, read_checkpoint, seals,
};
use crate::child_list::ChildList;
use crate::entry::decode_entry;
use crate::meta::{ZnodeMeta, ZnodeOwner};
use crate::path::key_of;
use crate::quota::{QuotaFigures, limits_path, path_of_stats};
use crate::replay::{NewestVersions, ReplayError, TransactionReplay};
use crate::request::{DataSet, ZnodeLifetime, ZnodeTransaction};
use crate::versions::{
    PREFIX, VersionWriter, ZnodeVersion, data_key, decode, encode, ephemeral_key, key_path,
    put_session, sessions_prefix, stamped_version, subtree_prefix, version, version_key,
};

/// The key of the layout version of all of these.
const LAYOUT: &[u8] = b"zv";
/// Catalogs with another version are rebuilt.
const LAYOUT_NOW: &[u8] = b"5";
/// The most bytes of entries that are read at once.
const READ_BYTES: usize = 1 << 20;
/// The approximate number of transactions that are applied at once: others read meanwhile.
const APPLIED_AT_ONCE: usize = 2000;
/// The most newest versions that are kept beside a catalog while transactions are applied to it.
const NEWEST_MAX: usize = 10_000;

/// A znode as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastZnode {
    pub stat: ZnodeStat,
    pub lifetime: ZnodeLifetime,
    pub acl: Acl,
    pub data: Option<Vec<u8>>,
}

/// Znodes as of any moment.
pub struct ZnodeHistory {
    pub(crate) log: Arc<Log>,
    checkpoints: Arc<Log>,
    catalog: Arc<CatalogSlot>,
    /// The first offset that is not in the catalog yet.
    next: Mutex<Offset>,
}

impl ZnodeHistory {
    /// The history in the entries of `log`, which is [`ZNODES_LOG`], from the oldest of
    /// `checkpoints` on.
    pub(crate) fn new(
        log: Arc<Log>,
        checkpoints: Arc<Log>,
        catalog: Arc<CatalogSlot>,
    ) -> ZnodeHistory {
        ZnodeHistory { log, checkpoints, catalog, next: Mutex::new(Offset(0)) }
    }

    /// The catalog, once it has all transactions in front of `end`. It may have later ones.
    pub(crate) fn caught_up_to(&self, end: Offset) -> Result<Arc<Catalog>, EngineError> {
        loop {
            let mut next = self.next.lock();
            let catalog = self.catalog.get()?;
            let missing = end.0.saturating_sub(next.0);
            if missing == 0 && *next >= self.log.start() {
                return Ok(catalog);
            }
            let count = usize::try_from(missing).unwrap_or(usize::MAX);
            self.advance(&catalog, &mut next, count.min(APPLIED_AT_ONCE))?;
            // A reader that needs less goes first.
            MutexGuard::unlock_fair(next);
        }
    }

    /// The catalog, once it has all transactions of a cut that is closed.
    pub(crate) fn caught_up_with(&self, cut: Cut) -> Result<Arc<Catalog>, EngineError> {
        self.caught_up_to(self.log.offset_at(cut)?)
    }

    /// Applies some of the transactions that the catalog lacks, at most about `count`. It may wait
    /// for disks.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn catch_up(&self, count: usize) -> Result<(), EngineError> {
        let mut next = self.next.lock();
        self.advance(&*self.catalog.get()?, &mut next, count)
    }

    /// Applies entries from `next` on, at most about `count`.
    fn advance(
        &self,
        catalog: &Catalog,
        next: &mut Offset,
        count: usize,
    ) -> Result<(), EngineError> {
        let start = self.log.start();
        if *next < start {
            self.load_oldest_checkpoint(catalog, start)?;
            *next = start;
        }
        let from = *next;
        let end = self.log.end().min(Offset(from.0.saturating_add(count as u64)));
        let mut feed = CatalogFeed::new(catalog);
        let mut read_to = from;
        while read_to < end {
            let pieces = self.log.read(read_to, end, READ_BYTES)?;
            if pieces.first().is_none_or(|piece| piece.entry.base != read_to) {
                let why = format!("the transaction of znodes at offset {} is missing", read_to.0);
                return Err(EngineError::Corrupt(why));
            }
            for piece in pieces {
                feed.apply(&piece)?;
                read_to = piece.entry.end();
            }
            // Readers rely on what is in front of `next`.
            feed.flush()?;
            *next = read_to;
        }
        Ok(())
    }

    /// Loads the checkpoint at which the history begins into an empty catalog.
    fn load_oldest_checkpoint(&self, catalog: &Catalog, start: Offset) -> Result<(), EngineError> {
        let seal = oldest_checkpoint(&self.checkpoints, start)?;
        let stamp = Hlc::from_bits(seal.stamp);
        read_checkpoint(&self.checkpoints, &seal, &mut |entry| {
            let mut writer = VersionWriter::new(catalog);
            match entry {
                CheckpointPart::Sessions(sessions) => {
                    for session in sessions {
                        put_session(writer.next()?, stamp, session.id, Some(&session));
                    }
                }
                CheckpointPart::Znodes(znodes) => {
                    for CheckpointZnode { path, meta, data } in znodes {
                        if let ZnodeOwner::Session(session) = meta.owner {
                            let key = ephemeral_key(session, &path);
                            writer.next()?.put_unversioned(&key, Some(b""));
                        }
                        let version = ZnodeVersion::new(meta, data.as_ref());
                        if version.is_apart()
                            && let Some(data) = data
                        {
                            writer.next()?.put(&data_key(&path), stamp, Some(&data));
                        }
                        writer.next()?.put(&version_key(&path), stamp, Some(&encode(&version)));
                    }
                }
                CheckpointPart::Seal(_) => {}
            }
            Ok(writer.flush()?)
        })?;
        list_children(catalog, stamp)
    }

    /// Writes a checkpoint of all transactions so far; returns true if there are any.
    pub(crate) fn write_checkpoint(&self, core: &EngineCore) -> Result<bool, EngineError> {
        let start = self.log.end();
        let catalog = self.caught_up_to(start)?;
        let last = start.0.checked_sub(1).map(|last| self.log.entry_at(Offset(last)));
        let Some(last) = last.transpose()?.flatten() else { return Ok(false) };
        let cut = Cut::through(last.stamp);
        let mut writer = CheckpointWriter::new(core);
        let sessions = catalog.scan(&sessions_prefix(), cut)?;
        let sessions = sessions.iter().map(|(_, _, session)| decode(session));
        writer.sessions(sessions.collect::<Result<_, _>>()?)?;
        let znode = |path: &str, version: ZnodeVersion| -> Result<CheckpointZnode, EngineError> {
            let meta = version.meta.clone();
            let data = version.data(&catalog, path, cut)?;
            Ok(CheckpointZnode { path: path.to_owned(), meta, data })
        };
        for path in ["", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
            let version = version(&catalog, path, cut)?.expect("a built-in path");
            writer.znode(znode(path, version)?)?;
        }
        catalog.visit(&subtree_prefix(""), cut, &mut |key, _, value| match key_path(key)
            .filter(|path| ZnodeMeta::built_in(path).is_none())
        {
            Some(path) => writer.znode(znode(&path, decode(value)?)?),
            None => Ok(()),
        })?;
        let seal = writer.seal(start, last.stamp)?;
        tracing::info!(
            transactions = seal.start,
            bytes = seal.bytes,
            "wrote a checkpoint of znodes"
        );
        Ok(true)
    }

    /// Removes versions that no cut from `horizon` on shows; returns how many.
    pub(crate) fn prune(&self, horizon: Cut) -> Result<u64, EngineError> {
        Ok(self.catalog.get()?.prune(&[PREFIX], horizon.bound())?)
    }

    /// Checks that the history reaches back to `cut`.
    ///
    /// # Errors
    /// [`SeekError::BeforeZnodes`].
    pub fn check_retained(&self, cut: Cut) -> Result<(), SeekError> {
        let horizon = self.log.horizon();
        if is_retained(&horizon, cut) {
            Ok(())
        } else {
            Err(SeekError::BeforeZnodes { earliest: earliest_bound(&horizon) })
        }
    }

    /// A znode in `cut`, if it existed.
    ///
    /// # Errors
    /// The history does not reach back so far, the catalog is being rebuilt, or the journal cannot
    /// be read.
    pub fn get(&self, path: &str, cut: Cut) -> Result<Option<PastZnode>, SeekError> {
        let znode = self.get_kept(path, cut)?;
        // Checked afterwards, because entries that were removed meanwhile may have been missed.
        self.check_retained(cut)?;
        Ok(znode)
    }

    fn get_kept(&self, path: &str, cut: Cut) -> Result<Option<PastZnode>, EngineError> {
        let (catalog, path) = (self.caught_up_with(cut)?, key_of(path));
        let Some(version) = version(&catalog, path, cut)? else { return Ok(None) };
        let znode = version.meta.clone();
        let data = version.data(&catalog, path, cut)?.map(Vec::from);
        let (mut stat, lifetime) = (znode.stat(), znode.owner.lifetime());
        let data = match self.quota_usage(&catalog, path, cut)? {
            Some(usage) => {
                let usage = usage.to_string().into_bytes();
                stat.data_length = usage.len() as i32;
                Some(usage)
            }
            None => data,
        };
        Ok(Some(PastZnode { stat, lifetime, acl: znode.acl, data }))
    }

    /// The data that a znode has, which the transaction `mzxid` set last. It is read from that
    /// transaction, and from the catalog where that does not say it, or is in front of the history.
    /// It may wait for disks.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`]; also if the transaction that set the data is not in the history
    /// any more, because the znode was changed later and its history was cut behind that.
    pub fn data_since(&self, path: &str, mzxid: i64) -> Result<Option<Bytes>, EngineError> {
        let (path, offset) = (key_of(path), Offset(mzxid.saturating_sub(1) as u64));
        let piece = self.log.payload_at(offset)?.filter(|piece| piece.entry.base == offset);
        let stamp = piece.as_ref().map(|piece| piece.entry.stamp);
        if let Some(piece) = piece {
            let entry = decode_entry(&piece.read()?).map_err(|why| corrupt(mzxid, &why))?;
            match entry.transaction.map(|transaction| transaction.data_set(path)) {
                Some(DataSet::To(data)) => return Ok(data),
                Some(DataSet::Unclear) => {}
                Some(DataSet::Not) | None => {
                    return Err(corrupt(mzxid, &format!("it did not set the data of {path}")));
                }
            }
        }
        let catalog = self.caught_up_to(Offset(offset.0 + 1).min(self.log.end()))?;
        let cut = match stamp {
            Some(stamp) => Cut::through(stamp),
            None => Cut::below(earliest_bound(&self.log.horizon())),
        };
        let stamped = stamped_version(&catalog, path, cut)?;
        let stamped = stamped.filter(|(stamp_set, version)| {
            version.meta.mzxid == mzxid && stamp.is_none_or(|stamp| stamp == *stamp_set)
        });
        let (_, version) =
            stamped.ok_or_else(|| corrupt(mzxid, "the catalog lacks what it set"))?;
        version.data(&catalog, path, cut)
    }

    /// The usage of a quota that the server showed at `path`, if it is the path of one: no
    /// transaction says so.
    fn quota_usage(
        &self,
        catalog: &Catalog,
        path: &str,
        cut: Cut,
    ) -> Result<Option<QuotaFigures>, EngineError> {
        let Some(top_path) = path_of_stats(path) else { return Ok(None) };
        let (Some(_), Some(top)) =
            (version(catalog, &limits_path(top_path), cut)?, version(catalog, top_path, cut)?)
        else {
            return Ok(None);
        };
        let mut usage = QuotaFigures::new(1, top.meta.data_length.into());
        let mut open = vec![(top_path.to_owned(), top)];
        while let Some((path, above)) = open.pop() {
            for name in above.children.names(catalog, &path, cut)? {
                let below = format!("{path}/{name}");
                let Some(znode) = version(catalog, &below, cut)? else { continue };
                usage.add(1, znode.meta.data_length.into());
                open.push((below, znode));
            }
        }
        Ok(Some(usage))
    }

    /// The names of a znode's children in `cut`, in byte order. It costs as much as there were
    /// then.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn children(&self, path: &str, cut: Cut) -> Result<Vec<String>, SeekError> {
        let (catalog, path) = (self.caught_up_with(cut)?, key_of(path));
        let mut names = match version(&catalog, path, cut)? {
            Some(version) => version.children.names(&catalog, path, cut)?,
            None => BTreeSet::new(),
        };
        let built_in: &[&str] = match path {
            "" => &["zookeeper"],
            "/zookeeper" => &["config", "quota"],
            _ => &[],
        };
        names.extend(built_in.iter().map(|name| (*name).to_owned()));
        self.check_retained(cut)?;
        Ok(names.into_iter().collect())
    }

    /// The number of znodes below `path` in `cut`.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn descendants(&self, path: &str, cut: Cut) -> Result<usize, SeekError> {
        let mut open = vec![key_of(path).to_owned()];
        let mut count = 0;
        while let Some(path) = open.pop() {
            let names = self.children(&path, cut)?;
            count += names.len();
            open.extend(names.iter().map(|name| format!("{path}/{name}")));
        }
        Ok(count)
    }

    /// The stamp of a transaction; `None` if there is none, or it was removed.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn stamp_of(&self, zxid: i64) -> Result<Option<Hlc>, EngineError> {
        let Some(offset) = u64::try_from(zxid).ok().and_then(|zxid| zxid.checked_sub(1)) else {
            return Ok(None);
        };
        let entry = block_in_place(|| self.log.entry_at(Offset(offset)))?;
        Ok(entry.filter(|entry| entry.base.0 == offset).map(|entry| entry.stamp))
    }

    /// The zxid of the last transaction in `cut`.
    ///
    /// # Errors
    /// The history does not reach back so far, or an index cannot be read.
    pub fn zxid_at(&self, cut: Cut) -> Result<i64, SeekError> {
        let end = self.log.offset_at(cut).map_err(EngineError::from)?;
        self.check_retained(cut)?;
        Ok(end.0 as i64)
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
        let applied = if layout.as_deref() == Some(LAYOUT_NOW) {
            catalog.applied_in(ZNODES_LOG)?
        } else {
            None
        };
        let next = match applied {
            Some(applied) => {
                let entry = self.0.log.entry_at(applied.offset)?;
                // The next entry has to be there: a checkpoint is only loaded into an empty
                // catalog.
                let is_followed = |end: Offset| end >= self.0.log.start();
                entry.filter(|entry| entry.stamp == applied.stamp && is_followed(entry.end()))
            }
            None => None,
        };
        let next = match next {
            Some(entry) => entry.end(),
            None => {
                // An interrupted rebuild, or a lost journal, may have left keys.
                clear(catalog)?;
                Offset(0)
            }
        };
        Ok(Box::new(ZnodeHistoryFill { history: &self.0, next, paused: None }))
    }

    fn check_retained(&self, cut: Cut) -> Result<(), SeekError> {
        self.0.check_retained(cut)
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

/// Applies transactions to a catalog, many in one batch.
struct CatalogFeed<'a> {
    catalog: &'a Catalog,
    writer: VersionWriter<'a>,
    newest: NewestVersions,
    /// The last transaction that is in the writer, or was written with another position.
    applied: Option<AppliedOffset>,
}

impl<'a> CatalogFeed<'a> {
    fn new(catalog: &'a Catalog) -> CatalogFeed<'a> {
        let (writer, newest) = (VersionWriter::new(catalog), NewestVersions::default());
        CatalogFeed { catalog, writer, newest, applied: None }
    }

    fn apply(&mut self, piece: &EntryPayload) -> Result<(), EngineError> {
        let (kind, offset, stamp) = (piece.entry.kind, piece.entry.base, piece.entry.stamp);
        let zxid = offset.0 as i64 + 1;
        if kind != KIND_ZNODES {
            return Err(corrupt(zxid, &format!("its kind is {kind}")));
        }
        let entry = decode_entry(&piece.read()?).map_err(|why| corrupt(zxid, &why))?;
        if let Some(transaction) = &entry.transaction {
            if matches!(transaction, ZnodeTransaction::SessionClosed) {
                // Its ephemeral znodes are looked up in the catalog.
                self.flush()?;
            }
            let (newest, session) = (&self.newest, entry.header.session);
            let replay =
                TransactionReplay::run(self.catalog, newest, zxid, stamp, session, transaction);
            let replay = replay.map_err(|error| replay_error(zxid, error))?;
            let newest = replay.write_versions(&mut self.writer)?;
            self.newest.extend(newest);
        }
        self.applied = Some(AppliedOffset { offset, stamp });
        if self.writer.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        if let Some(applied) = self.applied.take() {
            self.writer.flush_at(applied)?;
        }
        if self.newest.len() > NEWEST_MAX {
            self.newest.clear();
        }
        Ok(())
    }
}

pub(crate) fn replay_error(zxid: i64, error: ReplayError) -> EngineError {
    match error {
        ReplayError::Catalog(error) => EngineError::Loading(error),
        ReplayError::Journal(why) => corrupt(zxid, &why),
    }
}

pub(crate) fn corrupt(zxid: i64, why: &str) -> EngineError {
    EngineError::Corrupt(format!("the transaction {zxid} of znodes does not read: {why}"))
}

/// The checkpoint at which a history begins that begins at `start`: the oldest one there is.
pub(crate) fn oldest_checkpoint(
    checkpoints: &Log,
    start: Offset,
) -> Result<CheckpointSeal, EngineError> {
    let oldest = seals(checkpoints).last().transpose()?;
    oldest.filter(|seal| Offset(seal.start) == start).ok_or_else(|| {
        EngineError::Corrupt(format!(
            "the history of znodes begins at {}, and there is no checkpoint of it. Restore the data \
             directory from a backup, or report this as a bug",
            start.0
        ))
    })
}

/// Writes the names of all children into a catalog that has the znodes of a checkpoint, of this
/// stamp, and no more.
fn list_children(catalog: &Catalog, stamp: Hlc) -> Result<(), EngineError> {
    let (mut parent, mut names) = (String::new(), BTreeSet::new());
    let cut = Cut::through(stamp);
    let list = |parent: &str, names: BTreeSet<String>| {
        let Some(mut version) = version(catalog, parent, cut)? else { return Ok(()) };
        let mut writer = VersionWriter::new(catalog);
        version.children = ChildList::write(&mut writer, parent, stamp, names)?;
        writer.next()?.put(&version_key(parent), stamp, Some(&encode(&version)));
        Ok::<_, EngineError>(writer.flush()?)
    };
    // Children of one parent are adjacent.
    catalog.visit(&subtree_prefix(""), cut, &mut |key, _, _| {
        let Some(path) = key_path(key) else { return Ok(()) };
        let Some((above, name)) = path.rsplit_once('/') else { return Ok(()) };
        if above != parent {
            list(&parent, std::mem::take(&mut names))?;
            above.clone_into(&mut parent);
        }
        names.insert(name.to_owned());
        Ok::<_, EngineError>(())
    })?;
    list(&parent, names)
}

fn clear(catalog: &Catalog) -> Result<(), CatalogError> {
    catalog.remove_log(&[PREFIX], ZNODES_LOG)?;
    let mut layout = CatalogWriteBatch::default();
    layout.put_unversioned(LAYOUT, Some(LAYOUT_NOW));
    catalog.apply_unpositioned(layout)
}
