//! The output of a connection: replies and events, in order.
//!
//! Replies and events are appended to a buffer without waiting. One task per connection writes the
//! buffer to the socket.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use admission::{BudgetKind, BudgetSource, BudgetSpec, BudgetUsage, Holder};
use bytes::{BufMut, BytesMut};
use engine_znodes::ZkCode;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use zk_wire::opcode::NOTIFICATION_XID;
use zk_wire::{ConnectResponse, JuteWriter, ReplyHeader, put_frame};

use crate::event::{WatchEvent, WatchEventKind};
use crate::traffic::{ReplyStats, RequestMark, ZkLatencies};

/// The longest time that a client gets to read the rest of the output before the end.
pub(crate) const LAST_READ_MAX: Duration = Duration::from_secs(5);

/// `SyncConnected`, the state in every event.
const CONNECTED: i32 = 3;

/// The length in front of a frame.
pub(crate) const LENGTH_BYTES: usize = 4;

/// Up to this, a connection's output is no reason to close it for the sake of others.
const UNREAD_BYTES_MIN: usize = 64 << 10;

const UNREAD: BudgetSpec = BudgetSpec {
    name: "zookeeper-unread-bytes",
    unit: "bytes",
    setting: None,
    kind: BudgetKind::Yielding,
};

/// The bytes that wait for all clients of a server. While they are more than may wait, the network
/// for which most waits loses the connections that hold most.
#[derive(Debug)]
pub(crate) struct UnreadBudget {
    bytes: AtomicUsize,
    /// The bytes of connections that were told to end.
    leaving: AtomicUsize,
    bytes_max: usize,
    /// The number of connections that were told to end.
    evictions: AtomicU64,
    shares: Mutex<Vec<Weak<UnreadShare>>>,
}

/// The bytes that wait for one client.
#[derive(Debug)]
struct UnreadShare {
    budget: Arc<UnreadBudget>,
    network: Holder,
    bytes: AtomicUsize,
    /// The number of bytes when the connection was told to end.
    leaving: AtomicUsize,
    is_evicted: AtomicBool,
    evicted: Notify,
}

impl UnreadBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<UnreadBudget> {
        let (bytes, leaving, evictions) = Default::default();
        Arc::new(UnreadBudget { bytes, leaving, bytes_max, evictions, shares: Mutex::default() })
    }

    fn share(self: &Arc<UnreadBudget>, network: &Holder) -> Arc<UnreadShare> {
        let share = Arc::new(UnreadShare {
            budget: Arc::clone(self),
            network: network.clone(),
            bytes: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
        });
        self.shares.lock().push(Arc::downgrade(&share));
        share
    }

    /// The bytes that wait for the connections that stay.
    fn staying(&self) -> usize {
        self.bytes.load(Ordering::Relaxed).saturating_sub(self.leaving.load(Ordering::Relaxed))
    }

    /// Ends the connections that hold most, of the network for which most waits, until the rest is
    /// within the limit.
    fn evict(&self) {
        let shares: Vec<_> = self.shares.lock().iter().filter_map(Weak::upgrade).collect();
        let mut staying: Vec<_> = shares
            .iter()
            .filter(|share| !share.is_evicted.load(Ordering::Relaxed))
            .map(|share| (share.bytes.load(Ordering::Relaxed), share))
            .collect();
        let mut by_network = HashMap::<&Holder, usize>::new();
        for (bytes, share) in &staying {
            *by_network.entry(&share.network).or_default() += bytes;
        }
        staying.sort_unstable_by_key(|(bytes, _)| *bytes);
        while self.staying() > self.bytes_max {
            let largest = by_network.iter().max_by_key(|(_, bytes)| **bytes);
            let Some(network) = largest.map(|(network, _)| *network) else { return };
            let heaviest = staying
                .iter()
                .rposition(|(bytes, share)| share.network == *network && *bytes > UNREAD_BYTES_MIN);
            let Some((bytes, share)) = heaviest.map(|nth| staying.remove(nth)) else {
                by_network.remove(network);
                continue;
            };
            if let Some(total) = by_network.get_mut(network) {
                *total -= bytes;
            }
            if share.is_evicted.swap(true, Ordering::Relaxed) {
                continue;
            }
            tracing::debug!(bytes, "a ZooKeeper client does not read, and others need the memory");
            share.leaving.store(bytes, Ordering::Relaxed);
            self.leaving.fetch_add(bytes, Ordering::Relaxed);
            self.evictions.fetch_add(1, Ordering::Relaxed);
            share.evicted.notify_one();
        }
    }
}

impl BudgetSource for UnreadBudget {
    fn usage(&self) -> BudgetUsage {
        let shares: Vec<_> = self.shares.lock().iter().filter_map(Weak::upgrade).collect();
        let network_bytes =
            shares.iter().map(|share| (&share.network, share.bytes.load(Ordering::Relaxed) as u64));
        let evictions = self.evictions.load(Ordering::Relaxed);
        BudgetUsage::of_parts(&UNREAD, self.bytes_max as u64, evictions, network_bytes)
    }
}

impl UnreadShare {
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.budget.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for UnreadShare {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
        self.budget.leaving.fetch_sub(*self.leaving.get_mut(), Ordering::Relaxed);
        // The shares without a strong reference are this one, and others that are being dropped.
        self.budget.shares.lock().retain(|share| share.strong_count() > 0);
    }
}

#[derive(Debug, Default)]
struct OutputState {
    buffer: BytesMut,
    /// The number of bytes that were taken from the buffer and are being written.
    sending: usize,
    /// Nothing is appended any more. The rest is still sent.
    ended: bool,
    stats: ReplyStats,
}

impl OutputState {
    fn unread(&self) -> usize {
        self.buffer.len() + self.sending
    }
}

/// The output of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionOutput {
    state: Mutex<OutputState>,
    filled: Notify,
    drained: Notify,
    ending: Notify,
    /// A client that does not read its events is cut off once so many bytes wait.
    bytes_max: usize,
    share: Arc<UnreadShare>,
    /// The latencies of the server.
    latencies: Arc<ZkLatencies>,
}

impl ConnectionOutput {
    pub(crate) fn new(
        bytes_max: usize,
        budget: &Arc<UnreadBudget>,
        network: &Holder,
        latencies: &Arc<ZkLatencies>,
    ) -> ConnectionOutput {
        ConnectionOutput {
            state: Mutex::default(),
            filled: Notify::new(),
            drained: Notify::new(),
            ending: Notify::new(),
            bytes_max,
            share: budget.share(network),
            latencies: Arc::clone(latencies),
        }
    }

    /// True if `bytes` may wait for the client. The connection is closed once more wait.
    pub(crate) fn may_hold(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max
    }

    /// Appends a reply, with a body unless it is an error.
    pub(crate) fn reply(
        &self,
        request: RequestMark,
        zxid: i64,
        result: Result<impl FnOnce(&mut BytesMut), ZkCode>,
    ) {
        let err = result.as_ref().err().map_or(0, |code| code.number());
        self.reply_with_body(request, zxid, err, |out| {
            if let Ok(body) = result {
                body(out);
            }
        });
    }

    /// Appends a reply of a header only.
    pub(crate) fn reply_header(&self, request: RequestMark, zxid: i64, result: Result<(), ZkCode>) {
        self.reply(request, zxid, result.map(|()| |_: &mut BytesMut| ()));
    }

    /// Appends a reply whose body comes also with an error.
    pub(crate) fn reply_with_body(
        &self,
        request: RequestMark,
        zxid: i64,
        err: i32,
        body: impl FnOnce(&mut BytesMut),
    ) {
        let header = ReplyHeader { xid: request.xid, zxid, err };
        if err != 0 {
            request.span.record("zookeeper.error", err);
        }
        self.push(Some((request, zxid)), |out| {
            header.write(out);
            body(out);
        });
    }

    pub(crate) fn event(&self, event: &WatchEvent<'_>) {
        let WatchEvent { kind, path, zxid } = event;
        self.push(None, |out| {
            ReplyHeader { xid: NOTIFICATION_XID, zxid: *zxid, err: 0 }.write(out);
            out.int(match kind {
                WatchEventKind::Created => 1,
                WatchEventKind::Deleted => 2,
                WatchEventKind::DataChanged => 3,
                WatchEventKind::ChildrenChanged => 4,
            });
            out.int(CONNECTED);
            out.string(Some(path));
        });
    }

    pub(crate) fn connected(&self, response: &ConnectResponse) {
        self.push(None, |out| response.write(out));
    }

    /// Appends bytes that are no frame.
    pub(crate) fn text(&self, text: &str) {
        let mut state = self.state.lock();
        self.share.add(text.len());
        state.buffer.put_slice(text.as_bytes());
        drop(state);
        self.filled.notify_one();
    }

    /// The statistics of the replies on the connection.
    pub(crate) fn stats(&self) -> ReplyStats {
        self.state.lock().stats
    }

    pub(crate) fn change_stats(&self, change: impl FnOnce(&mut ReplyStats)) {
        change(&mut self.state.lock().stats);
    }

    /// Appends a frame: the reply to a request with its zxid, or something else.
    fn push(&self, reply: Option<(RequestMark, i64)>, write: impl FnOnce(&mut BytesMut)) {
        let mut state = self.state.lock();
        if state.ended || self.share.is_evicted.load(Ordering::Relaxed) {
            return;
        }
        let before = state.buffer.len();
        put_frame(&mut state.buffer, write);
        let frame_bytes = state.buffer.len() - before;
        self.share.add(frame_bytes);
        state.stats.sent();
        if let Some((request, zxid)) = reply {
            let is_write = request.is_write;
            let bytes = (frame_bytes - LENGTH_BYTES) as u64;
            let latency = state.stats.replied(request, zxid, bytes);
            self.latencies.record(is_write, latency);
        }
        let unread = state.unread();
        if !self.may_hold(unread) {
            tracing::debug!(
                bytes = unread,
                "a ZooKeeper client does not read; its connection is closed"
            );
            self.clear(&mut state);
            state.ended = true;
        }
        let has_ended = state.ended;
        drop(state);
        let budget = &self.share.budget;
        if budget.staying() > budget.bytes_max {
            budget.evict();
        }
        self.filled.notify_one();
        if has_ended {
            self.ending.notify_one();
        }
    }

    fn clear(&self, state: &mut OutputState) {
        self.share.release(state.buffer.len());
        state.buffer.clear();
    }

    /// Ends the output: the rest is sent, if the client reads it soon, and then the connection is
    /// closed.
    pub(crate) fn end(&self) {
        self.end_with(|_, _| ());
    }

    /// Ends it at once: nothing more is sent. A reply that comes meanwhile must not be sent either:
    /// those before it would be missing.
    pub(crate) fn cut(&self) {
        self.end_with(ConnectionOutput::clear);
    }

    fn end_with(&self, change: impl FnOnce(&ConnectionOutput, &mut OutputState)) {
        let mut state = self.state.lock();
        change(self, &mut state);
        state.ended = true;
        drop(state);
        self.filled.notify_one();
        self.drained.notify_one();
        self.ending.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Waits until at most `bytes` wait to be sent, or it has ended.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        loop {
            let drained = self.drained.notified();
            let has_room = {
                let state = self.state.lock();
                // Bytes that are being written count only if they are many: while the client reads
                // a long reply, its pings are taken, but not a second long one.
                state.ended || state.buffer.len() <= bytes && state.unread() <= self.bytes_max / 2
            };
            if has_room {
                return;
            }
            drained.await;
        }
    }

    /// Waits until it has ended.
    pub(crate) async fn wait_for_end(&self) {
        loop {
            let ending = self.ending.notified();
            if self.has_ended() {
                return;
            }
            ending.await;
        }
    }

    /// Waits until it has ended, and for as long as a client then gets to read the rest.
    async fn given_time_to_read(&self) {
        self.wait_for_end().await;
        tokio::time::sleep(LAST_READ_MAX).await;
    }

    /// Writes to `stream` until the output ends, or the stream fails.
    pub(crate) async fn write_to(&self, stream: &mut (impl AsyncWrite + Unpin)) {
        tokio::select! {
            biased;
            () = self.share.evicted.notified() => self.cut(),
            () = self.write_all_to(stream) => {}
        }
    }

    async fn write_all_to(&self, stream: &mut (impl AsyncWrite + Unpin)) {
        loop {
            let filled = self.filled.notified();
            let (bytes, has_ended) = {
                let mut state = self.state.lock();
                state.sending = state.buffer.len();
                (state.buffer.split(), state.ended)
            };
            self.drained.notify_one();
            if bytes.is_empty() {
                if has_ended {
                    // TLS says so, and may have to wait for that.
                    let _ = tokio::time::timeout(LAST_READ_MAX, stream.shutdown()).await;
                    return;
                }
                filled.await;
                continue;
            }
            tokio::select! {
                biased;
                written = write_all(stream, &bytes) => match written {
                    Ok(()) => {
                        self.state.lock().sending = 0;
                        self.share.release(bytes.len());
                        self.drained.notify_one();
                    }
                    Err(_) => return,
                },
                () = self.given_time_to_read() => return,
            }
        }
    }
}

async fn write_all(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    // TLS may still hold the last of it.
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn network(name: &str) -> Holder {
        Holder::principal(name, false)
    }

    fn reply(output: &ConnectionOutput, bytes: usize) {
        let request = RequestMark {
            xid: 1,
            received_at: tokio::time::Instant::now(),
            is_write: false,
            span: tracing::Span::none(),
        };
        output.reply(request, 1, Ok(|out: &mut BytesMut| out.put_bytes(7, bytes)));
    }

    #[tokio::test]
    async fn what_is_being_written_counts_as_unread() {
        let output = ConnectionOutput::new(
            2 * MIB,
            &UnreadBudget::new(100 * MIB),
            &network("a"),
            &Arc::default(),
        );
        reply(&output, MIB);
        let (mut stream, _theirs) = tokio::io::duplex(16);
        let writing = output.write_to(&mut stream);
        tokio::pin!(writing);
        assert!(futures_util::poll!(&mut writing).is_pending(), "the client does not read");
        reply(&output, MIB / 2);
        assert!(!output.has_ended());
        reply(&output, MIB);
        assert!(output.has_ended());
    }

    #[tokio::test]
    async fn those_that_hold_most_end_once_all_hold_too_much() {
        let budget = UnreadBudget::new(4 * MIB);
        let [heavy, medium, small] = [(); 3]
            .map(|()| ConnectionOutput::new(100 * MIB, &budget, &network("a"), &Arc::default()));
        reply(&heavy, 3 * MIB);
        let (mut stream, _theirs) = tokio::io::duplex(16);
        let mut writing = Box::pin(heavy.write_to(&mut stream));
        assert!(futures_util::poll!(&mut writing).is_pending(), "nobody else needs it");
        reply(&medium, MIB / 2);
        assert!(futures_util::poll!(&mut writing).is_pending());
        reply(&small, MIB);
        assert!(futures_util::poll!(&mut writing).is_ready(), "it is another one that adds to it");
        assert!(heavy.has_ended() && !medium.has_ended() && !small.has_ended());
        drop(writing);
        drop((heavy, medium, small));
        assert_eq!(budget.bytes.load(Ordering::Relaxed), 0);
        assert!(budget.shares.lock().is_empty());
    }

    #[tokio::test]
    async fn the_network_that_holds_most_makes_room_and_not_the_heaviest_connection() {
        let budget = UnreadBudget::new(4 * MIB);
        let output_of_a = ConnectionOutput::new(100 * MIB, &budget, &network("a"), &Arc::default());
        let outputs_of_b: Vec<_> = (0..5)
            .map(|_| ConnectionOutput::new(100 * MIB, &budget, &network("b"), &Arc::default()))
            .collect();
        reply(&output_of_a, 3 * MIB / 2);
        outputs_of_b.iter().for_each(|output| reply(output, MIB));
        let evicted = |output: &ConnectionOutput| output.share.is_evicted.load(Ordering::Relaxed);
        assert!(!evicted(&output_of_a));
        assert_eq!(outputs_of_b.iter().filter(|output| evicted(output)).count(), 3);
    }
}
