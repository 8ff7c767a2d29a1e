//! `freezeframe backup` and `restore`: copies of a data directory, and data directories of copies.

use std::fs::OpenOptions;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use broker::backup::{BackupSummary, CopyMode, back_up, back_up_to_archive, restore};
use indicatif::{HumanBytes, ProgressBar};
use serde::Serialize;
use storage::disk::ReadOnlyDisk;

use super::mount::ServerArgs;
use super::topics::stamp_date;
use crate::moments::MomentArg;
use crate::output::{StandardOutput, UsageError, byte_progress_bar, note};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies the data directory of a server while it serves, as of one moment: all
topics, groups, znodes, files and settings that clients gave. Files that never
change again become hard links if the backup is on the same file system, else
copies. Until the copy is done, the server reclaims no space. A stopped server
cannot start until then.

`freezeframe check DIR` reads a backup, and `freezeframe restore` makes a data
directory from it, also as of an earlier moment. A link and its file are the
same blocks of the disk: copy the backup to another disk, or make it there, to
be safe from this one.

--since links files that an earlier backup already has. --to - writes a tar
archive. An archive that was cut off is incomplete, and is refused. Only root
and the user that the server runs as can make backups.

Examples:
  freezeframe backup /backup/monday --data-dir /var/lib/freezeframe
  freezeframe backup /backup/tuesday --since /backup/monday
  freezeframe backup --to - | ssh vault 'tar x -C /backup/tuesday'
  freezeframe backup /backup/monday --verify")]
pub(crate) struct BackupArgs {
    /// The directory of the backup, new or empty
    #[arg(value_name = "DIR", required_unless_present = "to")]
    directory: Option<PathBuf>,
    /// Write a tar archive: `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["directory", "since", "copy", "verify"])]
    to: Option<PathBuf>,
    /// An earlier backup, whose files are used again
    #[arg(long, value_name = "DIR")]
    since: Option<PathBuf>,
    /// Copy all files, also where links would do
    #[arg(long)]
    copy: bool,
    /// Read the whole backup once it is made, and compare it with its checksums and
    /// proofs
    #[arg(long)]
    verify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --at, the new directory has everything that the backup has. With it, it
is what there was at that moment of system time, as if the server had lost power
just then: open transactions are aborted, members of groups join again, and
sessions of ZooKeeper go on or expire. Records that were accepted later are not
in it.

The moment must be in the backup. History that was removed or compacted before
the backup is not in it. An earlier backup may have it.

Examples:
  freezeframe restore /backup/monday /var/lib/freezeframe
  freezeframe restore /backup/monday ./before --at 'yesterday 14:00'
  freezeframe serve --data-dir ./before")]
pub(crate) struct RestoreArgs {
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// The data directory to make, new or empty
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The moment of system time
    #[arg(long, value_name = "MOMENT", value_parser = MomentArg::parse_without_server)]
    at: Option<MomentArg>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CopySummary<'a> {
    directory: Option<&'a Path>,
    /// The last stamp that is in it.
    last: String,
    last_ms: u64,
    running: bool,
    files: u64,
    copied_bytes: u64,
    linked_bytes: u64,
}

impl CopySummary<'_> {
    fn of<'a>(directory: Option<&'a Path>, summary: &BackupSummary) -> CopySummary<'a> {
        CopySummary {
            directory,
            last: summary.last.to_string(),
            last_ms: summary.last.time().0,
            running: summary.was_running,
            files: summary.files,
            copied_bytes: summary.copied_bytes,
            linked_bytes: summary.linked_bytes,
        }
    }
}

/// A sentence about what was copied.
fn sentence(subject: &str, summary: &BackupSummary) -> String {
    let last = stamp_date(client::history::Stamp(summary.last));
    let (copied, linked) = (HumanBytes(summary.copied_bytes), HumanBytes(summary.linked_bytes));
    let links =
        if summary.linked_bytes > 0 { format!(", {linked} by links") } else { String::new() };
    format!("{subject} has everything up to {last}: {copied} copied{links}")
}

pub(crate) fn run(args: &BackupArgs) -> anyhow::Result<()> {
    let data_dir = &args.server.data_dir;
    let bar = byte_progress_bar(0);
    if let Some(file) = &args.to {
        return write_archive(args, data_dir, file, &bar);
    }
    let directory = args.directory.as_deref().expect("clap requires it without --to");
    let mode = if args.copy { CopyMode::Copy } else { CopyMode::Link };
    let since = args.since.as_deref();
    let made = back_up(data_dir, directory, since, mode, &mut show_on(&bar));
    bar.finish_and_clear();
    let summary = made.with_context(|| format!("back up {}", data_dir.display()))?;
    if args.verify {
        verify(directory)?;
    }
    print(args.json, Some(directory), &summary)
}

pub(crate) fn run_restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let last = args.at.as_ref().map(|at| {
        at.announce();
        at.last_stamp()
    });
    let bar = byte_progress_bar(0);
    let made = restore(&args.backup, &args.directory, last, &mut show_on(&bar));
    bar.finish_and_clear();
    let summary = made.with_context(|| format!("restore {}", args.backup.display()))?;
    print(args.json, Some(&args.directory), &summary)
}

fn show_on(bar: &ProgressBar) -> impl FnMut(u64, u64) {
    |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    }
}

fn print(json: bool, directory: Option<&Path>, summary: &BackupSummary) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        output.json(&CopySummary::of(directory, summary))?;
    } else {
        let subject =
            directory.map_or_else(|| "the archive".into(), |path| path.display().to_string());
        output.bytes(format!("{}\n", sentence(&subject, summary)).as_bytes())?;
    }
    Ok(output.flush()?)
}

fn write_archive(
    args: &BackupArgs,
    data_dir: &Path,
    file: &Path,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let doing = || format!("back up {}", data_dir.display());
    if file != Path::new("-") {
        // It has all records, and the credentials of users.
        let archive = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        let mut archive = archive.with_context(|| format!("create {}", file.display()))?;
        let made = back_up_to_archive(data_dir, &mut archive, &mut show_on(bar))
            .and_then(|summary| Ok((summary, archive.sync_all()?)));
        bar.finish_and_clear();
        if made.is_err() {
            let _ = std::fs::remove_file(file);
        }
        return print(args.json, Some(file), &made.with_context(doing)?.0);
    }
    let stdout = std::io::stdout().lock();
    if stdout.is_terminal() {
        return Err(UsageError("an archive is not for a terminal: redirect it".to_owned()).into());
    }
    let mut stdout = BufWriter::new(stdout);
    let made = back_up_to_archive(data_dir, &mut stdout, &mut show_on(bar));
    bar.finish_and_clear();
    let summary = made.with_context(doing)?;
    stdout.flush().context("write the archive")?;
    note(&sentence("the archive", &summary));
    Ok(())
}

/// Reads a backup from end to end.
fn verify(directory: &Path) -> anyhow::Result<()> {
    let disk = ReadOnlyDisk::new(&directory.join("journal"));
    let bar = byte_progress_bar(storage::check::bytes_to_read(&disk).context("list the backup")?);
    let report = storage::check::verify(&disk, &[], &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let report = report.context("read the backup")?;
    if let Some(problem) = report.problems.first() {
        let shown = directory.display();
        anyhow::bail!(
            "the backup has a problem: {problem}; `freezeframe check {shown}` lists all: make the backup again"
        );
    }
    Ok(())
}
