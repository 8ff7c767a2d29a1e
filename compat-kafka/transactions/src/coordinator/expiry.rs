//! Ends what was not used for long: transactions that are open, and transactional ids.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{CoordinatorState, TransactionSlot, let_others_run};

/// The most bytes of transactional ids that expire by one event.
const EXPIRED_BYTES: usize = 1 << 20;

impl CoordinatorState {
    /// Aborts the transactions that are open for too long, and fences their producers. Where
    /// partitions of transactions are scarce, those that were added long ago and not written to
    /// lapse.
    async fn abort_timed_out(self: &Arc<Self>) {
        let steady = self.engine.timekeeper().steady_now();
        let lapsing = self.budgets.take_lapsing();
        for (nth, slot) in self.slots().into_iter().enumerate() {
            let_others_run(nth).await;
            let mut state = slot.state.lock();
            let timeout = Duration::from_millis(u64::from(state.state.timeout_ms));
            let is_due = state
                .ongoing
                .as_ref()
                .is_some_and(|ongoing| steady.saturating_sub(ongoing.began_steady) > timeout);
            if state.is_busy {
                continue;
            }
            if !is_due {
                if let Some(ongoing) = &mut state.ongoing
                    && lapsing.contains(ongoing.grants.holder())
                {
                    ongoing.lapse(steady);
                }
                continue;
            }
            let (decision, next) = state.plan_fence(self.engine.wall_now());
            tracing::info!(
                id = &*slot.id,
                producer = decision.producer,
                "a transaction timed out and is aborted"
            );
            if let Err(error) = self.decide(&slot, &mut state, decision, next) {
                tracing::warn!(id = &*slot.id, %error, "a transaction that timed out cannot be aborted");
            }
        }
    }

    /// Marks the transactional ids that were not used for long as busy, and returns them.
    async fn begin_removal(&self) -> Vec<Arc<TransactionSlot>> {
        // While the clock cannot be trusted, nothing expires by age.
        let Some(now) = self.engine.retention_time() else { return Vec::new() };
        let expiration_ms = self.options.id_expiration.as_millis() as u64;
        let mut due = Vec::new();
        for (nth, slot) in self.slots().into_iter().enumerate() {
            let_others_run(nth).await;
            let mut state = slot.state.lock();
            let is_old = now.0.saturating_sub(state.state.updated_ms) > expiration_ms;
            if is_old && state.ongoing.is_none() && !state.is_busy {
                state.is_busy = true;
                due.push(Arc::clone(&slot));
            }
        }
        due
    }

    /// Removes the transactional ids that were not used for long.
    async fn remove_expired(&self) {
        let mut due = self.begin_removal().await;
        while !due.is_empty() {
            let mut bytes = 0;
            let fits = |slot: &&Arc<TransactionSlot>| {
                bytes += slot.id.len();
                bytes <= EXPIRED_BYTES
            };
            let fitting = due.iter().take_while(fits).count().max(1);
            let next = due.split_off(fitting);
            let slots = std::mem::replace(&mut due, next);
            let ids = slots.iter().map(|slot| slot.id.to_string()).collect();
            let is_removed = match self.engine.groups().begin_expire_transactions(ids) {
                Ok(queued) => queued.wait().await.is_ok(),
                Err(_) => false,
            };
            for slot in slots {
                {
                    let mut state = slot.state.lock();
                    state.is_busy = false;
                    state.is_removed = is_removed;
                }
                if is_removed {
                    self.slots.write().remove(&slot.id);
                }
            }
        }
    }
}

pub(super) async fn abort_timed_out(shared: Weak<CoordinatorState>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.abort_timed_out().await;
    }
}

pub(super) async fn remove_expired(shared: Weak<CoordinatorState>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.remove_expired().await;
    }
}
