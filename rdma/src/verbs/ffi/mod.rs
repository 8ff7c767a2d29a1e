//! The part of libibverbs that is used: its structures, and its functions.
//!
//! Without the feature `ibverbs` the library is opened when it is first needed, and its absence is
//! an error like any other. So the program starts on machines without it, and building it needs
//! neither its headers nor a C compiler. With the feature the declarations are those of crate
//! `ibverbs-sys`, and the program is linked with the library
//! (`docs/adr/0036-the-crates-ibverbs-are-a-feature.md`).

#![allow(clippy::missing_safety_doc, reason = "the functions are those of the library")]

#[cfg(feature = "ibverbs")]
mod linked;
#[cfg(not(feature = "ibverbs"))]
mod loaded;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rustix::io::Errno;

#[cfg(feature = "ibverbs")]
pub(crate) use linked::*;
#[cfg(not(feature = "ibverbs"))]
pub(crate) use loaded::*;

/// The file that the dynamic linker looks for.
#[cfg(not(feature = "ibverbs"))]
const LIBRARY: &str = "libibverbs.so.1";

macro_rules! library {
    ($($field:ident: $symbol:ident, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        pub(crate) struct VerbsLibrary {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl VerbsLibrary {
            /// Opens the library. It stays open.
            #[cfg(not(feature = "ibverbs"))]
            fn open() -> Result<VerbsLibrary, libloading::Error> {
                // SAFETY: libibverbs may be opened at any time; it has no requirements on threads.
                let library = unsafe { libloading::Library::new(LIBRARY)? };
                // Its functions are called for as long as the process lives.
                let library: &'static libloading::Library = Box::leak(Box::new(library));
                Ok(VerbsLibrary {
                    $(
                        // SAFETY: this is the signature of the function in the library's headers.
                        $field: *unsafe { library.get(stringify!($symbol).as_bytes())? },
                    )*
                })
            }

            /// The functions that the program is linked with. The compiler compares their types.
            #[cfg(feature = "ibverbs")]
            fn open() -> Result<VerbsLibrary, std::convert::Infallible> {
                Ok(VerbsLibrary { $($field: ibverbs_sys::$symbol,)* })
            }
        }
    };
}

library! {
    get_device_list: ibv_get_device_list, fn(*mut c_int) -> *mut *mut IbvDevice;
    free_device_list: ibv_free_device_list, fn(*mut *mut IbvDevice);
    get_device_name: ibv_get_device_name, fn(*mut IbvDevice) -> *const c_char;
    open_device: ibv_open_device, fn(*mut IbvDevice) -> *mut IbvContext;
    close_device: ibv_close_device, fn(*mut IbvContext) -> c_int;
    query_device: ibv_query_device, fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
    query_port: ibv_query_port, fn(*mut IbvContext, u8, *mut IbvCompatPortAttr) -> c_int;
    alloc_pd: ibv_alloc_pd, fn(*mut IbvContext) -> *mut IbvPd;
    dealloc_pd: ibv_dealloc_pd, fn(*mut IbvPd) -> c_int;
    reg_mr: ibv_reg_mr, fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
    dereg_mr: ibv_dereg_mr, fn(*mut IbvMr) -> c_int;
    create_comp_channel: ibv_create_comp_channel, fn(*mut IbvContext) -> *mut IbvCompChannel;
    destroy_comp_channel: ibv_destroy_comp_channel, fn(*mut IbvCompChannel) -> c_int;
    create_cq: ibv_create_cq,
        fn(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
    destroy_cq: ibv_destroy_cq, fn(*mut IbvCq) -> c_int;
    get_cq_event: ibv_get_cq_event,
        fn(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
    ack_cq_events: ibv_ack_cq_events, fn(*mut IbvCq, c_uint);
    create_qp: ibv_create_qp, fn(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
    modify_qp: ibv_modify_qp, fn(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
    destroy_qp: ibv_destroy_qp, fn(*mut IbvQp) -> c_int;
    get_async_event: ibv_get_async_event, fn(*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
    ack_async_event: ibv_ack_async_event, fn(*mut IbvAsyncEvent);
    wc_status_str: ibv_wc_status_str, fn(c_uint) -> *const c_char;
}

/// The library, opened once.
///
/// # Errors
///
/// The message of the dynamic linker: the library is not installed, or is not libibverbs. Never with
/// the feature `ibverbs`.
pub(crate) fn library() -> Result<&'static VerbsLibrary, String> {
    static LOADED: OnceLock<Result<VerbsLibrary, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| VerbsLibrary::open().map_err(|error| error.to_string()));
    loaded.as_ref().map_err(String::clone)
}

/// `ibv_post_send`. The headers have it call the device's driver, so the library has no symbol.
pub(crate) unsafe fn post_send(
    pair: *mut IbvQp,
    requests: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: the caller's pair is open, and so is its context.
    match unsafe { (*(*pair).context).ops.post_send } {
        // SAFETY: as the caller says.
        Some(post_send) => unsafe { post_send(pair, requests, bad) },
        None => Errno::NOSYS.raw_os_error(),
    }
}

/// `ibv_poll_cq`, as above.
pub(crate) unsafe fn poll_cq(queue: *mut IbvCq, room: c_int, completions: *mut IbvWc) -> c_int {
    // SAFETY: the caller's queue is open, and so is its context.
    match unsafe { (*(*queue).context).ops.poll_cq } {
        // SAFETY: as the caller says.
        Some(poll_cq) => unsafe { poll_cq(queue, room, completions) },
        None => -Errno::NOSYS.raw_os_error(),
    }
}

/// `ibv_req_notify_cq`, as above.
pub(crate) unsafe fn req_notify_cq(queue: *mut IbvCq, is_solicited_only: c_int) -> c_int {
    // SAFETY: the caller's queue is open, and so is its context.
    match unsafe { (*(*queue).context).ops.req_notify_cq } {
        // SAFETY: as the caller says.
        Some(req_notify_cq) => unsafe { req_notify_cq(queue, is_solicited_only) },
        None => Errno::NOSYS.raw_os_error(),
    }
}
