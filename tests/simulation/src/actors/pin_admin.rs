//! Keeps moments for a while: sets pins, removes some of them, and lists them.

use std::rc::Rc;
use std::time::Duration;

use hlc::{Hlc, SysTime};
use serde_json::json;
use testkit::rng::SeededRng;
use tokio::time::Instant;

use super::pause;
use super::requests::{format_moment, parse_bound};
use crate::audit::AuditOccasion;
use crate::facts::SimFact;
use crate::ledger::LedgerPin;
use crate::wire::SimClient;
use crate::world::SimWorld;

const WHO: &str = "pin_admin";
/// The latest time at which it begins to set pins, and for how long it does.
const START_MS_MAX: u64 = 14_000;
const PINNING_TIME: Duration = Duration::from_secs(4);
/// The longest time that a pin stands.
const PIN_MS_MAX: u64 = 5000;

pub(crate) struct PinAdmin {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    count: u64,
}

impl PinAdmin {
    pub(crate) fn new(world: &Rc<SimWorld>, mut rng: SeededRng) -> PinAdmin {
        PinAdmin {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            count: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        // Only for a part of the time: while pins stand, little is removed.
        let from = Instant::now() + Duration::from_millis(self.rng.below(START_MS_MAX));
        while !self.world.is_over() {
            pause(&mut self.rng, 100, 900).await;
            let sets = (from..from + PINNING_TIME).contains(&Instant::now());
            match self.rng.below(6) {
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
        let back = if self.rng.one_in(2) { 0 } else { self.rng.below(2500) };
        let at = Hlc::at(SysTime(now - back));
        let topics = match self.rng.below(4) {
            0 => Some(vec!["short".to_owned()]),
            1 => Some(vec!["keyed".to_owned(), "plain".to_owned()]),
            _ => None,
        };
        let for_ms = self.rng.between(300, PIN_MS_MAX);
        let question = json!({
            "op": "pin", "name": name, "at": format_moment(at), "for_ms": for_ms, "topics": topics,
        });
        let Ok(answer) = self.client.call_extension(&question).await else { return };
        let set = &answer["pin"];
        self.world.note(WHO, &format!("pins {at} as {name}: {}", describe_answer(&answer)));
        let (Some(at), Some(expires_ms)) = (parse_bound(&set["at"]), set["expires_ms"].as_u64())
        else {
            return;
        };
        // So that the model knows what the pin must keep.
        self.world.audit(AuditOccasion::NewEntries);
        let mut ledger = self.world.ledger.borrow_mut();
        let mut pin = LedgerPin { name, at, expires_ms, topics, ..LedgerPin::default() };
        let held = ledger.partitions.iter().filter(|(_, seen)| pin.covers(&seen.now));
        pin.starts = held.map(|(place, seen)| (*place, seen.now.start)).collect();
        ledger.pins.push(pin);
        drop(ledger);
        self.world.expire_pins();
    }

    async fn unpin(&mut self) {
        let standing = self.standing_pins();
        if standing.is_empty() {
            return;
        }
        let name = self.rng.pick(&standing).clone();
        let change = |act: &dyn Fn(&mut LedgerPin)| {
            let mut ledger = self.world.ledger.borrow_mut();
            ledger.pins.iter_mut().filter(|pin| pin.name == name).for_each(act);
        };
        change(&|pin| pin.is_over = true);
        let answer = self.client.call_extension(&json!({"op": "unpin", "name": name})).await;
        let is_removed = answer.is_ok_and(|answer| answer["removed"] == name.as_str());
        self.world.note(WHO, &format!("removes {name}: {is_removed}"));
        if is_removed {
            change(&|pin| pin.is_removed = true);
        }
    }

    async fn list(&mut self) {
        let (asked, steps) = (self.world.clock.wall_ms(), self.world.clock_steps.get());
        let was_trusted = self.trusts_clock();
        let Ok(answer) = self.client.call_extension(&json!({"op": "pins"})).await else { return };
        let Some(pins) = answer["pins"].as_array() else { return };
        let listed = pins.iter().filter_map(|pin| Some(pin["name"].as_str()?.to_owned())).collect();
        self.world.note(WHO, &format!("sees {listed:?}"));
        // The wall clock at the response is known if it was not set since. While the clock is
        // fenced or in doubt, no pin expires.
        let is_known = steps == self.world.clock_steps.get() && was_trusted && self.trusts_clock();
        let at_least_ms = if is_known { asked } else { 0 };
        self.world.report(&SimFact::Pins { listed, at_least_ms });
    }

    /// True if the node expires things by its clock.
    fn trusts_clock(&self) -> bool {
        self.world.engine().is_some_and(|engine| engine.retention_time().is_some())
    }

    fn standing_pins(&self) -> Vec<String> {
        let ledger = self.world.ledger.borrow();
        ledger.pins.iter().filter(|pin| !pin.is_over).map(|pin| pin.name.clone()).collect()
    }
}

fn describe_answer(answer: &serde_json::Value) -> String {
    match answer["error"]["code"].as_str() {
        Some(code) => code.to_owned(),
        None => format!("until {}", answer["pin"]["expires_ms"]),
    }
}
