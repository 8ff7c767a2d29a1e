//! Lists the devices: by name from sysfs, or from libibverbs with the feature `ibverbs`; their ports
//! and GIDs from sysfs.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::device::{LinkLayer, PortState, RdmaDevice, RdmaPort};
use crate::gid::{GidAddress, GidKind, PortGid};

/// The directory in which the kernel lists its RDMA devices.
const CLASS: &str = "/sys/class/infiniband";

/// The reason why the devices cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// A file of a device cannot be read.
    #[error("read {}: {source}", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        source: io::Error,
    },
    /// libibverbs does not list the devices. Only with the feature `ibverbs`.
    #[error("ibv_get_device_list failed: {0}")]
    List(io::Error),
    /// A file of a device has a value that no known kernel writes.
    #[error("{} says what is not understood. text={text:?}, expected={expected}", .path.display())]
    Unexpected {
        /// The path of the file.
        path: PathBuf,
        /// The value.
        text: String,
        expected: &'static str,
    },
}

impl From<DiscoverError> for io::Error {
    fn from(error: DiscoverError) -> io::Error {
        let kind = match &error {
            DiscoverError::Read { source, .. } => source.kind(),
            DiscoverError::List(source) => source.kind(),
            DiscoverError::Unexpected { .. } => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// The RDMA devices of this machine, by name. The list is empty on a machine without devices or
/// without their drivers.
///
/// # Errors
///
/// [`DiscoverError`], also if a device disappears while it is read.
pub fn devices() -> Result<Vec<RdmaDevice>, DiscoverError> {
    #[cfg(not(feature = "ibverbs"))]
    let list = names_in;
    #[cfg(feature = "ibverbs")]
    let list = |_: &Path| names_by_library();
    devices_in(Path::new(CLASS), list)
}

/// The devices that `list` names, which have directories in `class`.
fn devices_in(
    class: &Path,
    list: impl FnOnce(&Path) -> Result<Vec<String>, DiscoverError>,
) -> Result<Vec<RdmaDevice>, DiscoverError> {
    if !class.exists() {
        return Ok(Vec::new());
    }
    list(class)?
        .into_iter()
        .map(|name| {
            let directory = class.join(&name);
            let node_guid = text_of(&directory.join("node_guid"))?;
            Ok(RdmaDevice { ports: ports_in(&directory.join("ports"))?, name, node_guid })
        })
        .collect()
}

/// The names of the devices that libibverbs has a driver for. The states of their ports are read
/// from sysfs all the same: crate `ibverbs` shows one port, and only while it is active.
#[cfg(feature = "ibverbs")]
fn names_by_library() -> Result<Vec<String>, DiscoverError> {
    let devices = ibverbs::devices().map_err(DiscoverError::List)?;
    let names = devices.iter().filter_map(|device| device.name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    for name in names_in(Path::new(CLASS))?.iter().filter(|name| !names.contains(name)) {
        tracing::warn!(device = %name, "libibverbs has no driver for this RDMA device; install it (Debian: ibverbs-providers)");
    }
    Ok(names)
}

fn ports_in(directory: &Path) -> Result<Vec<RdmaPort>, DiscoverError> {
    let mut ports = Vec::new();
    for name in names_in(directory)? {
        let path = directory.join(&name);
        let number = name.parse().map_err(|_| DiscoverError::Unexpected {
            path: path.clone(),
            text: name,
            expected: "a port's number",
        })?;
        ports.push(port_in(&path, number)?);
    }
    ports.sort_by_key(|port| port.number);
    Ok(ports)
}

fn port_in(directory: &Path, number: u32) -> Result<RdmaPort, DiscoverError> {
    let path = directory.join("state");
    let text = text_of(&path)?;
    let Some(state) = PortState::parse(&text) else {
        return Err(DiscoverError::Unexpected { path, text, expected: "a state, as 4: ACTIVE" });
    };
    let link_layer = LinkLayer::parse(&text_of(&directory.join("link_layer"))?);
    Ok(RdmaPort { number, state, link_layer, gids: gids_in(directory)? })
}

/// The entries of the port's table of GIDs that are in use, in order.
fn gids_in(directory: &Path) -> Result<Vec<PortGid>, DiscoverError> {
    let table = directory.join("gids");
    if !table.exists() {
        return Ok(Vec::new());
    }
    let mut gids = Vec::new();
    for name in names_in(&table)? {
        let Ok(index) = name.parse() else { continue };
        // The type of an entry that is not in use cannot be read.
        let Ok(kind) = text_of(&directory.join("gid_attrs/types").join(&name)) else { continue };
        let path = table.join(&name);
        let text = text_of(&path)?;
        let Some(address) = GidAddress::parse(&text) else {
            return Err(DiscoverError::Unexpected { path, text, expected: "a GID" });
        };
        if address.0 != [0; 16]
            && let Some(kind) = GidKind::parse(&kind)
        {
            gids.push(PortGid { index, address, kind });
        }
    }
    gids.sort_by_key(|gid| gid.index);
    Ok(gids)
}

fn names_in(directory: &Path) -> Result<Vec<String>, DiscoverError> {
    let read_error = |source| DiscoverError::Read { path: directory.to_owned(), source };
    let mut names = fs::read_dir(directory)
        .map_err(read_error)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<String>>>()
        .map_err(read_error)?;
    names.sort();
    Ok(names)
}

fn text_of(path: &Path) -> Result<String, DiscoverError> {
    let text = fs::read_to_string(path)
        .map_err(|source| DiscoverError::Read { path: path.to_owned(), source })?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory like sysfs, removed when it is dropped.
    struct SysfsFixture(PathBuf);

    impl SysfsFixture {
        fn new(name: &str) -> SysfsFixture {
            let directory = format!("freezeframe-rdma-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(directory);
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).unwrap();
            SysfsFixture(root)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn port(&self, device: &str, number: u32, state: &str, link_layer: &str) {
            self.file(&format!("{device}/node_guid"), "0c42:a103:0065:f2aa\n");
            self.file(&format!("{device}/ports/{number}/state"), state);
            self.file(&format!("{device}/ports/{number}/link_layer"), link_layer);
        }

        fn gid(&self, device: &str, number: u32, index: u8, address: &str, kind: Option<&str>) {
            let port = format!("{device}/ports/{number}");
            self.file(&format!("{port}/gids/{index}"), address);
            if let Some(kind) = kind {
                self.file(&format!("{port}/gid_attrs/types/{index}"), kind);
            }
        }
    }

    impl Drop for SysfsFixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_machine_without_the_class_has_no_devices() {
        let sysfs = SysfsFixture::new("none");
        assert_eq!(devices_in(&sysfs.0.join("infiniband"), names_in).unwrap(), []);
        assert_eq!(devices_in(&sysfs.0, names_in).unwrap(), []);
    }

    #[test]
    fn this_machine_can_be_asked() {
        devices().unwrap();
    }

    #[test]
    fn devices_and_ports_are_listed_in_order_with_what_they_say() {
        let sysfs = SysfsFixture::new("two");
        sysfs.port("mlx5_1", 1, "1: DOWN\n", "InfiniBand\n");
        sysfs.port("mlx5_0", 10, "4: ACTIVE\n", "Ethernet\n");
        sysfs.port("mlx5_0", 2, "3: ARMED\n", "Unspecified\n");
        let devices = devices_in(&sysfs.0, names_in).unwrap();
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1"]);
        let port = |number, state, link_layer| {
            let gids = Vec::new();
            RdmaPort { number, state, link_layer, gids }
        };
        assert_eq!(
            devices[0].ports,
            [
                port(2, PortState::Armed, LinkLayer::Other("Unspecified".to_owned())),
                port(10, PortState::Active, LinkLayer::Ethernet),
            ]
        );
        assert_eq!(devices[1].ports, [port(1, PortState::Down, LinkLayer::InfiniBand)]);
        assert_eq!(devices[1].node_guid, "0c42:a103:0065:f2aa");
    }

    #[test]
    fn the_gids_of_a_port_are_those_in_use() {
        let sysfs = SysfsFixture::new("gids");
        sysfs.port("rxe0", 1, "4: ACTIVE\n", "Ethernet\n");
        let mapped = "0000:0000:0000:0000:0000:ffff:0a0a:0001\n";
        sysfs.gid("rxe0", 1, 10, mapped, Some("RoCE v2\n"));
        sysfs.gid("rxe0", 1, 1, mapped, Some("IB/RoCE v1\n"));
        sysfs.gid("rxe0", 1, 2, "0000:0000:0000:0000:0000:0000:0000:0000\n", Some("RoCE v2\n"));
        sysfs.gid("rxe0", 1, 3, "0000:0000:0000:0000:0000:0000:0000:0000\n", None);
        sysfs.gid("rxe0", 1, 4, mapped, Some("RoCE v9\n"));
        let devices = devices_in(&sysfs.0, names_in).unwrap();
        let gids: Vec<_> =
            devices[0].ports[0].gids.iter().map(|gid| (gid.index, gid.kind)).collect();
        assert_eq!(gids, [(1, GidKind::InfiniBandOrRoceV1), (10, GidKind::RoceV2)]);
        assert_eq!(devices[0].ports[0].gids[0].address.to_string(), "10.10.0.1");
        sysfs.gid("rxe0", 1, 5, "what\n", Some("RoCE v2\n"));
        assert!(devices_in(&sysfs.0, names_in).unwrap_err().to_string().contains("gids/5"));
    }

    #[test]
    fn what_cannot_be_read_or_understood_is_named() {
        let sysfs = SysfsFixture::new("bad");
        sysfs.port("mlx5_0", 1, "ACTIVE\n", "Ethernet\n");
        let error = devices_in(&sysfs.0, names_in).unwrap_err();
        assert!(matches!(&error, DiscoverError::Unexpected { text, .. } if text == "ACTIVE"));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);
        fs::remove_file(sysfs.0.join("mlx5_0/ports/1/state")).unwrap();
        let error = devices_in(&sysfs.0, names_in).unwrap_err();
        assert!(error.to_string().contains("mlx5_0/ports/1/state"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }
}
