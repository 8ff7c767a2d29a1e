//! Property tests of one transactional id: several producers share it, lose answers, retry, are
//! fenced, and begin again; transactions time out, and the service restarts.

use std::collections::HashMap;
use std::time::Duration;

use admission::BudgetRegistry;
use engine::groups::{LastTransaction, StoredDecision, TransactionState};
use hlc::SysTime;
use proptest::prelude::*;

use crate::budgets::TransactionBudgets;
use crate::error::TransactionError;
use crate::options::TransactionOptions;
use crate::transactional_id::{EndPlan, EndVersion, InitPlan, ProducerIdAndEpoch, TransactionalId};

const NOW: SysTime = SysTime(7);

/// A producer, as far as it knows.
#[derive(Debug, Clone, Default)]
struct TestProducer {
    /// The id and the epoch that it goes on with; `None` until it is initialized.
    pair: Option<ProducerIdAndEpoch>,
    /// Its open transaction, as it knows it.
    open: Option<usize>,
    /// An end whose answer was lost: it is sent again.
    retry: Option<bool>,
}

/// A transaction that took a batch.
#[derive(Debug)]
struct TestTransaction {
    producer: usize,
    pair: ProducerIdAndEpoch,
    is_committed: Option<bool>,
}

/// The transactional id, with what its coordinator does, and what is known from outside.
struct TestId {
    id: TransactionalId,
    budgets: TransactionBudgets,
    producer_ids: i64,
    transactions: Vec<TestTransaction>,
    /// The open one.
    open: Option<usize>,
    /// The epoch of the last marker of each producer id.
    markers: HashMap<i64, i16>,
}

impl TestId {
    fn new(epoch: i16) -> TestId {
        let mut id = TransactionalId::new(0, 1000);
        id.state.epoch = epoch;
        id.is_restored = false;
        let (transactions, markers) = (Vec::new(), HashMap::new());
        let budgets =
            TransactionBudgets::new(&TransactionOptions::default(), &BudgetRegistry::default());
        TestId { id, budgets, producer_ids: 0, transactions, open: None, markers }
    }

    /// Nothing goes back: another producer id is a newer one, and an epoch of the same is no lower.
    fn go_on(&mut self, next: TransactionState) {
        let before = &self.id.state;
        let is_later = (next.producer, next.epoch) >= (before.producer, before.epoch);
        assert!(is_later, "{before:?} {next:?}");
        self.id.state = next;
    }

    fn decide(&mut self, decision: StoredDecision, next: TransactionState) {
        if let Some(open) = self.open.take() {
            let transaction = &mut self.transactions[open];
            assert_eq!(transaction.is_committed, None, "a transaction is decided once");
            let (id, epoch) = (transaction.pair.id, transaction.pair.epoch);
            assert!(decision.producer == id && decision.epoch >= epoch, "{decision:?}");
            transaction.is_committed = Some(decision.is_committed);
        }
        self.markers.insert(decision.producer, decision.epoch);
        self.id.ongoing = None;
        self.id.is_restored = false;
        self.go_on(next);
    }

    fn init(
        &mut self,
        expected: Option<ProducerIdAndEpoch>,
    ) -> Result<ProducerIdAndEpoch, TransactionError> {
        let mut spare = None;
        for _ in 0..4 {
            match self.id.plan_init(1000, expected, spare, NOW)? {
                InitPlan::Done(pair) => return Ok(pair),
                InitPlan::Removed => unreachable!("nobody removes it"),
                InitPlan::NeedsProducerId => {
                    self.producer_ids += 1;
                    spare = Some(self.producer_ids);
                }
                InitPlan::AbortFirst(decision, next) => self.decide(decision, next),
                InitPlan::Save(next) => {
                    self.go_on(next);
                    return Ok(self.id.current());
                }
            }
        }
        panic!("it does not end: {:?}", self.id.state)
    }

    /// A batch of a producer. The transaction begins with it, if none is open.
    fn append(
        &mut self,
        producer: usize,
        pair: ProducerIdAndEpoch,
        version: EndVersion,
    ) -> Result<usize, TransactionError> {
        self.id.check(pair)?;
        let last = self.markers.get(&pair.id);
        assert!(last.is_none_or(|last| pair.epoch >= *last), "it was fenced by a marker: {pair:?}");
        self.id.begin(NOW, Duration::ZERO, version, self.budgets.restored());
        let next = self.transactions.len();
        let open = *self.open.get_or_insert(next);
        if open == next {
            self.transactions.push(TestTransaction { producer, pair, is_committed: None });
        }
        let transaction = &self.transactions[open];
        assert_eq!((transaction.producer, transaction.pair), (producer, pair), "it is one's own");
        Ok(open)
    }

    fn end(
        &mut self,
        pair: ProducerIdAndEpoch,
        is_committed: bool,
        version: EndVersion,
    ) -> Result<ProducerIdAndEpoch, TransactionError> {
        let mut spare = None;
        for _ in 0..2 {
            match self.id.plan_end(pair, is_committed, version, spare, NOW)? {
                EndPlan::Done(pair) => return Ok(pair),
                EndPlan::NeedsProducerId => {
                    self.producer_ids += 1;
                    spare = Some(self.producer_ids);
                }
                EndPlan::Decide(decision, next) => {
                    self.decide(decision, next);
                    return Ok(self.id.current());
                }
                EndPlan::Raise(next) => {
                    self.go_on(next);
                    return Ok(self.id.current());
                }
            }
        }
        panic!("it does not end: {:?}", self.id.state)
    }

    /// The transaction has been open for too long.
    fn time_out(&mut self) {
        if self.id.ongoing.is_some() {
            let (decision, next) = self.id.plan_fence(NOW);
            self.decide(decision, next);
        }
    }

    /// Stored state stays, and so do batches.
    fn restart(&mut self, version: EndVersion) {
        let is_open = self.id.ongoing.is_some();
        self.id = TransactionalId::restored(self.id.state.clone());
        if is_open {
            self.id.begin(NOW, Duration::ZERO, version, self.budgets.restored());
        }
    }
}

/// The reaction of a producer to a refused request: it begins again if it was fenced.
fn refuse(producer: &mut TestProducer, error: &TransactionError) {
    match error {
        TransactionError::Fenced | TransactionError::InvalidProducerIdMapping => {
            *producer = TestProducer::default();
        }
        TransactionError::InvalidState => (producer.open, producer.retry) = (None, None),
        error => panic!("nothing is in flight here: {error:?}"),
    }
}

fn step(
    test: &mut TestId,
    producers: &mut [TestProducer],
    actor: usize,
    action: u8,
    is_lost: bool,
    version: EndVersion,
) {
    let producer = &mut producers[actor];
    let Some(pair) = producer.pair else {
        // An answer that is lost is asked for again, which is another producer to the server.
        let pair = test.init(None).expect("a new producer is always taken");
        producer.pair = (!is_lost).then_some(pair);
        return;
    };
    match (action, producer.open, producer.retry) {
        // KIP-360: it goes on after an error, and says with what.
        (0, None, None) => match test.init(Some(pair)) {
            Ok(next) if !is_lost => producer.pair = Some(next),
            Ok(_) => {}
            Err(error) => refuse(producer, &error),
        },
        (1, ..) => *producer = TestProducer::default(),
        (2, ..) => test.time_out(),
        (3, ..) => test.restart(version),
        (_, Some(open), retry) => {
            let is_committed = retry.unwrap_or(action.is_multiple_of(2));
            match test.end(pair, is_committed, version) {
                Ok(_) if is_lost => producer.retry = Some(is_committed),
                Ok(next) => {
                    let transaction = &test.transactions[open];
                    let marker = (transaction.producer, transaction.is_committed);
                    assert_eq!(marker, (actor, Some(is_committed)), "{transaction:?}");
                    *producer = TestProducer { pair: Some(next), ..TestProducer::default() };
                }
                Err(error) => {
                    // A transaction that was told to be committed would have been answered.
                    let is_known = test.transactions[open].is_committed == Some(true);
                    assert!(!is_known || retry == Some(true), "{error:?}");
                    refuse(producer, &error);
                }
            }
        }
        (_, None, _) => match test.append(actor, pair, version) {
            Ok(open) => producer.open = Some(open),
            Err(error) => refuse(producer, &error),
        },
    }
}

fn check(
    first_epoch: i16,
    is_v2: bool,
    events: Vec<(usize, u8, bool)>,
) -> Result<(), TestCaseError> {
    let version = if is_v2 { EndVersion::V2 } else { EndVersion::V1 };
    let mut test = TestId::new(first_epoch);
    let mut producers = vec![TestProducer::default(); 3];
    for (actor, action, is_lost) in events {
        step(&mut test, &mut producers, actor, action, is_lost, version);
        // One producer at most may go on with a pair.
        let current = test.id.current();
        let may_go_on = producers.iter().filter(|producer| producer.pair == Some(current));
        prop_assert!(may_go_on.count() <= 1, "{:?} {:?}", current, producers);
    }
    // A producer that begins now can commit, whatever happened.
    let pair = test.init(None).expect("a new producer is taken");
    let open = test.append(0, pair, version).expect("it may write");
    test.end(pair, true, version).expect("it may commit");
    prop_assert_eq!(test.transactions[open].is_committed, Some(true));
    prop_assert_eq!(test.id.state.last, LastTransaction::Committed);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_transaction_is_decided_once_and_by_its_own_producer(
        is_v2: bool,
        events in prop::collection::vec((0..3usize, 0..9u8, prop::bool::weighted(0.2)), 1..50),
    ) {
        check(-1, is_v2, events)?;
    }

    /// Epochs are used up soon.
    #[test]
    fn another_producer_id_takes_over_where_epochs_are_used_up(
        is_v2: bool,
        left in 1..6i16,
        events in prop::collection::vec((0..3usize, 0..9u8, prop::bool::weighted(0.2)), 1..50),
    ) {
        check(i16::MAX - left, is_v2, events)?;
    }
}
