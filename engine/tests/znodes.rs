//! Transactions on znodes on a whole engine, present and past.

mod dumps;
mod history;
mod model;
mod random;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::znodes::acl::{self, Acl, AclId};
use engine::znodes::{
    ChangesQuery, FetchedData, OpOutcome, RestoreError, SessionId, SubtreeGuard, TransactionDraft,
    TransactionOutcome, TransactionRequest, ZkCode, ZnodeChangeKind, ZnodeData, ZnodeLifetime,
    ZnodeOp, ZnodeOptions, ZnodeRef, ZnodeRefusal, ZnodeStat, ZnodeTree, Znodes,
};
use engine::{EngineError, EngineOptions, Offset, PinError, SeekError, WaitPolicy};
use engine_core::numbering::ZNODES_LOG;
use hlc::{Cut, Hlc, ManualClock, SysTime};
use proptest::prelude::*;
use storage::disk::{DiskFault, MemoryDisk};
use testkit::directory::TestDirectory;
use testkit::engine::{EngineFixture, START};
use tokio::sync::oneshot;

type Answer = Result<TransactionOutcome, EngineError>;

/// Submits a transaction; its answer comes later.
fn submit(
    znodes: &Znodes,
    session: SessionId,
    request: TransactionRequest,
) -> oneshot::Receiver<Answer> {
    let (sender, receiver) = oneshot::channel();
    let done = move |_: &ZnodeTree, answer| {
        let _ = sender.send(answer);
    };
    let draft = TransactionDraft::new(session, Arc::new([]), "test", request);
    znodes.submit(draft, Box::new(done));
    receiver
}

async fn begin_session(znodes: &Znodes) -> SessionId {
    let request = TransactionRequest::CreateSession { timeout_ms: 4000, password: [7; 16] };
    submit(znodes, SessionId(0), request).await.unwrap().unwrap().session
}

fn ops(ops: impl IntoIterator<Item = ZnodeOp>) -> TransactionRequest {
    TransactionRequest::Ops { ops: ops.into_iter().collect(), refusal: None }
}

fn create(path: &str) -> ZnodeOp {
    create_as(path, ZnodeLifetime::Persistent, false)
}

fn create_as(path: &str, lifetime: ZnodeLifetime, is_sequential: bool) -> ZnodeOp {
    let data = Some(Bytes::from_static(b"x"));
    ZnodeOp::Create { path: path.to_owned(), data, acl: open_acl(), lifetime, is_sequential }
}

fn delete(path: &str) -> ZnodeOp {
    ZnodeOp::Delete { path: path.to_owned(), version: -1 }
}

fn set(path: &str, version: i32) -> ZnodeOp {
    ZnodeOp::SetData { path: path.to_owned(), data: None, version }
}

fn open_acl() -> Acl {
    acl::anyone(acl::ALL)
}

/// Each checkpoint is due, and history is kept for few milliseconds.
fn options(cached_bytes_max: u64) -> EngineOptions {
    let znodes = ZnodeOptions {
        history_retention: Duration::from_millis(3),
        checkpoint_bytes_min: 1,
        cached_bytes_max,
        ..ZnodeOptions::default()
    };
    EngineOptions { znodes, ..EngineOptions::default() }
}

/// Starts again on what a crash leaves, with a catalog that has to be made again.
fn crash(fixture: EngineFixture, cached_bytes_max: u64) -> EngineFixture {
    let (disk, clock) = (fixture.disk.after_crash(|_| 0), Arc::clone(&fixture.clock));
    drop(fixture.engine);
    EngineFixture::with(disk, clock, options(cached_bytes_max))
}
