//! The last batches of idempotent producers, per log: Kafka's deduplication of the last five
//! batches (KIP-98); and their open transactions. The state changes on the writer's thread, where
//! the order of appends is decided.
//!
//! A retried batch is a duplicate only as long as its producer's state is here. So the state of a
//! producer is dropped after a day without a batch, as in Kafka, and otherwise only for another
//! producer of the same holder, and not within [`ACTIVE_MS`] of its last batch. A new producer that
//! finds no room is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use admission::{Budget, BudgetKind, BudgetSpec, Holder};
use hlc::Hlc;
use serde::{Deserialize, Serialize};
use storage::{GroupNumber, LogId, Offset, UndoLog};

use crate::error::EngineError;

/// An idempotent producer's claim about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSequence {
    pub id: i64,
    pub epoch: i16,
    /// The sequence number of the first record.
    pub first_sequence: i32,
    /// The sequence number of the last record.
    pub last_sequence: i32,
    /// True if the batch belongs to a transaction.
    pub is_transactional: bool,
}

/// The origin of a producer's batch.
#[derive(Clone, Debug)]
pub(crate) struct ProducerOrigin {
    /// The account that the producer's state is charged to.
    pub(crate) holder: Holder,
    /// True if this service allocated the producer's id.
    pub(crate) is_allocated: bool,
}

/// The state of a producer in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    pub id: i64,
    pub epoch: i16,
    /// The sequence number of its last record; `None` after a change of its epoch.
    pub last_sequence: Option<i32>,
    /// The stamp of its last batch.
    pub last_stamp: Hlc,
    /// The first offset of its open transaction.
    pub open_from: Option<Offset>,
    /// True if a marker has ended a transaction of it.
    pub has_marker: bool,
}

/// A transaction that has a record in a log, and no marker yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTransaction {
    /// The offset of its first record.
    pub first: Offset,
    /// The stamp of its first record.
    pub stamp: Hlc,
    /// The producer's epoch then.
    pub epoch: i16,
}

/// The sequence number before the first.
const NO_SEQUENCE: i32 = -1;
/// The number of batches of a producer that are remembered.
const BATCHES_TO_RETAIN: usize = 5;
/// A producer that has not written for this long is evicted (`producer.id.expiration.ms`).
const EXPIRY_MS: u64 = 24 * 3600 * 1000;
/// Idle time is counted from one entry of the journal to the next, by at most this between two
/// entries. So a clock that jumps, or is wrong when the server starts, evicts nobody.
const IDLE_STEP_MS_MAX: u64 = 3600 * 1000;
/// The interval between searches for idle producers.
const EXPIRY_CHECK_MS: u64 = 10 * 60 * 1000;
/// A producer that has written within this long is never evicted, whoever needs room.
const ACTIVE_MS: u64 = 2 * 60 * 1000;
/// The most producers that all logs together remember.
const PRODUCERS_MAX: usize = 280_000;
/// The most producers, in addition, with ids that this service never allocated.
const UNALLOCATED_MAX: usize = 20_000;
/// The excess that a replay may have, because it cannot tell which producers were evicted.
const REPLAY_EXCESS: usize = 1000;
/// The most producers of a holder that are looked at to make room for another one of it.
const EVICTION_STEPS: usize = 256;
/// The last activity of a candidate for eviction is noted this exactly.
const NOTE_MS: u64 = 60_000;
/// The number of producers of one account that are forgotten at a time, if several accounts have as
/// many.
const TRIM_STEP: u64 = 64;
/// A start leaves this part of a budget free, unless all producers were active lately.
const FREE_DIVISOR: u64 = 8;
/// The most holders that are stored with a segment, those with the most producers first.
const STORED_HOLDERS_MAX: usize = 1000;
/// The most open transactions, counted once for each log in which they have records.
const OPEN_MAX: usize = 110_000;
/// The result of [`ProducerStates::encode`] is never longer: each rolled segment contains it.
const ENCODED_BYTES_MAX: usize = 64 << 20;
/// The most that a producer takes there, with a log of its own: numbers of variable length.
const PRODUCER_BYTES_MAX: usize =
    (10 + 10) + 10 + 3 + 10 + 1 + BATCHES_TO_RETAIN * (5 + 5 + 10 + 10);
/// The most that the number of its holder takes there.
const HOLDER_NUMBER_BYTES_MAX: usize = 2;
/// The bytes that the flag for a marker takes there.
const MARKER_BYTES: usize = 1;
/// The most that the name of a holder takes there.
const HOLDER_BYTES_MAX: usize = 2 + 256;

/// The most that an open transaction takes there.
const OPEN_BYTES_MAX: usize = 10 + 10 + 10 + 10 + 3;

const _: () = assert!(
    60 + (PRODUCERS_MAX + UNALLOCATED_MAX + REPLAY_EXCESS)
        * (PRODUCER_BYTES_MAX + HOLDER_NUMBER_BYTES_MAX + MARKER_BYTES)
        + OPEN_MAX * OPEN_BYTES_MAX
        + STORED_HOLDERS_MAX * HOLDER_BYTES_MAX
        <= ENCODED_BYTES_MAX
);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BatchSequence {
    first: i32,
    last: i32,
    base: Offset,
    stamp: Hlc,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProducerStateEntry {
    epoch: i16,
    /// The activity time of its last batch.
    active_ms: u64,
    written: VecDeque<BatchSequence>,
    /// True if a marker has ended a transaction of it. Not stored with it.
    #[serde(skip)]
    has_marker: bool,
    /// Not stored with it.
    #[serde(skip)]
    account: ProducerAccount,
    /// The activity time that its eviction candidate has. Not stored with it.
    #[serde(skip)]
    noted_ms: u64,
}

/// The budget and the holder that a producer is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProducerAccount {
    holder: Holder,
    is_allocated: bool,
}

impl Default for ProducerAccount {
    fn default() -> ProducerAccount {
        ProducerAccount { holder: Holder::restored(), is_allocated: true }
    }
}

impl From<&ProducerOrigin> for ProducerAccount {
    fn from(origin: &ProducerOrigin) -> ProducerAccount {
        let ProducerOrigin { holder, is_allocated } = origin.clone();
        ProducerAccount { holder, is_allocated }
    }
}

/// A producer that may make room for another one of its holder. The longest idle is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionCandidate {
    /// The activity time of its last batch, or up to [`NOTE_MS`] before.
    noted_ms: u64,
    log: LogId,
    id: i64,
}

impl ProducerStateEntry {
    fn candidate(&self, log: LogId, id: i64) -> EvictionCandidate {
        EvictionCandidate { noted_ms: self.noted_ms, log, id }
    }

    fn newest(&self) -> Option<&BatchSequence> {
        self.written.back()
    }

    /// The stamp of its last batch.
    fn stamp(&self) -> Hlc {
        self.newest().map_or(Hlc::ZERO, |written| written.stamp)
    }
}

type OpenByLog = HashMap<LogId, HashMap<i64, OpenTransaction>>;

/// The state that a staged append replaced.
#[derive(Debug)]
enum UndoStep {
    Producer(LogId, i64, Option<ProducerStateEntry>),
    Transaction(LogId, i64, Option<OpenTransaction>),
    /// The log had no transaction before.
    Transactional(LogId),
}

/// The activity time: the sum of the intervals between entries of the journal, each limited by
/// [`IDLE_STEP_MS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ActivityClock {
    ms: u64,
    /// The stamp of the last entry that is counted.
    last: Hlc,
}

impl ActivityClock {
    fn advance(&mut self, stamp: Hlc) {
        if self.last != Hlc::ZERO {
            let passed_ms = stamp.time().0.saturating_sub(self.last.time().0);
            self.ms = self.ms.saturating_add(passed_ms.min(IDLE_STEP_MS_MAX));
        }
        self.last = self.last.max(stamp);
    }
}

/// The budgets of producers, by whether this service allocated their ids.
#[derive(Clone, Debug)]
struct ProducerBudgets {
    allocated: Arc<Budget>,
    unallocated: Arc<Budget>,
}

impl Default for ProducerBudgets {
    fn default() -> ProducerBudgets {
        let spec = |name| BudgetSpec {
            name,
            unit: "producers (once for each partition)",
            setting: None,
            kind: BudgetKind::Kept,
        };
        ProducerBudgets {
            allocated: Budget::new(spec("producers"), PRODUCERS_MAX as u64),
            unallocated: Budget::new(spec("producers-of-unknown-ids"), UNALLOCATED_MAX as u64),
        }
    }
}

impl ProducerBudgets {
    fn of(&self, account: &ProducerAccount) -> &Arc<Budget> {
        self.with(account.is_allocated)
    }

    /// The budget of ids that this service allocated, or of others.
    fn with(&self, is_allocated: bool) -> &Arc<Budget> {
        if is_allocated { &self.allocated } else { &self.unallocated }
    }
}

/// Gives back what a producer took.
fn release(
    budgets: &ProducerBudgets,
    candidates: &mut HashMap<ProducerAccount, BTreeSet<EvictionCandidate>>,
    candidate: EvictionCandidate,
    account: &ProducerAccount,
) {
    budgets.of(account).release(&account.holder, 1);
    if let Some(of_account) = candidates.get_mut(account) {
        of_account.remove(&candidate);
        if of_account.is_empty() {
            candidates.remove(account);
        }
    }
}

/// All producers of all logs.
#[derive(Debug, Default)]
pub(crate) struct ProducerStates {
    /// Each entry is charged to its account, and is a candidate of it. Only `insert`, `remove` and
    /// `retain` change which there are.
    by_log: HashMap<LogId, HashMap<i64, ProducerStateEntry>>,
    budgets: ProducerBudgets,
    candidates: HashMap<ProducerAccount, BTreeSet<EvictionCandidate>>,
    /// The open transactions. Their producers are in `by_log`.
    open: OpenByLog,
    /// Their first offsets.
    open_firsts: HashMap<LogId, BTreeSet<Offset>>,
    open_count: usize,
    /// The logs that ever had a transaction.
    transactional: BTreeSet<LogId>,
    /// It counts published entries alone, so that it is the same on each replica.
    activity: ActivityClock,
    /// The activity time after each group in flight, for when that is published.
    staged_activity: VecDeque<(GroupNumber, ActivityClock)>,
    /// The activity time of the last search for idle producers.
    expiry_checked_ms: u64,
    undo: UndoLog<UndoStep>,
}

impl ProducerStates {
    /// Checks that a batch follows its producer's last one, by the rules of Kafka's
    /// `ProducerStateManager`: an unknown producer may begin anywhere, a new epoch begins at 0.
    pub(crate) fn check(&self, log: LogId, note: &ProducerSequence) -> Result<(), EngineError> {
        let open = self.open_transaction(log, note.id);
        if note.is_transactional && open.is_none() && self.open_count >= OPEN_MAX {
            return Err(EngineError::TooManyTransactions { most: OPEN_MAX });
        }
        self.check_sequence(log, note)?;
        match open {
            Some(_) if !note.is_transactional => {
                Err(EngineError::NotTransactional { producer: note.id })
            }
            _ => Ok(()),
        }
    }

    /// Returns true if a batch is the next one of a producer that is known.
    pub(crate) fn is_next(&self, log: LogId, note: &ProducerSequence) -> bool {
        let is_known =
            self.by_log.get(&log).is_some_and(|producers| producers.contains_key(&note.id));
        is_known && self.check_sequence(log, note).is_ok()
    }

    /// Checks that the epoch and the sequence number of a batch follow its producer's last ones.
    fn check_sequence(&self, log: LogId, note: &ProducerSequence) -> Result<(), EngineError> {
        let Some(producer) = self.by_log.get(&log).and_then(|producers| producers.get(&note.id))
        else {
            return Ok(());
        };
        if note.epoch < producer.epoch {
            return Err(EngineError::StaleProducerEpoch {
                producer: note.id,
                epoch: note.epoch,
                newest: producer.epoch,
            });
        }
        let expected = if note.epoch > producer.epoch {
            0
        } else {
            let same = |written: &&BatchSequence| {
                written.first == note.first_sequence && written.last == note.last_sequence
            };
            if let Some(written) = producer.written.iter().find(same) {
                let time_ms = written.stamp.time().0 as i64;
                return Err(EngineError::Duplicate { base: written.base, time_ms });
            }
            producer.newest().map_or(0, |newest| next_sequence(newest.last))
        };
        if note.first_sequence == expected {
            return Ok(());
        }
        Err(EngineError::OutOfOrderSequence {
            producer: note.id,
            epoch: note.epoch,
            expected,
            got: note.first_sequence,
        })
    }

    /// Makes sure that there is room for the producer of a batch that [`ProducerStates::stage`] is
    /// to record.
    ///
    /// # Errors
    /// Its holder has its share, and all of its producers were active lately.
    pub(crate) fn admit(
        &mut self,
        log: LogId,
        id: i64,
        origin: &ProducerOrigin,
    ) -> Result<(), EngineError> {
        if let Some(producer) = self.by_log.get(&log).and_then(|producers| producers.get(&id)) {
            if producer.account.holder.is_restored() {
                let account = ProducerAccount::from(origin);
                self.undo.push(UndoStep::Producer(log, id, Some(producer.clone())));
                let producer = ProducerStateEntry { account, ..producer.clone() };
                self.insert(log, id, producer);
            }
            return Ok(());
        }
        let account = ProducerAccount::from(origin);
        let budget = Arc::clone(self.budgets.of(&account));
        if budget.room(&account.holder) > 0 || self.evict_of(&account) {
            return Ok(());
        }
        budget.check(&account.holder, 1).map_err(|refusal| EngineError::OverBudget(refusal.into()))
    }

    /// Evicts a producer of an account that was not active lately; false if none is found.
    fn evict_of(&mut self, account: &ProducerAccount) -> bool {
        match self.idle_candidate(account, ACTIVE_MS, EVICTION_STEPS) {
            Some(EvictionCandidate { log, id, .. }) => {
                let evicted = self.remove(log, id);
                self.undo.push(UndoStep::Producer(log, id, evicted));
                true
            }
            None => false,
        }
    }

    /// The producer of an account that is idle for longest, if that is at least `idle_ms`, and if
    /// it is among the first `steps`. One with an open transaction counts as active.
    fn idle_candidate(
        &mut self,
        account: &ProducerAccount,
        idle_ms: u64,
        steps: usize,
    ) -> Option<EvictionCandidate> {
        for _ in 0..steps {
            let candidate = *self.candidates.get(account)?.first()?;
            let EvictionCandidate { noted_ms, log, id } = candidate;
            let is_open = self.open_transaction(log, id).is_some();
            let now_ms = self.activity.ms;
            let active_ms = if is_open { now_ms } else { self.by_log[&log][&id].active_ms };
            if !is_open && active_ms.saturating_add(idle_ms) <= now_ms {
                return Some(candidate);
            }
            if noted_ms >= active_ms {
                // So are all others.
                return None;
            }
            self.note_activity(log, id, active_ms);
        }
        None
    }

    /// Changes the order in which producers are evicted.
    fn note_activity(&mut self, log: LogId, id: i64, active_ms: u64) {
        let Some(producer) = self.by_log.get_mut(&log).and_then(|producers| producers.get_mut(&id))
        else {
            return;
        };
        if let Some(candidates) = self.candidates.get_mut(&producer.account) {
            candidates.remove(&producer.candidate(log, id));
            producer.noted_ms = active_ms;
            candidates.insert(producer.candidate(log, id));
        }
    }

    /// Adds a producer, or replaces it.
    fn insert(&mut self, log: LogId, id: i64, mut producer: ProducerStateEntry) {
        self.remove(log, id);
        producer.noted_ms = producer.active_ms;
        let ProducerStateEntry { account, .. } = &producer;
        self.budgets.of(account).charge_always(&account.holder, 1);
        let candidates = self.candidates.entry(account.clone()).or_default();
        candidates.insert(producer.candidate(log, id));
        self.by_log.entry(log).or_default().insert(id, producer);
    }

    fn remove(&mut self, log: LogId, id: i64) -> Option<ProducerStateEntry> {
        let producers = self.by_log.get_mut(&log)?;
        let producer = producers.remove(&id)?;
        if producers.is_empty() {
            self.by_log.remove(&log);
        }
        release(
            &self.budgets,
            &mut self.candidates,
            producer.candidate(log, id),
            &producer.account,
        );
        Some(producer)
    }

    /// The budgets that producers are charged to.
    pub(crate) fn budgets(&self) -> [Arc<Budget>; 2] {
        let ProducerBudgets { allocated, unallocated } = self.budgets.clone();
        [allocated, unallocated]
    }

    /// Records a batch that is being written; returns whether its transaction begins in the log
    /// with it. A new producer is charged to the account of its origin; without one, as what a
    /// restart found.
    pub(crate) fn stage(
        &mut self,
        log: LogId,
        note: &ProducerSequence,
        origin: Option<&ProducerOrigin>,
        base: Offset,
        stamp: Hlc,
    ) -> bool {
        let before = self.record_producer(log, note, origin, base, stamp);
        self.undo.push(UndoStep::Producer(log, note.id, before));
        let begins = note.is_transactional && self.open_transaction(log, note.id).is_none();
        if begins {
            if self.transactional.insert(log) {
                self.undo.push(UndoStep::Transactional(log));
            }
            self.set_open(
                log,
                note.id,
                Some(OpenTransaction { first: base, stamp, epoch: note.epoch }),
            );
            self.undo.push(UndoStep::Transaction(log, note.id, None));
        }
        begins
    }

    /// Records a batch that was written.
    pub(crate) fn record(&mut self, log: LogId, note: &ProducerSequence, base: Offset, stamp: Hlc) {
        self.stage(log, note, None, base, stamp);
        self.forget_undo();
        self.trim_replayed(REPLAY_EXCESS);
    }

    /// Records a marker that is being written; returns the transaction that it ends. The producer
    /// goes on with the marker's epoch: one that is larger begins with sequence number 0 (KIP-890).
    ///
    /// `None` if no transaction of the producer is open in the log: then nothing changes.
    pub(crate) fn stage_marker(
        &mut self,
        log: LogId,
        id: i64,
        epoch: i16,
        stamp: Hlc,
    ) -> Option<OpenTransaction> {
        let open = self.set_open(log, id, None)?;
        self.undo.push(UndoStep::Transaction(log, id, Some(open)));
        let active_ms = self.advance_activity(stamp);
        if let Some(producer) =
            self.by_log.get_mut(&log).and_then(|producers| producers.get_mut(&id))
        {
            self.undo.push(UndoStep::Producer(log, id, Some(producer.clone())));
            producer.active_ms = active_ms;
            producer.has_marker = true;
            if epoch > producer.epoch {
                producer.epoch = epoch;
                producer.written.clear();
                // So the next sequence number is 0, and the producer is not the longest idle.
                let (first, last) = (NO_SEQUENCE, NO_SEQUENCE);
                producer.written.push_back(BatchSequence { first, last, base: Offset(0), stamp });
            }
        }
        Some(open)
    }

    /// Records a marker that was written; returns the transaction that it ended.
    pub(crate) fn record_marker(
        &mut self,
        log: LogId,
        id: i64,
        epoch: i16,
        stamp: Hlc,
    ) -> Option<OpenTransaction> {
        let ended = self.stage_marker(log, id, epoch, stamp);
        self.forget_undo();
        ended
    }

    /// The open transaction of a producer in a log.
    pub(crate) fn open_transaction(&self, log: LogId, id: i64) -> Option<&OpenTransaction> {
        self.open.get(&log).and_then(|open| open.get(&id))
    }

    /// All open transactions: log, producer, and where each began. In this order.
    pub(crate) fn open_transactions(&self) -> Vec<(LogId, i64, OpenTransaction)> {
        let of_log = |(log, open): (&LogId, &HashMap<i64, OpenTransaction>)| {
            let log = *log;
            open.iter().map(move |(id, open)| (log, *id, *open)).collect::<Vec<_>>()
        };
        let mut open: Vec<_> = self.open.iter().flat_map(of_log).collect();
        open.sort_unstable_by_key(|(log, id, _)| (*log, *id));
        open
    }

    /// The logs that ever had a transaction.
    pub(crate) fn transactional_logs(&self) -> impl Iterator<Item = LogId> {
        self.transactional.iter().copied()
    }

    /// A log had a transaction.
    pub(crate) fn note_transactional(&mut self, log: LogId) {
        self.transactional.insert(log);
    }

    /// Forgets which of these logs had transactions: they are gone.
    pub(crate) fn retain_transactional(&mut self, is_known: impl Fn(LogId) -> bool) {
        self.transactional.retain(|log| is_known(*log));
    }

    /// The smallest first offset of the open transactions of a log.
    pub(crate) fn first_open(&self, log: LogId) -> Option<Offset> {
        self.open_firsts.get(&log)?.first().copied()
    }

    /// The producers of a log, in any order.
    pub(crate) fn of_log(&self, log: LogId) -> Vec<ActiveProducer> {
        let describe = |(id, producer): (&i64, &ProducerStateEntry)| ActiveProducer {
            id: *id,
            epoch: producer.epoch,
            last_sequence: producer.newest().map(|written| written.last),
            last_stamp: producer.stamp(),
            open_from: self.open_transaction(log, *id).map(|open| open.first),
            has_marker: producer.has_marker,
        };
        self.by_log.get(&log).into_iter().flatten().map(describe).collect()
    }

    /// Forgets a transaction that is known to have ended.
    pub(crate) fn forget_open(&mut self, log: LogId, id: i64) {
        self.set_open(log, id, None);
    }

    /// Forgets the open transactions of a log that began below an offset up to which it was
    /// removed, and maybe their markers too. One that is still open begins with the first of its
    /// records that is left.
    pub(crate) fn forget_open_below(&mut self, log: LogId, below: Offset) {
        let open = self.open.get(&log).into_iter().flatten();
        let began: Vec<i64> =
            open.filter(|(_, open)| open.first < below).map(|(id, _)| *id).collect();
        began.into_iter().for_each(|id| self.forget_open(log, id));
    }

    /// Sets the open transaction of a producer; returns the earlier one.
    fn set_open(
        &mut self,
        log: LogId,
        id: i64,
        transaction: Option<OpenTransaction>,
    ) -> Option<OpenTransaction> {
        let open = self.open.entry(log).or_default();
        let count_before = open.len();
        let before = match transaction {
            Some(transaction) => open.insert(id, transaction),
            None => open.remove(&id),
        };
        self.open_count = self.open_count + open.len() - count_before;
        let firsts = self.open_firsts.entry(log).or_default();
        before.iter().for_each(|before| _ = firsts.remove(&before.first));
        firsts.extend(transaction.map(|transaction| transaction.first));
        if open.is_empty() {
            self.open.remove(&log);
            self.open_firsts.remove(&log);
        }
        before
    }

    fn record_producer(
        &mut self,
        log: LogId,
        note: &ProducerSequence,
        origin: Option<&ProducerOrigin>,
        base: Offset,
        stamp: Hlc,
    ) -> Option<ProducerStateEntry> {
        let (active_ms, epoch) = (self.advance_activity(stamp), note.epoch);
        let before = self.by_log.get(&log).and_then(|producers| producers.get(&note.id)).cloned();
        if before.is_none() {
            let written = VecDeque::with_capacity(BATCHES_TO_RETAIN);
            let account = origin.map(ProducerAccount::from).unwrap_or_default();
            let producer =
                ProducerStateEntry { epoch, active_ms, written, account, ..Default::default() };
            self.insert(log, note.id, producer);
        }
        let producers = self.by_log.get_mut(&log).expect("its producer is there");
        let producer = producers.get_mut(&note.id).expect("it was inserted");
        let is_noted = active_ms < producer.noted_ms.saturating_add(NOTE_MS);
        if producer.epoch != epoch {
            producer.epoch = epoch;
            producer.written.clear();
        }
        if producer.written.len() == BATCHES_TO_RETAIN {
            producer.written.pop_front();
        }
        producer.active_ms = active_ms;
        let (first, last) = (note.first_sequence, note.last_sequence);
        producer.written.push_back(BatchSequence { first, last, base, stamp });
        if !is_noted {
            self.note_activity(log, note.id, active_ms);
        }
        before
    }

    /// Advances the activity time: something is written, by whomever. It is published already, or
    /// belongs to the group that is being staged. Returns the time.
    pub(crate) fn advance_activity(&mut self, stamp: Hlc) -> u64 {
        if let Some((_, staged)) = self.staged_activity.back_mut() {
            staged.advance(stamp);
            return staged.ms;
        }
        self.activity.advance(stamp);
        self.remove_expired_if_due();
        self.activity.ms
    }

    fn remove_expired_if_due(&mut self) {
        let now_ms = self.activity.ms;
        if now_ms >= self.expiry_checked_ms.saturating_add(EXPIRY_CHECK_MS) {
            self.expiry_checked_ms = now_ms;
            self.remove_expired();
        }
    }

    fn remove_expired(&mut self) {
        let now_ms = self.activity.ms;
        self.retain(|producer| now_ms < producer.active_ms.saturating_add(EXPIRY_MS));
    }

    /// Removes the producers that do not stay and have no open transaction.
    fn retain(&mut self, stays: impl Fn(&ProducerStateEntry) -> bool) {
        let ProducerStates { by_log, open, budgets, candidates, .. } = self;
        by_log.retain(|log, producers| {
            let open = open.get(log);
            let is_open = |id: &i64| open.is_some_and(|open| open.contains_key(id));
            producers.retain(|id, producer| {
                let stays = stays(producer) || is_open(id);
                if !stays {
                    let candidate = producer.candidate(*log, *id);
                    release(budgets, candidates, candidate, &producer.account);
                }
                stays
            });
            shrink(producers);
            !producers.is_empty()
        });
    }

    /// Ends a replay: which ids this service allocated is known now. A journal does not say which
    /// producers were evicted, so there may be more than there is room for.
    pub(crate) fn end_replay(&mut self, allocated_below: i64) {
        let invented: Vec<(LogId, i64)> = self
            .by_log
            .iter()
            .flat_map(|(log, producers)| producers.keys().map(|id| (*log, *id)))
            .filter(|(_, id)| !(0..allocated_below).contains(id))
            .collect();
        for (log, id) in invented {
            if let Some(mut producer) = self.remove(log, id) {
                producer.account.is_allocated = false;
                self.insert(log, id, producer);
            }
        }
        for is_allocated in [true, false] {
            let limit = self.budgets.with(is_allocated).limit();
            self.trim(is_allocated, limit - limit / FREE_DIVISOR, ACTIVE_MS);
            self.trim(is_allocated, limit, 0);
        }
    }

    /// Bounds the producers of a replay, and of its encoded state. All count as allocated there.
    fn trim_replayed(&mut self, excess: usize) {
        let producers_max = PRODUCERS_MAX + UNALLOCATED_MAX;
        if self.budgets.allocated.used() > (producers_max + excess) as u64 {
            self.trim(true, producers_max as u64, 0);
        }
    }

    /// Forgets producers that are idle for `idle_ms` or longer until a budget has no more than
    /// `producers_max`, the longest idle of the largest holder first. Only producers that are read
    /// from the journal can exceed the limit.
    fn trim(&mut self, is_allocated: bool, producers_max: u64, idle_ms: u64) {
        let budget = Arc::clone(self.budgets.with(is_allocated));
        let mut forgotten = 0;
        while budget.used() > producers_max {
            let accounts =
                self.candidates.keys().filter(|account| account.is_allocated == is_allocated);
            let mut accounts: Vec<(u64, ProducerAccount)> =
                accounts.map(|account| (budget.held(&account.holder), account.clone())).collect();
            accounts.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
            let second = accounts.get(1).map_or(0, |(count, _)| *count);
            let before = forgotten;
            for (nth, (count, account)) in accounts.into_iter().enumerate() {
                // Another one only where the largest has nothing idle.
                let enough = if nth == 0 { count.saturating_sub(second) } else { 0 };
                for _ in 0..enough.max(TRIM_STEP).min(budget.used() - producers_max) {
                    let idle = self.idle_candidate(&account, idle_ms, usize::MAX);
                    let Some(idle) = idle else { break };
                    self.remove(idle.log, idle.id);
                    forgotten += 1;
                }
                if forgotten > before {
                    break;
                }
            }
            if forgotten == before {
                break;
            }
        }
        if forgotten > 0 {
            tracing::warn!(
                forgotten,
                "there are too many producers; the longest idle are forgotten"
            );
        }
    }

    /// The states after all published groups, encoded.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Sorted, so that equal states have equal bytes.
        let mut by_log: BTreeMap<LogId, BTreeMap<i64, &ProducerStateEntry>> = BTreeMap::new();
        for (log, producers) in &self.by_log {
            by_log.insert(*log, producers.iter().map(|(id, producer)| (*id, producer)).collect());
        }
        let mut open: BTreeMap<LogId, BTreeMap<i64, &OpenTransaction>> = BTreeMap::new();
        for (log, of_log) in &self.open {
            open.insert(*log, of_log.iter().map(|(id, open)| (*id, open)).collect());
        }
        let mut transactional: BTreeSet<LogId> = self.transactional.clone();
        for step in self.undo.iter().rev() {
            match step {
                UndoStep::Producer(log, id, before) => set_entry(&mut by_log, *log, *id, before),
                UndoStep::Transaction(log, id, before) => set_entry(&mut open, *log, *id, before),
                UndoStep::Transactional(log) => _ = transactional.remove(log),
            }
        }
        let state = (self.activity.ms, self.activity.last, by_log);
        let mut bytes = postcard::to_stdvec(&state).expect("producers can be encoded");
        let (_, _, by_log) = &state;
        let entries = || by_log.values().flat_map(BTreeMap::values);
        let holders = stored_holders(entries().copied());
        let has_markers = entries().any(|producer| producer.has_marker);
        if !transactional.is_empty() || !holders.is_empty() || has_markers {
            let transactions = (open, transactional);
            bytes = postcard::to_extend(&transactions, bytes).expect("they can be encoded");
        }
        if !holders.is_empty() || has_markers {
            let by_name: HashMap<&str, u32> =
                holders.iter().enumerate().map(|(nth, name)| (&**name, nth as u32 + 1)).collect();
            let numbers: Vec<u32> = entries()
                .map(|producer| by_name.get(producer.account.holder.name()).copied().unwrap_or(0))
                .collect();
            bytes = postcard::to_extend(&(&holders, numbers), bytes).expect("they can be encoded");
        }
        if has_markers {
            let markers: Vec<bool> = entries().map(|producer| producer.has_marker).collect();
            bytes = postcard::to_extend(&markers, bytes).expect("they can be encoded");
        }
        bytes
    }

    /// Decodes the result of [`ProducerStates::encode`]. Earlier versions encoded more producers,
    /// no transactions, no holders, and no markers.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ProducerStates, postcard::Error> {
        type Encoded = (u64, Hlc, BTreeMap<LogId, BTreeMap<i64, ProducerStateEntry>>);
        let ((active_ms, counted, by_log), rest): (Encoded, &[u8]) =
            postcard::take_from_bytes(bytes)?;
        let ((open, transactional), rest): ((OpenByLog, BTreeSet<LogId>), &[u8]) =
            if rest.is_empty() { Default::default() } else { postcard::take_from_bytes(rest)? };
        let ((holders, numbers), rest): ((Vec<String>, Vec<u32>), &[u8]) =
            if rest.is_empty() { Default::default() } else { postcard::take_from_bytes(rest)? };
        let markers: Vec<bool> =
            if rest.is_empty() { Vec::new() } else { postcard::from_bytes(rest)? };
        let holders: Vec<Holder> =
            holders.iter().map(|name| Holder::principal(name, false)).collect();
        let firsts = |open: &HashMap<i64, OpenTransaction>| {
            open.values().map(|transaction| transaction.first).collect()
        };
        let mut producers = ProducerStates {
            open_firsts: open.iter().map(|(log, open)| (*log, firsts(open))).collect(),
            open_count: open.values().map(HashMap::len).sum(),
            open,
            transactional,
            activity: ActivityClock { ms: active_ms, last: counted },
            expiry_checked_ms: active_ms,
            ..ProducerStates::default()
        };
        let (mut numbers, mut markers) = (numbers.into_iter(), markers.into_iter());
        for (log, producer_entries) in by_log {
            for (id, mut producer) in producer_entries {
                producer.has_marker = markers.next().unwrap_or(false);
                let number = numbers.next().unwrap_or(0) as usize;
                if let Some(holder) = number.checked_sub(1).and_then(|nth| holders.get(nth)) {
                    producer.account.holder = holder.clone();
                }
                producers.insert(log, id, producer);
            }
        }
        producers.remove_expired();
        producers.trim_replayed(0);
        Ok(producers)
    }

    /// Nothing is staged: what was recorded is in the journal.
    fn forget_undo(&mut self) {
        self.undo.commit(GroupNumber(u64::MAX)).for_each(drop);
    }

    /// Begins a group: later changes belong to it.
    pub(crate) fn begin(&mut self, group: GroupNumber) {
        self.undo.begin(group);
        let before = self.staged_activity.back().map_or(self.activity, |(_, activity)| *activity);
        self.staged_activity.push_back((group, before));
    }

    /// The groups up to `group` are published.
    pub(crate) fn commit(&mut self, group: GroupNumber) {
        self.undo.commit(group).for_each(drop);
        while let Some((_, activity)) = self.staged_activity.pop_front_if(|(of, _)| *of <= group) {
            self.activity = activity;
        }
        self.remove_expired_if_due();
    }

    /// Takes back the groups from `from` on.
    pub(crate) fn rollback(&mut self, from: GroupNumber) {
        // A search for idle producers spares those that are active in these groups alone.
        let checked_ms = self.expiry_checked_ms;
        let stays = |producer: &ProducerStateEntry| {
            checked_ms < producer.active_ms.saturating_add(EXPIRY_MS)
        };
        let mut restores_expired = false;
        while let Some(step) = self.undo.pop(from) {
            match step {
                UndoStep::Producer(log, id, before) => {
                    restores_expired |= before.as_ref().is_some_and(|before| !stays(before));
                    self.restore_producer(log, id, before);
                }
                UndoStep::Transaction(log, id, before) => drop(self.set_open(log, id, before)),
                UndoStep::Transactional(log) => _ = self.transactional.remove(&log),
            }
        }
        while self.staged_activity.pop_back_if(|(of, _)| *of >= from).is_some() {}
        if restores_expired {
            self.retain(stays);
        }
    }

    fn restore_producer(&mut self, log: LogId, id: i64, before: Option<ProducerStateEntry>) {
        match before {
            Some(before) => self.insert(log, id, before),
            None => _ = self.remove(log, id),
        }
    }
}

/// Puts back what an entry was; `None` if there was none.
fn set_entry<'a, T>(
    by_log: &mut BTreeMap<LogId, BTreeMap<i64, &'a T>>,
    log: LogId,
    id: i64,
    before: &'a Option<T>,
) {
    let of_log = by_log.entry(log).or_default();
    match before {
        Some(before) => _ = of_log.insert(id, before),
        None => _ = of_log.remove(&id),
    }
    if of_log.is_empty() {
        by_log.remove(&log);
    }
}

/// The names of the holders with the most producers.
fn stored_holders<'a>(producers: impl Iterator<Item = &'a ProducerStateEntry>) -> Vec<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for producer in producers {
        if !producer.account.holder.is_restored() {
            *counts.entry(producer.account.holder.name()).or_default() += 1;
        }
    }
    let mut holders: Vec<_> = counts.into_iter().collect();
    holders.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    holders.truncate(STORED_HOLDERS_MAX);
    holders.into_iter().map(|(name, _)| name.to_owned()).collect()
}

fn next_sequence(sequence: i32) -> i32 {
    if sequence == i32::MAX { 0 } else { sequence + 1 }
}

/// Releases the memory of evicted producers.
fn shrink(producers: &mut HashMap<i64, ProducerStateEntry>) {
    if producers.capacity() > 64 && producers.len() < producers.capacity() / 4 {
        producers.shrink_to(producers.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: LogId = LogId(1);
    const GROUP: GroupNumber = GroupNumber(0);

    fn note(epoch: i16, first: i32, count: i32) -> ProducerSequence {
        let last_sequence = first + (count - 1);
        ProducerSequence {
            id: 9,
            epoch,
            first_sequence: first,
            last_sequence,
            is_transactional: false,
        }
    }

    fn write(
        producers: &mut ProducerStates,
        note: ProducerSequence,
        base: u64,
    ) -> Result<(), EngineError> {
        producers.check(LOG, &note)?;
        producers.stage(LOG, &note, None, Offset(base), Hlc::from_bits(base + 1));
        producers.commit(GROUP);
        Ok(())
    }

    #[test]
    fn the_last_five_batches_are_known_again_and_say_where_they_went() {
        let mut producers = ProducerStates::default();
        for nth in 0..6 {
            write(&mut producers, note(0, nth * 10, 10), nth as u64 * 10).unwrap();
        }
        for nth in 1..6 {
            let again = producers.check(LOG, &note(0, nth * 10, 10));
            let expected = Offset(nth as u64 * 10);
            assert!(matches!(again, Err(EngineError::Duplicate { base, .. }) if base == expected));
        }
        let sixth_last = producers.check(LOG, &note(0, 0, 10));
        assert!(matches!(sixth_last, Err(EngineError::OutOfOrderSequence { .. })));
    }

    #[test]
    fn a_batch_that_shares_one_end_with_another_is_not_that_one() {
        let mut producers = ProducerStates::default();
        write(&mut producers, note(0, 0, 10), 0).unwrap();
        for other in [note(0, 0, 5), note(0, 5, 5), note(0, 0, 11)] {
            let refused = producers.check(LOG, &other);
            assert!(
                matches!(refused, Err(EngineError::OutOfOrderSequence { expected: 10, .. })),
                "{other:?}"
            );
        }
    }

    /// The states have to fit into the state of a segment, so the size of a producer must not be
    /// underestimated.
    #[test]
    fn a_producer_takes_as_much_as_is_said_at_most() {
        let written = || BatchSequence {
            first: i32::MIN,
            last: i32::MIN,
            base: Offset(u64::MAX),
            stamp: Hlc::from_bits(u64::MAX),
        };
        let producer = ProducerStateEntry {
            epoch: i16::MIN,
            active_ms: u64::MAX,
            written: (0..BATCHES_TO_RETAIN).map(|_| written()).collect(),
            ..ProducerStateEntry::default()
        };
        let producers = ProducerStates {
            by_log: HashMap::from([(LogId(u64::MAX), HashMap::from([(i64::MIN, producer)]))]),
            activity: ActivityClock { ms: u64::MAX, last: Hlc::MAX },
            ..ProducerStates::default()
        };
        // For a log with one producer, the number of its producers is one byte; and so is the
        // number of logs.
        let (head, logs) = (10 + 10, 1);
        assert_eq!(producers.encode().len(), head + logs + PRODUCER_BYTES_MAX - 9);
    }

    #[test]
    fn a_gap_is_refused_and_an_unknown_producer_may_begin_anywhere() {
        let mut producers = ProducerStates::default();
        write(&mut producers, note(0, 500, 1), 0).unwrap();
        let gap = producers.check(LOG, &note(0, 502, 1));
        assert!(matches!(
            gap,
            Err(EngineError::OutOfOrderSequence { expected: 501, got: 502, .. })
        ));
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_fences_the_old_one() {
        let mut producers = ProducerStates::default();
        write(&mut producers, note(0, 0, 1), 0).unwrap();
        assert!(producers.check(LOG, &note(1, 7, 1)).is_err());
        write(&mut producers, note(1, 0, 1), 1).unwrap();
        let stale = producers.check(LOG, &note(0, 1, 1));
        assert!(matches!(stale, Err(EngineError::StaleProducerEpoch { newest: 1, .. })));
    }

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        let mut producers = ProducerStates::default();
        write(&mut producers, note(0, i32::MAX, 1), 0).unwrap();
        assert!(producers.check(LOG, &note(0, 0, 1)).is_ok());
    }

    #[test]
    fn a_group_that_failed_leaves_no_trace() {
        let mut producers = ProducerStates::default();
        write(&mut producers, note(0, 0, 1), 0).unwrap();
        producers.stage(LOG, &note(0, 1, 1), None, Offset(1), Hlc::from_bits(2));
        producers.stage(LOG, &note(0, 2, 1), None, Offset(2), Hlc::from_bits(3));
        producers.rollback(GROUP);
        assert!(producers.check(LOG, &note(0, 1, 1)).is_ok());
    }

    fn at(ms: u64) -> Hlc {
        Hlc::at(hlc::SysTime(ms))
    }

    fn record(producers: &mut ProducerStates, log: u64, id: i64, stamp: Hlc) {
        let note = ProducerSequence { id, ..note(0, 0, 1) };
        producers.record(LogId(log), &note, Offset(0), stamp);
    }

    fn count(producers: &ProducerStates) -> usize {
        let count = producers.by_log.values().map(HashMap::len).sum();
        let ProducerBudgets { allocated, unallocated } = &producers.budgets;
        let charged = (allocated.used() + unallocated.used()) as usize;
        assert_eq!(charged, count, "each producer is charged once");
        let candidates: usize = producers.candidates.values().map(BTreeSet::len).sum();
        assert_eq!(candidates, count, "each is a candidate once");
        count
    }

    fn origin(name: &str, is_allocated: bool) -> ProducerOrigin {
        ProducerOrigin { holder: Holder::principal(name, false), is_allocated }
    }

    /// A batch of a new or a known producer, as the writer's thread takes it.
    fn admit_and_write(
        producers: &mut ProducerStates,
        note: ProducerSequence,
        origin: &ProducerOrigin,
        stamp: Hlc,
    ) -> Result<(), EngineError> {
        producers.advance_activity(stamp);
        producers.check(LOG, &note)?;
        producers.admit(LOG, note.id, origin)?;
        producers.stage(LOG, &note, Some(origin), Offset(0), stamp);
        producers.commit(GROUP);
        Ok(())
    }

    /// One principal invents more producers than there is room for, in a minute and over hours.
    #[test]
    fn a_flood_of_producers_evicts_nobody_elses() {
        for (step_ms, is_allocated) in [(0, true), (0, false), (1000, true), (1000, false)] {
            let mut producers = ProducerStates::default();
            let (alice, bob) = (origin("User:alice", true), origin("User:bob", is_allocated));
            admit_and_write(&mut producers, note(0, 0, 1), &alice, at(1)).unwrap();
            let flood = if step_ms == 0 && is_allocated { 230_000 } else { 25_000 };
            let (mut refused, mut now) = (0, 1);
            for id in 0..flood {
                now += step_ms;
                let note = ProducerSequence { id: 1000 + id, ..note(0, 0, 1) };
                match admit_and_write(&mut producers, note, &bob, at(now)) {
                    Ok(()) => {}
                    Err(EngineError::OverBudget(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            let again = producers.check(LOG, &note(0, 0, 1));
            assert!(matches!(again, Err(EngineError::Duplicate { .. })), "{again:?}");
            assert_eq!(refused > 0, step_ms == 0, "{step_ms} {is_allocated}");
            let carol = origin("User:carol", true);
            let note = ProducerSequence { id: 10, ..note(0, 0, 1) };
            admit_and_write(&mut producers, note, &carol, at(now)).unwrap();
            assert!(count(&producers) <= PRODUCERS_MAX + UNALLOCATED_MAX);
            assert!(is_allocated || count(&producers) <= UNALLOCATED_MAX + 2);
        }
    }

    #[test]
    fn a_holder_with_its_share_loses_its_own_longest_idle() {
        let mut producers = ProducerStates::default();
        let bob = origin("User:bob", false);
        let mut written = 0;
        let write = |producers: &mut ProducerStates, id, ms| {
            admit_and_write(producers, ProducerSequence { id, ..note(0, 0, 1) }, &bob, at(ms))
        };
        while write(&mut producers, written, 1).is_ok() {
            written += 1;
        }
        assert!(written as usize > UNALLOCATED_MAX / 2, "{written}");
        assert!(write(&mut producers, written, 1 + ACTIVE_MS - 1).is_err());
        let first = ProducerSequence { id: 0, ..note(0, 1, 1) };
        admit_and_write(&mut producers, first, &bob, at(ACTIVE_MS)).unwrap();
        write(&mut producers, written, 1 + ACTIVE_MS).unwrap();
        assert!(producers.by_log[&LOG].contains_key(&0), "it has written again");
        assert_eq!(count(&producers) as i64, written);
    }

    /// Producers that live long and write all the time came first.
    #[test]
    fn active_producers_do_not_hide_the_idle_ones_behind_them() {
        let mut producers = ProducerStates::default();
        let bob = origin("User:bob", false);
        let write = |producers: &mut ProducerStates, id, sequence, ms| {
            let note = ProducerSequence { id, ..note(0, sequence, 1) };
            admit_and_write(producers, note, &bob, at(ms))
        };
        const ACTIVE: i64 = 5000;
        let mut written = 0;
        while write(&mut producers, written, 0, 1).is_ok() {
            written += 1;
        }
        for (round, ms) in [(1, 1 + ACTIVE_MS / 2), (2, 1 + ACTIVE_MS)] {
            (0..ACTIVE).for_each(|id| write(&mut producers, id, round, ms).unwrap());
        }
        for id in written..2 * written - ACTIVE {
            write(&mut producers, id, 0, 1 + ACTIVE_MS).unwrap();
        }
        assert!(write(&mut producers, 2 * written, 0, 1 + ACTIVE_MS).is_err(), "none is idle now");
        assert!((0..ACTIVE).all(|id| producers.by_log[&LOG].contains_key(&id)));
        assert_eq!(count(&producers) as i64, written);
    }

    /// A client tries again and again while the disk is full.
    #[test]
    fn a_batch_that_is_taken_back_leaves_no_candidate() {
        let mut producers = ProducerStates::default();
        let bob = origin("User:bob", true);
        for _ in 0..1000 {
            producers.admit(LOG, 9, &bob).unwrap();
            producers.stage(LOG, &note(0, 0, 1), Some(&bob), Offset(0), at(1));
            producers.rollback(GROUP);
        }
        assert_eq!(count(&producers), 0);
        assert!(producers.candidates.is_empty());
    }

    #[test]
    fn an_account_that_changes_in_a_group_that_fails_is_as_before() {
        let mut producers = ProducerStates::default();
        let transactional = ProducerSequence { is_transactional: true, ..note(0, 0, 1) };
        producers.record(LOG, &transactional, Offset(0), at(1));
        producers.stage_marker(LOG, 9, 0, at(2)).expect("it is open");
        let alice = origin("User:alice", true);
        producers.admit(LOG, 9, &alice).unwrap();
        producers.stage(LOG, &note(0, 1, 1), Some(&alice), Offset(2), at(3));
        producers.rollback(GROUP);
        assert_eq!(count(&producers), 1);
        assert_eq!(producers.budgets.allocated.held(&Holder::restored()), 1);
        producers.admit(LOG, 9, &alice).unwrap();
        assert_eq!(producers.budgets.allocated.held(&alice.holder), 1);
    }

    /// A journal does not say what was evicted, nor which ids were invented.
    #[test]
    fn a_start_leaves_room_for_new_producers() {
        let mut producers = ProducerStates::default();
        let (allocated, invented) = (PRODUCERS_MAX as i64, UNALLOCATED_MAX as i64);
        producers.record(LOG, &note(0, 0, 1), Offset(0), at(1));
        for id in 10..allocated + invented {
            let note = ProducerSequence { id, ..note(0, 0, 1) };
            producers.record(LOG, &note, Offset(0), at(1));
        }
        producers.advance_activity(at(1 + ACTIVE_MS));
        let recent = ProducerSequence { id: allocated - 1, ..note(0, 1, 1) };
        producers.record(LOG, &recent, Offset(0), at(1 + ACTIVE_MS));
        producers.end_replay(allocated);
        count(&producers);
        let alice = origin("User:alice", true);
        for (id, origin) in [(allocated + invented, &origin("User:alice", false)), (1, &alice)] {
            let note = ProducerSequence { id, ..note(0, 0, 1) };
            admit_and_write(&mut producers, note, origin, at(1 + ACTIVE_MS)).unwrap();
        }
        assert!(producers.by_log[&LOG].contains_key(&(allocated - 1)), "it was active");
        let free = |budget: &Budget| budget.limit() - budget.used();
        assert!(free(&producers.budgets.allocated) >= PRODUCERS_MAX as u64 / 8 - 2);
        assert!(free(&producers.budgets.unallocated) >= UNALLOCATED_MAX as u64 / 8 - 2);
    }

    #[test]
    fn an_eviction_is_undone_with_its_group() {
        let mut producers = ProducerStates::default();
        let bob = origin("User:bob", false);
        let mut written = 0;
        let sequence = |id| ProducerSequence { id, ..note(0, 0, 1) };
        while admit_and_write(&mut producers, sequence(written), &bob, at(1)).is_ok() {
            written += 1;
        }
        let before = producers.by_log[&LOG].keys().copied().collect::<BTreeSet<_>>();
        producers.advance_activity(at(1 + ACTIVE_MS));
        producers.admit(LOG, written, &bob).unwrap();
        producers.stage(LOG, &sequence(written), Some(&bob), Offset(1), at(2 + ACTIVE_MS));
        producers.rollback(GROUP);
        let after = producers.by_log[&LOG].keys().copied().collect::<BTreeSet<_>>();
        assert!(before == after, "the same producers as before");
        assert_eq!(count(&producers), before.len());
    }

    #[test]
    fn holders_are_the_same_after_a_restart() {
        let mut producers = ProducerStates::default();
        for (id, name) in [(1, "User:alice"), (2, "User:bob"), (3, "User:bob")] {
            let note = ProducerSequence { id, ..note(0, 0, 1) };
            admit_and_write(&mut producers, note, &origin(name, true), at(1)).unwrap();
        }
        record(&mut producers, 2, 4, at(2));
        let again = ProducerStates::decode(&producers.encode()).unwrap();
        let count_of = |holder: Holder| again.budgets.allocated.held(&holder);
        assert_eq!(count_of(Holder::principal("User:alice", false)), 1);
        assert_eq!(count_of(Holder::principal("User:bob", false)), 2);
        assert_eq!(count_of(Holder::restored()), 1);
        assert_eq!(again.encode(), producers.encode());
    }

    /// DescribeProducers shows no epoch of a coordinator before the first marker.
    #[test]
    fn whether_there_was_a_marker_is_known_after_a_restart() {
        let mut producers = ProducerStates::default();
        for id in [1, 2] {
            let note = ProducerSequence { id, is_transactional: true, ..note(0, 0, 1) };
            producers.record(LOG, &note, Offset(id as u64), at(1));
        }
        producers.stage_marker(LOG, 1, 0, at(2));
        producers.rollback(GROUP);
        producers.record_marker(LOG, 2, 0, at(3)).expect("it is open");
        let markers = |producers: &ProducerStates| {
            let active = producers.of_log(LOG).into_iter();
            active.map(|producer| (producer.id, producer.has_marker)).collect::<BTreeMap<_, _>>()
        };
        let expected = BTreeMap::from([(1, false), (2, true)]);
        assert_eq!(markers(&producers), expected);
        let again = ProducerStates::decode(&producers.encode()).unwrap();
        assert_eq!(markers(&again), expected);
    }

    #[test]
    fn a_restored_producer_moves_to_the_holder_that_uses_it() {
        let mut producers = ProducerStates::default();
        record(&mut producers, LOG.0, 9, at(1));
        let alice = origin("User:alice", true);
        admit_and_write(&mut producers, note(0, 1, 1), &alice, at(2)).unwrap();
        assert_eq!(producers.budgets.allocated.held(&alice.holder), 1);
        assert_eq!(count(&producers), 1);
    }

    #[test]
    fn a_replay_is_bounded_and_so_is_what_is_encoded_of_it() {
        let producers_max = (PRODUCERS_MAX + UNALLOCATED_MAX) as u64;
        let mut producers = ProducerStates::default();
        for nth in 0..=producers_max + REPLAY_EXCESS as u64 {
            // The largest encoding: each producer in a log of its own, with large numbers.
            let id = i64::MIN + nth as i64;
            let note = ProducerSequence { id, epoch: i16::MIN, ..note(0, i32::MIN, 1) };
            let stamp = Hlc::from_bits(u64::MAX - 2 * producers_max + nth);
            for _ in 0..BATCHES_TO_RETAIN {
                producers.record(
                    LogId(u64::MAX - 2 * producers_max + nth),
                    &note,
                    Offset(u64::MAX),
                    stamp,
                );
            }
        }
        assert_eq!(count(&producers) as u64, producers_max);
        let first = LogId(u64::MAX - 2 * producers_max);
        assert!(!producers.by_log.contains_key(&first), "the longest idle go first");
        let bytes = producers.encode();
        assert!(bytes.len() <= count(&producers) * PRODUCER_BYTES_MAX + 30, "{}", bytes.len());
        let again = ProducerStates::decode(&bytes).unwrap();
        assert_eq!(count(&again), count(&producers));
    }

    #[test]
    fn who_is_silent_for_a_day_is_forgotten_whoever_writes_then_and_so_is_a_log_without_producers()
    {
        let mut producers = ProducerStates::default();
        record(&mut producers, 1, 1, at(1000));
        record(&mut producers, 2, 2, at(1001));
        pass(&mut producers, 1001..1000 + EXPIRY_MS - 1);
        assert_eq!(count(&producers), 2);
        record(&mut producers, 2, 2, at(1000 + EXPIRY_MS - 1));
        pass(&mut producers, 1000 + EXPIRY_MS - 1..1000 + EXPIRY_MS + EXPIRY_CHECK_MS);
        assert_eq!(producers.by_log.keys().collect::<Vec<_>>(), [&LogId(2)]);
        assert_eq!(count(&producers), 1);
        let again = ProducerStates::decode(&producers.encode()).unwrap();
        assert_eq!(count(&again), 1);
    }

    #[test]
    fn what_was_committed_is_not_taken_back_with_a_later_group() {
        let mut producers = ProducerStates::default();
        write(&mut producers, note(0, 0, 1), 0).unwrap();
        write(&mut producers, note(0, 1, 1), 1).unwrap();
        producers.rollback(GROUP);
        assert!(producers.check(LOG, &note(0, 2, 1)).is_ok());
        assert!(matches!(
            producers.check(LOG, &note(0, 1, 1)),
            Err(EngineError::Duplicate { base: Offset(1), .. })
        ));
    }

    #[test]
    fn silence_is_counted_on_after_a_restart() {
        let mut producers = ProducerStates::default();
        record(&mut producers, 1, 1, at(1000));
        pass(&mut producers, 1000..1000 + EXPIRY_MS / 2);
        let mut again = ProducerStates::decode(&producers.encode()).unwrap();
        assert_eq!(
            (again.activity, again.expiry_checked_ms),
            (producers.activity, producers.activity.ms)
        );
        pass(&mut again, 1000 + EXPIRY_MS / 2..1000 + EXPIRY_MS + 2 * EXPIRY_CHECK_MS);
        assert_eq!(count(&again), 0);
    }

    #[test]
    fn a_day_of_silence_is_enough_and_less_is_not() {
        let mut producers = ProducerStates::default();
        record(&mut producers, 1, 1, at(1000));
        producers.activity.ms = EXPIRY_MS - 1;
        producers.remove_expired();
        assert_eq!(count(&producers), 1);
        producers.activity.ms = EXPIRY_MS;
        producers.remove_expired();
        assert_eq!(count(&producers), 0);
    }

    /// Writes something every half hour.
    fn pass(producers: &mut ProducerStates, time: std::ops::Range<u64>) {
        let ticks = time.clone().step_by(30 * 60 * 1000);
        ticks.chain([time.end]).for_each(|ms| _ = producers.advance_activity(at(ms)));
    }

    #[test]
    fn a_clock_that_is_days_ahead_at_a_start_forgets_nobody() {
        let mut producers = ProducerStates::default();
        record(&mut producers, 1, 9, at(1000));
        for days in 1..20 {
            producers.advance_activity(at(1000 + days * 400 * EXPIRY_MS));
            producers = ProducerStates::decode(&producers.encode()).unwrap();
        }
        let again = producers.check(LOG, &note(0, 0, 1));
        assert!(matches!(again, Err(EngineError::Duplicate { .. })), "{again:?}");
    }

    #[test]
    fn more_than_there_may_be_are_read_and_the_newest_of_them_kept() {
        let producers_max = (PRODUCERS_MAX + UNALLOCATED_MAX) as u64;
        let mut many = ProducerStates::default();
        for log in 0..producers_max + 10 {
            let written = [BatchSequence { first: 0, last: 0, base: Offset(0), stamp: at(log) }];
            let account = ProducerAccount::default();
            let written = written.into();
            let producer = ProducerStateEntry { written, account, ..ProducerStateEntry::default() };
            many.by_log.insert(LogId(log), HashMap::from([(7, producer)]));
        }
        let decoded = ProducerStates::decode(&many.encode()).unwrap();
        assert_eq!(count(&decoded) as u64, producers_max);
        assert_eq!(decoded.by_log.keys().min(), Some(&LogId(10)));
    }

    #[test]
    fn what_is_taken_back_is_not_counted() {
        let mut producers = ProducerStates::default();
        record(&mut producers, 1, 1, at(1));
        for (log, id) in [(1, 1), (1, 2), (2, 3)] {
            let note = ProducerSequence { id, ..note(0, 1, 1) };
            producers.stage(LogId(log), &note, None, Offset(1), at(2));
        }
        assert_eq!(count(&producers), 3);
        producers.rollback(GROUP);
        assert_eq!(count(&producers), 1);
        assert_eq!(producers.by_log.len(), 1);
    }

    /// A change of the states, on which groups of them and the order of publication act alike.
    #[derive(Clone, Copy, Debug)]
    enum Change {
        Batch { log: u64, id: i64, count: i32, is_transactional: bool },
        Marker { log: u64, id: i64 },
    }

    fn change() -> impl Strategy<Value = Change> {
        let (log, id) = (1..3_u64, 0..4_i64);
        let batch = (log.clone(), id.clone(), 1..4, any::<bool>());
        prop_oneof![
            3 => batch.prop_map(|(log, id, count, is_transactional)| {
                Change::Batch { log, id, count, is_transactional }
            }),
            1 => (log, id).prop_map(|(log, id)| Change::Marker { log, id }),
        ]
    }

    /// Stages changes from the stamp `ms` on, an hour apart; returns the one after the last.
    fn stage_all(producers: &mut ProducerStates, changes: &[Change], mut ms: u64) -> u64 {
        for change in changes {
            ms += 1_000_000;
            match *change {
                Change::Batch { log, id, count, is_transactional } => {
                    let log = LogId(log);
                    let producer = producers.by_log.get(&log).and_then(|of_log| of_log.get(&id));
                    let first = producer.and_then(|producer| producer.newest());
                    let first = first.map_or(0, |newest| next_sequence(newest.last));
                    let note = ProducerSequence { id, is_transactional, ..note(0, first, count) };
                    if producers.check(log, &note).is_ok() {
                        producers.stage(log, &note, None, Offset(ms), at(ms));
                    }
                }
                Change::Marker { log, id } => {
                    producers.stage_marker(LogId(log), id, 0, at(ms));
                }
            }
        }
        ms
    }

    proptest! {
        /// Several groups in flight, of which some are dropped: what is left has never seen them.
        #[test]
        fn groups_that_are_dropped_leave_no_trace(
            published in prop::collection::vec(change(), 0..12),
            groups in prop::collection::vec(prop::collection::vec(change(), 0..6), 1..4),
            kept in 0..4_usize,
            committed in 0..4_usize,
        ) {
            let kept = kept.min(groups.len());
            let committed = committed.min(kept);
            let (mut producers, mut twin) = (ProducerStates::default(), ProducerStates::default());
            let mut ms = 1000;
            for states in [&mut producers, &mut twin] {
                states.begin(GROUP);
                ms = stage_all(states, &published, 1000);
                states.commit(GROUP);
            }
            let state_before = producers.encode();
            let mut at_ends = vec![state_before];
            for (nth, group) in groups.iter().enumerate() {
                let number = GroupNumber(1 + nth as u64);
                producers.begin(number);
                let end = stage_all(&mut producers, group, ms);
                prop_assert_eq!(&producers.encode(), &at_ends[0], "what is staged is not stored");
                if nth < kept {
                    twin.begin(number);
                    stage_all(&mut twin, group, ms);
                    twin.commit(number);
                    at_ends.push(twin.encode());
                }
                ms = end;
            }
            for nth in 0..committed {
                producers.commit(GroupNumber(1 + nth as u64));
                prop_assert_eq!(&producers.encode(), &at_ends[nth + 1]);
            }
            producers.rollback(GroupNumber(1 + kept as u64));
            prop_assert_eq!(&producers.encode(), &at_ends[committed]);
            producers.commit(GroupNumber(kept as u64));
            prop_assert_eq!(producers.encode(), twin.encode());
            prop_assert_eq!(producers.open_count, twin.open_count);
            prop_assert_eq!(&producers.open_firsts, &twin.open_firsts);
            prop_assert_eq!(producers.budgets.allocated.used(), twin.budgets.allocated.used());
            // When a candidate was last noted is only known to a minute.
            let candidates = |states: &ProducerStates| {
                let all = states.candidates.values().flatten();
                all.map(|candidate| (candidate.log, candidate.id)).collect::<BTreeSet<_>>()
            };
            prop_assert_eq!(candidates(&producers), candidates(&twin));
        }
    }
}
