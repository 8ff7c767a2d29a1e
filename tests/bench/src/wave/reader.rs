//! Reads photos with requests that every Kafka client has, from any broker that supports them.
//!
//! A photo of the past is the last record of each partition of a moment topic. By Kafka's own means
//! it is the record before the offset that ListOffsets finds for a time. While cameras send, a
//! reader shows what it got last ([`LiveScreen`]), over a network delay like the cameras'.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kafka_protocol::messages::{
    FetchRequest, TopicName,
    fetch_request::{FetchPartition, FetchTopic},
};
use kafka_protocol::protocol::StrBytes;

use super::mesh::{CameraTile, MeshPhoto};
use super::stream::RunOrigin;
use crate::batch::{BatchCheck, batches};
use crate::connection::{BenchConnection, check_error_code};
use crate::topic::{LATEST, offsets};

const NONE: i64 = -1;
/// Some tiles; one is a little more than 400 bytes.
const PARTITION_BYTES_MAX: i32 = 8 << 10;
const ANSWER_BYTES_MAX: i32 = 50 << 20;

/// A record's offset, and what is in it.
type TileRecord = (i64, CameraTile);

/// One connection that reads.
pub(crate) struct PhotoReader {
    connection: BenchConnection,
    fetch_version: i16,
}

impl PhotoReader {
    pub(crate) fn connect(address: SocketAddr) -> Result<PhotoReader> {
        let connection = BenchConnection::open(address)?;
        let fetch_version = connection.version::<FetchRequest>(4..=12)?;
        Ok(PhotoReader { connection, fetch_version })
    }

    /// The offset of each camera's first record at or after `time`; −1 if there is none.
    fn offsets(&mut self, topic: &str, time: i64, cameras: usize) -> Result<Vec<i64>> {
        offsets(&mut self.connection, &topic_name(topic), cameras as u32, time)
    }

    /// Records from each offset on, if there are any: as many as fit.
    fn records(
        &mut self,
        topic: &str,
        wanted: impl Iterator<Item = (usize, i64)>,
    ) -> Result<Vec<(usize, Vec<TileRecord>)>> {
        let partitions = wanted.map(|(camera, offset)| {
            FetchPartition::default()
                .with_partition(camera as i32)
                .with_fetch_offset(offset)
                .with_partition_max_bytes(PARTITION_BYTES_MAX)
        });
        let topic = FetchTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(partitions.collect());
        let request = FetchRequest::default()
            .with_max_wait_ms(0)
            .with_min_bytes(0)
            .with_max_bytes(ANSWER_BYTES_MAX)
            .with_topics(vec![topic]);
        let response = self.connection.call(&request, self.fetch_version)?;
        check_error_code(response.error_code).context("fetch")?;
        let mut found = Vec::new();
        for data in response.responses.iter().flat_map(|topic| &topic.partitions) {
            check_error_code(data.error_code)
                .with_context(|| format!("fetch partition {}", data.partition_index))?;
            let records = data.records.as_deref().unwrap_or_default();
            let mut seen = Vec::new();
            for batch in batches(records, BatchCheck::FramingAndCrc) {
                let batch = batch?;
                for (nth, value) in batch.values()?.into_iter().enumerate() {
                    seen.push((batch.header.base_offset + nth as i64, CameraTile::decode(&value)?));
                }
            }
            found.push((usize::try_from(data.partition_index)?, seen));
        }
        Ok(found)
    }

    /// The record before each offset.
    fn before(&mut self, topic: &str, offsets: &[i64]) -> Result<MeshPhoto> {
        let mut photo = vec![None; offsets.len()];
        let wanted = offsets.iter().enumerate().filter(|(_, offset)| **offset > 0);
        let wanted = wanted.map(|(camera, offset)| (camera, offset - 1));
        for (camera, seen) in self.records(topic, wanted)? {
            let last = seen.into_iter().find(|(offset, _)| *offset == offsets[camera] - 1);
            photo[camera] = Some(last.context("a record that there is was not sent")?.1);
        }
        Ok(photo)
    }

    /// The last record of each camera in `topic`, which may be the topic of a moment.
    pub(crate) fn newest(&mut self, topic: &str, cameras: usize) -> Result<MeshPhoto> {
        let ends = self.offsets(topic, LATEST, cameras)?;
        self.before(topic, &ends)
    }

    /// The last record of each camera before `time_ms`, as far as is known, by ListOffsets: Java's
    /// `offsetsForTimes`. `pause` is called before each request.
    pub(crate) fn before_time(
        &mut self,
        topic: &str,
        time_ms: u64,
        cameras: usize,
        mut pause: impl FnMut(),
    ) -> Result<MeshPhoto> {
        pause();
        let mut offsets = self.offsets(topic, i64::try_from(time_ms)?, cameras)?;
        if offsets.contains(&NONE) {
            pause();
            let ends = self.offsets(topic, LATEST, cameras)?;
            let open = offsets.iter_mut().zip(ends).filter(|(offset, _)| **offset == NONE);
            open.for_each(|(offset, end)| *offset = end);
        }
        pause();
        self.before(topic, &offsets)
    }
}

fn topic_name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// The network delay of a reader: half of each delay is before its request, half before the
/// response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkDelay {
    pub(crate) delay_ms: u64,
    pub(crate) seed: u64,
}

impl NetworkDelay {
    fn sleep_one_way(self, who: u64, nth: u64) {
        let share = super::chance(self.seed, &[u64::MAX, who, nth]);
        thread::sleep(Duration::from_micros((share * self.delay_ms as f64 * 1e3) as u64));
    }
}

/// The latest tile of each camera that polling readers have got so far.
pub(crate) struct LiveScreen(Mutex<MeshPhoto>);

impl LiveScreen {
    pub(crate) fn blank(cameras: usize) -> LiveScreen {
        LiveScreen(Mutex::new(vec![None; cameras]))
    }

    fn photo(&self) -> Result<MeshPhoto> {
        Ok(self.0.lock().map_err(|_| anyhow!("a reader panicked"))?.clone())
    }

    /// Polls `cameras`, `together` at a time, again and again until `is_over`, and shows the
    /// newest.
    pub(crate) fn poll_until(
        &self,
        reader: &mut PhotoReader,
        topic: &str,
        cameras: &[usize],
        together: usize,
        distance: NetworkDelay,
        is_over: &AtomicBool,
    ) -> Result<()> {
        let mut positions: Vec<(usize, i64)> = cameras.iter().map(|camera| (*camera, 0)).collect();
        let who = cameras.first().map_or(0, |camera| 1 + *camera as u64);
        let mut ways = 0..;
        while !is_over.load(Ordering::Relaxed) {
            for group in positions.chunks_mut(together) {
                ways.next().into_iter().for_each(|nth| distance.sleep_one_way(who, nth));
                let found = reader.records(topic, group.iter().copied())?;
                ways.next().into_iter().for_each(|nth| distance.sleep_one_way(who, nth));
                let mut screen = self.0.lock().map_err(|_| anyhow!("a reader panicked"))?;
                for (camera, seen) in found {
                    let Some((offset, tile)) = seen.into_iter().next_back() else { continue };
                    let position = group.iter_mut().find(|(of, _)| *of == camera);
                    position.context("a partition that was not asked for")?.1 = offset + 1;
                    screen[camera] = Some(tile);
                }
            }
        }
        Ok(())
    }

    /// A photo of the screen at each of `moments`.
    pub(crate) fn photos(&self, moments: impl Iterator<Item = Instant>) -> Result<Vec<MeshPhoto>> {
        let photo = |moment: Instant| {
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            self.photo()
        };
        moments.map(photo).collect()
    }
}

/// Queries by time at each moment, while cameras send: what is known then of what was before it.
pub(crate) fn before_each(
    reader: &mut PhotoReader,
    topic: &str,
    cameras: usize,
    moments_ms: impl Iterator<Item = u64>,
    origin: RunOrigin,
    distance: NetworkDelay,
) -> Result<Vec<MeshPhoto>> {
    let mut ways = 0..;
    let photo = |moment_ms: u64| {
        let moment = origin.instant + Duration::from_millis(moment_ms - origin.wall_ms);
        thread::sleep(moment.saturating_duration_since(Instant::now()));
        let pause = || ways.next().into_iter().for_each(|nth| distance.sleep_one_way(0, nth));
        reader.before_time(topic, moment_ms + 1, cameras, pause)
    };
    moments_ms.map(photo).collect()
}
