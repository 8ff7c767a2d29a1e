//! Work that needs a process of its own: memory is counted from its start, and a crash ends it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::plain_file::ByteSource;
use super::rounds::Stopwatch;
use super::store_driver::{Durability, StoreDriver};
use super::{file_overhead, many_logs};
use crate::process::Process;
use crate::report::{mebibytes, millis};

/// The number of logs in a history.
pub(super) const LOGS: u64 = 1_000;
const ENTRY_BYTES: u64 = 128;
const TAIL_BYTES: usize = 16 << 20;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ChildWork {
    #[arg(value_enum)]
    act: ChildAction,
    #[arg(long)]
    dir: PathBuf,
    #[command(flatten)]
    job: ChildJob,
}

/// The size of the job.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(super) struct ChildJob {
    /// Entries of a history
    #[arg(long, default_value_t = 0)]
    pub(super) entries: u64,
    /// Bytes that are written to a file
    #[arg(long, default_value_t = 0)]
    pub(super) bytes: u64,
    /// Bytes that are written at once
    #[arg(long, default_value_t = 0)]
    pub(super) size: u64,
    /// Anywhere in the file, and not one after the other
    #[arg(long = "random")]
    pub(super) is_random: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildAction {
    /// Writes a history, and ends without closing it
    Write,
    /// Opens a history, says what that took, and closes it
    Open,
    /// Writes to a file, and says what its history costs
    File,
    /// Writes one entry to each of many logs, and says what that took
    Scatter,
    /// Opens what was scattered, finds some of the logs, and says what that took
    Gather,
}

/// Does the work, and prints the results as one line of JSON.
pub(crate) fn run(work: &ChildWork) -> Result<()> {
    match work.act {
        ChildAction::Write => write(&work.dir, work.job.entries),
        ChildAction::Open => print_json(&open(&work.dir)?),
        ChildAction::File => print_json(&file_overhead::measure(&work.dir, work.job)?),
        ChildAction::Scatter => print_json(&many_logs::scatter(&work.dir, work.job.entries)?),
        ChildAction::Gather => print_json(&many_logs::gather(&work.dir, work.job.entries)?),
    }
}

fn print_json(found: &Value) -> Result<()> {
    println!("{found}");
    Ok(())
}

/// Runs it in a child process.
pub(super) fn spawn(act: ChildAction, directory: &Path, job: ChildJob) -> Result<Value> {
    let act = match act {
        ChildAction::Write => "write",
        ChildAction::Open => "open",
        ChildAction::File => "file",
        ChildAction::Scatter => "scatter",
        ChildAction::Gather => "gather",
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["storage-child", act, "--dir"]).arg(directory).stderr(Stdio::inherit());
    for (name, value) in [("--entries", job.entries), ("--bytes", job.bytes), ("--size", job.size)]
    {
        command.args([name, &value.to_string()]);
    }
    if job.is_random {
        command.arg("--random");
    }
    let output = command.output().context("start a child")?;
    ensure!(output.status.success(), "a child failed: {act}, {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    if text.trim().is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&text)?) }
}

fn write(directory: &Path, entries: u64) -> Result<()> {
    let source = ByteSource::new();
    let driver = StoreDriver::open(directory, TAIL_BYTES)?;
    for request in 0..entries / LOGS {
        let piece = |log| (log, source.piece(request + log, ENTRY_BYTES));
        driver.append_all((0..LOGS).map(piece), Durability::Written, 8 * LOGS as usize);
    }
    driver.drain()?;
    // As a crash of the process: nothing is closed.
    std::process::exit(0)
}

fn open(directory: &Path) -> Result<Value> {
    let this = Process::this();
    let before = this.resident_bytes()?;
    let stopwatch = Stopwatch::start();
    let driver = StoreDriver::open(directory, TAIL_BYTES)?;
    let (wall, cpu) = (stopwatch.wall(), stopwatch.cpu());
    let after = this.resident_bytes()?;
    // A store that cannot answer yet has not started.
    let mut entries = 0;
    for log in 0..LOGS {
        let (_, last) = driver.span(log)?;
        entries += driver.offset_at(log, hlc::Cut::through(last))?;
    }
    let answered = stopwatch.wall();
    let answering = this.resident_bytes()?;
    driver.close();
    Ok(json!({
        "open_ms": millis(wall), "open_cpu_ms": millis(cpu),
        "answered_ms": millis(answered), "entries": entries,
        "resident_mib": mebibytes(after.saturating_sub(before)),
        "answering_mib": mebibytes(answering.saturating_sub(before)),
    }))
}
