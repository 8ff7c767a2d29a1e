//! Connections whose clients have not finished the handshake of TLS, or have not said who they are where they have to.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;

use crate::connection_counts::{ConnectionRoute, FullLimit};

/// They stand in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct EarlyConnections(Mutex<EarlyTable>);

#[derive(Debug, Default)]
struct EarlyTable {
    next: u64,
    by_age: BTreeMap<u64, (ConnectionRoute, AbortHandle)>,
}

impl EarlyConnections {
    /// Adds one, which `handle` ends.
    pub(crate) fn begin(
        all: &Arc<EarlyConnections>,
        route: ConnectionRoute,
        handle: AbortHandle,
    ) -> EarlyPlace {
        let mut table = all.0.lock();
        let nth = table.next;
        table.next += 1;
        table.by_age.insert(nth, (route, handle));
        EarlyPlace { all: Arc::clone(all), nth }
    }

    /// Ends the oldest connection whose end makes room for one of `route`; false if there is none to end.
    pub(crate) fn end_oldest(&self, route: &ConnectionRoute, full: FullLimit) -> bool {
        let mut table = self.0.lock();
        let makes_room = |old: &ConnectionRoute| match full {
            FullLimit::All => true,
            FullLimit::Address => old.from == route.from,
            FullLimit::Listener => old.to.key == route.to.key,
        };
        let oldest = table.by_age.iter().find(|(_, (old, _))| makes_room(old));
        let oldest = oldest.map(|(nth, _)| *nth);
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
    use std::net::IpAddr;

    use super::*;
    use crate::listener::KafkaListener;

    #[test]
    fn the_oldest_makes_room_and_who_is_done_does_not() {
        let all = Arc::new(EarlyConnections::default());
        let inside = Arc::new(KafkaListener::plain());
        let outside = KafkaListener { key: "outside".to_owned(), ..KafkaListener::plain() };
        let (inside, outside) = (&inside, &Arc::new(outside));
        let route = |last: u8, to: &Arc<KafkaListener>| ConnectionRoute {
            from: IpAddr::from([10, 0, 0, last]),
            to: Arc::clone(to),
        };
        let begin = |last, to| {
            let (handle, _) = AbortHandle::new_pair();
            (EarlyConnections::begin(&all, route(last, to), handle.clone()), handle)
        };
        let (first, first_handle) = begin(1, inside);
        let (_second, second_handle) = begin(2, inside);
        let (_third, third_handle) = begin(1, inside);
        let (_fourth, fourth_handle) = begin(3, outside);
        drop(first);
        let end = |last, to, full| all.end_oldest(&route(last, to), full);
        assert!(end(1, inside, FullLimit::Address) && third_handle.is_aborted());
        assert!(!end(1, inside, FullLimit::Address));
        assert!(end(9, outside, FullLimit::Listener) && fourth_handle.is_aborted());
        assert!(!end(9, outside, FullLimit::Listener));
        assert!(end(9, outside, FullLimit::All) && second_handle.is_aborted());
        assert!(!end(9, outside, FullLimit::All) && !first_handle.is_aborted());
    }
}
