//! The recent use of clients, by user and client id. Clients to whom the same quota applies share
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::rate::{RateOptions, RateWindow, TokenBucket};

/// The most sensors. Client ids are free: a client could make up a new one for each request. All
/// clients beyond share one.
const SENSORS_MAX: usize = 50_000;
/// The longest name that has a sensor of its own, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The shortest interval between two cleanings of the sensors.
pub(crate) const CLEANING_PAUSE: Duration = Duration::from_secs(1);

/// The kind of use that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QuotaKind {
    /// Bytes of Produce requests, a second.
    Produce,
    /// Bytes of responses to fetches, a second.
    Fetch,
    /// The time of threads, in percent of one.
    RequestTime,
    /// Partitions that are created and deleted, a second.
    Mutation,
}

/// The recent use of the clients that share a sensor.
#[derive(Debug)]
pub(crate) enum Sensor {
    Rate(Mutex<RateWindow>),
    Tokens(Mutex<TokenBucket>),
}

impl Sensor {
    fn new(kind: QuotaKind) -> Sensor {
        match kind {
            QuotaKind::Produce | QuotaKind::Fetch | QuotaKind::RequestTime => {
                Sensor::Rate(Mutex::default())
            }
            QuotaKind::Mutation => Sensor::Tokens(Mutex::default()),
        }
    }
}

/// The owner of a sensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SensorName {
    /// A text that does not matter is empty.
    Of { kind: QuotaKind, user: String, client_id: String },
    /// Of all those for whom there is no room.
    Others(QuotaKind),
}

impl SensorName {
    /// That of a client, if there is room for its name.
    pub(crate) fn new(kind: QuotaKind, user: &str, client_id: &str) -> SensorName {
        if user.len().max(client_id.len()) > NAME_BYTES_MAX {
            return SensorName::Others(kind);
        }
        SensorName::Of { kind, user: user.to_owned(), client_id: client_id.to_owned() }
    }

    fn kind(&self) -> QuotaKind {
        match self {
            SensorName::Of { kind, .. } | SensorName::Others(kind) => *kind,
        }
    }
}

/// The sensors that somebody uses, or that have something to remember.
#[derive(Debug, Default)]
pub(crate) struct Sensors {
    by_name: HashMap<SensorName, (Arc<Sensor>, f64)>,
    /// The number of sensors at which the next cleaning removes those that are not needed.
    next_cleaning: usize,
    cleaned: Option<Instant>,
}

impl Sensors {
    /// The sensor of that name, whose rate is now `rate_max` a second; and whether it is that, and
    /// not that of those for whom there is no room.
    pub(crate) fn get(
        &mut self,
        name: SensorName,
        rate_max: f64,
        options: &QuotaRates,
    ) -> (Arc<Sensor>, bool) {
        let now = Instant::now();
        let is_due = self.cleaned.is_none_or(|cleaned| now - cleaned >= CLEANING_PAUSE);
        if is_due && self.by_name.len() >= self.next_cleaning.max(64) {
            self.clean(now, options);
        }
        let is_full = self.by_name.len() >= SENSORS_MAX && !self.by_name.contains_key(&name);
        let name = if is_full { SensorName::Others(name.kind()) } else { name };
        let (kind, is_own) = (name.kind(), matches!(name, SensorName::Of { .. }));
        let (sensor, rate) =
            self.by_name.entry(name).or_insert_with(|| (Arc::new(Sensor::new(kind)), rate_max));
        *rate = rate_max;
        (Arc::clone(sensor), is_own)
    }

    /// Removes sensors that a new one would be equal to, and that nobody holds.
    fn clean(&mut self, now: Instant, options: &QuotaRates) {
        self.by_name.retain(|_, (sensor, rate)| {
            Arc::strong_count(sensor) > 1
                || match &**sensor {
                    Sensor::Rate(window) => !window.lock().is_empty(now, &options.clients),
                    Sensor::Tokens(bucket) => {
                        !bucket.lock().is_full(*rate, now, &options.mutations)
                    }
                }
        });
        self.next_cleaning = (self.by_name.len() * 2).min(SENSORS_MAX);
        self.cleaned = Some(now);
    }
}

/// The windows over which the rates of quotas are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaRates {
    /// For bytes, time and connections.
    pub clients: RateOptions,
    /// For partitions that are created and deleted (`controller.quota.window.num` and
    /// `.size.seconds`).
    pub mutations: RateOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(kind: QuotaKind, client_id: &str) -> SensorName {
        SensorName::new(kind, "u", client_id)
    }

    fn is_same(a: &Arc<Sensor>, b: &Arc<Sensor>) -> bool {
        Arc::ptr_eq(a, b)
    }

    #[test]
    fn a_client_that_makes_up_ids_takes_bounded_memory_and_others_keep_theirs() {
        let (mut sensors, rates) = (Sensors::default(), QuotaRates::default());
        let (early, _) = sensors.get(name(QuotaKind::Produce, "early"), 1.0, &rates);
        let mut held = Vec::new();
        for nth in 0..SENSORS_MAX + 1000 {
            let id = format!("made up {nth}");
            held.push(sensors.get(name(QuotaKind::Produce, &id), 1.0, &rates));
        }
        assert!(sensors.by_name.len() <= SENSORS_MAX + 1, "{}", sensors.by_name.len());
        let [.., (last_but_one, is_own), (last, _)] = held.as_slice() else { unreachable!() };
        assert!(is_same(last_but_one, last) && !is_own, "those beyond share one");
        let (again, is_own) = sensors.get(name(QuotaKind::Produce, "early"), 1.0, &rates);
        assert!(is_same(&again, &early) && is_own);
        assert!(!is_same(&early, last));
        // So do those with long names, however many there are.
        let mut sensors = Sensors::default();
        for nth in 0..100 {
            let (_, is_own) =
                sensors.get(name(QuotaKind::Produce, &format!("{nth:0300}")), 1.0, &rates);
            assert!(!is_own);
        }
        assert_eq!(sensors.by_name.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_holds_and_has_nothing_to_remember_goes() {
        let (mut sensors, rates) = (Sensors::default(), QuotaRates::default());
        let (held, _) = sensors.get(name(QuotaKind::Produce, "held"), 1.0, &rates);
        for nth in 0..200 {
            let id = format!("{nth}");
            let (sensor, _) = sensors.get(name(QuotaKind::Mutation, &id), 1.0, &rates);
            let Sensor::Tokens(bucket) = &*sensor else { panic!("{sensor:?}") };
            // It owes nothing after 5 seconds, or after 20.
            let taken = if nth < 100 { 5.0 } else { 20.0 };
            bucket.lock().take(taken, 1.0, Instant::now(), &rates.mutations);
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
        sensors.clean(Instant::now(), &rates);
        assert_eq!(sensors.by_name.len(), 101);
        tokio::time::sleep(Duration::from_secs(15)).await;
        sensors.clean(Instant::now(), &rates);
        assert_eq!(sensors.by_name.len(), 1);
        let (again, _) = sensors.get(name(QuotaKind::Produce, "held"), 1.0, &rates);
        assert!(is_same(&again, &held));
    }
}
