//! A corrupt disk: at the end of a world bits of sealed files flip, and every query that the intact
//! node answered is repeated on a node that starts on that disk. It may refuse to start, and it may
//! report that something cannot be read. Whatever it does answer equals the answer of the intact
//! node.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::files::Inode;
use engine::{Engine, Offset, Partition, WaitPolicy};
use hlc::{Cut, Hlc};
use storage::disk::MemoryDisk;
use storage::journal::segment_start;
use storage::sorted_segment::{is_index_name, is_sorted_segment_name};
use testkit::rng::SeededRng;

use crate::actors::read_snapshot;
use crate::audit::{PartitionKey, read_records};
use crate::ledger::SimLedger;

/// The number of moments that are queried.
const MOMENTS: u64 = 5;
/// The number of files, of very many, that are queried.
const SMALL_FILES: u64 = 20;
const READ_BYTES: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CorruptionQuery {
    /// The present and past partitions, each with its start and end.
    Partitions,
    /// The batch that holds an offset.
    Batch(PartitionKey, u64),
    /// The end of a partition in the cut with a bound.
    End(PartitionKey, Hlc),
    /// The cut with a bound.
    Cut(Hlc),
    /// All files in the cut with a bound.
    Files(Hlc),
    /// One of very many files, in the cut with a bound.
    SmallFile(u64, Hlc),
}

/// Queries, with the answers of an intact node; `None` if it has none.
pub(crate) struct BaselineAnswers(BTreeMap<CorruptionQuery, Option<String>>);

impl BaselineAnswers {
    /// Queries a node whose disk is intact.
    pub(crate) async fn collect(
        engine: &Engine,
        questions: Vec<CorruptionQuery>,
    ) -> BaselineAnswers {
        let mut answers = BTreeMap::new();
        for question in questions {
            let answer = run_query(engine, &question).await.ok();
            answers.insert(question, answer);
        }
        BaselineAnswers(answers)
    }

    /// Repeats all queries. Returns how many have the same answer, and how many have none.
    ///
    /// # Errors
    ///
    /// An answer differs.
    pub(crate) async fn compare(&self, engine: &Engine) -> Result<(usize, usize), String> {
        let (mut same, mut refused) = (0, 0);
        for (question, sound) in &self.0 {
            match run_query(engine, question).await {
                Ok(answer) if Some(&answer) == sound.as_ref() => same += 1,
                Ok(answer) => {
                    return Err(format!("{question:?}: {answer}, and from a sound disk {sound:?}"));
                }
                Err(_) if sound.is_some() => refused += 1,
                Err(_) => {}
            }
        }
        Ok((same, refused))
    }
}

/// The queries for a node of which so much is known.
pub(crate) fn corruption_queries(
    engine: &Engine,
    ledger: &SimLedger,
    rng: &mut SeededRng,
) -> Vec<CorruptionQuery> {
    let mut questions = vec![CorruptionQuery::Partitions];
    let stamps: Vec<Hlc> = ledger
        .partitions
        .values()
        .flat_map(|seen| seen.entries.values().map(|entry| entry.stamp))
        .chain(
            (0..200).map(|back| ledger.files.nth_newest(back).stamp_at_most.min(engine.frontier())),
        )
        .collect();
    let moments: Vec<Hlc> = (0..MOMENTS).map(|_| rng.pick(&stamps).next()).collect();
    for at in &moments {
        questions.extend([CorruptionQuery::Cut(*at), CorruptionQuery::Files(*at)]);
    }
    for (topic, _) in engine.topics().including_deleted() {
        for partition in &topic.partitions {
            let place = (topic.id, partition.index);
            let offsets = partition.start().0..partition.end().0;
            questions
                .extend(offsets.step_by(11).map(|offset| CorruptionQuery::Batch(place, offset)));
            questions.extend(moments.iter().map(|at| CorruptionQuery::End(place, *at)));
        }
    }
    let known = ledger.small_files.iter().filter(|small_file| !small_file.is_uncertain);
    let known: Vec<_> = known.filter_map(|h| Some((h.inode, h.writes.last()?.0))).collect();
    for _ in 0..SMALL_FILES.min(known.len() as u64) {
        let (inode, stamp) = *rng.pick(&known);
        questions.push(CorruptionQuery::SmallFile(inode, stamp.next()));
    }
    questions
}

async fn run_query(engine: &Engine, question: &CorruptionQuery) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    Ok(match question {
        CorruptionQuery::Partitions => {
            let topics = engine.topics().including_deleted();
            let shown = topics.iter().flat_map(|(topic, deleted)| {
                topic.partitions.iter().map(move |p| {
                    (topic.name.to_string(), topic.created, *deleted, p.index, p.start(), p.end())
                })
            });
            format!("{:?}", shown.collect::<Vec<_>>())
        }
        CorruptionQuery::Batch(place, offset) => {
            let partition = find_partition(engine, place)?;
            let read = partition.log.read(Offset(*offset), partition.end(), READ_BYTES);
            let read = read.map_err(|error| failed(&error))?;
            let Some(piece) = read.first() else { return Ok("nothing".to_owned()) };
            let payload = piece.read().map_err(|error| failed(&error))?;
            let entry = (piece.entry.base, piece.entry.end(), piece.entry.stamp);
            format!("{entry:?} {:?}", read_records(&payload)?)
        }
        CorruptionQuery::End(place, at) => {
            let end = find_partition(engine, place)?.log.offset_at(Cut::below(*at));
            format!("{:?}", end.map_err(|error| failed(&error))?)
        }
        CorruptionQuery::Cut(at) => {
            let cut = engine.cuts().at(Cut::below(*at), None, WaitPolicy::Refuse).await;
            let cut = cut.map_err(|error| failed(&error))?;
            let spans = cut.partitions.iter().map(|p| (&p.topic, p.partition, p.end));
            format!("{:032x} {:?}", cut.hash, spans.collect::<Vec<_>>())
        }
        CorruptionQuery::Files(at) => {
            let found = read_snapshot(engine.files(), Cut::below(*at));
            format!("{:?}", found.map_err(|error| failed(&error))?)
        }
        CorruptionQuery::SmallFile(inode, at) => {
            let file = engine.files().open_inode(Inode(*inode));
            let read = file.and_then(|file| file.read_at(Cut::below(*at), 0, 100));
            format!("{:?}", read.map_err(|error| failed(&error))?)
        }
    })
}

fn find_partition(engine: &Engine, place: &PartitionKey) -> Result<Arc<Partition>, String> {
    let topics = engine.topics().including_deleted();
    let topic = topics.into_iter().find(|(topic, _)| topic.id == place.0);
    let partition = topic.and_then(|(topic, _)| topic.partitions.get(place.1 as usize).cloned());
    partition.ok_or_else(|| format!("there is no partition {place:?}"))
}

/// Flips bits of sealed files; returns a description. Does nothing if no file is sealed.
pub(crate) fn flip_bits(disk: &MemoryDisk, rng: &mut SeededRng) -> Vec<String> {
    let names = disk.names();
    let open = names.iter().filter_map(|name| segment_start(name)).max();
    let is_sealed = |name: &String| match segment_start(name) {
        Some(start) => Some(start) != open,
        None => is_sorted_segment_name(name) || is_index_name(name) || name.ends_with(".proof"),
    };
    let sealed: Vec<&String> = names.iter().filter(|name| is_sealed(name)).collect();
    let mut flipped = Vec::new();
    for _ in 0..rng.between(1, 4) {
        let Some(name) = (!sealed.is_empty()).then(|| *rng.pick(&sealed)) else { break };
        let length = disk.bytes(name).len() as u64;
        if length == 0 {
            continue;
        }
        let (position, mask) = (rng.below(length) as usize, 1 << rng.below(8));
        disk.corrupt(name, position, mask);
        flipped.push(format!("{mask:#x} at {position} of {length} in {name}"));
    }
    flipped
}
