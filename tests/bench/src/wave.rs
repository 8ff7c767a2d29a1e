//! `freezeframe-bench wave`: reproduces figure 1 of the paper on FFFS.
//!
//! A wave runs through a tank. A hundred cameras look at ten by ten cells each, twenty times a
//! second, and send what they see over connections of their own. Then movies are assembled from
//! what the broker has: one picture every 100 ms, from the newest records at that time, or as of a
//! moment of system time, or of user time. The errors of each picture are counted.

mod canvas;
mod draw;
mod mesh;
mod movie;
mod plot;
mod reader;
mod stream;
mod water_tank;
mod wave_run;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::rng::{GAMMA, mix};

use self::mesh::CameraMesh;
use self::movie::WaveMovie;
use self::stream::SamplePace;
use self::wave_run::{WavePlan, WaveRun};
use crate::connection::resolve;
use crate::report::{ReportFormat, align_right, number, table};

/// Milliseconds between two samples of a camera: 20 a second.
const SAMPLE_MS: u64 = 50;
/// Milliseconds between two frames of a movie.
const FRAME_MS: u64 = 100;

const LATE_WARNING_MS: f64 = 5.0;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WaveWork {
    /// The server's address, HOST:PORT
    #[arg(long, short, default_value = "127.0.0.1:9092")]
    bootstrap: String,

    /// A stock Kafka broker's address, HOST:PORT, for the movies that can be made with one
    #[arg(long)]
    kafka: Option<String>,

    /// Cameras along a side of the mesh: 10 are 100 streams
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=20))]
    side: u64,

    /// Frames of each movie
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    frames: u64,

    /// Milliseconds from a sample's moment to its sending, on average; they lie between none and
    /// twice that
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=20))]
    delay_ms: u64,

    /// Milliseconds from a sample's moment to that of the frame
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..SAMPLE_MS))]
    phase_ms: u64,

    /// Loops that share the cameras, in the movie of a reader that polls one camera after the other
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    loops: u64,

    /// The seed of the places where drops fall, and of the delays of samples
    #[arg(long, default_value_t = 37)]
    seed: u64,

    /// Write results.json, error.svg, a strip of frames and the animation into this directory
    #[arg(long)]
    out: Option<PathBuf>,

    /// Write every frame of every movie as a PNG into this directory too
    #[arg(long)]
    all_frames: Option<PathBuf>,
}

/// A number in [0, 1) that depends only on the seed and `about`.
fn chance(seed: u64, about: &[u64]) -> f64 {
    let bits = about.iter().fold(mix(seed.wrapping_add(GAMMA)), |state, word| {
        mix(state.wrapping_add(GAMMA) ^ mix(word.wrapping_add(GAMMA)))
    });
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

impl WaveWork {
    fn plan(&self) -> WavePlan {
        let mesh = CameraMesh { side: self.side as usize };
        let samples = (self.frames * FRAME_MS / SAMPLE_MS + 2) as usize;
        let at_rest =
            vec![water_tank::WaterTank::at_rest(mesh.cells_side()).surface(); wave_run::LEAD];
        WavePlan {
            mesh,
            topic: wave_run::TOPIC,
            film: [at_rest, water_tank::film(mesh.cells_side(), samples, SAMPLE_MS, self.seed)]
                .concat(),
            pace: SamplePace {
                interval_ms: SAMPLE_MS,
                delay_ms: self.delay_ms,
                seed: self.seed,
                is_real: true,
            },
            frames: self.frames as usize,
            phase_ms: self.phase_ms,
            loops: self.loops as usize,
        }
    }
}

/// Runs it, and prints how wrong each movie is.
///
/// # Errors
///
/// Also if the movie by user time has an error, or the one by system time differs by more than
/// delay: this program exists to find that.
pub(crate) fn run(work: &WaveWork, format: ReportFormat) -> Result<()> {
    let brokers = [Some(&work.bootstrap), work.kafka.as_ref()];
    let addresses: Vec<SocketAddr> =
        brokers.into_iter().flatten().map(|it| resolve(it)).collect::<Result<_>>()?;
    for directory in [&work.out, &work.all_frames].into_iter().flatten() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("create {}", directory.display()))?;
    }
    let plan = work.plan();
    let ours = wave_run::ours(&plan, addresses[0]).context("run the wave")?;
    let theirs = match addresses.get(1) {
        Some(address) => Some(wave_run::theirs(&plan, *address).context("run the wave at Kafka")?),
        None => None,
    };
    let runs: Vec<&WaveRun> = [Some(&ours), theirs.as_ref()].into_iter().flatten().collect();
    let movies: Vec<&WaveMovie> = runs.iter().flat_map(|run| &run.movies).collect();
    let results = results(work, &runs, &movies);
    match format {
        ReportFormat::JsonLines => println!("{results}"),
        ReportFormat::Table => show(&runs, &movies),
    }
    if let Some(directory) = &work.out {
        write(directory, &plan, &movies, &results)?;
    }
    if let Some(directory) = &work.all_frames {
        draw::write_all(directory, &plan, &movies)?;
    }
    check(&ours)
}

/// Checks what must hold, whatever else the machine does.
fn check(ours: &WaveRun) -> Result<()> {
    let by_user = ours.movie("c");
    ensure!(
        by_user.frames_with_errors() == 0,
        "the movie by user time shows wrong cells. frames={}",
        by_user.frames_with_errors()
    );
    let by_system = ours.movie("b");
    ensure!(
        ours.beyond_delay == 0 && by_system.unclosed_frames() == 0,
        "the movie by system time differs by more than delay. tiles={}, frames_not_closed={}",
        ours.beyond_delay,
        by_system.unclosed_frames()
    );
    Ok(())
}

fn results(work: &WaveWork, runs: &[&WaveRun], movies: &[&WaveMovie]) -> Value {
    json!({
        "cameras": work.side * work.side, "frames": work.frames, "seed": work.seed,
        "sample_ms": SAMPLE_MS, "frame_ms": FRAME_MS, "delay_ms": work.delay_ms,
        "phase_ms": work.phase_ms, "loops": work.loops,
        "runs": runs.iter().map(|run| run.json()).collect::<Vec<_>>(),
        "movies": movies.iter().map(|movie| movie.json()).collect::<Vec<_>>(),
    })
}

fn show(runs: &[&WaveRun], movies: &[&WaveMovie]) {
    let header = [
        "movie",
        "wrong cells (mean)",
        "RMSE mm (mean)",
        "RMSE mm (max)",
        "frames with errors",
        "frames not closed",
        "moments in a frame",
        "samples behind",
    ];
    let mut table = table(header.map(str::to_owned).to_vec());
    for movie in movies {
        table.add_row([
            movie.title.clone(),
            number(movie.wrong_cells_mean()),
            number(movie.rmse_mm_mean()),
            number(movie.rmse_mm_max()),
            movie.frames_with_errors().to_string(),
            movie.unclosed_frames().to_string(),
            movie.moments_max().to_string(),
            movie.behind_range().0.to_string(),
        ]);
    }
    align_right(&mut table, 1..);
    println!("{table}");
    for run in runs {
        println!("{}", run.summary());
        let late = run.late_ms(99.0);
        if late > LATE_WARNING_MS {
            println!(
                "warning: the machine did not keep the pace: one sample in a hundred was sent {late:.1} ms late or later"
            );
        }
    }
}

fn write(directory: &Path, plan: &WavePlan, movies: &[&WaveMovie], results: &Value) -> Result<()> {
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    };
    write("results.json", format!("{results}\n").as_bytes())?;
    write("error.svg", plot::errors(movies, FRAME_MS)?.as_bytes())?;
    write("frames.png", &draw::strip(plan, movies)?)?;
    write("wave.png", &draw::animation(plan, movies, FRAME_MS)?)
}

#[cfg(test)]
mod tests;
