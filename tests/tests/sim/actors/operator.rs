//! Whoever runs the node: starts it, has it look after what it keeps, sets its clock, breaks its disk, and
//! ends its lives.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Engine, EngineError};
use hlc::{Fence, Hlc};
use kafka_protocol::messages::DeleteRecordsRequest;
use storage::catalog::CatalogFaults;
use storage::disk::{Fault, MemoryDisk};
use tokio::time::Instant;

use super::hoarder::look_at_many;
use super::producer::Producer;
use super::requests::delete_records;
use super::{DELETE_RETENTION_MS, KEYED, PASSING, STANDING, pause};
use crate::audit::Occasion;
use crate::chance::Chance;
use crate::disk::SimDisk;
use crate::facts::{Death, Fact};
use crate::node::Node;
use crate::reached::Reached;
use crate::rot::{Asked, questions, rot};
use crate::wire::Client;
use crate::world::World;

/// The code of a change that a pin forbids.
const PINNED: i16 = 44;
const OLD: &str = "give up what is old";
const OLD_OFFSETS: &str = "give up old offsets";
/// That many stretches of history are many.
const MANY: usize = 100;
const WHO: &str = "operator";
/// How long a fault that was armed is waited for.
const ARMED: Duration = Duration::from_secs(2);
/// How far a clock that is looked after is from the right time.
const NUDGE_MS: i64 = 100;
/// `clock.skew-max`, as it is if nobody sets it.
const SKEW_MAX_MS: i64 = 500;
/// How far ahead of the wall clock the bound is put that is persisted.
const BOUND_AHEAD_MS: i64 = 1000;
/// By how much a clock is far off.
const FAR_OFF_MS: [i64; 4] = [2 * HOUR_MS, 20 * HOUR_MS, 8 * 24 * HOUR_MS, 400 * 24 * HOUR_MS];
const HOUR_MS: i64 = 60 * 60 * 1000;
/// When that happens, at the latest.
const ERRS_MS_MAX: u64 = 17_000;
/// How often a write is tried.
const WRITE_TRIES: u32 = 5;
/// How long requests have to end when the node stops in order.
const STOPPING: Duration = Duration::from_millis(300);

pub(crate) struct Operator {
    world: Rc<World>,
    client: Client,
    chance: Chance,
    /// How far ahead a wrong clock was ever believed, at most.
    believed_ms: i64,
    /// When the node is to start under a clock that is far off, if it is.
    errs_from: Option<Instant>,
}

impl Operator {
    pub(crate) fn new(world: &Rc<World>, chance: Chance) -> Operator {
        let (client, mut chance) = (Client::new(world), chance);
        let errs_after = Duration::from_millis(chance.between(4000, ERRS_MS_MAX));
        let errs_from = chance.one_in(3).then(|| Instant::now() + errs_after);
        let world = Rc::clone(world);
        Operator { world, client, chance, believed_ms: NUDGE_MS, errs_from }
    }

    /// Starts the first life, and makes the topics that stay.
    pub(crate) async fn begin(&mut self) {
        self.start(MemoryDisk::new(), false).await;
        let Some(engine) = self.world.engine() else { return };
        for (nth, (name, partitions, settings)) in STANDING.iter().enumerate() {
            let setting = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let settings: BTreeMap<String, String> = settings.iter().map(setting).collect();
            let id = [nth as u8 + 1; 16];
            if let Err(error) = engine.create_topic(name, *partitions, settings, id, false).await {
                self.world.fail(WHO, &format!("create {name}: {error}"));
            }
        }
    }

    pub(crate) async fn run(&mut self) {
        while !self.world.is_over() {
            pause(&mut self.chance, 20, 250).await;
            if self.errs_from.take_if(|from| *from <= Instant::now()).is_some() {
                self.start_under_wrong_clock().await;
            }
            match self.chance.below(40) {
                0..16 => self.keep_house().await,
                16..20 => self.delete_records().await,
                20..24 => self.nudge_clock(),
                24 => self.set_back_clock().await,
                25 => self.set_forward_clock().await,
                26..29 => self.world.audit(Occasion::Whole),
                29 => self.fill_disk().await,
                30 => self.fail_sync().await,
                31 => self.die(Death::InOrder).await,
                32 => self.die(Death::Killed).await,
                33..35 => self.lose_power().await,
                35..37 => self.use_up_descriptors().await,
                37..39 => self.fail_catalog().await,
                39 => self.fill_catalog_disk().await,
                _ => {}
            }
            let stopped = self.world.engine().and_then(|engine| engine.stopped());
            if let Some(why) = stopped {
                self.world.reach(Reached::Stopped);
                self.world.note(WHO, &format!("the store has stopped: {why}"));
                let death = *self.chance.pick(&[Death::Killed, Death::PowerLost]);
                self.die(death).await;
            }
        }
    }

    /// The world ends well: one more life, in which everything is still there.
    pub(crate) async fn end(&mut self) {
        self.disk().make_room();
        self.world.audit(Occasion::Whole);
        self.clean_twice().await;
        self.look_at_hoard();
        self.die(Death::InOrder).await;
        let sound = match self.world.engine().filter(|_| !self.world.has_failed()) {
            Some(engine) => {
                let questions = questions(&engine, &self.world.ledger.borrow(), &mut self.chance);
                Some(Asked::of(&engine, questions).await)
            }
            None => None,
        };
        let disk = self.disk();
        self.end_in_order().await;
        if let Some(sound) = sound {
            self.start_rotten(disk.after_kill(), &sound).await;
        }
    }

    /// Starts on a disk of which bits have flipped, and asks again what was asked when it was sound.
    async fn start_rotten(&mut self, memory: MemoryDisk, sound: &Asked) {
        let flipped = rot(&memory, &mut self.chance);
        self.world.note(WHO, &format!("flips {}", flipped.join(", ")));
        let Some(catalog) = self.next_catalog() else { return };
        let (disk, kept) = (SimDisk::new(memory), (self.world.shape, catalog));
        let node = match Node::start(disk, kept, &self.world.clock, self.chance.fork()) {
            Ok(node) => node,
            Err(why) => {
                self.world.reach(Reached::RotRefused);
                return self.world.note(WHO, &format!("the node does not start: {why}"));
            }
        };
        match sound.again(&node.engine).await {
            Ok((same, refused)) => {
                self.world.note(WHO, &format!("{same} answers are as before, {refused} are none"));
                let reached = if refused > 0 { Reached::RotFound } else { Reached::RotHarmless };
                self.world.reach(reached);
            }
            Err(why) => self.world.fail("rot", &why),
        }
        let ended = node.end_at_once().await;
        self.check(ended);
    }

    fn next_catalog(&mut self) -> Option<PathBuf> {
        match self.world.catalogs.borrow_mut().next(&mut self.chance) {
            Ok((catalog, left)) => {
                self.world.reach(Reached::Catalog(left));
                Some(catalog)
            }
            Err(error) => {
                self.world.fail(WHO, &format!("copy the catalog: {error}"));
                None
            }
        }
    }

    fn take(&self) -> Option<Node> {
        self.world.node.borrow_mut().take()
    }

    /// The disk of this life.
    fn disk(&self) -> MemoryDisk {
        let node = self.world.node.borrow();
        node.as_ref().map_or_else(MemoryDisk::new, |node| node.disk.memory.clone())
    }

    fn check(&self, done: Result<(), String>) {
        if let Err(why) = done {
            self.world.fail(WHO, &why);
        }
    }

    // ---- Lives ----

    /// Ends this life, and begins the next after a while.
    async fn die(&mut self, death: Death) {
        self.die_and_set_clock(death, 0).await;
    }

    /// The same, and the clock is set in between.
    async fn die_and_set_clock(&mut self, death: Death, by_ms: i64) {
        self.world.note(WHO, &format!("the node dies: {death:?}"));
        let disk = self.disk();
        if death == Death::InOrder {
            self.end_in_order().await;
            self.set_clock_by(by_ms);
            return self.start(disk.after_kill(), false).await;
        }
        self.world.audit(Occasion::Death);
        let left = match death {
            Death::PowerLost => disk.after_crash(|count| self.chance.below(count as u64) as usize),
            _ => disk.after_kill(),
        };
        // What still runs writes no more.
        disk.arm(Fault::CrashAt(disk.operations()));
        if let Some(node) = self.take() {
            let ended = node.end_at_once().await;
            self.check(ended);
        }
        self.died(death);
        pause(&mut self.chance, 0, 1200).await;
        self.set_clock_by(by_ms);
        self.start(left, death == Death::PowerLost).await;
    }

    async fn end_in_order(&self) {
        if let Some(node) = self.world.node.borrow().as_ref() {
            node.stop();
        }
        tokio::time::sleep(STOPPING).await;
        self.world.audit(Occasion::Death);
        if let Some(node) = self.take() {
            let ended = node.end_in_order().await;
            self.check(ended);
        }
        self.died(Death::InOrder);
    }

    fn died(&self, death: Death) {
        self.world.deaths.set(self.world.deaths.get() + 1);
        if death == Death::PowerLost {
            self.world.power_losses.set(self.world.power_losses.get() + 1);
        }
        self.world.tell(&Fact::Died(death));
    }

    /// The machine stops at one of the next operations on its disk. What runs goes on for a while.
    async fn lose_power(&mut self) {
        let disk = self.disk();
        disk.arm(Fault::CrashAt(disk.operations() + self.chance.below(30)));
        let down = || disk.is_down();
        wait_until(down, ARMED).await;
        pause(&mut self.chance, 0, 12).await;
        self.die(Death::PowerLost).await;
    }

    /// Begins a life, through further crashes if need be.
    async fn start(&mut self, memory: MemoryDisk, lost_power: bool) {
        let (mut memory, mut lost_power) = (memory, lost_power);
        if self.chance.one_in(4) {
            memory.arm(Fault::CrashAt(self.chance.below(25)));
        }
        let node = loop {
            let disk = SimDisk::new(memory.clone());
            let Some(catalog) = self.next_catalog() else { return };
            match Node::start(
                disk,
                (self.world.shape, catalog),
                &self.world.clock,
                self.chance.fork(),
            ) {
                Ok(node) => break node,
                Err(_) if memory.is_down() => {
                    self.world.note(WHO, "the machine stops while the node starts");
                    self.world.reach(Reached::CrashAtStart);
                    self.died(Death::PowerLost);
                    memory = memory.after_crash(|count| self.chance.below(count as u64) as usize);
                    lost_power = true;
                }
                Err(why) => {
                    return self.world.fail(WHO, &format!("the node does not start: {why}"));
                }
            }
        };
        memory.arm(Fault::CrashAt(u64::MAX));
        self.world.peek_from(&node.disk, &node);
        *self.world.node.borrow_mut() = Some(node);
        self.world.note(WHO, "the node lives");
        self.world.audit(Occasion::Start { lost_power });
    }

    // ---- Its disk ----

    async fn fill_disk(&mut self) {
        let disk = self.disk();
        disk.arm(Fault::FullAt(disk.held_bytes() + self.chance.below(3000)));
        self.world.note(WHO, "the disk is full");
        pause(&mut self.chance, 200, 1500).await;
        disk.make_room();
        self.world.note(WHO, "the disk has room");
    }

    /// The process has no descriptor left for a while: writes may be refused, and the store goes on.
    async fn use_up_descriptors(&mut self) {
        let Some(disk) = self.world.node.borrow().as_ref().map(|node| node.disk.clone()) else {
            return;
        };
        let stops_by_itself = self.has_stopped() || disk.memory.has_sync_to_fail();
        disk.use_up_descriptors(true);
        self.world.note(WHO, "no descriptor is left");
        pause(&mut self.chance, 100, 700).await;
        self.keep_house().await;
        pause(&mut self.chance, 100, 700).await;
        disk.use_up_descriptors(false);
        let refused = disk.descriptors_refused();
        self.world.note(WHO, &format!("there are descriptors again; {refused} were refused"));
        if refused > 0 {
            self.world.reach(Reached::NoDescriptor);
        }
        if !stops_by_itself && self.has_stopped() {
            self.world.fail(WHO, "the store has stopped for want of a descriptor");
        }
    }

    fn has_stopped(&self) -> bool {
        self.world.engine().is_some_and(|engine| engine.stopped().is_some())
    }

    async fn fail_sync(&mut self) {
        let disk = self.disk();
        disk.arm(Fault::SyncFails(self.chance.below(6)));
        self.world.note(WHO, "a sync will fail");
        wait_until(|| !disk.has_sync_to_fail(), ARMED).await;
        pause(&mut self.chance, 0, 50).await;
    }

    /// One of the next steps of the catalog fails. It is made anew.
    async fn fail_catalog(&mut self) {
        let after = self.chance.below(12);
        self.world.note(WHO, &format!("the catalog will fail after {after} writes"));
        self.break_catalog(|faults| faults.fail_write_after(after), Reached::CatalogRebuilt).await;
    }

    /// The catalog finds no room on its disk for a while: one in memory takes its place.
    async fn fill_catalog_disk(&mut self) {
        self.world.note(WHO, "the catalog's disk is full");
        let in_memory = Reached::CatalogInMemory;
        self.break_catalog(|faults| faults.set_full(true), in_memory).await;
        pause(&mut self.chance, 50, 500).await;
        if let Some(node) = self.world.node.borrow().as_ref() {
            node.catalog_faults().set_full(false);
        }
        self.world.note(WHO, "the catalog's disk has room");
    }

    async fn break_catalog(&self, break_it: impl FnOnce(&CatalogFaults), reached: Reached) {
        let Some(engine) = self.world.engine() else { return };
        if let Some(node) = self.world.node.borrow().as_ref() {
            break_it(node.catalog_faults());
        }
        let (before, _) = engine.catalog_rebuilds();
        wait_until(|| engine.catalog_rebuilds().0 > before, ARMED).await;
        if engine.catalog_rebuilds().0 > before {
            self.world.reach(reached);
        }
    }

    // ---- Its clock ----

    fn set_clock(&self, by_ms: i64) {
        self.world.note(WHO, &format!("sets the clock by {by_ms} ms"));
        self.world.let_time_pass();
        self.world.clock.step(by_ms);
        self.world.let_time_pass();
        self.world.clock_steps.set(self.world.clock_steps.get() + 1);
    }

    fn set_clock_by(&self, by_ms: i64) {
        if by_ms != 0 {
            self.set_clock(by_ms);
        }
    }

    /// As NTP does: within what is accepted, and never far from the right time.
    fn nudge_clock(&mut self) {
        let to = self.chance.below(2 * NUDGE_MS as u64 + 1) as i64 - NUDGE_MS;
        self.set_clock(to - self.world.clock.offset_ms());
    }

    async fn set_back_clock(&mut self) {
        let by = self.chance.between(600, 3000) as i64;
        self.set_clock(-by);
        pause(&mut self.chance, 50, 1500).await;
        self.maybe_die().await;
        // Back to the right time: that is a jump ahead for those who have lived through the other.
        let is_trusted = self.chance.one_in(2);
        self.set_clock(-self.world.clock.offset_ms());
        self.confirm_if(is_trusted).await;
    }

    async fn set_forward_clock(&mut self) {
        let by = self.chance.between(2000, 6000) as i64;
        // A life that began behind knows the right time only by the bound of the one before, which was ahead.
        let fence = self.world.engine().and_then(|engine| engine.timekeeper().fence());
        let is_behind = matches!(fence, Some(Fence::Behind { .. }));
        let known_to_ms = if is_behind { BOUND_AHEAD_MS } else { 0 };
        self.set_clock(by);
        let believable_ms = self.believed_ms + known_to_ms + SKEW_MAX_MS + NUDGE_MS;
        if self.world.clock.offset_ms() > believable_ms {
            self.world.tell(&Fact::Mistrusted(true));
        }
        pause(&mut self.chance, 50, 1500).await;
        self.world.tell(&Fact::Mistrusted(false));
        match self.chance.one_in(4) {
            // Somebody believes it; and is wrong, as will be seen.
            true => {
                self.believed_ms = self.believed_ms.max(self.world.clock.offset_ms());
                self.confirm_if(true).await;
            }
            false => self.set_clock(-by),
        }
    }

    /// The clock's jump is confirmed, now or a little later.
    async fn confirm_if(&mut self, at_once: bool) {
        if !at_once {
            pause(&mut self.chance, 50, 800).await;
        }
        if let Some(node) = self.world.node.borrow().as_ref()
            && let Some(fence) = node.confirm_clock()
        {
            self.world.fail(WHO, &format!("the clock was confirmed, and is fenced: {fence}"));
        }
        let engine = self.world.engine();
        if engine.is_some_and(|engine| engine.timekeeper().precision().ahead_ms > 0) {
            self.world.tell(&Fact::RanAhead);
        }
        self.world.note(WHO, "the clock is confirmed");
    }

    async fn maybe_die(&mut self) {
        if self.chance.one_in(3) {
            let death = *self.chance.pick(&[Death::Killed, Death::PowerLost]);
            self.die(death).await;
        }
    }

    // ---- A clock that is wrong when the node starts ----

    async fn start_under_wrong_clock(&mut self) {
        let by_ms = *self.chance.pick(&FAR_OFF_MS);
        self.world.tell(&Fact::RanAhead);
        // Right, but for this.
        self.set_clock(-self.world.clock.offset_ms());
        self.confirm_if(true).await;
        self.wait_for_mark().await;
        match self.chance.one_in(3) {
            true => self.start_behind(by_ms).await,
            false => self.start_ahead(by_ms).await,
        }
    }

    /// Far ahead: nothing goes. Once it is right again, and somebody says so, writes are taken.
    async fn start_ahead(&mut self, by_ms: i64) {
        self.world.clock.set_doubtful(true);
        self.world.tell(&Fact::Doubted(true));
        self.die_somehow(by_ms).await;
        self.expect_doubt().await;
        if self.chance.one_in(2) {
            // Starting again ends no doubt.
            self.die_somehow(0).await;
            self.expect_doubt().await;
        }
        match self.chance.one_in(2) {
            true => self.set_clock(-by_ms),
            false => self.die_somehow(-by_ms).await,
        }
        self.give_up_all().await;
        self.world.tell(&Fact::Doubted(false));
        self.world.clock.set_doubtful(false);
        self.confirm_and_write().await;
        if self.chance.one_in(2) {
            // What was confirmed stays so.
            self.die_somehow(0).await;
            self.expect_trust();
        }
    }

    /// Far behind, and somebody believes it; and later it is right again.
    async fn start_behind(&mut self, by_ms: i64) {
        self.die_somehow(-by_ms).await;
        let fence = self.world.engine().and_then(|engine| engine.timekeeper().fence());
        if fence.is_none() && self.world.engine().is_some() {
            self.world.fail(WHO, "a clock that is far behind at the start is not fenced");
        }
        self.confirm_and_write().await;
        self.give_up_all().await;
        match self.chance.one_in(2) {
            true => self.set_clock(by_ms),
            false => self.die_somehow(by_ms).await,
        }
        self.confirm_and_write().await;
    }

    async fn die_somehow(&mut self, by_ms: i64) {
        let death = *self.chance.pick(&[Death::InOrder, Death::Killed, Death::PowerLost]);
        self.die_and_set_clock(death, by_ms).await;
    }

    async fn expect_doubt(&mut self) {
        let Some(engine) = self.world.engine() else { return };
        if engine.timekeeper().doubt().is_none() {
            self.world.fail(WHO, "a clock that is far ahead at the start is believed");
        }
        pause(&mut self.chance, 50, 500).await;
        self.give_up_all().await;
    }

    fn expect_trust(&self) {
        let Some(engine) = self.world.engine() else { return };
        if engine.time_to_give_up().is_none() {
            self.world.fail(WHO, "the next life does not know that the clock was confirmed");
        }
    }

    /// Does all at once that gives something up.
    async fn give_up_all(&self) {
        let Some(engine) = self.world.engine() else { return };
        let sealed = [engine.seal().await, engine.tend().await];
        let gone = [engine.give_up_old().await, engine.compact_due().await];
        let groups = (self.expire_offsets().await, engine.give_up_old_groups().await);
        self.world.note(WHO, &format!("gives up what there is: {:?}", (sealed, gone, groups)));
        self.world.audit(Occasion::Whole);
    }

    /// Confirms the clock: from then on writes are taken.
    async fn confirm_and_write(&mut self) {
        self.confirm_if(true).await;
        let mut producer = Producer::new(&self.world, 1, self.chance.fork());
        for _ in 0..WRITE_TRIES {
            if producer.deliver(&[("plain", 0)]).await {
                self.wait_for_mark().await;
                break;
            }
            pause(&mut self.chance, 20, 200).await;
        }
        let Some(engine) = self.world.engine() else { return };
        if let Some(fence) = engine.timekeeper().fence() {
            self.world
                .fail(WHO, &format!("the clock was confirmed, and nothing is taken: {fence}"));
        }
        if engine.timekeeper().precision().ahead_ms > HOUR_MS as u64 {
            self.world.reach(Reached::RanAhead);
        }
    }

    /// Waits until what was confirmed is on stable storage.
    async fn wait_for_mark(&self) {
        let is_written =
            || self.world.engine().is_none_or(|engine| !engine.timekeeper().is_renewing());
        wait_until(is_written, ARMED).await;
    }

    // ---- What it keeps ----

    async fn keep_house(&mut self) {
        let Some(engine) = self.world.engine() else { return };
        // So that the model has seen what goes.
        self.world.audit(Occasion::News);
        let (what, done) = match self.chance.below(11) {
            0..2 => ("seal", engine.seal().await.map(|()| 0)),
            2 => ("tend", engine.tend().await.map(|()| 0)),
            3 => (OLD, engine.give_up_old().await),
            4..7 => ("compact", engine.compact_due().await),
            7 => (OLD_OFFSETS, engine.give_up_old_groups().await.map(usize::from)),
            8..10 => ("expire offsets", self.expire_offsets().await),
            _ => ("free", engine.free().await.map(|_| 0)),
        };
        if matches!((what, &done), (OLD_OFFSETS, Ok(1..))) {
            self.world.reach(Reached::OffsetsGivenUp);
        }
        if engine.history_stats().merged.load(Ordering::Relaxed) > 0 {
            self.world.reach(Reached::Merged);
        }
        self.world.note(WHO, &format!("{what}: {:?}", done.ok()));
        if matches!(what, OLD | OLD_OFFSETS) {
            self.forget(&engine).await;
        }
    }

    /// Has offsets expire that were committed long ago.
    async fn expire_offsets(&self) -> Result<usize, EngineError> {
        let kafka = self.world.node.borrow().as_ref().map(|node| Arc::clone(&node.kafka));
        match kafka {
            Some(kafka) => kafka.expire_offsets().await,
            None => Ok(0),
        }
    }

    /// Has the node forget topics of which nothing is kept.
    async fn forget(&self, engine: &Arc<Engine>) {
        // So that the model has seen that nothing is.
        self.world.audit(Occasion::News);
        let done = (engine.forget_topics().await, engine.forget_logs().await);
        if matches!(done.0, Ok(1..)) {
            self.world.reach(Reached::TopicsForgotten);
        }
        self.world.note(WHO, &format!("forget: {done:?}"));
        self.world.audit(Occasion::News);
    }

    /// What was hoarded is found again.
    fn look_at_hoard(&mut self) {
        let Some(engine) = self.world.engine().filter(|_| self.world.has_disk()) else { return };
        self.world.note(WHO, &format!("{} stretches", engine.segment_count()));
        if engine.segment_count() >= MANY {
            self.world.reach(Reached::ManyStretches);
        }
        look_at_many(&self.world, &engine, self.chance.fork());
    }

    /// Removes the pins that stand; those that have expired hold nothing, though they may be there.
    async fn remove_pins(&self, engine: &Engine) -> bool {
        self.world.ledger.borrow_mut().pins.iter_mut().for_each(|pin| pin.is_over = true);
        for pin in engine.pins() {
            if engine.unpin(&pin.name).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Compacts all that there is, twice, so that tombstones have their time and go.
    async fn clean_twice(&mut self) {
        let Some(engine) = self.world.engine() else { return };
        if !self.remove_pins(&engine).await {
            return;
        }
        let mut producer = Producer::new(&self.world, 1, self.chance.fork());
        let mut before = Hlc::ZERO;
        for run in 0..2 {
            let has_sent = producer.deliver(&[(KEYED, 0), (KEYED, 1)]).await;
            self.world.audit(Occasion::News);
            // What is stamped ahead of the wall clock is not compacted.
            let newest = engine.frontier();
            let clock = &self.world.clock;
            wait_until(|| clock.wall_ms() > newest.time().0, ARMED).await;
            if clock.wall_ms() <= newest.time().0 {
                return;
            }
            let steps =
                [engine.seal().await, engine.tend().await, engine.compact_due().await.map(drop)];
            if !has_sent || engine.time_to_give_up().is_none() || steps.iter().any(Result::is_err) {
                return;
            }
            if run == 0 {
                before = newest;
                tokio::time::sleep(Duration::from_millis(DELETE_RETENTION_MS + 100)).await;
            }
        }
        self.world.note(WHO, "has compacted twice");
        self.world.tell(&Fact::Cleaned { before });
        self.world.audit(Occasion::Whole);
        let wall_ms = self.world.clock.wall_ms();
        if engine.give_up_old().await.is_ok() {
            self.world.tell(&Fact::LetGo { wall_ms });
            self.world.audit(Occasion::Whole);
        }
    }

    async fn delete_records(&mut self) {
        let (topic, partition) =
            *self.chance.pick(&[("plain", 0), ("plain", 1), ("short", 0), (PASSING[0], 0)]);
        let held = self.world.engine().and_then(|engine| engine.topic(topic));
        let end = held.and_then(|topic| topic.partitions.first().map(|held| held.end().0));
        let before = end.unwrap_or(0).saturating_sub(self.chance.below(20));
        self.world.audit(Occasion::News);
        let request = delete_records(topic, partition, before);
        let answer = self.client.ask::<DeleteRecordsRequest>(2, &request).await;
        let code = answer.ok().map(|answer| answer.topics[0].partitions[0].error_code);
        if code == Some(PINNED) {
            self.world.reach(Reached::PinHeld);
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
