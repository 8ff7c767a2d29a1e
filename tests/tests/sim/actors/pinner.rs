//! Who keeps moments for a while: sets pins, removes some of them, and asks which stand.

use std::rc::Rc;
use std::time::Duration;

use hlc::{Hlc, SysTime};
use serde_json::json;
use tokio::time::Instant;

use super::pause;
use super::requests::{bound, spelled};
use crate::audit::Occasion;
use crate::chance::Chance;
use crate::facts::Fact;
use crate::ledger::Pin;
use crate::wire::Client;
use crate::world::World;

const WHO: &str = "pinner";
/// When it begins to set pins at the latest, and for how long it does.
const FROM_MS_MAX: u64 = 14_000;
const SETS: Duration = Duration::from_secs(4);
/// For how long a pin stands at most.
const STANDS_MS_MAX: u64 = 5000;

pub(crate) struct Pinner {
    world: Rc<World>,
    client: Client,
    chance: Chance,
    count: u64,
}

impl Pinner {
    pub(crate) fn new(world: &Rc<World>, chance: Chance) -> Pinner {
        Pinner { world: Rc::clone(world), client: Client::new(world), chance, count: 0 }
    }

    pub(crate) async fn run(mut self) {
        // For a part of the time only: while pins stand, little goes.
        let from = Instant::now() + Duration::from_millis(self.chance.below(FROM_MS_MAX));
        while !self.world.is_over() {
            pause(&mut self.chance, 100, 900).await;
            let sets = (from..from + SETS).contains(&Instant::now());
            match self.chance.below(6) {
                0..3 if sets => self.pin().await,
                0..3 => {}
                3 => self.unpin().await,
                _ => self.list().await,
            }
        }
    }

    async fn pin(&mut self) {
        self.count += 1;
        let name = format!("pin{}", self.count);
        let now = self.world.clock.wall_ms();
        let back = if self.chance.one_in(2) { 0 } else { self.chance.below(2500) };
        let at = Hlc::at(SysTime(now - back));
        let topics = match self.chance.below(4) {
            0 => Some(vec!["short".to_owned()]),
            1 => Some(vec!["keyed".to_owned(), "plain".to_owned()]),
            _ => None,
        };
        let for_ms = self.chance.between(300, STANDS_MS_MAX);
        let question = json!({
            "op": "pin", "name": name, "at": spelled(at), "for_ms": for_ms, "topics": topics,
        });
        let Ok(answer) = self.client.ask_extension(&question).await else { return };
        let set = &answer["pin"];
        self.world.note(WHO, &format!("pins {at} as {name}: {}", said(&answer)));
        let (Some(at), Some(expires_ms)) = (bound(&set["at"]), set["expires_ms"].as_u64()) else {
            return;
        };
        // So that it is known what there is to be kept.
        self.world.audit(Occasion::News);
        let mut ledger = self.world.ledger.borrow_mut();
        let mut pin = Pin { name, at, expires_ms, topics, ..Pin::default() };
        let held = ledger.partitions.iter().filter(|(_, seen)| pin.is_about(&seen.now));
        pin.starts = held.map(|(place, seen)| (*place, seen.now.start)).collect();
        ledger.pins.push(pin);
        drop(ledger);
        self.world.let_time_pass();
    }

    async fn unpin(&mut self) {
        let standing = self.standing();
        if standing.is_empty() {
            return;
        }
        let name = self.chance.pick(&standing).clone();
        let change = |act: &dyn Fn(&mut Pin)| {
            let mut ledger = self.world.ledger.borrow_mut();
            ledger.pins.iter_mut().filter(|pin| pin.name == name).for_each(act);
        };
        change(&|pin| pin.is_over = true);
        let answer = self.client.ask_extension(&json!({"op": "unpin", "name": name})).await;
        let is_removed = answer.is_ok_and(|answer| answer["removed"] == name.as_str());
        self.world.note(WHO, &format!("removes {name}: {is_removed}"));
        if is_removed {
            change(&|pin| pin.is_removed = true);
        }
    }

    async fn list(&mut self) {
        let (asked, steps) = (self.world.clock.wall_ms(), self.world.clock_steps.get());
        let was_trusted = self.goes_by_clock();
        let Ok(answer) = self.client.ask_extension(&json!({"op": "pins"})).await else { return };
        let Some(pins) = answer["pins"].as_array() else { return };
        let listed = pins.iter().filter_map(|pin| Some(pin["name"].as_str()?.to_owned())).collect();
        self.world.note(WHO, &format!("sees {listed:?}"));
        // What the clock showed when it was answered is known if nobody has set it since; and by one that
        // is fenced or in doubt no pin is over.
        let is_known = steps == self.world.clock_steps.get() && was_trusted && self.goes_by_clock();
        let at_least_ms = if is_known { asked } else { 0 };
        self.world.tell(&Fact::Pins { listed, at_least_ms });
    }

    /// Whether the node finds things old by its clock.
    fn goes_by_clock(&self) -> bool {
        self.world.engine().is_some_and(|engine| engine.time_to_give_up().is_some())
    }

    fn standing(&self) -> Vec<String> {
        let ledger = self.world.ledger.borrow();
        ledger.pins.iter().filter(|pin| !pin.is_over).map(|pin| pin.name.clone()).collect()
    }
}

fn said(answer: &serde_json::Value) -> String {
    match answer["error"]["code"].as_str() {
        Some(code) => code.to_owned(),
        None => format!("until {}", answer["pin"]["expires_ms"]),
    }
}
