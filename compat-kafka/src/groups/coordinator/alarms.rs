//! When which group is to be woken: one alarm a group, one task for all.
//!
//! A deadline that moves away leaves its alarm where it is: the group is woken, finds nothing due,
//! and sets its alarm anew. So a heartbeat, which only moves a deadline away, costs nothing here.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::slot::{Inner, Slot};

/// When, and a number that no other alarm has.
pub(super) type AlarmKey = (Duration, u64);

pub(super) struct Alarms {
    set: Mutex<Set>,
    changed: Notify,
}

#[derive(Default)]
struct Set {
    by_time: BTreeMap<AlarmKey, Weak<Slot>>,
    next_number: u64,
    is_closed: bool,
}

impl Alarms {
    pub(super) fn new() -> Alarms {
        Alarms { set: Mutex::default(), changed: Notify::new() }
    }

    /// Sees to it that the group is woken by its next deadline.
    pub(super) fn arm(&self, slot: &Arc<Slot>, inner: &mut Inner) {
        let Some(at) = inner.next_deadline() else { return };
        if inner.alarm.is_some_and(|(armed, _)| armed <= at) {
            return;
        }
        let mut set = self.set.lock();
        if let Some(later) = inner.alarm.take() {
            set.by_time.remove(&later);
        }
        let key = (at, set.next_number);
        set.next_number += 1;
        set.by_time.insert(key, Arc::downgrade(slot));
        inner.alarm = Some(key);
        if set.by_time.first_key_value().is_some_and(|(first, _)| *first == key) {
            self.changed.notify_one();
        }
    }

    pub(super) fn disarm(&self, inner: &mut Inner) {
        if let Some(key) = inner.alarm.take() {
            self.set.lock().by_time.remove(&key);
        }
    }

    /// Ends the wait in [`Alarms::due`], for good.
    pub(super) fn close(&self) {
        self.set.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next alarms, and takes them off; none if they were closed.
    pub(super) async fn due(&self, started: Instant) -> Vec<(AlarmKey, Arc<Slot>)> {
        loop {
            let (slots, next) = self.take_due(started.elapsed());
            if !slots.is_empty() || self.set.lock().is_closed {
                return slots;
            }
            match next {
                None => self.changed.notified().await,
                Some(at) => drop(timeout_at(started + at, self.changed.notified()).await),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.set.lock().by_time.len()
    }

    fn take_due(&self, now: Duration) -> (Vec<(AlarmKey, Arc<Slot>)>, Option<Duration>) {
        let mut set = self.set.lock();
        let later = set.by_time.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut set.by_time, later);
        let next = set.by_time.first_key_value().map(|((at, _), _)| *at);
        let alive = due.into_iter().filter_map(|(key, slot)| Some((key, slot.upgrade()?)));
        (alive.collect(), next)
    }
}
