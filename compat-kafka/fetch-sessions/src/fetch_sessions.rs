//! The fetch sessions of all clients (KIP-227), in bounded memory.
//!
//! As in Kafka, a session is not tied to a connection, and goes when its client closes it or when
//! another one needs its place: the one that was not used for longest, after two minutes without
//! use; or, of the same holder, a smaller one than the new one, two minutes after it was opened. A
//! holder that has more than others gives way to them at once. A client whose session is gone opens
//! another one. One that gets none asks for all partitions each time.

use std::sync::Arc;
use std::time::Duration;

use admission::{
    Budget, BudgetError, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder, SessionTable,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchTopic, ForgottenTopic};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
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

const SLOTS: BudgetSpec = BudgetSpec {
    name: "fetch-sessions",
    unit: "fetch sessions",
    setting: Some("max.incremental.fetch.session.cache.slots"),
    kind: BudgetKind::Yielding,
};
const PARTITIONS: BudgetSpec = BudgetSpec {
    name: "fetch-session-partitions",
    unit: "partitions of fetch sessions",
    setting: None,
    kind: BudgetKind::Yielding,
};

/// A session that requests share.
type SharedFetchSession = Arc<tokio::sync::Mutex<FetchSession>>;

/// A session under its lock, for the request that has its turn.
pub type LockedFetchSession = OwnedMutexGuard<FetchSession>;

/// A request that goes on with a session.
#[derive(Debug)]
pub struct FetchSessionRequest<'a> {
    pub id: i32,
    pub epoch: i32,
    /// True if it names topics by their ids.
    pub is_by_id: bool,
    /// The partitions that join the session, or change.
    pub topics: Vec<FetchTopic>,
    /// The partitions that leave the session.
    pub forgotten: &'a [ForgottenTopic],
}

pub struct FetchSessions {
    slots: Arc<Budget>,
    partitions: Arc<Budget>,
    open: Mutex<OpenSessions>,
}

/// The counts of sessions, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchSessionCounts {
    /// Sessions that are open.
    pub sessions: u64,
    /// The partitions of the open sessions.
    pub partitions: u64,
    /// Sessions that made room for others.
    pub evicted: u64,
}

#[derive(Default)]
struct OpenSessions {
    /// By id, ranked by the time of their last use.
    table: SessionTable<i32, OpenSession, Instant>,
    evicted: u64,
}

struct OpenSession {
    session: SharedFetchSession,
    partitions: BudgetGrant,
    opened: Instant,
}

impl FetchSessions {
    /// Room for `slots_max` sessions (`max.incremental.fetch.session.cache.slots`).
    pub fn new(slots_max: usize, budgets: &BudgetRegistry) -> FetchSessions {
        FetchSessions {
            slots: budgets.budget(SLOTS, slots_max as u64),
            partitions: budgets.budget(PARTITIONS, PARTITIONS_MAX as u64),
            open: Mutex::default(),
        }
    }

    /// Opens a session. Returns its id, with the session; or `None` if there is no room. The id
    /// follows from `random`, so that no client of a server before this one has it.
    pub fn open(
        &self,
        session: FetchSession,
        holder: &Holder,
        random: u32,
    ) -> Option<(i32, LockedFetchSession)> {
        let (now, partitions) = (Instant::now(), session.partition_count());
        let new = NewSession { holder, partitions, now };
        let mut open = self.open.lock();
        // Take the scarcer budget first: no session is evicted for one that does not fit.
        let grant = open.take(&self.partitions, partitions as u64, &new)?;
        let slot = open.take(&self.slots, 1, &new)?;
        let mut id = next_id((random >> 1) as i32);
        while open.table.contains(&id) {
            id = next_id(id);
        }
        let session = Arc::new(tokio::sync::Mutex::new(session));
        let opened = OpenSession { session: Arc::clone(&session), partitions: grant, opened: now };
        open.table.insert(id, opened, slot, now);
        let locked = session.try_lock_owned().expect("nobody else has it yet");
        Some((id, locked))
    }

    /// Resumes a session for a request, and updates its partitions. The id is `None` if that closes
    /// the session: it has no partitions left, or no room for them.
    ///
    /// # Errors
    /// The session does not exist, the epoch is not its next one, or topics are named in another
    /// way.
    pub async fn resume(
        &self,
        request: FetchSessionRequest<'_>,
    ) -> Result<(Option<i32>, LockedFetchSession), ResponseError> {
        let id = request.id;
        let shared = self.find(id).ok_or(ResponseError::FetchSessionIdNotFound)?;
        let mut session = Arc::clone(&shared).lock_owned().await;
        session.begin(request.epoch, request.is_by_id)?;
        session.update(request.topics, request.forgotten);
        let partitions = session.partition_count();
        if partitions == 0 {
            self.close(id);
        }
        let is_open = partitions > 0 && self.touch(id, &shared, partitions);
        Ok((is_open.then_some(id), session))
    }

    fn find(&self, id: i32) -> Option<SharedFetchSession> {
        self.open.lock().table.get(&id).map(|open| Arc::clone(&open.session))
    }

    /// Notes that a session is used, and the number of partitions that it has now. Returns false if
    /// it is closed, or has grown to more than there is room for and is closed for that.
    fn touch(&self, id: i32, session: &SharedFetchSession, partitions: usize) -> bool {
        let mut open = self.open.lock();
        loop {
            let found = open.table.get_mut(&id);
            let Some(found) = found.filter(|found| Arc::ptr_eq(&found.session, session)) else {
                return false;
            };
            let resized = found.partitions.resize(partitions as u64);
            let holder = found.partitions.holder().clone();
            open.table.set_rank(&id, Instant::now());
            let Err(refusal) = resized else { return true };
            if !open.evict_of_others(&refusal, &holder) {
                open.table.remove(&id);
                return false;
            }
        }
    }

    pub fn close(&self, id: i32) {
        self.open.lock().table.remove(&id);
    }

    pub fn counts(&self) -> FetchSessionCounts {
        let open = self.open.lock();
        FetchSessionCounts {
            sessions: open.table.len() as u64,
            partitions: self.partitions.used(),
            evicted: open.evicted,
        }
    }
}

/// The id after `id`, which is 0 or more. Ids are above 0.
fn next_id(id: i32) -> i32 {
    id.checked_add(1).unwrap_or(1)
}

/// A session that needs room.
struct NewSession<'a> {
    holder: &'a Holder,
    partitions: usize,
    now: Instant,
}

impl OpenSessions {
    /// Takes a part of a budget for a new session; `None` if there is no room, and no other session
    /// may be evicted.
    fn take(
        &mut self,
        budget: &Arc<Budget>,
        amount: u64,
        new: &NewSession<'_>,
    ) -> Option<BudgetGrant> {
        let has_shares = budget.has_shares();
        let permit = budget.take_evicting(new.holder, amount, |refusal| {
            amount <= refusal.limit
                && (self.evict_unused(new.now)
                    || self.evict_of_others(refusal, new.holder)
                    || self.evict_smaller(new, has_shares))
        });
        permit.ok()
    }

    /// Evicts the session that was not used for longest.
    fn evict_unused(&mut self, now: Instant) -> bool {
        let longest = self.table.lowest().filter(|(used, _)| now - *used > EVICTION_MIN);
        self.evict(longest.map(|(_, id)| *id))
    }

    /// Evicts a session of the holder with the most, if that is not the one that needs room.
    fn evict_of_others(&mut self, refusal: &BudgetError, holder: &Holder) -> bool {
        let yields = refusal.yields.as_ref().filter(|yields| *yields != holder);
        let evicted = yields.and_then(|yields| self.table.remove_lowest_of(yields));
        self.evicted += u64::from(evicted.is_some());
        evicted.is_some()
    }

    /// Evicts the smallest session if it is smaller than the new one, and not new itself. Where
    /// there are shares, it is one of the same holder.
    fn evict_smaller(&mut self, new: &NewSession<'_>, has_shares: bool) -> bool {
        let old = self.table.iter().filter(|(_, open, _)| {
            let may_go = !has_shares || open.partitions.holder() == new.holder;
            may_go && new.now - open.opened > EVICTION_MIN
        });
        let smallest = old.min_by_key(|(_, open, _)| open.partitions.amount());
        let smaller =
            smallest.filter(|(_, open, _)| open.partitions.amount() < new.partitions as u64);
        self.evict(smaller.map(|(id, ..)| *id))
    }

    fn evict(&mut self, id: Option<i32>) -> bool {
        let evicted = id.and_then(|id| self.table.remove(&id));
        self.evicted += u64::from(evicted.is_some());
        evicted.is_some()
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

    fn sessions(slots_max: usize) -> FetchSessions {
        FetchSessions::new(slots_max, &BudgetRegistry::default())
    }

    fn user(name: &str) -> Holder {
        Holder::principal(name, false)
    }

    /// Opens a session of so many partitions, with the first id that is free.
    fn open_as(sessions: &FetchSessions, name: &str, partitions: i32) -> Option<i32> {
        sessions.open(session(partitions), &user(name), 0).map(|(id, _)| id)
    }

    fn open(sessions: &FetchSessions, partitions: i32) -> Option<i32> {
        open_as(sessions, "User:a", partitions)
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_makes_room_as_in_kafka() {
        let sessions = sessions(2);
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
        assert_eq!(open(&self::sessions(0), 1), None);
        let last = sessions.open(session(0), &user("User:a"), u32::MAX).map(|(id, _)| id);
        assert_eq!(last, Some(1), "ids begin again behind the last");
    }

    #[test]
    fn the_memory_of_all_sessions_is_bounded() {
        let sessions = sessions(1000);
        sessions.partitions.set_limit(103);
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

    #[tokio::test(start_paused = true)]
    async fn the_holder_with_the_most_gives_way_to_others_alone() {
        let sessions = sessions(32);
        while open_as(&sessions, "User:b", 10).is_some() {
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(sessions.counts().sessions, 31, "the rest is for those that have none");
        let ids: Vec<i32> =
            (0..15).map(|_| open_as(&sessions, "User:a", 1).expect("room for a")).collect();
        let slots_held = |name| sessions.slots.held(&user(name));
        assert_eq!((slots_held("User:a"), slots_held("User:b")), (15, 17));
        assert_eq!(open_as(&sessions, "User:b", 20), None, "it has more than its share");
        assert_eq!((slots_held("User:a"), sessions.counts().evicted), (15, 14));
        // A session that grows takes from those of others too.
        sessions.partitions.set_limit(200);
        let session = sessions.find(ids[0]).unwrap();
        assert!(sessions.touch(ids[0], &session, 50));
        assert_eq!((slots_held("User:a"), slots_held("User:b")), (15, 13));
        assert!(!sessions.touch(ids[0], &session, 150), "it would have the most");
    }
}
