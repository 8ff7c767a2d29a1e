//! Clients that send or read a byte now and then: each is ended by its deadline. Also a
//! well-behaved one, which must be answered meanwhile.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use compat_kafka::ByteStream;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{MetadataRequest, ProduceRequest};
use kafka_records::{BatchBuilder, CompressionType};
use testkit::requests::{encode_frame, produce_request, topic_name};
use testkit::rng::SeededRng;
use tokio::time::Instant;

use super::pause;
use super::producer::SimProducer;
use crate::coverage::CoveragePoint;
use crate::network::SimSocket;
use crate::node::STALL_MAX;
use crate::wire::{CALL_TIMEOUT, SimClient};
use crate::world::SimWorld;

/// A topic that does not exist.
const UNKNOWN_TOPIC: &str = "nowhere";
/// Their names in a response take more than the network holds.
const TOPIC_NAMES: usize = 600;
/// The longest time until a client is ended: it may also wait for room, for as long as it may
/// pause.
const CLOSED_WITHIN: Duration = Duration::from_secs(4);

/// The behaviour of a slow client before it trickles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlowClientMode {
    /// It sends most of a request.
    Request { bytes: usize, announced: usize },
    /// It requests more than it reads.
    Answers,
    /// It writes, and requests more than it reads.
    Writes,
}

const MODES: [SlowClientMode; 6] = [
    SlowClientMode::Request { bytes: 2, announced: 100 },
    SlowClientMode::Request { bytes: 9000, announced: 10_000 },
    SlowClientMode::Request { bytes: 150_000, announced: 200_000 },
    SlowClientMode::Request { bytes: 180_000, announced: 90 << 20 },
    SlowClientMode::Answers,
    SlowClientMode::Writes,
];

impl SlowClientMode {
    fn is_reader(self) -> bool {
        matches!(self, SlowClientMode::Answers | SlowClientMode::Writes)
    }

    /// The bytes that it sends at once.
    fn first_bytes(self, producer: &mut SimProducer) -> Vec<u8> {
        match self {
            SlowClientMode::Request { bytes, announced } => {
                let mut frame = (announced as i32).to_be_bytes().to_vec();
                frame.resize(bytes, 0);
                frame
            }
            SlowClientMode::Answers => request_with_long_answer().repeat(3),
            SlowClientMode::Writes => {
                let mut frames = producer.encode_requests(24);
                frames.insert(4, request_with_many_errors());
                frames.concat()
            }
        }
    }
}

fn request_with_long_answer() -> Vec<u8> {
    let topic = |nth| {
        MetadataRequestTopic::default()
            .with_name(Some(topic_name(&format!("{UNKNOWN_TOPIC}-{nth}"))))
    };
    encode_frame(
        12,
        &MetadataRequest::default().with_topics(Some((0..TOPIC_NAMES).map(topic).collect())),
    )
}

/// A produce request that is refused at once, with a long response.
fn request_with_many_errors() -> Vec<u8> {
    let data = |nth| PartitionProduceData::default().with_index(nth as i32);
    let topic = TopicProduceData::default()
        .with_name(topic_name(UNKNOWN_TOPIC))
        .with_partition_data((0..TOPIC_NAMES).map(data).collect());
    encode_frame(9, &ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic]))
}

/// Runs a slow client, again and again.
pub(super) async fn run_slow_client(world: Rc<SimWorld>, nth: u32, mut rng: SeededRng) {
    let who = format!("slow{nth}");
    let mut producer = SimProducer::new(&world, 11 + 2 * nth, rng.fork());
    while !world.is_over() {
        pause(&mut rng, 20, 1200).await;
        let Some(end) = world.connect(&mut rng) else { continue };
        let manner = *rng.pick(&MODES);
        world.note(&who, &format!("begins: {manner:?}"));
        let opening = manner.first_bytes(&mut producer);
        let sending = tokio::time::timeout(CLOSED_WITHIN, end.send(&opening));
        let deaths = world.incarnation.get();
        let is_open = matches!(sending.await, Ok(Ok(())));
        let begun = Instant::now();
        while is_open && deaths == world.incarnation.get() && is_accepted(&end, manner) {
            if begun.elapsed() > CLOSED_WITHIN && world.is_serving() {
                return world.fail(&who, &format!("is not disconnected: {manner:?}"));
            }
            pause(&mut rng, 50, 300).await;
        }
        if is_open
            && world.is_serving()
            && deaths == world.incarnation.get()
            && begun.elapsed() >= STALL_MAX
        {
            world.note(&who, "is disconnected");
            world.cover(if manner.is_reader() {
                CoveragePoint::SlowReaderClosed
            } else {
                CoveragePoint::SlowSenderClosed
            });
        }
    }
}

/// Sends another byte, or reads one and sends one; returns whether the node takes part.
fn is_accepted(end: &SimSocket, manner: SlowClientMode) -> bool {
    let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    if manner.is_reader() {
        // Bytes in flight can be read after the end.
        let _ = end.try_read(&mut [0]);
    }
    end.try_write_vectored(&[io::IoSlice::new(&[0])])
        .map_or_else(|error| would_block(&error), |_| true)
}

/// Sends requests that a working node must answer, however slow other clients are.
pub(super) async fn run_prober(world: Rc<SimWorld>, mut rng: SeededRng) {
    let value = vec![b'x'; 140_000];
    let large = BatchBuilder::new(CompressionType::None).record(0, None, Some(&value), &[]).build();
    let large = produce_request(UNKNOWN_TOPIC, 0, &large);
    let mut producer = SimProducer::new(&world, 21, rng.fork());
    while !world.is_over() {
        pause(&mut rng, 100, 500).await;
        let (deaths, begun) = (world.incarnation.get(), Instant::now());
        let is_answered = if rng.one_in(2) {
            producer.deliver(&[("plain", 0)]).await
        } else {
            SimClient::new(&world, rng.fork()).call(9, &large).await.is_ok()
        };
        let is_stuck = !is_answered && begun.elapsed() >= CALL_TIMEOUT;
        if is_stuck && deaths == world.incarnation.get() && world.is_serving() {
            return world.fail("prober", "is not answered while others are slow");
        }
    }
}
