//! Clients that send or read a byte now and then: each is ended by its deadline. And one with good manners, which must be
//! answered meanwhile.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use compat_kafka::Stream;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{MetadataRequest, ProduceRequest};
use kafka_records::{BatchBuilder, Codec};
use tests::wire::{frame, name, produce};
use tokio::time::Instant;

use super::pause;
use super::producer::Producer;
use crate::chance::Chance;
use crate::network::End;
use crate::node::STALL_MAX;
use crate::reached::Reached;
use crate::wire::{Client, PATIENCE};
use crate::world::World;

/// A topic that there is not.
const NOWHERE: &str = "nowhere";
/// So many of them take more than the network holds, in an answer.
const NAMES: usize = 600;
/// How long a client is ended at the latest: it may wait for room besides, for as long as it may pause.
const ENDED_WITHIN: Duration = Duration::from_secs(4);

/// What a slow client does before it trickles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It sends most of a request.
    Request { bytes: usize, announced: usize },
    /// It asks for more than it reads.
    Answers,
    /// It writes, and asks for more than it reads.
    Writes,
}

const MANNERS: [Manner; 6] = [
    Manner::Request { bytes: 2, announced: 100 },
    Manner::Request { bytes: 9000, announced: 10_000 },
    Manner::Request { bytes: 150_000, announced: 200_000 },
    Manner::Request { bytes: 180_000, announced: 90 << 20 },
    Manner::Answers,
    Manner::Writes,
];

impl Manner {
    fn is_reader(self) -> bool {
        matches!(self, Manner::Answers | Manner::Writes)
    }

    /// What it sends at once.
    fn opening(self, producer: &mut Producer) -> Vec<u8> {
        match self {
            Manner::Request { bytes, announced } => {
                let mut frame = (announced as i32).to_be_bytes().to_vec();
                frame.resize(bytes, 0);
                frame
            }
            Manner::Answers => long_answer().repeat(3),
            Manner::Writes => {
                let mut frames = producer.frames(24);
                frames.insert(4, refused_often());
                frames.concat()
            }
        }
    }
}

/// A question whose answer is long.
fn long_answer() -> Vec<u8> {
    let topic =
        |nth| MetadataRequestTopic::default().with_name(Some(name(&format!("{NOWHERE}-{nth}"))));
    frame(12, &MetadataRequest::default().with_topics(Some((0..NAMES).map(topic).collect())))
}

/// A request to produce that is refused at once, at length.
fn refused_often() -> Vec<u8> {
    let data = |nth| PartitionProduceData::default().with_index(nth as i32);
    let topic = TopicProduceData::default()
        .with_name(name(NOWHERE))
        .with_partition_data((0..NAMES).map(data).collect());
    frame(9, &ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic]))
}

/// Is a slow client, again and again.
pub(super) async fn trickle(world: Rc<World>, nth: u32, mut chance: Chance) {
    let who = format!("slow{nth}");
    let mut producer = Producer::new(&world, 11 + 2 * nth, chance.fork());
    while !world.is_over() {
        pause(&mut chance, 20, 1200).await;
        let Some(end) = world.connect() else { continue };
        let manner = *chance.pick(&MANNERS);
        world.note(&who, &format!("begins: {manner:?}"));
        let opening = manner.opening(&mut producer);
        let sending = tokio::time::timeout(ENDED_WITHIN, end.send(&opening));
        let deaths = world.deaths.get();
        let is_open = matches!(sending.await, Ok(Ok(())));
        let begun = Instant::now();
        while is_open && deaths == world.deaths.get() && is_taken(&end, manner) {
            if begun.elapsed() > ENDED_WITHIN && world.serves() {
                return world.fail(&who, &format!("is not ended: {manner:?}"));
            }
            pause(&mut chance, 50, 300).await;
        }
        if is_open && world.serves() && deaths == world.deaths.get() && begun.elapsed() >= STALL_MAX
        {
            world.note(&who, "is ended");
            world.reach(if manner.is_reader() { Reached::SlowReader } else { Reached::SlowSender });
        }
    }
}

/// Sends a byte more, or reads one and sends one; whether the node takes part.
fn is_taken(end: &End, manner: Manner) -> bool {
    let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    if manner.is_reader() {
        // What is on its way can be read behind the end.
        let _ = end.try_read(&mut [0]);
    }
    end.try_write_vectored(&[io::IoSlice::new(&[0])])
        .map_or_else(|error| would_block(&error), |_| true)
}

/// Asks for what a node that serves has to answer, whoever else is slow.
pub(super) async fn ask(world: Rc<World>, mut chance: Chance) {
    let value = vec![b'x'; 140_000];
    let large = BatchBuilder::new(Codec::None).record(0, None, Some(&value), &[]).build();
    let large = produce(NOWHERE, 0, &large);
    let mut producer = Producer::new(&world, 21, chance.fork());
    while !world.is_over() {
        pause(&mut chance, 100, 500).await;
        let (deaths, begun) = (world.deaths.get(), Instant::now());
        let is_answered = match chance.one_in(2) {
            true => producer.deliver(&[("plain", 0)]).await,
            false => Client::new(&world).ask(9, &large).await.is_ok(),
        };
        let is_stuck = !is_answered && begun.elapsed() >= PATIENCE;
        if is_stuck && deaths == world.deaths.get() && world.serves() {
            return world.fail("asker", "is not answered while others are slow");
        }
    }
}
