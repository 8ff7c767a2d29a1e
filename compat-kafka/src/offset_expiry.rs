//! Committed offsets expire as in Kafka (KIP-211): those of a group without members some time after the last
//! one left, those of one that never had any some time after they were committed, and those of topics that no
//! member reads any more as well. A group of which nothing is left is forgotten soon after.

use std::sync::Arc;

use engine::{EngineError, OldOffsets};
use hlc::Hlc;
use tokio::time::{MissedTickBehavior, interval};

use crate::core::Kafka;
use crate::groups::OffsetUse;

/// How many offsets expire by one event.
const EXPIRED_AT_ONCE: usize = 4096;

impl Kafka {
    /// Lets committed offsets expire as they get old, until it is dropped.
    pub async fn keep_house(self: Arc<Kafka>) {
        let mut ticks = interval(self.options.groups.offsets_check_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once: members of the life before have had no time to come back.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match self.expire_offsets().await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "committed offsets expired"),
                Err(error) => tracing::warn!(%error, "committed offsets cannot expire now"),
            }
        }
    }

    /// Removes the committed offsets that have expired; returns how many at most. Nothing expires by a clock
    /// that cannot be trusted.
    ///
    /// # Errors
    /// The catalog cannot be read, or the disk fails.
    pub async fn expire_offsets(&self) -> Result<usize, EngineError> {
        let Some(now) = self.engine.time_to_give_up() else { return Ok(0) };
        let until = Hlc::at(now.saturating_sub(self.options.groups.offsets_retention));
        let (mut last, mut expired) = (None::<String>, 0);
        while let Some(old) = self.engine.next_old_offsets(last.as_deref(), until)? {
            let partitions = self.expiring(&old, until);
            expired += partitions.len();
            for partitions in partitions.chunks(EXPIRED_AT_ONCE) {
                self.engine.expire_offsets(&old.group, partitions.to_vec(), until).await?;
            }
            last = Some(old.group);
        }
        Ok(expired)
    }

    /// Which of a group's old offsets expire.
    fn expiring(&self, old: &OldOffsets, until: Hlc) -> Vec<(String, u32)> {
        let left_long_ago = old.saved.is_none_or(|saved| saved <= until);
        match self.groups.offset_use(&old.group) {
            OffsetUse::Unused if left_long_ago => old.partitions.clone(),
            OffsetUse::Unused | OffsetUse::InUse => Vec::new(),
            OffsetUse::Reads(subscriptions) => {
                let unread = |(topic, _): &&(String, u32)| !subscriptions.include(topic);
                old.partitions.iter().filter(unread).cloned().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::OffsetCommit;
    use kafka_protocol::messages::LeaveGroupRequest;

    use crate::apis::join_group::bench::{Bench, group_id};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    async fn commit(bench: &Bench, group: &str, topic: &str, partition: u32) {
        let offset = OffsetCommit {
            topic: topic.to_owned(),
            partition,
            offset: 5,
            leader_epoch: -1,
            metadata: String::new(),
        };
        bench.kafka.engine.commit_offsets(group, vec![offset]).await.unwrap();
    }

    fn held(bench: &Bench) -> Vec<(String, String, u32)> {
        let held = bench.kafka.engine.committed_offsets(None).unwrap();
        held.into_iter().map(|held| (held.group, held.topic, held.partition)).collect()
    }

    fn offset(group: &str, topic: &str, partition: u32) -> (String, String, u32) {
        (group.to_owned(), topic.to_owned(), partition)
    }

    #[tokio::test]
    async fn offsets_of_nobody_expire_a_week_after_they_were_committed_and_their_group_with_them() {
        let (bench, clock) = Bench::with_clock();
        commit(&bench, "g", "a", 0).await;
        bench.kafka.groups.restore_without_members("g");
        clock.advance(DAY);
        commit(&bench, "g", "a", 1).await;
        clock.advance(DAY * 6 - Duration::from_millis(1));
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 0);
        clock.advance(Duration::from_millis(2));
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 1);
        assert_eq!(held(&bench), [offset("g", "a", 1)]);
        clock.advance(DAY);
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 1);
        assert!(held(&bench).is_empty());
        let forgotten = async {
            while bench.kafka.groups.has("g") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), forgotten).await.unwrap();
    }

    #[tokio::test]
    async fn offsets_of_a_group_expire_a_week_after_its_last_member_left() {
        let (bench, clock) = Bench::with_clock();
        commit(&bench, "g", "read", 0).await;
        let member = bench.stable("g").await;
        clock.advance(DAY * 30);
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 0, "a member reads it");
        let leave = LeaveGroupRequest::default().with_group_id(group_id("g"));
        assert_eq!(bench.ask(0, leave.with_member_id(member.id)).await.error_code, 0);
        let emptied = async {
            let saved = || bench.kafka.engine.next_old_offsets(None, hlc::Hlc::MAX).unwrap();
            let left = bench.kafka.engine.wall_now();
            while saved().unwrap().saved.is_none_or(|saved| saved.time() < left) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), emptied).await.unwrap();
        clock.advance(DAY * 7 - Duration::from_secs(1));
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 0);
        clock.advance(Duration::from_secs(2));
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 1);
        assert!(held(&bench).is_empty());
    }

    #[tokio::test]
    async fn of_a_group_that_reads_the_offsets_of_other_topics_expire() {
        let (bench, clock) = Bench::with_clock();
        commit(&bench, "g", "read", 0).await;
        commit(&bench, "g", "read no more", 0).await;
        bench.stable("g").await;
        clock.advance(DAY * 8);
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 1);
        assert_eq!(held(&bench), [offset("g", "read", 0)]);
    }

    #[tokio::test]
    async fn nothing_expires_by_a_clock_that_cannot_be_trusted() {
        let (bench, clock) = Bench::with_clock();
        commit(&bench, "g", "a", 0).await;
        clock.step_to(hlc::SysTime(bench.kafka.engine.wall_now().0 + 8 * 24 * 3600 * 1000));
        assert_eq!(bench.kafka.expire_offsets().await.unwrap(), 0);
        assert_eq!(held(&bench), [offset("g", "a", 0)]);
    }
}
