//! The open connections: their limits, and the one that ends when there is no room for another.
//!
//! `max.connections` is a budget of the kind [`BudgetKind::Yielding`]. A connection is charged to
//! its address when it is accepted, and to its principal once that is known. A connection is early
//! until it has finished its handshake or login, and sent a request. When all are taken,
//! connections end in this order:
//!
//! 1. of the address that the new connection comes from, the oldest early one, if it has several,
//! 2. early ones, while they have more than a thirty-second of all places: the oldest of the
//!    address that has the most of them,
//! 3. of the holder with the most, its oldest early one, or else the one that has been idle for
//!    longest,
//! 4. one that serves a request, if that holder has no other and the room is for somebody else.
//!
//! Rule 2 spares a few, which protects new clients: otherwise a client that opens connections
//! without end, and sends a request over each, would end the connections of others while they log
//! in. So silent clients displace a thirty-second at most of those who are served, and one address a
//! quarter of that.
//!
//! The limits of an address and of a listener are not shared: only early connections end for them.
//!
//! The memory of clients before their login is a budget by address too ([`LoginMemory`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admission::{Budget, BudgetError, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder};
use futures_util::future::AbortHandle;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::listener::KafkaListener;

const CONNECTIONS: BudgetSpec = BudgetSpec {
    name: "connections",
    unit: "connections",
    setting: Some("max.connections"),
    kind: BudgetKind::Yielding,
};

/// Early connections may take one in this many places before one of them ends for a new one.
const EARLY_DIVISOR: u64 = 32;
/// One address may have one in this many of the early connections.
const EARLY_ADDRESSES: usize = 4;

/// The most bytes that all connections hold together before a login.
const LOGIN_BYTES_MAX: u64 = 64 << 20;

const LOGIN_MEMORY: BudgetSpec = BudgetSpec {
    name: "login-memory",
    unit: "bytes before a login",
    setting: None,
    kind: BudgetKind::Yielding,
};

#[derive(Debug)]
pub struct ConnectionTable {
    budget: Arc<Budget>,
    login_memory: Arc<Budget>,
    open: Mutex<OpenConnections>,
    closed: Notify,
    begun: Instant,
}

/// The address of a connection's client, and the listener that it connected to.
#[derive(Clone, Debug)]
pub struct ConnectionRoute {
    pub from: IpAddr,
    pub to: Arc<KafkaListener>,
}

/// The most connections that may be open.
#[derive(Clone, Copy, Debug)]
pub struct OpenLimits {
    pub all: usize,
    pub of_address: usize,
    pub of_listener: usize,
}

/// The limit that another connection would exceed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FullLimit {
    #[error("{0}")]
    All(BudgetError),
    #[error("as many are open from an address as may be (max.connections.per.ip)")]
    Address,
    #[error(
        "as many are open to a listener as may be (max.connections of the listener). listener={0}"
    )]
    Listener(String),
}

/// The place that an accepted connection takes: a free one, or that of a connection that was ended
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceSource {
    Free,
    Vacated,
}

#[derive(Debug, Default)]
struct OpenConnections {
    by_address: HashMap<IpAddr, usize>,
    by_listener: HashMap<String, usize>,
    next: u64,
    /// Connections that have not logged in or never sent a request, by age, under their address.
    early: HashMap<Holder, BTreeMap<u64, OpenConnection>>,
    /// The others, under their holder.
    served: HashMap<Holder, BTreeMap<u64, OpenConnection>>,
}

#[derive(Clone, Debug)]
struct OpenConnection {
    route: ConnectionRoute,
    handle: AbortHandle,
    activity: Arc<ConnectionActivity>,
}

/// The activity of a connection: serving or idle, and since when.
#[derive(Debug, Default)]
struct ConnectionActivity {
    /// Milliseconds since the table began; the lowest bit says whether a request is served.
    state: AtomicU64,
    /// The bytes that it holds before its login.
    login_bytes: AtomicU64,
}

impl ConnectionActivity {
    fn is_serving(&self) -> bool {
        self.state.load(Ordering::Relaxed) & 1 == 1
    }

    fn set(&self, is_serving: bool, now_ms: u64) {
        self.state.store((now_ms << 1) | u64::from(is_serving), Ordering::Relaxed);
    }
}

impl ConnectionTable {
    /// Lists its budgets in `budgets`.
    pub fn new(budgets: &BudgetRegistry, connections_max: usize) -> Arc<ConnectionTable> {
        let budget = budgets.budget(CONNECTIONS, connections_max as u64);
        let login_memory = budgets.budget(LOGIN_MEMORY, LOGIN_BYTES_MAX);
        let (open, closed) = Default::default();
        Arc::new(ConnectionTable { budget, login_memory, open, closed, begun: Instant::now() })
    }

    /// Adds a connection, which `handle` ends.
    ///
    /// # Errors
    /// There are as many as may be.
    pub fn open(
        self: &Arc<ConnectionTable>,
        route: &ConnectionRoute,
        handle: AbortHandle,
        limits: OpenLimits,
        source: PlaceSource,
    ) -> Result<ConnectionPlace, FullLimit> {
        let mut open = self.open.lock();
        let of_address = open.by_address.get(&route.from).copied().unwrap_or(0);
        if of_address >= limits.of_address {
            return Err(FullLimit::Address);
        }
        let of_listener = open.by_listener.get(&route.to.key).copied().unwrap_or(0);
        if of_listener >= limits.of_listener {
            return Err(FullLimit::Listener(route.to.name.clone()));
        }
        let holder = Holder::address(route.from);
        self.budget.set_limit(limits.all as u64);
        if source == PlaceSource::Vacated && self.budget.used() < self.budget.limit() {
            self.budget.charge_always(&holder, 1);
        } else {
            self.budget.charge(&holder, 1).map_err(FullLimit::All)?;
        }
        open.by_address.insert(route.from, of_address + 1);
        match open.by_listener.get_mut(&route.to.key) {
            Some(count) => *count += 1,
            None => _ = open.by_listener.insert(route.to.key.clone(), 1),
        }
        let nth = open.next;
        open.next += 1;
        let activity = Arc::<ConnectionActivity>::default();
        let connection =
            OpenConnection { route: route.clone(), handle, activity: Arc::clone(&activity) };
        open.early.entry(holder.clone()).or_default().insert(nth, connection);
        let (table, from, key) = (Arc::clone(self), route.from, route.to.key.clone());
        Ok(ConnectionPlace { table, nth, from, key, holder, activity, is_early: true })
    }

    /// Ends a connection whose end makes room for one of `route`; false if none may end for it.
    pub fn end_one(&self, route: &ConnectionRoute, full: &FullLimit) -> bool {
        let mut open = self.open.lock();
        match full {
            FullLimit::Address => open.end_early(|old| old.from == route.from),
            FullLimit::Listener(_) => open.end_early(|old| old.to.key == route.to.key),
            FullLimit::All(error) => {
                let holder = Holder::address(route.from);
                let of_address = open.early.get(&holder).map_or(0, BTreeMap::len);
                if of_address * EARLY_ADDRESSES > self.early_max() {
                    return open.end_oldest_early(&holder);
                }
                (!self.spares_early(&open, error) && open.end_early(|_| true))
                    || self.end_yielding(&mut open, error)
            }
        }
    }

    /// True if early connections stay: there are few, and somebody has more than one connection.
    fn spares_early(&self, open: &OpenConnections, error: &BudgetError) -> bool {
        let early_count: usize = open.early.values().map(BTreeMap::len).sum();
        let largest = error.yields.as_ref().map_or(0, |yields| self.budget.held(yields));
        largest > 1 && early_count <= self.early_max()
    }

    /// The most early connections that stay when all places are taken.
    fn early_max(&self) -> usize {
        usize::try_from(self.budget.limit() / EARLY_DIVISOR).unwrap_or(usize::MAX).max(1)
    }

    /// Ends a connection of the holder that gives way.
    fn end_yielding(&self, open: &mut OpenConnections, error: &BudgetError) -> bool {
        // A small limit has no shares: first come, first served.
        if !self.budget.has_shares() {
            return false;
        }
        let Some(yields) = &error.yields else { return false };
        open.end_oldest_early(yields) || open.end_served(yields, yields.name() != error.holder)
    }

    /// Ends early connections of the address that gives way, those that hold most first, until they
    /// free what `grant` lacks for `bytes`. If that is its own address, only those end that hold
    /// more than that.
    fn free_login_memory(
        &self,
        grant: &BudgetGrant,
        bytes: u64,
        error: BudgetError,
    ) -> Result<(), BudgetError> {
        let Some(yields) = error.yields.clone() else { return Err(error) };
        let held_min = if yields == *grant.holder() { bytes } else { 0 };
        let mut open = self.open.lock();
        let early = open.early.get(&yields).into_iter().flatten();
        let candidates_bytes = early
            .map(|(nth, old)| (old.activity.login_bytes.load(Ordering::Relaxed), *nth))
            .filter(|(bytes, _)| *bytes > held_min);
        let mut candidates: Vec<_> = candidates_bytes.collect();
        candidates.sort_unstable_by_key(|candidate| Reverse(*candidate));
        let mut bytes_lacking = bytes - grant.amount();
        for (bytes, nth) in candidates {
            end(&mut open.early, &yields, nth);
            bytes_lacking = bytes_lacking.saturating_sub(bytes);
            if bytes_lacking == 0 {
                return Ok(());
            }
        }
        Err(error)
    }

    /// Waits until one of them ends, from the call on.
    pub fn closed(&self) -> impl Future<Output = ()> + '_ {
        self.closed.notified()
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

impl OpenConnections {
    /// Ends the oldest early connection to which `makes_room` applies, of the address that has the
    /// most early ones.
    fn end_early(&mut self, makes_room: impl Fn(&ConnectionRoute) -> bool) -> bool {
        let oldest = |connections: &BTreeMap<u64, OpenConnection>| {
            let oldest = connections.iter().find(|(_, old)| makes_room(&old.route));
            oldest.map(|(nth, _)| *nth)
        };
        let candidates = self.early.iter().filter_map(|(holder, connections)| {
            Some((connections.len(), Reverse(oldest(connections)?), holder))
        });
        let first = candidates.max_by_key(|(count, nth, _)| (*count, *nth));
        let Some((_, Reverse(nth), holder)) = first else { return false };
        let holder = holder.clone();
        end(&mut self.early, &holder, nth)
    }

    /// Ends the oldest early connection of `holder`.
    fn end_oldest_early(&mut self, holder: &Holder) -> bool {
        let oldest = self.early.get(holder).and_then(|connections| connections.keys().next());
        let Some(nth) = oldest.copied() else { return false };
        end(&mut self.early, holder, nth)
    }

    /// Ends the connection of `holder` that has been idle for longest. One that serves a request
    /// ends only if `also_serving`, and there is no other.
    fn end_served(&mut self, holder: &Holder, also_serving: bool) -> bool {
        let Some(connections) = self.served.get(holder) else { return false };
        let states = connections.iter().map(|(nth, connection)| {
            let activity = &connection.activity;
            (activity.is_serving(), activity.state.load(Ordering::Relaxed), *nth)
        });
        let first = states.filter(|(is_serving, ..)| also_serving || !is_serving).min();
        match first {
            Some((_, _, nth)) => end(&mut self.served, holder, nth),
            None => false,
        }
    }
}

/// Ends a connection, which is no candidate any more.
fn end(
    by_holder: &mut HashMap<Holder, BTreeMap<u64, OpenConnection>>,
    holder: &Holder,
    nth: u64,
) -> bool {
    let removed = remove(by_holder, holder, nth);
    if let Some(connection) = &removed {
        connection.handle.abort();
    }
    removed.is_some()
}

fn remove(
    by_holder: &mut HashMap<Holder, BTreeMap<u64, OpenConnection>>,
    holder: &Holder,
    nth: u64,
) -> Option<OpenConnection> {
    let connections = by_holder.get_mut(holder)?;
    let removed = connections.remove(&nth);
    if connections.is_empty() {
        by_holder.remove(holder);
    }
    removed
}

/// The place of a connection among the open ones, until it is dropped.
#[derive(Debug)]
pub struct ConnectionPlace {
    table: Arc<ConnectionTable>,
    nth: u64,
    from: IpAddr,
    /// The key of its listener.
    key: String,
    holder: Holder,
    activity: Arc<ConnectionActivity>,
    is_early: bool,
}

impl ConnectionPlace {
    /// True if it makes room before all others.
    pub fn is_early(&self) -> bool {
        self.is_early
    }

    /// The account of what the connection holds before its login.
    pub fn login_memory(&self) -> LoginMemory {
        let grant = self.table.login_memory.take_always(&self.holder, 0);
        let (table, activity) = (Arc::clone(&self.table), Arc::clone(&self.activity));
        LoginMemory { table, activity, grant }
    }

    /// The client has logged in and sent a request: from now on the connection is charged to
    /// `holder`.
    pub fn establish(&mut self, holder: Holder) {
        let mut open = self.table.open.lock();
        self.is_early = false;
        let Some(connection) = remove(&mut open.early, &self.holder, self.nth) else {
            // It was told to end.
            return;
        };
        open.served.entry(holder.clone()).or_default().insert(self.nth, connection);
        if holder == self.holder {
            return;
        }
        let budget = &self.table.budget;
        budget.release(&self.holder, 1);
        if let Err(error) = budget.charge(&holder, 1) {
            budget.charge_always(&holder, 1);
            self.table.end_yielding(&mut open, &error);
        }
        self.holder = holder;
    }

    /// A request of the client has arrived.
    pub fn begin_request(&self) {
        self.activity.set(true, self.table.now_ms());
    }

    /// No request is served, and none waits.
    pub fn mark_idle(&self) {
        if self.activity.is_serving() {
            self.activity.set(false, self.table.now_ms());
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.table.open.lock();
        if self.is_early {
            remove(&mut open.early, &self.holder, self.nth);
        } else {
            remove(&mut open.served, &self.holder, self.nth);
        }
        if let Some(count) = open.by_listener.get_mut(&self.key) {
            *count -= 1;
        }
        if let Some(count) = open.by_address.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.from);
            }
        }
        self.table.budget.release(&self.holder, 1);
        drop(open);
        self.table.closed.notify_waiters();
    }
}

/// The memory that a connection holds before its login, until this is dropped.
#[derive(Debug)]
pub struct LoginMemory {
    table: Arc<ConnectionTable>,
    activity: Arc<ConnectionActivity>,
    grant: BudgetGrant,
}

impl LoginMemory {
    /// Raises the charge to at least `bytes`. Other connections may end to make room.
    ///
    /// # Errors
    /// There is no room, and no connection that should end rather than this one.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), BudgetError> {
        let bytes = bytes as u64;
        if bytes <= self.grant.amount() {
            return Ok(());
        }
        if let Err(error) = self.grant.resize(bytes) {
            self.table.free_login_memory(&self.grant, bytes, error)?;
            self.grant.resize_always(bytes);
        }
        self.activity.login_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for LoginMemory {
    fn drop(&mut self) {
        self.activity.login_bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
