//! Whose password is checked next. A check takes a thread for milliseconds, so few run at a time; and of all that come
//! from one address only one waits for that, so that whoever guesses at full speed keeps nobody else from logging in.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// How many passwords are checked at a time.
const CHECKS_MAX: usize = 1;

pub(crate) struct PasswordTurns {
    checks: Semaphore,
    /// Where those wait that come from an address, while there are any, and how many they are.
    by_address: Mutex<HashMap<String, (Arc<Semaphore>, usize)>>,
}

/// The turn of a password, until it is dropped.
pub(crate) struct PasswordTurn<'a> {
    _check: SemaphorePermit<'a>,
    _queue: AddressQueue<'a>,
}

/// A place in the queue of an address.
struct AddressQueue<'a> {
    turns: &'a PasswordTurns,
    address: String,
    permit: Option<OwnedSemaphorePermit>,
}

impl PasswordTurns {
    pub(crate) fn new() -> PasswordTurns {
        PasswordTurns { checks: Semaphore::new(CHECKS_MAX), by_address: Mutex::default() }
    }

    /// Waits for the turn of a password that comes from this address.
    pub(crate) async fn take(&self, address: &str) -> PasswordTurn<'_> {
        const OPEN: &str = "the semaphore is never closed";
        let waiting = {
            let mut by_address = self.by_address.lock();
            let queue = by_address.entry(address.to_owned());
            let (queue, places) = queue.or_insert_with(|| (Arc::new(Semaphore::new(1)), 0));
            *places += 1;
            Arc::clone(queue)
        };
        let mut queue = AddressQueue { turns: self, address: address.to_owned(), permit: None };
        queue.permit = Some(waiting.acquire_owned().await.expect(OPEN));
        let check = self.checks.acquire().await.expect(OPEN);
        PasswordTurn { _check: check, _queue: queue }
    }
}

impl Drop for AddressQueue<'_> {
    fn drop(&mut self) {
        let mut by_address = self.turns.by_address.lock();
        drop(self.permit.take());
        if let Some((_, places)) = by_address.get_mut(&self.address) {
            *places -= 1;
            if *places == 0 {
                by_address.remove(&self.address);
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
        let first = is_ready(pin!(turns.take("a"))).expect("nobody else is there");
        let (mut second, mut third) = (pin!(turns.take("a")), pin!(turns.take("a")));
        let mut other = pin!(turns.take("b"));
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
        assert!(turns.by_address.lock().is_empty());
        // Who gives up leaves nothing behind either.
        let held = is_ready(pin!(turns.take("a"))).expect("nobody is there");
        {
            let mut leaving = pin!(turns.take("a"));
            assert!(is_ready(leaving.as_mut()).is_none());
        }
        drop(held);
        assert!(turns.by_address.lock().is_empty());
    }
}
