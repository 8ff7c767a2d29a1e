//! An index: its header, the runs of logs, and entries if some are requested.

use serde::Serialize;
use storage::StorageError;
use storage::index::{IndexEntry, IndexRun, SegmentIndex};

use super::{InspectPrinter, InspectedFile, stamp, user_times};
use crate::table::OutputTable;

#[derive(Serialize)]
struct IndexHeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    start: Option<u64>,
    end: Option<u64>,
    entries: Option<u64>,
    runs: Option<u64>,
    state_bytes: Option<u64>,
    first: Option<String>,
    last: Option<String>,
    bytes: u64,
    expected_bytes: Option<u64>,
    corrupt_blocks: Vec<u64>,
}

#[derive(Serialize)]
struct IndexRunLine<'a> {
    file: &'a str,
    what: &'static str,
    log: u64,
    first: u64,
    count: u64,
    base: u64,
    end: u64,
    bytes: u64,
    stamp: String,
    stamp_ms: u64,
    chain: String,
    epoch: u32,
    user_max: i64,
    user_time_max: i64,
    previous: Option<u64>,
    jump: Option<u64>,
    depth: u32,
}

#[derive(Serialize)]
struct IndexEntryLine<'a> {
    file: &'a str,
    what: &'static str,
    log: u64,
    base: u64,
    count: u32,
    position: u64,
    at: u64,
    length: u32,
    stamp: String,
    stamp_ms: u64,
    kind: u8,
    epoch: u32,
    user_min: i64,
    user_max: i64,
    user_time_max: i64,
    bytes: u64,
    payload_crc: u32,
    chain: String,
}

#[derive(Serialize)]
struct IndexCorruptionLine<'a> {
    file: &'a str,
    what: &'static str,
    reason: String,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let index = SegmentIndex::open_any(inspected.file.clone())?;
    print_header(inspected, index.as_ref(), printer)?;
    let Some(index) = index else { return Ok(()) };
    let mut walk = IndexPrinter { inspected, printer, last_reason: String::new() };
    let runs = walk.runs(&index)?;
    let mut entries_left = walk.printer.args.frames.unwrap_or(0);
    for run in runs {
        if entries_left == 0 {
            break;
        }
        walk.entries(&index, &run, &mut entries_left)?;
    }
    Ok(())
}

fn print_header(
    inspected: &InspectedFile,
    index: Option<&SegmentIndex>,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let bytes = inspected.file.length()?;
    let header = index.map(|index| index.header);
    let damaged = index.map(SegmentIndex::corrupt_blocks).transpose()?.unwrap_or(vec![0]);
    let expected = header.map(|header| header.length());
    if printer.args.json {
        return printer.json(&IndexHeaderLine {
            file: &inspected.name,
            what: "index",
            whole: damaged.is_empty() && expected == Some(bytes),
            start: header.map(|header| header.start),
            end: header.map(|header| header.end),
            entries: header.map(|header| header.entries),
            runs: header.map(|header| header.runs),
            state_bytes: header.and_then(|header| header.state_bytes),
            first: header.map(|header| header.first_stamp.to_string()),
            last: header.map(|header| header.last_stamp.to_string()),
            bytes,
            expected_bytes: expected,
            corrupt_blocks: damaged,
        });
    }
    let Some(header) = header else {
        return printer
            .text("corrupt: the first block is not whole, and it describes the others\n");
    };
    let mut table = OutputTable::new(&["what", "value"]);
    let mut row = |label: &str, value: String| table.row([label.to_owned(), value]);
    row("positions", format!("{}..{}", header.start, header.end));
    row("entries", header.entries.to_string());
    row("runs", header.runs.to_string());
    row("first entry", stamp(header.first_stamp));
    row("last entry", stamp(header.last_stamp));
    row("state bytes", header.state_bytes.map_or("not known".to_owned(), |n| n.to_string()));
    row("bytes", bytes.to_string());
    if expected != Some(bytes) {
        row("bytes that it should have", header.length().to_string());
    }
    let damaged: Vec<String> = damaged.iter().map(u64::to_string).collect();
    row("corrupt blocks", if damaged.is_empty() { "none".into() } else { damaged.join(", ") });
    printer.table(&table)
}

struct IndexPrinter<'a, 'b> {
    inspected: &'a InspectedFile,
    printer: &'a mut InspectPrinter<'b>,
    /// The last reported corruption. A block holds many records, so one corrupt block would be
    /// reported many times.
    last_reason: String,
}

impl IndexPrinter<'_, '_> {
    /// The value that was read; `None` if it is corrupt, which is reported once. Other errors end
    /// the run.
    fn read<T>(&mut self, read: Result<T, StorageError>) -> anyhow::Result<Option<T>> {
        let reason = match read {
            Ok(read) => return Ok(Some(read)),
            Err(error) if error.is_corruption() => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        if reason != self.last_reason {
            if self.printer.args.json {
                let (file, what) = (self.inspected.name.as_str(), "corruption");
                self.printer.json(&IndexCorruptionLine { file, what, reason: reason.clone() })?;
            } else {
                self.printer.text(&format!("{reason}\n"))?;
            }
            self.last_reason = reason;
        }
        Ok(None)
    }

    /// True if the file ends before the record.
    fn is_at_end<T>(&self, read: &Result<T, StorageError>) -> anyhow::Result<bool> {
        let Err(StorageError::Corrupt { at: Some(at), .. }) = read else { return Ok(false) };
        Ok(*at >= self.inspected.file.length()?)
    }

    fn runs(&mut self, index: &SegmentIndex) -> anyhow::Result<Vec<IndexRun>> {
        let mut runs = Vec::new();
        for number in 0..index.header.runs {
            let run = index.run_at(number);
            if self.is_at_end(&run)? {
                break;
            }
            if let Some(run) = self.read(run)? {
                self.run(&run)?;
                runs.push(run);
            }
        }
        self.printer.flush()?;
        Ok(runs)
    }

    fn run(&mut self, run: &IndexRun) -> anyhow::Result<()> {
        let tip = run.tip;
        let chain = format!("{:032x}", tip.chain);
        if self.printer.args.json {
            return self.printer.json(&IndexRunLine {
                file: &self.inspected.name,
                what: "run",
                log: run.log.0,
                first: run.first,
                count: run.count,
                base: run.base.0,
                end: tip.end.0,
                bytes: tip.bytes,
                stamp: tip.stamp.to_string(),
                stamp_ms: tip.stamp.time().0,
                chain,
                epoch: tip.epoch,
                user_max: run.user_max.0,
                user_time_max: tip.user_time_max.0,
                previous: run.links.previous.map(|place| place.segment),
                jump: run.links.jump.map(|place| place.segment),
                depth: run.links.depth,
            });
        }
        let headings =
            &["log", "entries", "offsets", "bytes", "last stamp", "epoch", "chain", "run before"];
        let previous = run.links.previous.map(|place| place.segment.to_string());
        let cells = [
            run.log.0.to_string(),
            run.count.to_string(),
            format!("{}..{}", run.base.0, tip.end.0),
            tip.bytes.to_string(),
            tip.stamp.to_string(),
            tip.epoch.to_string(),
            chain,
            previous.unwrap_or_else(|| "none".to_owned()),
        ];
        self.printer.row(headings, cells)
    }

    fn entries(
        &mut self,
        index: &SegmentIndex,
        run: &IndexRun,
        entries_left: &mut u64,
    ) -> anyhow::Result<()> {
        for number in run.first..run.first + run.count {
            if *entries_left == 0 {
                break;
            }
            let placed = index.entry(number);
            if self.is_at_end(&placed)? {
                break;
            }
            let Some(placed) = self.read(placed)? else { continue };
            if placed.entry.position >= self.printer.args.from {
                *entries_left -= 1;
                self.entry(run, &placed)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, run: &IndexRun, placed: &IndexEntry) -> anyhow::Result<()> {
        let IndexEntry { entry, at } = placed;
        let chain = format!("{:032x}", entry.chain);
        if self.printer.args.json {
            return self.printer.json(&IndexEntryLine {
                file: &self.inspected.name,
                what: "entry",
                log: run.log.0,
                base: entry.base.0,
                count: entry.count,
                position: entry.position,
                at: *at,
                length: entry.length,
                stamp: entry.stamp.to_string(),
                stamp_ms: entry.stamp.time().0,
                kind: entry.kind,
                epoch: entry.epoch,
                user_min: entry.user_min.0,
                user_max: entry.user_max.0,
                user_time_max: entry.user_time_max.0,
                bytes: entry.bytes,
                payload_crc: entry.payload_crc,
                chain,
            });
        }
        let headings =
            &["log", "base", "count", "position", "at", "length", "stamp", "kind", "user times"];
        let cells = [
            run.log.0.to_string(),
            entry.base.0.to_string(),
            entry.count.to_string(),
            entry.position.to_string(),
            at.to_string(),
            entry.length.to_string(),
            entry.stamp.to_string(),
            entry.kind.to_string(),
            user_times(entry.user_min, entry.user_max),
        ];
        self.printer.row(headings, cells)
    }
}
