//! The past: below `/.at/MOMENT` is the tree as it was, for stock clients that connect with this
//! chroot.
//!
//! It is read-only: a write is refused with `NotReadOnly`, and a watch with `BadArguments`, because
//! nothing changes there.

use std::sync::Arc;
use std::time::Duration;

use engine_core::{SeekError, WaitPolicy};
use engine_znodes::acl::{self, AclId, check_permission};
use engine_znodes::{PastZnode, ZkCode, Znodes};
use hlc::{Cut, Moment};

/// Where the past is.
const PREFIX: &str = "/.at";

/// A path in the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PastPath {
    cut: Cut,
    path: String,
}

/// Whether a path belongs to the past, and is not a znode's.
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

/// What is asked of a znode of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PastQuestion {
    /// The znode alone.
    Znode,
    /// The names of its children too.
    Children,
    /// How many znodes are below it.
    Descendants,
    /// Its list, which needs another permission.
    Acl,
}

/// A znode of the past, and what else was asked.
#[derive(Clone, Debug)]
pub(crate) struct PastAnswer {
    pub(crate) znode: PastZnode,
    pub(crate) children: Vec<String>,
    pub(crate) descendants: usize,
}

/// Reads a znode of the past, once its moment is over.
///
/// # Errors
/// [`ZkCode::NoNode`]: it did not exist. [`ZkCode::OperationTimeout`]: the moment is not past yet.
pub(crate) async fn read_past(
    znodes: &Arc<Znodes>,
    path: PastPath,
    held: &[AclId],
    question: PastQuestion,
    patience: Duration,
) -> Result<PastAnswer, ZkCode> {
    let closed = znodes.core().wait_until_closed(path.cut, WaitPolicy::Wait(patience)).await;
    closed.map_err(|error| match error {
        SeekError::FarFuture { .. } | SeekError::NotYet { .. } => ZkCode::OperationTimeout,
        error => {
            tracing::warn!(%error, "a ZooKeeper client cannot read the past");
            ZkCode::SystemError
        }
    })?;
    let history = Arc::clone(znodes.history());
    let read = move || {
        let PastPath { cut, path } = path;
        let Some(znode) = history.get(&path, cut)? else { return Ok(None) };
        let (mut children, mut descendants) = (Vec::new(), 0);
        match question {
            PastQuestion::Children => children = history.children(&path, cut)?,
            PastQuestion::Descendants => descendants = history.descendants(&path, cut)?,
            PastQuestion::Znode | PastQuestion::Acl => {}
        }
        Ok(Some(PastAnswer { znode, children, descendants }))
    };
    let answer = znodes.core().spawn_blocking(read).await.map_err(|error| {
        tracing::warn!(%error, "a ZooKeeper client cannot read the past");
        ZkCode::SystemError
    })?;
    let answer = answer.ok_or(ZkCode::NoNode)?;
    let wanted = match question {
        PastQuestion::Acl => acl::READ | acl::ADMIN,
        _ => acl::READ,
    };
    check_permission(&answer.znode.acl, wanted, held)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use hlc::SysTime;

    use super::*;

    #[test]
    fn a_path_of_the_past_has_a_moment_of_system_time() {
        let cut = Cut::before(SysTime(1_795_252_948_259));
        let at = |path: &str| Ok(PastPath { cut, path: path.to_owned() });
        assert_eq!(PastPath::parse("/.at/s1795252948259"), at("/"));
        assert_eq!(PastPath::parse("/.at/s1795252948259/a/b"), at("/a/b"));
        assert_eq!(PastPath::parse("/.at/s2026-11-21T09:22:28.259Z/a"), at("/a"));
        for none in ["/.at", "/.at/", "/.at/u5", "/.at/yesterday", "/.at/s5..s6"] {
            assert_eq!(PastPath::parse(none), Err(ZkCode::NoNode), "{none}");
        }
        assert!(is_past("/.at") && is_past("/.at/x"));
        assert!(!is_past("/.attic") && !is_past("/a/.at") && !is_past(""));
    }
}
