//! How many connections are open, of all listeners.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    open: Mutex<OpenConnections>,
    closed: Notify,
}

/// Why there may not be another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullLimit {
    OfAll,
    /// From that address.
    OfAddress,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    by_ip: HashMap<IpAddr, usize>,
}

impl ConnectionCounts {
    /// Counts another connection from `ip`.
    ///
    /// # Errors
    /// There are `max` in all, or `per_ip_max` from there.
    pub(crate) fn open(&self, ip: IpAddr, max: usize, per_ip_max: usize) -> Result<(), FullLimit> {
        let mut open = self.open.lock();
        let of_ip = open.by_ip.get(&ip).copied().unwrap_or(0);
        if of_ip >= per_ip_max {
            return Err(FullLimit::OfAddress);
        }
        if open.all >= max {
            return Err(FullLimit::OfAll);
        }
        open.all += 1;
        open.by_ip.insert(ip, of_ip + 1);
        Ok(())
    }

    /// Waits until one of them ends, from the call on.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + '_ {
        self.closed.notified()
    }

    /// One that was counted has ended.
    pub(crate) fn close(&self, ip: IpAddr) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(count) = open.by_ip.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                open.by_ip.remove(&ip);
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
    fn both_limits_hold_and_what_ends_makes_room() {
        let counts = ConnectionCounts::default();
        let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!([counts.open(a, 3, 2), counts.open(a, 3, 2)], [Ok(()); 2]);
        assert_eq!(counts.open(a, 3, 2), Err(FullLimit::OfAddress));
        assert_eq!(counts.open(b, 3, 2), Ok(()));
        assert_eq!(counts.open(b, 3, 2), Err(FullLimit::OfAll));
        counts.close(a);
        assert_eq!(counts.open(b, 3, 2), Ok(()));
        for ip in [a, b, b] {
            counts.close(ip);
        }
        assert!(counts.open.lock().by_ip.is_empty());
    }
}
