//! Committed offsets expire as in Kafka (KIP-211): those of a group without members some time after the last
//! one left, those of one that never had any some time after they were committed, and those of topics that no
//! member reads any more as well. A group of which nothing is left is forgotten soon after.

use std::sync::Arc;

use engine::{Committing, EngineError, Expiry, OldOffsets};
use tokio::time::{MissedTickBehavior, interval};

use crate::core::Kafka;
use crate::groups::OffsetUse;

/// So many removals are on their way to the disk at once.
const BEGUN_MAX: usize = 64;

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
        let expiry = Expiry::new(now, self.options.groups.offsets_retention);
        let (mut last, mut removals) = (None::<String>, Removals::default());
        while let Some(group) = self.engine.group_behind(last.as_deref())? {
            self.expire_of_group(&group, expiry, &mut removals).await?;
            // However little there is to do: others have their turn.
            tokio::task::yield_now().await;
            last = Some(group);
        }
        removals.done().await?;
        Ok(removals.count)
    }

    async fn expire_of_group(
        &self,
        group: &str,
        expiry: Expiry,
        removals: &mut Removals,
    ) -> Result<(), EngineError> {
        let mut last = None::<String>;
        while self.groups.expire(group, |_| ()).is_some()
            && let Some(old) = self.engine.old_offsets(group, last.as_deref(), expiry)?
        {
            last = Some(old.last.clone());
            if old.offsets.is_empty() {
                continue;
            }
            // Only of a group that nobody uses: a snapshot may be large.
            let is_unused = |offset_use: &OffsetUse| matches!(offset_use, OffsetUse::Unused);
            let left_long_ago = match self.groups.expire(group, is_unused) {
                Some(true) => {
                    let saved = self.engine.group_saved(group)?;
                    saved.is_none_or(|saved| expiry.is_old(saved))
                }
                _ => false,
            };
            let begun = self.groups.expire(group, |offset_use| {
                let expiring = expiring(&old, offset_use, left_long_ago);
                let is_any = !expiring.is_empty();
                is_any.then(|| {
                    removals.count += expiring.len();
                    self.engine.begin_expire_offsets(group, expiring, expiry)
                })
            });
            if let Some(begun) = begun.flatten() {
                removals.begun.push(begun?);
            }
            if removals.begun.len() >= BEGUN_MAX {
                removals.done().await?;
            }
        }
        Ok(())
    }
}

/// Which of a group's old offsets expire.
fn expiring(old: &OldOffsets, offset_use: &OffsetUse, left_long_ago: bool) -> Vec<(String, u32)> {
    let expiring = old.offsets.iter().filter(|old| match offset_use {
        OffsetUse::Unused => left_long_ago || old.has_own_retention,
        OffsetUse::UsedLately => old.has_own_retention,
        OffsetUse::Reads(subscriptions) => !subscriptions.include(&old.topic),
        OffsetUse::InUse => false,
    });
    expiring.map(|old| (old.topic.clone(), old.partition)).collect()
}

/// What is on its way to the disk.
#[derive(Default)]
struct Removals {
    begun: Vec<Committing>,
    count: usize,
}

impl Removals {
    /// Waits until all of them are made.
    async fn done(&mut self) -> Result<(), EngineError> {
        for begun in self.begun.drain(..) {
            begun.done().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
