//! Creates and deletes topics. Only the racing clients do too, with topics of their own, so it
//! knows which of the others exist and existed.

use std::collections::BTreeSet;
use std::rc::Rc;

use hlc::Hlc;
use serde_json::json;
use testkit::rng::SeededRng;

use super::requests::{create_topic_request, delete_topic_request, format_moment, parse_bound};
use super::{RACED_TOPICS, STANDING_TOPICS, TRANSIENT_TOPICS, UNKNOWN_OUTCOME_WAIT, pause};
use crate::facts::{AsOfAnswer, SimFact};
use crate::wire::SimClient;
use crate::world::SimWorld;

const WHO: &str = "topic_admin";

pub(crate) struct TopicAdmin {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    /// The existing topics; `None` if they are unknown.
    names: Option<BTreeSet<String>>,
    known_bounds: Vec<Hlc>,
}

impl TopicAdmin {
    pub(crate) fn new(world: &Rc<SimWorld>, mut rng: SeededRng) -> TopicAdmin {
        let names = STANDING_TOPICS.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let client = SimClient::new(world, rng.fork());
        TopicAdmin {
            world: Rc::clone(world),
            client,
            rng,
            names: Some(names),
            known_bounds: Vec::new(),
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 50, 500).await;
            match self.rng.below(5) {
                0..2 => self.change_topics().await,
                2..4 => self.list_topics(None).await,
                _ if self.known_bounds.is_empty() => {}
                _ => {
                    let at = *self.rng.pick(&self.known_bounds);
                    self.list_topics(Some(at)).await;
                }
            }
        }
    }

    /// Creates a missing topic, or deletes an existing one.
    async fn change_topics(&mut self) {
        let Some(names) = &self.names else { return };
        let name = *self.rng.pick(&TRANSIENT_TOPICS);
        let creates = !names.contains(name);
        let code = if creates {
            let answer = self.client.call(5, &create_topic_request(name, 2)).await;
            answer.map(|answer| answer.topics[0].error_code)
        } else {
            let answer = self.client.call(5, &delete_topic_request(name)).await;
            answer.map(|answer| answer.responses[0].error_code)
        };
        let verb = if creates { "creates" } else { "deletes" };
        let shown = code.as_ref().ok();
        self.world.note(WHO, &format!("{verb} {name}: {shown:?}"));
        match (code, &mut self.names) {
            (Ok(0), Some(names)) if creates => drop(names.insert(name.to_owned())),
            (Ok(0), Some(names)) => drop(names.remove(name)),
            // It may be done, or not, or not yet.
            _ => {
                self.names = None;
                tokio::time::sleep(UNKNOWN_OUTCOME_WAIT).await;
            }
        }
    }

    /// Lists the topics, present or past.
    async fn list_topics(&mut self, at: Option<Hlc>) {
        let asked = self.world.next_step();
        let question = json!({"op": "topics", "at": at.map(format_moment)});
        let Ok(answer) = self.client.call_extension(&question).await else { return };
        let (Some(bound), Some(frontier)) =
            (parse_bound(&answer["at"]), parse_bound(&answer["frontier"]))
        else {
            return;
        };
        let topics = answer["topics"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<String> =
            topics.iter().filter_map(|topic| Some(topic["name"].as_str()?.to_owned())).collect();
        found.retain(|name| !RACED_TOPICS.contains(&name.as_str()));
        found.sort();
        self.world.note(WHO, &format!("at {bound}: {}", found.join(" ")));
        let is_present = at.is_none();
        let expected = if is_present { self.names.clone() } else { None };
        if is_present {
            self.known_bounds.push(bound);
            self.names.get_or_insert_with(|| found.iter().cloned().collect());
        }
        let expected = expected.map(|names| names.into_iter().collect());
        let names = AsOfAnswer { at: bound, frontier, answer: found, expected };
        self.world.report(&SimFact::Topics { request_step: asked, topics: names });
    }
}
