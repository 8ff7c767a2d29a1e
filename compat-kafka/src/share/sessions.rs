//! Share sessions (KIP-932): the partitions that a member fetches from, so that not every request names
//! them.
//!
//! A session belongs to a connection: when that ends, the member may have lost what it was given, and its
//! records are released at once.

use std::collections::{HashMap, HashSet};

use engine::TopicId;
use kafka_protocol::ResponseError;
use parking_lot::Mutex;

/// A partition as requests name it. It may not exist.
pub(crate) type SessionPartition = (TopicId, i32);

/// The member of a group.
pub(crate) type SessionKey = (String, String);

/// The epoch of a request that opens a session.
pub(crate) const OPENING: i32 = 0;
/// The epoch of a request that closes its session.
pub(crate) const CLOSING: i32 = -1;

/// The most partitions of all sessions.
const PARTITIONS_MAX: usize = 200_000;

#[derive(Debug, Default)]
pub(crate) struct ShareSession {
    /// Differs from that of every other session, also of the same member.
    id: u64,
    /// The epoch of the next request.
    epoch: i32,
    partitions: Vec<SessionPartition>,
    known: HashSet<SessionPartition>,
}

/// The counts of share sessions, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareSessionCounts {
    pub sessions: u64,
    /// Their partitions.
    pub partitions: u64,
}

/// The sessions of all members of all share groups.
#[derive(Debug)]
pub(crate) struct ShareSessions {
    sessions_max: usize,
    table: Mutex<SessionTable>,
}

#[derive(Debug, Default)]
struct SessionTable {
    sessions: HashMap<SessionKey, ShareSession>,
    partitions: usize,
    next_id: u64,
}

impl ShareSessions {
    /// Room for `sessions_max` sessions (`group.share.max.share.sessions`).
    pub(crate) fn new(sessions_max: usize) -> ShareSessions {
        ShareSessions { sessions_max, table: Mutex::default() }
    }

    /// Opens a session in place of any other of this member. Returns its number.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub(crate) fn open(
        &self,
        key: SessionKey,
        partitions: impl Iterator<Item = SessionPartition>,
    ) -> Result<u64, ResponseError> {
        let mut table = self.table.lock();
        table.remove(&key);
        table.next_id += 1;
        let mut session = ShareSession { id: table.next_id, epoch: 1, ..ShareSession::default() };
        partitions.for_each(|partition| session.add(partition));
        let partitions = table.partitions + session.partitions.len();
        if table.sessions.len() >= self.sessions_max || partitions > PARTITIONS_MAX {
            return Err(ResponseError::ShareSessionLimitReached);
        }
        let id = session.id;
        table.partitions = partitions;
        table.sessions.insert(key, session);
        Ok(id)
    }

    /// Begins a request in a session, which adds partitions and forgets others.
    ///
    /// # Errors
    /// There is no such session, or the epoch is not its next one, or there is no room for more
    /// partitions.
    pub(crate) fn go_on(
        &self,
        key: &SessionKey,
        epoch: i32,
        added: impl Iterator<Item = SessionPartition>,
        forgotten: impl Iterator<Item = SessionPartition>,
    ) -> Result<(), ResponseError> {
        let mut table = self.table.lock();
        let session = table.sessions.get_mut(key).ok_or(ResponseError::ShareSessionNotFound)?;
        if epoch == CLOSING {
            return Ok(());
        }
        if epoch != session.epoch {
            return Err(ResponseError::InvalidShareSessionEpoch);
        }
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        let before = session.partitions.len();
        added.for_each(|partition| session.add(partition));
        session.forget(forgotten);
        let now = session.partitions.len();
        table.partitions = table.partitions - before + now;
        if table.partitions > PARTITIONS_MAX && now > before {
            table.remove(key);
            return Err(ResponseError::ShareSessionNotFound);
        }
        Ok(())
    }

    /// The partitions of a session. Each request begins with another one, so that each has its turn.
    pub(crate) fn partitions(&self, key: &SessionKey) -> Vec<SessionPartition> {
        let table = self.table.lock();
        let Some(session) = table.sessions.get(key) else { return Vec::new() };
        let mut partitions = session.partitions.clone();
        if !partitions.is_empty() {
            let turn = session.epoch.unsigned_abs() as usize % partitions.len();
            partitions.rotate_left(turn);
        }
        partitions
    }

    /// Closes a session; only the one of that number, if one is given. Returns whether it was there.
    pub(crate) fn close(&self, key: &SessionKey, id: Option<u64>) -> bool {
        let mut table = self.table.lock();
        let found = table.sessions.get(key);
        if found.is_none_or(|session| id.is_some_and(|id| id != session.id)) {
            return false;
        }
        table.remove(key);
        true
    }

    /// Whether any member of a group has a session.
    pub(crate) fn has_any_of(&self, group: &str) -> bool {
        self.table.lock().sessions.keys().any(|(of, _)| of == group)
    }

    pub(crate) fn counts(&self) -> ShareSessionCounts {
        let table = self.table.lock();
        ShareSessionCounts {
            sessions: table.sessions.len() as u64,
            partitions: table.partitions as u64,
        }
    }
}

impl ShareSession {
    fn add(&mut self, partition: SessionPartition) {
        if self.known.insert(partition) {
            self.partitions.push(partition);
        }
    }

    fn forget(&mut self, forgotten: impl Iterator<Item = SessionPartition>) {
        let before = self.known.len();
        for partition in forgotten {
            self.known.remove(&partition);
        }
        if self.known.len() < before {
            let ShareSession { partitions, known, .. } = self;
            partitions.retain(|partition| known.contains(partition));
        }
    }
}

impl SessionTable {
    fn remove(&mut self, key: &SessionKey) {
        if let Some(session) = self.sessions.remove(key) {
            self.partitions -= session.partitions.len();
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

    #[test]
    fn a_session_goes_on_with_its_next_epoch_alone() {
        let sessions = ShareSessions::new(2);
        let none = || [].into_iter();
        let missing = Err(ResponseError::ShareSessionNotFound);
        assert_eq!(sessions.go_on(&key("m"), 1, none(), none()), missing);
        let first = sessions.open(key("m"), [A, B, A].into_iter()).unwrap();
        assert_eq!(sessions.counts(), ShareSessionCounts { sessions: 1, partitions: 2 });
        assert_eq!(sessions.go_on(&key("m"), 1, none(), none()), Ok(()));
        let wrong = Err(ResponseError::InvalidShareSessionEpoch);
        assert_eq!(sessions.go_on(&key("m"), 1, none(), none()), wrong);
        assert_eq!(sessions.go_on(&key("m"), 2, none(), [A].into_iter()), Ok(()));
        assert_eq!(sessions.partitions(&key("m")), [B]);
        // The connection that ended had an earlier session of the member.
        sessions.open(key("m"), [A].into_iter()).unwrap();
        assert!(!sessions.close(&key("m"), Some(first)) && sessions.has_any_of("g"));
        assert!(sessions.close(&key("m"), None) && !sessions.has_any_of("g"));
        assert_eq!(sessions.counts(), ShareSessionCounts::default());
    }

    #[test]
    fn there_are_no_more_sessions_and_partitions_than_there_may_be() {
        let sessions = ShareSessions::new(1);
        sessions.open(key("m"), [A].into_iter()).unwrap();
        let refused = sessions.open(key("n"), [A].into_iter());
        assert_eq!(refused, Err(ResponseError::ShareSessionLimitReached));
        let many = |count: usize| (0..count as i32).map(|index| ([2; 16], index));
        let grown = sessions.go_on(&key("m"), 1, many(PARTITIONS_MAX), [].into_iter());
        assert_eq!(grown, Err(ResponseError::ShareSessionNotFound));
        assert_eq!(sessions.counts(), ShareSessionCounts::default());
    }

    #[test]
    fn each_partition_has_its_turn() {
        let sessions = ShareSessions::new(1);
        sessions.open(key("m"), [A, B].into_iter()).unwrap();
        let first = |sessions: &ShareSessions| sessions.partitions(&key("m"))[0];
        let before = first(&sessions);
        sessions.go_on(&key("m"), 1, [].into_iter(), [].into_iter()).unwrap();
        assert_ne!(first(&sessions), before);
    }
}
