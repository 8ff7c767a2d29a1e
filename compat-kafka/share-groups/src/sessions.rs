//! Share sessions (KIP-932): the partitions that a member fetches from, so that not every request
//! names them.
//!
//! A session belongs to a connection: when that ends, the member may have lost what it was given,
//! and its records are released at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use admission::{Budget, BudgetError, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder};
use engine::TopicId;
use kafka_protocol::ResponseError;
use parking_lot::Mutex;

/// A partition as requests name it. It may not exist.
pub type SessionPartition = (TopicId, i32);

/// The member of a group.
pub type SessionKey = (String, String);

/// The epoch of a request that opens a session.
pub const OPENING_EPOCH: i32 = 0;
/// The epoch of a request that closes its session.
pub const CLOSING_EPOCH: i32 = -1;

/// The most partitions of all sessions.
const PARTITIONS_MAX: usize = 200_000;

const SESSIONS: BudgetSpec = BudgetSpec {
    name: "share-sessions",
    unit: "share sessions",
    setting: Some("group.share.max.share.sessions"),
    kind: BudgetKind::Kept,
};
const PARTITIONS: BudgetSpec = BudgetSpec {
    name: "share-session-partitions",
    unit: "partitions of share sessions",
    setting: None,
    kind: BudgetKind::Kept,
};

#[derive(Debug)]
pub(crate) struct ShareSession {
    /// Differs from that of every other session, also of the same member.
    id: u64,
    /// The epoch of the next request.
    epoch: i32,
    partitions: SessionPartitions,
    /// Held until it ends.
    _slot: BudgetGrant,
    /// For its partitions.
    grant: BudgetGrant,
}

/// The partitions of a session, each once.
#[derive(Debug, Default)]
struct SessionPartitions {
    ordered: Vec<SessionPartition>,
    known: HashSet<SessionPartition>,
}

/// The counts of share sessions, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareSessionCounts {
    pub sessions: u64,
    /// The number of partitions of all sessions.
    pub partitions: u64,
}

/// The sessions of all members of all share groups.
#[derive(Debug)]
pub struct ShareSessions {
    sessions: Arc<Budget>,
    partitions: Arc<Budget>,
    open: Mutex<OpenSessions>,
}

#[derive(Debug, Default)]
struct OpenSessions {
    /// No session makes room for another, so they have no ranks.
    table: HashMap<SessionKey, ShareSession>,
    next_id: u64,
}

impl ShareSessions {
    /// Room for `sessions_max` sessions (`group.share.max.share.sessions`).
    pub(crate) fn new(sessions_max: usize, budgets: &BudgetRegistry) -> ShareSessions {
        ShareSessions {
            sessions: budgets.budget(SESSIONS, sessions_max as u64),
            partitions: budgets.budget(PARTITIONS, PARTITIONS_MAX as u64),
            open: Mutex::default(),
        }
    }

    /// Opens a session in place of any other of this member. Returns its number.
    ///
    /// # Errors
    /// The holder has its share of them, or there are as many as there may be.
    pub fn open(
        &self,
        key: SessionKey,
        holder: &Holder,
        requested: impl Iterator<Item = SessionPartition>,
    ) -> Result<u64, BudgetError> {
        let mut open = self.open.lock();
        open.table.remove(&key);
        let mut partitions = SessionPartitions::default();
        partitions.add(requested);
        let count = partitions.ordered.len() as u64;
        let (slot, grant) = (self.sessions.take(holder, 1)?, self.partitions.take(holder, count)?);
        open.next_id += 1;
        let id = open.next_id;
        let session = ShareSession { id, epoch: 1, partitions, _slot: slot, grant };
        open.table.insert(key, session);
        Ok(id)
    }

    /// Begins a request in a session, which adds partitions and forgets others.
    ///
    /// # Errors
    /// There is no such session, or the epoch is not its next one, or there is no room for more
    /// partitions.
    pub fn continue_session(
        &self,
        key: &SessionKey,
        epoch: i32,
        added: impl Iterator<Item = SessionPartition>,
        forgotten: impl Iterator<Item = SessionPartition>,
    ) -> Result<(), ResponseError> {
        let mut open = self.open.lock();
        let session = open.table.get_mut(key).ok_or(ResponseError::ShareSessionNotFound)?;
        if epoch == CLOSING_EPOCH {
            return Ok(());
        }
        if epoch != session.epoch {
            return Err(ResponseError::InvalidShareSessionEpoch);
        }
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        session.partitions.add(added);
        session.partitions.forget(forgotten);
        let count = session.partitions.ordered.len() as u64;
        if session.grant.resize(count).is_err() {
            open.table.remove(key);
            return Err(ResponseError::ShareSessionNotFound);
        }
        Ok(())
    }

    /// The partitions of a session. Each request begins with another one, so that each has its
    /// turn.
    pub fn partitions(&self, key: &SessionKey) -> Vec<SessionPartition> {
        let open = self.open.lock();
        let Some(session) = open.table.get(key) else { return Vec::new() };
        let mut partitions = session.partitions.ordered.clone();
        if !partitions.is_empty() {
            let turn = session.epoch.unsigned_abs() as usize % partitions.len();
            partitions.rotate_left(turn);
        }
        partitions
    }

    /// Closes a session; only the one of that number, if one is given. Returns whether it was
    /// there.
    pub(crate) fn close(&self, key: &SessionKey, id: Option<u64>) -> bool {
        let mut open = self.open.lock();
        let session = open.table.get(key);
        if session.is_none_or(|session| id.is_some_and(|id| id != session.id)) {
            return false;
        }
        open.table.remove(key);
        true
    }

    /// True if any member of a group has a session.
    pub(crate) fn has_any_of(&self, group: &str) -> bool {
        self.open.lock().table.keys().any(|(group_id, _)| group_id == group)
    }

    pub fn counts(&self) -> ShareSessionCounts {
        let open = self.open.lock();
        ShareSessionCounts { sessions: open.table.len() as u64, partitions: self.partitions.used() }
    }
}

impl SessionPartitions {
    fn add(&mut self, added: impl Iterator<Item = SessionPartition>) {
        for partition in added {
            if self.known.insert(partition) {
                self.ordered.push(partition);
            }
        }
    }

    fn forget(&mut self, forgotten: impl Iterator<Item = SessionPartition>) {
        let before = self.known.len();
        for partition in forgotten {
            self.known.remove(&partition);
        }
        if self.known.len() < before {
            let SessionPartitions { ordered, known } = self;
            ordered.retain(|partition| known.contains(partition));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionPartition = ([1; 16], 0);
    const B: SessionPartition = ([1; 16], 1);

    fn key(member: &str) -> SessionKey {
        ("g".to_owned(), member.to_owned())
    }

    fn sessions(sessions_max: usize) -> ShareSessions {
        ShareSessions::new(sessions_max, &BudgetRegistry::default())
    }

    fn user(name: &str) -> Holder {
        Holder::principal(name, false)
    }

    #[test]
    fn a_session_goes_on_with_its_next_epoch_alone() {
        let (sessions, a) = (sessions(2), user("User:a"));
        let no_partitions = || [].into_iter();
        let missing = Err(ResponseError::ShareSessionNotFound);
        assert_eq!(
            sessions.continue_session(&key("m"), 1, no_partitions(), no_partitions()),
            missing
        );
        let first = sessions.open(key("m"), &a, [A, B, A].into_iter()).unwrap();
        assert_eq!(sessions.counts(), ShareSessionCounts { sessions: 1, partitions: 2 });
        assert_eq!(
            sessions.continue_session(&key("m"), 1, no_partitions(), no_partitions()),
            Ok(())
        );
        let wrong = Err(ResponseError::InvalidShareSessionEpoch);
        assert_eq!(
            sessions.continue_session(&key("m"), 1, no_partitions(), no_partitions()),
            wrong
        );
        assert_eq!(
            sessions.continue_session(&key("m"), 2, no_partitions(), [A].into_iter()),
            Ok(())
        );
        assert_eq!(sessions.partitions(&key("m")), [B]);
        // The connection that ended had an earlier session of the member.
        sessions.open(key("m"), &a, [A].into_iter()).unwrap();
        assert!(!sessions.close(&key("m"), Some(first)) && sessions.has_any_of("g"));
        assert!(sessions.close(&key("m"), None) && !sessions.has_any_of("g"));
        assert_eq!(sessions.counts(), ShareSessionCounts::default());
    }

    #[test]
    fn there_are_no_more_sessions_and_partitions_than_there_may_be() {
        let (sessions, a) = (sessions(1), user("User:a"));
        sessions.open(key("m"), &a, [A].into_iter()).unwrap();
        let refused = sessions.open(key("n"), &a, [A].into_iter()).unwrap_err().to_string();
        let expected = "User:a holds 1 of 1 share sessions, and all are taken; free some, or raise group.share.max.share.sessions";
        assert_eq!(refused, expected);
        let partitions = |count: usize| (0..count as i32).map(|index| ([2; 16], index));
        let grown =
            sessions.continue_session(&key("m"), 1, partitions(PARTITIONS_MAX), [].into_iter());
        assert_eq!(grown, Err(ResponseError::ShareSessionNotFound));
        assert_eq!(sessions.counts(), ShareSessionCounts::default());
    }

    #[test]
    fn each_partition_has_its_turn() {
        let sessions = sessions(1);
        sessions.open(key("m"), &user("User:a"), [A, B].into_iter()).unwrap();
        let first = |sessions: &ShareSessions| sessions.partitions(&key("m"))[0];
        let before = first(&sessions);
        sessions.continue_session(&key("m"), 1, [].into_iter(), [].into_iter()).unwrap();
        assert_ne!(first(&sessions), before);
    }

    #[test]
    fn a_user_with_many_sessions_leaves_room_for_another() {
        let (sessions, b) = (sessions(32), user("User:b"));
        let names = (0..).map(|nth| key(&format!("m{nth}")));
        let opened =
            names.take_while(|name| sessions.open(name.clone(), &b, [A].into_iter()).is_ok());
        assert_eq!(opened.count(), 23);
        let session_of_a = sessions.open(key("a"), &user("User:a"), [A, B].into_iter());
        assert!(session_of_a.is_ok());
    }
}
