//! Counters of the Kafka protocol server.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::LatencyHistogram;

/// One more than the largest API key that has a counter of its own.
const KEYS: usize = 128;

/// Counters since the start. For connections, also how many are open now.
#[derive(Debug)]
pub struct KafkaMetrics {
    /// Connections that are open.
    pub connections: AtomicU64,
    pub connections_accepted: AtomicU64,
    /// Connections refused because a limit was reached.
    pub connections_refused: AtomicU64,
    /// Connections ended because their client sent a request or read a response too slowly.
    pub connections_slow: AtomicU64,
    /// Handshakes of TLS that failed.
    pub handshakes_failed: AtomicU64,
    /// Requests whose client has to wait, because it has used more than its quotas.
    pub throttled_requests: AtomicU64,
    /// The total wait of throttled requests, in milliseconds.
    pub throttled_ms: AtomicU64,
    /// Frames that are invalid, or could not be decoded.
    pub bad_frames: AtomicU64,
    /// Bytes of requests.
    pub bytes_in: AtomicU64,
    /// Bytes of responses.
    pub bytes_out: AtomicU64,
    pub records_produced: AtomicU64,
    /// Bytes of batches produced.
    pub bytes_produced: AtomicU64,
    /// Bytes of batches fetched.
    pub bytes_fetched: AtomicU64,
    /// Reads of batches whose bytes differ from those that were written.
    pub corrupt_reads: AtomicU64,
    /// Links that are open.
    pub links: AtomicU64,
    /// Bytes that links wrote into clients' memory.
    pub link_bytes_written: AtomicU64,
    /// Bytes that links read from clients' memory.
    pub link_bytes_read: AtomicU64,
    /// Bytes of payloads that had to be copied, because the arena was full.
    pub link_bytes_copied: AtomicU64,
    /// From the arrival of a produce request until its response is ready.
    pub produce_latency: LatencyHistogram,
    /// From the arrival of a fetch request until its response is ready, without the wait that its
    /// client asked for.
    pub fetch_latency: LatencyHistogram,
    /// From the arrival of a request until it is started.
    pub queue_time: LatencyHistogram,
    requests: [AtomicU64; KEYS],
}

impl Default for KafkaMetrics {
    fn default() -> KafkaMetrics {
        KafkaMetrics {
            connections: AtomicU64::default(),
            connections_accepted: AtomicU64::default(),
            connections_refused: AtomicU64::default(),
            connections_slow: AtomicU64::default(),
            handshakes_failed: AtomicU64::default(),
            throttled_requests: AtomicU64::default(),
            throttled_ms: AtomicU64::default(),
            bad_frames: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            records_produced: AtomicU64::default(),
            bytes_produced: AtomicU64::default(),
            bytes_fetched: AtomicU64::default(),
            corrupt_reads: AtomicU64::default(),
            links: AtomicU64::default(),
            link_bytes_written: AtomicU64::default(),
            link_bytes_read: AtomicU64::default(),
            link_bytes_copied: AtomicU64::default(),
            produce_latency: LatencyHistogram::default(),
            fetch_latency: LatencyHistogram::default(),
            queue_time: LatencyHistogram::default(),
            requests: [const { AtomicU64::new(0) }; KEYS],
        }
    }
}

impl KafkaMetrics {
    pub(crate) fn subtract(gauge: &AtomicU64, less: u64) {
        gauge.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn count_request(&self, api_key: i16, bytes: usize) {
        add(&self.bytes_in, bytes as u64);
        if let Some(requests) = usize::try_from(api_key).ok().and_then(|key| self.requests.get(key))
        {
            add(requests, 1);
        }
    }

    /// The name and the number of requests of each API that had any.
    pub fn requests(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.requests.iter().enumerate().filter_map(|(key, count)| {
            let count = count.load(Ordering::Relaxed);
            let api = kafka_protocol::messages::ApiKey::try_from(key as i16);
            (count > 0).then(|| (api.map_or(key.to_string(), |api| format!("{api:?}")), count))
        })
    }
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
