//! The rest: what the source has behind the copied records when an import ends.

use std::collections::BTreeMap;

use client::{Client, OffsetSpec};

use crate::output::{counted, note};

/// The most partitions that are named.
const NAMED_MAX: usize = 20;

/// The rest of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PartitionRest {
    /// The topic and the partition.
    name: String,
    /// The first offset that was not copied.
    from: i64,
    /// The end of the records whose transactions have ended.
    stable: i64,
    /// The end of all records.
    end: i64,
}

/// The offsets of a source that were not copied.
#[derive(Debug, Default)]
pub(super) struct SourceRest {
    partitions: Vec<PartitionRest>,
}

impl SourceRest {
    /// Asks the source where its partitions end. `reached` says how far each was copied, by topic.
    pub(super) async fn read(
        source: &mut Client,
        reached: &BTreeMap<String, BTreeMap<i32, i64>>,
    ) -> anyhow::Result<SourceRest> {
        let mut rest = SourceRest::default();
        for (topic, reached) in reached {
            let numbers: Vec<i32> = reached.keys().copied().collect();
            let stable = match source.offsets(topic, &numbers, OffsetSpec::LatestStable).await {
                // The topic was deleted at the source.
                Err(error) if error.response_error().is_some() => continue,
                stable => stable?,
            };
            let ends = source.offsets(topic, &numbers, OffsetSpec::Latest).await?;
            for (partition, from) in reached {
                let end = |ends: &BTreeMap<i32, Option<i64>>| {
                    ends.get(partition).copied().flatten().unwrap_or(0)
                };
                let (stable, end, from) = (end(&stable), end(&ends), *from);
                if end > from {
                    let name = format!("{topic}/{partition}");
                    rest.partitions.push(PartitionRest { name, from, stable, end });
                }
            }
        }
        Ok(rest)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Says what is left. Without `follow`, records that came meanwhile are for the next run, and
    /// only those behind an open transaction are named.
    pub(super) fn note(&self, follow: bool) {
        let lines: Vec<String> =
            self.partitions.iter().filter_map(|rest| rest.line(follow)).collect();
        lines.iter().take(NAMED_MAX).for_each(|line| note(line));
        if lines.len() > NAMED_MAX {
            note(&format!(
                "the same in {} more",
                counted((lines.len() - NAMED_MAX) as u64, "partition")
            ));
        }
    }
}

impl PartitionRest {
    fn line(&self, follow: bool) -> Option<String> {
        let PartitionRest { name, from, stable, end } = self;
        if stable < end && from >= stable {
            return Some(format!(
                "{name}: a transaction is open at the source from {stable} on; what comes behind is copied once it has ended"
            ));
        }
        let left = end - from;
        follow.then(|| {
            format!(
                "{name}: {} from {from} on are not copied",
                counted(left.unsigned_abs(), "offset")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_named_with_what_holds_it_back() {
        let rest = |from, stable, end| PartitionRest { name: "t/0".to_owned(), from, stable, end };
        let open = "t/0: a transaction is open at the source from 5 on; what comes behind is copied once it has ended";
        assert_eq!(rest(5, 5, 9).line(false).unwrap(), open);
        assert_eq!(rest(5, 5, 9).line(true).unwrap(), open);
        assert_eq!(rest(5, 9, 9).line(false), None);
        assert_eq!(rest(5, 9, 9).line(true).unwrap(), "t/0: 4 offsets from 5 on are not copied");
        assert_eq!(rest(4, 5, 9).line(true).unwrap(), "t/0: 5 offsets from 4 on are not copied");
    }
}
