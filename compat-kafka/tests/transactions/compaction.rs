//! Compaction of a topic with transactions, beside a model: from the horizon on, the state by key
//! is the same as without compaction, for readers of committed records and for others.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::CoreOptions;
use hlc::{Cut, Hlc, Moment};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::FetchRequest;
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer};
use testkit::requests::fetch_request;
use testkit::rng::SeededRng;

use super::fixture::{
    COMMITTED, Protocol, TransactionalProducer, UNCOMMITTED, read, server_on, server_with,
};

const PRODUCERS: usize = 3;
const KEYS: u64 = 4;
/// Memory of compaction for one key less.
const FEWER_KEYS_BYTES: usize = KEYS as usize * 24;
/// `min.compaction.lag.ms`
const LAG_MS: u64 = 50;

type State = BTreeMap<String, String>;

/// The last value of each key.
fn state(values: impl IntoIterator<Item = String>) -> State {
    let keyed = |value: String| (value.split_once('=').unwrap().0.to_owned(), value);
    values.into_iter().map(keyed).collect()
}

struct ModelRecord {
    value: String,
    stamp: Hlc,
    transaction: u64,
}

#[derive(Default)]
struct Model {
    written: Vec<ModelRecord>,
    /// The stamp behind the decision of each committed transaction.
    committed: BTreeMap<u64, Hlc>,
}

impl Model {
    fn state(&self, until: Hlc, only_committed: bool) -> State {
        let is_in = |one: &&ModelRecord| {
            let decided = self.committed.get(&one.transaction);
            one.stamp <= until && (!only_committed || decided.is_some_and(|at| *at <= until))
        };
        state(self.written.iter().filter(is_in).map(|one| one.value.clone()))
    }
}

/// True if a moment can still be read.
async fn is_readable(connection: &mut TestKafkaConnection, topic: &str) -> bool {
    let request: FetchRequest = fetch_request(topic, 0, 0, Duration::ZERO);
    let answer = connection.ask(12, &request).await.unwrap();
    let code = answer.responses[0].partitions[0].error_code;
    assert!(
        matches!(
            ResponseError::try_from_code(code),
            None | Some(ResponseError::PolicyViolation | ResponseError::InvalidTopicException)
        ),
        "{topic}: {:?}",
        ResponseError::try_from_code(code)
    );
    code == 0
}

async fn compact(server: &TestKafkaServer) {
    let maintenance = server.engine.core().maintenance();
    maintenance.roll_segment().await.unwrap();
    maintenance.index_and_sort().await.unwrap();
    maintenance.compact_due().await.unwrap();
}

/// Returns the number of moments that were readable when they were looked at, and of those that
/// were not.
async fn run(seed: u64) -> (usize, usize) {
    let mut random = SeededRng::new(seed);
    let mut options = CoreOptions::default();
    if seed % 2 == 1 {
        options.maintenance.dynamic.compaction_bytes_max = FEWER_KEYS_BYTES;
    }
    let server = server_with(&MemoryDisk::new(), options).await;
    let lag = LAG_MS.to_string();
    let configs = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0"),
        ("min.compaction.lag.ms", &lag),
    ];
    server.topic("t", &configs).await;
    let mut producers = Vec::new();
    for nth in 0..PRODUCERS {
        let protocol = if nth == 0 { Protocol::V1 } else { Protocol::V2 };
        producers.push(TransactionalProducer::start(&server, protocol, &format!("p{nth}")).await);
    }
    let mut open = [None; PRODUCERS];
    let (mut model, mut moments) = (Model::default(), Vec::new());
    for step in 0..200 {
        let nth = random.below(PRODUCERS as u64) as usize;
        server.clock.advance(Duration::from_millis(random.below(20)));
        match random.below(100) {
            0..50 => {
                let count = 1 + random.below(2);
                let values = (0..count).map(|_| format!("k{}={step}", random.below(KEYS)));
                let values: Vec<String> = values.collect();
                let sent: Vec<&str> = values.iter().map(String::as_str).collect();
                assert_eq!(producers[nth].send_all("t", 0, &sent).await.0, 0);
                let transaction = *open[nth].get_or_insert(step);
                let stamp = server.engine.last_stamp();
                let written = values.into_iter();
                model.written.extend(written.map(|value| ModelRecord {
                    value,
                    stamp,
                    transaction,
                }));
            }
            50..80 => {
                let Some(transaction) = open[nth].take() else { continue };
                let commits = random.below(3) > 0;
                producers[nth].must_end(commits).await;
                if commits {
                    model.committed.insert(transaction, server.engine.last_stamp());
                }
            }
            80..90 => compact(&server).await,
            _ => moments.push(server.engine.last_stamp()),
        }
    }
    for (nth, producer) in producers.iter_mut().enumerate() {
        if let Some(transaction) = open[nth] {
            producer.must_end(true).await;
            model.committed.insert(transaction, server.engine.last_stamp());
        }
    }
    let reader = &mut producers[0].connection;
    let before = check(&server, reader, &model, &moments, seed).await;
    moments.push(server.engine.last_stamp());
    server.clock.advance(Duration::from_millis(LAG_MS + 1));
    compact(&server).await;
    let after = check(&server, reader, &model, &moments, seed).await;
    (before.0 + after.0, before.1 + after.1)
}

/// Returns the number of moments that are still readable, and of those that are not.
async fn check(
    server: &TestKafkaServer,
    reader: &mut TestKafkaConnection,
    model: &Model,
    moments: &[Hlc],
    seed: u64,
) -> (usize, usize) {
    let now = server.engine.last_stamp();
    let (mut readable, mut lost) = (0, 0);
    for (isolation, committed) in [(COMMITTED, true), (UNCOMMITTED, false)] {
        let found = state(read(reader, "t", 0, isolation).await.values);
        assert_eq!(found, model.state(now, committed), "seed {seed}, now");
        for moment in moments {
            let name = format!("t@{}", Moment::Sys(Cut::through(*moment)));
            if !is_readable(reader, &name).await {
                lost += 1;
                continue;
            }
            readable += 1;
            let found = state(read(reader, &name, 0, isolation).await.values);
            assert_eq!(found, model.state(*moment, committed), "seed {seed}, {name}, {isolation}");
        }
    }
    (readable, lost)
}

#[tokio::test]
async fn the_state_by_key_is_the_same_from_the_horizon_on() {
    let (mut readable, mut lost) = (0, 0);
    for seed in 0..12 {
        let counts = run(seed).await;
        readable += counts.0;
        lost += counts.1;
    }
    assert!(readable > 50 && lost > 50, "{readable} readable, {lost} lost");
}

#[tokio::test]
async fn a_moment_before_a_decision_is_unchanged_by_a_compaction_that_removes_nothing() {
    for protocol in [Protocol::V1, Protocol::V2] {
        let server = server_on(&MemoryDisk::new()).await;
        let lag = LAG_MS.to_string();
        let configs = [
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0"),
            ("min.compaction.lag.ms", &lag),
        ];
        server.topic("t", &configs).await;
        let mut producer = TransactionalProducer::start(&server, protocol, "p").await;
        producer.must_send("t", 0, "a=1").await;
        let undecided = server.engine.last_stamp();
        server.clock.advance(Duration::from_millis(1));
        producer.must_send("t", 0, "b=2").await;
        producer.must_end(true).await;
        let name = format!("t@{}", Moment::Sys(Cut::through(undecided)));
        let reader = &mut producer.connection;
        for round in 0..3 {
            let then = read(reader, &name, 0, COMMITTED).await.values;
            assert!(then.is_empty(), "{protocol:?}, round {round}: {then:?}");
            assert_eq!(read(reader, &name, 0, UNCOMMITTED).await.values, ["a=1"], "{protocol:?}");
            assert_eq!(read(reader, "t", 0, COMMITTED).await.values, ["a=1", "b=2"]);
            server.clock.advance(Duration::from_millis(LAG_MS + 1));
            compact(&server).await;
        }
    }
}
