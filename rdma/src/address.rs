//! The address of one end of a link, as the peer needs it.

use crate::gid::GidAddress;

/// The bytes of a [`LinkAddress`].
pub const LINK_ADDRESS_BYTES: usize = 16 + 2 + 4 + 4 + 1;

/// The facts about a queue pair that the peer needs to connect with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// The address of the port.
    pub gid: GidAddress,
    /// Its short address, with InfiniBand; else 0.
    pub lid: u16,
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// The sequence number of the first packet that it sends.
    pub first_packet: u32,
    /// The number of the maximum transfer unit (`enum ibv_mtu`), from 1 (256 bytes) to 5 (4 KiB).
    pub mtu: u32,
}

impl LinkAddress {
    /// Its bytes: the fields in order, big-endian.
    pub fn to_bytes(&self) -> [u8; LINK_ADDRESS_BYTES] {
        let mut bytes = [0; LINK_ADDRESS_BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..18].copy_from_slice(&self.lid.to_be_bytes());
        bytes[18..22].copy_from_slice(&self.queue_pair.to_be_bytes());
        bytes[22..26].copy_from_slice(&self.first_packet.to_be_bytes());
        bytes[26] = self.mtu as u8;
        bytes
    }

    /// The address in `bytes`; `None` if they are no address.
    pub fn from_bytes(bytes: &[u8]) -> Option<LinkAddress> {
        let bytes: &[u8; LINK_ADDRESS_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| {
            let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_be_bytes(bytes)
        };
        let (queue_pair, first_packet) = (number(18), number(22));
        let is_valid =
            (1..=5).contains(&bytes[26]) && queue_pair < 1 << 24 && first_packet < 1 << 24;
        is_valid.then(|| LinkAddress {
            gid: GidAddress(std::array::from_fn(|nth| bytes[nth])),
            lid: u16::from_be_bytes([bytes[16], bytes[17]]),
            queue_pair,
            first_packet,
            mtu: u32::from(bytes[26]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_from_its_bytes_and_nothing_else_is_one() {
        let gid = GidAddress(std::array::from_fn(|nth| nth as u8));
        let address =
            LinkAddress { gid, lid: 7, queue_pair: 0x01_0203, first_packet: 0xff_ffff, mtu: 3 };
        let bytes = address.to_bytes();
        assert_eq!(LinkAddress::from_bytes(&bytes), Some(address));
        assert_eq!(LinkAddress::from_bytes(&bytes[1..]), None);
        for (at, value) in [(26, 0), (26, 6), (18, 1), (22, 1)] {
            let mut changed = bytes;
            changed[at] = value;
            assert_eq!(LinkAddress::from_bytes(&changed), None, "{at} {value}");
        }
    }
}
