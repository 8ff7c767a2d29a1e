//! The handle: submits transactions, applies them, and lets the tree be read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use admission::Holder;
use bytes::Bytes;
use engine_core::event_reader::EventReader;
use engine_core::numbering::{KIND_ZNODES, ZNODE_CHECKPOINTS_LOG, ZNODES_LOG};
use engine_core::projection::ReaderProjection;
use engine_core::{EngineCore, EngineError, WingAppend};
use hlc::Hlc;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use storage::{AbortOnPanic, AppendReceipt, Offset, Payload};
use tokio::sync::watch;
use zk_wire::ZkCode;

use crate::acl::AclId;
use crate::charges::{ZnodeBudgets, ZnodeLimits};
use crate::checkpoint::{read_checkpoint, seals};
use crate::entry::{ZnodeEntry, ZnodeEntryHeader, decide, decode_entry, undecided_payload};
use crate::history::{ZnodeHistory, ZnodeProjection, oldest_checkpoint};
use crate::meta::TransactionTime;
use crate::pending::{PendingTree, TransactionActor};
use crate::request::{SessionId, TransactionOutcome, ZnodeOp, ZnodeRefusal, ZnodeTransaction};
use crate::retention::ZnodeOptions;
use crate::subtree_guard::SubtreeGuard;
use crate::table::ZnodeData;
use crate::tree::{TreeChange, ZnodeTree};

/// The most transactions that are applied before their pending state is forgotten.
const APPLIED_AT_ONCE: usize = 64;

/// Learns of changes before any reader can see them.
pub trait ZnodeObserver: Send + Sync {
    /// A znode changed. The tree is locked; this must not wait, and must not use the handle.
    fn on_change(&self, change: &TreeChange<'_>);
}

/// A request of a client.
#[derive(Debug)]
pub enum TransactionRequest {
    /// Changes of znodes: all, or none.
    Ops {
        ops: Vec<ZnodeOp>,
        /// The reason that the change that would come after `ops` fails whatever the tree is like.
        /// The transaction is refused, but gets its zxid.
        refusal: Option<ZkCode>,
    },
    /// A session begins.
    CreateSession {
        timeout_ms: u32,
        password: [u8; 16],
    },
    CloseSession,
    /// A container or a znode with a time to live is removed, if that is due.
    Reap {
        path: String,
    },
}

/// Called with the outcome of a transaction, right after it was applied. The tree is locked for
/// reading: nothing else is applied meanwhile.
pub type OnApplied = Box<dyn FnOnce(&ZnodeTree, Result<TransactionOutcome, EngineError>) + Send>;

/// A transaction, encoded and not submitted yet.
pub struct TransactionDraft {
    /// For a new session, 0.
    session: SessionId,
    held: Arc<[AclId]>,
    holder: Holder,
    transaction: ZnodeTransaction,
    refusal: Option<ZkCode>,
    guard: Option<SubtreeGuard>,
    payload: Payload,
}

impl TransactionDraft {
    /// A transaction of `session`, whose connection has the ids `held`. The history shows it as
    /// changed `by`.
    pub fn new(
        session: SessionId,
        held: Arc<[AclId]>,
        by: &str,
        request: TransactionRequest,
    ) -> TransactionDraft {
        let (transaction, refusal) = match request {
            TransactionRequest::Ops { ops, refusal } => (ZnodeTransaction::Ops(ops), refusal),
            TransactionRequest::CreateSession { timeout_ms, password } => {
                (ZnodeTransaction::SessionCreated { timeout_ms, password }, None)
            }
            TransactionRequest::CloseSession => (ZnodeTransaction::SessionClosed, None),
            TransactionRequest::Reap { path } => (ZnodeTransaction::Reaped { path }, None),
        };
        let payload = undecided_payload(by, &transaction);
        let (holder, guard) = (Holder::server(), None);
        TransactionDraft { session, held, holder, transaction, refusal, guard, payload }
    }

    /// Charges what the transaction stores to `holder`; without this, it is charged to the server.
    pub fn charged_to(self, holder: Holder) -> TransactionDraft {
        TransactionDraft { holder, ..self }
    }

    /// The transaction is refused, as for a wrong version, if something changed that is guarded.
    pub fn unless_changed(self, guard: SubtreeGuard) -> TransactionDraft {
        TransactionDraft { guard: Some(guard), ..self }
    }

    /// The bytes that it takes in the journal.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }
}

/// A transaction on its way.
struct PendingTransaction {
    shared: Arc<ZnodesShared>,
    session: SessionId,
    held: Arc<[AclId]>,
    holder: Holder,
    transaction: ZnodeTransaction,
    refusal: Option<ZkCode>,
    guard: Option<SubtreeGuard>,
    /// Set on the writer's thread.
    decided: OnceLock<DecidedTransaction>,
}

#[derive(Debug)]
struct DecidedTransaction {
    at: TransactionTime,
    session: SessionId,
    /// The places of the changes whose znodes stay charged to the holder before, or why the
    /// transaction failed.
    decision: Result<Vec<u32>, ZnodeRefusal>,
}

/// A transaction that is on stable storage, or that failed on the way there.
struct WrittenTransaction {
    transaction: Arc<PendingTransaction>,
    result: Result<AppendReceipt, EngineError>,
    on_applied: OnApplied,
}

struct ZnodesShared {
    tree: RwLock<ZnodeTree>,
    has_data_elsewhere: AtomicBool,
    /// Locked before `tree`, never after it.
    pending: Mutex<PendingTree>,
    observer: OnceLock<Arc<dyn ZnodeObserver>>,
    /// The zxid of the last transaction applied.
    applied: watch::Sender<i64>,
}

/// Data that was not in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedData {
    /// The transaction that set it last.
    pub mzxid: i64,
    pub data: Option<Bytes>,
}

/// The sizes of the logs of znodes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZnodeLogSizes {
    pub transaction_bytes: u64,
    pub checkpoint_bytes: u64,
}

/// A checkpoint of all znodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZnodeCheckpoint {
    /// The last transaction in it.
    pub zxid: i64,
    /// The time of that transaction, in milliseconds since 1970.
    pub at_ms: i64,
}

/// Znodes and sessions.
pub struct Znodes {
    core: Arc<EngineCore>,
    options: ZnodeOptions,
    shared: Arc<ZnodesShared>,
    history: Arc<ZnodeHistory>,
    applier: Mutex<Option<mpsc::Sender<WrittenTransaction>>>,
    /// Transactions that wait to be applied under manual stepping, where no thread applies them.
    manual: Mutex<Option<mpsc::Receiver<WrittenTransaction>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Znodes {
    /// The past of the znodes of an engine, which starts with [`Znodes::projection`] as one of its
    /// wings.
    ///
    /// # Errors
    /// Their log cannot be opened.
    pub fn history_of(core: &EngineCore) -> Result<Arc<ZnodeHistory>, EngineError> {
        let log = core.store().log(ZNODES_LOG)?;
        let checkpoints = core.store().log(ZNODE_CHECKPOINTS_LOG)?;
        Ok(Arc::new(ZnodeHistory::new(log, checkpoints, Arc::clone(core.catalog()))))
    }

    /// Checks whether a session with these ids could make these changes now. Nothing is changed.
    ///
    /// # Errors
    /// One of them would be refused.
    pub fn check_ops(
        &self,
        session: SessionId,
        held: &[AclId],
        ops: Vec<ZnodeOp>,
    ) -> Result<(), ZnodeRefusal> {
        let tree = self.tree();
        let at = TransactionTime { zxid: tree.last_zxid() + 1, ms: self.core.wall_now().0 as i64 };
        let mut pending = PendingTree::new(self.options.enforces_quotas, None);
        let ops = ZnodeTransaction::Ops(ops);
        let actor = TransactionActor { session, held, holder: &Holder::server() };
        pending.decide(&tree, at, actor, &ops, None).map(drop)
    }

    /// The versions of znodes in the catalog.
    pub fn projection(history: &Arc<ZnodeHistory>) -> Box<dyn ReaderProjection> {
        Box::new(ZnodeProjection(Arc::clone(history)))
    }

    /// Loads the znodes of an engine, and starts to take transactions.
    ///
    /// # Errors
    /// A log cannot be read, or does not fit together.
    pub fn open(
        core: Arc<EngineCore>,
        history: Arc<ZnodeHistory>,
        options: ZnodeOptions,
    ) -> Result<Znodes, EngineError> {
        let tree = load(&core, options.cached_bytes_max)?;
        let limits =
            ZnodeLimits { znodes_max: options.znodes_max, bytes_max: options.znode_bytes_max };
        let budgets = ZnodeBudgets::new(&core, limits, &tree.charge());
        let mut pending = PendingTree::new(options.enforces_quotas, Some(budgets));
        pending.forget_applied(tree.last_zxid());
        let shared = Arc::new(ZnodesShared {
            applied: watch::Sender::new(tree.last_zxid()),
            has_data_elsewhere: AtomicBool::new(tree.has_data_elsewhere()),
            tree: RwLock::new(tree),
            pending: Mutex::new(pending),
            observer: OnceLock::new(),
        });
        let (sender, receiver) = mpsc::channel::<WrittenTransaction>();
        let (mut manual, mut thread) = (None, None);
        if core.options().storage.manual_stepping {
            manual = Some(receiver);
        } else {
            let shared = Arc::clone(&shared);
            let run = move || apply_all(&shared, &receiver);
            let spawned = std::thread::Builder::new().name("znodes".to_owned()).spawn(run);
            thread = Some(spawned.map_err(storage::StorageError::from)?);
        }
        Ok(Znodes {
            core,
            options,
            shared,
            history,
            applier: Mutex::new(Some(sender)),
            manual: Mutex::new(manual),
            thread: Mutex::new(thread),
        })
    }

    /// Sets the observer of changes.
    ///
    /// # Panics
    /// There is one already.
    pub fn observe(&self, observer: Arc<dyn ZnodeObserver>) {
        assert!(self.shared.observer.set(observer).is_ok(), "there is one observer");
    }

    /// The tree as of the last transaction applied. Nothing is applied while the guard is held.
    pub fn tree(&self) -> RwLockReadGuard<'_, ZnodeTree> {
        self.shared.tree.read()
    }

    /// Returns true if the data of some znode may not be in memory.
    pub fn has_data_elsewhere(&self) -> bool {
        self.shared.has_data_elsewhere.load(Ordering::Relaxed)
    }

    /// Brings the data of a znode into memory, if it is elsewhere, and returns it then. It may wait
    /// for disks.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn fetch(&self, path: &str) -> Result<Option<FetchedData>, EngineError> {
        let elsewhere = |tree: &ZnodeTree| {
            let znode = tree.get(path)?;
            (znode.data() == ZnodeData::Elsewhere).then_some(znode.stat().mzxid)
        };
        let Some(mzxid) = elsewhere(&self.tree()) else { return Ok(None) };
        match self.history.data_since(path, mzxid) {
            Ok(data) => {
                self.shared.tree.write().keep(path, mzxid, data.as_deref());
                Ok(Some(FetchedData { mzxid, data }))
            }
            // Changed meanwhile.
            Err(_) if elsewhere(&self.tree()) != Some(mzxid) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The zxid of the last transaction applied, as it rises.
    pub fn applied(&self) -> watch::Receiver<i64> {
        self.shared.applied.subscribe()
    }

    /// Waits until a transaction is applied that is on stable storage, or one behind it.
    pub async fn wait_until_applied(&self, zxid: i64) {
        // The sender is there as long as this is.
        let _ = self.applied().wait_for(|applied| *applied >= zxid).await;
    }

    /// Guards a subtree. [`Znodes::tree`] has all changes of it then that the guard does not know
    /// of.
    pub async fn guard_subtree(&self, path: &str) -> SubtreeGuard {
        let (guard, before) = self.shared.pending.lock().guard_subtree(path);
        // Transactions that the disk refuses meanwhile are not applied.
        let still_comes = || before.min(self.shared.pending.lock().decided());
        let _ = self.applied().wait_for(|applied| *applied >= still_comes()).await;
        guard
    }

    /// Znodes as of any moment.
    pub fn history(&self) -> &Arc<ZnodeHistory> {
        &self.history
    }

    pub fn options(&self) -> &ZnodeOptions {
        &self.options
    }

    /// The sizes of the logs.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn log_sizes(&self) -> Result<ZnodeLogSizes, EngineError> {
        let store = self.core.store();
        Ok(ZnodeLogSizes {
            transaction_bytes: store.log(ZNODES_LOG)?.bytes()?,
            checkpoint_bytes: store.log(ZNODE_CHECKPOINTS_LOG)?.bytes()?,
        })
    }

    /// The newest checkpoint, if there is one that can be read.
    pub fn last_checkpoint(&self) -> Option<ZnodeCheckpoint> {
        let log = self.core.store().log(ZNODE_CHECKPOINTS_LOG).ok()?;
        let seal = seals(&log).next()?.ok()?;
        Some(ZnodeCheckpoint {
            zxid: seal.start as i64,
            at_ms: Hlc::from_bits(seal.stamp).time().0 as i64,
        })
    }

    pub fn core(&self) -> &Arc<EngineCore> {
        &self.core
    }

    /// Submits a transaction. From here on it comes before all that are submitted later.
    ///
    /// The caller limits how much is in flight.
    pub fn submit(&self, draft: TransactionDraft, on_applied: OnApplied) {
        let TransactionDraft { session, held, holder, transaction, refusal, guard, payload } =
            draft;
        let transaction = Arc::new(PendingTransaction {
            shared: Arc::clone(&self.shared),
            session,
            held,
            holder,
            transaction,
            refusal,
            guard,
            decided: OnceLock::new(),
        });
        let Some(applier) = self.applier.lock().clone() else {
            return on_applied(&self.shared.tree.read(), Err(EngineError::closing()));
        };
        let wing: Arc<dyn WingAppend> = Arc::clone(&transaction) as Arc<dyn WingAppend>;
        self.core.append_wing(ZNODES_LOG, KIND_ZNODES, payload, wing, move |result| {
            if let (Err(_), Some(decided)) = (&result, transaction.decided.get()) {
                transaction.shared.pending.lock().roll_back(decided.at.zxid);
            }
            // The receiver is there until the engine is closed.
            let _ = applier.send(WrittenTransaction { transaction, result, on_applied });
        });
    }

    /// Applies waiting transactions, under manual stepping; returns true if there were any.
    pub fn step(&self) -> bool {
        let receiver = self.manual.lock();
        let Some(receiver) = receiver.as_ref() else { return false };
        let mut any = false;
        while let Ok(first) = receiver.try_recv() {
            self.shared.apply_some(first, receiver);
            any = true;
        }
        any
    }

    /// Applies what the store has written, and ends. The store is closed before.
    pub fn close(&self) {
        self.applier.lock().take();
        self.step();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Znodes {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Znodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Znodes").finish_non_exhaustive()
    }
}

impl WingAppend for PendingTransaction {
    fn stage(&self, payload: &mut Payload, base: Offset, stamp: Hlc) {
        let at = TransactionTime::new(base.0 as i64 + 1, stamp);
        let session = match &self.transaction {
            ZnodeTransaction::SessionCreated { .. } => SessionId(stamp.bits() as i64),
            _ => self.session,
        };
        let mut pending = self.shared.pending.lock();
        // Recursive: the writer of the journal does not queue behind the applier, which may wait
        // for a reader.
        let tree = self.shared.tree.read_recursive();
        let nothing = ZnodeTransaction::Ops(Vec::new());
        let (transaction, refusal) = if self.guard.as_ref().is_some_and(SubtreeGuard::has_changed) {
            (&nothing, Some(ZkCode::BadVersion))
        } else {
            (&self.transaction, self.refusal)
        };
        let actor = TransactionActor { session, held: &self.held, holder: &self.holder };
        let decision = pending.decide(&tree, at, actor, transaction, refusal);
        drop(tree);
        decide(payload, ZnodeEntryHeader { session, refusal: decision.as_ref().err().copied() });
        let decided = DecidedTransaction { at, session, decision };
        assert!(self.decided.set(decided).is_ok(), "a transaction is staged once");
    }
}

impl std::fmt::Debug for PendingTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingTransaction")
            .field("session", &self.session)
            .field("transaction", &self.transaction)
            .field("decided", &self.decided)
            .finish_non_exhaustive()
    }
}

fn apply_all(shared: &ZnodesShared, written: &mpsc::Receiver<WrittenTransaction>) {
    let abort = AbortOnPanic;
    while let Ok(first) = written.recv() {
        shared.apply_some(first, written);
    }
    std::mem::forget(abort);
}

impl ZnodesShared {
    fn apply_some(&self, first: WrittenTransaction, queue: &mpsc::Receiver<WrittenTransaction>) {
        let mut applied = 0;
        for written in std::iter::once(first).chain(queue.try_iter()).take(APPLIED_AT_ONCE) {
            applied = self.apply(written);
        }
        self.pending.lock().forget_applied(applied);
        self.applied.send_replace(applied);
    }

    /// Applies a transaction, and returns the zxid of the last one applied. Only the change itself
    /// keeps readers out: replies, also to reads that waited for it, are made beside them.
    fn apply(&self, written: WrittenTransaction) -> i64 {
        let WrittenTransaction { transaction, result, on_applied } = written;
        let (tree, result) = match result {
            Ok(_) => {
                let mut tree = self.tree.write();
                let outcome = self.apply_decided(&mut tree, &transaction);
                self.has_data_elsewhere.store(tree.has_data_elsewhere(), Ordering::Relaxed);
                (RwLockWriteGuard::downgrade(tree), Ok(outcome))
            }
            Err(error) => (self.tree.read(), Err(error)),
        };
        on_applied(&tree, result);
        tree.last_zxid()
    }

    fn apply_decided(
        &self,
        tree: &mut ZnodeTree,
        transaction: &PendingTransaction,
    ) -> TransactionOutcome {
        let decided = transaction.decided.get().expect("what is written was staged");
        let DecidedTransaction { at, session, ref decision } = *decided;
        let result = match decision {
            Err(refusal) => {
                tree.skip(at.zxid);
                Err(*refusal)
            }
            Ok(uncharged) => {
                let observer = self.observer.get();
                let visit = &mut |change: &TreeChange<'_>| {
                    if let Some(observer) = observer {
                        observer.on_change(change);
                    }
                };
                // The process must not go on: the next start would apply something else.
                let PendingTransaction { holder, transaction, .. } = transaction;
                let applied = tree.apply(at, session, holder, uncharged, transaction, visit);
                Ok(applied.expect("a transaction that was not refused can be applied"))
            }
        };
        TransactionOutcome { zxid: at.zxid, session, result }
    }
}

/// The tree: the newest checkpoint, and the transactions since.
fn load(core: &EngineCore, cached_bytes_max: u64) -> Result<ZnodeTree, EngineError> {
    const HELP: &str = "Restore the data directory from a backup, or report this as a bug";
    let (log, checkpoints) =
        (core.store().log(ZNODES_LOG)?, core.store().log(ZNODE_CHECKPOINTS_LOG)?);
    let mut tree = ZnodeTree::new(cached_bytes_max);
    let mut next = Offset(0);
    if let Some(seal) = seals(&checkpoints).next().transpose()? {
        let mismatch = |why| {
            let at = seal.start;
            EngineError::Corrupt(format!(
                "the checkpoint of znodes at {at} is wrong: {why}. {HELP}"
            ))
        };
        read_checkpoint(&checkpoints, &seal, &mut |entry| tree.load(entry).map_err(mismatch))?;
        tree.skip(seal.start as i64);
        next = Offset(seal.start);
    }
    if next < log.start() {
        oldest_checkpoint(&checkpoints, log.start())?;
    }
    let entries = EventReader::new(log, next);
    for (zxid, entry) in (next.0 as i64 + 1..).zip(entries) {
        let corrupt = |why: String| {
            EngineError::Corrupt(format!(
                "the transaction {zxid} of znodes does not read: {why}. {HELP}"
            ))
        };
        let (payload, stamp, _) = entry.map_err(corrupt)?;
        replay(&mut tree, TransactionTime::new(zxid, stamp), &payload).map_err(corrupt)?;
    }
    tree.recount_quotas();
    Ok(tree)
}

/// Applies an entry of the log.
fn replay(tree: &mut ZnodeTree, at: TransactionTime, payload: &[u8]) -> Result<(), String> {
    let ZnodeEntry { header, transaction, .. } = decode_entry(payload)?;
    match transaction {
        Some(transaction) => {
            let (session, holder) = (header.session, &Holder::restored());
            tree.apply(at, session, holder, &[], &transaction, &mut |_| {}).map(drop)
        }
        None => {
            tree.skip(at.zxid);
            Ok(())
        }
    }
}
