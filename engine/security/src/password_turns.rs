//! Whose password is checked next. A check takes a thread for milliseconds, so few run at a time; and of all that come
//! from one address only one waits for that, so that whoever guesses at full speed keeps nobody else from logging in.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many passwords are checked at a time.
const CHECKS_MAX: usize = 1;

pub(crate) struct PasswordTurns {
    checks: Arc<Semaphore>,
    by_network: Arc<NetworkQueues>,
}

/// Where those wait that come from an address, or from a network of IPv6, while there are any, and how many they are.
type NetworkQueues = Mutex<HashMap<IpAddr, (Arc<Semaphore>, usize)>>;

/// The turn of a password, until it is dropped.
pub(crate) struct PasswordTurn {
    _check: OwnedSemaphorePermit,
    _queue: NetworkQueue,
}

/// A place in the queue of an address.
struct NetworkQueue {
    queues: Arc<NetworkQueues>,
    network: IpAddr,
    permit: Option<OwnedSemaphorePermit>,
}

impl PasswordTurns {
    pub(crate) fn new() -> PasswordTurns {
        PasswordTurns { checks: Arc::new(Semaphore::new(CHECKS_MAX)), by_network: Arc::default() }
    }

    /// Waits for the turn of a password that comes from this address.
    pub(crate) async fn take(&self, address: IpAddr) -> PasswordTurn {
        const OPEN: &str = "the semaphore is never closed";
        let network = network_of(address);
        let waiting = {
            let mut by_network = self.by_network.lock();
            let queue = by_network.entry(network);
            let (queue, places) = queue.or_insert_with(|| (Arc::new(Semaphore::new(1)), 0));
            *places += 1;
            Arc::clone(queue)
        };
        let queues = Arc::clone(&self.by_network);
        let mut queue = NetworkQueue { queues, network, permit: None };
        queue.permit = Some(waiting.acquire_owned().await.expect(OPEN));
        let check = Arc::clone(&self.checks).acquire_owned().await.expect(OPEN);
        PasswordTurn { _check: check, _queue: queue }
    }
}

/// The /64 network of an IPv6 address: who has one such address has 2^64 of them.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

impl Drop for NetworkQueue {
    fn drop(&mut self) {
        let mut by_network = self.queues.lock();
        drop(self.permit.take());
        if let Some((_, places)) = by_network.get_mut(&self.network) {
            *places -= 1;
            if *places == 0 {
                by_network.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn of_an_address_one_waits_with_the_others_and_nothing_stays() {
        let turns = PasswordTurns::new();
        let [a, b]: [IpAddr; 2] = ["2001:db8::1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        assert_eq!(network_of(a), network_of(neighbour));
        let first = is_ready(pin!(turns.take(a))).expect("nobody else is there");
        let (mut second, mut third) = (pin!(turns.take(a)), pin!(turns.take(a)));
        let mut other = pin!(turns.take(b));
        assert!(is_ready(second.as_mut()).is_none() && is_ready(third.as_mut()).is_none());
        assert!(is_ready(other.as_mut()).is_none());
        drop(first);
        // The second of the address has come to the end of the queue of all, behind the other one.
        assert!(is_ready(second.as_mut()).is_none());
        let of_other = is_ready(other.as_mut()).expect("it is its turn");
        assert!(is_ready(second.as_mut()).is_none() && is_ready(third.as_mut()).is_none());
        drop(of_other);
        drop(is_ready(second.as_mut()).expect("it is its turn"));
        drop(is_ready(third.as_mut()).expect("it is its turn"));
        assert!(turns.by_network.lock().is_empty());
        // Who gives up leaves nothing behind either.
        let held = is_ready(pin!(turns.take(a))).expect("nobody is there");
        {
            let mut leaving = pin!(turns.take(a));
            assert!(is_ready(leaving.as_mut()).is_none());
        }
        drop(held);
        assert!(turns.by_network.lock().is_empty());
    }
}
