//! Random producers on several partitions, beside a model: what readers of committed records see,
//! now and as of any moment, through crashes.

use std::collections::BTreeMap;

use engine::diff::{DiffPageRequest, DiffSection, Difference};
use engine::{Isolation, WaitPolicy};
use hlc::{Cut, Hlc, Moment};
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::produce_request;
use testkit::rng::SeededRng;

use super::fixture::{
    COMMITTED, Protocol, TransactionalProducer, UNCOMMITTED, create, read, server_on,
};

const PARTITIONS: u64 = 3;
const PRODUCERS: u64 = 4;

/// A value, and when its fate was known.
#[derive(Clone, Debug)]
struct ModelValue {
    value: String,
    written: Hlc,
    /// Of a transaction: which one.
    transaction: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Open,
    Aborted,
    /// It was committed at this stamp or before it, and behind any earlier one.
    Committed(Hlc),
}

#[derive(Default)]
struct Model {
    partitions: BTreeMap<i32, Vec<ModelValue>>,
    transactions: BTreeMap<u64, Fate>,
    /// The moments to look at again.
    moments: Vec<Hlc>,
}

impl Model {
    /// The values that a reader sees of a partition as of a moment, or now.
    fn values(&self, partition: i32, until: Option<Hlc>, committed: bool) -> Vec<String> {
        let is_in = |stamp: Hlc| until.is_none_or(|until| stamp <= until);
        let is_seen = |value: &&ModelValue| {
            is_in(value.written)
                && (!committed
                    || value.transaction.is_none_or(|transaction| {
                        matches!(self.transactions[&transaction], Fate::Committed(at) if is_in(at))
                    }))
        };
        let values = self.partitions.get(&partition).into_iter().flatten();
        values.filter(is_seen).map(|value| value.value.clone()).collect()
    }

    /// The values below the first one of an open transaction.
    fn stable_values(&self, partition: i32) -> Vec<String> {
        let values = self.partitions.get(&partition).into_iter().flatten();
        let is_stable = |value: &&ModelValue| {
            value.transaction.is_none_or(|one| !matches!(self.transactions[&one], Fate::Open))
        };
        let stable: Vec<&ModelValue> = values.take_while(is_stable).collect();
        let all = self.values(partition, None, true);
        let is_in = |value: &String| stable.iter().any(|held| held.value == *value);
        all.into_iter().filter(is_in).collect()
    }
}

async fn check(
    server: &TestKafkaServer,
    reader: &mut TestKafkaConnection,
    model: &Model,
    moments: &[Hlc],
    seed: u64,
) {
    for partition in 0..PARTITIONS as i32 {
        let found = read(reader, "t", partition, COMMITTED).await;
        assert_eq!(found.values, model.stable_values(partition), "seed {seed}, now, {partition}");
        let all = read(reader, "t", partition, UNCOMMITTED).await;
        assert_eq!(
            all.values,
            model.values(partition, None, false),
            "seed {seed}, all, {partition}"
        );
        for moment in moments {
            let name = format!("t@{}", Moment::Sys(Cut::through(*moment)));
            for (isolation, committed) in [(COMMITTED, true), (UNCOMMITTED, false)] {
                let found = read(reader, &name, partition, isolation).await;
                let expected = model.values(partition, Some(*moment), committed);
                assert_eq!(found.values, expected, "seed {seed}, {name}, {partition}");
            }
        }
    }
    let _ = server;
}

/// Checks the difference between two moments, of each partition, for readers of committed records.
async fn check_difference(server: &TestKafkaServer, model: &Model, from: Hlc, until: Hlc) {
    let topics = ["t".to_owned()];
    let (from_cut, until_cut) = (Cut::through(from), Cut::through(until));
    let mut found = BTreeMap::new();
    let mut after = None;
    loop {
        let ask = DiffPageRequest {
            from: from_cut,
            until: until_cut,
            topics: Some(&topics),
            only: Some(&[DiffSection::Records]),
            isolation: Isolation::Committed,
            after: after.as_ref(),
            limit: 1,
        };
        let page = server.engine.diff(ask, WaitPolicy::Refuse).await.unwrap();
        for difference in page.differences {
            let Difference::Appended { partition, start, end, records, .. } = difference else {
                panic!("{difference:?}");
            };
            assert_eq!(found.insert(partition, (start, end, records)), None);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let topic = server.engine.topics().named("t").unwrap();
    for partition in &topic.partitions {
        let (before, after) =
            [from, until].map(|at| model.values(partition.index as i32, Some(at), true)).into();
        let expected = after.iter().filter(|value| !before.contains(value)).count() as u64;
        let (start, end, records) = found.remove(&partition.index).unwrap_or_default();
        assert_eq!(records, expected, "{from}..{until}, partition {}", partition.index);
        // The same, in small parts.
        let difference =
            server.engine.core().committed_difference(partition, from_cut, until_cut).unwrap();
        let (mut next, mut sum, mut range) = (None, 0, None);
        loop {
            let part = difference.part(next, 1).unwrap();
            assert!(part.batches <= 1);
            if part.records > 0 {
                sum += part.records;
                let (first, _) = *range.get_or_insert((part.range.start, part.range.end));
                range = Some((first, part.range.end));
            }
            next = part.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!((sum, range.unwrap_or_default()), (records, (start, end)));
    }
}

async fn run(seed: u64, steps: u64) {
    let mut random = SeededRng::new(seed);
    let mut disk = MemoryDisk::new();
    let mut server = server_on(&disk).await;
    create(&server, "t", PARTITIONS as u32).await;
    let mut reader = server.connect().await;
    let mut producers = Vec::new();
    for nth in 0..PRODUCERS {
        let protocol = if nth % 2 == 0 { Protocol::V1 } else { Protocol::V2 };
        producers.push(TransactionalProducer::start(&server, protocol, &format!("p{nth}")).await);
    }
    let mut open: Vec<Option<u64>> = vec![None; PRODUCERS as usize];
    let mut model = Model::default();
    for step in 0..steps {
        let nth = random.below(PRODUCERS) as usize;
        let partition = random.below(PARTITIONS) as i32;
        let value = format!("{step}");
        match random.below(100) {
            0..50 => {
                producers[nth].must_send("t", partition, &value).await;
                let transaction = *open[nth].get_or_insert(step);
                model.transactions.entry(transaction).or_insert(Fate::Open);
                let written = server.engine.last_stamp();
                let transaction = Some(transaction);
                let values = model.partitions.entry(partition).or_default();
                values.push(ModelValue { value, written, transaction });
            }
            50..60 => {
                let batch = one_record_batch(value.as_bytes());
                let request = produce_request("t", partition, &batch);
                let answer = reader.ask(9, &request).await.unwrap();
                assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
                let written = server.engine.last_stamp();
                let values = model.partitions.entry(partition).or_default();
                values.push(ModelValue { value, written, transaction: None });
            }
            60..85 => {
                let Some(transaction) = open[nth] else { continue };
                let commits = random.below(2) == 0;
                producers[nth].must_end(commits).await;
                open[nth] = None;
                let fate = if commits {
                    Fate::Committed(server.engine.last_stamp())
                } else {
                    Fate::Aborted
                };
                model.transactions.insert(transaction, fate);
            }
            85..88 => {
                assert_eq!(producers[nth].init(60_000).await.error_code, 0);
                if let Some(transaction) = open[nth].take() {
                    model.transactions.insert(transaction, Fate::Aborted);
                }
            }
            88..92 => {
                server.engine.core().maintenance().roll_segment().await.unwrap();
                server.engine.core().maintenance().index_and_sort().await.unwrap();
            }
            92..94 => {
                server.engine.close();
                disk = match random.below(2) {
                    0 => disk.after_kill(),
                    _ => disk.after_crash(|choices| random.below(choices as u64) as usize),
                };
                server = server_on(&disk).await;
                reader = server.connect().await;
                for producer in &mut producers {
                    producer.reconnect(&server).await;
                }
            }
            _ => {
                // A read closes the moment: everything later has a later stamp.
                let moment = server.engine.last_stamp();
                model.moments.push(moment);
                check(&server, &mut reader, &model, &[moment], seed).await;
            }
        }
    }
    let moments = model.moments.clone();
    check(&server, &mut reader, &model, &moments, seed).await;
    for (nth, from) in moments.iter().enumerate() {
        for until in moments[nth..].iter().step_by(2) {
            check_difference(&server, &model, *from, *until).await;
        }
    }
}

#[tokio::test]
async fn readers_see_what_the_model_says_now_and_as_of_every_moment() {
    for seed in 0..8 {
        run(seed, 200).await;
    }
}
