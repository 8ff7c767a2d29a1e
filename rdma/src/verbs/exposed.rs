//! The client's end: memory that the server may read and write, and the queue pair for it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::device::{VerbsDevice, VerbsError};
use super::ffi::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use super::memory::{AnonymousMapping, MemoryRegistration};
use super::queue_pair::{PeerAccess, QueuePair};
use crate::address::LinkAddress;
use crate::link::RemoteRegion;

/// The client's end of a link. It lets the server work on [`ExposedMemory`] of the same device, and
/// does nothing by itself. Once it is dropped, the server can reach none of it.
#[derive(Debug)]
pub struct PeerEnd {
    /// `None` if the device is gone.
    pair: Arc<Mutex<Option<QueuePair>>>,
    address: LinkAddress,
    device: String,
}

impl PeerEnd {
    /// Creates the end. It must be called within a runtime.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn new(device: &VerbsDevice) -> Result<PeerEnd, VerbsError> {
        let pair = QueuePair::new(device, 1, 1, PeerAccess::ReadWrite)?;
        let address = pair.address();
        let pair = Arc::new(Mutex::new(Some(pair)));
        device.add_resource(&pair);
        Ok(PeerEnd { pair, address, device: device.choice().device.clone() })
    }

    /// The address that the server needs to connect with it.
    pub fn address(&self) -> LinkAddress {
        self.address
    }

    /// Connects it with the server's end.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn connect(&mut self, server: &LinkAddress) -> Result<(), VerbsError> {
        match &mut *self.pair.lock() {
            Some(pair) => pair.connect(server),
            None => Err(VerbsError::Gone(self.device.clone())),
        }
    }
}

/// Memory of a client that the server may read and write, as long as it exists. Clones are the same
/// memory.
///
/// The server writes into it only between a request that names it and the response. A reader must
/// look at the bytes after the response, and offer the memory for no other transfer meanwhile
/// ([`ExposedMemory::is_shared`]). A server that writes at another time breaks the contract: the
/// reader may see any bytes then, as from a broken disk.
#[derive(Clone)]
pub struct ExposedMemory(Arc<ExposedBytes>);

struct ExposedBytes {
    /// Before the mapping, so that no device uses memory that is not mapped. `None` if the device
    /// is gone.
    _registration: Arc<Mutex<Option<MemoryRegistration>>>,
    /// The key of the registration.
    key: u32,
    mapping: AnonymousMapping,
}

impl ExposedMemory {
    /// Maps and registers `length` bytes, all zero.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn new(device: &VerbsDevice, length: usize) -> Result<ExposedMemory, VerbsError> {
        let mapping = AnonymousMapping::new(length)
            .map_err(|source| VerbsError::Call { call: "mmap", source })?;
        let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
        // SAFETY: the registration is dropped before the mapping.
        let registration = unsafe { MemoryRegistration::new(device, &mapping, 0, length, access)? };
        let key = registration.remote_key();
        let registration = Arc::new(Mutex::new(Some(registration)));
        device.add_resource(&registration);
        let exposed = ExposedBytes { _registration: registration, key, mapping };
        Ok(ExposedMemory(Arc::new(exposed)))
    }

    /// The region by which the server names it.
    pub fn region(&self) -> RemoteRegion {
        RemoteRegion {
            address: self.0.mapping.as_ptr() as u64,
            length: self.0.mapping.length() as u64,
            key: self.0.key,
        }
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.0.mapping.length()
    }

    /// True if somebody else has a share of it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// All of it, to be written by this process. `None` if somebody else has a share.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let bytes = Arc::get_mut(&mut self.0)?;
        let (start, length) = (bytes.mapping.as_ptr(), bytes.mapping.length());
        // SAFETY: the memory is mapped and initialised, and no other reference to it exists. The
        // server only reads the bytes that it was asked to read, after this process has written
        // them.
        Some(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }

    /// A share of some of its bytes, without a copy.
    ///
    /// # Panics
    ///
    /// If the range is not inside.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(ExposedShare(Arc::clone(&self.0))).slice(range)
    }
}

/// A share of exposed memory, which keeps it.
struct ExposedShare(Arc<ExposedBytes>);

impl AsRef<[u8]> for ExposedShare {
    fn as_ref(&self) -> &[u8] {
        let mapping = &self.0.mapping;
        // SAFETY: the memory is mapped and initialised as long as the share exists, and this
        // process does not write it meanwhile: `as_mut_slice` needs the only share. About the
        // server, see `ExposedMemory`.
        unsafe { std::slice::from_raw_parts(mapping.as_ptr(), mapping.length()) }
    }
}

impl std::fmt::Debug for ExposedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExposedMemory({} bytes)", self.length())
    }
}
