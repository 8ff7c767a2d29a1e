//! The addresses of a port: global identifiers (GIDs), which look like IPv6 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An entry of a port's table of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGid {
    /// Its place in the table.
    pub index: u8,
    pub address: GidAddress,
    pub kind: GidKind,
}

/// A global identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GidAddress(pub [u8; 16]);

impl GidAddress {
    /// The IP address that it stands for, with RoCE.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// True if it is `fe80::/64`, which is valid on one link only.
    pub fn is_link_local(self) -> bool {
        self.0.starts_with(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0])
    }

    /// Parses eight groups of four digits, as sysfs has it. `None` for other text.
    pub(crate) fn parse(text: &str) -> Option<GidAddress> {
        text.parse().ok().map(|v6: Ipv6Addr| GidAddress(v6.octets()))
    }
}

impl fmt::Display for GidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for GidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The encapsulation of packets from a GID. Both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or RoCE version 1, which is Ethernet without IP.
    InfiniBandOrRoceV1,
    /// RoCE version 2: UDP over IP.
    RoceV2,
}

impl GidKind {
    /// Parses the word of sysfs. `None` for a type that is not known.
    pub(crate) fn parse(text: &str) -> Option<GidKind> {
        match text {
            "IB/RoCE v1" => Some(GidKind::InfiniBandOrRoceV1),
            "RoCE v2" => Some(GidKind::RoceV2),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_of_roce_is_an_ip_address() {
        let gid = GidAddress::parse("0000:0000:0000:0000:0000:ffff:0a0a:0001").unwrap();
        assert_eq!(gid.to_string(), "10.10.0.1");
        assert!(!gid.is_link_local());
        let gid = GidAddress::parse("fe80:0000:0000:0000:5054:00ff:fe12:3456").unwrap();
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe12:3456");
        assert!(gid.is_link_local());
        assert_eq!(GidAddress::parse("nothing"), None);
    }
}
