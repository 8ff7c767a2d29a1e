//! One run of the wave against one broker: the cameras send, readers keep up with them, and then
//! the past is read.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::mesh::{CameraMesh, MeshPhoto};
use super::movie::{
    MovieFrame, WaveMovie, answer_ms, beyond_delay, is_genuine, late_ms, longest_way_ms,
};
use super::reader::{LiveScreen, NetworkDelay, PhotoReader, before_each};
use super::stream::{Camera, RunOrigin, SamplePace, SampleTimings, run as run_cameras};
use super::{FRAME_MS, SAMPLE_MS};
use crate::topic::BenchTopic;

pub(crate) const TOPIC: &str = "mesh";
const WARM_UP_TOPIC: &str = "mesh-warm-up";
/// Frames of the run before the one that counts, in which a broker may warm up.
const WARM_UP_FRAMES: usize = 40;
/// Samples of water at rest before the first drop falls: a broker's first appends to a partition
/// are not like those that follow, and where there are a hundred Kafka has been seen to take two
/// seconds.
pub(crate) const LEAD: usize = 80;
/// From the last preparation to the first sample.
const HEAD_START: Duration = Duration::from_millis(500);

/// The scene and the options of a film.
#[derive(Clone)]
pub(crate) struct WavePlan {
    pub(crate) topic: &'static str,
    pub(crate) mesh: CameraMesh,
    /// The truth: the surface at each sample's moment.
    pub(crate) film: Vec<Vec<f32>>,
    pub(crate) pace: SamplePace,
    pub(crate) frames: usize,
    pub(crate) phase_ms: u64,
    pub(crate) loops: usize,
}

impl WavePlan {
    /// A shorter one, for a topic of its own.
    fn warm_up(&self) -> WavePlan {
        let mut plan = WavePlan { topic: WARM_UP_TOPIC, ..self.clone() };
        plan.frames = plan.frames.min(WARM_UP_FRAMES);
        plan.film.truncate(plan.expected(plan.frames - 1) + 1);
        plan
    }

    /// Frames count from 1 here: at the first moment, the drop has not fallen yet.
    fn moments_ms(&self, origin: RunOrigin) -> impl Iterator<Item = u64> {
        let first = origin.wall_ms + LEAD as u64 * SAMPLE_MS + self.phase_ms;
        (1..=self.frames as u64).map(move |frame| first + frame * FRAME_MS)
    }

    fn instants(&self, origin: RunOrigin) -> impl Iterator<Item = Instant> {
        self.moments_ms(origin)
            .map(move |ms| origin.instant + Duration::from_millis(ms - origin.wall_ms))
    }

    /// The sample that is true at the moment of a frame, which counts from 0 here.
    pub(crate) fn expected(&self, frame: usize) -> usize {
        LEAD + (frame + 1) * (FRAME_MS / SAMPLE_MS) as usize
    }
}

/// The results with one broker.
pub(crate) struct WaveRun {
    broker: &'static str,
    pub(crate) movies: Vec<WaveMovie>,
    journeys: SampleTimings,
    first_ms: u64,
    /// Tiles of the movie by system time that differ by more than delay.
    pub(crate) beyond_delay: usize,
}

/// The photos that readers took while the cameras sent.
struct LivePhotos {
    one_by_one: Vec<MeshPhoto>,
    together: Vec<MeshPhoto>,
    by_time: Vec<MeshPhoto>,
}

/// The cameras' topic, with all that they sent.
struct WaveRecording {
    /// Kept until it has been read: dropping it deletes the topic.
    _topic: BenchTopic,
    origin: RunOrigin,
    journeys: SampleTimings,
    live: LivePhotos,
}

fn record(plan: &WavePlan, address: SocketAddr) -> Result<WaveRecording> {
    let cameras = plan.mesh.cameras();
    let topic = BenchTopic::named(address, plan.topic, cameras as u32)?;
    // Created before the clock starts: this must not delay the first samples.
    let mut readers: Vec<PhotoReader> =
        (0..plan.loops + 2).map(|_| PhotoReader::connect(address)).collect::<Result<_>>()?;
    // Encoding takes a while, so a moment is chosen that is surely ahead of it, and then waited
    // for.
    let origin = RunOrigin::ahead(HEAD_START + Duration::from_millis(20 * cameras as u64))?;
    let prepare = |camera| {
        Camera::prepare(address, &topic.name, plan.mesh, camera, &plan.film, origin, plan.pace)
    };
    let senders: Vec<Camera> = (0..cameras).map(prepare).collect::<Result<_>>()?;
    ensure!(Instant::now() < origin.instant, "preparing takes too long on this machine");
    let is_over = AtomicBool::new(false);
    let (journeys, live) = thread::scope(|scope| -> Result<(SampleTimings, LivePhotos)> {
        let live = scope.spawn(|| watch(plan, &mut readers, origin, &is_over));
        let journeys = run_cameras(senders, origin, plan.pace);
        let live = live.join().map_err(|_| anyhow!("a reader panicked"))?;
        Ok((journeys?, live?))
    })?;
    Ok(WaveRecording { _topic: topic, origin, journeys, live })
}

/// The readers that keep up with the cameras, until the last frame's moment.
fn watch(
    plan: &WavePlan,
    readers: &mut [PhotoReader],
    origin: RunOrigin,
    is_over: &AtomicBool,
) -> Result<LivePhotos> {
    let cameras: Vec<usize> = (0..plan.mesh.cameras()).collect();
    let distance = NetworkDelay { delay_ms: plan.pace.delay_ms, seed: plan.pace.seed };
    let (one_by_one, together) =
        (LiveScreen::blank(cameras.len()), LiveScreen::blank(cameras.len()));
    let [by_time, at_once, loops @ ..] = readers else { unreachable!("there are two and more") };
    let shares = cameras.chunks(cameras.len().div_ceil(loops.len()));
    thread::scope(|scope| {
        let mut polls = Vec::new();
        for (reader, share) in loops.iter_mut().zip(shares) {
            let screen = &one_by_one;
            polls.push(
                scope.spawn(move || {
                    screen.poll_until(reader, plan.topic, share, 1, distance, is_over)
                }),
            );
        }
        polls.push(scope.spawn(|| {
            together.poll_until(at_once, plan.topic, &cameras, cameras.len(), distance, is_over)
        }));
        let asking = scope.spawn(|| {
            let moments = plan.moments_ms(origin);
            before_each(by_time, plan.topic, cameras.len(), moments, origin, distance)
        });
        let second = scope.spawn(|| together.photos(plan.instants(origin)));
        let first = one_by_one.photos(plan.instants(origin));
        let second = second.join();
        let asked = asking.join();
        is_over.store(true, Ordering::Relaxed);
        for poll in polls {
            poll.join().map_err(|_| anyhow!("a reader panicked"))??;
        }
        Ok(LivePhotos {
            one_by_one: first?,
            together: second.map_err(|_| anyhow!("a reader panicked"))??,
            by_time: asked.map_err(|_| anyhow!("a reader panicked"))??,
        })
    })
}

impl WaveRecording {
    fn movie(
        &self,
        plan: &WavePlan,
        name: &'static str,
        title: &str,
        photos: &[MeshPhoto],
    ) -> Result<WaveMovie> {
        let frame = |(nth, photo): (usize, &MeshPhoto)| {
            ensure!(
                is_genuine(plan.mesh, photo, &plan.film),
                "a tile shows what its camera never saw. movie={name}, frame={nth}"
            );
            Ok(MovieFrame::of(plan.mesh, photo, &plan.film, plan.expected(nth), &self.journeys))
        };
        let frames = photos.iter().enumerate().map(frame).collect::<Result<_>>()?;
        Ok(WaveMovie { name, title: title.to_owned(), frames })
    }

    fn into_run(
        self,
        broker: &'static str,
        movies: Vec<WaveMovie>,
        beyond_delay: usize,
    ) -> WaveRun {
        // The pace counts only for what was filmed.
        let journeys = self.journeys.iter().map(|ways| ways[LEAD..].to_vec()).collect();
        let first_ms = self.origin.wall_ms + LEAD as u64 * SAMPLE_MS;
        WaveRun { broker, movies, journeys, first_ms, beyond_delay }
    }
}

/// The last record of each camera as of each moment, by moment topics.
///
/// A bound is exclusive: what holds millisecond t is the moment t + 1.
pub(crate) fn photos_of_the_past(
    reader: &mut PhotoReader,
    axis: char,
    cameras: usize,
    moments_ms: impl Iterator<Item = u64>,
) -> Result<Vec<MeshPhoto>> {
    let photo = |ms: u64| {
        let topic = format!("{TOPIC}.__at.{axis}{}", ms + 1);
        reader.newest(&topic, cameras).with_context(|| format!("read {topic}"))
    };
    moments_ms.map(photo).collect()
}

/// All movies with Freezeframe.
pub(crate) fn ours(plan: &WavePlan, address: SocketAddr) -> Result<WaveRun> {
    // Deleted at the end, like the other: deleting is work too.
    let _warm_up = record(&plan.warm_up(), address)?;
    let recorded = record(plan, address)?;
    let mut reader = PhotoReader::connect(address)?;
    let moments = || plan.moments_ms(recorded.origin);
    let cameras = plan.mesh.cameras();
    let by_system = photos_of_the_past(&mut reader, 's', cameras, moments())?;
    let by_user = photos_of_the_past(&mut reader, 'u', cameras, moments())?;
    let beyond = by_system.iter().zip(moments());
    let beyond_delay =
        beyond.map(|(photo, ms)| beyond_delay(photo, ms + 1, &recorded.journeys)).sum();
    let live = &recorded.live;
    let movie = |name, title, photos: &[MeshPhoto]| recorded.movie(plan, name, title, photos);
    let movies = vec![
        movie("a", "(a) newest, one by one", &live.one_by_one)?,
        movie("a2", "(a2) newest, all at once", &live.together)?,
        movie("b", "(b) by system time", &by_system)?,
        movie("c", "(c) by user time", &by_user)?,
        movie("live", "offsetsForTimes, live", &live.by_time)?,
    ];
    Ok(recorded.into_run("Freezeframe", movies, beyond_delay))
}

/// All movies that can be made with Kafka.
pub(crate) fn theirs(plan: &WavePlan, address: SocketAddr) -> Result<WaveRun> {
    // Deleted at the end, like the other: deleting is work too.
    let _warm_up = record(&plan.warm_up(), address)?;
    let recorded = record(plan, address)?;
    let mut reader = PhotoReader::connect(address)?;
    let cameras = plan.mesh.cameras();
    let moments = plan.moments_ms(recorded.origin);
    let afterwards: Vec<MeshPhoto> = moments
        .map(|ms| reader.before_time(TOPIC, ms + 1, cameras, || ()))
        .collect::<Result<_>>()?;
    let live = &recorded.live;
    let movie = |name, title, photos: &[MeshPhoto]| recorded.movie(plan, name, title, photos);
    let movies = vec![
        movie("kafka-a", "Kafka: newest, one by one", &live.one_by_one)?,
        movie("kafka-a2", "Kafka: newest, all at once", &live.together)?,
        movie("kafka-live", "Kafka: offsetsForTimes, live", &live.by_time)?,
        movie("kafka-after", "Kafka: the same, afterwards", &afterwards)?,
    ];
    Ok(recorded.into_run("Kafka", movies, 0))
}

impl WaveRun {
    pub(crate) fn movie(&self, name: &str) -> &WaveMovie {
        let found = self.movies.iter().find(|movie| movie.name == name);
        found.expect("a run knows its movies")
    }

    pub(crate) fn late_ms(&self, percent: f64) -> f64 {
        late_ms(&self.journeys, percent)
    }

    fn longest_way_ms(&self) -> u64 {
        longest_way_ms(&self.journeys, self.first_ms, SAMPLE_MS)
    }

    /// The pace that the machine kept, in words.
    pub(crate) fn summary(&self) -> String {
        let late = [50.0, 99.0, 100.0].map(|percent| self.late_ms(percent));
        let answer = [50.0, 99.0, 100.0].map(|percent| answer_ms(&self.journeys, percent));
        format!(
            "{}: samples were sent late by {:.1} ms (median), {:.1} (p99), {:.1} (max); answered after {:.1}, {:.1}, {:.1} ms; longest way from the moment to the answer {} ms",
            self.broker,
            late[0],
            late[1],
            late[2],
            answer[0],
            answer[1],
            answer[2],
            self.longest_way_ms()
        )
    }

    pub(crate) fn json(&self) -> Value {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let three = |of: &dyn Fn(f64) -> f64| [50.0, 99.0, 100.0].map(|it| rounded(of(it)));
        json!({
            "broker": self.broker,
            "late_ms_p50_p99_max": three(&|percent| self.late_ms(percent)),
            "answer_ms_p50_p99_max": three(&|percent| answer_ms(&self.journeys, percent)),
            "longest_way_ms": self.longest_way_ms(),
            "tiles_beyond_delay": self.beyond_delay,
        })
    }
}
