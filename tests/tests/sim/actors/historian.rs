//! A reader of the past: cuts, moments of topics, user times; and all of it again, later.

use std::collections::BTreeMap;
use std::rc::Rc;

use hlc::{Hlc, SysTime};
use kafka_protocol::messages::ListOffsetsRequest;
use serde_json::{Value, json};
use tests::wire::list_offsets;

use super::requests::{bitemporal_name, bound, fetch_from, moment_name, spelled};
use super::{pause, somewhere};
use crate::audit::Occasion;
use crate::chance::Chance;
use crate::facts::{Cut, Fact, Moment, Refusal, Sought, Span};
use crate::wire::Client;
use crate::world::World;

const INVALID_TOPIC: i16 = 17;
const OFFSET_NOT_AVAILABLE: i16 = 78;
/// Asks for the end, and for no time.
const LATEST: i64 = -1;
/// Further ahead than anybody waits.
const FAR_MS: u64 = 3_600_000;
/// How long it waits for a moment that is not past yet.
const PATIENCE_MS: u64 = 900;

pub(crate) struct Historian {
    world: Rc<World>,
    client: Client,
    chance: Chance,
    name: String,
    /// Moments that were answered, to be asked for again.
    known: Vec<Hlc>,
}

impl Historian {
    pub(crate) fn new(world: &Rc<World>, nth: u32, chance: Chance) -> Historian {
        let client = Client::new(world);
        let (world, name) = (Rc::clone(world), format!("historian{nth}"));
        Historian { world, client, chance, name, known: Vec::new() }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.chance, 10, 150).await;
            match self.chance.below(10) {
                0..4 => self.cut().await,
                4..7 => self.read_moment().await,
                7..9 => self.seek().await,
                _ => self.ask_user_end().await,
            }
        }
    }

    /// A moment, and what to do if it is not past.
    fn moment(&mut self) -> (Hlc, &'static str) {
        if self.chance.one_in(6)
            && let Some(at) = self.pinned()
        {
            return (at, "wait");
        }
        let now = self.world.clock.wall_ms();
        let ms = match self.chance.below(12) {
            0..3 => now - self.chance.below(4000),
            3..5 => now + self.chance.below(3),
            5 => now + self.chance.below(700),
            6 => now + FAR_MS,
            7..9 => return (Hlc::at(SysTime(now + FAR_MS)), "frontier"),
            _ if self.known.is_empty() => now,
            _ => return (*self.chance.pick(&self.known), "wait"),
        };
        let when = *self.chance.pick(&["wait", "wait", "refuse"]);
        (Hlc::at(SysTime(ms)), when)
    }

    /// A moment that a pin keeps.
    fn pinned(&mut self) -> Option<Hlc> {
        let ledger = self.world.ledger.borrow();
        let pins: Vec<Hlc> = ledger.pins.iter().filter(|p| !p.is_over).map(|p| p.at).collect();
        (!pins.is_empty()).then(|| *self.chance.pick(&pins))
    }

    /// Whether the life in which it asked has ended: what was not durable then may be gone by now.
    fn is_late(&self, life: u64) -> bool {
        self.world.deaths.get() != life
    }

    async fn cut(&mut self) {
        let (at, when) = self.moment();
        let question =
            json!({"op": "cut", "at": spelled(at), "when": when, "patience_ms": PATIENCE_MS});
        let (asked, wall_ms) = (self.world.step(), self.world.clock.wall_ms());
        let life = self.world.deaths.get();
        let Ok(answer) = self.client.ask_extension(&question).await else { return };
        if self.is_late(life) {
            return;
        }
        if let Some(code) = answer["error"]["code"].as_str() {
            self.world.note(&self.name, &format!("cut at {at}, {when}: {code}"));
            if let Some(why) = refusal(code) {
                // It may have been set back meanwhile.
                let wall_ms = wall_ms.min(self.world.clock.wall_ms());
                self.world.audit(Occasion::News);
                return self.world.tell(&Fact::CutRefused { at, wall_ms, why });
            }
            // A disk may fail, and a clock be fenced.
            return;
        }
        let Some(cut) = read_cut(&answer) else {
            return self.world.fail(&self.name, &format!("an answer to a cut is odd: {answer}"));
        };
        let (count, frontier, durable) = (cut.spans.len(), cut.frontier, cut.is_durable);
        self.world.note(
            &self.name,
            &format!("cut at {}, {when}: {count}, frontier {frontier}, durable {durable}", cut.at),
        );
        self.known.push(cut.at);
        self.world.audit(Occasion::News);
        self.world.tell(&Fact::Cut { asked, cut });
    }

    /// Reads a partition as of a moment, to its end.
    async fn read_moment(&mut self) {
        let (topic, partition) = somewhere(&mut self.chance);
        let (at, _) = self.moment();
        let (name, life) = (moment_name(topic, at), self.world.deaths.get());
        let (mut records, mut next) = (Vec::new(), 0);
        let span = loop {
            let fetched = match fetch_from(&mut self.client, &name, partition, next).await {
                Ok(Ok(fetched)) => fetched,
                Ok(Err(why)) => return self.world.fail(&self.name, &why),
                Err(_) => return,
            };
            if self.is_late(life) {
                return;
            }
            if fetched.is_too_early(next) {
                (records, next) = (Vec::new(), fetched.start);
                continue;
            }
            if fetched.code != 0 {
                return self.refused(topic, partition, at, fetched.code);
            }
            let span = Span { start: fetched.start, end: fetched.end };
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
        self.known.push(at);
        let wall_ms = self.world.clock.wall_ms();
        let moment = Moment { topic: topic.to_owned(), partition, at, wall_ms, span, records };
        self.world.audit(Occasion::News);
        self.world.tell(&Fact::Moment(moment));
    }

    fn refused(&self, topic: &str, partition: u32, at: Hlc, code: i16) {
        self.world.note(&self.name, &format!("{topic}/{partition} at {at}: code {code}"));
        let why = match code {
            INVALID_TOPIC => Refusal::Invalid,
            OFFSET_NOT_AVAILABLE => Refusal::NotYet,
            _ => return,
        };
        self.world.audit(Occasion::News);
        let topic = topic.to_owned();
        self.world.tell(&Fact::MomentRefused { topic, at, why });
    }

    /// Looks for a user time inside a moment.
    async fn seek(&mut self) {
        if self.known.is_empty() {
            return;
        }
        let (topic, partition) = somewhere(&mut self.chance);
        let at = *self.chance.pick(&self.known);
        let time = self.world.clock.wall_ms() as i64 - self.chance.below(6000) as i64 + 1000;
        let request = list_offsets(&moment_name(topic, at), partition as i32, time);
        let life = self.world.deaths.get();
        let Ok(answer) = self.client.ask::<ListOffsetsRequest>(6, &request).await else { return };
        if self.is_late(life) {
            return;
        }
        let answer = &answer.topics[0].partitions[0];
        if answer.error_code != 0 {
            return self.refused(topic, partition, at, answer.error_code);
        }
        let found = (answer.offset >= 0).then_some((answer.offset as u64, answer.timestamp));
        self.world.note(&self.name, &format!("{topic}/{partition} at {at} from {time}: {found:?}"));
        let topic = topic.to_owned();
        self.world.audit(Occasion::News);
        self.world.tell(&Fact::Sought(Sought { topic, partition, at, time, found }));
    }
}

impl Historian {
    /// Where a partition ends as of a user time, as known at a moment.
    async fn ask_user_end(&mut self) {
        if self.known.is_empty() {
            return;
        }
        let (topic, partition) = somewhere(&mut self.chance);
        let known = *self.chance.pick(&self.known);
        let time = known.time().0 as i64 - self.chance.below(6000) as i64 + 2000;
        let name = bitemporal_name(topic, time, known);
        let request = list_offsets(&name, partition as i32, LATEST);
        let life = self.world.deaths.get();
        let Ok(answer) = self.client.ask::<ListOffsetsRequest>(6, &request).await else { return };
        let answer = &answer.topics[0].partitions[0];
        let (code, end) = (answer.error_code, answer.offset);
        self.world.note(&self.name, &format!("{name}/{partition} ends at {end}, code {code}"));
        if self.is_late(life) || code != 0 {
            return;
        }
        self.world.audit(Occasion::News);
        let (topic, end) = (topic.to_owned(), end as u64);
        self.world.tell(&Fact::UserEnd { topic, partition, time, known, end });
    }
}

fn refusal(code: &str) -> Option<Refusal> {
    Some(match code {
        "not_yet" => Refusal::NotYet,
        "far_future" => Refusal::Future,
        "before_history" => Refusal::GivenUp,
        "unknown_topic" => Refusal::NoTopic,
        _ => return None,
    })
}

fn read_cut(answer: &Value) -> Option<Cut> {
    let mut spans = BTreeMap::new();
    for held in answer["partitions"].as_array()? {
        let place = (held["topic"].as_str()?.to_owned(), held["partition"].as_u64()? as u32);
        let span = Span { start: held["start"].as_u64()?, end: held["end"].as_u64()? };
        spans.insert(place, span);
    }
    Some(Cut {
        at: bound(&answer["at"])?,
        frontier: bound(&answer["frontier"])?,
        is_durable: answer["durable"].as_bool()?,
        hash: answer["hash"].as_str()?.to_owned(),
        spans,
    })
}
