//! The cameras: each is a producer on a connection of its own, to a partition of its own.
//!
//! A sample is true at one moment, which is its record's timestamp, and is sent with a random
//! delay, as over a network. The times of its sending and its response are recorded, by the clock
//! that the server uses too. They determine what a cut must contain and what it cannot.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use kafka_protocol::messages::{ProduceRequest, TopicName};

use super::mesh::CameraMesh;
use crate::batch::BenchBatch;
use crate::connection::{BenchConnection, check_error_code};
use crate::sender::{BenchAcks, produce_frame};

/// The times at which samples are true, and at which they are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplePace {
    /// Milliseconds between two samples.
    pub(crate) interval_ms: u64,
    /// The mean of the delays in milliseconds; they are uniform between zero and twice that.
    pub(crate) delay_ms: u64,
    /// The seed of the delays.
    pub(crate) seed: u64,
    /// True if samples wait for the moment at which they are due, false if they go out one after
    /// the other.
    pub(crate) is_real: bool,
}

impl SamplePace {
    /// The delay from the moment at which a sample is true until it is due to be sent.
    fn delay(&self, camera: usize, sample: usize) -> Duration {
        let share = super::chance(self.seed, &[camera as u64, sample as u64]);
        Duration::from_micros((share * 2.0 * self.delay_ms as f64 * 1e3) as u64)
    }
}

/// The first moment of a run by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOrigin {
    pub(crate) instant: Instant,
    /// Milliseconds since 1970.
    pub(crate) wall_ms: u64,
}

impl RunOrigin {
    /// The next full millisecond that is at least so far ahead.
    pub(crate) fn ahead(by: Duration) -> Result<RunOrigin> {
        let (instant, wall) = (Instant::now(), wall()?);
        let target = wall + by;
        let wall_ms = target.as_millis() as u64 + 1;
        Ok(RunOrigin { instant: instant + (Duration::from_millis(wall_ms) - wall), wall_ms })
    }
}

fn wall() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleTiming {
    /// The time at which it was due, if it had to wait for that.
    due: Option<Instant>,
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
    /// The same in milliseconds since 1970.
    pub(crate) sent_ms: u64,
    pub(crate) answered_ms: u64,
}

impl SampleTiming {
    /// The lateness of its sending.
    pub(crate) fn late(&self) -> Duration {
        self.due.map_or(Duration::ZERO, |due| self.sent.saturating_duration_since(due))
    }
}

/// The timings of all samples, camera by camera.
pub(crate) type SampleTimings = Vec<Vec<SampleTiming>>;

/// One camera, with everything that it will send.
pub(crate) struct Camera {
    connection: BenchConnection,
    version: i16,
    frames: Vec<Vec<u8>>,
}

impl Camera {
    /// Connects the camera, and encodes what it will see of each picture of the film.
    pub(crate) fn prepare(
        address: SocketAddr,
        topic: &TopicName,
        mesh: CameraMesh,
        camera: usize,
        film: &[Vec<f32>],
        origin: RunOrigin,
        pace: SamplePace,
    ) -> Result<Camera> {
        let connection = BenchConnection::open(address)?;
        let version = connection.version::<ProduceRequest>(3..=10)?;
        let frame = |(sample, surface): (usize, &Vec<f32>)| {
            let true_at = origin.wall_ms + sample as u64 * pace.interval_ms;
            let value = mesh.tile(surface, camera, sample).encode();
            let batch = BenchBatch::single(&value, i64::try_from(true_at)?).to_vec();
            produce_frame(topic, &[camera as i32], &batch, BenchAcks::All, version)
        };
        let frames = film.iter().enumerate().map(frame).collect::<Result<_>>()?;
        Ok(Camera { connection, version, frames })
    }

    fn send(&mut self, sample: usize, due: Option<Instant>) -> Result<SampleTiming> {
        if let Some(due) = due {
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let (sent, sent_ms) = (Instant::now(), wall()?.as_millis() as u64);
        let id = self.connection.writer.send(&mut self.frames[sample])?;
        let (answered_id, response) =
            self.connection.reader.next_response::<ProduceRequest>(self.version)?;
        let (answered, answered_ms) = (Instant::now(), wall()?.as_millis() as u64);
        ensure!(answered_id == id, "answers are out of order. expected={id}, got={answered_id}");
        let partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        for partition in partitions {
            check_error_code(partition.error_code)
                .with_context(|| format!("send sample {sample}"))?;
        }
        Ok(SampleTiming { due, sent, answered, sent_ms, answered_ms })
    }

    fn run(
        &mut self,
        camera: usize,
        origin: RunOrigin,
        pace: SamplePace,
    ) -> Result<Vec<SampleTiming>> {
        let samples = self.frames.len();
        let send = |sample: usize| {
            let true_at = Duration::from_millis(sample as u64 * pace.interval_ms);
            let due = origin.instant + true_at + pace.delay(camera, sample);
            self.send(sample, pace.is_real.then_some(due))
        };
        (0..samples).map(send).collect()
    }
}

/// Runs all cameras until each has sent everything.
pub(crate) fn run(
    cameras: Vec<Camera>,
    origin: RunOrigin,
    pace: SamplePace,
) -> Result<SampleTimings> {
    let ready = Arc::new(Barrier::new(cameras.len()));
    let start = |(number, mut camera): (usize, Camera)| {
        let ready = Arc::clone(&ready);
        thread::Builder::new().stack_size(256 << 10).spawn(move || {
            ready.wait();
            camera.run(number, origin, pace)
        })
    };
    let runs: Vec<_> =
        cameras.into_iter().enumerate().map(start).collect::<std::io::Result<_>>()?;
    runs.into_iter().map(|run| run.join().map_err(|_| anyhow!("a camera panicked"))?).collect()
}
