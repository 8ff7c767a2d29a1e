//! The operator of the node: starts it, runs its maintenance, sets its clock, breaks its disk, and
//! ends its incarnations.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, EngineError};
use hlc::{ClockFence, Hlc};
use kafka_protocol::messages::DeleteRecordsRequest;
use storage::catalog::CatalogFaults;
use storage::disk::{DiskFault, MemoryDisk};
use testkit::rng::SeededRng;
use tokio::time::Instant;

use super::producer::SimProducer;
use super::requests::delete_records_request;
use super::small_file_writer::check_many;
use super::{COMPACTED_TOPIC, STANDING_TOPICS, TRANSIENT_TOPICS, pause};
use crate::audit::AuditOccasion;
use crate::corruption::{BaselineAnswers, corruption_queries, flip_bits};
use crate::coverage::CoveragePoint;
use crate::disk::SimDisk;
use crate::facts::{NodeExitKind, SimFact};
use crate::node::SimNode;
use crate::topic_settings::DELETE_RETENTION_MS;
use crate::wire::SimClient;
use crate::world::SimWorld;

/// The code of a change that a pin forbids.
const POLICY_VIOLATION: i16 = 44;
const APPLY_RETENTION: &str = "apply retention";
const ADVANCE_OFFSETS_LOG_START: &str = "advance the offsets log start";
/// From this number on, a history has many segments.
const MANY_SEGMENTS: usize = 100;
const WHO: &str = "admin";
/// The longest wait for a fault that was armed.
const FAULT_WAIT_MAX: Duration = Duration::from_secs(2);
/// The deviation of a maintained clock from the right time.
const SLEW_MS: i64 = 100;
/// The default of `clock.skew-max`.
const SKEW_MAX_MS: i64 = 500;
/// The distance ahead of the wall clock at which the bound is persisted.
const BOUND_AHEAD_MS: i64 = 1000;
/// The deviations of a clock that is far off.
const WRONG_CLOCK_MS: [i64; 4] = [2 * HOUR_MS, 20 * HOUR_MS, 8 * 24 * HOUR_MS, 400 * 24 * HOUR_MS];
const HOUR_MS: i64 = 60 * 60 * 1000;
/// The latest time at which that happens.
const WRONG_CLOCK_AFTER_MS_MAX: u64 = 17_000;
/// The number of times that a write is tried.
const WRITE_TRIES: u32 = 5;
/// The time limit for requests to end when the node stops cleanly.
const SHUTDOWN_TIME: Duration = Duration::from_millis(300);

pub(crate) struct SimAdmin {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    /// The most by which a wrong clock was ever confirmed ahead.
    confirmed_ahead_ms: i64,
    /// The time at which the node is to start under a clock that is far off, if at all.
    wrong_clock_from: Option<Instant>,
}

impl SimAdmin {
    pub(crate) fn new(world: &Rc<SimWorld>, mut rng: SeededRng) -> SimAdmin {
        let client = SimClient::new(world, rng.fork());
        let errs_after = Duration::from_millis(rng.between(4000, WRONG_CLOCK_AFTER_MS_MAX));
        let errs_from = rng.one_in(3).then(|| Instant::now() + errs_after);
        let world = Rc::clone(world);
        SimAdmin { world, client, rng, confirmed_ahead_ms: SLEW_MS, wrong_clock_from: errs_from }
    }

    /// Starts the first incarnation, and creates the standing topics.
    pub(crate) async fn begin(&mut self) {
        self.start(MemoryDisk::new(), false).await;
        let Some(engine) = self.world.engine() else { return };
        for (nth, (name, partitions, settings)) in STANDING_TOPICS.iter().enumerate() {
            let setting = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let settings: BTreeMap<String, String> = settings.iter().map(setting).collect();
            let id = [nth as u8 + 1; 16];
            if let Err(error) = engine.topics().create(name, *partitions, settings, id, false).await
            {
                self.world.fail(WHO, &format!("create {name}: {error}"));
            }
        }
    }

    pub(crate) async fn run(&mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 20, 250).await;
            if self.wrong_clock_from.take_if(|from| *from <= Instant::now()).is_some() {
                self.start_under_wrong_clock().await;
            }
            match self.rng.below(40) {
                0..16 => self.run_maintenance().await,
                16..20 => self.delete_records().await,
                20..24 => self.slew_clock(),
                24 => self.set_back_clock().await,
                25 => self.set_forward_clock().await,
                26..29 => self.world.audit(AuditOccasion::AllEntries),
                29 => self.fill_disk().await,
                30 => self.fail_sync().await,
                31 => self.restart(NodeExitKind::Clean).await,
                32 => self.restart(NodeExitKind::Killed).await,
                33..35 => self.lose_power().await,
                35..37 => self.exhaust_descriptors().await,
                37..39 => self.fail_catalog().await,
                39 => self.fill_catalog_disk().await,
                _ => {}
            }
            let stopped = self.world.engine().and_then(|engine| engine.stop_reason());
            if let Some(why) = stopped {
                self.world.cover(CoveragePoint::StoreStopped);
                self.world.note(WHO, &format!("the store has stopped: {why}"));
                let death = *self.rng.pick(&[NodeExitKind::Killed, NodeExitKind::PowerLoss]);
                self.restart(death).await;
            }
        }
    }

    /// Ends the world: one more incarnation, in which everything is still there.
    pub(crate) async fn end(&mut self) {
        self.disk().remove_capacity_limit();
        self.world.audit(AuditOccasion::AllEntries);
        self.compact_twice().await;
        self.check_small_files();
        self.restart(NodeExitKind::Clean).await;
        let sound = match self.world.engine() {
            Some(engine) if !self.world.has_failed() => {
                let questions =
                    corruption_queries(&engine, &self.world.ledger.borrow(), &mut self.rng);
                Some(BaselineAnswers::collect(&engine, questions).await)
            }
            _ => None,
        };
        let disk = self.disk();
        self.shut_down().await;
        if let Some(sound) = sound {
            self.start_corrupted(disk.after_kill(), &sound).await;
        }
    }

    /// Starts on a disk with flipped bits, and repeats the queries that the intact node answered.
    async fn start_corrupted(&mut self, memory: MemoryDisk, sound: &BaselineAnswers) {
        let flipped = flip_bits(&memory, &mut self.rng);
        self.world.note(WHO, &format!("flips {}", flipped.join(", ")));
        let Some(catalog) = self.next_catalog() else { return };
        let (disk, shape) = (SimDisk::new(memory), self.world.shape);
        let (clock, panicked) = self.world.outside();
        let node = match SimNode::start(disk, shape, catalog, clock, panicked, self.rng.fork()) {
            Ok(node) => node,
            Err(why) => {
                self.world.cover(CoveragePoint::CorruptionRefused);
                return self.world.note(WHO, &format!("the node does not start: {why}"));
            }
        };
        match sound.compare(&node.engine).await {
            Ok((same, refused)) => {
                self.world.note(WHO, &format!("{same} answers are the same, {refused} are errors"));
                let reached = if refused > 0 {
                    CoveragePoint::CorruptionFound
                } else {
                    CoveragePoint::CorruptionHarmless
                };
                self.world.cover(reached);
            }
            Err(why) => self.world.fail("corruption", &why),
        }
        let ended = node.abort().await;
        self.fail_on_error(ended);
    }

    fn next_catalog(&mut self) -> Option<PathBuf> {
        match self.world.catalogs.borrow_mut().next(&mut self.rng) {
            Ok((catalog, left)) => {
                self.world.cover(CoveragePoint::Catalog(left));
                Some(catalog)
            }
            Err(error) => {
                self.world.fail(WHO, &format!("copy the catalog: {error}"));
                None
            }
        }
    }

    fn take_node(&self) -> Option<SimNode> {
        self.world.node.borrow_mut().take()
    }

    fn disk(&self) -> MemoryDisk {
        let node = self.world.node.borrow();
        node.as_ref().map_or_else(MemoryDisk::new, |node| node.disk.memory.clone())
    }

    fn fail_on_error(&self, done: Result<(), String>) {
        if let Err(why) = done {
            self.world.fail(WHO, &why);
        }
    }

    // ---- Incarnations ----

    /// Ends this incarnation, and begins the next after a while.
    async fn restart(&mut self, death: NodeExitKind) {
        self.restart_with_clock_step(death, 0).await;
    }

    /// The same, and the clock is set in between.
    async fn restart_with_clock_step(&mut self, death: NodeExitKind, by_ms: i64) {
        self.world.note(WHO, &format!("the node exits: {death:?}"));
        let disk = self.disk();
        if death == NodeExitKind::Clean {
            self.shut_down().await;
            self.set_clock_by(by_ms);
            return self.start(disk.after_kill(), false).await;
        }
        self.world.audit(AuditOccasion::NodeExit);
        let left = match death {
            NodeExitKind::PowerLoss => {
                disk.after_crash(|count| self.rng.below(count as u64) as usize)
            }
            _ => disk.after_kill(),
        };
        // A part of the node that still runs writes no more.
        disk.arm(DiskFault::CrashAt(disk.operations()));
        if let Some(node) = self.take_node() {
            let ended = node.abort().await;
            self.fail_on_error(ended);
        }
        self.record_exit(death);
        pause(&mut self.rng, 0, 1200).await;
        self.set_clock_by(by_ms);
        self.start(left, death == NodeExitKind::PowerLoss).await;
    }

    async fn shut_down(&self) {
        if let Some(node) = self.world.node.borrow().as_ref() {
            node.stop();
        }
        tokio::time::sleep(SHUTDOWN_TIME).await;
        self.world.audit(AuditOccasion::NodeExit);
        if let Some(node) = self.take_node() {
            let ended = node.shut_down().await;
            self.fail_on_error(ended);
        }
        self.record_exit(NodeExitKind::Clean);
    }

    fn record_exit(&self, death: NodeExitKind) {
        self.world.incarnation.set(self.world.incarnation.get() + 1);
        if death == NodeExitKind::PowerLoss {
            self.world.power_losses.set(self.world.power_losses.get() + 1);
        }
        self.world.report(&SimFact::NodeExited(death));
    }

    /// The machine stops at one of the next operations on its disk. Everything else goes on for a
    /// while.
    async fn lose_power(&mut self) {
        let disk = self.disk();
        disk.arm(DiskFault::CrashAt(disk.operations() + self.rng.below(30)));
        let down = || disk.has_crashed();
        wait_until(down, FAULT_WAIT_MAX).await;
        pause(&mut self.rng, 0, 12).await;
        self.restart(NodeExitKind::PowerLoss).await;
    }

    /// Begins an incarnation, through further crashes if need be.
    async fn start(&mut self, memory: MemoryDisk, lost_power: bool) {
        let (mut memory, mut lost_power) = (memory, lost_power);
        if self.rng.one_in(4) {
            memory.arm(DiskFault::CrashAt(self.rng.below(25)));
        }
        let node = loop {
            let disk = SimDisk::new(memory.clone());
            let Some(catalog) = self.next_catalog() else { return };
            let shape = self.world.shape;
            let (clock, panicked) = self.world.outside();
            match SimNode::start(disk, shape, catalog, clock, panicked, self.rng.fork()) {
                Ok(node) => break node,
                Err(_) if memory.has_crashed() => {
                    self.world.note(WHO, "the machine stops while the node starts");
                    self.world.cover(CoveragePoint::PowerLossAtStart);
                    self.record_exit(NodeExitKind::PowerLoss);
                    memory = memory.after_crash(|count| self.rng.below(count as u64) as usize);
                    lost_power = true;
                }
                Err(why) => {
                    return self.world.fail(WHO, &format!("the node does not start: {why}"));
                }
            }
        };
        memory.arm(DiskFault::CrashAt(u64::MAX));
        self.world.install_sync_hook(&node.disk, &node);
        *self.world.node.borrow_mut() = Some(node);
        self.world.note(WHO, "the node has started");
        self.world.audit(AuditOccasion::Start { lost_power });
    }

    // ---- Its disk ----

    async fn fill_disk(&mut self) {
        let disk = self.disk();
        disk.arm(DiskFault::FullAt(disk.used_bytes() + self.rng.below(3000)));
        self.world.note(WHO, "the disk is full");
        pause(&mut self.rng, 200, 1500).await;
        disk.remove_capacity_limit();
        self.world.note(WHO, "the disk has room");
    }

    /// The process has no descriptor left for a while: writes may be refused, and the store goes
    /// on.
    async fn exhaust_descriptors(&mut self) {
        let Some(disk) = self.world.node.borrow().as_ref().map(|node| node.disk.clone()) else {
            return;
        };
        let stops_by_itself = self.has_stopped() || disk.memory.has_pending_sync_failure();
        disk.exhaust_descriptors(true);
        self.world.note(WHO, "no descriptor is left");
        pause(&mut self.rng, 100, 700).await;
        self.run_maintenance().await;
        pause(&mut self.rng, 100, 700).await;
        disk.exhaust_descriptors(false);
        let refused = disk.descriptors_refused();
        self.world.note(WHO, &format!("there are descriptors again; {refused} were refused"));
        if refused > 0 {
            self.world.cover(CoveragePoint::DescriptorsExhausted);
        }
        if !stops_by_itself && self.has_stopped() {
            self.world.fail(WHO, "the store has stopped for want of a descriptor");
        }
    }

    fn has_stopped(&self) -> bool {
        self.world.engine().is_some_and(|engine| engine.stop_reason().is_some())
    }

    async fn fail_sync(&mut self) {
        let disk = self.disk();
        disk.arm(DiskFault::SyncFails(self.rng.below(6)));
        self.world.note(WHO, "a sync will fail");
        wait_until(|| !disk.has_pending_sync_failure(), FAULT_WAIT_MAX).await;
        pause(&mut self.rng, 0, 50).await;
    }

    /// One of the next steps of the catalog fails. It is rebuilt.
    async fn fail_catalog(&mut self) {
        let after = self.rng.below(12);
        self.world.note(WHO, &format!("the catalog will fail after {after} writes"));
        self.inject_catalog_fault(
            |faults| faults.fail_write_after(after),
            CoveragePoint::CatalogRebuilt,
        )
        .await;
    }

    /// The catalog's disk is full for a while: one in memory replaces it.
    async fn fill_catalog_disk(&mut self) {
        self.world.note(WHO, "the catalog's disk is full");
        let in_memory = CoveragePoint::CatalogInMemory;
        self.inject_catalog_fault(|faults| faults.set_full(true), in_memory).await;
        pause(&mut self.rng, 50, 500).await;
        if let Some(node) = self.world.node.borrow().as_ref() {
            node.catalog_faults().set_full(false);
        }
        self.world.note(WHO, "the catalog's disk has room");
    }

    async fn inject_catalog_fault(
        &self,
        break_it: impl FnOnce(&CatalogFaults),
        reached: CoveragePoint,
    ) {
        let Some(engine) = self.world.engine() else { return };
        if let Some(node) = self.world.node.borrow().as_ref() {
            break_it(node.catalog_faults());
        }
        let (before, _) = engine.catalog_rebuilds();
        wait_until(|| engine.catalog_rebuilds().0 > before, FAULT_WAIT_MAX).await;
        if engine.catalog_rebuilds().0 > before {
            self.world.cover(reached);
        }
    }

    // ---- Its clock ----

    fn set_clock(&self, by_ms: i64) {
        self.world.note(WHO, &format!("sets the clock by {by_ms} ms"));
        self.world.expire_pins();
        self.world.clock.step(by_ms);
        self.world.expire_pins();
        self.world.clock_steps.set(self.world.clock_steps.get() + 1);
    }

    fn set_clock_by(&self, by_ms: i64) {
        if by_ms != 0 {
            self.set_clock(by_ms);
        }
    }

    /// As NTP does: within the accepted skew, and never far from the right time.
    fn slew_clock(&mut self) {
        let to = self.rng.below(2 * SLEW_MS as u64 + 1) as i64 - SLEW_MS;
        self.set_clock(to - self.world.clock.offset_ms());
    }

    async fn set_back_clock(&mut self) {
        let by = self.rng.between(600, 3000) as i64;
        self.set_clock(-by);
        pause(&mut self.rng, 50, 1500).await;
        self.maybe_restart().await;
        // Back to the right time: that is a jump ahead for incarnations that ran under the wrong
        // one.
        let is_trusted = self.rng.one_in(2);
        self.set_clock(-self.world.clock.offset_ms());
        self.confirm_clock(is_trusted).await;
    }

    async fn set_forward_clock(&mut self) {
        let by = self.rng.between(2000, 6000) as i64;
        // An incarnation that began behind knows the right time only by the previous incarnation's
        // bound, which was ahead.
        let fence = self.world.engine().and_then(|engine| engine.timekeeper().fence());
        let is_behind = matches!(fence, Some(ClockFence::Behind { .. }));
        let known_to_ms = if is_behind { BOUND_AHEAD_MS } else { 0 };
        self.set_clock(by);
        let believable_ms = self.confirmed_ahead_ms + known_to_ms + SKEW_MAX_MS + SLEW_MS;
        if self.world.clock.offset_ms() > believable_ms {
            self.world.report(&SimFact::ClockJumped(true));
        }
        pause(&mut self.rng, 50, 1500).await;
        self.world.report(&SimFact::ClockJumped(false));
        if self.rng.one_in(4) {
            // The wrong clock is confirmed, as an operator's mistake.
            self.confirmed_ahead_ms = self.confirmed_ahead_ms.max(self.world.clock.offset_ms());
            self.confirm_clock(true).await;
        } else {
            self.set_clock(-by);
        }
    }

    /// Confirms the clock's jump, now or a little later.
    async fn confirm_clock(&mut self, at_once: bool) {
        if !at_once {
            pause(&mut self.rng, 50, 800).await;
        }
        if let Some(node) = self.world.node.borrow().as_ref()
            && let Some(fence) = node.confirm_clock()
        {
            self.world.fail(WHO, &format!("the clock was confirmed, and is fenced: {fence}"));
        }
        let engine = self.world.engine();
        if engine.is_some_and(|engine| engine.timekeeper().precision().ahead_ms > 0) {
            self.world.report(&SimFact::StampsAhead);
        }
        self.world.note(WHO, "the clock is confirmed");
    }

    async fn maybe_restart(&mut self) {
        if self.rng.one_in(3) {
            let death = *self.rng.pick(&[NodeExitKind::Killed, NodeExitKind::PowerLoss]);
            self.restart(death).await;
        }
    }

    // ---- A clock that is wrong when the node starts ----

    async fn start_under_wrong_clock(&mut self) {
        let by_ms = *self.rng.pick(&WRONG_CLOCK_MS);
        self.world.report(&SimFact::StampsAhead);
        // The clock is right, except for the deviation.
        self.set_clock(-self.world.clock.offset_ms());
        self.confirm_clock(true).await;
        self.wait_for_bound().await;
        if self.rng.one_in(3) {
            self.start_behind(by_ms).await;
        } else {
            self.start_ahead(by_ms).await;
        }
    }

    /// Starts far ahead: nothing is removed. Once the clock is right again and confirmed, writes
    /// are accepted.
    async fn start_ahead(&mut self, by_ms: i64) {
        self.world.clock.set_doubtful(true);
        self.world.report(&SimFact::ClockUnconfirmed(true));
        self.restart_randomly(by_ms).await;
        self.expect_unconfirmed().await;
        if self.rng.one_in(2) {
            // A restart ends no doubt.
            self.restart_randomly(0).await;
            self.expect_unconfirmed().await;
        }
        if self.rng.one_in(2) {
            self.set_clock(-by_ms);
        } else {
            self.restart_randomly(-by_ms).await;
        }
        self.run_all_maintenance().await;
        self.world.report(&SimFact::ClockUnconfirmed(false));
        self.world.clock.set_doubtful(false);
        self.confirm_and_write().await;
        if self.rng.one_in(2) {
            // A confirmed clock stays confirmed.
            self.restart_randomly(0).await;
            self.expect_confirmed();
        }
    }

    /// Starts far behind, and the clock is confirmed; later it is right again.
    async fn start_behind(&mut self, by_ms: i64) {
        self.restart_randomly(-by_ms).await;
        let fence = self.world.engine().and_then(|engine| engine.timekeeper().fence());
        if fence.is_none() && self.world.engine().is_some() {
            self.world.fail(WHO, "a clock that is far behind at the start is not fenced");
        }
        self.confirm_and_write().await;
        self.run_all_maintenance().await;
        if self.rng.one_in(2) {
            self.set_clock(by_ms);
        } else {
            self.restart_randomly(by_ms).await;
        }
        self.confirm_and_write().await;
    }

    async fn restart_randomly(&mut self, by_ms: i64) {
        let death =
            *self.rng.pick(&[NodeExitKind::Clean, NodeExitKind::Killed, NodeExitKind::PowerLoss]);
        self.restart_with_clock_step(death, by_ms).await;
    }

    async fn expect_unconfirmed(&mut self) {
        let Some(engine) = self.world.engine() else { return };
        if engine.timekeeper().doubt().is_none() {
            self.world.fail(WHO, "a clock that is far ahead at the start is trusted");
        }
        pause(&mut self.rng, 50, 500).await;
        self.run_all_maintenance().await;
    }

    fn expect_confirmed(&self) {
        let Some(engine) = self.world.engine() else { return };
        if engine.retention_time().is_none() {
            self.world.fail(WHO, "the next incarnation does not know that the clock was confirmed");
        }
    }

    /// Runs all maintenance that removes something, at once.
    async fn run_all_maintenance(&self) {
        let Some(engine) = self.world.engine() else { return };
        let sealed = [
            engine.maintenance().roll_segment().await,
            engine.maintenance().index_and_sort().await,
        ];
        let gone = [
            engine.maintenance().apply_retention().await,
            engine.maintenance().compact_due().await,
        ];
        let groups = (self.expire_offsets().await, engine.groups().apply_retention().await);
        let znodes = engine.znodes().apply_retention().await;
        let done = (sealed, gone, groups, znodes);
        self.world.note(WHO, &format!("runs all maintenance: {done:?}"));
        self.world.audit(AuditOccasion::AllEntries);
    }

    /// Confirms the clock: from then on writes are accepted.
    async fn confirm_and_write(&mut self) {
        self.confirm_clock(true).await;
        let mut producer = SimProducer::new(&self.world, 1, self.rng.fork());
        for _ in 0..WRITE_TRIES {
            if producer.deliver(&[("plain", 0)]).await {
                self.wait_for_bound().await;
                break;
            }
            pause(&mut self.rng, 20, 200).await;
        }
        let Some(engine) = self.world.engine() else { return };
        if let Some(fence) = engine.timekeeper().fence() {
            self.world
                .fail(WHO, &format!("the clock was confirmed, and nothing is taken: {fence}"));
        }
        if engine.timekeeper().precision().ahead_ms > HOUR_MS as u64 {
            self.world.cover(CoveragePoint::StampsAhead);
        }
    }

    /// Waits until the confirmed time is on stable storage.
    async fn wait_for_bound(&self) {
        let is_written =
            || self.world.engine().is_none_or(|engine| !engine.timekeeper().is_renewing());
        wait_until(is_written, FAULT_WAIT_MAX).await;
    }

    // ---- Its maintenance ----

    async fn run_maintenance(&mut self) {
        let Some(engine) = self.world.engine() else { return };
        // So that the model has seen what is removed.
        self.world.audit(AuditOccasion::NewEntries);
        let (what, done) = match self.rng.below(12) {
            0..2 => ("roll segment", engine.maintenance().roll_segment().await.map(|()| 0)),
            2 => ("maintenance", engine.maintenance().index_and_sort().await.map(|()| 0)),
            3 => (APPLY_RETENTION, engine.maintenance().apply_retention().await),
            4..7 => ("compact", engine.maintenance().compact_due().await),
            7 => (
                ADVANCE_OFFSETS_LOG_START,
                engine.groups().apply_retention().await.map(usize::from),
            ),
            8..10 => ("expire offsets", self.expire_offsets().await),
            10 => (
                "shorten the history of znodes",
                engine.znodes().apply_retention().await.map(usize::from),
            ),
            _ => ("reclaim", engine.maintenance().reclaim().await.map(|_| 0)),
        };
        if matches!((what, &done), (ADVANCE_OFFSETS_LOG_START, Ok(1..))) {
            self.world.cover(CoveragePoint::OffsetsLogStartAdvanced);
        }
        self.world.note(WHO, &format!("{what}: {:?}", done.ok()));
        if matches!(what, APPLY_RETENTION | ADVANCE_OFFSETS_LOG_START) {
            self.remove_deleted_topics(&engine).await;
        }
    }

    /// Expires offsets that were committed long ago.
    async fn expire_offsets(&self) -> Result<usize, EngineError> {
        let kafka = self.world.node.borrow().as_ref().map(|node| Arc::clone(&node.kafka));
        match kafka {
            Some(kafka) => kafka.expire_offsets().await,
            None => Ok(0),
        }
    }

    /// Makes the node forget deleted topics of which nothing is kept.
    async fn remove_deleted_topics(&self, engine: &Arc<Engine>) {
        // So that the model has seen that nothing is kept.
        self.world.audit(AuditOccasion::NewEntries);
        let done = (
            engine.maintenance().remove_deleted_topics().await,
            engine.maintenance().remove_logs().await,
        );
        if matches!(done.0, Ok(1..)) {
            self.world.cover(CoveragePoint::TopicsRemoved);
        }
        self.world.note(WHO, &format!("remove deleted topics: {done:?}"));
        self.world.audit(AuditOccasion::NewEntries);
    }

    /// Finds the small files again.
    fn check_small_files(&mut self) {
        if !self.world.has_disk() {
            return;
        }
        let Some(engine) = self.world.engine() else { return };
        self.world.note(WHO, &format!("{} segments", engine.segment_count()));
        if engine.segment_count() >= MANY_SEGMENTS {
            self.world.cover(CoveragePoint::ManySegments);
        }
        check_many(&self.world, &engine, self.rng.fork());
    }

    /// Removes the pins. Expired ones hold nothing, though they may still exist.
    async fn remove_pins(&self, engine: &Engine) -> bool {
        self.world.ledger.borrow_mut().pins.iter_mut().for_each(|pin| pin.is_over = true);
        for pin in engine.pins().all() {
            if engine.pins().remove(&pin.name).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Compacts everything, twice, so that tombstones expire and are removed.
    async fn compact_twice(&mut self) {
        let Some(engine) = self.world.engine() else { return };
        if !self.remove_pins(&engine).await {
            return;
        }
        let mut producer = SimProducer::new(&self.world, 1, self.rng.fork());
        let mut before = Hlc::ZERO;
        for run in 0..2 {
            let has_sent = producer.deliver(&[(COMPACTED_TOPIC, 0), (COMPACTED_TOPIC, 1)]).await;
            self.world.audit(AuditOccasion::NewEntries);
            // Entries stamped ahead of the wall clock are not compacted.
            let newest = engine.frontier();
            let clock = &self.world.clock;
            wait_until(|| clock.wall_ms() > newest.time().0, FAULT_WAIT_MAX).await;
            if clock.wall_ms() <= newest.time().0 {
                return;
            }
            let steps = [
                engine.maintenance().roll_segment().await,
                engine.maintenance().index_and_sort().await,
                engine.maintenance().compact_due().await.map(drop),
            ];
            if !has_sent || engine.retention_time().is_none() || steps.iter().any(Result::is_err) {
                return;
            }
            if run == 0 {
                before = newest;
                tokio::time::sleep(Duration::from_millis(DELETE_RETENTION_MS + 100)).await;
            }
        }
        self.world.note(WHO, "has compacted twice");
        self.world.report(&SimFact::TombstonesCleaned { before });
        self.world.audit(AuditOccasion::AllEntries);
        let wall_ms = self.world.clock.wall_ms();
        if engine.maintenance().apply_retention().await.is_ok() {
            self.world.report(&SimFact::RetentionApplied { wall_ms });
            self.world.audit(AuditOccasion::AllEntries);
        }
    }

    async fn delete_records(&mut self) {
        let (topic, partition) =
            *self.rng.pick(&[("plain", 0), ("plain", 1), ("short", 0), (TRANSIENT_TOPICS[0], 0)]);
        let held = self.world.engine().and_then(|engine| engine.topics().named(topic));
        let end = held.and_then(|topic| topic.partitions.first().map(|held| held.end().0));
        let before = end.unwrap_or(0).saturating_sub(self.rng.below(20));
        self.world.audit(AuditOccasion::NewEntries);
        let request = delete_records_request(topic, partition, before);
        let answer = self.client.call::<DeleteRecordsRequest>(2, &request).await;
        let code = answer.ok().map(|answer| answer.topics[0].partitions[0].error_code);
        if code == Some(POLICY_VIOLATION) {
            self.world.cover(CoveragePoint::PinBlockedDelete);
        }
        self.world.note(WHO, &format!("deletes {topic}/{partition} before {before}: {code:?}"));
    }
}

/// Waits until something holds, for so long at most.
async fn wait_until(holds: impl Fn() -> bool, at_most: Duration) {
    let deadline = tokio::time::Instant::now() + at_most;
    while !holds() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
