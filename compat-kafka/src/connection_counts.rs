//! How many connections are open, of all listeners.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts(Mutex<OpenConnections>);

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    by_ip: HashMap<IpAddr, usize>,
}

impl ConnectionCounts {
    /// Counts another connection from `ip`; false if there are `max` in all, or `per_ip_max` from there.
    pub(crate) fn open(&self, ip: IpAddr, max: usize, per_ip_max: usize) -> bool {
        let mut open = self.0.lock();
        let of_ip = open.by_ip.get(&ip).copied().unwrap_or(0);
        if open.all >= max || of_ip >= per_ip_max {
            return false;
        }
        open.all += 1;
        open.by_ip.insert(ip, of_ip + 1);
        true
    }

    /// One that was counted has ended.
    pub(crate) fn close(&self, ip: IpAddr) {
        let mut open = self.0.lock();
        open.all -= 1;
        if let Some(count) = open.by_ip.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                open.by_ip.remove(&ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_what_ends_makes_room() {
        let counts = ConnectionCounts::default();
        let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert!(counts.open(a, 3, 2) && counts.open(a, 3, 2));
        assert!(!counts.open(a, 3, 2), "two from there");
        assert!(counts.open(b, 3, 2));
        assert!(!counts.open(b, 3, 2), "three in all");
        counts.close(a);
        assert!(counts.open(b, 3, 2));
        for ip in [a, b, b] {
            counts.close(ip);
        }
        assert!(counts.0.lock().by_ip.is_empty());
    }
}
