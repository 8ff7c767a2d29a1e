//! A reader of the past: cuts, moments of topics, user times; and all of it again, later.

use std::collections::BTreeMap;
use std::rc::Rc;

use hlc::{Hlc, SysTime};
use kafka_protocol::messages::ListOffsetsRequest;
use serde_json::{Value, json};
use testkit::requests::list_offsets_request;
use testkit::rng::SeededRng;

use super::requests::{bitemporal_name, fetch_from, format_moment, moment_name, parse_bound};
use super::{pause, random_partition};
use crate::audit::AuditOccasion;
use crate::facts::{MomentContents, MomentRefusal, OffsetSpan, SimCut, SimFact, UserTimeSearch};
use crate::wire::SimClient;
use crate::world::SimWorld;

const INVALID_TOPIC: i16 = 17;
const OFFSET_NOT_AVAILABLE: i16 = 78;
/// Asks for the end, and for no time.
const LATEST: i64 = -1;
/// Further ahead than any patience.
const FAR_MS: u64 = 3_600_000;
/// The longest wait for a moment that is not final yet.
const PATIENCE_MS: u64 = 900;

pub(crate) struct MomentReader {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    name: String,
    /// Moments that were answered, to be read again.
    known_bounds: Vec<Hlc>,
}

impl MomentReader {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: u32, mut rng: SeededRng) -> MomentReader {
        let client = SimClient::new(world, rng.fork());
        let (world, name) = (Rc::clone(world), format!("moment_reader{nth}"));
        MomentReader { world, client, rng, name, known_bounds: Vec::new() }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 10, 150).await;
            match self.rng.below(10) {
                0..4 => self.request_cut().await,
                4..7 => self.read_moment().await,
                7..9 => self.search_user_time().await,
                _ => self.read_user_time_end().await,
            }
        }
    }

    /// A moment, and what to do if it is not final.
    fn random_moment(&mut self) -> (Hlc, &'static str) {
        if self.rng.one_in(6)
            && let Some(at) = self.random_pinned_moment()
        {
            return (at, "wait");
        }
        let now = self.world.clock.wall_ms();
        let ms = match self.rng.below(12) {
            0..3 => now - self.rng.below(4000),
            3..5 => now + self.rng.below(3),
            5 => now + self.rng.below(700),
            6 => now + FAR_MS,
            7..9 => return (Hlc::at(SysTime(now + FAR_MS)), "frontier"),
            _ if self.known_bounds.is_empty() => now,
            _ => return (*self.rng.pick(&self.known_bounds), "wait"),
        };
        let when = *self.rng.pick(&["wait", "wait", "refuse"]);
        (Hlc::at(SysTime(ms)), when)
    }

    /// A moment that a pin keeps.
    fn random_pinned_moment(&mut self) -> Option<Hlc> {
        let ledger = self.world.ledger.borrow();
        let pins: Vec<Hlc> = ledger.pins.iter().filter(|p| !p.is_over).map(|p| p.at).collect();
        (!pins.is_empty()).then(|| *self.rng.pick(&pins))
    }

    /// True if the incarnation of the request has ended: data that were not durable then may be
    /// gone by now.
    fn is_stale(&self, life: u64) -> bool {
        self.world.incarnation.get() != life
    }

    async fn request_cut(&mut self) {
        let (at, when) = self.random_moment();
        let question =
            json!({"op": "cut", "at": format_moment(at), "when": when, "patience_ms": PATIENCE_MS});
        let (asked, wall_ms) = (self.world.next_step(), self.world.clock.wall_ms());
        let life = self.world.incarnation.get();
        let Ok(answer) = self.client.call_extension(&question).await else { return };
        if self.is_stale(life) {
            return;
        }
        if let Some(code) = answer["error"]["code"].as_str() {
            self.world.note(&self.name, &format!("cut at {at}, {when}: {code}"));
            if let Some(why) = parse_refusal(code) {
                // It may have been set back meanwhile.
                let wall_ms = wall_ms.min(self.world.clock.wall_ms());
                self.world.audit(AuditOccasion::NewEntries);
                return self.world.report(&SimFact::CutRefused { at, wall_ms, reason: why });
            }
            // A disk may fail, and a clock be fenced.
            return;
        }
        let Some(cut) = parse_cut(&answer) else {
            return self.world.fail(&self.name, &format!("an answer to a cut is odd: {answer}"));
        };
        let (count, frontier, durable) = (cut.spans.len(), cut.frontier, cut.is_durable);
        self.world.note(
            &self.name,
            &format!("cut at {}, {when}: {count}, frontier {frontier}, durable {durable}", cut.at),
        );
        self.known_bounds.push(cut.at);
        self.world.audit(AuditOccasion::NewEntries);
        self.world.report(&SimFact::Cut { request_step: asked, cut });
    }

    /// Reads a partition as of a moment, to its end.
    async fn read_moment(&mut self) {
        let (topic, partition) = random_partition(&mut self.rng);
        let (at, _) = self.random_moment();
        let (name, life) = (moment_name(topic, at), self.world.incarnation.get());
        let (mut records, mut next) = (Vec::new(), 0);
        let span = loop {
            let fetched = match fetch_from(&mut self.client, &name, partition, next).await {
                Ok(Ok(fetched)) => fetched,
                Ok(Err(why)) => return self.world.fail(&self.name, &why),
                Err(_) => return,
            };
            if self.is_stale(life) {
                return;
            }
            if fetched.is_before_start(next) {
                (records, next) = (Vec::new(), fetched.start);
                continue;
            }
            if fetched.code != 0 {
                return self.report_refusal(topic, partition, at, fetched.code);
            }
            let span = OffsetSpan { start: fetched.start, end: fetched.end };
            let before = next;
            records.extend(fetched.records.into_iter().filter(|record| record.offset >= next));
            next = fetched.next;
            if next >= span.end || next == before {
                break span;
            }
        };
        records.retain(|record| record.offset >= span.start);
        self.world.note(
            &self.name,
            &format!("{topic}/{partition} at {at}: {span:?}, {} records", records.len()),
        );
        self.known_bounds.push(at);
        let wall_ms = self.world.clock.wall_ms();
        let moment =
            MomentContents { topic: topic.to_owned(), partition, at, wall_ms, span, records };
        self.world.audit(AuditOccasion::NewEntries);
        self.world.report(&SimFact::Moment(moment));
    }

    fn report_refusal(&self, topic: &str, partition: u32, at: Hlc, code: i16) {
        self.world.note(&self.name, &format!("{topic}/{partition} at {at}: code {code}"));
        let why = match code {
            INVALID_TOPIC => MomentRefusal::Invalid,
            OFFSET_NOT_AVAILABLE => MomentRefusal::NotYet,
            _ => return,
        };
        self.world.audit(AuditOccasion::NewEntries);
        let topic = topic.to_owned();
        self.world.report(&SimFact::MomentRefused { topic, at, reason: why });
    }

    /// Looks for a user time inside a moment.
    async fn search_user_time(&mut self) {
        if self.known_bounds.is_empty() {
            return;
        }
        let (topic, partition) = random_partition(&mut self.rng);
        let at = *self.rng.pick(&self.known_bounds);
        let time = self.world.clock.wall_ms() as i64 - self.rng.below(6000) as i64 + 1000;
        let request = list_offsets_request(&moment_name(topic, at), partition as i32, time);
        let life = self.world.incarnation.get();
        let Ok(answer) = self.client.call::<ListOffsetsRequest>(6, &request).await else { return };
        if self.is_stale(life) {
            return;
        }
        let answer = &answer.topics[0].partitions[0];
        if answer.error_code != 0 {
            return self.report_refusal(topic, partition, at, answer.error_code);
        }
        let found = (answer.offset >= 0).then_some((answer.offset as u64, answer.timestamp));
        self.world.note(&self.name, &format!("{topic}/{partition} at {at} from {time}: {found:?}"));
        let topic = topic.to_owned();
        self.world.audit(AuditOccasion::NewEntries);
        self.world.report(&SimFact::UserTimeSearch(UserTimeSearch {
            topic,
            partition,
            at,
            time,
            found,
        }));
    }
}

impl MomentReader {
    /// Reads the end of a partition as of a user time, as known at a moment.
    async fn read_user_time_end(&mut self) {
        if self.known_bounds.is_empty() {
            return;
        }
        let (topic, partition) = random_partition(&mut self.rng);
        let known = *self.rng.pick(&self.known_bounds);
        let time = known.time().0 as i64 - self.rng.below(6000) as i64 + 2000;
        let name = bitemporal_name(topic, time, known);
        let request = list_offsets_request(&name, partition as i32, LATEST);
        let life = self.world.incarnation.get();
        let Ok(answer) = self.client.call::<ListOffsetsRequest>(6, &request).await else { return };
        let answer = &answer.topics[0].partitions[0];
        let (code, end) = (answer.error_code, answer.offset);
        self.world.note(&self.name, &format!("{name}/{partition} ends at {end}, code {code}"));
        if self.is_stale(life) || code != 0 {
            return;
        }
        self.world.audit(AuditOccasion::NewEntries);
        let (topic, end) = (topic.to_owned(), end as u64);
        self.world.report(&SimFact::UserTimeEnd { topic, partition, time, known, end });
    }
}

fn parse_refusal(code: &str) -> Option<MomentRefusal> {
    Some(match code {
        "not_yet" => MomentRefusal::NotYet,
        "far_future" => MomentRefusal::Future,
        "before_history" => MomentRefusal::BeforeHistory,
        "unknown_topic" => MomentRefusal::UnknownTopic,
        _ => return None,
    })
}

fn parse_cut(answer: &Value) -> Option<SimCut> {
    let mut spans = BTreeMap::new();
    for held in answer["partitions"].as_array()? {
        let place = (held["topic"].as_str()?.to_owned(), held["partition"].as_u64()? as u32);
        let span = OffsetSpan { start: held["start"].as_u64()?, end: held["end"].as_u64()? };
        spans.insert(place, span);
    }
    Some(SimCut {
        at: parse_bound(&answer["at"])?,
        frontier: parse_bound(&answer["frontier"])?,
        is_durable: answer["durable"].as_bool()?,
        hash: answer["hash"].as_str()?.to_owned(),
        spans,
    })
}
