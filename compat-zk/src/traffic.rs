//! The packets that connections received and sent, and the latency of their requests: for the
//! operator's words and for metrics.
//!
//! As in ZooKeeper, a connection has figures of its own, and the server has figures of all
//! connections, that of those that ended too; each can be reset. Both are kept at the connection,
//! so that connections share no counter: the server's are added up when somebody asks.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use storage::LatencyHistogram;
use tokio::time::Instant;
use tracing::Span;
use zk_wire::opcode as op;

/// A request that was received.
#[derive(Clone, Debug)]
pub(crate) struct RequestMark {
    pub(crate) xid: i32,
    pub(crate) received_at: Instant,
    pub(crate) is_write: bool,
    /// It ends with the last mark of the request, when its reply is in the output.
    pub(crate) span: Span,
}

/// The latency of requests, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LatencyStats {
    pub(crate) count: u64,
    pub(crate) sum: u64,
    min: u64,
    pub(crate) max: u64,
}

impl LatencyStats {
    fn record(&mut self, ms: u64) {
        self.min = if self.count == 0 { ms } else { self.min.min(ms) };
        self.max = self.max.max(ms);
        self.count += 1;
        self.sum += ms;
    }

    fn add(&mut self, other: &LatencyStats) {
        self.min = match (self.count, other.count) {
            (0, _) => other.min,
            (_, 0) => self.min,
            _ => self.min.min(other.min),
        };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
    }

    pub(crate) fn min(&self) -> u64 {
        self.min
    }

    /// Rounded to four digits, as ZooKeeper shows it.
    pub(crate) fn average(&self) -> f64 {
        let average = self.sum as f64 / self.count.max(1) as f64;
        (average * 10_000.0).round() / 10_000.0
    }
}

/// The sizes of replies, in bytes, with their headers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplySizes {
    pub(crate) sum: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) last: u64,
    last_at: Option<Instant>,
}

impl ReplySizes {
    fn record(&mut self, bytes: u64, now: Instant) {
        let (sum, last_at) = (bytes, Some(now));
        self.add(&ReplySizes { sum, min: bytes, max: bytes, last: bytes, last_at });
    }

    fn add(&mut self, other: &ReplySizes) {
        self.min = match (self.last_at, other.last_at) {
            (None, _) => other.min,
            (_, None) => self.min,
            _ => self.min.min(other.min),
        };
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        if other.last_at >= self.last_at {
            (self.last, self.last_at) = (other.last, other.last_at);
        }
    }
}

/// The packets that were sent, and the latency of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentStats {
    pub(crate) packets: u64,
    pub(crate) sizes: ReplySizes,
    pub(crate) reads: LatencyStats,
    pub(crate) writes: LatencyStats,
}

impl SentStats {
    fn record(&mut self, is_write: bool, ms: u64) {
        if is_write {
            self.writes.record(ms);
        } else {
            self.reads.record(ms);
        }
    }

    /// All requests.
    pub(crate) fn requests(&self) -> LatencyStats {
        let mut total = self.reads;
        total.add(&self.writes);
        total
    }
}

/// The latencies of all requests since the start. The operator's words do not reset them.
#[derive(Debug, Default)]
pub struct ZkLatencies {
    pub reads: LatencyHistogram,
    pub writes: LatencyHistogram,
}

impl ZkLatencies {
    pub(crate) fn record(&self, is_write: bool, latency: Duration) {
        let histogram = if is_write { &self.writes } else { &self.reads };
        histogram.record(latency);
    }
}

/// The replies of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplyStats {
    pub(crate) own: SentStats,
    of_server: SentStats,
    /// The zxid of the last reply.
    pub(crate) last_zxid: i64,
    pub(crate) last_latency_ms: u64,
    /// The time of the last reply.
    pub(crate) last_reply_at: Option<Instant>,
}

impl ReplyStats {
    pub(crate) fn sent(&mut self) {
        self.own.packets += 1;
        self.of_server.packets += 1;
    }

    /// Counts a reply of `bytes`, and returns the latency of its request.
    pub(crate) fn replied(&mut self, request: RequestMark, zxid: i64, bytes: u64) -> Duration {
        let now = Instant::now();
        let latency = now.duration_since(request.received_at);
        let ms = latency.as_millis() as u64;
        for stats in [&mut self.own, &mut self.of_server] {
            stats.record(request.is_write, ms);
            stats.sizes.record(bytes, now);
        }
        self.last_latency_ms = ms;
        self.last_reply_at = Some(now);
        self.last_zxid = zxid;
        latency
    }

    pub(crate) fn reset_own(&mut self) {
        self.own = SentStats::default();
    }
}

/// The requests of a connection.
#[derive(Debug)]
pub(crate) struct RequestStats {
    own: AtomicU64,
    of_server: AtomicU64,
    /// The server's figure.
    bytes: AtomicU64,
    last_opcode: AtomicI32,
    last_xid: AtomicI32,
}

impl RequestStats {
    pub(crate) fn new() -> RequestStats {
        RequestStats {
            own: AtomicU64::new(0),
            of_server: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_opcode: AtomicI32::new(NO_OPCODE),
            last_xid: AtomicI32::new(-1),
        }
    }

    /// Counts a received frame or word of `bytes`.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.own.fetch_add(1, Ordering::Relaxed);
        self.of_server.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self, opcode: i32, xid: i32) {
        self.last_opcode.store(opcode, Ordering::Relaxed);
        // Pings and the like have negative numbers.
        if xid >= 0 {
            self.last_xid.store(xid, Ordering::Relaxed);
        }
    }

    pub(crate) fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// The last request, as ZooKeeper abbreviates it.
    pub(crate) fn last_operation(&self) -> &'static str {
        match self.last_opcode.load(Ordering::Relaxed) {
            NO_OPCODE => "SESS",
            op::PING => "PING",
            op::MULTI => "MULT",
            op::MULTI_READ => "MLTR",
            op::CREATE | op::CREATE_2 | op::CREATE_TTL | op::CREATE_CONTAINER => "CREA",
            op::DELETE => "DELE",
            op::SET_DATA => "SETD",
            op::RECONFIG => "RECO",
            op::SET_ACL => "SETA",
            op::CLOSE_SESSION => "CLOS",
            op::SYNC => "SYNC",
            op::CHECK => "CHEC",
            op::EXISTS => "EXIS",
            op::GET_DATA => "GETD",
            op::SET_WATCHES => "SETW",
            op::SET_WATCHES_2 => "STW2",
            op::ADD_WATCH => "ADDW",
            op::GET_ACL => "GETA",
            op::GET_CHILDREN | op::GET_CHILDREN_2 => "GETC",
            op::GET_ALL_CHILDREN_NUMBER => "GETACN",
            op::CHECK_WATCHES => "CHKW",
            op::REMOVE_WATCHES => "REMW",
            op::WHO_AM_I => "HOMI",
            op::GET_EPHEMERALS => "GETE",
            _ => "NA",
        }
    }

    /// -1 before the first.
    pub(crate) fn last_xid(&self) -> i32 {
        self.last_xid.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_own(&self) {
        self.own.store(0, Ordering::Relaxed);
    }
}

/// No request yet.
const NO_OPCODE: i32 = 0;

/// The figures of the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerTraffic {
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent: SentStats,
}

impl ServerTraffic {
    pub(crate) fn add(&mut self, requests: &RequestStats, replies: &ReplyStats) {
        self.received += requests.of_server.load(Ordering::Relaxed);
        self.received_bytes += requests.bytes.load(Ordering::Relaxed);
        self.sent.sizes.add(&replies.of_server.sizes);
        self.sent.packets += replies.of_server.packets;
        self.sent.reads.add(&replies.of_server.reads);
        self.sent.writes.add(&replies.of_server.writes);
    }
}

/// Takes a connection's figures out of the server's.
pub(crate) fn reset_of_server(requests: &RequestStats, replies: &mut ReplyStats) {
    requests.of_server.store(0, Ordering::Relaxed);
    requests.bytes.store(0, Ordering::Relaxed);
    replies.of_server = SentStats::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_two_is_not_that_of_none() {
        let (mut empty, mut counted) = (LatencyStats::default(), LatencyStats::default());
        counted.record(7);
        counted.record(4);
        empty.add(&counted);
        counted.add(&LatencyStats::default());
        for stats in [empty, counted] {
            assert_eq!((stats.min(), stats.max, stats.count, stats.sum), (4, 7, 2, 11));
            assert_eq!(stats.average(), 5.5);
        }
    }
}
