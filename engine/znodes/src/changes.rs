//! Past transactions, and the differences between two moments.

use engine_core::log_history::earliest_bound;
use engine_core::{EngineError, SeekError};
use hlc::{Cut, Hlc};
use storage::catalog::Catalog;
use storage::{EntryPayload, Offset};
use zk_wire::ZnodeStat;

use crate::acl::Acl;
use crate::entry::{ZnodeEntry, decode_entry};
use crate::history::{ZnodeHistory, corrupt, replay_error};
use crate::path::key_of;
use crate::replay::{NewestVersions, TransactionReplay, ZnodeChange};
use crate::request::{SessionId, ZnodeOp, ZnodeTransaction};
use crate::versions::{ZnodeVersion, key_path, subtree_prefix, version, version_key};

/// The most transactions, or znodes, that are looked at for one page.
const SCANNED_MAX: usize = 10_000;
/// The most bytes of data, or of paths and lists, that are on a page before its last transaction or
/// difference.
const DATA_BYTES_MAX: usize = 4 << 20;
/// The most bytes of entries that are read at once.
const READ_BYTES: usize = 1 << 20;

/// A transaction, and those of its changes that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastTransaction {
    pub zxid: i64,
    pub stamp: Hlc,
    /// The session that asked for it; 0 for the server.
    pub session: SessionId,
    /// The ids that the session had, without hashes; `server` for the server.
    pub by: String,
    /// In order.
    pub changes: Vec<ZnodeChange>,
}

/// A question for the transactions that changed a znode.
#[derive(Clone, Copy, Debug)]
pub struct ChangesQuery<'a> {
    pub path: &'a str,
    /// True if changes of znodes below it count too.
    pub recursive: bool,
    /// Only transactions after this one; `None` for all that are kept.
    pub after: Option<i64>,
    /// Only transactions up to this one.
    pub until: i64,
    /// The most transactions on a page.
    pub limit: usize,
}

/// One page of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesPage {
    pub transactions: Vec<PastTransaction>,
    /// Every transaction up to this one was looked at.
    pub through: i64,
}

/// A znode at one of two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeAtMoment {
    pub stat: ZnodeStat,
    pub acl: Acl,
}

/// A znode that differs between two moments: its data, its list, or whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeDifference {
    pub path: String,
    pub before: Option<ZnodeAtMoment>,
    pub after: Option<ZnodeAtMoment>,
}

impl ZnodeDifference {
    /// The approximate memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        let both = [&self.before, &self.after].into_iter().flatten();
        let lists = both.flat_map(|znode| znode.acl.iter());
        self.path.len() + lists.map(|entry| entry.id.bytes()).sum::<usize>()
    }
}

/// One page of differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZnodeDiffPage {
    pub differences: Vec<ZnodeDifference>,
    /// The number of znodes that were compared for it.
    pub scanned: usize,
    /// The start of the next page, if there is one.
    pub next: Option<Vec<u8>>,
}

impl ZnodeHistory {
    /// A page of the transactions that changed a znode, in order. Every transaction applied is
    /// there.
    ///
    /// It costs as much as there are changes of the znode and of its children, or for a whole
    /// subtree as there are transactions, up to a bound for each page.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn changes(&self, query: ChangesQuery<'_>) -> Result<ChangesPage, SeekError> {
        let start = self.log.start();
        let page = self.changes_from(query, start);
        let first = query.after.map_or(start, |after| Offset(after.max(0) as u64));
        // Checked afterwards, because entries that were removed meanwhile may have been missed.
        let horizon = self.log.horizon();
        if first < horizon.start {
            return Err(SeekError::BeforeZnodes { earliest: earliest_bound(&horizon) });
        }
        Ok(page?)
    }

    fn changes_from(
        &self,
        query: ChangesQuery<'_>,
        start: Offset,
    ) -> Result<ChangesPage, EngineError> {
        let end = self.log.end().min(Offset(query.until.max(0) as u64));
        let (catalog, until) = (self.caught_up_to(end)?, end.0 as i64);
        let after = query.after.unwrap_or(0).max(start.0 as i64);
        let mut page = ChangesPageBuilder {
            catalog: &catalog,
            query,
            data_bytes: 0,
            page: ChangesPage { transactions: Vec::new(), through: after.min(until) },
        };
        if after >= until {
            return Ok(page.page);
        }
        let is_complete = if query.recursive {
            self.scan_log(&mut page, after, until)?
        } else {
            self.scan_versions(&mut page, after, until)?
        };
        if is_complete {
            page.page.through = until;
        }
        Ok(page.page)
    }

    /// Looks at all transactions; returns true if it came to the end.
    fn scan_log(
        &self,
        page: &mut ChangesPageBuilder<'_>,
        after: i64,
        until: i64,
    ) -> Result<bool, EngineError> {
        let mut next = Offset(after as u64);
        let end = Offset((until as u64).min(next.0 + SCANNED_MAX as u64));
        while next < end {
            for piece in self.log.read(next, end, READ_BYTES)? {
                next = piece.entry.end();
                page.look_at(&piece)?;
                if page.is_full() {
                    return Ok(false);
                }
            }
        }
        Ok(next.0 as i64 >= until)
    }

    /// Looks at the transactions that changed the znode; returns true if it came to the end.
    fn scan_versions(
        &self,
        page: &mut ChangesPageBuilder<'_>,
        after: i64,
        until: i64,
    ) -> Result<bool, EngineError> {
        let cut = |zxid: i64| -> Result<Cut, EngineError> {
            if zxid <= self.log.start().0 as i64 {
                return Ok(Cut::below(earliest_bound(&self.log.horizon())));
            }
            let last = self.log.entry_at(Offset(zxid as u64 - 1))?;
            Ok(Cut::through(last.ok_or_else(|| corrupt(zxid, "it is not there"))?.stamp))
        };
        let key = version_key(key_of(page.query.path));
        let stamps = page.catalog.stamps(&key, cut(after)?, cut(until)?, SCANNED_MAX)?;
        for stamp in &stamps {
            let offset = self.log.offset_at(Cut::below(*stamp))?;
            let zxid = offset.0 as i64 + 1;
            let piece = self.log.payload_at(offset)?;
            let piece = piece.filter(|piece| piece.entry.stamp == *stamp);
            page.look_at(&piece.ok_or_else(|| corrupt(zxid, "it is not there"))?)?;
            if page.is_full() {
                return Ok(false);
            }
        }
        Ok(stamps.len() < SCANNED_MAX)
    }

    /// A page of the znodes at and below `path` that differ between two cuts, `from` the earlier
    /// one, in the order of their keys. `after` is [`ZnodeDiffPage::next`] of the page before.
    ///
    /// # Errors
    /// As [`ZnodeHistory::get`].
    pub fn diff(
        &self,
        path: &str,
        (from, until): (Cut, Cut),
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<ZnodeDiffPage, SeekError> {
        let page = self.diff_kept(path, from, until, after, limit)?;
        self.check_retained(from)?;
        Ok(page)
    }

    fn diff_kept(
        &self,
        path: &str,
        from: Cut,
        until: Cut,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<ZnodeDiffPage, EngineError> {
        let (catalog, path) = (self.caught_up_with(until)?, key_of(path));
        let mut page = ZnodeDiffPage::default();
        let mut last = after.map(<[u8]>::to_vec);
        let mut bytes = 0;
        if last.is_none() {
            let version_at = |cut| version(&catalog, path, cut);
            let (before, after) = (version_at(from)?, version_at(until)?);
            page.differences.extend(difference(path, before, after));
        }
        let prefix = subtree_prefix(path);
        while let Some(key) = catalog.next_key(&prefix, last.as_deref())? {
            if page.differences.len() >= limit
                || page.scanned >= SCANNED_MAX
                || bytes >= DATA_BYTES_MAX
            {
                page.next = Some(last.unwrap_or(prefix));
                return Ok(page);
            }
            page.scanned += 1;
            let below = key_path(&key).filter(|below| is_below(below, path));
            if let Some(below) = below {
                let version_at = |cut| version(&catalog, &below, cut);
                let changed = difference(&below, version_at(from)?, version_at(until)?);
                bytes += changed.as_ref().map_or(0, ZnodeDifference::bytes);
                page.differences.extend(changed);
            }
            last = Some(key);
        }
        Ok(page)
    }
}

/// A page while it is filled.
struct ChangesPageBuilder<'a> {
    catalog: &'a Catalog,
    query: ChangesQuery<'a>,
    data_bytes: usize,
    page: ChangesPage,
}

impl ChangesPageBuilder<'_> {
    fn is_full(&self) -> bool {
        self.page.transactions.len() >= self.query.limit.max(1) || self.data_bytes >= DATA_BYTES_MAX
    }

    fn look_at(&mut self, piece: &EntryPayload) -> Result<(), EngineError> {
        let (stamp, zxid) = (piece.entry.stamp, piece.entry.base.0 as i64 + 1);
        let ZnodeEntry { header, by, transaction } =
            decode_entry(&piece.read()?).map_err(|why| corrupt(zxid, &why))?;
        self.page.through = zxid;
        let session = header.session;
        let Some(transaction) = transaction.filter(|transaction| self.may_change(transaction))
        else {
            return Ok(());
        };
        let newest = NewestVersions::default();
        let replay =
            TransactionReplay::run(self.catalog, &newest, zxid, stamp, session, &transaction);
        let mut changes = replay.map_err(|error| replay_error(zxid, error))?.into_changes();
        changes.retain(|change| self.is_asked_for(&change.path));
        if changes.is_empty() {
            return Ok(());
        }
        let bytes = |change: &ZnodeChange| change.data.as_ref().map_or(0, bytes::Bytes::len);
        self.data_bytes += changes.iter().map(bytes).sum::<usize>();
        self.page.transactions.push(PastTransaction { zxid, stamp, session, by, changes });
        Ok(())
    }

    /// Returns true if a transaction may have changed a requested znode, as far as it says itself.
    /// A sequential znode is named without its number.
    fn may_change(&self, transaction: &ZnodeTransaction) -> bool {
        match transaction {
            ZnodeTransaction::Ops(ops) => ops.iter().any(|op| match op {
                ZnodeOp::Create { path, is_sequential: true, .. } => {
                    key_of(self.query.path).starts_with(&**path) || self.is_asked_for(path)
                }
                ZnodeOp::Create { path, .. }
                | ZnodeOp::Delete { path, .. }
                | ZnodeOp::SetData { path, .. }
                | ZnodeOp::SetAcl { path, .. }
                | ZnodeOp::RaiseSequence { path, .. } => self.is_asked_for(path),
                ZnodeOp::Check { .. } => false,
            }),
            ZnodeTransaction::SessionCreated { .. } => false,
            ZnodeTransaction::SessionClosed => true,
            ZnodeTransaction::Reaped { path } => self.is_asked_for(path),
        }
    }

    fn is_asked_for(&self, path: &str) -> bool {
        let (queried, path) = (key_of(self.query.path), key_of(path));
        path == queried || (self.query.recursive && is_below(path, queried))
    }
}

/// Returns true if a path is below another one. The empty path is the root.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

fn difference(
    path: &str,
    before: Option<ZnodeVersion>,
    after: Option<ZnodeVersion>,
) -> Option<ZnodeDifference> {
    let identity = |znode: &Option<ZnodeVersion>| {
        let meta = znode.as_ref().map(|znode| &znode.meta);
        meta.map(|meta| (meta.czxid, meta.mzxid, meta.version, meta.aversion))
    };
    if identity(&before) == identity(&after) {
        return None;
    }
    let shown = |znode: Option<ZnodeVersion>| {
        znode.map(|ZnodeVersion { meta, .. }| ZnodeAtMoment { stat: meta.stat(), acl: meta.acl })
    };
    let path = if path.is_empty() { "/" } else { path };
    Some(ZnodeDifference { path: path.to_owned(), before: shown(before), after: shown(after) })
}
