//! Connections whose clients have not finished the handshake of TLS, or have not said who they are where they have to.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;

/// They stand in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct EarlyConnections(Mutex<EarlyTable>);

#[derive(Debug, Default)]
struct EarlyTable {
    next: u64,
    by_age: BTreeMap<u64, (IpAddr, AbortHandle)>,
}

impl EarlyConnections {
    /// Adds one, which `handle` ends.
    pub(crate) fn begin(
        all: &Arc<EarlyConnections>,
        ip: IpAddr,
        handle: AbortHandle,
    ) -> EarlyPlace {
        let mut table = all.0.lock();
        let nth = table.next;
        table.next += 1;
        table.by_age.insert(nth, (ip, handle));
        EarlyPlace { all: Arc::clone(all), nth }
    }

    /// Ends the oldest connection (from this address, if one is given); false if there is none to end.
    pub(crate) fn end_oldest(&self, of: Option<IpAddr>) -> bool {
        let mut table = self.0.lock();
        let is_meant = |ip: &IpAddr| of.is_none_or(|of| of == *ip);
        let oldest = table.by_age.iter().find(|(_, (ip, _))| is_meant(ip)).map(|(nth, _)| *nth);
        let Some((_, handle)) = oldest.and_then(|nth| table.by_age.remove(&nth)) else {
            return false;
        };
        handle.abort();
        true
    }
}

/// The place of a connection among them, until it is dropped.
#[derive(Debug)]
pub(crate) struct EarlyPlace {
    all: Arc<EarlyConnections>,
    nth: u64,
}

impl Drop for EarlyPlace {
    fn drop(&mut self) {
        self.all.0.lock().by_age.remove(&self.nth);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_oldest_makes_room_and_who_is_done_does_not() {
        let all = Arc::new(EarlyConnections::default());
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let begin = |last| {
            let (handle, _) = AbortHandle::new_pair();
            (EarlyConnections::begin(&all, address(last), handle.clone()), handle)
        };
        let (first, first_handle) = begin(1);
        let (_second, second_handle) = begin(2);
        let (_third, third_handle) = begin(1);
        drop(first);
        assert!(all.end_oldest(Some(address(1))) && third_handle.is_aborted());
        assert!(!all.end_oldest(Some(address(1))));
        assert!(all.end_oldest(None) && second_handle.is_aborted());
        assert!(!all.end_oldest(None) && !first_handle.is_aborted());
    }
}
