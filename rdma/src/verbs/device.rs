//! An open device: one port of it, and one of the port's addresses.

use std::ffi::CStr;
use std::fs::DirEntry;
use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::watch;

use super::descriptor::watch_descriptor;
use super::ffi::{
    EVENT_DEVICE_FATAL, IbvAsyncEvent, IbvContext, IbvDeviceAttr, IbvPd, IbvPortAttr, PORT_ACTIVE,
    VerbsLibrary, library,
};
use super::resources::{DEVICES, add, subtract};
use crate::choice::DeviceChoice;
use crate::gid::GidAddress;

/// The most reads under way that a peer is asked to answer: the fewest that devices take.
const READS_ASKED_MAX: u8 = 4;
/// The interval of checks that the kernel still shows a device.
const CLASS_ENTRY_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library is not installed.
    #[error(
        "libibverbs cannot be opened ({0}); install it (Debian: libibverbs1, ibverbs-providers)"
    )]
    NoLibrary(String),
    /// The kernel lists the device, and the library does not: its driver for programs is missing.
    #[error(
        "libibverbs does not know the device {0}; install its driver (Debian: ibverbs-providers)"
    )]
    NoDriver(String),
    /// The port carries no data.
    #[error("port {port} of {device} is not active")]
    PortDown {
        /// The kernel's name of the device.
        device: String,
        /// The port's number, from 1.
        port: u8,
    },
    /// The device was removed.
    #[error("the device {0} is gone")]
    Gone(String),
    /// A call of the library failed.
    #[error("{call} failed: {source}{}", help(.call, .source))]
    Call {
        /// The name of the function.
        call: &'static str,
        source: io::Error,
    },
}

/// The advice for an error that has a usual cause.
fn help(call: &str, error: &io::Error) -> &'static str {
    match (call, Errno::from_io_error(error)) {
        ("ibv_reg_mr", Some(Errno::NOMEM | Errno::AGAIN)) => {
            "; raise the limit of locked memory (ulimit -l, or LimitMEMLOCK=infinity)"
        }
        ("ibv_open_device", Some(Errno::ACCESS | Errno::PERM)) => {
            "; the process may not open /dev/infiniband/uverbs*"
        }
        _ => "",
    }
}

impl VerbsError {
    pub(super) fn last(call: &'static str) -> VerbsError {
        VerbsError::Call { call, source: io::Error::last_os_error() }
    }

    pub(super) fn of_code(call: &'static str, code: i32) -> VerbsError {
        // Some functions return the error's number, and some return -1 and set `errno`.
        let source = match code {
            -1 => io::Error::last_os_error(),
            code => io::Error::from_raw_os_error(code.abs()),
        };
        VerbsError::Call { call, source }
    }
}

/// Opens libibverbs, if that was not done yet.
///
/// # Errors
///
/// [`VerbsError::NoLibrary`].
pub fn find_library() -> Result<(), VerbsError> {
    library().map(drop).map_err(VerbsError::NoLibrary)
}

/// The limits of a device that matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLimits {
    /// The most pieces of memory of one work request.
    pub(crate) pieces_max: usize,
    /// The most work requests of a queue.
    pub(crate) requests_max: usize,
    /// The longest transfer of one work request, in bytes.
    pub(crate) bytes_max: usize,
    /// The most reads of a queue pair that may be under way, as their target and as their origin.
    pub(crate) reads_max: (u8, u8),
}

/// A resource that is released when the device is gone, although somebody still has it.
pub(super) trait DeviceResource: Send + Sync {
    fn release(&self);
}

impl<T: Send> DeviceResource for Mutex<Option<T>> {
    fn release(&self) {
        *self.lock() = None;
    }
}

/// A port of an open device, with its protection domain. Clones are the same one.
#[derive(Clone)]
pub struct VerbsDevice(Arc<DeviceState>);

struct DeviceState {
    context: NonNull<IbvContext>,
    domain: NonNull<IbvPd>,
    verbs: &'static VerbsLibrary,
    choice: DeviceChoice,
    limits: DeviceLimits,
    lid: u16,
    mtu: u32,
    is_lost: AtomicBool,
    lost: watch::Sender<bool>,
    resources: Mutex<Vec<Weak<dyn DeviceResource>>>,
}

/// A device that is not kept open.
#[derive(Clone, Debug)]
pub struct WeakDevice(Weak<DeviceState>);

impl WeakDevice {
    /// The device, unless it is gone or closed.
    pub fn upgrade(&self) -> Option<VerbsDevice> {
        self.0.upgrade().map(VerbsDevice).filter(|device| !device.is_lost())
    }
}

// SAFETY: libibverbs allows every function on a context, and on what belongs to it, from any thread
// at any time (ibv_open_device(3), and the library's README under "Thread safety").
unsafe impl Send for DeviceState {}
// SAFETY: as above.
unsafe impl Sync for DeviceState {}

impl VerbsDevice {
    /// Opens the port of a device that was chosen.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub fn open(choice: DeviceChoice) -> Result<VerbsDevice, VerbsError> {
        let verbs = library().map_err(VerbsError::NoLibrary)?;
        let context = open_context(verbs, &choice.device)?;
        // SAFETY: the context is open.
        let Some(domain) = NonNull::new(unsafe { (verbs.alloc_pd)(context.as_ptr()) }) else {
            let error = VerbsError::last("ibv_alloc_pd");
            // SAFETY: nothing belongs to the context.
            unsafe { (verbs.close_device)(context.as_ptr()) };
            return Err(error);
        };
        add(&DEVICES, 1);
        let mut state = DeviceState {
            context,
            domain,
            verbs,
            choice,
            limits: DeviceLimits {
                pieces_max: 1,
                requests_max: 1,
                bytes_max: 0,
                reads_max: (1, 1),
            },
            lid: 0,
            mtu: 0,
            is_lost: AtomicBool::new(false),
            lost: watch::Sender::new(false),
            resources: Mutex::default(),
        };
        state.query()?;
        Ok(VerbsDevice(Arc::new(state)))
    }

    /// The port, and its address.
    pub fn choice(&self) -> &DeviceChoice {
        &self.0.choice
    }

    pub(crate) fn limits(&self) -> DeviceLimits {
        self.0.limits
    }

    /// The address of the port on its link layer, if that is InfiniBand.
    pub(super) fn lid(&self) -> u16 {
        self.0.lid
    }

    /// The number of the port's maximum transfer unit (`enum ibv_mtu`).
    pub(super) fn mtu(&self) -> u32 {
        self.0.mtu
    }

    pub(super) fn gid(&self) -> GidAddress {
        self.0.choice.gid.address
    }

    pub(super) fn verbs(&self) -> &'static VerbsLibrary {
        self.0.verbs
    }

    pub(super) fn context(&self) -> *mut IbvContext {
        self.0.context.as_ptr()
    }

    pub(super) fn domain(&self) -> *mut IbvPd {
        self.0.domain.as_ptr()
    }

    /// True if the kernel said that the device is gone.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }

    /// Returns once the device is gone. Its users must drop everything that belongs to it then,
    /// because the kernel waits for that. Memory that clients expose is released by itself.
    pub async fn lost(&self) {
        let mut lost = self.0.lost.subscribe();
        // The sender lives as long as `self`.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// The device, without keeping it open.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    /// Has `resource` released when the device is gone.
    pub(super) fn add_resource(&self, resource: &Arc<impl DeviceResource + 'static>) {
        let mut resources = self.0.resources.lock();
        if resources.len() == resources.capacity() {
            resources.retain(|resource| resource.strong_count() > 0);
        }
        let weak = Arc::downgrade(resource);
        resources.push(weak);
        drop(resources);
        if self.is_lost() {
            resource.release();
        }
    }

    /// Declares the device gone.
    pub(super) fn set_lost(&self) {
        self.0.is_lost.store(true, Ordering::Release);
        self.0.lost.send_replace(true);
        let resources = std::mem::take(&mut *self.0.resources.lock());
        for resource in resources.iter().filter_map(Weak::upgrade) {
            resource.release();
        }
    }

    /// Takes the kernel's messages about the device until it is gone. Each open device needs one
    /// task that does, which keeps the device open.
    ///
    /// # Errors
    ///
    /// The messages cannot be waited for. The device counts as gone then.
    pub async fn watch(self) -> io::Result<()> {
        let watched = self.take_events().await;
        tracing::warn!(device = %self.0.choice.device, "the RDMA device is gone");
        self.set_lost();
        watched
    }

    /// Takes messages until one says that the device is gone. Some drivers, software RoCE among
    /// them, say nothing: the kernel takes the device out of its class, and waits for its users.
    async fn take_events(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open for as long as the context is, which `self` keeps open.
        let readable = unsafe { watch_descriptor((*self.context()).async_fd)? };
        let class_entry = class_entry_of(&self.0.choice.device);
        loop {
            let waited = tokio::time::timeout(CLASS_ENTRY_INTERVAL, readable.readable()).await;
            let Ok(ready) = waited else {
                if class_entry.as_ref().is_some_and(|entry| !entry.exists()) {
                    return Ok(());
                }
                continue;
            };
            let mut ready = ready?;
            match self.take_event() {
                Ok(EVENT_DEVICE_FATAL) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes one message, and returns its number (`enum ibv_event_type`).
    fn take_event(&self) -> io::Result<u32> {
        let mut event = std::mem::MaybeUninit::<IbvAsyncEvent>::zeroed();
        // SAFETY: the context is open, and the library fills the event in.
        let code = unsafe { (self.0.verbs.get_async_event)(self.context(), event.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so the event is filled in; it is acknowledged once.
        unsafe {
            (self.0.verbs.ack_async_event)(event.as_mut_ptr());
            Ok(event.assume_init().event_type)
        }
    }
}

/// The entry in sysfs by which the kernel offers a device to programs.
fn class_entry_of(device: &str) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir("/sys/class/infiniband_verbs").ok()?.flatten();
    let is_its = |entry: &DirEntry| {
        std::fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim() == device)
    };
    entries.find(is_its).map(|entry| entry.path())
}

fn open_context(
    verbs: &'static VerbsLibrary,
    name: &str,
) -> Result<NonNull<IbvContext>, VerbsError> {
    let mut count = 0;
    // SAFETY: the list is freed below, once.
    let list = unsafe { (verbs.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(VerbsError::last("ibv_get_device_list"));
    }
    let mut opened = Err(VerbsError::NoDriver(name.to_owned()));
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices, and each has a name that ends with a zero.
        let (device, device_name) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((verbs.get_device_name)(device)))
        };
        if device_name.to_bytes() == name.as_bytes() {
            // SAFETY: the device is in the list, which is not freed yet.
            let context = unsafe { (verbs.open_device)(device) };
            opened = NonNull::new(context).ok_or_else(|| VerbsError::last("ibv_open_device"));
            break;
        }
    }
    // SAFETY: the list is that of `get_device_list`. An open context keeps what it needs of it.
    unsafe { (verbs.free_device_list)(list) };
    opened
}

impl DeviceState {
    /// Asks for the limits of the device, and for the state of the port.
    fn query(&mut self) -> Result<(), VerbsError> {
        // SAFETY: zero is a valid value of each field.
        let mut device: IbvDeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut port: IbvPortAttr = unsafe { std::mem::zeroed() };
        let context = self.context.as_ptr();
        // SAFETY: the context is open, and the structure has the library's layout.
        let code = unsafe { (self.verbs.query_device)(context, &raw mut device) };
        if code != 0 {
            return Err(VerbsError::of_code("ibv_query_device", code));
        }
        let number = self.choice.port;
        // SAFETY: as above.
        let code = unsafe { (self.verbs.query_port)(context, number, (&raw mut port).cast()) };
        if code != 0 {
            return Err(VerbsError::of_code("ibv_query_port", code));
        }
        if port.state != PORT_ACTIVE {
            return Err(VerbsError::PortDown { device: self.choice.device.clone(), port: number });
        }
        let at_least_one = |value: i32| usize::try_from(value).unwrap_or(0).max(1);
        let reads = |value: i32| value.clamp(1, 16) as u8;
        self.limits = DeviceLimits {
            pieces_max: at_least_one(device.max_sge),
            requests_max: at_least_one(device.max_qp_wr).min(at_least_one(device.max_cqe)),
            bytes_max: port.max_msg_sz.max(1) as usize,
            reads_max: (
                reads(device.max_qp_rd_atom),
                reads(device.max_qp_init_rd_atom).min(READS_ASKED_MAX),
            ),
        };
        self.lid = port.lid;
        self.mtu = port.active_mtu;
        Ok(())
    }
}

impl Drop for DeviceState {
    fn drop(&mut self) {
        // SAFETY: everything that belongs to the domain holds a `VerbsDevice`, so nothing is left.
        unsafe {
            (self.verbs.dealloc_pd)(self.domain.as_ptr());
            (self.verbs.close_device)(self.context.as_ptr());
        }
        subtract(&DEVICES, 1);
    }
}

impl PartialEq for VerbsDevice {
    fn eq(&self, other: &VerbsDevice) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("VerbsDevice").field(&self.0.choice).finish()
    }
}
