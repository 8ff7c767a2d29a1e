//! One world: a node that lives and dies, clients, people who set its clock, all from one seed.
//!
//! Everything runs on one thread, in tokio's paused time: its timers are the queue of events. No thread
//! of the node's own takes part ([`storage::Options::driven_by_hand`]), so what comes when is decided by
//! the seed alone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use parking_lot::Mutex;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::actors::{self, Operator};
use crate::audit::{Audit, Occasion, Place};
use crate::catalog::Catalogs;
use crate::chance::Chance;
use crate::clock::SimClock;
use crate::disk::SimDisk;
use crate::facts::Fact;
use crate::invariants::{self, Invariant};
use crate::ledger::{Ledger, Step};
use crate::network::End;
use crate::node::{Node, Shape, begin_ids};
use crate::reached::Reached;
use crate::trace::Trace;

/// How long a world lasts, in its own time.
const LASTS: Duration = Duration::from_secs(20);

/// What a run found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) fingerprint: (u64, u64),
    pub(crate) reached: BTreeSet<Reached>,
    /// Why it failed, with the last events.
    pub(crate) failure: Option<String>,
}

pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) ledger: RefCell<Ledger>,
    pub(crate) node: RefCell<Option<Node>>,
    /// How often somebody has set the wall clock.
    pub(crate) clock_steps: Cell<u64>,
    /// How many lives of the node have ended.
    pub(crate) deaths: Cell<u64>,
    /// In how many of them the machine lost its power.
    pub(crate) power_losses: Cell<u64>,
    /// What lives leave beside the disk.
    pub(crate) catalogs: RefCell<Catalogs>,
    invariants: RefCell<Vec<Box<dyn Invariant>>>,
    trace: RefCell<Trace>,
    failure: RefCell<Option<String>>,
    reached: RefCell<BTreeSet<Reached>>,
    began: Instant,
    glimpses: Arc<Mutex<Vec<Fact>>>,
}

/// Runs the world of `seed`.
pub(crate) fn run(seed: u64, prints: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can be made");
    begin_ids(seed);
    let everything = async {
        let world = Rc::new(World::new(Shape::of(seed), prints));
        world.live(seed).await;
        let trace = world.trace.borrow();
        let failure = world.failure.borrow_mut().take();
        Outcome {
            fingerprint: trace.fingerprint(),
            reached: world.reached.borrow().clone(),
            failure: failure.map(|why| format!("{why}\n{}", trace.tail())),
        }
    };
    LocalSet::new().block_on(&runtime, everything)
}

impl World {
    fn new(shape: Shape, prints: bool) -> World {
        World {
            shape,
            clock: Arc::new(SimClock::new()),
            ledger: RefCell::default(),
            node: RefCell::new(None),
            clock_steps: Cell::new(0),
            deaths: Cell::new(0),
            power_losses: Cell::new(0),
            catalogs: RefCell::new(Catalogs::new()),
            invariants: RefCell::new(invariants::all()),
            trace: RefCell::new(Trace::new(prints)),
            failure: RefCell::new(None),
            reached: RefCell::default(),
            began: Instant::now(),
            glimpses: Arc::default(),
        }
    }

    async fn live(self: &Rc<Self>, seed: u64) {
        let mut chance = Chance::new(seed);
        let mut operator = Operator::new(self, chance.fork());
        operator.begin().await;
        let actors = actors::spawn_all(self, &mut chance);
        operator.run().await;
        for actor in actors {
            if let Err(error) = actor.await {
                self.fail("an actor", &error.to_string());
            }
        }
        operator.end().await;
    }

    /// Whether actors should end: time is up, or something has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.began.elapsed() >= LASTS || self.has_failed()
    }

    /// The engine of the node that lives.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.node.borrow().as_ref().map(|node| Arc::clone(&node.engine))
    }

    /// Whether the disk of the node that lives can be read.
    pub(crate) fn has_disk(&self) -> bool {
        self.node.borrow().as_ref().is_some_and(|node| !node.disk.memory.is_down())
    }

    /// Whether clients of the node that lives can expect answers.
    pub(crate) fn serves(&self) -> bool {
        let is_taken = self.node.borrow().as_ref().is_some_and(|node| !node.is_stopping());
        is_taken
            && self.has_disk()
            && self.engine().is_some_and(|engine| engine.stopped().is_none())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// A client's end of a new connection; `None` while nobody answers.
    pub(crate) fn connect(&self) -> Option<End> {
        self.node.borrow().as_ref().and_then(Node::connect)
    }

    pub(crate) fn note(&self, who: &str, what: &str) {
        self.trace.borrow_mut().note(self.began.elapsed(), who, what);
    }

    /// What should hold does not. The first failure is the one that is reported.
    pub(crate) fn fail(&self, who: &str, why: &str) {
        self.note(who, &format!("FAILED: {why}"));
        self.failure.borrow_mut().get_or_insert_with(|| format!("{who}: {why}"));
    }

    /// Something happened that not every run sees.
    pub(crate) fn reach(&self, what: Reached) {
        self.reached.borrow_mut().insert(what);
    }

    /// The step at which something is sent.
    pub(crate) fn step(&self) -> Step {
        self.ledger.borrow_mut().next_step()
    }

    /// The wall clock has come to what it shows now: pins may be over by that.
    pub(crate) fn let_time_pass(&self) {
        // By a clock that nobody should go by none is.
        if self.clock.is_doubtful() {
            return;
        }
        let now = self.clock.wall_ms();
        for pin in &mut self.ledger.borrow_mut().pins {
            pin.is_over |= pin.expires_ms <= now;
        }
    }

    /// Tells all invariants of a fact.
    pub(crate) fn tell(&self, fact: &Fact) {
        self.let_time_pass();
        self.tell_glimpses();
        self.tell_one(fact);
    }

    /// What was seen in the middle of groups, since this was last asked.
    fn tell_glimpses(&self) {
        let glimpses = std::mem::take(&mut *self.glimpses.lock());
        for glimpse in &glimpses {
            self.tell_one(glimpse);
        }
    }

    fn tell_one(&self, fact: &Fact) {
        let step = self.step();
        let ledger = self.ledger.borrow();
        self.reached.borrow_mut().extend(Reached::by(fact, &ledger));
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

    /// Audits the node that lives, and tells all invariants. Nothing if none does.
    pub(crate) fn audit(&self, occasion: Occasion) {
        let Some(engine) = self.engine() else { return };
        self.let_time_pass();
        self.tell_glimpses();
        let audit = {
            let ledger = self.ledger.borrow();
            let known = |place: &Place| {
                let seen = ledger.partitions.get(place);
                seen.and_then(|seen| seen.entries.values().next_back()).map_or(0, |last| last.end)
            };
            Audit::of(&engine, occasion, self.clock.shown_ms(), known)
        };
        match audit {
            Ok(mut audit) => {
                audit.remember(self.ledger.borrow().partitions.values().map(|seen| &seen.now));
                self.tell_audit(&audit);
            }
            Err(why) => self.fail("audit", &why),
        }
    }

    fn tell_audit(&self, audit: &Audit) {
        let mut broken = Vec::new();
        for invariant in self.invariants.borrow_mut().iter_mut() {
            if let Err(why) = invariant.on_audit(audit, &self.ledger.borrow()) {
                broken.push((invariant.name(), why));
            }
        }
        if audit.is_whole() {
            let entries: usize = audit.partitions.iter().map(|p| p.entries.len()).sum();
            let what = format!("{:?}: {entries} batches", audit.occasion);
            self.note("audit", &what);
        }
        self.ledger.borrow_mut().enter(audit);
        for (name, why) in broken {
            self.fail(name, &why);
        }
    }

    /// Has the disk look at the node in the middle of groups.
    pub(crate) fn peek_from(&self, disk: &SimDisk, node: &Node) {
        let (engine, glimpses) = (Arc::downgrade(&node.engine), Arc::clone(&self.glimpses));
        disk.set_peek(Some(Box::new(move || {
            let Some(engine) = engine.upgrade() else { return };
            let frontier = engine.frontier();
            let topics = engine.topics_ever();
            let ends = topics.iter().flat_map(|(topic, _)| {
                topic.partitions.iter().map(|p| ((topic.id, p.index), p.end().0))
            });
            glimpses.lock().push(Fact::Glimpse { frontier, ends: ends.collect() });
        })));
    }
}
