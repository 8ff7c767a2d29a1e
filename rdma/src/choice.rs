//! The choice of a device, port and address.

use std::fmt;
use std::net::IpAddr;

use crate::device::{LinkLayer, PortState, RdmaDevice};
use crate::gid::{GidKind, PortGid};

/// A port of a device, and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The kernel's name of the device.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    pub gid: PortGid,
    /// True if the port's network is InfiniBand. Otherwise it is Ethernet.
    pub is_infiniband: bool,
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} ({})", self.device, self.port, self.gid.address)
    }
}

/// Every port that can carry data, each with its best address. The one with the address `local`,
/// where a connection of that address already is, comes first; then the order is that of `devices`.
pub fn usable_ports(devices: &[RdmaDevice], local: Option<IpAddr>) -> Vec<DeviceChoice> {
    let mut choices: Vec<DeviceChoice> =
        devices.iter().flat_map(|device| ports_of(device, local)).collect();
    choices.sort_by_key(|choice| Some(choice.gid.address.ip()) != local);
    choices
}

fn ports_of(device: &RdmaDevice, local: Option<IpAddr>) -> impl Iterator<Item = DeviceChoice> {
    device.ports.iter().filter_map(move |port| {
        let is_infiniband = port.link_layer == LinkLayer::InfiniBand;
        let usable = port.gids.iter().filter(|gid| is_infiniband || gid.kind == GidKind::RoceV2);
        let best = usable.min_by_key(|gid| {
            let is_local = Some(gid.address.ip()) == local;
            // InfiniBand's first GID is link-local, and the right one within a subnet.
            (!is_local, gid.address.is_link_local() && !is_infiniband, gid.index)
        })?;
        (port.state == PortState::Active).then(|| DeviceChoice {
            device: device.name.clone(),
            port: u8::try_from(port.number).unwrap_or(u8::MAX),
            gid: best.clone(),
            is_infiniband,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RdmaPort;
    use crate::gid::GidAddress;

    fn gid(index: u8, address: &str, kind: GidKind) -> PortGid {
        let address: IpAddr = address.parse().unwrap();
        let address = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        PortGid { index, address: GidAddress(address.octets()), kind }
    }

    fn device(
        name: &str,
        state: PortState,
        link_layer: LinkLayer,
        gids: Vec<PortGid>,
    ) -> RdmaDevice {
        let ports = vec![RdmaPort { number: 1, state, link_layer, gids }];
        RdmaDevice { name: name.to_owned(), node_guid: String::new(), ports }
    }

    #[test]
    fn the_port_of_the_connection_s_own_address_comes_first() {
        let roce = |name, address| {
            let local = gid(0, "fe80::1", GidKind::RoceV2);
            let old = gid(1, address, GidKind::InfiniBandOrRoceV1);
            let new = gid(2, address, GidKind::RoceV2);
            device(name, PortState::Active, LinkLayer::Ethernet, vec![local, old, new])
        };
        let devices = [roce("rxe0", "10.0.0.1"), roce("rxe1", "10.0.0.2")];
        let chosen = |local: Option<&str>| {
            let ports = usable_ports(&devices, local.map(|local| local.parse().unwrap()));
            ports.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (first, second) = ("rxe0 port 1 (10.0.0.1)", "rxe1 port 1 (10.0.0.2)");
        assert_eq!(chosen(None), [first, second]);
        assert_eq!(chosen(Some("10.0.0.2")), [second, first]);
        assert_eq!(chosen(Some("127.0.0.1")), [first, second]);
        assert_eq!(usable_ports(&devices, None)[0].gid.index, 2, "RoCE version 2, not link-local");
    }

    #[test]
    fn ports_that_carry_no_data_or_have_no_address_are_left_out() {
        let v1 = vec![gid(0, "10.0.0.1", GidKind::InfiniBandOrRoceV1)];
        let devices = [
            device("down", PortState::Down, LinkLayer::InfiniBand, v1.clone()),
            device("old", PortState::Active, LinkLayer::Ethernet, v1.clone()),
            device("empty", PortState::Active, LinkLayer::InfiniBand, Vec::new()),
            device("ib", PortState::Active, LinkLayer::InfiniBand, v1),
        ];
        let names: Vec<_> = usable_ports(&devices, None).into_iter().map(|c| c.device).collect();
        assert_eq!(names, ["ib"]);
    }
}
