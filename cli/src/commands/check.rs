//! `freezeframe check DIR`: reads a data directory from end to end.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use storage::Home;
use storage::check::Report;
use storage::disk::RealDisk;
use storage::journal::segment_name;

use super::topics::stamp_date;
use crate::output::Output;
use crate::table::Table;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads every byte that the journal holds and compares it with its checksums.
Nothing is changed. The server that uses the directory must be stopped. The exit
code is 0 if all is well, and 1 if not.

Examples:
  freezeframe check /var/lib/freezeframe
  freezeframe check ./freezeframe-data --json")]
pub(crate) struct Args {
    /// The data directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Checked<'a> {
    healthy: bool,
    frames: u64,
    payload_bytes: u64,
    logs: usize,
    segments: usize,
    first_ms: Option<u64>,
    last_ms: Option<u64>,
    clean: bool,
    torn_bytes: u64,
    problems: &'a [String],
}

/// Checks it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let home = Home::take_existing(&args.directory)?;
    let journal = home.journal();
    if !journal.is_dir() {
        bail!("there is no journal yet: no server has ever run in {}", args.directory.display());
    }
    let disk = RealDisk::open(&journal).context("open the journal")?;
    let (first, length) = extent(&journal).context("list the journal")?;
    let bar = progress_bar(length);
    let checked = storage::check::check(&disk, &mut |position| {
        bar.set_position(position.saturating_sub(first));
    });
    bar.finish_and_clear();
    let report = checked.context("read the journal")?;
    let mut output = Output::lock();
    if args.json {
        output.json(&Checked::of(&report))?;
    } else {
        output.table(&table(&report))?;
        for problem in &report.problems {
            output.bytes(format!("problem: {problem}\n").as_bytes())?;
        }
    }
    output.flush()?;
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("{} has a problem", args.directory.display()),
        count => bail!("{} has {count} problems", args.directory.display()),
    }
}

/// Where the journal begins, and about how many bytes there are.
fn extent(journal: &Path) -> std::io::Result<(u64, u64)> {
    let (mut first, mut length) = (u64::MAX, 0);
    for entry in fs::read_dir(journal)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
        let Ok(start) = digits.parse() else { continue };
        if segment_name(start) == name {
            first = first.min(start);
            length += entry.metadata()?.len();
        }
    }
    Ok((first, length))
}

fn progress_bar(length: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(style).expect("a template that a test draws");
    ProgressBar::new(length).with_style(style)
}

impl Checked<'_> {
    fn of(report: &Report) -> Checked<'_> {
        Checked {
            healthy: report.problems.is_empty(),
            frames: report.frames,
            payload_bytes: report.payload_bytes,
            logs: report.logs.len(),
            segments: report.segments,
            first_ms: report.stamps.map(|(first, _)| first.time().0),
            last_ms: report.stamps.map(|(_, last)| last.time().0),
            clean: is_clean(report),
            torn_bytes: report.torn_bytes,
            problems: &report.problems,
        }
    }
}

/// Whether the last server to use it was closed in order.
fn is_clean(report: &Report) -> bool {
    report.bound.is_some_and(|bound| bound.clean)
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(&["what", "value"]);
    let mut row = |what: &str, value: String| table.row([what.to_owned(), value]);
    let date = |stamp| stamp_date(client::history::Stamp(stamp));
    row("entries", report.frames.to_string());
    row("bytes", report.payload_bytes.to_string());
    row("logs", report.logs.len().to_string());
    row("segments", report.segments.to_string());
    row("first entry", report.stamps.map(|(first, _)| date(first)).unwrap_or_default());
    row("last entry", report.stamps.map(|(_, last)| date(last)).unwrap_or_default());
    row("closed", if is_clean(report) { "in order" } else { "by a crash" }.to_owned());
    row("torn bytes", report.torn_bytes.to_string());
    row("problems", report.problems.len().to_string());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_bar_s_template_is_one() {
        let style = "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        assert!(ProgressStyle::with_template(style).is_ok());
        assert!(progress_bar(1).is_hidden() || std::io::stderr().is_terminal());
    }

    #[test]
    fn a_directory_that_is_none_of_ours_is_refused_and_left_as_it_is() {
        let name = format!("freezeframe-check-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let args = Args { directory: directory.clone(), json: false };
        let error = run(&args).unwrap_err().to_string();
        assert!(error.contains("no freezeframe data directory"), "{error}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir(&directory).unwrap();
    }
}
