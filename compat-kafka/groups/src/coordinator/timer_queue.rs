//! The deadlines of all groups: one timer per group, one task for all.
//!
//! A deadline that moves later leaves its timer in place: the group wakes, finds nothing due, and
//! sets its timer again. So a heartbeat, which only moves a deadline later, costs nothing here.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::slot::{GroupSlot, GroupSlotState};

/// The time, and a number that no other timer has.
pub(super) type TimerKey = (Duration, u64);

pub(super) struct TimerQueue {
    state: Mutex<TimerQueueState>,
    changed: Notify,
}

#[derive(Default)]
struct TimerQueueState {
    by_time: BTreeMap<TimerKey, Weak<GroupSlot>>,
    next_number: u64,
    is_closed: bool,
}

impl TimerQueue {
    pub(super) fn new() -> TimerQueue {
        TimerQueue { state: Mutex::default(), changed: Notify::new() }
    }

    /// Sets the group's timer to its next deadline.
    pub(super) fn schedule(&self, slot: &Arc<GroupSlot>, inner: &mut GroupSlotState) {
        let Some(deadline) = inner.next_deadline() else { return };
        if inner.timer.is_some_and(|(armed, _)| armed <= deadline) {
            return;
        }
        let mut timers = self.state.lock();
        if let Some(later) = inner.timer.take() {
            timers.by_time.remove(&later);
        }
        let key = (deadline, timers.next_number);
        timers.next_number += 1;
        timers.by_time.insert(key, Arc::downgrade(slot));
        inner.timer = Some(key);
        if timers.by_time.first_key_value().is_some_and(|(first, _)| *first == key) {
            self.changed.notify_one();
        }
    }

    pub(super) fn cancel(&self, inner: &mut GroupSlotState) {
        if let Some(key) = inner.timer.take() {
            self.state.lock().by_time.remove(&key);
        }
    }

    /// Ends the wait in [`TimerQueue::next_due`], for good.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next timers, and removes them; empty if the queue was closed.
    pub(super) async fn next_due(&self, started: Instant) -> Vec<(TimerKey, Arc<GroupSlot>)> {
        loop {
            let (slots, next) = self.take_due(started.elapsed());
            if !slots.is_empty() || self.state.lock().is_closed {
                return slots;
            }
            match next {
                None => self.changed.notified().await,
                Some(deadline) => {
                    drop(timeout_at(started + deadline, self.changed.notified()).await)
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().by_time.len()
    }

    fn take_due(&self, now: Duration) -> (Vec<(TimerKey, Arc<GroupSlot>)>, Option<Duration>) {
        let mut timers = self.state.lock();
        let later = timers.by_time.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut timers.by_time, later);
        let next = timers.by_time.first_key_value().map(|((at, _), _)| *at);
        let alive = due.into_iter().filter_map(|(key, slot)| Some((key, slot.upgrade()?)));
        (alive.collect(), next)
    }
}
