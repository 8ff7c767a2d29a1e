//! Limits on wrong passwords from an address. Each limit counts the guesses from one address, so
//! that they keep no user from logging in from another.

use std::collections::HashMap;
use std::net::IpAddr;

use admission::network_of;
use parking_lot::Mutex;

/// The most wrong passwords for one name that an address may send in a window.
const USER_GUESSES_MAX: u32 = 10;
/// The most wrong passwords for all names that an address may send in a window.
const ADDRESS_GUESSES_MAX: u32 = 100;
/// The length of a window. It begins with the first wrong password.
const WINDOW_MS: u64 = 60_000;
/// The most addresses that are counted.
const ADDRESSES_MAX: usize = 10_000;

/// The wrong passwords from an address, or from a network of IPv6, in a window.
#[derive(Debug)]
struct AddressGuesses {
    begun_ms: u64,
    count: u32,
    /// By a hash of the name: names may be long.
    by_user: HashMap<u64, u32>,
}

impl AddressGuesses {
    /// Returns true if its window is over. A wall clock that was set back ends it too.
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms.checked_sub(self.begun_ms).is_none_or(|age| age >= WINDOW_MS)
    }
}

/// The wrong passwords of the last minute.
#[derive(Debug, Default)]
pub(crate) struct GuessLimits {
    hasher: ahash::RandomState,
    addresses: Mutex<HashMap<IpAddr, AddressGuesses>>,
}

impl GuessLimits {
    /// Returns true if a password for this name from this address may be checked.
    pub(crate) fn admits(&self, user: &str, address: IpAddr, now_ms: u64) -> bool {
        let addresses = self.addresses.lock();
        let Some(guesses) = addresses.get(&network_of(address)) else { return true };
        let of_user = guesses.by_user.get(&self.hasher.hash_one(user)).copied().unwrap_or(0);
        guesses.is_over(now_ms)
            || (guesses.count < ADDRESS_GUESSES_MAX && of_user < USER_GUESSES_MAX)
    }

    /// Counts a wrong password.
    pub(crate) fn record(&self, user: &str, address: IpAddr, now_ms: u64) {
        let network = network_of(address);
        let mut addresses = self.addresses.lock();
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&network) {
            make_room(&mut addresses, now_ms);
        }
        let empty = || AddressGuesses { begun_ms: now_ms, count: 0, by_user: HashMap::new() };
        let guesses = addresses.entry(network).or_insert_with(empty);
        if guesses.is_over(now_ms) {
            *guesses = empty();
        }
        guesses.count += 1;
        *guesses.by_user.entry(self.hasher.hash_one(user)).or_default() += 1;
    }
}

/// Forgets windows that are over, or else the one with the fewest guesses.
fn make_room(addresses: &mut HashMap<IpAddr, AddressGuesses>, now_ms: u64) {
    addresses.retain(|_, guesses| !guesses.is_over(now_ms));
    if addresses.len() >= ADDRESSES_MAX {
        let fewest = addresses.iter().min_by_key(|(_, guesses)| guesses.count);
        let fewest = fewest.map(|(network, _)| *network);
        fewest.and_then(|network| addresses.remove(&network));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(nth: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(nth).into()
    }

    #[test]
    fn guesses_of_one_address_are_few_and_others_are_not_locked_out() {
        let limits = GuessLimits::default();
        let guess = |user: &str, nth: u32, now_ms: u64| {
            let is_admitted = limits.admits(user, address(nth), now_ms);
            if is_admitted {
                limits.record(user, address(nth), now_ms);
            }
            is_admitted
        };
        let of_user = (0..1000).filter(|_| guess("alice", 1, 500)).count();
        assert_eq!(of_user, USER_GUESSES_MAX as usize);
        assert!(guess("alice", 2, 500), "from elsewhere");
        assert!(guess("bob", 1, 500), "another user");
        let of_address = (0..1000).filter(|nth| guess(&format!("u{nth}"), 1, 600)).count();
        assert_eq!(of_address, (ADDRESS_GUESSES_MAX - USER_GUESSES_MAX) as usize - 1);
        assert!(!guess("carol", 1, 500 + WINDOW_MS - 1));
        assert!(guess("alice", 1, 500 + WINDOW_MS), "the window is over");
        assert!(guess("alice", 1, 0), "the clock was set back");
    }

    #[test]
    fn addresses_that_are_counted_are_limited() {
        let limits = GuessLimits::default();
        for _ in 0..USER_GUESSES_MAX {
            limits.record("alice", address(0), 0);
        }
        for nth in 1..=ADDRESSES_MAX as u32 {
            limits.record("alice", address(nth), 1);
        }
        assert_eq!(limits.addresses.lock().len(), ADDRESSES_MAX);
        assert!(!limits.admits("alice", address(0), 1), "that with the most guesses stays");
        limits.record("alice", address(u32::MAX), WINDOW_MS + 1);
        assert_eq!(limits.addresses.lock().len(), 1);
    }
}
