//! The fetch sessions of all clients (KIP-227), in bounded memory.
//!
//! As in Kafka, a session is not tied to a connection, and goes when its client closes it or when
//! another one needs its place: the one that was not used for longest, after two minutes without
//! use; or a smaller one than the new one, two minutes after it was opened. A client whose session
//! is gone opens another one. One that gets none asks for all partitions each time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::fetch_session::FetchSession;

/// Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`.
const EVICTION_MIN: Duration = Duration::from_secs(120);
/// The memory of a partition in a session, about.
const PARTITION_BYTES: usize = 320;
/// The most memory of all sessions.
const BYTES_MAX: usize = 64 << 20;
/// The most partitions of all sessions.
const PARTITIONS_MAX: usize = BYTES_MAX / PARTITION_BYTES;

/// A session that requests share.
pub(crate) type SharedFetchSession = Arc<tokio::sync::Mutex<FetchSession>>;

pub(crate) struct FetchSessions {
    slots_max: usize,
    partitions_max: usize,
    table: Mutex<SessionTable>,
}

/// The counts of sessions, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchSessionCounts {
    /// Sessions that are open.
    pub sessions: u64,
    /// Their partitions.
    pub partitions: u64,
    /// Sessions that made room for others.
    pub evicted: u64,
}

#[derive(Default)]
struct SessionTable {
    sessions: HashMap<i32, SessionSlot>,
    partitions: usize,
    evicted: u64,
}

struct SessionSlot {
    session: SharedFetchSession,
    partitions: usize,
    opened: Instant,
    used: Instant,
}

impl FetchSessions {
    /// Room for `slots_max` sessions (`max.incremental.fetch.session.cache.slots`).
    pub(crate) fn new(slots_max: usize) -> FetchSessions {
        FetchSessions { slots_max, partitions_max: PARTITIONS_MAX, table: Mutex::default() }
    }

    /// Opens a session. Returns its id, or `None` if there is no room. The id follows from `random`,
    /// so that no client of a server before this one has it.
    pub(crate) fn open(
        &self,
        session: FetchSession,
        random: u32,
    ) -> Option<(i32, SharedFetchSession)> {
        let (now, partitions) = (Instant::now(), session.partition_count());
        let mut table = self.table.lock();
        let fits = |table: &SessionTable| {
            table.sessions.len() < self.slots_max
                && table.partitions + partitions <= self.partitions_max
        };
        while !fits(&table) {
            table.evict_for(partitions, now)?;
        }
        let mut id = next_id((random >> 1) as i32);
        while table.sessions.contains_key(&id) {
            id = next_id(id);
        }
        let session = Arc::new(tokio::sync::Mutex::new(session));
        let slot =
            SessionSlot { session: Arc::clone(&session), partitions, opened: now, used: now };
        table.sessions.insert(id, slot);
        table.partitions += partitions;
        Some((id, session))
    }

    pub(crate) fn find(&self, id: i32) -> Option<SharedFetchSession> {
        self.table.lock().sessions.get(&id).map(|slot| Arc::clone(&slot.session))
    }

    /// Notes that a session is used, and how many partitions it has now. Returns false if it is
    /// closed, or has grown to more than there is room for and is closed for that.
    pub(crate) fn touch(&self, id: i32, session: &SharedFetchSession, partitions: usize) -> bool {
        let mut table = self.table.lock();
        let found = table.sessions.get_mut(&id);
        let Some(slot) = found.filter(|slot| Arc::ptr_eq(&slot.session, session)) else {
            return false;
        };
        let before = std::mem::replace(&mut slot.partitions, partitions);
        slot.used = Instant::now();
        table.partitions = table.partitions - before + partitions;
        if table.partitions > self.partitions_max && partitions > before {
            table.remove(id);
            return false;
        }
        true
    }

    pub(crate) fn close(&self, id: i32) {
        self.table.lock().remove(id);
    }

    pub(crate) fn counts(&self) -> FetchSessionCounts {
        let table = self.table.lock();
        FetchSessionCounts {
            sessions: table.sessions.len() as u64,
            partitions: table.partitions as u64,
            evicted: table.evicted,
        }
    }
}

/// The id after `id`, which is 0 or more. Ids are above 0.
fn next_id(id: i32) -> i32 {
    id.checked_add(1).unwrap_or(1)
}

impl SessionTable {
    fn remove(&mut self, id: i32) {
        if let Some(slot) = self.sessions.remove(&id) {
            self.partitions -= slot.partitions;
        }
    }

    /// Makes room for a session of so many partitions; `None` if no other one may be evicted.
    fn evict_for(&mut self, partitions: usize, now: Instant) -> Option<()> {
        let longest = self.sessions.iter().min_by_key(|(_, slot)| slot.used);
        let stale = longest.filter(|(_, slot)| now - slot.used > EVICTION_MIN);
        let old = self.sessions.iter().filter(|(_, slot)| now - slot.opened > EVICTION_MIN);
        let smallest = old.min_by_key(|(_, slot)| slot.partitions);
        let smaller = smallest.filter(|(_, slot)| slot.partitions < partitions);
        let (id, _) = stale.or(smaller)?;
        let id = *id;
        self.remove(id);
        self.evicted += 1;
        Some(())
    }
}

impl std::fmt::Debug for FetchSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FetchSessions").field(&self.counts()).finish()
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    fn session(partitions: i32) -> FetchSession {
        let mut session = FetchSession::new(false);
        let partition = |index| FetchPartition::default().with_partition(index);
        let topic = FetchTopic::default()
            .with_topic(TopicName(StrBytes::from_static_str("t")))
            .with_partitions((0..partitions).map(partition).collect());
        session.update(vec![topic], &[]);
        session
    }

    /// Opens a session of so many partitions, with the first id that is free.
    fn open(sessions: &FetchSessions, partitions: i32) -> Option<i32> {
        sessions.open(session(partitions), 0).map(|(id, _)| id)
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_makes_room_as_in_kafka() {
        let sessions = FetchSessions::new(2);
        assert_eq!((open(&sessions, 10), open(&sessions, 20)), (Some(1), Some(2)));
        assert_eq!(open(&sessions, 1000), None, "both are new");
        tokio::time::advance(EVICTION_MIN + Duration::from_secs(1)).await;
        let touch = |id, partitions| {
            let session = sessions.find(id).unwrap();
            assert!(sessions.touch(id, &session, partitions));
        };
        touch(1, 10);
        touch(2, 20);
        assert_eq!(open(&sessions, 10), None, "none is smaller, and none is unused");
        assert_eq!(open(&sessions, 11), Some(1), "the smallest goes");
        assert_eq!(sessions.counts().partitions, 31);
        tokio::time::advance(EVICTION_MIN).await;
        touch(1, 11);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(open(&sessions, 1), Some(2), "the one that was not used for longest goes");
        let counts = FetchSessionCounts { sessions: 2, partitions: 12, evicted: 2 };
        assert_eq!(sessions.counts(), counts);
        sessions.close(1);
        sessions.close(1);
        assert!(sessions.find(1).is_none());
        assert_eq!(sessions.counts().partitions, 1);
        assert_eq!(open(&FetchSessions::new(0), 1), None);
        let last = sessions.open(session(0), u32::MAX).map(|(id, _)| id);
        assert_eq!(last, Some(1), "ids begin again behind the last");
    }

    #[test]
    fn the_memory_of_all_sessions_is_bounded() {
        let sessions = FetchSessions { partitions_max: 100, ..FetchSessions::new(1000) };
        assert_eq!((open(&sessions, 60), open(&sessions, 41)), (Some(1), None));
        assert_eq!(open(&sessions, 40), Some(2));
        let (first, second) = (sessions.find(1).unwrap(), sessions.find(2).unwrap());
        assert!(!sessions.touch(1, &second, 60), "it is another one");
        assert!(sessions.touch(1, &first, 59));
        assert!(sessions.touch(2, &second, 41));
        assert!(!sessions.touch(2, &second, 42), "there is no room to grow");
        let counts = FetchSessionCounts { sessions: 1, partitions: 59, evicted: 0 };
        assert_eq!(sessions.counts(), counts);
    }
}
