//! An open device: one port of it, and one of the port's addresses.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::descriptor::watch_descriptor;
use super::ffi::{
    EVENT_DEVICE_FATAL, IbvAsyncEvent, IbvContext, IbvDeviceAttr, IbvPd, IbvPortAttr, PORT_ACTIVE,
    VerbsLibrary, library,
};
use super::resources::{DEVICES, add, subtract};
use crate::choice::DeviceChoice;
use crate::gid::GidAddress;

/// Why a device cannot be used.
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
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
    },
    /// A call of the library failed.
    #[error("{call} failed: {source}{}", help(.call, .source))]
    Call {
        /// The name of the function.
        call: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// What to do about an error that has a usual cause.
fn help(call: &str, error: &io::Error) -> &'static str {
    match (call, error.raw_os_error()) {
        ("ibv_reg_mr", Some(libc::ENOMEM | libc::EAGAIN)) => {
            "; raise the limit of locked memory (ulimit -l, or LimitMEMLOCK=infinity)"
        }
        ("ibv_open_device", Some(libc::EACCES | libc::EPERM)) => {
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
    mtu: i32,
    is_lost: AtomicBool,
    lost: watch::Sender<bool>,
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
    pub(super) fn mtu(&self) -> i32 {
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

    /// Whether the kernel said that the device is gone.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }

    /// Returns once the device is gone. Those who use it must drop everything that belongs to it
    /// then: the kernel waits for that.
    pub async fn lost(&self) {
        let mut lost = self.0.lost.subscribe();
        // The sender lives as long as `self`.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Declares the device gone.
    pub(super) fn set_lost(&self) {
        self.0.is_lost.store(true, Ordering::Release);
        self.0.lost.send_replace(true);
    }

    /// Takes the kernel's messages about the device until it is gone. Each open device needs one
    /// task that does, which keeps the device open.
    ///
    /// # Errors
    ///
    /// The messages cannot be waited for.
    pub async fn watch(self) -> io::Result<()> {
        // SAFETY: the descriptor is open for as long as the context is, which `self` keeps open.
        let readable = unsafe { watch_descriptor((*self.context()).async_fd)? };
        loop {
            let mut ready = readable.readable().await?;
            match self.take_event() {
                Ok(EVENT_DEVICE_FATAL) => {
                    tracing::warn!(device = %self.0.choice.device, "the RDMA device is gone");
                    self.set_lost();
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => {
                    self.set_lost();
                    return Err(error);
                }
            }
        }
    }

    /// Takes one message, and returns its number (`enum ibv_event_type`).
    fn take_event(&self) -> io::Result<i32> {
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
        let (device, found) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((verbs.get_device_name)(device)))
        };
        if found.to_bytes() == name.as_bytes() {
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
        let code = unsafe { (self.verbs.query_port)(context, number, &raw mut port) };
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
            reads_max: (reads(device.max_qp_rd_atom), reads(device.max_qp_init_rd_atom)),
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

impl std::fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("VerbsDevice").field(&self.0.choice).finish()
    }
}
