//! The account that a client's use is charged to.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Longer names of principals are cut, so that an account takes little memory: users whose names
/// begin with the same 256 bytes share an account.
const NAME_BYTES_MAX: usize = 256;
/// No principal has this name: theirs begin with a type, as in `User:alice`.
const RESTORED: &str = "restored at the start";

/// A principal, or the network of a client that is not logged in.
#[derive(Clone, Debug)]
pub struct Holder {
    name: Arc<str>,
    is_privileged: bool,
}

impl Holder {
    /// A principal by its name, such as `User:alice`. A privileged one may use the reserve of each
    /// budget.
    pub fn principal(name: &str, is_privileged: bool) -> Holder {
        let length = name.floor_char_boundary(NAME_BYTES_MAX);
        Holder { name: name[..length].into(), is_privileged }
    }

    /// A client that is not logged in, by its address. A /64 network of IPv6 is one holder.
    pub fn address(address: IpAddr) -> Holder {
        Holder { name: network_of(address).to_string().into(), is_privileged: false }
    }

    /// The server's own work.
    pub fn server() -> Holder {
        Holder { name: "the server".into(), is_privileged: true }
    }

    /// Holds what a restart found, until its holder uses it again.
    pub fn restored() -> Holder {
        Holder { name: RESTORED.into(), is_privileged: true }
    }

    /// Returns true if it is [`Holder::restored`].
    pub fn is_restored(&self) -> bool {
        *self.name == *RESTORED
    }

    /// The name, as `User:alice` or `10.0.0.7`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if this holder may use the reserve of each budget.
    pub fn is_privileged(&self) -> bool {
        self.is_privileged
    }

    /// The same holder, with the memory of another copy of its name.
    pub(crate) fn with_shared_name(&self, name: &Arc<str>) -> Holder {
        Holder { name: Arc::clone(name), is_privileged: self.is_privileged }
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        self.name == other.name
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Truncates an IPv6 address to its /64 network: a client with one such address has 2^64 of them.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_network_are_one_holder() {
        let address = |text: &str| Holder::address(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::2"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.7"), address("10.0.0.7"));
        assert_ne!(address("10.0.0.7"), address("10.0.0.8"));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let holder = Holder::principal(&"é".repeat(1000), false);
        assert_eq!(holder.name().len(), NAME_BYTES_MAX);
    }
}
