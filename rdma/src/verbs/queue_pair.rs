//! A queue pair with its completion queue: one reliable connection between two devices.

use std::io;
use std::ptr::NonNull;

use super::descriptor::{WatchedDescriptor, watch_descriptor};
use super::device::{VerbsDevice, VerbsError};
use super::ffi::{
    ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, IbvAhAttr, IbvCompChannel, IbvCq, IbvGid, IbvQp,
    IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvSendWr, IbvSge, IbvWc, QP_ACCESS_FLAGS, QP_AV,
    QP_DEST_QPN, QP_MAX_DEST_RD_ATOMIC, QP_MAX_QP_RD_ATOMIC, QP_MIN_RNR_TIMER, QP_PATH_MTU,
    QP_PKEY_INDEX, QP_PORT, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN, QP_SQ_PSN, QP_STATE, QP_TIMEOUT,
    QPS_INIT, QPS_RTR, QPS_RTS, QPT_RC, SEND_SIGNALED, poll_cq, post_send, req_notify_cq,
};
use super::resources::{QUEUE_PAIRS, add, subtract};
use crate::address::LinkAddress;

/// 4.096 us times two to this power: the longest time that an acknowledgement may take, here half a
/// second.
const ACK_TIMEOUT: u8 = 17;
/// The most times that an unacknowledged packet is sent again. Linux' software RoCE takes 7,
/// the largest value, for ever.
const RETRIES: u8 = 6;
/// The hop limit: the most routers that may pass a packet on.
const HOPS_MAX: u8 = 64;
/// The most completions that are taken at once.
const COMPLETIONS_MAX: usize = 32;

/// The access of the peer to memory that is registered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAccess {
    /// Nothing. It is the server's end.
    None,
    /// Read and write. It is the client's end.
    ReadWrite,
}

/// A work request: one-sided, between `pieces` here and consecutive bytes at the peer.
#[derive(Debug)]
pub(super) struct WorkRequest {
    /// [`super::ffi::WR_RDMA_WRITE`] or [`super::ffi::WR_RDMA_READ`].
    pub(super) opcode: u32,
    pub(super) pieces: Vec<IbvSge>,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    /// True if its completion is reported. Otherwise it is known from the completion of a later
    /// one.
    pub(super) is_signalled: bool,
}

/// The completion of a work request, and so of all before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// The number that was given with it.
    pub(super) number: u64,
    /// The status with which it failed (`enum ibv_wc_status`).
    pub(super) failure: Option<u32>,
}

/// A queue pair. Dropping it ends every transfer of either side before anything else is freed.
pub(super) struct QueuePair {
    pair: NonNull<IbvQp>,
    completions: CompletionQueue,
    access: PeerAccess,
    first_packet: u32,
}

// SAFETY: libibverbs allows its functions on a queue pair from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: methods that change something take `&mut self`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair for `requests` work requests of `pieces` pieces each. It must be called
    /// within a runtime.
    ///
    /// # Errors
    ///
    /// [`VerbsError`].
    pub(super) fn new(
        device: &VerbsDevice,
        requests: usize,
        pieces: usize,
        access: PeerAccess,
    ) -> Result<QueuePair, VerbsError> {
        let completions = CompletionQueue::new(device, requests)?;
        let mut attributes = IbvQpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.queue.as_ptr(),
            recv_cq: completions.queue.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: IbvQpCap {
                max_send_wr: requests as u32,
                // Nothing is received: both sides say over the other connection when they are done.
                max_recv_wr: 1,
                max_send_sge: pieces as u32,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the completion queue are open, and stay so as long as this is.
        let pair = unsafe { (device.verbs().create_qp)(device.domain(), &raw mut attributes) };
        let pair = NonNull::new(pair).ok_or_else(|| VerbsError::last("ibv_create_qp"))?;
        add(&QUEUE_PAIRS, 1);
        // Any number will do, if two connections in a row do not have the same: packets of the
        // first may still be on the way.
        let first_packet = (unpredictable_number() & 0x00ff_ffff) as u32;
        Ok(QueuePair { pair, completions, access, first_packet })
    }

    fn device(&self) -> &VerbsDevice {
        &self.completions.device
    }

    /// The address of this end, for the peer.
    pub(super) fn address(&self) -> LinkAddress {
        // SAFETY: the queue pair is open, and its number does not change.
        let number = unsafe { self.pair.as_ref() }.qp_num;
        let device = self.device();
        LinkAddress {
            gid: device.gid(),
            lid: device.lid(),
            queue_pair: number,
            first_packet: self.first_packet,
            mtu: device.mtu(),
        }
    }

    /// Connects it with the peer's end.
    ///
    /// # Errors
    ///
    /// [`VerbsError`], also if the address is none that the device can reach.
    pub(super) fn connect(&mut self, peer: &LinkAddress) -> Result<(), VerbsError> {
        let choice = self.device().choice().clone();
        // SAFETY: zero is a valid value of each field.
        let mut attributes: IbvQpAttr = unsafe { std::mem::zeroed() };
        attributes.qp_state = QPS_INIT;
        attributes.port_num = choice.port;
        attributes.qp_access_flags = match self.access {
            PeerAccess::None => 0,
            PeerAccess::ReadWrite => (ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE) as u32,
        };
        self.modify(&mut attributes, QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS)?;

        let (max_as_target, max_as_initiator) = self.device().limits().reads_max;
        attributes.qp_state = QPS_RTR;
        attributes.path_mtu = self.device().mtu().min(peer.mtu);
        attributes.dest_qp_num = peer.queue_pair;
        attributes.rq_psn = peer.first_packet;
        attributes.max_dest_rd_atomic = max_as_target;
        attributes.min_rnr_timer = 12;
        attributes.ah_attr = path(&choice, peer);
        self.modify(
            &mut attributes,
            QP_STATE
                | QP_AV
                | QP_PATH_MTU
                | QP_DEST_QPN
                | QP_RQ_PSN
                | QP_MAX_DEST_RD_ATOMIC
                | QP_MIN_RNR_TIMER,
        )?;

        attributes.qp_state = QPS_RTS;
        attributes.timeout = ACK_TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RETRIES;
        attributes.sq_psn = self.first_packet;
        attributes.max_rd_atomic = max_as_initiator;
        self.modify(
            &mut attributes,
            QP_STATE | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn modify(&mut self, attributes: &mut IbvQpAttr, mask: i32) -> Result<(), VerbsError> {
        let verbs = self.device().verbs();
        // SAFETY: the queue pair is open, and the structure has the library's layout.
        match unsafe { (verbs.modify_qp)(self.pair.as_ptr(), attributes, mask) } {
            0 => Ok(()),
            code => Err(VerbsError::of_code("ibv_modify_qp", code)),
        }
    }

    /// Gives `requests` to the device, in order. The first has the number `first`, the next one
    /// more.
    ///
    /// # Errors
    ///
    /// The device takes no more requests. Some may be under way.
    ///
    /// # Safety
    ///
    /// The memory of all pieces is registered, and stays so until the completion of a request that
    /// was not before theirs, or until the queue pair is dropped. Nobody else uses the target of a
    /// read until then.
    pub(super) unsafe fn post(
        &mut self,
        requests: &mut [WorkRequest],
        first: u64,
    ) -> Result<(), VerbsError> {
        let mut chain: Vec<IbvSendWr> = Vec::with_capacity(requests.len());
        for (request, number) in requests.iter_mut().zip(first..) {
            // SAFETY: zero is a valid value of each field.
            let mut work: IbvSendWr = unsafe { std::mem::zeroed() };
            work.wr_id = number;
            work.sg_list = request.pieces.as_mut_ptr();
            work.num_sge = request.pieces.len() as i32;
            work.opcode = request.opcode;
            work.send_flags = if request.is_signalled { SEND_SIGNALED } else { 0 };
            work.wr.rdma.remote_addr = request.remote_address;
            work.wr.rdma.rkey = request.remote_key;
            chain.push(work);
        }
        let start = chain.as_mut_ptr();
        for nth in 1..chain.len() {
            // SAFETY: both are elements of the vector, which does not grow any more.
            unsafe { (*start.add(nth - 1)).next = start.add(nth) };
        }
        if chain.is_empty() {
            return Ok(());
        }
        let (pair, mut bad) = (self.pair.as_ptr(), std::ptr::null_mut());
        // SAFETY: the queue pair is open; the device copies the chain and its lists of pieces
        // before the call returns; the caller answers for the memory of the pieces.
        match unsafe { post_send(pair, start, &raw mut bad) } {
            0 => Ok(()),
            code => Err(VerbsError::of_code("ibv_post_send", code)),
        }
    }

    /// The completions that have come, which may be none.
    ///
    /// # Errors
    ///
    /// The completion queue is broken.
    pub(super) fn poll(&mut self) -> Result<Vec<Completion>, VerbsError> {
        self.completions.poll()
    }

    /// Waits until completions may have come since the last [`QueuePair::arm`].
    ///
    /// # Errors
    ///
    /// The channel of the completion queue is broken.
    pub(super) async fn wait(&mut self) -> io::Result<()> {
        self.completions.wait().await
    }

    /// Asks for a message at the next completion. Completions that came before are found by
    /// [`QueuePair::poll`] alone.
    ///
    /// # Errors
    ///
    /// The completion queue is broken.
    pub(super) fn arm(&mut self) -> Result<(), VerbsError> {
        self.completions.arm()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let verbs = self.device().verbs();
        // SAFETY: the queue pair is open. Afterwards no device moves bytes for it, and the
        // completion queue, which is dropped next, has no user left.
        let code = unsafe { (verbs.destroy_qp)(self.pair.as_ptr()) };
        if code != 0 {
            tracing::debug!(code, "ibv_destroy_qp failed");
        }
        subtract(&QUEUE_PAIRS, 1);
    }
}

/// The way to the peer.
fn path(choice: &crate::DeviceChoice, peer: &LinkAddress) -> IbvAhAttr {
    // SAFETY: zero is a valid value of each field.
    let mut path: IbvAhAttr = unsafe { std::mem::zeroed() };
    path.port_num = choice.port;
    path.dlid = peer.lid;
    // Within a subnet of InfiniBand the short address is enough; Ethernet has only the long one.
    path.is_global = u8::from(!choice.is_infiniband || peer.lid == 0);
    path.grh.dgid = IbvGid { raw: peer.gid.0 };
    path.grh.sgid_index = choice.gid.index;
    path.grh.hop_limit = HOPS_MAX;
    path
}

/// A number that differs from call to call and from process to process.
fn unpredictable_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A completion queue, and the channel on which it announces completions.
struct CompletionQueue {
    queue: NonNull<IbvCq>,
    channel: CompletionChannel,
    device: VerbsDevice,
}

// SAFETY: libibverbs allows its functions on a completion queue from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: methods that change something take `&mut self`.
unsafe impl Sync for CompletionQueue {}

/// A channel for the messages of a completion queue. The descriptor is behind `watched`, because it
/// is closed with the channel.
struct CompletionChannel {
    watched: Option<WatchedDescriptor>,
    channel: NonNull<IbvCompChannel>,
    device: VerbsDevice,
}

// SAFETY: libibverbs allows its functions on a channel from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    fn new(device: &VerbsDevice) -> Result<CompletionChannel, VerbsError> {
        // SAFETY: the context is open as long as `device` is held.
        let channel = unsafe { (device.verbs().create_comp_channel)(device.context()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| VerbsError::last("ibv_create_comp_channel"))?;
        let mut opened = CompletionChannel { watched: None, channel, device: device.clone() };
        // SAFETY: the descriptor is open as long as the channel is, and `watched` is dropped first.
        let watched = unsafe { watch_descriptor(channel.as_ref().fd) };
        let watched = watched
            .map_err(|source| VerbsError::Call { call: "watch a completion channel", source })?;
        opened.watched = Some(watched);
        Ok(opened)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        self.watched = None;
        // SAFETY: the channel is open, and the completion queue that used it is gone.
        unsafe { (self.device.verbs().destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl CompletionQueue {
    fn new(device: &VerbsDevice, requests: usize) -> Result<CompletionQueue, VerbsError> {
        let channel = CompletionChannel::new(device)?;
        let (context, room) = (device.context(), requests as i32 + 1);
        // SAFETY: the context and the channel are open, and stay so as long as the queue is.
        let queue = unsafe {
            let channel = channel.channel.as_ptr();
            (device.verbs().create_cq)(context, room, std::ptr::null_mut(), channel, 0)
        };
        let queue = NonNull::new(queue).ok_or_else(|| VerbsError::last("ibv_create_cq"))?;
        Ok(CompletionQueue { queue, channel, device: device.clone() })
    }

    fn poll(&mut self) -> Result<Vec<Completion>, VerbsError> {
        // SAFETY: zero is a valid value of each field.
        let mut entries: [IbvWc; COMPLETIONS_MAX] = unsafe { std::mem::zeroed() };
        let queue = self.queue.as_ptr();
        // SAFETY: the queue is open, and there is room for as many as are asked for.
        let count = unsafe { poll_cq(queue, COMPLETIONS_MAX as i32, entries.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::of_code("ibv_poll_cq", count));
        };
        let completion = |entry: &IbvWc| Completion {
            number: entry.wr_id(),
            failure: entry.error().map(|(status, _)| status),
        };
        Ok(entries[..count].iter().map(completion).collect())
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        let queue = self.queue.as_ptr();
        // SAFETY: the queue is open.
        match unsafe { req_notify_cq(queue, 0) } {
            0 => Ok(()),
            code => Err(VerbsError::of_code("ibv_req_notify_cq", code)),
        }
    }

    async fn wait(&mut self) -> io::Result<()> {
        let Some(watched) = &self.channel.watched else { return Ok(()) };
        loop {
            let mut ready = watched.readable().await?;
            match self.take_message() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a message of the channel. `WouldBlock` if there is none.
    fn take_message(&self) -> io::Result<()> {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (verbs, channel) = (self.device.verbs(), self.channel.channel.as_ptr());
        // SAFETY: the channel is open.
        if unsafe { (verbs.get_cq_event)(channel, &raw mut queue, &raw mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: each message is acknowledged once, so that the queue can be destroyed.
        unsafe { (verbs.ack_cq_events)(queue, 1) };
        Ok(())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue is open, its queue pair is gone, and its messages are acknowledged.
        let code = unsafe { (self.device.verbs().destroy_cq)(self.queue.as_ptr()) };
        if code != 0 {
            tracing::debug!(code, "ibv_destroy_cq failed");
        }
    }
}

/// The library's text for the status of a completion.
pub(super) fn status_text(device: &VerbsDevice, status: u32) -> String {
    // SAFETY: the function knows every number, and returns a constant text.
    let text = unsafe { std::ffi::CStr::from_ptr((device.verbs().wc_status_str)(status)) };
    text.to_string_lossy().into_owned()
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("device", self.device()).finish_non_exhaustive()
    }
}
