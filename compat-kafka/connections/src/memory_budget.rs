//! Memory that all connections share, and the connections that end when it runs out.
//!
//! There are three budgets: for large requests, for small ones that a client sends ahead, and for
//! responses on their way out. One set of rules holds for each of them:
//!
//! 1. One address holds at most three quarters of the budget, so that no address keeps all others
//!    out. One connection begins no further request while it holds a quarter.
//! 2. A request that finds no room waits. If that takes long, it ends other connections. Candidates
//!    have kept room waiting for *their client* for a sixth of `limits.stall-max` or longer. The
//!    ones with the highest memory × time end first, of the address with the highest. No more end
//!    than room is needed for.
//! 3. No connection is ended while clients keep less than half of the budget waiting: then the disk
//!    is slow, and waiting is right. The memory of a connection's complete produce requests does
//!    not count against the frame that arrives after them.
//!
//! Room waits for a client while its frame arrives, while its response goes out, and while a
//! request waits for news (a fetch at the end of a log, a join). A complete produce request waits
//! for the disk, which is no client's fault. Without contention all of this costs nothing: clients
//! of one address, behind one NAT for example, get what they ask for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use admission::{BudgetSource, BudgetUsage, LargestHolder, network_of};
use futures_util::future::AbortHandle;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The unit of a budget, in bytes.
const UNIT_BYTES: usize = 1 << 10;
/// The fraction of the longest pause for which room may wait for a client while others wait for
/// that room: 10 s by default.
const STALL_GRACE_DIVISOR: u32 = 6;
/// The fraction of that time after which a request that waits for room looks for slow connections:
/// 2 s by default.
const EVICTION_CHECK_DIVISOR: u32 = 5;

/// The shortest interval between attempts to take room out of turn: clients decide how many wait,
/// and how often room is released.
const ATTEMPT_INTERVAL_MIN: Duration = Duration::from_millis(5);

/// All that a connection holds.
const ALL: u32 = u32::MAX;

/// The number of units that hold `bytes`.
pub fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// No room was found in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget is exhausted")]
pub struct MemoryBudgetError;

/// Memory that all connections share.
#[derive(Debug)]
pub struct MemoryBudget {
    spec: MemoryBudgetSpec,
    permits: Semaphore,
    /// The number of requests that wait out of turn.
    out_of_turn: AtomicUsize,
    /// Wakes them when room is released.
    released: Notify,
    units: u32,
    address_units: u32,
    stall_max: Duration,
    created: Instant,
    quotas: Mutex<Vec<Weak<ConnectionQuota>>>,
    addresses: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Units of responses that exist and wait for room.
    overdraft: AtomicU32,
    /// Connections that were ended to make room.
    evicted: AtomicU64,
}

/// The name and the setting of a budget, as it is listed.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBudgetSpec {
    pub name: &'static str,
    pub setting: &'static str,
}

#[cfg(test)]
impl MemoryBudgetSpec {
    pub(crate) const FOR_TEST: MemoryBudgetSpec =
        MemoryBudgetSpec { name: "test", setting: "test" };
}

/// The part of a budget that one connection holds.
#[derive(Debug)]
pub struct ConnectionQuota {
    budget: Arc<MemoryBudget>,
    address: IpAddr,
    address_permits: Arc<Semaphore>,
    held: AtomicU32,
    /// The time at which the connection began to keep room waiting for its client, in milliseconds
    /// since the budget began; 0 if it does not.
    stalled_since: AtomicU64,
    /// The number of held units that wait for the client; [`ALL`] for all.
    stalled: AtomicU32,
    connection: AbortHandle,
}

/// Room that a connection holds.
#[derive(Debug)]
pub struct QuotaPermit {
    quota: Arc<ConnectionQuota>,
    units: u32,
}

impl MemoryBudget {
    /// Creates a budget of `bytes`, of which one address may always hold `frame_bytes_max`. A
    /// request waits for room for `stall_max` at most.
    pub fn new(
        spec: MemoryBudgetSpec,
        bytes: usize,
        frame_bytes_max: usize,
        stall_max: Duration,
    ) -> Arc<MemoryBudget> {
        let frame_units = units(frame_bytes_max);
        let units = units(bytes).max(1);
        let address_units = (units - units / 4).max(frame_units.min(units));
        Arc::new(MemoryBudget {
            spec,
            permits: Semaphore::new(units as usize),
            out_of_turn: AtomicUsize::new(0),
            released: Notify::new(),
            units,
            address_units,
            stall_max,
            created: Instant::now(),
            quotas: Mutex::default(),
            addresses: Mutex::default(),
            overdraft: AtomicU32::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Registers a connection from `peer`; `connection` ends it.
    pub fn quota(
        self: &Arc<MemoryBudget>,
        peer: IpAddr,
        connection: AbortHandle,
    ) -> Arc<ConnectionQuota> {
        let address = network_of(peer);
        let address_room = {
            let mut addresses = self.addresses.lock();
            let semaphore = addresses.get(&address).and_then(Weak::upgrade);
            semaphore.unwrap_or_else(|| {
                let room = Arc::new(Semaphore::new(self.address_units as usize));
                addresses.insert(address, Arc::downgrade(&room));
                room
            })
        };
        let quota = Arc::new(ConnectionQuota {
            budget: Arc::clone(self),
            address,
            address_permits: address_room,
            held: AtomicU32::new(0),
            stalled_since: AtomicU64::new(0),
            stalled: AtomicU32::new(0),
            connection,
        });
        self.quotas.lock().push(Arc::downgrade(&quota));
        quota
    }

    /// The number of bytes that are held.
    pub fn held_bytes(&self) -> u64 {
        let free = self.permits.available_permits() as u64;
        u64::from(self.units).saturating_sub(free) * UNIT_BYTES as u64
    }

    /// The number of connections that were ended to make room.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn stall_grace(&self) -> Duration {
        self.stall_max / STALL_GRACE_DIVISOR
    }

    fn eviction_check_interval(&self) -> Duration {
        self.stall_grace() / EVICTION_CHECK_DIVISOR
    }

    fn now_ms(&self) -> u64 {
        (self.created.elapsed().as_millis() as u64).max(1)
    }

    /// Ends connections so that `units` units come free, as rule 2 says. With an `address`, only
    /// connections of that address, because it is at its own limit.
    fn evict(&self, units: u32, address: Option<IpAddr>) {
        let now = self.now_ms();
        let quotas: Vec<_> = self.quotas.lock().iter().filter_map(Weak::upgrade).collect();
        let among = |quota: &&Arc<ConnectionQuota>| address.is_none_or(|ip| ip == quota.address);
        let quotas = || quotas.iter().filter(among);
        let stalled: u64 = quotas().map(|quota| quota.stalled_units()).sum();
        let limit = if address.is_some() { self.address_units } else { self.units };
        if 2 * stalled < u64::from(limit) {
            return;
        }
        // Connections that were told to end and have not ended yet.
        let leaving = quotas().filter(|quota| quota.connection.is_aborted());
        let mut freed: u64 = leaving.map(held).sum();
        while freed < u64::from(units) {
            let Some(slowest) = slowest_of(quotas(), now, self.stall_grace()) else { return };
            freed += held(slowest);
            slowest.connection.abort();
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn held(quota: &Arc<ConnectionQuota>) -> u64 {
    quota.held.load(Ordering::Relaxed).into()
}

/// The connection with the highest memory × time, of the address with the highest.
fn slowest_of<'a>(
    quotas: impl Iterator<Item = &'a Arc<ConnectionQuota>>,
    now: u64,
    keep_max: Duration,
) -> Option<&'a Arc<ConnectionQuota>> {
    let mut by_address: HashMap<IpAddr, (u64, u64, &Arc<ConnectionQuota>)> = HashMap::new();
    for quota in quotas {
        let Some(kept_ms) = quota.stalled_ms(now) else { continue };
        if quota.stalled_units() == 0
            || kept_ms < keep_max.as_millis() as u64
            || quota.connection.is_aborted()
        {
            continue;
        }
        let used = quota.stalled_units() * kept_ms;
        let (sum, largest, slowest) = by_address.entry(quota.address).or_insert((0, 0, quota));
        *sum += used;
        if used > *largest {
            (*largest, *slowest) = (used, quota);
        }
    }
    let heaviest = by_address.into_iter().max_by_key(|(address, (sum, ..))| (*sum, *address));
    heaviest.map(|(_, (.., slowest))| slowest)
}

impl BudgetSource for MemoryBudget {
    fn usage(&self) -> BudgetUsage {
        let bytes = |units: usize| (units * UNIT_BYTES) as u64;
        let addresses = self.addresses.lock();
        let units_used = |permits: &Weak<Semaphore>| {
            let permits = permits.upgrade()?;
            Some(self.address_units as usize - permits.available_permits())
        };
        let holders: Vec<_> = addresses
            .iter()
            .filter_map(|(address, permits)| Some((units_used(permits)?, *address)))
            .filter(|(units, _)| *units > 0)
            .collect();
        let largest = holders.iter().max();
        BudgetUsage {
            name: self.spec.name,
            unit: "bytes",
            setting: Some(self.spec.setting),
            limit: bytes(self.units as usize),
            used: self.held_bytes(),
            holders: holders.len(),
            largest: largest.map(|(units, address)| LargestHolder {
                name: address.to_string(),
                used: bytes(*units),
            }),
            refused: self.evicted(),
        }
    }
}

impl ConnectionQuota {
    /// From now on, all room of the connection waits for its client.
    pub fn mark_all_stalled(&self) {
        self.mark_stalled(ALL);
    }

    /// Marks `units` as waiting for the connection's client, unless all of its memory already is.
    pub fn mark_stalled(&self, units: u32) {
        if self.stalled.load(Ordering::Relaxed) != ALL {
            self.stalled.store(units, Ordering::Relaxed);
        }
        if self.stalled_since.load(Ordering::Relaxed) == 0 {
            self.stalled_since.store(self.budget.now_ms(), Ordering::Relaxed);
        }
    }

    /// No room of the connection waits for its client any more.
    pub fn clear_stalled(&self) {
        self.stalled_since.store(0, Ordering::Relaxed);
        self.stalled.store(0, Ordering::Relaxed);
    }

    fn stalled_units(&self) -> u64 {
        self.stalled.load(Ordering::Relaxed).min(self.held.load(Ordering::Relaxed)).into()
    }

    fn stalled_ms(&self, now: u64) -> Option<u64> {
        let since = self.stalled_since.load(Ordering::Relaxed);
        (since > 0).then(|| now.saturating_sub(since))
    }

    /// True if the connection holds the most that a connection may hold when it begins something
    /// new.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.budget.units.div_ceil(4)
    }

    /// The most bytes that something new should take: a quarter of what is free, so that later
    /// requests find room.
    pub fn share_bytes(&self) -> usize {
        let free =
            self.budget.permits.available_permits().min(self.address_permits.available_permits());
        free / 4 * UNIT_BYTES
    }

    /// The most units that the connection can hold. A larger request is granted this many.
    pub fn units_max(&self) -> u32 {
        self.budget.address_units
    }

    /// Takes `units` if they are free now.
    pub fn try_take(self: &Arc<ConnectionQuota>, units: u32) -> Option<QuotaPermit> {
        let units = units.min(self.budget.address_units);
        let address = self.address_permits.try_acquire_many(units).ok()?;
        let room = self.budget.permits.try_acquire_many(units).ok()?;
        Some(self.grant(address, room, units))
    }

    /// Takes `units`, and waits for them.
    ///
    /// # Errors
    ///
    /// There was no room in time.
    pub async fn take(
        self: &Arc<ConnectionQuota>,
        units: u32,
    ) -> Result<QuotaPermit, MemoryBudgetError> {
        if let Some(permit) = self.try_take(units) {
            return Ok(permit);
        }
        let units = units.min(self.budget.address_units);
        let taking = async {
            let address = self.wait(&self.address_permits, units, Some(self.address)).await;
            let room = self.wait(&self.budget.permits, units, None).await;
            self.grant(address, room, units)
        };
        tokio::time::timeout(self.budget.stall_max, taking).await.map_err(|_| MemoryBudgetError)
    }

    /// Takes room for so many units, and waits for it outside of the queue: others that wait for
    /// less go first.
    ///
    /// # Errors
    ///
    /// There was no room in time.
    pub async fn take_out_of_turn(
        self: &Arc<ConnectionQuota>,
        units: u32,
    ) -> Result<QuotaPermit, MemoryBudgetError> {
        if let Some(permit) = self.try_take(units) {
            return Ok(permit);
        }
        let _waiting = OutOfTurnWait::begin(&self.budget);
        // Room that a request in the queue gives up is not reported.
        let patience = self.budget.eviction_check_interval();
        let taking = async {
            loop {
                let released = self.budget.released.notified();
                if let Some(permit) = self.try_take(units) {
                    return permit;
                }
                let next_attempt = Instant::now() + ATTEMPT_INTERVAL_MIN;
                let _ = tokio::time::timeout(patience, released).await;
                tokio::time::sleep_until(next_attempt).await;
            }
        };
        tokio::time::timeout(self.budget.stall_max, taking).await.map_err(|_| MemoryBudgetError)
    }

    /// Takes room for a response that exists already. The responses that wait for room are limited
    /// to the size of the budget once more.
    ///
    /// # Errors
    ///
    /// There was no room in time, or too many responses wait.
    pub async fn take_for_response(
        self: &Arc<ConnectionQuota>,
        units: u32,
    ) -> Result<QuotaPermit, MemoryBudgetError> {
        if let Some(permit) = self.try_take(units) {
            return Ok(permit);
        }
        let _overdraft = BudgetOverdraft::take(&self.budget, units).ok_or(MemoryBudgetError)?;
        self.take(units).await
    }

    async fn wait<'a>(
        &self,
        room: &'a Semaphore,
        units: u32,
        address: Option<IpAddr>,
    ) -> SemaphorePermit<'a> {
        let mut acquiring = pin!(room.acquire_many(units));
        let patience = self.budget.eviction_check_interval();
        loop {
            match tokio::time::timeout(patience, &mut acquiring).await {
                Ok(permit) => return permit.expect("budgets are never closed"),
                Err(_) => self.budget.evict(units, address),
            }
        }
    }

    fn grant(
        self: &Arc<ConnectionQuota>,
        address: SemaphorePermit<'_>,
        room: SemaphorePermit<'_>,
        units: u32,
    ) -> QuotaPermit {
        address.forget();
        room.forget();
        self.held.fetch_add(units, Ordering::Relaxed);
        QuotaPermit { quota: Arc::clone(self), units }
    }

    fn release(&self, units: u32) {
        self.held.fetch_sub(units, Ordering::Relaxed);
        self.budget.permits.add_permits(units as usize);
        self.address_permits.add_permits(units as usize);
        if units > 0 && self.budget.out_of_turn.load(Ordering::SeqCst) > 0 {
            self.budget.released.notify_waiters();
        }
    }
}

impl Drop for ConnectionQuota {
    fn drop(&mut self) {
        // Quotas that cannot be upgraded any more are this one, and others that are being dropped.
        self.budget.quotas.lock().retain(|quota| quota.strong_count() > 0);
        if Arc::strong_count(&self.address_permits) == 1 {
            let mut addresses = self.budget.addresses.lock();
            // A new connection from the address may share its permits.
            if Arc::strong_count(&self.address_permits) == 1 {
                addresses.remove(&self.address);
            }
        }
    }
}

impl QuotaPermit {
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Takes over what another permit of the same budget holds.
    pub fn merge(&mut self, mut permit: QuotaPermit) {
        self.units += std::mem::take(&mut permit.units);
    }

    /// Releases what exceeds `units`.
    pub fn shrink_to(&mut self, units: u32) {
        let excess = self.units.saturating_sub(units);
        self.units -= excess;
        self.quota.release(excess);
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.quota.release(self.units);
    }
}

/// A request that waits out of turn.
struct OutOfTurnWait<'a>(&'a MemoryBudget);

impl OutOfTurnWait<'_> {
    fn begin(budget: &MemoryBudget) -> OutOfTurnWait<'_> {
        budget.out_of_turn.fetch_add(1, Ordering::SeqCst);
        OutOfTurnWait(budget)
    }
}

impl Drop for OutOfTurnWait<'_> {
    fn drop(&mut self) {
        self.0.out_of_turn.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A response that exists, and has no room yet.
struct BudgetOverdraft<'a> {
    budget: &'a MemoryBudget,
    units: u32,
}

impl BudgetOverdraft<'_> {
    fn take(budget: &MemoryBudget, units: u32) -> Option<BudgetOverdraft<'_>> {
        let fits = |used: u32| used.checked_add(units).filter(|sum| *sum <= budget.units);
        let drawn = budget.overdraft.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        drawn.ok().map(|_| BudgetOverdraft { budget, units })
    }
}

impl Drop for BudgetOverdraft<'_> {
    fn drop(&mut self) {
        self.budget.overdraft.fetch_sub(self.units, Ordering::Relaxed);
    }
}

/// The memory that a connection holds of the budgets for requests.
#[derive(Debug)]
pub struct RequestQuotas {
    pub large: Arc<ConnectionQuota>,
    /// For small requests that were sent ahead.
    pub pipelined: Arc<ConnectionQuota>,
}

impl RequestQuotas {
    /// From now on, requests wait for their client or for news.
    pub fn mark_all_stalled(&self) {
        self.large.mark_all_stalled();
        self.pipelined.mark_all_stalled();
    }

    /// From now on, requests wait for neither.
    pub fn clear_stalled(&self) {
        self.large.clear_stalled();
        self.pipelined.clear_stalled();
    }

    /// True if the connection holds the most that a connection may hold when it begins something
    /// new.
    pub fn are_exhausted(&self) -> bool {
        self.large.is_exhausted() || self.pipelined.is_exhausted()
    }
}

#[cfg(test)]
mod tests;
