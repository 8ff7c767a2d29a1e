//! Changes of znodes, each by a session of its own.

use std::sync::Arc;
use std::sync::mpsc;

use engine::znodes::{
    SessionId, TransactionDraft, TransactionOutcome, TransactionRequest, ZnodeOp, ZnodeRefusal,
    ZnodeTree, Znodes,
};

/// Carries out a change: its zxid, or why it is refused.
///
/// # Errors
/// It is refused.
///
/// # Panics
/// The store fails.
pub fn change_znode(znodes: &Znodes, op: ZnodeOp) -> Result<i64, ZnodeRefusal> {
    let begin = TransactionRequest::CreateSession { timeout_ms: 4000, password: [7; 16] };
    let session = carry_out(znodes, SessionId(0), begin).session;
    let change = TransactionRequest::Ops { ops: vec![op], refusal: None };
    let outcome = carry_out(znodes, session, change);
    outcome.result.map(|_| outcome.zxid)
}

fn carry_out(
    znodes: &Znodes,
    session: SessionId,
    request: TransactionRequest,
) -> TransactionOutcome {
    let (sender, receiver) = mpsc::channel();
    let draft = TransactionDraft::new(session, Arc::new([]), "test", request);
    let done = move |_: &ZnodeTree, outcome| drop(sender.send(outcome));
    znodes.submit(draft, Box::new(done));
    receiver.recv().expect("an answer").expect("the store takes it")
}
