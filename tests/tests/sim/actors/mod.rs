//! Who acts upon the node, each with randomness of its own.

mod antiquary;
mod committer;
mod consumer;
mod historian;
mod hoarder;
mod namekeeper;
mod operator;
mod pinner;
mod producer;
mod requests;
mod scribe;
mod slow_client;

use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub(crate) use operator::Operator;
pub(crate) use scribe::sight;

use crate::chance::Chance;
use crate::node::Shape;
use crate::world::World;

/// A topic that is there from the beginning: its name, how many partitions, and its settings.
type Standing = (&'static str, u32, &'static [(&'static str, &'static str)]);

/// The topic that is compacted.
const KEYED: &str = "keyed";

/// How long a tombstone stays.
pub(crate) const DELETE_RETENTION_MS: u64 = 6000;

/// How long a record of the topic `short` stays.
pub(crate) const SHORT_RETENTION_MS: u64 = 2500;

/// The topics that stay.
const STANDING: [Standing; 3] = [
    ("plain", 3, &[]),
    ("short", 2, &[("retention.ms", "2500")]),
    (
        KEYED,
        2,
        &[
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0"),
            ("delete.retention.ms", "6000"),
            ("min.compaction.lag.ms", "0"),
        ],
    ),
];

/// The names of topics that come and go: so long that it is worth forgetting them.
const PASSING: [&str; 2] = [
    "passing-a.........................................................................................",
    "passing-b.........................................................................................",
];

/// A topic's name, and one of its partitions.
fn somewhere(chance: &mut Chance) -> (&'static str, u32) {
    if chance.one_in(5) {
        return (*chance.pick(&PASSING), chance.below(2) as u32);
    }
    let (name, partitions, _) = *chance.pick(&STANDING);
    (name, chance.below(partitions.into()) as u32)
}

async fn pause(chance: &mut Chance, least_ms: u64, most_ms: u64) {
    tokio::time::sleep(Duration::from_millis(chance.between(least_ms, most_ms))).await;
}

/// How often somebody who waits looks whether the node has died meanwhile.
const LOOKS: Duration = Duration::from_millis(5);

/// Waits for something, unless the life after so many deaths ends before.
async fn unless_it_dies<T>(
    world: &World,
    deaths: u64,
    doing: impl Future<Output = T>,
) -> Option<T> {
    let mut doing = std::pin::pin!(doing);
    loop {
        match tokio::time::timeout(LOOKS, &mut doing).await {
            Ok(done) => return Some(done),
            Err(_) if deaths != world.deaths.get() => return None,
            Err(_) => {}
        }
    }
}

/// Sets all of them to work; each ends when the world does.
pub(crate) fn spawn_all(world: &Rc<World>, chance: &mut Chance) -> Vec<JoinHandle<()>> {
    let mut actors = Vec::new();
    for nth in 0..4 {
        let producer = producer::Producer::new(world, nth, chance.fork());
        actors.push(tokio::task::spawn_local(producer.run()));
    }
    actors.push(tokio::task::spawn_local(consumer::run(Rc::clone(world), chance.fork())));
    for nth in 0..2 {
        let historian = historian::Historian::new(world, nth, chance.fork());
        actors.push(tokio::task::spawn_local(historian.run()));
    }
    let namekeeper = namekeeper::Namekeeper::new(world, chance.fork());
    actors.push(tokio::task::spawn_local(namekeeper.run()));
    let committer = committer::Committer::new(world, chance.fork());
    actors.push(tokio::task::spawn_local(committer.run()));
    let pinner = pinner::Pinner::new(world, chance.fork());
    actors.push(tokio::task::spawn_local(pinner.run()));
    let scribe = scribe::Scribe::new(world, chance.fork());
    actors.push(tokio::task::spawn_local(scribe.run()));
    if world.shape != Shape::Short {
        let hoarder = hoarder::Hoarder::new(world, chance.fork());
        actors.push(tokio::task::spawn_local(hoarder.run()));
    }
    for nth in 0..3 {
        let trickling = slow_client::trickle(Rc::clone(world), nth, chance.fork());
        actors.push(tokio::task::spawn_local(trickling));
    }
    actors.push(tokio::task::spawn_local(slow_client::ask(Rc::clone(world), chance.fork())));
    actors.push(tokio::task::spawn_local(antiquary::run(Rc::clone(world), chance.fork())));
    actors
}
