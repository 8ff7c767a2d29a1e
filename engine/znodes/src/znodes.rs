//! The handle: submits transactions, applies them, and lets the tree be read.

use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use engine_core::event_reader::EventReader;
use engine_core::numbering::{KIND_ZNODES, ZNODES_LOG};
use engine_core::projection::ReaderProjection;
use engine_core::{EngineCore, EngineError, WingAppend};
use hlc::Hlc;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use storage::{AbortOnPanic, AppendReceipt, Offset, Payload};

use crate::acl::AclId;
use crate::entry::{ZnodeEntryBody, ZnodeEntryHeader, decide, decode_entry, undecided_payload};
use crate::history::{ZnodeHistory, ZnodeProjection};
use crate::pending::{PendingRequest, PendingTree};
use crate::request::{CheckedOp, SessionId, TransactionOutcome, ZnodeRefusal, ZnodeTransaction};
use crate::tree::{TransactionTime, TreeChange, ZnodeTree, time_of};

/// How many transactions are applied before readers get a turn.
const APPLIED_AT_ONCE: usize = 64;

/// Whoever has to know of changes before anybody can read them.
pub trait ZnodeObserver: Send + Sync {
    /// A znode changed. The tree is locked; this must not wait, and must not use the handle.
    fn on_change(&self, change: &TreeChange<'_>);
}

/// A transaction that is asked for.
#[derive(Debug)]
pub enum TransactionRequest {
    /// Changes of znodes: all, or none.
    Ops(Vec<CheckedOp>),
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

/// Called with what became of a transaction, while the tree is locked: right after it was applied, and
/// before anything else is.
pub type OnApplied = Box<dyn FnOnce(&ZnodeTree, Result<TransactionOutcome, EngineError>) + Send>;

/// A transaction on its way.
struct PendingTransaction {
    shared: Arc<ZnodesShared>,
    /// For a new session, 0.
    session: SessionId,
    held: Arc<[AclId]>,
    request: PendingOps,
    /// Set on the writer's thread.
    decided: OnceLock<DecidedTransaction>,
}

/// What is needed to decide, and to apply.
#[derive(Debug)]
struct PendingOps {
    /// What each change is refused for without knowing the tree.
    checked: Vec<CheckedOp>,
    transaction: ZnodeTransaction,
}

#[derive(Clone, Copy, Debug)]
struct DecidedTransaction {
    at: TransactionTime,
    session: SessionId,
    refusal: Option<ZnodeRefusal>,
}

/// A transaction that is on stable storage, or that failed on the way there.
struct WrittenTransaction {
    transaction: Arc<PendingTransaction>,
    result: Result<AppendReceipt, EngineError>,
    on_applied: OnApplied,
}

struct ZnodesShared {
    tree: RwLock<ZnodeTree>,
    /// Locked before `tree`, never after it.
    pending: Mutex<PendingTree>,
    observer: OnceLock<Arc<dyn ZnodeObserver>>,
}

/// Znodes and sessions.
pub struct Znodes {
    core: Arc<EngineCore>,
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
        Ok(Arc::new(ZnodeHistory::new(log, Arc::clone(core.catalog()))))
    }

    /// The versions of znodes in the catalog.
    pub fn projection(history: &Arc<ZnodeHistory>) -> Box<dyn ReaderProjection> {
        Box::new(ZnodeProjection(Arc::clone(history)))
    }

    /// Reads the transactions of an engine, and starts to take new ones.
    ///
    /// # Errors
    /// The log cannot be read, or does not fit together.
    pub fn open(core: Arc<EngineCore>, history: Arc<ZnodeHistory>) -> Result<Znodes, EngineError> {
        let mut tree = ZnodeTree::new();
        let log = core.store().log(ZNODES_LOG)?;
        let entries = EventReader::new(log, Offset(0));
        for (zxid, entry) in (1..).zip(entries) {
            let corrupt = |why: String| {
                EngineError::Corrupt(format!(
                    "the transaction {zxid} of znodes does not read: {why}"
                ))
            };
            let (payload, stamp, _) = entry.map_err(corrupt)?;
            replay(&mut tree, time_of(zxid, stamp), &payload).map_err(corrupt)?;
        }
        let mut pending = PendingTree::default();
        pending.forget_applied(tree.last_zxid());
        let shared = Arc::new(ZnodesShared {
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
            shared,
            history,
            applier: Mutex::new(Some(sender)),
            manual: Mutex::new(manual),
            thread: Mutex::new(thread),
        })
    }

    /// Sets who is told of changes.
    ///
    /// # Panics
    /// Somebody is told already.
    pub fn observe(&self, observer: Arc<dyn ZnodeObserver>) {
        assert!(self.shared.observer.set(observer).is_ok(), "there is one observer");
    }

    /// The tree as of the last transaction applied. Nothing is applied while the guard is held.
    pub fn tree(&self) -> RwLockReadGuard<'_, ZnodeTree> {
        self.shared.tree.read()
    }

    /// Znodes as of any moment.
    pub fn history(&self) -> &Arc<ZnodeHistory> {
        &self.history
    }

    /// The spine.
    pub fn core(&self) -> &Arc<EngineCore> {
        &self.core
    }

    /// Submits a transaction of `session`, whose connection has the ids `held`, and is called `by`.
    /// From here on it comes before all that are submitted later.
    ///
    /// The caller limits how much is in flight.
    pub fn submit(
        &self,
        session: SessionId,
        held: Arc<[AclId]>,
        by: Arc<str>,
        request: TransactionRequest,
        on_applied: OnApplied,
    ) {
        let request = PendingOps::from(request);
        let transaction = request.transaction.clone();
        let payload = undecided_payload(&ZnodeEntryBody { by, transaction });
        let shared = Arc::clone(&self.shared);
        let decided = OnceLock::new();
        let transaction = Arc::new(PendingTransaction { shared, session, held, request, decided });
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

    /// Applies what waits, under manual stepping; whether there was anything.
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

impl From<TransactionRequest> for PendingOps {
    fn from(request: TransactionRequest) -> PendingOps {
        let (checked, transaction) = match request {
            TransactionRequest::Ops(checked) => {
                let ops = checked.iter().map(|checked| checked.op.clone()).collect();
                (checked, ZnodeTransaction::Ops(ops))
            }
            TransactionRequest::CreateSession { timeout_ms, password } => {
                (Vec::new(), ZnodeTransaction::SessionCreated { timeout_ms, password })
            }
            TransactionRequest::CloseSession => (Vec::new(), ZnodeTransaction::SessionClosed),
            TransactionRequest::Reap { path } => (Vec::new(), ZnodeTransaction::Reaped { path }),
        };
        PendingOps { checked, transaction }
    }
}

impl WingAppend for PendingTransaction {
    fn stage(&self, payload: &mut Payload, base: Offset, stamp: Hlc) {
        let at = time_of(base.0 as i64 + 1, stamp);
        let (session, request) = match &self.request.transaction {
            ZnodeTransaction::Ops(_) => (self.session, PendingRequest::Ops(&self.request.checked)),
            ZnodeTransaction::SessionCreated { .. } => {
                (SessionId(stamp.bits() as i64), PendingRequest::SessionCreated)
            }
            ZnodeTransaction::SessionClosed => (self.session, PendingRequest::SessionClosed),
            ZnodeTransaction::Reaped { path } => (self.session, PendingRequest::Reaped { path }),
        };
        let mut pending = self.shared.pending.lock();
        let tree = self.shared.tree.read();
        let refusal = pending.decide(&tree, at, session, &self.held, request);
        drop(tree);
        decide(payload, ZnodeEntryHeader { session, refusal });
        let decided = DecidedTransaction { at, session, refusal };
        assert!(self.decided.set(decided).is_ok(), "a transaction is staged once");
    }
}

impl std::fmt::Debug for PendingTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingTransaction")
            .field("session", &self.session)
            .field("request", &self.request)
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
    fn apply_some(&self, first: WrittenTransaction, more: &mpsc::Receiver<WrittenTransaction>) {
        let mut tree = self.tree.write();
        for written in std::iter::once(first).chain(more.try_iter()).take(APPLIED_AT_ONCE) {
            self.apply(&mut tree, written);
        }
        let applied = tree.last_zxid();
        drop(tree);
        self.pending.lock().forget_applied(applied);
    }

    fn apply(&self, tree: &mut ZnodeTree, written: WrittenTransaction) {
        let WrittenTransaction { transaction, result, on_applied } = written;
        if let Err(error) = result {
            return on_applied(tree, Err(error));
        }
        let DecidedTransaction { at, session, refusal } =
            *transaction.decided.get().expect("what is written was staged");
        let result = match refusal {
            Some(refusal) => {
                tree.skip(at.zxid, refusal);
                Err(refusal)
            }
            None => {
                let observer = self.observer.get();
                let visit = &mut |change: &TreeChange<'_>| {
                    if let Some(observer) = observer {
                        observer.on_change(change);
                    }
                };
                // The process must not go on: the next start would apply something else.
                let applied = tree.apply(at, session, &transaction.request.transaction, visit);
                Ok(applied.expect("a transaction that was not refused can be applied"))
            }
        };
        on_applied(tree, Ok(TransactionOutcome { zxid: at.zxid, session, result }));
    }
}

/// Applies an entry of the log.
fn replay(tree: &mut ZnodeTree, at: TransactionTime, payload: &[u8]) -> Result<(), String> {
    let (header, body) = decode_entry(payload)?;
    match (header.refusal, body) {
        (None, Some(body)) => {
            tree.apply(at, header.session, &body.transaction, &mut |_| {}).map(drop)
        }
        (Some(refusal), _) => {
            tree.skip(at.zxid, refusal);
            Ok(())
        }
        (None, None) => Err("it has no body".to_owned()),
    }
}
