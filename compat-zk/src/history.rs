//! Requests that stock clients do not have: the history of a znode, with the author and time of
//! each change; the difference between two moments; and the restore of a subtree. One request, with
//! a JSON document each way (`history-documents`).
//!
//! A client sees the part of it that it may read: each znode's list at that time decides.

use std::sync::Arc;
use std::time::Duration;

use admission::{Holder, QueueGrant};
use engine_core::{AuditSubject, EngineError, SeekError, WaitPolicy};
use engine_znodes::acl::{self, Acl, AclId, check_permission};
use engine_znodes::{
    ChangesQuery, PastSubtree, PastTransaction, RestoreError, SessionId, TransactionDraft,
    TransactionRequest, ZkCode, ZnodeAtMoment, ZnodeChange, ZnodeChangeKind, ZnodeDifference,
    ZnodeHistory, ZnodeOp, ZnodeRefusal, Znodes, check_path,
};
use history_documents::{
    Base64Bytes, HistoryErrorCode, HistoryRefusal, RefusalDocument, ZnodeChangeDocument,
    ZnodeChangeName, ZnodeDiffEntry, ZnodeDiffRequest, ZnodeDiffResponse, ZnodeHistoryRequest,
    ZnodeLogEntry, ZnodeLogRequest, ZnodeLogResponse, ZnodeRestoreChange, ZnodeRestoreRequest,
    ZnodeRestoreResponse, ZnodeSummary,
};
use hlc::{Cut, Moment};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::Instant;
use zk_wire::ZnodeStat;

use crate::connection::{Connection, ConnectionIdentity};
use crate::past::PastReader;
use crate::server::BY_THE_SERVER;
use crate::sessions::LiveSession;

/// The number of transactions or differences on a page, unless the request says.
const PAGE: usize = 1000;
const PAGE_MAX: usize = 10_000;
/// The longest time that a request may wait for a transaction.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The longest time that the restore of a subtree is retried while others write to the subtree.
const RESTORE_MAX: Duration = Duration::from_secs(20);

type HistoryResult<T> = Result<T, HistoryRefusal>;

/// The transaction of a restore, if one was needed, and its changes.
type RestoreOutcome = (Option<i64>, Vec<ZnodeRestoreChange>);

/// A subtree that is put back, for a session and from a connection.
struct SubtreeRestore<'a> {
    path: String,
    then: Arc<PastSubtree>,
    session: &'a Arc<LiveSession>,
    connection: &'a Connection,
    /// One of few, until all of this is over.
    turn: Arc<QueueGrant>,
}

/// The reasons not to put a subtree back.
enum RestoreFailure {
    /// Something changed meanwhile.
    Changed(ZkCode),
    Refused(HistoryRefusal),
}

impl From<HistoryRefusal> for RestoreFailure {
    fn from(refusal: HistoryRefusal) -> RestoreFailure {
        RestoreFailure::Refused(refusal)
    }
}

impl PastReader {
    /// Answers a document of `session`, from `connection`, with a document.
    pub(crate) async fn answer(
        &self,
        session: &Arc<LiveSession>,
        connection: &Connection,
        document: &[u8],
    ) -> Vec<u8> {
        let identity = &connection.identity();
        let request = serde_json::from_slice(document)
            .map_err(|error| refusal(HistoryErrorCode::BadRequest, error.to_string()));
        let answer = match request {
            Ok(ZnodeHistoryRequest::Log(request)) => self.log(request, identity).await.map(text),
            Ok(ZnodeHistoryRequest::Diff(request)) => self.diff(request, identity).await.map(text),
            Ok(ZnodeHistoryRequest::Restore(request)) => {
                self.restore(session, connection, request, identity).await.map(text)
            }
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| text(RefusalDocument { error }))
    }

    async fn log(
        &self,
        request: ZnodeLogRequest,
        identity: &ConnectionIdentity,
    ) -> HistoryResult<ZnodeLogResponse> {
        let ZnodeLogRequest { path, recursive, after, from, until, limit, wait_ms } = request;
        check(&path)?;
        let until = match until {
            Some(until) => Some(self.closed_cut(&until, &identity.holder).await?),
            None => None,
        };
        let from = match from {
            Some(from) => Some(self.zxid_at(parse_cut(&from)?, &identity.holder).await?),
            None => None,
        };
        let after = after.max(from);
        let last = match until {
            Some((_, zxid)) => zxid,
            None => {
                self.wait_for_transaction(after.unwrap_or(0), Duration::from_millis(wait_ms)).await;
                self.znodes.tree().last_zxid()
            }
        };
        let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        let page = self
            .read_history(&identity.holder, move |history| {
                history.changes(ChangesQuery { path: &path, recursive, after, until: last, limit })
            })
            .await
            .map_err(seek_refused)?;
        let entries = page.transactions.into_iter().map(|entry| log_entry(entry, identity));
        Ok(ZnodeLogResponse {
            transactions: entries.filter(|entry| !entry.changes.is_empty()).collect(),
            through: page.through,
            complete: page.through >= last,
        })
    }

    /// Waits until a transaction after `after` is applied, up to `patience`.
    async fn wait_for_transaction(&self, after: i64, patience: Duration) {
        let mut applied = self.znodes.applied();
        let later = applied.wait_for(|zxid| *zxid > after);
        let _ = tokio::time::timeout(patience.min(WAIT_MAX), later).await;
    }

    async fn diff(
        &self,
        request: ZnodeDiffRequest,
        identity: &ConnectionIdentity,
    ) -> HistoryResult<ZnodeDiffResponse> {
        let ZnodeDiffRequest { path, from, until, after, limit } = request;
        check(&path)?;
        let from = parse_cut(&from)?;
        let (until, _) = self.closed_cut(&until, &identity.holder).await?;
        if until <= from {
            let message = "the first moment has to be the earlier one".to_owned();
            return Err(refusal(HistoryErrorCode::BadMoment, message));
        }
        let open = |after: &str| {
            let key = self.cursor_seal.open(after);
            let message = "not where a page begins: give what the page before it gave as next";
            key.ok_or_else(|| refusal(HistoryErrorCode::BadRequest, message.to_owned()))
        };
        let after = after.as_deref().map(open).transpose()?;
        let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        let page = self
            .read_history(&identity.holder, move |history| {
                history.diff(&path, (from, until), after.as_deref(), limit)
            })
            .await
            .map_err(seek_refused)?;
        let changes = page.differences.into_iter();
        Ok(ZnodeDiffResponse {
            from: Moment::Sys(from).to_string(),
            until: Moment::Sys(until).to_string(),
            changes: changes.filter_map(|entry| diff_entry(entry, &identity.held)).collect(),
            // It names the last znode that was compared, which may be one that the client may not
            // read.
            next: page.next.map(|key| self.cursor_seal.seal(&key)),
        })
    }

    async fn restore(
        &self,
        session: &Arc<LiveSession>,
        connection: &Connection,
        request: ZnodeRestoreRequest,
        identity: &ConnectionIdentity,
    ) -> HistoryResult<ZnodeRestoreResponse> {
        let ZnodeRestoreRequest { path, at, dry_run } = request;
        check(&path)?;
        let (cut, _) = self.closed_cut(&at, &identity.holder).await?;
        let held = &identity.held;
        let turn = Arc::new(self.restores.take(&identity.holder, 1).await);
        let (held_while_reading, readers) = (Arc::clone(&turn), Arc::clone(held));
        let read = move |history: &_| {
            let _turn = held_while_reading;
            Ok(subtree_to_restore(history, &path, cut, &readers).map(|subtree| (subtree, path)))
        };
        let (subtree, path) =
            self.read_history(&identity.holder, read).await.map_err(seek_refused)??;
        let at = Moment::Sys(cut).to_string();
        let restore = SubtreeRestore { path, then: Arc::new(subtree), session, connection, turn };
        let started = Instant::now();
        loop {
            match self.attempt_restore(&restore, identity, dry_run).await {
                Ok((zxid, changes)) => {
                    if zxid.is_some() {
                        self.record_restore(connection, identity, &restore.path, &at);
                    }
                    return Ok(ZnodeRestoreResponse { at, zxid, changes });
                }
                // The conflicting change is over: the next attempt begins behind it.
                Err(RestoreFailure::Changed(_)) if started.elapsed() < RESTORE_MAX => {}
                Err(RestoreFailure::Changed(code)) => {
                    let message = format!(
                        "something in {} changed during each attempt: {code}. Try again when less is written there",
                        restore.path
                    );
                    return Err(refusal(HistoryErrorCode::Conflict, message));
                }
                Err(RestoreFailure::Refused(refusal)) => return Err(refusal),
            }
        }
    }

    fn record_restore(
        &self,
        connection: &Connection,
        identity: &ConnectionIdentity,
        path: &str,
        at: &str,
    ) {
        let address = connection.peer.ip().to_canonical().to_string();
        let subject = AuditSubject { principal: &identity.by, address: &address };
        let resource = format_args!("ZNODE {path} as of {at}");
        self.znodes.core().audit().record_change(subject, "restore", resource);
    }

    /// Puts a subtree back unless something of it changes meanwhile: the transaction, and what it
    /// changes.
    async fn attempt_restore(
        &self,
        restore: &SubtreeRestore<'_>,
        ConnectionIdentity { held, by, holder }: &ConnectionIdentity,
        dry_run: bool,
    ) -> Result<RestoreOutcome, RestoreFailure> {
        let SubtreeRestore { path, then, session, connection, turn } = restore;
        // From here on nothing may change. The past does not change anyway.
        let guard = self.znodes.guard_subtree(path).await;
        let (held_while_reading, readers) = (Arc::clone(turn), Arc::clone(held));
        let (subtree, znodes) = (Arc::clone(then), Arc::clone(&self.znodes));
        let compare = move |_: &_| {
            let _turn = held_while_reading;
            Ok(ops_to_restore(&subtree, &znodes, &readers))
        };
        let ops = self.read_history(holder, compare).await.map_err(seek_refused)??;
        let changes = ops.iter().filter_map(restore_change).collect();
        if ops.is_empty() {
            return Ok((None, changes));
        }
        if dry_run {
            // A client that may not make the changes does not see them either.
            self.znodes.check_ops(session.id, held, ops).map_err(transaction_refused)?;
            return Ok((None, changes));
        }
        let request = TransactionRequest::Ops { ops, refusal: None };
        let draft = TransactionDraft::new(session.id, Arc::clone(held), by, request)
            .charged_to(holder.clone())
            .unless_changed(guard);
        let session_write = session.begin_write();
        let flight = self.znodes.core().append_budget().acquire(holder, draft.bytes()).await;
        // Another connection may be the session's by now, and write what comes after.
        if connection.output.has_ended() {
            let message = "the connection has ended".to_owned();
            return Err(refusal(HistoryErrorCode::Conflict, message).into());
        }
        let (sender, receiver) = oneshot::channel();
        let turn = Arc::clone(turn);
        let on_done = move |_: &_, result| {
            drop((flight, turn, session_write));
            let _ = sender.send(result);
        };
        self.znodes.submit(draft, Box::new(on_done));
        let outcome = receiver.await.map_err(|_| refused(EngineError::closing()))?;
        let outcome = outcome.map_err(refused)?;
        outcome.result.map_err(transaction_refused)?;
        Ok((Some(outcome.zxid), changes))
    }

    /// The cut of a moment and its last transaction, once it is over and the tree has all that came
    /// before it.
    async fn closed_cut(&self, moment: &str, holder: &Holder) -> HistoryResult<(Cut, i64)> {
        let cut = parse_cut(moment)?;
        let closed = self.znodes.core().wait_until_closed(cut, WaitPolicy::Wait(self.patience));
        closed.await.map_err(seek_refused)?;
        let zxid = self.zxid_at(cut, holder).await?;
        self.znodes.wait_until_applied(zxid).await;
        Ok((cut, zxid))
    }

    async fn zxid_at(&self, cut: Cut, holder: &Holder) -> HistoryResult<i64> {
        self.read_history(holder, move |history| history.zxid_at(cut)).await.map_err(seek_refused)
    }
}

fn text(document: impl Serialize) -> Vec<u8> {
    serde_json::to_vec(&document).expect("texts and numbers are JSON")
}

fn refusal(code: HistoryErrorCode, message: String) -> HistoryRefusal {
    HistoryRefusal { code, message, frontier: None, frontier_ms: None, retry_ms: None }
}

fn unauthorized() -> HistoryRefusal {
    let message = "an access control list does not permit it (NoAuth)".to_owned();
    refusal(HistoryErrorCode::Unauthorized, message)
}

fn refused(error: EngineError) -> HistoryRefusal {
    let code = match error {
        EngineError::Loading(_) => HistoryErrorCode::Loading,
        EngineError::Stopping(_) => HistoryErrorCode::Stopping,
        EngineError::Fenced(_) => HistoryErrorCode::Fenced,
        _ => HistoryErrorCode::Internal,
    };
    refusal(code, error.to_string())
}

fn seek_refused(error: SeekError) -> HistoryRefusal {
    let code = match error {
        SeekError::NotYet { .. } => HistoryErrorCode::NotYet,
        SeekError::FarFuture { .. } => HistoryErrorCode::FarFuture,
        SeekError::BeforeHistory { .. }
        | SeekError::BeforeOffsets { .. }
        | SeekError::BeforeZnodes { .. }
        | SeekError::BeforeNames { .. } => HistoryErrorCode::BeforeHistory,
        SeekError::NoTopic { .. } => HistoryErrorCode::Internal,
        SeekError::Engine(error) => return refused(error),
    };
    refusal(code, error.to_string())
}

/// A subtree as it was.
///
/// # Errors
/// It cannot be put back, or the ids do not permit to read all of it.
fn subtree_to_restore(
    history: &ZnodeHistory,
    path: &str,
    cut: Cut,
    ids: &[AclId],
) -> HistoryResult<PastSubtree> {
    let subtree = history.subtree(path, cut).map_err(restore_refused)?;
    if subtree.acls().any(|acl| !may_read(acl, ids)) {
        return Err(unauthorized());
    }
    Ok(subtree)
}

/// The changes that put a subtree back.
///
/// # Errors
/// Something is in the way.
fn ops_to_restore(
    subtree: &PastSubtree,
    znodes: &Znodes,
    ids: &[AclId],
) -> HistoryResult<Vec<ZnodeOp>> {
    subtree.changes_from(znodes).map_err(|error| {
        let in_the_way = match &error {
            RestoreError::Ephemeral { path } => Some(path),
            _ => None,
        };
        let tree = znodes.tree();
        // One that is gone meanwhile is not known to be readable.
        let is_readable =
            |path: &String| tree.get(path).is_some_and(|znode| may_read(znode.acl(), ids));
        if in_the_way.is_none_or(is_readable) { restore_refused(error) } else { unauthorized() }
    })
}

fn restore_refused(error: RestoreError) -> HistoryRefusal {
    let code = match error {
        RestoreError::NotThere { .. } => HistoryErrorCode::NotFound,
        RestoreError::Ephemeral { .. } => HistoryErrorCode::Conflict,
        RestoreError::TooLarge => HistoryErrorCode::TooLarge,
        RestoreError::Seek(error) => return seek_refused(error),
    };
    refusal(code, error.to_string())
}

fn transaction_refused(ZnodeRefusal { code, .. }: ZnodeRefusal) -> RestoreFailure {
    match code {
        ZkCode::NoAuth => unauthorized().into(),
        ZkCode::BadVersion | ZkCode::NoNode | ZkCode::NodeExists | ZkCode::NotEmpty => {
            RestoreFailure::Changed(code)
        }
        code => {
            let message = format!("the changes are refused: {code}");
            refusal(HistoryErrorCode::Conflict, message).into()
        }
    }
}

fn check(path: &str) -> HistoryResult<()> {
    let message = || format!("{path:?} is not the path of a znode: one begins with a slash");
    check_path(path).map_err(|_| refusal(HistoryErrorCode::BadPath, message()))
}

fn parse_cut(text: &str) -> HistoryResult<Cut> {
    match text.parse() {
        Ok(Moment::Sys(cut)) => Ok(cut),
        Ok(Moment::User { .. }) | Err(_) => {
            let message = format!("a moment of system time (s…) is expected, not {text:?}");
            Err(refusal(HistoryErrorCode::BadMoment, message))
        }
    }
}

fn may_read(acl: &Acl, ids: &[AclId]) -> bool {
    check_permission(acl, acl::READ, ids).is_ok()
}

/// A transaction as a connection sees it. The author is shown to the same identity, and to clients
/// that may administer one of the znodes that it changed.
fn log_entry(entry: PastTransaction, reader: &ConnectionIdentity) -> ZnodeLogEntry {
    let changes = entry.changes.into_iter().filter(|change| may_read(&change.acl, &reader.held));
    let changes: Vec<ZnodeChange> = changes.collect();
    let may_administer =
        |change: &ZnodeChange| check_permission(&change.acl, acl::ADMIN, &reader.held).is_ok();
    let is_shown =
        *entry.by == *reader.by || entry.by == BY_THE_SERVER || changes.iter().any(may_administer);
    ZnodeLogEntry {
        zxid: entry.zxid,
        stamp: entry.stamp.into(),
        stamp_ms: entry.stamp.time().0,
        session: entry.session.to_string(),
        by: if is_shown { entry.by } else { String::new() },
        changes: changes.into_iter().map(change_document).collect(),
    }
}

fn change_document(change: ZnodeChange) -> ZnodeChangeDocument {
    ZnodeChangeDocument {
        kind: match change.kind {
            ZnodeChangeKind::Created => ZnodeChangeName::Created,
            ZnodeChangeKind::Deleted => ZnodeChangeName::Deleted,
            ZnodeChangeKind::DataChanged => ZnodeChangeName::DataChanged,
            ZnodeChangeKind::AclChanged => ZnodeChangeName::AclChanged,
            ZnodeChangeKind::SequenceRaised => ZnodeChangeName::SequenceRaised,
        },
        path: change.path,
        znode: summary(&change.stat, &change.acl),
        data: change.data.map(|data| Base64Bytes(data.into())),
    }
}

fn diff_entry(entry: ZnodeDifference, ids: &[AclId]) -> Option<ZnodeDiffEntry> {
    let ZnodeDifference { path, before, after } = entry;
    let znodes = [&before, &after];
    let is_readable = znodes.into_iter().flatten().all(|znode| may_read(&znode.acl, ids));
    let summary_of = |znode: &ZnodeAtMoment| summary(&znode.stat, &znode.acl);
    let (before, after) = (before.as_ref().map(summary_of), after.as_ref().map(summary_of));
    is_readable.then_some(ZnodeDiffEntry { path, before, after })
}

fn summary(stat: &ZnodeStat, acl: &Acl) -> ZnodeSummary {
    ZnodeSummary {
        version: stat.version,
        aversion: stat.aversion,
        data_length: stat.data_length,
        ephemeral_owner: SessionId(stat.ephemeral_owner).to_string(),
        acl: acl.iter().map(acl::AclEntry::shown).collect(),
    }
}

fn restore_change(op: &ZnodeOp) -> Option<ZnodeRestoreChange> {
    let (kind, path) = match op {
        ZnodeOp::Create { path, .. } => (ZnodeChangeName::Created, path),
        ZnodeOp::Delete { path, .. } => (ZnodeChangeName::Deleted, path),
        ZnodeOp::SetData { path, .. } => (ZnodeChangeName::DataChanged, path),
        ZnodeOp::SetAcl { path, .. } => (ZnodeChangeName::AclChanged, path),
        ZnodeOp::RaiseSequence { path, .. } => (ZnodeChangeName::SequenceRaised, path),
        ZnodeOp::Check { .. } => return None,
    };
    Some(ZnodeRestoreChange { kind, path: path.clone() })
}
