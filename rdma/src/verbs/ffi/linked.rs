//! The structures and constants of libibverbs as crate `ibverbs-sys` has them, for a program that is
//! linked with the library.

use std::ffi::{c_int, c_uint};

pub(crate) use ibverbs_sys::_compat_ibv_port_attr as IbvCompatPortAttr;
pub(crate) use ibverbs_sys::IBV_EVENT_DEVICE_FATAL as EVENT_DEVICE_FATAL;
pub(crate) use ibverbs_sys::ibv_port_state::IBV_PORT_ACTIVE as PORT_ACTIVE;
pub(crate) use ibverbs_sys::ibv_qp_state::{
    IBV_QPS_INIT as QPS_INIT, IBV_QPS_RTR as QPS_RTR, IBV_QPS_RTS as QPS_RTS,
};
pub(crate) use ibverbs_sys::ibv_qp_type::IBV_QPT_RC as QPT_RC;
pub(crate) use ibverbs_sys::ibv_wr_opcode::{
    IBV_WR_RDMA_READ as WR_RDMA_READ, IBV_WR_RDMA_WRITE as WR_RDMA_WRITE,
};
use ibverbs_sys::{ibv_access_flags, ibv_qp_attr_mask, ibv_send_flags};
pub(crate) use ibverbs_sys::{
    ibv_ah_attr as IbvAhAttr, ibv_async_event as IbvAsyncEvent, ibv_comp_channel as IbvCompChannel,
    ibv_context as IbvContext, ibv_cq as IbvCq, ibv_device as IbvDevice,
    ibv_device_attr as IbvDeviceAttr, ibv_gid as IbvGid, ibv_mr as IbvMr, ibv_pd as IbvPd,
    ibv_port_attr as IbvPortAttr, ibv_qp as IbvQp, ibv_qp_attr as IbvQpAttr,
    ibv_qp_cap as IbvQpCap, ibv_qp_init_attr as IbvQpInitAttr, ibv_send_wr as IbvSendWr,
    ibv_sge as IbvSge, ibv_wc as IbvWc,
};

pub(crate) const ACCESS_LOCAL_WRITE: c_int = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 as c_int;
pub(crate) const ACCESS_REMOTE_READ: c_int = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 as c_int;

pub(crate) const SEND_SIGNALED: c_uint = ibv_send_flags::IBV_SEND_SIGNALED.0;

pub(crate) const QP_STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
pub(crate) const QP_ACCESS_FLAGS: c_int = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0 as c_int;
pub(crate) const QP_PKEY_INDEX: c_int = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0 as c_int;
pub(crate) const QP_PORT: c_int = ibv_qp_attr_mask::IBV_QP_PORT.0 as c_int;
pub(crate) const QP_AV: c_int = ibv_qp_attr_mask::IBV_QP_AV.0 as c_int;
pub(crate) const QP_PATH_MTU: c_int = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0 as c_int;
pub(crate) const QP_TIMEOUT: c_int = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0 as c_int;
pub(crate) const QP_RETRY_CNT: c_int = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0 as c_int;
pub(crate) const QP_RNR_RETRY: c_int = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0 as c_int;
pub(crate) const QP_RQ_PSN: c_int = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0 as c_int;
pub(crate) const QP_MAX_QP_RD_ATOMIC: c_int = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0 as c_int;
pub(crate) const QP_MIN_RNR_TIMER: c_int = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as c_int;
pub(crate) const QP_SQ_PSN: c_int = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0 as c_int;
pub(crate) const QP_MAX_DEST_RD_ATOMIC: c_int =
    ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 as c_int;
pub(crate) const QP_DEST_QPN: c_int = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 as c_int;
