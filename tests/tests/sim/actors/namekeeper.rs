//! The only one who creates and deletes topics: so it knows which there are, and later which there were.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use hlc::Hlc;
use serde_json::json;

use super::requests::{bound, create_topic, delete_topic, spelled};
use super::{PASSING, STANDING, pause};
use crate::chance::Chance;
use crate::facts::{AsOf, Fact};
use crate::wire::Client;
use crate::world::World;

const WHO: &str = "namekeeper";
/// After this long, what was asked for over a connection that broke has been done, or never will be.
const FORGOTTEN: Duration = Duration::from_secs(2);

pub(crate) struct Namekeeper {
    world: Rc<World>,
    client: Client,
    chance: Chance,
    /// What there is; `None` when it cannot be told.
    names: Option<BTreeSet<String>>,
    known: Vec<Hlc>,
}

impl Namekeeper {
    pub(crate) fn new(world: &Rc<World>, chance: Chance) -> Namekeeper {
        let names = STANDING.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let client = Client::new(world);
        Namekeeper {
            world: Rc::clone(world),
            client,
            chance,
            names: Some(names),
            known: Vec::new(),
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.chance, 50, 500).await;
            match self.chance.below(5) {
                0..2 => self.change().await,
                2..4 => self.ask(None).await,
                _ if self.known.is_empty() => {}
                _ => {
                    let at = *self.chance.pick(&self.known);
                    self.ask(Some(at)).await;
                }
            }
        }
    }

    /// Creates a topic that is not there, or deletes one that is.
    async fn change(&mut self) {
        let Some(names) = &self.names else { return };
        let name = *self.chance.pick(&PASSING);
        let creates = !names.contains(name);
        let code = match creates {
            true => {
                let answer = self.client.ask(5, &create_topic(name, 2)).await;
                answer.map(|answer| answer.topics[0].error_code)
            }
            false => {
                let answer = self.client.ask(5, &delete_topic(name)).await;
                answer.map(|answer| answer.responses[0].error_code)
            }
        };
        let verb = if creates { "creates" } else { "deletes" };
        let shown = code.as_ref().ok();
        self.world.note(WHO, &format!("{verb} {name}: {shown:?}"));
        match (code, &mut self.names) {
            (Ok(0), Some(names)) if creates => drop(names.insert(name.to_owned())),
            (Ok(0), Some(names)) => drop(names.remove(name)),
            // It may be done, or not; or not yet.
            _ => {
                self.names = None;
                tokio::time::sleep(FORGOTTEN).await;
            }
        }
    }

    /// Which topics there are, or were.
    async fn ask(&mut self, at: Option<Hlc>) {
        let asked = self.world.step();
        let question = json!({"op": "topics", "at": at.map(spelled)});
        let Ok(answer) = self.client.ask_extension(&question).await else { return };
        let (Some(bound), Some(frontier)) = (bound(&answer["at"]), bound(&answer["frontier"]))
        else {
            return;
        };
        let topics = answer["topics"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<String> =
            topics.iter().filter_map(|topic| Some(topic["name"].as_str()?.to_owned())).collect();
        found.sort();
        self.world.note(WHO, &format!("at {bound}: {}", found.join(" ")));
        let is_present = at.is_none();
        let expected = self.names.clone().filter(|_| is_present);
        if is_present {
            self.known.push(bound);
            self.names.get_or_insert_with(|| found.iter().cloned().collect());
        }
        let expected = expected.map(|names| names.into_iter().collect());
        let names = AsOf { at: bound, frontier, answer: found, expected };
        self.world.tell(&Fact::Names { asked, names });
    }
}
