//! The sessions that have not ended: their holders, their timeouts, and the order in which they are
//! closed when others need room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use admission::{BudgetGrant, Holder, SessionTable};
use engine_znodes::{SessionId, ZnodeTree};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::connection::Connection;

/// A session that has not ended. The tree has its creation. This has its timeout.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) id: SessionId,
    timeout_ms: AtomicU64,
    /// The time of its last touch, in the server's milliseconds.
    touched_ms: AtomicU64,
    pub(crate) connection: Mutex<Option<Arc<Connection>>>,
    /// The number of its writes that are on their way, from all its connections.
    writes: AtomicUsize,
    all_written: Notify,
}

/// A write of a session that is on its way, until this is dropped.
#[derive(Debug)]
pub(crate) struct SessionWrite(Arc<LiveSession>);

impl Drop for SessionWrite {
    fn drop(&mut self) {
        if self.0.writes.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.all_written.notify_waiters();
        }
    }
}

impl LiveSession {
    pub(crate) fn new(id: SessionId, timeout_ms: u32, now_ms: u64) -> LiveSession {
        LiveSession {
            id,
            timeout_ms: AtomicU64::new(timeout_ms.into()),
            touched_ms: AtomicU64::new(now_ms),
            connection: Mutex::default(),
            writes: AtomicUsize::new(0),
            all_written: Notify::new(),
        }
    }

    /// Begins a write. After this, the caller has to check that its connection is still the
    /// session's.
    pub(crate) fn begin_write(self: &Arc<LiveSession>) -> SessionWrite {
        self.writes.fetch_add(1, Ordering::AcqRel);
        SessionWrite(Arc::clone(self))
    }

    /// Waits until its writes are answered.
    pub(crate) async fn wait_for_writes(&self) {
        loop {
            let written = self.all_written.notified();
            if self.writes.load(Ordering::Acquire) == 0 {
                return;
            }
            written.await;
        }
    }

    pub(crate) fn touch(&self, now_ms: u64) {
        self.touched_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(crate) fn timeout_ms(&self) -> u32 {
        self.timeout_ms.load(Ordering::Relaxed) as u32
    }

    pub(crate) fn set_timeout_ms(&self, timeout_ms: u32) {
        self.timeout_ms.store(timeout_ms.into(), Ordering::Relaxed);
    }

    /// The time at which it expires unless it is touched, in the server's milliseconds.
    pub(crate) fn expiry_ms(&self) -> u64 {
        self.touched_ms.load(Ordering::Relaxed) + self.timeout_ms.load(Ordering::Relaxed)
    }

    fn has_expired(&self, now_ms: u64) -> bool {
        now_ms > self.expiry_ms()
    }

    fn has_writes(&self) -> bool {
        self.writes.load(Ordering::Acquire) > 0
    }
}

/// The order in which sessions are closed: the first variant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SessionUse {
    /// It has no connection.
    Idle,
    /// It has ephemeral znodes or requests on their way, but no connection.
    Needed,
    Connected,
}

/// The order in which the sessions of a holder are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SessionRank {
    usage: SessionUse,
    /// In the server's milliseconds.
    since_ms: u64,
}

/// A session that was taken out of the table, and its holder.
#[derive(Debug)]
pub(crate) struct RemovedSession {
    pub(crate) session: Arc<LiveSession>,
    pub(crate) holder: Holder,
}

/// All sessions that have not ended, each charged to the network that it comes from.
#[derive(Debug, Default)]
pub(crate) struct LiveSessions(SessionTable<SessionId, Arc<LiveSession>, SessionRank>);

impl LiveSessions {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Arc<LiveSession>> {
        self.0.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<LiveSession>> {
        self.0.iter().map(|(_, session, _)| session)
    }

    /// Adds a session that nothing is known of but its holder: it counts as idle.
    pub(crate) fn insert(&mut self, session: Arc<LiveSession>, grant: BudgetGrant, now_ms: u64) {
        self.0.insert(
            session.id,
            session,
            grant,
            SessionRank { usage: SessionUse::Idle, since_ms: now_ms },
        );
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<RemovedSession> {
        let (session, holder) = self.0.remove(&id)?;
        Some(RemovedSession { session, holder })
    }

    pub(crate) fn set_use(&mut self, id: SessionId, usage: SessionUse, now_ms: u64) {
        self.0.set_rank(&id, SessionRank { usage, since_ms: now_ms });
    }

    /// Charges a session to another holder, which uses it from now on.
    pub(crate) fn hand_over(&mut self, id: SessionId, holder: &Holder) {
        self.0.hand_over(&id, holder);
    }

    /// Takes out the sessions of which nothing was heard for too long, in the order of their ids.
    pub(crate) fn remove_expired(&mut self, now_ms: u64) -> Vec<RemovedSession> {
        let expired = self.iter().filter(|session| session.has_expired(now_ms));
        let mut ids: Vec<_> = expired.map(|session| session.id).collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes out the session of a holder that is used least; the oldest of several. `None` if all
    /// are used more than `max_use`.
    pub(crate) fn remove_least_used(
        &mut self,
        holder: &Holder,
        max_use: SessionUse,
        tree: &ZnodeTree,
    ) -> Option<RemovedSession> {
        loop {
            let (SessionRank { usage, since_ms }, id) = *self.0.lowest_of(holder)?;
            let has_ephemerals =
                || tree.session(id).is_some_and(|session| session.ephemerals().len() > 0);
            let has_writes = || self.get(id).is_some_and(|session| session.has_writes());
            if usage == SessionUse::Idle && (has_ephemerals() || has_writes()) {
                // It stays so until it has a connection again.
                self.set_use(id, SessionUse::Needed, since_ms);
                continue;
            }
            return if usage <= max_use { self.remove(id) } else { None };
        }
    }
}
