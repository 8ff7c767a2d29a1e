//! Committed offsets expire as in Kafka (KIP-211). Offsets of a group without members expire some
//! time after the last member left. Offsets of a group that never had members expire some time
//! after their commit. So do those of topics that no member reads any more. A group without
//! anything left is removed soon after.

use std::sync::Arc;

use engine::groups::{ExpiredOffsets, OffsetExpiry};
use engine::{EngineError, PendingStamp};
use kafka_groups::OffsetExpirationCondition;
use tokio::time::{MissedTickBehavior, interval};

use crate::kafka_server::KafkaServer;

/// The most removals on their way to the disk at once.
const REMOVALS_IN_FLIGHT_MAX: usize = 64;

impl KafkaServer {
    /// Expires committed offsets periodically, until the future is dropped.
    pub async fn run_maintenance(self: Arc<KafkaServer>) {
        let mut ticks = interval(self.options.groups.offsets_check_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate. It is skipped, because members of the previous incarnation
        // have had no time to come back.
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

    /// Removes committed offsets that have expired, and returns the number of removals at most.
    /// Nothing expires while the clock is fenced or in doubt.
    ///
    /// # Errors
    ///
    /// The catalog cannot be read, or the disk fails.
    pub async fn expire_offsets(&self) -> Result<usize, EngineError> {
        let Some(now) = self.engine.retention_time() else { return Ok(0) };
        let expiry = OffsetExpiry::new(now, self.options.groups.offsets_retention);
        let (mut last, mut removals) = (None::<String>, OffsetRemovals::default());
        while let Some(group) = self.engine.groups().next_group(last.as_deref())? {
            self.expire_group_offsets(&group, expiry, &mut removals).await?;
            // Yields even after little work, so that other tasks run.
            tokio::task::yield_now().await;
            last = Some(group);
        }
        removals.wait_all().await?;
        Ok(removals.count)
    }

    async fn expire_group_offsets(
        &self,
        group: &str,
        expiry: OffsetExpiry,
        removals: &mut OffsetRemovals,
    ) -> Result<(), EngineError> {
        let mut last = None::<String>;
        while self.coordinators.groups.expire(group, |_| ()).is_some()
            && let Some(old) =
                self.engine.groups().expired_offsets(group, last.as_deref(), expiry)?
        {
            last = Some(old.last.clone());
            if old.offsets.is_empty() {
                continue;
            }
            // The snapshot is read only for an unused group, because it may be large.
            let is_unused = |offset_use: &OffsetExpirationCondition| {
                matches!(offset_use, OffsetExpirationCondition::Unused)
            };
            let left_long_ago = match self.coordinators.groups.expire(group, is_unused) {
                Some(true) => {
                    let saved = self.engine.groups().saved_at(group)?;
                    saved.is_none_or(|saved| expiry.is_expired(saved))
                }
                _ => false,
            };
            let begun = self.coordinators.groups.expire(group, |offset_use| {
                let expiring = expired_offsets(&old, offset_use, left_long_ago);
                let is_any = !expiring.is_empty();
                is_any.then(|| {
                    removals.count += expiring.len();
                    self.engine.groups().begin_expire_offsets(group, expiring, expiry)
                })
            });
            if let Some(begun) = begun.flatten() {
                removals.in_flight.push(begun?);
            }
            if removals.in_flight.len() >= REMOVALS_IN_FLIGHT_MAX {
                removals.wait_all().await?;
            }
        }
        Ok(())
    }
}

/// The old offsets of a group that expire.
fn expired_offsets(
    old: &ExpiredOffsets,
    offset_use: &OffsetExpirationCondition,
    left_long_ago: bool,
) -> Vec<(String, u32)> {
    let expiring = old.offsets.iter().filter(|old| match offset_use {
        OffsetExpirationCondition::Unused => left_long_ago || old.has_own_retention,
        OffsetExpirationCondition::RecentlyUsed => old.has_own_retention,
        OffsetExpirationCondition::Subscribed(subscriptions) => !subscriptions.include(&old.topic),
        OffsetExpirationCondition::InUse => false,
    });
    expiring.map(|old| (old.topic.clone(), old.partition)).collect()
}

/// Removals on their way to the disk.
#[derive(Default)]
struct OffsetRemovals {
    in_flight: Vec<PendingStamp>,
    count: usize,
}

impl OffsetRemovals {
    /// Waits until all removals are done.
    async fn wait_all(&mut self) -> Result<(), EngineError> {
        for begun in self.in_flight.drain(..) {
            begun.wait().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
