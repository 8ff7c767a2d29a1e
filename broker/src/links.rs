//! The RDMA devices of the server, opened for links.

use anyhow::Context;
use compat_kafka::LinkDevices;
use rdma::{CompletionMode, DeviceChoice, MemoryArena, VerbsDevice, devices, usable_ports};

/// The devices that the server uses (`rdma.devices`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceSelection {
    /// All that work. If none does, data moves over TCP.
    #[default]
    Auto,
    /// None.
    Off,
    /// These. The server does not start if one of them does not work.
    Named(Vec<String>),
}

/// The settings of links.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    pub devices: DeviceSelection,
    /// The most memory for payloads that devices may use (`rdma.memory-max`); `None` for as much as
    /// the budgets of payloads allow.
    pub memory_bytes_max: Option<usize>,
    /// The way in which links wait for their device (`rdma.completions`).
    pub completion_mode: CompletionMode,
}

impl LinkOptions {
    /// True if clients may get links: the machine has devices, and they are to be used.
    pub(crate) fn may_open(&self) -> bool {
        self.devices != DeviceSelection::Off && devices().is_ok_and(|devices| !devices.is_empty())
    }
}

/// Opens the devices. It must be called within a runtime. `payload_bytes_max` is what payloads may
/// take in memory.
///
/// # Errors
///
/// A device that the configuration names cannot be used.
pub(crate) fn open_links(
    options: &LinkOptions,
    payload_bytes_max: usize,
) -> anyhow::Result<Option<LinkDevices>> {
    let devices = match &options.devices {
        DeviceSelection::Off => return Ok(None),
        DeviceSelection::Auto => match devices() {
            Ok(devices) => devices,
            Err(error) => {
                tracing::warn!("rdma devices: {error}; data moves over tcp");
                return Ok(None);
            }
        },
        DeviceSelection::Named(_) => devices().context("list the RDMA devices")?,
    };
    let mut ports = usable_ports(&devices, None);
    if let DeviceSelection::Named(names) = &options.devices {
        let missing = |name: &&String| !ports.iter().any(|port| port.device == **name);
        if let Some(name) = names.iter().find(missing) {
            let found_names: Vec<String> = devices.iter().map(ToString::to_string).collect();
            let found_names =
                if found_names.is_empty() { "none".to_owned() } else { found_names.join("; ") };
            anyhow::bail!(
                "rdma.devices: {name} has no active port with an address. The machine's devices: {found_names}"
            );
        }
        ports.retain(|port| names.contains(&port.device));
    }
    let opened = open_ports(ports, options, payload_bytes_max);
    match (&options.devices, opened) {
        (DeviceSelection::Named(_), opened) => opened.context("open the RDMA devices"),
        (_, Ok(opened)) => Ok(opened),
        (_, Err(error)) => {
            tracing::warn!("rdma devices: {error:#}; data moves over tcp");
            Ok(None)
        }
    }
}

fn open_ports(
    ports: Vec<DeviceChoice>,
    options: &LinkOptions,
    payload_bytes_max: usize,
) -> anyhow::Result<Option<LinkDevices>> {
    if ports.is_empty() {
        tracing::info!("rdma devices: none; data moves over tcp");
        return Ok(None);
    }
    let names: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let mut opened = Vec::new();
    for port in ports {
        let name = port.to_string();
        match VerbsDevice::open(port).with_context(|| format!("open {name}")) {
            Ok(device) => opened.push(device),
            Err(error) if options.devices == DeviceSelection::Auto => {
                tracing::warn!("rdma devices: {error:#}; it is not used");
            }
            Err(error) => return Err(error),
        }
    }
    if opened.is_empty() {
        return Ok(None);
    }
    let bytes_max = options.memory_bytes_max.unwrap_or(payload_bytes_max);
    let arena = MemoryArena::new(opened, bytes_max).context("register memory")?;
    arena.maintain();
    tracing::info!("rdma devices: {}", names.join("; "));
    Ok(Some(LinkDevices { arena, completion_mode: options.completion_mode }))
}
