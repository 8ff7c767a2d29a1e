//! One moment across everything.

use std::sync::Arc;

use hlc::{Ask, Cut, Hlc, Moment};
use storage::Offset;
use xxhash_rust::xxh3::Xxh3;

use crate::engine::Engine;
use crate::namespace::Topic;
use crate::seek::{Lost, SeekError, When, earliest};

/// One partition in a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPartition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// The first offset that is kept.
    pub start: Offset,
    /// The first offset that is not in the cut.
    pub end: Offset,
}

/// The answer to "cut at t".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutAnswer {
    /// What the answer is true of: what was asked, unless it was to be answered at the frontier.
    pub at: Cut,
    /// The frontier when it was answered.
    pub frontier: Hlc,
    /// How far clocks may differ, in milliseconds.
    pub skew_ms: u64,
    /// Whether everything in the cut is on stable storage.
    pub durable: bool,
    /// Identifies the cut's whole content: topics, partitions, and every entry in them. The same for
    /// the same question, for ever.
    pub hash: u128,
    /// By topic and partition.
    pub partitions: Vec<CutPartition>,
}

impl Engine {
    /// The cut at `cut`, across all topics that existed then, or those named.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn cut(
        &self,
        cut: Cut,
        topics: Option<&[String]>,
        when: When,
    ) -> Result<CutAnswer, SeekError> {
        let (at, frontier) = self.settle(cut, when).await?;
        let chosen = self.topics_in(at, topics)?;
        let synced_to = self.stats().synced_to.load(std::sync::atomic::Ordering::Relaxed);
        let mut answer = CutAnswer {
            at,
            frontier,
            skew_ms: self.timekeeper().skew_max().as_millis() as u64,
            durable: true,
            hash: 0,
            partitions: Vec::new(),
        };
        let (mut hash, mut lost) = (Xxh3::new(), Vec::new());
        for topic in chosen {
            hash.update(&topic.id);
            hash.update(&(topic.name.len() as u64).to_le_bytes());
            hash.update(topic.name.as_bytes());
            for partition in &topic.partitions {
                let last = partition.log.last_in(at);
                let end = last.map_or(Offset(0), |last| last.end());
                let start = partition.start();
                if end < start {
                    lost.push(Lost {
                        topic: Arc::clone(&topic.name),
                        partition: partition.index,
                        earliest: earliest(&partition.log, start),
                    });
                }
                if let Some(last) = last {
                    answer.durable &= last.position + u64::from(last.length) <= synced_to;
                    hash.update(&last.chain.to_le_bytes());
                }
                hash.update(&partition.index.to_le_bytes());
                hash.update(&end.0.to_le_bytes());
                answer.partitions.push(CutPartition {
                    topic: Arc::clone(&topic.name),
                    partition: partition.index,
                    start,
                    end,
                });
            }
        }
        if !lost.is_empty() {
            return Err(SeekError::BeforeHistory { lost });
        }
        answer.hash = hash.digest128();
        Ok(answer)
    }

    fn topics_in(&self, cut: Cut, names: Option<&[String]>) -> Result<Vec<Arc<Topic>>, SeekError> {
        let namespace = self.shared.namespace.read();
        let Some(names) = names else { return Ok(namespace.topics_at(cut)) };
        let mut names: Vec<&String> = names.iter().collect();
        names.sort();
        names.dedup();
        names
            .into_iter()
            .map(|name| {
                namespace.topic_at(name, cut).ok_or_else(|| SeekError::NoTopic {
                    topic: name.clone(),
                    ask: Ask::At(Moment::Sys(cut)),
                })
            })
            .collect()
    }

    /// All topics as of `cut`, each with the stamp of its deletion if it was deleted since.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn topics_at(
        &self,
        cut: Cut,
        when: When,
    ) -> Result<(Cut, Hlc, Vec<(Arc<Topic>, Option<Hlc>)>), SeekError> {
        let (at, frontier) = self.settle(cut, when).await?;
        let namespace = self.shared.namespace.read();
        let topics = namespace
            .topics_at(at)
            .into_iter()
            .map(|topic| {
                let deleted = namespace.deleted(&topic.id);
                (topic, deleted)
            })
            .collect();
        Ok((at, frontier, topics))
    }

    /// Committed offsets as of `cut`.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn offsets_at(
        &self,
        group: Option<&str>,
        cut: Cut,
        when: When,
    ) -> Result<(Cut, Hlc, Vec<crate::GroupOffset>), SeekError> {
        let (at, frontier) = self.settle(cut, when).await?;
        let offsets = self.committed_offsets(group, at)?;
        Ok((at, frontier, offsets))
    }
}
