//! How many connections are open.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::listener::KafkaListener;

#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    open: Mutex<OpenConnections>,
    closed: Notify,
}

/// Where a connection comes from and to.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionRoute {
    pub(crate) from: IpAddr,
    pub(crate) to: Arc<KafkaListener>,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLimits {
    pub(crate) all: usize,
    pub(crate) of_address: usize,
    pub(crate) of_listener: usize,
}

/// Of what there may not be another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullLimit {
    All,
    Address,
    Listener,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
    by_listener: HashMap<String, usize>,
}

impl ConnectionCounts {
    /// Counts another connection.
    ///
    /// # Errors
    /// There are as many as may be.
    pub(crate) fn open(
        &self,
        route: &ConnectionRoute,
        limits: OpenLimits,
    ) -> Result<(), FullLimit> {
        let mut open = self.open.lock();
        let of_address = open.by_address.get(&route.from).copied().unwrap_or(0);
        if of_address >= limits.of_address {
            return Err(FullLimit::Address);
        }
        let of_listener = open.by_listener.get(&route.to.key).copied().unwrap_or(0);
        if of_listener >= limits.of_listener {
            return Err(FullLimit::Listener);
        }
        if open.all >= limits.all {
            return Err(FullLimit::All);
        }
        open.all += 1;
        open.by_address.insert(route.from, of_address + 1);
        match open.by_listener.get_mut(&route.to.key) {
            Some(count) => *count += 1,
            None => _ = open.by_listener.insert(route.to.key.clone(), 1),
        }
        Ok(())
    }

    /// Waits until one of them ends, from the call on.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + '_ {
        self.closed.notified()
    }

    /// One that was counted has ended.
    pub(crate) fn close(&self, route: &ConnectionRoute) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(count) = open.by_listener.get_mut(&route.to.key) {
            *count -= 1;
        }
        if let Some(count) = open.by_address.get_mut(&route.from) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&route.from);
            }
        }
        drop(open);
        self.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_holds_and_what_ends_makes_room() {
        let counts = ConnectionCounts::default();
        let inside = Arc::new(KafkaListener::plain());
        let outside = KafkaListener { key: "outside".to_owned(), ..KafkaListener::plain() };
        let (inside, outside) = (&inside, &Arc::new(outside));
        let route = |last: u8, to: &Arc<KafkaListener>| ConnectionRoute {
            from: IpAddr::from([10, 0, 0, last]),
            to: Arc::clone(to),
        };
        let limits = OpenLimits { all: 4, of_address: 2, of_listener: 3 };
        let open = |last, to| counts.open(&route(last, to), limits);
        assert_eq!([open(1, inside), open(1, inside)], [Ok(()); 2]);
        assert_eq!(open(1, outside), Err(FullLimit::Address));
        assert_eq!(open(2, inside), Ok(()));
        assert_eq!(open(2, inside), Err(FullLimit::Listener));
        assert_eq!(open(2, outside), Ok(()));
        assert_eq!(open(3, outside), Err(FullLimit::All));
        counts.close(&route(1, inside));
        assert_eq!(open(3, inside), Ok(()));
        for (from, to) in [(1, inside), (2, inside), (2, outside), (3, inside)] {
            counts.close(&route(from, to));
        }
        let open = counts.open.lock();
        assert!(open.all == 0 && open.by_address.is_empty());
        assert!(open.by_listener.values().all(|count| *count == 0));
    }
}
