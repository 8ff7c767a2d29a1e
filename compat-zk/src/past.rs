//! The past: below `/.at/MOMENT` is the tree as it was, for stock clients that connect with this
//! chroot.
//!
//! It is read-only: a write is refused with `NotReadOnly`. A watch is taken and not kept, because
//! nothing changes there: clients that set one with each read can read the past too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use admission::{BudgetKind, BudgetQueue, BudgetSpec, Holder};
use engine_core::{SeekError, WaitPolicy};
use engine_security::CursorSeal;
use engine_znodes::acl::{self, Acl, AclId, check_permission};
use engine_znodes::{PastZnode, ZkCode, ZnodeHistory, Znodes};
use hlc::{Cut, Moment};
use parking_lot::Mutex;

use crate::connection::ConnectionIdentity;

/// The most reads of the past that go on at once: each takes a thread, and the first may wait
/// for the catalog.
const READS_MAX: u64 = 16;

/// The most subtrees that are put back at once: each may take hundreds of MiB.
const RESTORES_MAX: u64 = 2;

const READS: BudgetSpec = BudgetSpec {
    name: "zookeeper-reads",
    unit: "reads of znodes that are not in memory",
    setting: None,
    kind: BudgetKind::Kept,
};
const RESTORES: BudgetSpec = BudgetSpec {
    name: "zookeeper-restores",
    unit: "subtrees that are put back",
    setting: None,
    kind: BudgetKind::Kept,
};

/// The most moments whose last transaction is remembered.
const MOMENTS_MAX: usize = 1024;

/// The path of the past.
const PREFIX: &str = "/.at";

/// A path in the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PastPath {
    cut: Cut,
    path: String,
}

/// True if a path belongs to the past, and is not a znode's.
pub(crate) fn is_past(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl PastPath {
    /// Parses `/.at/MOMENT` or `/.at/MOMENT/PATH`. The moment is one of system time: `s…`.
    ///
    /// # Errors
    /// [`ZkCode::NoNode`]: no moment is named.
    pub(crate) fn parse(path: &str) -> Result<PastPath, ZkCode> {
        let rest = path.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('/'));
        let rest = rest.ok_or(ZkCode::NoNode)?;
        let (moment, path) = match rest.split_once('/') {
            Some((moment, path)) => (moment, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        match moment.parse() {
            Ok(Moment::Sys(cut)) => Ok(PastPath { cut, path }),
            Ok(Moment::User { .. }) | Err(_) => Err(ZkCode::NoNode),
        }
    }
}

/// A question about a znode of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PastQuestion {
    /// The znode alone.
    Znode,
    /// The names of its children too.
    Children,
    /// The number of znodes below it.
    Descendants,
    /// Its list, which needs another permission.
    Acl,
}

impl PastQuestion {
    /// The permissions of which a client needs one.
    fn permissions(self) -> i32 {
        match self {
            PastQuestion::Acl => acl::READ | acl::ADMIN,
            _ => acl::READ,
        }
    }
}

/// A znode of the past, and what else was asked.
#[derive(Clone, Debug)]
pub(crate) struct PastAnswer {
    pub(crate) znode: PastZnode,
    pub(crate) children: Vec<String>,
    pub(crate) descendants: usize,
}

#[derive(Debug)]
pub(crate) struct PastReader {
    pub(crate) znodes: Arc<Znodes>,
    /// A client waits for a moment that is no further ahead than this.
    pub(crate) patience: Duration,
    /// Turns at a thread of its own.
    reads: Arc<BudgetQueue>,
    /// Turns at putting a subtree back.
    pub(crate) restores: Arc<BudgetQueue>,
    /// For where a page of differences begins.
    pub(crate) cursor_seal: CursorSeal,
    /// The last transaction that each moment shows, of moments that were read before.
    last_zxids: Mutex<HashMap<Cut, i64>>,
}

impl PastReader {
    pub(crate) fn new(znodes: Arc<Znodes>, patience: Duration) -> PastReader {
        let budgets = znodes.core().budgets();
        let reads = BudgetQueue::new(budgets.budget(READS, READS_MAX));
        let restores = BudgetQueue::new(budgets.budget(RESTORES, RESTORES_MAX));
        PastReader {
            znodes,
            patience,
            reads,
            restores,
            cursor_seal: CursorSeal::new(),
            last_zxids: Mutex::default(),
        }
    }

    /// Reads a znode of the past, once its moment is over.
    ///
    /// # Errors
    /// [`ZkCode::NoNode`]: it did not exist. [`ZkCode::OperationTimeout`]: the moment is not past
    /// yet. [`ZkCode::BadArguments`]: the history does not reach back so far.
    pub(crate) async fn read(
        &self,
        path: PastPath,
        identity: &ConnectionIdentity,
        question: PastQuestion,
    ) -> Result<PastAnswer, ZkCode> {
        let ConnectionIdentity { held, holder, .. } = identity;
        if let Some(answer) = self.read_unchanged(&path, held, question) {
            return answer;
        }
        let core = self.znodes.core();
        let closed = core.wait_until_closed(path.cut, WaitPolicy::Wait(self.patience)).await;
        closed.map_err(|error| past_error_code(&error))?;
        let PastPath { cut, path } = path;
        let read = move |history: &ZnodeHistory| {
            let zxid = history.zxid_at(cut)?;
            let Some(znode) = history.get(&path, cut)? else { return Ok((zxid, None)) };
            let (mut children, mut descendants) = (Vec::new(), 0);
            match question {
                PastQuestion::Children => children = history.children(&path, cut)?,
                PastQuestion::Descendants => descendants = history.descendants(&path, cut)?,
                PastQuestion::Znode | PastQuestion::Acl => {}
            }
            Ok((zxid, Some(PastAnswer { znode, children, descendants })))
        };
        let read = self.read_history(holder, read).await.map_err(|error| past_error_code(&error));
        let (zxid, answer) = read?;
        // Watches fire before anybody is told what they watch for.
        self.znodes.wait_until_applied(zxid).await;
        self.remember(cut, zxid);
        let answer = answer.ok_or(ZkCode::NoNode)?;
        check_permission(&answer.znode.acl, question.permissions(), held)?;
        Ok(answer)
    }

    /// Reads an unchanged znode from the tree of the present, if the moment was read before: a
    /// moment that is over stays so, and its last transaction is the same for ever.
    fn read_unchanged(
        &self,
        PastPath { cut, path }: &PastPath,
        ids: &[AclId],
        question: PastQuestion,
    ) -> Option<Result<PastAnswer, ZkCode>> {
        let zxid = *self.last_zxids.lock().get(cut)?;
        if question == PastQuestion::Descendants {
            return None;
        }
        let tree = self.znodes.tree();
        let znode = tree.unchanged_since(path, zxid)?;
        let data = znode.data().here()?;
        self.znodes.history().check_retained(*cut).ok()?;
        let answer = || PastAnswer {
            znode: PastZnode {
                stat: znode.stat(),
                lifetime: znode.lifetime(),
                acl: Acl::clone(znode.acl()),
                data: data.map(<[u8]>::to_vec),
            },
            children: match question {
                PastQuestion::Children => znode.children().map(str::to_owned).collect(),
                _ => Vec::new(),
            },
            descendants: 0,
        };
        let is_permitted = check_permission(znode.acl(), question.permissions(), ids);
        Some(is_permitted.map(|()| answer()))
    }

    fn remember(&self, cut: Cut, zxid: i64) {
        let mut last_zxids = self.last_zxids.lock();
        if last_zxids.len() >= MOMENTS_MAX {
            last_zxids.clear();
        }
        last_zxids.insert(cut, zxid);
    }

    /// Reads with a thread of its own, once it is the holder's turn.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) async fn read_history<T: Send + 'static>(
        &self,
        holder: &Holder,
        read: impl FnOnce(&ZnodeHistory) -> Result<T, SeekError> + Send + 'static,
    ) -> Result<T, SeekError> {
        let permit = self.reads.take(holder, 1).await;
        let history = Arc::clone(self.znodes.history());
        let read = move || {
            // It is over when this is, also if the client has gone.
            let _permit = permit;
            Ok(read(&history))
        };
        self.znodes.core().spawn_blocking(read).await?
    }
}

/// ZooKeeper's code for a moment that cannot be read.
fn past_error_code(error: &SeekError) -> ZkCode {
    tracing::debug!(%error, "a ZooKeeper client cannot read the past");
    match error {
        SeekError::FarFuture { .. } | SeekError::NotYet { .. } => ZkCode::OperationTimeout,
        SeekError::BeforeZnodes { .. } => ZkCode::BadArguments,
        SeekError::BeforeHistory { .. }
        | SeekError::BeforeOffsets { .. }
        | SeekError::BeforeNames { .. }
        | SeekError::NoTopic { .. }
        | SeekError::Engine(_) => ZkCode::SystemError,
    }
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;

    #[test]
    fn a_path_of_the_past_has_a_moment_of_system_time() {
        let cut = Cut::before(SysTime(1_795_252_948_259));
        let past_path = |path: &str| Ok(PastPath { cut, path: path.to_owned() });
        assert_eq!(PastPath::parse("/.at/s1795252948259"), past_path("/"));
        assert_eq!(PastPath::parse("/.at/s1795252948259/a/b"), past_path("/a/b"));
        assert_eq!(PastPath::parse("/.at/s2026-11-21T09:22:28.259Z/a"), past_path("/a"));
        for path in ["/.at", "/.at/", "/.at/u5", "/.at/yesterday", "/.at/s5..s6"] {
            assert_eq!(PastPath::parse(path), Err(ZkCode::NoNode), "{path}");
        }
        assert!(is_past("/.at") && is_past("/.at/x"));
        assert!(!is_past("/.attic") && !is_past("/a/.at") && !is_past(""));
    }
}
