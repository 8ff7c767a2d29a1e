//! The actors that act upon the node, each with its own randomness.

mod admin;
mod classic_member;
mod committed_reader;
mod consumer;
mod file_writer;
mod group_member;
mod history_reader;
mod moment_reader;
mod offset_committer;
mod pin_admin;
mod producer;
mod racing_clients;
mod requests;
mod session_consumer;
mod share_member;
mod slow_client;
mod small_file_writer;
mod streams_member;
mod topic_admin;
mod transactional_producer;
mod znode_client;
mod znode_writer;

use std::rc::Rc;
use std::time::Duration;

use testkit::rng::SeededRng;
use tokio::task::JoinHandle;

pub(crate) use admin::SimAdmin;
pub(crate) use file_writer::read_snapshot;

use crate::node::WorldShape;
use crate::world::SimWorld;

/// A topic that exists from the beginning: its name, its number of partitions, and its settings.
type StandingTopic = (&'static str, u32, &'static [(&'static str, &'static str)]);

const COMPACTED_TOPIC: &str = "keyed";

const STANDING_TOPICS: [StandingTopic; 3] = [
    ("plain", 3, &[]),
    ("short", 2, &[("retention.ms", "2500")]),
    (
        COMPACTED_TOPIC,
        2,
        &[
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0"),
            ("delete.retention.ms", "6000"),
            ("min.compaction.lag.ms", "0"),
        ],
    ),
];

/// The names of topics that are created and deleted: so long that it is worth forgetting them.
const TRANSIENT_TOPICS: [&str; 2] = [
    "passing-a.........................................................................................",
    "passing-b.........................................................................................",
];

/// Two topics that two clients create and delete at the same time: they may not both exist.
const RACED_TOPICS: [&str; 2] = ["raced.topic", "raced_topic"];

/// A topic's name, and one of its partitions.
fn random_partition(rng: &mut SeededRng) -> (&'static str, u32) {
    if rng.one_in(5) {
        return (*rng.pick(&TRANSIENT_TOPICS), rng.below(2) as u32);
    }
    let (name, partitions, _) = *rng.pick(&STANDING_TOPICS);
    (name, rng.below(partitions.into()) as u32)
}

async fn pause(rng: &mut SeededRng, least_ms: u64, most_ms: u64) {
    tokio::time::sleep(Duration::from_millis(rng.between(least_ms, most_ms))).await;
}

/// After this long, a request on a connection that broke has been executed, or never will be.
const UNKNOWN_OUTCOME_WAIT: Duration = Duration::from_secs(2);
/// The interval at which a waiting actor checks whether the node has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits for something, unless the node exits first.
async fn unless_node_exits<T>(
    world: &SimWorld,
    deaths: u64,
    doing: impl Future<Output = T>,
) -> Option<T> {
    let mut doing = std::pin::pin!(doing);
    loop {
        match tokio::time::timeout(EXIT_POLL_INTERVAL, &mut doing).await {
            Ok(done) => return Some(done),
            Err(_) if deaths != world.incarnation.get() => return None,
            Err(_) => {}
        }
    }
}

/// Spawns all actors; each ends when the world does.
pub(crate) fn spawn_all(world: &Rc<SimWorld>, rng: &mut SeededRng) -> Vec<JoinHandle<()>> {
    let mut actors = Vec::new();
    for nth in 0..4 {
        let producer = producer::SimProducer::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(producer.run()));
    }
    actors.push(tokio::task::spawn_local(consumer::run(Rc::clone(world), rng.fork())));
    for nth in 0..2 {
        let consumer = session_consumer::SessionConsumer::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(consumer.run()));
    }
    for nth in 0..2 {
        let moment_reader = moment_reader::MomentReader::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(moment_reader.run()));
    }
    let topic_admin = topic_admin::TopicAdmin::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(topic_admin.run()));
    let offset_committer = offset_committer::OffsetCommitter::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(offset_committer.run()));
    let pin_admin = pin_admin::PinAdmin::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(pin_admin.run()));
    let file_writer = file_writer::FileWriter::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(file_writer.run()));
    if world.shape != WorldShape::Short {
        let small_file_writer = small_file_writer::SmallFileWriter::new(world, rng.fork());
        actors.push(tokio::task::spawn_local(small_file_writer.run()));
    }
    for nth in 0..3 {
        let slow_client = slow_client::run_slow_client(Rc::clone(world), nth, rng.fork());
        actors.push(tokio::task::spawn_local(slow_client));
    }
    actors.push(tokio::task::spawn_local(slow_client::run_prober(Rc::clone(world), rng.fork())));
    actors.push(tokio::task::spawn_local(history_reader::run(Rc::clone(world), rng.fork())));
    let znode_writer = znode_writer::ZnodeWriter::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(znode_writer.run()));
    let znode_client = znode_client::ZnodeClient::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(znode_client.run()));
    for nth in 0..3 {
        let producer = transactional_producer::TransactionalProducer::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(producer.run()));
    }
    let committed_reader = committed_reader::CommittedReader::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(committed_reader.run()));
    for nth in 0..3 {
        let member = group_member::GroupMember::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(member.run()));
    }
    for nth in 0..2 {
        let member = share_member::ShareMember::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(member.run()));
    }
    for nth in 0..3 {
        let member = classic_member::ClassicMember::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(member.run()));
    }
    for nth in 0..3 {
        let member = streams_member::StreamsMember::new(world, nth, rng.fork());
        actors.push(tokio::task::spawn_local(member.run()));
    }
    let racing_clients = racing_clients::RacingClients::new(world, rng.fork());
    actors.push(tokio::task::spawn_local(racing_clients.run()));
    actors
}
