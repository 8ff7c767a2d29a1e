//! `freezeframe-bench files`: a mounted directory compared with one of an ordinary file system, in
//! one run.
//!
//! Ordinary programs and system calls run on both in turn, round by round. Each figure is the
//! median of its rounds. The loads are those of the papers on PostMark (`M11`) and GDPFS
//! (`G17`–`G23`), and reading the bytes of a partition or a moment through the mount.

mod calls;
mod postmark;
mod project;
mod sequential_read;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::report::{FigureDirection, ReportFormat, align_right, table};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FilesWork {
    /// The load
    #[arg(value_enum)]
    load: FileLoad,

    /// A directory of the mount, to be written to: its files/, or something in it
    #[arg(long, value_name = "DIR")]
    mounted: PathBuf,

    /// A directory of an ordinary file system, best on the disk that holds the server's data
    #[arg(long, value_name = "DIR")]
    beside: PathBuf,

    /// A file of the mount to read, such as topics/TOPIC/0.log, now or in .at/; for `read`. May be
    /// given more than once
    #[arg(long, value_name = "FILE")]
    read: Vec<PathBuf>,

    /// Rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum FileLoad {
    /// Sequential reads of --read's files: cold, and again (G23)
    Read,
    /// 500 files of 8 to 32 KiB, 2000 transactions (M11)
    Postmark,
    /// Copy, unpack and build a generated C project (G17-G20)
    Project,
    /// Make 3000 files; open, append 128 KiB and close 100 times, also with fsync (G21, G22)
    Calls,
    /// All of them
    All,
}

/// The result of one round on one side.
pub(super) struct FileMeasurement {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) better: FigureDirection,
    pub(super) value: f64,
}

impl FileMeasurement {
    pub(super) fn rate(name: impl Into<String>, unit: &'static str, value: f64) -> FileMeasurement {
        FileMeasurement { name: name.into(), unit, better: FigureDirection::Higher, value }
    }

    pub(super) fn time(name: impl Into<String>, time: Duration) -> FileMeasurement {
        let value = time.as_secs_f64() * 1e3;
        FileMeasurement { name: name.into(), unit: "ms", better: FigureDirection::Lower, value }
    }
}

/// A figure of both sides, over all rounds.
struct FileFigure {
    first: FileMeasurement,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// The result of `act` and its duration.
pub(super) fn timed<T>(act: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    let done = act()?;
    Ok((done, begun.elapsed()))
}

/// Runs the selected loads.
pub(crate) fn run(work: &FilesWork, format: ReportFormat) -> Result<()> {
    ensure!(work.load != FileLoad::Read || !work.read.is_empty(), "name a file to --read");
    let asked = |load| work.load == load || work.load == FileLoad::All;
    let mut figures = Vec::new();
    if asked(FileLoad::Read) {
        for file in &work.read {
            let copy = sequential_read::copy(file, &work.beside)?;
            let read = |path: &Path| sequential_read::read(file, path);
            run_rounds(work.rounds, [file, &copy], read, &mut figures)?;
            std::fs::remove_file(&copy).context("remove the copy")?;
        }
    }
    if asked(FileLoad::Postmark) {
        run_in_both(work, postmark::run, &mut figures)?;
    }
    if asked(FileLoad::Project) {
        let project = project::SampleProject::create(&work.beside)?;
        run_in_both(work, |directory| project.run(directory), &mut figures)?;
        project.remove()?;
    }
    if asked(FileLoad::Calls) {
        run_in_both(work, calls::run, &mut figures)?;
    }
    show(&figures, format);
    Ok(())
}

/// Runs a load in an empty directory on each side, which is removed afterwards.
fn run_in_both(
    work: &FilesWork,
    run: impl Fn(&Path) -> Result<Vec<FileMeasurement>>,
    figures: &mut Vec<FileFigure>,
) -> Result<()> {
    let name = format!("freezeframe-bench-{}", std::process::id());
    let sides = [work.mounted.join(&name), work.beside.join(&name)];
    let fresh = |directory: &Path| {
        let shown = || format!("in {}", directory.display());
        std::fs::create_dir(directory).with_context(shown)?;
        let found = run(directory).with_context(shown);
        std::fs::remove_dir_all(directory).with_context(shown)?;
        found
    };
    run_rounds(work.rounds, [&sides[0], &sides[1]], fresh, figures)
}

fn run_rounds(
    rounds: u32,
    sides: [&Path; 2],
    run: impl Fn(&Path) -> Result<Vec<FileMeasurement>>,
    figures: &mut Vec<FileFigure>,
) -> Result<()> {
    let begin = figures.len();
    for _ in 0..rounds {
        let (ours, theirs) = (run(sides[0])?, run(sides[1])?);
        if figures.len() == begin {
            let bare =
                |found: &FileMeasurement| FileMeasurement { name: found.name.clone(), ..*found };
            let empty = |found| FileFigure { first: bare(found), ours: vec![], theirs: vec![] };
            figures.extend(ours.iter().map(empty));
        }
        for (figure, (our, their)) in figures[begin..].iter_mut().zip(ours.iter().zip(&theirs)) {
            figure.ours.push(our.value);
            figure.theirs.push(their.value);
        }
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn show(figures: &[FileFigure], format: ReportFormat) {
    let header = ["", "mounted", "beside", "ratio", "better"];
    let mut table = table(header.map(str::to_owned).into());
    for FileFigure { first, ours, theirs } in figures {
        let (our, their) = (median(ours), median(theirs));
        let better = if first.better == FigureDirection::Higher { "higher" } else { "lower" };
        if format == ReportFormat::JsonLines {
            let line = json!({
                "name": first.name, "unit": first.unit, "better": better, "mounted": our,
                "beside": their, "ratio": our / their, "rounds": { "mounted": ours, "beside": theirs },
            });
            println!("{line}");
        }
        table.add_row([
            format!("{} {}", first.name, first.unit),
            format!("{our:.3}"),
            format!("{their:.3}"),
            format!("{:.2}", our / their),
            better.to_owned(),
        ]);
    }
    align_right(&mut table, 1..);
    if format == ReportFormat::Table {
        println!("{table}");
    }
}

#[cfg(test)]
mod tests {
    use testkit::directory::TestDirectory;

    use super::*;

    #[test]
    fn every_load_runs_on_a_directory_and_finds_the_same_figures_each_time() {
        let scratch = TestDirectory::new();
        let directory = scratch.path();
        std::fs::create_dir_all(directory.join("a")).unwrap();
        std::fs::create_dir_all(directory.join("b")).unwrap();
        std::fs::write(directory.join("a/bytes"), vec![7; 300_000]).unwrap();
        let work = FilesWork {
            load: FileLoad::All,
            mounted: directory.join("a"),
            beside: directory.join("b"),
            read: vec![directory.join("a/bytes")],
            rounds: 1,
        };
        let mut figures = Vec::new();
        run_in_both(&work, postmark::run, &mut figures).unwrap();
        run_in_both(&work, calls::run, &mut figures).unwrap();
        let copy = sequential_read::copy(&work.read[0], &work.beside).unwrap();
        run_rounds(
            2,
            [&work.read[0], &copy],
            |path| sequential_read::read(&work.read[0], path),
            &mut figures,
        )
        .unwrap();
        assert!(figures.iter().all(|figure| figure.ours.len() == figure.theirs.len()));
        assert!(figures.iter().all(|figure| median(&figure.ours) > 0.0));
    }
}
