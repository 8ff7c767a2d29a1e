//! The connections that are open, and which of them makes room for another one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use admission::{Budget, BudgetError, BudgetGrant, Holder};

use crate::connection::Connection;

#[derive(Debug)]
struct ConnectionEntry {
    connection: Arc<Connection>,
    /// `None` once it was cut to make room.
    grant: Option<BudgetGrant>,
}

/// The connections that may be open beside each other.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) budget: Arc<Budget>,
    /// From one address; 0 for any number.
    pub(crate) per_address_max: usize,
}

/// The reasons to refuse another connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionRefusal {
    #[error("{address} has {max} connections already (zookeeper.maxClientCnxns)")]
    Address { address: IpAddr, max: usize },
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

/// All connections, each charged to the network that it comes from.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    limits: ConnectionLimits,
    by_id: HashMap<u64, ConnectionEntry>,
}

impl ConnectionTable {
    pub(crate) fn new(limits: ConnectionLimits) -> ConnectionTable {
        ConnectionTable { limits, by_id: HashMap::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.by_id.values().map(|entry| &entry.connection)
    }

    pub(crate) fn insert(&mut self, connection: Arc<Connection>, grant: BudgetGrant) {
        let entry = ConnectionEntry { connection, grant: Some(grant) };
        self.by_id.insert(entry.connection.id(), entry);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    /// Room for a connection from `address`. If there is none, a connection that never asked for a
    /// session is cut: of the same address, or of the holder with the most. That holder loses
    /// others too, as long as it keeps more than the new connection's holder has.
    pub(crate) fn make_room(&mut self, address: IpAddr) -> Result<BudgetGrant, ConnectionRefusal> {
        let ConnectionLimits { budget, per_address_max: max } = self.limits.clone();
        let is_from_address = |connection: &Connection| connection.peer.ip() == address;
        let open = self.open().filter(|connection| is_from_address(connection)).count();
        if max > 0
            && open >= max
            && !self.cut_oldest(|connection| is_from_address(connection) && connection.is_idle())
        {
            return Err(ConnectionRefusal::Address { address, max });
        }
        let holder = Holder::address(address);
        let grant = budget.take_evicting(&holder, 1, |refusal| {
            let Some(yields) = &refusal.yields else { return false };
            let is_theirs = |connection: &Connection| connection.network == *yields;
            let stays_larger = budget.held(yields) > refusal.held + 1;
            self.cut_oldest(|connection| is_theirs(connection) && connection.is_idle())
                || (stays_larger && self.cut_oldest(is_theirs))
        });
        Ok(grant?)
    }

    fn open(&self) -> impl Iterator<Item = &Connection> {
        self.by_id.values().filter(|entry| entry.grant.is_some()).map(|entry| &*entry.connection)
    }

    /// Cuts the oldest connection of some. Returns true if there is one.
    fn cut_oldest(&mut self, is_candidate: impl Fn(&Connection) -> bool) -> bool {
        let candidates = self.open().filter(|connection| is_candidate(connection));
        let Some(oldest) = candidates.map(Connection::id).min() else { return false };
        if let Some(entry) = self.by_id.get_mut(&oldest) {
            entry.connection.output.cut();
            entry.grant = None;
        }
        true
    }
}
