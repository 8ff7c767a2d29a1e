//! `freezeframe inspect FILE…`: prints a file of a data directory for a person.
//!
//! It takes no lock and changes nothing, so it works while a server runs. Data that the server is
//! writing at that moment look torn. The table [`KINDS`] lists the kinds of files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hlc::{Hlc, SysTime, UserTime};
use serde::Serialize;
use storage::StorageFile;
use storage::disk::open_read_only;

use crate::moments::date;
use crate::output::StandardOutput;
use crate::table::OutputTable;

mod bound;
mod index;
mod latest_runs;
mod manifest;
mod proof;
mod segment;
mod sorted_segment;
mod text;

/// The number of rows that are collected and drawn as one table.
const ROWS_MAX: usize = 500;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Knows FREEZEFRAME, LOCK, journal/bound, journal/manifest, journal/reserve,
segments of the journal (*.journal), segments sorted by log (*.sorted), indexes
(*.index) and proofs (*.proof), by their names or by how they begin. It takes no
lock: it works beside a running server, whose newest writes may look torn then.
What is corrupt is printed as far as it can be. Whether all is well is for
`freezeframe check` to say; the exit code is 0 if the files could be read.

Examples:
  freezeframe inspect data/FREEZEFRAME data/journal/bound
  freezeframe inspect ./freezeframe-data/journal/*.journal --frames 10
  freezeframe inspect 00000000000000000000.journal --from 4096 --payload
  freezeframe inspect ./freezeframe-data/journal/manifest
  freezeframe inspect 00000000000000000000.index --frames 10
  freezeframe inspect 00000000000000000000.proof --json")]
pub(crate) struct InspectArgs {
    /// Files of a data directory
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print at most this many frames or entries of each file. Without it, an index prints no
    /// entries
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Begin at the first frame or entry at or after this position of the journal
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    from: u64,
    /// Print the first 256 bytes of each payload too
    #[arg(long)]
    payload: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A kind of file.
struct DataFileKind {
    /// The name of the kind, for messages.
    what: &'static str,
    /// True if a file of this name is of this kind.
    has_name: fn(&str) -> bool,
    /// The magic bytes, whatever the name, and their position.
    magic: &'static [u8],
    magic_at: usize,
    print: fn(&InspectedFile, &mut InspectPrinter<'_>) -> anyhow::Result<()>,
}

/// All kinds of files.
const KINDS: &[DataFileKind] = &[
    DataFileKind {
        what: "the identity of a data directory",
        has_name: |name| name == "FREEZEFRAME",
        magic: b"format ",
        magic_at: 0,
        print: text::print_identity,
    },
    DataFileKind {
        what: "the lock of a data directory",
        has_name: |name| name == "LOCK",
        magic: b"",
        magic_at: 0,
        print: text::print_lock,
    },
    DataFileKind {
        what: "what was promised and what was synced",
        has_name: |name| name == storage::timekeeper::BOUND_FILE,
        magic: b"FFBOUND2",
        magic_at: 0,
        print: bound::print,
    },
    DataFileKind {
        what: "a segment of the journal",
        has_name: |name| storage::journal::segment_start(name).is_some(),
        magic: b"FFSEGMNT",
        magic_at: 0,
        print: segment::print,
    },
    DataFileKind {
        what: "which files there are, and where each log starts",
        has_name: |name| name == storage::manifest::MANIFEST_FILE,
        magic: b"FFMANIF1",
        magic_at: 0,
        print: manifest::print,
    },
    DataFileKind {
        what: "space reserved to advance log starts on a full disk; nothing is in it",
        has_name: |name| name == storage::RESERVE_FILE,
        magic: b"",
        magic_at: 0,
        print: |_, _| Ok(()),
    },
    DataFileKind {
        what: "an index",
        has_name: storage::sorted_segment::is_index_name,
        magic: b"FFINDEX1",
        magic_at: 8,
        print: index::print,
    },
    DataFileKind {
        what: "the latest run of each log",
        has_name: |name| storage::index::latest_runs_range(name).is_some(),
        magic: b"FFLATEST",
        magic_at: 8,
        print: latest_runs::print,
    },
    DataFileKind {
        what: "a segment sorted by log",
        has_name: storage::sorted_segment::is_sorted_segment_name,
        magic: b"FFSORTED",
        magic_at: 0,
        print: sorted_segment::print,
    },
    DataFileKind {
        what: "the proof of a segment",
        has_name: |name| storage::proof::proof_start(name).is_some(),
        magic: b"FFPROOF1",
        magic_at: 0,
        print: proof::print,
    },
];

/// An open file.
struct InspectedFile {
    /// The last component of its path.
    name: String,
    file: StorageFile,
}

impl InspectedFile {
    /// Up to `limit` bytes from the start of the file.
    fn read_prefix(&self, limit: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; limit];
        let read = self.file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    // All files are opened first, so that a mistyped name is reported before pages of frames.
    let mut files = Vec::new();
    for path in &args.files {
        files.push((path, recognize_file(path)?));
    }
    let mut output = StandardOutput::lock();
    for (path, (kind, inspected)) in files {
        if !args.json {
            output.bytes(format!("{}: {}\n", path.display(), kind.what).as_bytes())?;
        }
        let mut printer = InspectPrinter { output: &mut output, args, rows: None };
        (kind.print)(&inspected, &mut printer)
            .with_context(|| format!("read {}", path.display()))?;
        printer.flush()?;
    }
    Ok(output.flush()?)
}

fn recognize_file(path: &Path) -> anyhow::Result<(&'static DataFileKind, InspectedFile)> {
    let doing = || format!("open {}", path.display());
    let metadata = fs::metadata(path).with_context(doing)?;
    if metadata.is_dir() {
        bail!("{} is a directory; give files of it", path.display());
    }
    if !metadata.is_file() {
        bail!("{} is no ordinary file", path.display());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = StorageFile::new(&name, open_read_only(path).with_context(doing)?);
    let inspected = InspectedFile { name, file };
    let head = inspected.read_prefix(16).with_context(doing)?;
    let by_name = KINDS.iter().find(|kind| (kind.has_name)(&inspected.name));
    let begins = |kind: &&DataFileKind| {
        let head = head.get(kind.magic_at..).unwrap_or_default();
        !kind.magic.is_empty() && head.starts_with(kind.magic)
    };
    match by_name.or_else(|| KINDS.iter().find(begins)) {
        Some(kind) => Ok((kind, inspected)),
        None if is_of_catalog(path) => bail!(
            "{} belongs to the catalog, whose files are its own: it is rebuilt from the journal if it is lost",
            path.display()
        ),
        None => bail!("{} is no file of a freezeframe data directory", path.display()),
    }
}

fn is_of_catalog(path: &Path) -> bool {
    let directories = path.ancestors().skip(1);
    directories.into_iter().any(|directory| {
        directory.file_name().is_some_and(|name| name == "catalog")
            && directory.parent().is_some_and(|home| home.join("FREEZEFRAME").exists())
    })
}

/// The output and its options.
struct InspectPrinter<'a> {
    output: &'a mut StandardOutput,
    args: &'a InspectArgs,
    /// Rows that are not drawn yet.
    rows: Option<OutputTable>,
}

impl InspectPrinter<'_> {
    fn table(&mut self, table: &OutputTable) -> anyhow::Result<()> {
        self.flush()?;
        Ok(self.output.table(table)?)
    }

    /// Adds a row to the table with these headings.
    fn row<const N: usize>(
        &mut self,
        headings: &'static [&'static str],
        cells: [String; N],
    ) -> anyhow::Result<()> {
        let table = self.rows.get_or_insert_with(|| OutputTable::new(headings));
        table.row(cells);
        if table.count() >= ROWS_MAX {
            self.flush()?;
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> anyhow::Result<()> {
        self.flush()?;
        Ok(self.output.bytes(text.as_bytes())?)
    }

    fn json(&mut self, document: &impl Serialize) -> anyhow::Result<()> {
        self.output.json(document)
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        match self.rows.take() {
            Some(table) => Ok(self.output.table(&table)?),
            None => Ok(()),
        }
    }
}

/// A stamp, and its date.
fn stamp(stamp: Hlc) -> String {
    format!("{stamp} ({})", date(stamp.time()))
}

/// The smallest and the largest user time of a batch. If no record has one, the smallest is larger
/// than the largest.
fn user_times(earliest: UserTime, latest: UserTime) -> String {
    match earliest.cmp(&latest) {
        std::cmp::Ordering::Equal => user_time(earliest),
        std::cmp::Ordering::Less => format!("{}..{}", user_time(earliest), user_time(latest)),
        std::cmp::Ordering::Greater => "none".to_owned(),
    }
}

/// A user time as a date; as milliseconds if it is outside the calendar.
fn user_time(time: UserTime) -> String {
    match u64::try_from(time.0) {
        Ok(ms) => date(SysTime(ms)),
        Err(_) if time.0 == i64::MIN => "unknown".to_owned(),
        Err(_) => time.0.to_string(),
    }
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_beginning_belong_to_one_kind_at_most() {
        for (name, kind) in [
            ("FREEZEFRAME", "identity"),
            ("LOCK", "lock"),
            ("bound", "promised"),
            ("00000000000000000280.journal", "segment of"),
            ("00000000000000000280.proof", "proof of"),
            ("manifest", "where each log starts"),
            ("reserve", "space reserved"),
            ("00000000000000000280.index", "an index"),
            ("00000000000000000280.1.index", "an index"),
            ("log-00000000000000000007.31.index", "an index"),
            ("00000000000000000000-00000000000000000280.latest", "latest run"),
            ("00000000000000000280.1.sorted", "sorted by log"),
            ("log-00000000000000000007.31.sorted", "sorted by log"),
        ] {
            let kinds: Vec<_> = KINDS.iter().filter(|kind| (kind.has_name)(name)).collect();
            assert_eq!(kinds.len(), 1, "{name}");
            assert!(kinds[0].what.contains(kind), "{name}");
        }
        for name in [
            "280.journal",
            "0000000000000000028x.proof",
            "bound.bak",
            "conf",
            "",
            "manifest.new",
            "00000000000000000280.sorted",
            "00000000000000000280..sorted",
            "log-7.1.index",
            "log-00000000000000000007.index",
            "0-280.latest",
        ] {
            assert!(!KINDS.iter().any(|kind| (kind.has_name)(name)), "{name}");
        }
    }

    #[test]
    fn times_read_as_dates_where_there_are_any() {
        assert_eq!(
            stamp(Hlc::new(SysTime(1_795_251_600_123), 7)),
            "sh01a1fd557afb0007 (2026-11-21T09:00:00.123Z)"
        );
        assert_eq!(user_time(UserTime(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(user_time(UserTime(-5)), "-5");
        assert_eq!(user_time(UserTime(i64::MIN)), "unknown");
        assert_eq!(user_time(UserTime(i64::MAX)), i64::MAX.to_string());
    }
}
