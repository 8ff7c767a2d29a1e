//! A device and its ports, with their states.

use std::fmt;

use crate::gid::PortGid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// The kernel's name for it, such as `mlx5_0`.
    pub name: String,
    /// Its node GUID, such as `0c42:a103:0065:f2aa`.
    pub node_guid: String,
    /// Its ports, by number.
    pub ports: Vec<RdmaPort>,
}

impl RdmaDevice {
    /// True if one of its ports can carry data now.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(|port| port.state == PortState::Active)
    }
}

impl fmt::Display for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.node_guid)?;
        for port in &self.ports {
            write!(f, " port {}: {}, {}", port.number, port.state, port.link_layer)?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    pub state: PortState,
    /// The type of its network.
    pub link_layer: LinkLayer,
    /// Its addresses.
    pub gids: Vec<PortGid>,
}

/// The state of a port. The numbers are those of `enum ib_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The port reports no state.
    Unknown,
    /// There is no link.
    Down,
    /// There is a link, which is not configured yet.
    Initializing,
    /// It is configured, and carries no data yet.
    Armed,
    /// It carries data.
    Active,
    /// It was active, and its link is being restored.
    ActiveDeferred,
}

impl PortState {
    /// Parses the text in sysfs: a number, a colon, and a word for people.
    pub(crate) fn parse(text: &str) -> Option<PortState> {
        let (number, _) = text.split_once(':')?;
        Some(match number.trim().parse().ok()? {
            0_u8 => PortState::Unknown,
            1 => PortState::Down,
            2 => PortState::Initializing,
            3 => PortState::Armed,
            4 => PortState::Active,
            5 => PortState::ActiveDeferred,
            _ => return None,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Unknown => "unknown",
            PortState::Down => "down",
            PortState::Initializing => "initializing",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::ActiveDeferred => "active, deferred",
        })
    }
}

/// The type of a port's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// Another type, by the kernel's name.
    Other(String),
}

impl LinkLayer {
    pub(crate) fn parse(text: &str) -> LinkLayer {
        match text {
            "InfiniBand" => LinkLayer::InfiniBand,
            "Ethernet" => LinkLayer::Ethernet,
            text => LinkLayer::Other(text.to_owned()),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkLayer::InfiniBand => f.write_str("InfiniBand"),
            LinkLayer::Ethernet => f.write_str("Ethernet"),
            LinkLayer::Other(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_s_state_is_told_by_its_number_and_not_by_the_word() {
        assert_eq!(PortState::parse("4: ACTIVE"), Some(PortState::Active));
        assert_eq!(PortState::parse("1: whatever"), Some(PortState::Down));
        for text in ["", "ACTIVE", "6: NEW", ": ACTIVE", "-1: DOWN"] {
            assert_eq!(PortState::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_device_is_active_when_one_port_is() {
        let port = |number, state| RdmaPort {
            number,
            state,
            link_layer: LinkLayer::Ethernet,
            gids: Vec::new(),
        };
        let mut device = RdmaDevice {
            name: "mlx5_0".to_owned(),
            node_guid: "0:0:0:1".to_owned(),
            ports: vec![port(1, PortState::Down), port(2, PortState::Armed)],
        };
        assert!(!device.is_active());
        device.ports[1].state = PortState::Active;
        assert!(device.is_active());
        let text = device.to_string();
        assert_eq!(text, "mlx5_0 (0:0:0:1) port 1: down, Ethernet port 2: active, Ethernet");
    }
}
