//! The remaining work of an import: derived from the source and the target alone, so that each run
//! goes on where the last one ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use client::{
    Client, ClientError, FetchOptions, Isolation, NewTopic, OffsetSpec, TopicDescription,
};
use kafka_records::{BatchHeader, BatchIterator};

use super::copied_batches::{OFFSET_MAX, OffsetShift, source_mark};
use super::origin::{PartitionOrigin, PartitionOrigins, import_group, read_origins, write_origins};
use crate::name_patterns::NamePatterns;
use crate::output::note;

/// Settings that say how a cluster replicates, or that a single server takes as a promise of another kind.
const CONFIGS_OF_REPLICATION: [&str; 5] = [
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "remote.storage.enable",
];
/// The id of a topic where there are none.
const NIL_ID: &str = "00000000-0000-0000-0000-000000000000";

/// A partition to copy.
#[derive(Clone, Debug)]
pub(super) struct PartitionCopy {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) shift: OffsetShift,
    /// The source's offset up to which the target has a batch.
    pub(super) filled: i64,
    /// The source's offset of the next record to copy.
    pub(super) next: i64,
    /// The source's offset to stop at; `i64::MAX` to follow.
    pub(super) end: i64,
    /// True if compaction may leave nothing where the source had records.
    pub(super) is_compacted: bool,
    /// The empty responses of the source in a row.
    pub(super) empty_answers: u32,
}

pub(super) struct ImportPlan {
    /// The group that remembers the origins.
    pub(super) group: String,
    pub(super) partitions: Vec<PartitionCopy>,
    pub(super) origins: PartitionOrigins,
    /// Partitions of the target whose log starts where the source's did, once records reach there.
    pub(super) log_starts: BTreeMap<(String, i32), i64>,
}

/// State kept across the sessions of a run.
#[derive(Debug, Default)]
pub(super) struct ImportHistory {
    /// Topics that are on both sides.
    known: BTreeSet<String>,
    /// Topics that were deleted at the source on the way.
    pub(super) deleted: BTreeSet<String>,
}

/// Finds out what is to be done, and creates the topics that the target does not have.
pub(super) async fn plan(
    source: &mut Client,
    target: &mut Client,
    topics: &NamePatterns,
    follow: bool,
    history: &mut ImportHistory,
) -> anyhow::Result<ImportPlan> {
    let cluster = source.cluster_id().await.context("ask the source which cluster it is")?;
    let cluster = cluster.context("the source has no cluster id: it is too old")?;
    let of_target = target.cluster_id().await?;
    ensure!(
        of_target.as_ref() != Some(&cluster),
        "the source and the server are the same cluster, {cluster}: give another server with --bootstrap"
    );
    // A stock Kafka would append the batches without a look at their offsets.
    target.now().await.context("an import writes to a Freezeframe server")?;
    let group = import_group(&cluster);
    let origins = read_origins(target, &group).await?;
    let mut plan =
        ImportPlan { group, partitions: Vec::new(), origins, log_starts: BTreeMap::new() };
    for topic in selected_topics(source, topics, history).await? {
        prepare_topic(source, target, &topic, history).await?;
        plan.add_topic(source, target, &topic, &cluster, follow).await?;
    }
    // Before the first record: they say what the records are. Another import may write those of other
    // topics.
    let planned = plan.partitions.iter().filter_map(|copy| {
        let key = (copy.topic.clone(), copy.partition);
        plan.origins.get(&key).cloned().map(|origin| (key, origin))
    });
    write_origins(target, &plan.group, &planned.collect()).await?;
    Ok(plan)
}

async fn selected_topics(
    source: &mut Client,
    patterns: &NamePatterns,
    history: &mut ImportHistory,
) -> anyhow::Result<Vec<TopicDescription>> {
    let topics = source.topics().await.context("list the topics of the source")?;
    let is_there = |name: &str| topics.iter().any(|topic| topic.name == name);
    for name in history.known.clone().iter().filter(|name| !is_there(name)) {
        if history.deleted.insert(name.clone()) {
            note(&format!("topic {name} was deleted at the source; what was copied of it stays"));
        }
    }
    if let Some(name) =
        patterns.names().find(|name| !is_there(name) && !history.deleted.contains(*name))
    {
        bail!("the source has no topic {name}");
    }
    // The source's own topics are state of that cluster.
    let is_own = |topic: &TopicDescription| topic.is_internal || topic.name.starts_with("__");
    let is_selected = |topic: &TopicDescription| {
        patterns.has_name(&topic.name) || patterns.admits(&topic.name) && !is_own(topic)
    };
    let selected: Vec<_> = topics.into_iter().filter(is_selected).collect();
    if selected.is_empty() && history.deleted.is_empty() {
        bail!("no topic of the source fits --topics");
    }
    Ok(selected)
}

/// Creates a topic with the source's partitions and settings, or adds partitions that came since.
async fn prepare_topic(
    source: &mut Client,
    target: &mut Client,
    topic: &TopicDescription,
    history: &mut ImportHistory,
) -> anyhow::Result<()> {
    let (name, count) = (&topic.name, topic.partitions.len());
    let wire_count = i32::try_from(count).context("count partitions")?;
    let is_new = !history.known.contains(name);
    match target.topic(name).await {
        Ok(there) if there.partitions.len() < count => {
            target.add_topic_partitions(name, wire_count).await?;
        }
        Ok(_) => {}
        Err(ClientError::UnknownTopic(_)) => {
            ensure!(is_new, "topic {name} was deleted on the server while it was imported");
            let new = NewTopic {
                name: name.clone(),
                partitions: Some(wire_count),
                ..NewTopic::default()
            };
            target.create_topic(&new).await?;
        }
        Err(error) => return Err(error.into()),
    }
    let partitions: Vec<i32> = (0..wire_count).collect();
    let ends = target.offsets(name, &partitions, OffsetSpec::Latest).await?;
    // Also of a topic that an interrupted run created.
    if is_new && ends.values().all(|end| *end == Some(0)) {
        copy_configs(source, target, name).await?;
    }
    history.known.insert(name.clone());
    Ok(())
}

/// Sets the source's own settings that the target knows, and names the others.
async fn copy_configs(source: &mut Client, target: &mut Client, name: &str) -> anyhow::Result<()> {
    let known = target.topic_configs(name).await?;
    let is_known = |key: &str| known.iter().any(|config| config.name == key);
    // Somebody has prepared the topic, or an import that was interrupted.
    let is_set = |key: &str| known.iter().any(|config| config.name == key && config.is_own);
    let mut left_out = Vec::new();
    for config in source.topic_configs(name).await? {
        if !config.is_own {
            continue;
        }
        let Some(value) = config.value else { continue };
        let key = config.name;
        if is_set(&key) {
            continue;
        }
        if !is_known(&key) || CONFIGS_OF_REPLICATION.contains(&&*key) {
            left_out.push(key);
            continue;
        }
        // One by one: a value that is refused leaves the others.
        match target.alter_topic_configs(name, &[(key.clone(), Some(value))]).await {
            Err(error) if error.response_error().is_some() => left_out.push(key),
            altered => altered?,
        }
    }
    if !left_out.is_empty() {
        note(&format!("settings of {name} that are left out: {}", left_out.join(", ")));
    }
    Ok(())
}

impl ImportPlan {
    async fn add_topic(
        &mut self,
        source: &mut Client,
        target: &mut Client,
        topic: &TopicDescription,
        cluster: &str,
        follow: bool,
    ) -> anyhow::Result<()> {
        let name = &topic.name;
        let is_compacted = is_compacted(source, name).await?;
        let numbers: Vec<i32> = topic.partitions.iter().map(|found| found.partition).collect();
        let starts = source.offsets(name, &numbers, OffsetSpec::Earliest).await?;
        let ends = source.offsets(name, &numbers, OffsetSpec::LatestStable).await?;
        let target_starts = target.offsets(name, &numbers, OffsetSpec::Earliest).await?;
        let target_ends = target.offsets(name, &numbers, OffsetSpec::Latest).await?;
        for partition in numbers {
            let bound = |bounds: &BTreeMap<i32, Option<i64>>| {
                bounds.get(&partition).copied().flatten().unwrap_or(0)
            };
            let bounds = PartitionBounds {
                source: bound(&starts)..bound(&ends),
                target: bound(&target_starts)..bound(&target_ends),
            };
            ensure!(
                bounds.source.end <= OFFSET_MAX && bounds.source.start <= bounds.source.end,
                "the source says that {name}/{partition} has the offsets {:?}",
                bounds.source
            );
            let origin = self.partition_origin(source, target, topic, partition, cluster, &bounds);
            let origin = origin.await.with_context(|| format!("import {name}/{partition}"))?;
            let mark = source_mark(cluster, name, origin.delta() == 0);
            let copy = PartitionCopy {
                topic: name.clone(),
                partition,
                shift: OffsetShift { delta: origin.delta(), mark },
                filled: bounds.target.end - origin.delta(),
                next: (bounds.target.end - origin.delta()).max(bounds.source.start),
                end: if follow { i64::MAX } else { bounds.source.end },
                is_compacted,
                empty_answers: 0,
            };
            report_loss(&copy, &origin);
            let key = (name.clone(), partition);
            if origin.delta() == 0 && origin.source_start > 0 && bounds.target.start == 0 {
                self.log_starts.insert(key.clone(), origin.source_start);
            }
            let origin = PartitionOrigin { target_end: bounds.target.end, ..origin };
            self.origins.insert(key, origin);
            self.partitions.push(copy);
        }
        Ok(())
    }

    /// The origin of a partition: the remembered one, the one that its records show, or a new one.
    async fn partition_origin(
        &self,
        source: &mut Client,
        target: &mut Client,
        topic: &TopicDescription,
        partition: i32,
        cluster: &str,
        bounds: &PartitionBounds,
    ) -> anyhow::Result<PartitionOrigin> {
        let key = (topic.name.clone(), partition);
        let marks = [true, false].map(|is_kept| source_mark(cluster, &topic.name, is_kept));
        let [kept, _] = marks;
        let last_mark = mark_at(target, &key, bounds.target.end - 1, &bounds.target).await?;
        match self.origins.get(&key) {
            Some(origin) if has_nothing_yet(target, origin, &key, bounds, &marks).await? => {
                first_origin(source, topic, partition, bounds).await
            }
            Some(origin) => {
                let mark = source_mark(cluster, &topic.name, origin.delta() == 0);
                check_tail(origin, bounds, last_mark == Some(mark))?;
                check_origin(origin, topic, bounds)?;
                Ok(origin.clone())
            }
            // The offsets of the import's group have expired, and the records have the mark.
            None if last_mark == Some(kept) => {
                let origin = continued_origin(topic, bounds);
                check_origin(&origin, topic, bounds)?;
                Ok(origin)
            }
            None => {
                let first_mark = mark_at(target, &key, bounds.target.start, &bounds.target).await?;
                let mut found = [first_mark, last_mark].into_iter().flatten();
                ensure!(
                    !found.any(|mark| marks.contains(&mark)),
                    "it has records of this source, and {} no longer says where they began: delete the topic on the \
                     server, or import it to another server",
                    self.group
                );
                let (start, end) = (bounds.target.start, bounds.target.end);
                if start == end && end > 0 && bounds.source.start == end {
                    return Ok(continued_origin(topic, bounds));
                }
                ensure!(
                    start < end || end == 0 || !bounds.source.contains(&end),
                    "its records were removed, and {} no longer says whether the source's records up to {end} were \
                     among them: delete the topic on the server, or import it to another server",
                    self.group
                );
                first_origin(source, topic, partition, bounds).await
            }
        }
    }
}

/// The offsets of a partition on both sides.
struct PartitionBounds {
    source: std::ops::Range<i64>,
    target: std::ops::Range<i64>,
}

/// The origin of a partition that ends with records of the source at the offsets that they had there.
fn continued_origin(topic: &TopicDescription, bounds: &PartitionBounds) -> PartitionOrigin {
    PartitionOrigin {
        topic_id: topic.id.clone(),
        source_start: bounds.target.start,
        target_start: bounds.target.start,
        target_end: bounds.target.end,
    }
}

/// The origin of a partition that has none yet.
async fn first_origin(
    source: &mut Client,
    topic: &TopicDescription,
    partition: i32,
    bounds: &PartitionBounds,
) -> anyhow::Result<PartitionOrigin> {
    let start = bounds.source.start;
    let (source_start, target_start) = if bounds.target.end == 0 {
        (start, start)
    } else {
        // The log start may lie within a batch. The batch is appended without the records before.
        let headers = batch_headers(source, &topic.name, partition, start).await?;
        let batch_start = headers.first().map_or(start, |header| header.base_offset.min(start));
        (batch_start, bounds.target.end)
    };
    Ok(PartitionOrigin {
        topic_id: topic.id.clone(),
        source_start,
        target_start,
        target_end: bounds.target.end,
    })
}

async fn batch_headers(
    client: &mut Client,
    topic: &str,
    partition: i32,
    offset: i64,
) -> anyhow::Result<Vec<BatchHeader>> {
    let options = FetchOptions {
        wait_max: Duration::ZERO,
        partition_bytes_max: 1 << 20,
        isolation: Isolation::Uncommitted,
        ..FetchOptions::default()
    };
    let fetched = client.fetch(topic, &[(partition, offset)], &options).await?;
    let Some(fetched) = fetched.into_iter().next() else { return Ok(Vec::new()) };
    let headers = BatchIterator::new(&fetched.batches).map(|batch| batch.map(|(header, _)| header));
    Ok(headers.collect::<Result<_, _>>()?)
}

/// True if the source compacts a topic.
async fn is_compacted(source: &mut Client, topic: &str) -> anyhow::Result<bool> {
    let configs = source.topic_configs(topic).await?;
    let mut policies = configs.into_iter().filter(|config| config.name == "cleanup.policy");
    let policy = policies.next().and_then(|config| config.value);
    Ok(policy.is_some_and(|policy| policy.split(',').any(|policy| policy.trim() == "compact")))
}

/// True if others have written to a partition since its origin was remembered, and before the first record
/// of the source.
async fn has_nothing_yet(
    target: &mut Client,
    origin: &PartitionOrigin,
    key: &(String, i32),
    bounds: &PartitionBounds,
    marks: &[i32],
) -> anyhow::Result<bool> {
    let (end, first) = (bounds.target.end, origin.target_end);
    if end <= first || (first != origin.target_start && first != 0) {
        return Ok(false);
    }
    let mark = mark_at(target, key, first.max(bounds.target.start), &bounds.target).await?;
    Ok(mark.is_none_or(|mark| !marks.contains(&mark)))
}

/// The mark of the batch of a partition that holds an offset, or is the next behind it.
async fn mark_at(
    target: &mut Client,
    (topic, partition): &(String, i32),
    offset: i64,
    bounds: &std::ops::Range<i64>,
) -> anyhow::Result<Option<i32>> {
    if !bounds.contains(&offset) {
        return Ok(None);
    }
    let headers = batch_headers(target, topic, *partition, offset).await?;
    let of_source = headers.first().filter(|header| header.producer_id < 0);
    Ok(of_source.map(|header| header.base_sequence))
}

fn check_origin(
    origin: &PartitionOrigin,
    topic: &TopicDescription,
    bounds: &PartitionBounds,
) -> anyhow::Result<()> {
    let is_same = origin.topic_id == topic.id
        || [&origin.topic_id, &topic.id].iter().any(|id| **id == NIL_ID);
    ensure!(
        is_same,
        "the topic was deleted and created again at the source since the last import: delete it on the server, or \
         import it to another server"
    );
    let next = bounds.target.end - origin.delta();
    ensure!(
        next <= bounds.source.end || bounds.target.end <= origin.target_start,
        "the source ends at {}, before {next}, up to where it was imported: it has lost records or is another one",
        bounds.source.end
    );
    Ok(())
}

/// Refuses to go on where others wrote behind the source's records.
fn check_tail(
    origin: &PartitionOrigin,
    bounds: &PartitionBounds,
    is_of_source: bool,
) -> anyhow::Result<()> {
    let end = bounds.target.end;
    // Its log start advanced to its end before the group remembered that.
    let is_emptied = bounds.target.is_empty() && end == origin.target_start;
    ensure!(
        end == origin.target_end || is_emptied || is_of_source,
        "others have written to it since it was imported up to {}, and it ends at {end}: the import cannot go on \
         behind their records",
        origin.target_end
    );
    Ok(())
}

/// Says which records the source no longer had when their turn came.
fn report_loss(copy: &PartitionCopy, origin: &PartitionOrigin) {
    let lost = copy.next - copy.filled.max(origin.source_start);
    if lost > 0 {
        let (topic, partition) = (&copy.topic, copy.partition);
        note(&format!(
            "{topic}/{partition}: the source removed {lost} offsets before they were copied, up to {}",
            copy.next
        ));
    }
}
