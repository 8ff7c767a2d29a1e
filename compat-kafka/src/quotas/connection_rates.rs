//! The rates of new connections: in all, and from one address (KIP-612).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use engine::security::{QuotaEntity, QuotaName, Security};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::CONNECTION_CREATION_RATE;
use super::rate::{RateOptions, RateWindow};
use super::sensors::CLEANING_PAUSE;

/// The most addresses with a quota that are remembered. Connections from others beyond have none.
const ADDRESSES_MAX: usize = 100_000;

/// The recent rates of new connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRates {
    all: Mutex<RateWindow>,
    by_address: Mutex<AddressRates>,
}

#[derive(Debug, Default)]
struct AddressRates {
    windows: HashMap<IpAddr, RateWindow>,
    /// The number of addresses at which the next cleaning removes those that are not needed.
    next_cleaning: usize,
    cleaned: Option<Instant>,
}

impl ConnectionRates {
    /// Counts a connection; returns how long no other is accepted.
    pub(crate) fn record(&self, rate_max: Option<u32>, options: &RateOptions) -> Duration {
        record_connection(&mut self.all.lock(), rate_max, options)
    }

    /// Counts a connection from an address. If there are too many from there, it is not counted,
    /// and the delay until there may be another one is returned.
    pub(crate) fn record_address(
        &self,
        security: &Security,
        address: IpAddr,
        options: &RateOptions,
    ) -> Duration {
        let address = address.to_canonical();
        let Some(rate_max) = address_quota(security, address) else { return Duration::ZERO };
        let (now, mut rates) = (Instant::now(), self.by_address.lock());
        let is_due = rates.cleaned.is_none_or(|cleaned| now - cleaned >= CLEANING_PAUSE);
        if is_due && rates.windows.len() >= rates.next_cleaning.max(64) {
            rates.cleaned = Some(now);
            rates.windows.retain(|_, window| !window.is_empty(now, options));
            rates.next_cleaning = (rates.windows.len() * 2).min(ADDRESSES_MAX);
        }
        if rates.windows.len() >= ADDRESSES_MAX && !rates.windows.contains_key(&address) {
            return Duration::ZERO;
        }
        let window = rates.windows.entry(address).or_default();
        window.record(1.0, now, options);
        let delay = window.delay(rate_max, now, options).min(options.sample);
        if !delay.is_zero() {
            window.record(-1.0, now, options);
        }
        delay
    }
}

/// Counts a connection; returns how long no other is accepted.
pub(crate) fn record_connection(
    window: &mut RateWindow,
    rate_max: Option<u32>,
    options: &RateOptions,
) -> Duration {
    let Some(rate_max) = rate_max else { return Duration::ZERO };
    let now = Instant::now();
    window.record(1.0, now, options);
    window.delay(rate_max.into(), now, options).min(options.sample)
}

fn address_quota(security: &Security, address: IpAddr) -> Option<f64> {
    if security.quota_version() == 0 {
        return None;
    }
    let state = security.state();
    let names = [QuotaName::Named(address.to_string()), QuotaName::Default];
    names.into_iter().find_map(|name| {
        let entity = QuotaEntity { ip: Some(name), ..QuotaEntity::default() };
        state.quotas().get(&entity)?.get(CONNECTION_CREATION_RATE).copied()
    })
}
