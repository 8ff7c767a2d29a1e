//! The only actor that commits offsets of a group, so it knows the present and past offsets.

use std::collections::BTreeMap;
use std::rc::Rc;

use hlc::{Hlc, SysTime};
use serde_json::json;
use testkit::rng::SeededRng;

use super::requests::{commit_request, format_moment, parse_bound};
use super::{UNKNOWN_OUTCOME_WAIT, pause};
use crate::coverage::CoveragePoint;
use crate::facts::{AsOfAnswer, SimFact};
use crate::node::COMMITTED_OFFSETS_RETENTION;
use crate::wire::SimClient;
use crate::world::SimWorld;

const WHO: &str = "offset_committer";
const GROUP: &str = "readers";

/// The committed offsets, by topic and partition.
type OffsetsByPartition = BTreeMap<(String, u32), u64>;

pub(crate) struct OffsetCommitter {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    /// The committed offsets; `None` if they are unknown.
    committed: Option<OffsetsByPartition>,
    /// A bound of system time below which each of them was not committed yet, if it is known.
    not_before: BTreeMap<(String, u32), Hlc>,
    /// The latest frontier in a response.
    frontier: Hlc,
    known_bounds: Vec<Hlc>,
    next: u64,
}

impl OffsetCommitter {
    pub(crate) fn new(world: &Rc<SimWorld>, mut rng: SeededRng) -> OffsetCommitter {
        let client = SimClient::new(world, rng.fork());
        OffsetCommitter {
            world: Rc::clone(world),
            client,
            rng,
            committed: Some(OffsetsByPartition::new()),
            not_before: BTreeMap::new(),
            frontier: Hlc::ZERO,
            known_bounds: Vec::new(),
            next: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 30, 300).await;
            match self.rng.below(5) {
                0..2 => self.commit().await,
                2..4 => self.read_offsets(None).await,
                _ if self.known_bounds.is_empty() => {}
                _ => {
                    let at = *self.rng.pick(&self.known_bounds);
                    self.read_offsets(Some(at)).await;
                }
            }
        }
    }

    /// Commits two offsets at once: both, or none.
    async fn commit(&mut self) {
        let Some(committed) = &mut self.committed else { return };
        self.next += 1;
        let offsets = [("plain", self.rng.below(3) as u32, self.next), ("short", 0, self.next)];
        let answer = self.client.call(8, &commit_request(GROUP, &offsets)).await;
        let codes: Option<Vec<i16>> = answer.ok().map(|answer| {
            answer.topics.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code).collect()
        });
        self.world.note(WHO, &format!("commits {}: {codes:?}", self.next));
        if codes.is_some_and(|codes| codes.iter().all(|code| *code == 0)) {
            let entered = offsets.map(|(topic, index, offset)| ((topic.to_owned(), index), offset));
            for (place, offset) in entered {
                committed.insert(place.clone(), offset);
                self.not_before.insert(place, self.frontier);
            }
        } else {
            self.committed = None;
            self.not_before.clear();
            tokio::time::sleep(UNKNOWN_OUTCOME_WAIT).await;
        }
    }

    /// Reads the committed offsets, present or past.
    async fn read_offsets(&mut self, at: Option<Hlc>) {
        let asked = self.world.next_step();
        let question = json!({"op": "offsets", "at": at.map(format_moment), "group": GROUP});
        let Ok(answer) = self.client.call_extension(&question).await else { return };
        let (Some(bound), Some(frontier)) =
            (parse_bound(&answer["at"]), parse_bound(&answer["frontier"]))
        else {
            return;
        };
        let held = answer["groups"][0]["offsets"].as_array().cloned().unwrap_or_default();
        let found: Option<OffsetsByPartition> = held
            .iter()
            .map(|held| {
                let place =
                    (held["topic"].as_str()?.to_owned(), held["partition"].as_u64()? as u32);
                Some((place, held["offset"].as_u64()?))
            })
            .collect();
        let Some(found) = found else {
            return self.world.fail(WHO, &format!("an answer is odd: {answer}"));
        };
        self.frontier = self.frontier.max(frontier);
        let is_present = at.is_none();
        if is_present {
            self.drop_expired(&found);
        }
        let expected = if is_present { self.committed.as_ref().map(describe) } else { None };
        let answer = describe(&found);
        self.world.note(WHO, &format!("at {bound}: {}", answer.join(" ")));
        if is_present {
            self.known_bounds.push(bound);
            self.committed.get_or_insert(found);
        }
        let offsets = AsOfAnswer { at: bound, frontier, answer, expected };
        self.world.report(&SimFact::Offsets { request_step: asked, offsets });
    }

    /// Drops missing offsets that may have expired: those that are old by any time that the wall
    /// clock ever showed.
    fn drop_expired(&mut self, found: &OffsetsByPartition) {
        let Some(committed) = &mut self.committed else { return };
        let since =
            SysTime(self.world.clock.shown_ms()).saturating_sub(COMMITTED_OFFSETS_RETENTION);
        let is_old = |place: &_| self.not_before.get(place).is_none_or(|at| at.time() <= since);
        let before = committed.len();
        committed.retain(|place, _| found.contains_key(place) || !is_old(place));
        if committed.len() < before {
            self.world.cover(CoveragePoint::OffsetsExpired);
        }
    }
}

fn describe(committed: &OffsetsByPartition) -> Vec<String> {
    let line = |((topic, partition), offset): (&(String, u32), &u64)| {
        format!("{topic}/{partition}={offset}")
    };
    committed.iter().map(line).collect()
}
