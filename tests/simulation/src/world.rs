//! One world: a node with its incarnations, clients, and operators that set its clock, all from one
//! seed.
//!
//! Everything runs on one thread, in tokio's paused time: its timers are the queue of events. No
//! thread of the node takes part ([`storage::Options::manual_stepping`]), so the seed alone decides
//! the order of events.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::Engine;
use parking_lot::Mutex;
use testkit::rng::SeededRng;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::SimReport;
use crate::audit::{AuditOccasion, NodeAudit, PartitionKey};
use crate::catalog::CatalogDirectories;
use crate::clock::SimClock;
use crate::coverage::CoveragePoint;
use crate::disk::SimDisk;
use crate::facts::SimFact;
use crate::invariants::{self, Invariant};
use crate::ledger::{LedgerStep, SimLedger};
use crate::network::SimSocket;
use crate::node::{SimNode, WorldShape};
use crate::trace::SimTrace;

/// The duration of a world, in its own time.
const WORLD_DURATION: Duration = Duration::from_secs(20);

pub(crate) struct SimWorld {
    pub(crate) shape: WorldShape,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) ledger: RefCell<SimLedger>,
    pub(crate) node: RefCell<Option<SimNode>>,
    /// The number of times that the wall clock was set.
    pub(crate) clock_steps: Cell<u64>,
    /// The number of incarnations of the node that have ended.
    pub(crate) incarnation: Cell<u64>,
    /// The number of them in which the machine lost its power.
    pub(crate) power_losses: Cell<u64>,
    /// The catalogs that incarnations leave besides the disk.
    pub(crate) catalogs: RefCell<CatalogDirectories>,
    invariants: RefCell<Vec<Box<dyn Invariant>>>,
    trace: RefCell<SimTrace>,
    failure: RefCell<Option<String>>,
    coverage: RefCell<BTreeSet<CoveragePoint>>,
    started: Instant,
    sync_observations: Arc<Mutex<Vec<SimFact>>>,
    /// Notified when the work of a node's threads panics: nothing would go on then.
    pub(crate) node_panicked: Arc<Notify>,
}

impl SimWorld {
    pub(crate) fn new(shape: WorldShape, prints: bool) -> SimWorld {
        SimWorld {
            shape,
            clock: Arc::new(SimClock::new()),
            ledger: RefCell::default(),
            node: RefCell::new(None),
            clock_steps: Cell::new(0),
            incarnation: Cell::new(0),
            power_losses: Cell::new(0),
            catalogs: RefCell::new(CatalogDirectories::new()),
            invariants: RefCell::new(invariants::all()),
            trace: RefCell::new(SimTrace::new(prints)),
            failure: RefCell::new(None),
            coverage: RefCell::default(),
            started: Instant::now(),
            sync_observations: Arc::default(),
            node_panicked: Arc::default(),
        }
    }

    /// The world has ended. An error is what did not hold, with the last events.
    pub(crate) fn report_end(&self) -> Result<SimReport, String> {
        let trace = self.trace.borrow();
        if let Some(why) = self.failure.borrow_mut().take() {
            return Err(format!("{why}\n{}", trace.tail()));
        }
        Ok(SimReport { fingerprint: trace.fingerprint(), coverage: self.coverage.borrow().clone() })
    }

    /// True if actors should end: time is up, or something has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.started.elapsed() >= WORLD_DURATION || self.has_failed()
    }

    /// The parts of the world that a node has besides its disk: the clock, and whom to tell of a
    /// panic.
    pub(crate) fn outside(&self) -> (&Arc<SimClock>, &Arc<Notify>) {
        (&self.clock, &self.node_panicked)
    }

    /// The engine of the running node.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.node.borrow().as_ref().map(|node| Arc::clone(&node.engine))
    }

    /// True if the disk of the running node can be read.
    pub(crate) fn has_disk(&self) -> bool {
        self.node.borrow().as_ref().is_some_and(|node| !node.disk.memory.has_crashed())
    }

    /// True if clients of the running node can expect responses.
    pub(crate) fn is_serving(&self) -> bool {
        let is_taken = self.node.borrow().as_ref().is_some_and(|node| !node.is_stopping());
        is_taken
            && self.has_disk()
            && self.engine().is_some_and(|engine| engine.stop_reason().is_none())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// A client's end of a new connection; `None` while nothing serves.
    ///
    /// Each client brings the randomness of its own connections: in which order clients connect
    /// again after the node has exited is not known.
    pub(crate) fn connect(&self, rng: &mut SeededRng) -> Option<SimSocket> {
        self.node.borrow().as_ref()?.connect(rng)
    }

    /// The same for a client of ZooKeeper.
    pub(crate) fn connect_zookeeper(&self, rng: &mut SeededRng) -> Option<SimSocket> {
        self.node.borrow().as_ref()?.connect_zookeeper(rng)
    }

    pub(crate) fn note(&self, who: &str, what: &str) {
        self.trace.borrow_mut().note(self.started.elapsed(), who, what);
    }

    /// Records a violation. The first failure is the one that is reported.
    pub(crate) fn fail(&self, who: &str, why: &str) {
        self.note(who, &format!("FAILED: {why}"));
        self.failure.borrow_mut().get_or_insert_with(|| format!("{who}: {why}"));
    }

    /// Records that something happened that not every run sees.
    pub(crate) fn cover(&self, what: CoveragePoint) {
        self.coverage.borrow_mut().insert(what);
    }

    /// The step at which something is sent.
    pub(crate) fn next_step(&self) -> LedgerStep {
        self.ledger.borrow_mut().next_step()
    }

    /// Marks the pins that have expired by the wall clock's present reading.
    pub(crate) fn expire_pins(&self) {
        // No pin expires by a clock whose readings do not count.
        if self.clock.is_doubtful() {
            return;
        }
        let now = self.clock.wall_ms();
        for pin in &mut self.ledger.borrow_mut().pins {
            pin.is_over |= pin.expires_ms <= now;
        }
    }

    /// Passes a fact to all invariants.
    pub(crate) fn report(&self, fact: &SimFact) {
        self.expire_pins();
        self.report_sync_observations();
        self.report_one(fact);
    }

    /// Reports the observations in the middle of groups since the last call.
    fn report_sync_observations(&self) {
        let glimpses = std::mem::take(&mut *self.sync_observations.lock());
        for glimpse in &glimpses {
            self.report_one(glimpse);
        }
    }

    fn report_one(&self, fact: &SimFact) {
        let step = self.next_step();
        let ledger = self.ledger.borrow();
        self.coverage.borrow_mut().extend(CoveragePoint::of_fact(fact, &ledger));
        let mut broken = Vec::new();
        for invariant in self.invariants.borrow_mut().iter_mut() {
            if let Err(why) = invariant.on_fact(fact, step, &ledger) {
                broken.push((invariant.name(), why));
            }
        }
        drop(ledger);
        for (name, why) in broken {
            self.fail(name, &why);
        }
    }

    /// Audits the running node, and passes the audit to all invariants. Does nothing if none runs.
    pub(crate) fn audit(&self, occasion: AuditOccasion) {
        let Some(engine) = self.engine() else { return };
        if engine.history_stats().merged.load(Ordering::Relaxed) > 0 {
            self.cover(CoveragePoint::SegmentsMerged);
        }
        self.expire_pins();
        self.report_sync_observations();
        let audit = {
            let ledger = self.ledger.borrow();
            let known = |place: &PartitionKey| {
                let seen = ledger.partitions.get(place);
                seen.and_then(|seen| seen.entries.values().next_back()).map_or(0, |last| last.end)
            };
            NodeAudit::read(&engine, occasion, self.clock.shown_ms(), known)
        };
        match audit {
            Ok(mut audit) => {
                audit.add_removed_partitions(
                    self.ledger.borrow().partitions.values().map(|seen| &seen.now),
                );
                self.report_audit(&audit);
            }
            Err(why) => self.fail("audit", &why),
        }
    }

    fn report_audit(&self, audit: &NodeAudit) {
        let mut broken = Vec::new();
        for invariant in self.invariants.borrow_mut().iter_mut() {
            if let Err(why) = invariant.on_audit(audit, &self.ledger.borrow()) {
                broken.push((invariant.name(), why));
            }
        }
        if audit.has_all_entries() {
            let entries: usize = audit.partitions.iter().map(|p| p.entries.len()).sum();
            let what = format!("{:?}: {entries} batches", audit.occasion);
            self.note("audit", &what);
        }
        self.ledger.borrow_mut().record_audit(audit);
        for (name, why) in broken {
            self.fail(name, &why);
        }
    }

    /// Makes the disk observe the node in the middle of groups.
    pub(crate) fn install_sync_hook(&self, disk: &SimDisk, node: &SimNode) {
        let (engine, glimpses) =
            (Arc::downgrade(&node.engine), Arc::clone(&self.sync_observations));
        disk.set_sync_hook(Some(Box::new(move || {
            let Some(engine) = engine.upgrade() else { return };
            let frontier = engine.frontier();
            let topics = engine.topics().including_deleted();
            let ends = topics.iter().flat_map(|(topic, _)| {
                topic.partitions.iter().map(|p| ((topic.id, p.index), p.end().0))
            });
            glimpses.lock().push(SimFact::SyncObservation { frontier, ends: ends.collect() });
        })));
    }
}
