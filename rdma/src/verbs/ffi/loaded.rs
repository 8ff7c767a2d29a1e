//! Our own declarations of libibverbs' structures, for a program that opens it at run time.
//!
//! They are the library's ABI, which has been the same since version 1.1 of 2007; `rdma/vm/abi.c`
//! compares them with the headers. Of structures that the library allocates, only the leading
//! fields are declared. Names of fields are the library's.

use std::ffi::{c_int, c_uint, c_void};

pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;

pub(crate) const WR_RDMA_WRITE: c_uint = 0;
pub(crate) const WR_RDMA_READ: c_uint = 4;
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
const WC_SUCCESS: c_uint = 0;

pub(crate) const QPT_RC: c_uint = 2;
pub(crate) const QPS_INIT: c_uint = 1;
pub(crate) const QPS_RTR: c_uint = 2;
pub(crate) const QPS_RTS: c_uint = 3;

pub(crate) const QP_STATE: c_int = 1;
pub(crate) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const QP_PORT: c_int = 1 << 5;
pub(crate) const QP_AV: c_int = 1 << 7;
pub(crate) const QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const QP_DEST_QPN: c_int = 1 << 20;

pub(crate) const PORT_ACTIVE: c_uint = 4;

pub(crate) const EVENT_DEVICE_FATAL: c_uint = 8;

/// `struct ibv_device`; only ever behind a pointer.
#[repr(C)]
pub(crate) struct IbvDevice {
    _private: [u8; 0],
}

/// `struct ibv_pd`; only ever behind a pointer.
#[repr(C)]
pub(crate) struct IbvPd {
    _private: [u8; 0],
}

/// The functions of a context that the headers call directly. The places of others are counted.
#[repr(C)]
pub(crate) struct IbvContextOps {
    before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    before_post_send: [*mut c_void; 12],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    after_post_send: [*mut c_void; 6],
}

/// `struct ibv_context`, as far as it is used.
#[repr(C)]
pub(crate) struct IbvContext {
    device: *mut IbvDevice,
    pub(crate) ops: IbvContextOps,
    cmd_fd: c_int,
    pub(crate) async_fd: c_int,
}

/// `struct ibv_cq`, as far as it is used.
#[repr(C)]
pub(crate) struct IbvCq {
    pub(crate) context: *mut IbvContext,
}

/// `struct ibv_qp`, as far as it is used.
#[repr(C)]
pub(crate) struct IbvQp {
    pub(crate) context: *mut IbvContext,
    qp_context: *mut c_void,
    pd: *mut IbvPd,
    send_cq: *mut IbvCq,
    recv_cq: *mut IbvCq,
    srq: *mut c_void,
    handle: u32,
    pub(crate) qp_num: u32,
}

/// `struct ibv_comp_channel`, as far as it is used.
#[repr(C)]
pub(crate) struct IbvCompChannel {
    context: *mut IbvContext,
    pub(crate) fd: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct IbvMr {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `union ibv_gid`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct IbvGid {
    pub(crate) raw: [u8; 16],
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub(crate) struct IbvDeviceAttr {
    fw_ver: [u8; 64],
    node_guid: u64,
    sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(crate) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    rest: [u32; 16],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
}

/// `struct ibv_port_attr` without its last field, which `ibv_query_port` does not fill in.
#[repr(C)]
pub(crate) struct IbvPortAttr {
    pub(crate) state: c_uint,
    max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    pub(crate) lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(crate) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct _compat_ibv_port_attr`, the name of `struct ibv_port_attr` in the function's signature.
pub(crate) type IbvCompatPortAttr = IbvPortAttr;

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvQpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct IbvQpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvGlobalRoute {
    pub(crate) dgid: IbvGid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvAhAttr {
    pub(crate) grh: IbvGlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvQpAttr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: IbvQpCap,
    pub(crate) ah_attr: IbvAhAttr,
    pub(crate) alt_ah_attr: IbvAhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_sge`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IbvSge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// The member `rdma` of the union `wr`: the target of a one-sided request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvRdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The union `wr` of a work request, as far as it is used.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvWr {
    pub(crate) rdma: IbvRdma,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct IbvSendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvSendWr,
    pub(crate) sg_list: *mut IbvSge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    imm_data: u32,
    pub(crate) wr: IbvWr,
    rest: [u64; 9],
}

/// `struct ibv_wc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvWc {
    wr_id: u64,
    status: c_uint,
    opcode: c_uint,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// Accessors, because the fields are private in `ibverbs-sys`.
impl IbvWc {
    /// The number that was given with the work request.
    pub(crate) fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The status (`enum ibv_wc_status`) of a failed request, and the vendor's error.
    pub(crate) fn error(&self) -> Option<(c_uint, u32)> {
        (self.status != WC_SUCCESS).then_some((self.status, self.vendor_err))
    }
}

/// `struct ibv_async_event`.
#[repr(C)]
pub(crate) struct IbvAsyncEvent {
    element: *mut c_void,
    pub(crate) event_type: c_uint,
}

/// The layout of each structure as Rust has it, in the words of `rdma/vm/abi.c`.
#[cfg(test)]
fn layouts() -> String {
    use std::fmt::Write as _;
    use std::mem::offset_of;
    let mut text = String::new();
    macro_rules! layout {
        ($($ours:ty, $theirs:literal: $($field:ident),*;)*) => {$(
            $(writeln!(text, "{} {} {}", $theirs, stringify!($field), offset_of!($ours, $field)).unwrap();)*
        )*};
    }
    macro_rules! sizes {
        ($($ours:ty, $theirs:literal;)*) => {$(
            writeln!(text, "{} {}", $theirs, size_of::<$ours>()).unwrap();
        )*};
    }
    layout! {
        IbvContext, "ibv_context": ops, async_fd;
        IbvContextOps, "ibv_context_ops": poll_cq, req_notify_cq, post_send;
        IbvCq, "ibv_cq": context;
        IbvQp, "ibv_qp": context, qp_num;
        IbvCompChannel, "ibv_comp_channel": fd;
        IbvMr, "ibv_mr": lkey, rkey;
        IbvDeviceAttr, "ibv_device_attr": max_qp_wr, max_sge, max_cqe, max_qp_rd_atom,
            max_qp_init_rd_atom, phys_port_cnt;
        IbvPortAttr, "ibv_port_attr": state, active_mtu, max_msg_sz, lid, link_layer, flags;
        IbvQpInitAttr, "ibv_qp_init_attr": send_cq, recv_cq, srq, cap, qp_type, sq_sig_all;
        IbvQpAttr, "ibv_qp_attr": path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
            timeout, retry_cnt, rnr_retry, rate_limit;
        IbvAhAttr, "ibv_ah_attr": dlid, is_global, port_num;
        IbvSge, "ibv_sge": addr, length, lkey;
        IbvSendWr, "ibv_send_wr": next, sg_list, num_sge, opcode, send_flags, imm_data;
        IbvWc, "ibv_wc": wr_id, status, byte_len;
        IbvAsyncEvent, "ibv_async_event": event_type;
    }
    writeln!(text, "remote_addr {}", offset_of!(IbvSendWr, wr.rdma.remote_addr)).unwrap();
    writeln!(text, "rkey {}", offset_of!(IbvSendWr, wr.rdma.rkey)).unwrap();
    writeln!(text, "sgid_index {}", offset_of!(IbvAhAttr, grh.sgid_index)).unwrap();
    sizes! {
        IbvContextOps, "ibv_context_ops";
        IbvMr, "ibv_mr";
        IbvGid, "ibv_gid";
        IbvDeviceAttr, "ibv_device_attr";
        IbvPortAttr, "ibv_port_attr";
        IbvQpCap, "ibv_qp_cap";
        IbvQpInitAttr, "ibv_qp_init_attr";
        IbvAhAttr, "ibv_ah_attr";
        IbvQpAttr, "ibv_qp_attr";
        IbvSge, "ibv_sge";
        IbvSendWr, "ibv_send_wr";
        IbvWc, "ibv_wc";
        IbvAsyncEvent, "ibv_async_event";
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The program `rdma/vm/abi.c`, which prints what the library's headers say. Without the
    /// headers (Debian: libibverbs-dev) there is nothing to compare with.
    #[test]
    fn the_structures_are_laid_out_as_in_the_library_s_headers() {
        if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
            eprintln!("skipped: infiniband/verbs.h is not installed");
            return;
        }
        let directory =
            std::env::temp_dir().join(format!("freezeframe-abi-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("abi");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/vm/abi.c");
        let compiled = Command::new("cc").arg("-o").arg(&program).arg(source).status().unwrap();
        assert!(compiled.success());
        let printed = Command::new(&program).output().unwrap().stdout;
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(layouts(), String::from_utf8(printed).unwrap());
    }
}
