//! Work that needs a process of its own: memory is counted from its start, and a crash ends it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::plain::Source;
use super::rig::{Durability, Rig};
use super::rounds::Stopwatch;
use crate::process::Process;
use crate::report::{mebibytes, millis};

/// How many logs a history has.
pub(super) const LOGS: u64 = 1_000;
const ENTRY_BYTES: u64 = 128;
const TAIL_BYTES: usize = 16 << 20;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ChildWork {
    #[arg(value_enum)]
    act: Act,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, default_value_t = 0)]
    entries: u64,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Writes a history, and ends without closing it
    Write,
    /// Opens a history, says what that took, and closes it
    Open,
}

/// Does the work, and says what it found as one line of JSON.
pub(crate) fn run(work: &ChildWork) -> Result<()> {
    match work.act {
        Act::Write => write(&work.dir, work.entries),
        Act::Open => {
            println!("{}", open(&work.dir)?);
            Ok(())
        }
    }
}

/// Has a child do it.
pub(super) fn spawn(act: Act, directory: &Path, entries: u64) -> Result<Value> {
    let act = match act {
        Act::Write => "write",
        Act::Open => "open",
    };
    let output = Command::new(std::env::current_exe()?)
        .args(["storage-child", act, "--entries", &entries.to_string(), "--dir"])
        .arg(directory)
        .stderr(Stdio::inherit())
        .output()
        .context("start a child")?;
    ensure!(output.status.success(), "a child failed: {act}, {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    if text.trim().is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&text)?) }
}

fn write(directory: &Path, entries: u64) -> Result<()> {
    let source = Source::new();
    let rig = Rig::open(directory, TAIL_BYTES)?;
    for request in 0..entries / LOGS {
        let piece = |log| (log, source.piece(request + log, ENTRY_BYTES));
        rig.append_all((0..LOGS).map(piece), Durability::Written, 8 * LOGS as usize);
    }
    rig.drain()?;
    // As a crash of the process: nothing is closed.
    std::process::exit(0)
}

fn open(directory: &Path) -> Result<Value> {
    let this = Process::this();
    let before = this.resident_bytes()?;
    let stopwatch = Stopwatch::start();
    let rig = Rig::open(directory, TAIL_BYTES)?;
    let (wall, cpu) = (stopwatch.wall(), stopwatch.cpu());
    let after = this.resident_bytes()?;
    // A store that cannot answer yet has not started.
    let mut entries = 0;
    for log in 0..LOGS {
        let (_, last) = rig.span(log)?;
        entries += rig.offset_at(log, hlc::Cut::through(last))?;
    }
    let answered = stopwatch.wall();
    let answering = this.resident_bytes()?;
    rig.close();
    Ok(json!({
        "open_ms": millis(wall), "open_cpu_ms": millis(cpu),
        "answered_ms": millis(answered), "entries": entries,
        "resident_mib": mebibytes(after.saturating_sub(before)),
        "answering_mib": mebibytes(answering.saturating_sub(before)),
    }))
}
