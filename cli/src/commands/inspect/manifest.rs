//! The manifest: its header, the parts, and what of each log was given up or compacted.

use anyhow::bail;
use serde::Serialize;
use storage::LogId;
use storage::filed::filed_name;
use storage::journal::segment_name;
use storage::manifest::{Horizon, Listed, MANIFEST_BYTES_MAX, Manifest};
use storage::part::Layout;

use super::{Inspected, Printer, stamp};

#[derive(Serialize)]
struct HeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    sequence: Option<u64>,
    indexed_to: Option<u64>,
    parts: Option<usize>,
    logs: Option<usize>,
}

#[derive(Serialize)]
struct PartLine<'a> {
    file: &'a str,
    what: &'static str,
    start: u64,
    end: u64,
    data: String,
}

#[derive(Serialize)]
struct LogLine<'a> {
    file: &'a str,
    what: &'static str,
    log: u64,
    start: u64,
    lost_to: String,
    compacted_to: String,
    clean_to: u64,
    freed_to: u64,
    punched_to: u64,
    base: u64,
}

pub(super) fn print(inspected: &Inspected, printer: &mut Printer<'_>) -> anyhow::Result<()> {
    let length = inspected.file.length()?;
    if length > MANIFEST_BYTES_MAX {
        bail!("no manifest is so long: {length} bytes");
    }
    let bytes = inspected.head(length as usize)?;
    let whole = Manifest::decode(&bytes);
    let is_whole = whole.is_some();
    let manifest = whole.or_else(|| Manifest::decode_damaged(&bytes));
    print_header(inspected, manifest.as_ref(), is_whole, printer)?;
    let Some(manifest) = manifest else { return Ok(()) };
    let mut left = printer.args.frames.unwrap_or(u64::MAX);
    for part in manifest.parts.iter().filter(|part| part.end > printer.args.from) {
        let Some(rest) = left.checked_sub(1) else { break };
        left = rest;
        print_part(inspected, part, printer)?;
    }
    printer.flush()?;
    for (log, horizon) in manifest.logs {
        print_log(inspected, log, &horizon, printer)?;
    }
    Ok(())
}

fn print_header(
    inspected: &Inspected,
    manifest: Option<&Manifest>,
    whole: bool,
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    if printer.args.json {
        return printer.json(&HeaderLine {
            file: &inspected.name,
            what: "manifest",
            whole,
            sequence: manifest.map(|manifest| manifest.sequence),
            indexed_to: manifest.map(|manifest| manifest.indexed_to),
            parts: manifest.map(|manifest| manifest.parts.len()),
            logs: manifest.map(|manifest| manifest.logs.len()),
        });
    }
    if !whole {
        printer
            .text("damaged: a checksum does not match; what follows is what can be read of it\n")?;
    }
    let Some(manifest) = manifest else { return printer.text("nothing can be read of it\n") };
    let Manifest { sequence, indexed_to, parts, logs } = manifest;
    printer.text(&format!(
        "write {sequence}, indexed to {indexed_to}, {} parts, {} logs with a horizon\n",
        parts.len(),
        logs.len()
    ))
}

fn print_part(
    inspected: &Inspected,
    part: &Listed,
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let Listed { start, end, layout } = *part;
    let data = match layout {
        Layout::Journal => segment_name(start),
        Layout::Filed { generation } => filed_name(start, generation),
    };
    if printer.args.json {
        let (file, what) = (inspected.name.as_str(), "part");
        return printer.json(&PartLine { file, what, start, end, data });
    }
    printer.row(&["start", "end", "file"], [start.to_string(), end.to_string(), data])
}

fn print_log(
    inspected: &Inspected,
    log: LogId,
    horizon: &Horizon,
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let freed = horizon.freed();
    if printer.args.json {
        return printer.json(&LogLine {
            file: &inspected.name,
            what: "log",
            log: log.0,
            start: horizon.start.0,
            lost_to: horizon.lost_to.to_string(),
            compacted_to: horizon.compacted_to.to_string(),
            clean_to: horizon.clean_to.0,
            freed_to: freed.end.0,
            punched_to: horizon.punched_to().0,
            base: horizon.base(),
        });
    }
    let moment = |at: hlc::Hlc| if at == hlc::Hlc::ZERO { String::new() } else { stamp(at) };
    let headings =
        &["log", "start", "lost to", "compacted to", "clean to", "freed to", "punched to", "base"];
    let cells = [
        log.0.to_string(),
        horizon.start.0.to_string(),
        moment(horizon.lost_to),
        moment(horizon.compacted_to),
        horizon.clean_to.0.to_string(),
        freed.end.0.to_string(),
        horizon.punched_to().0.to_string(),
        horizon.base().to_string(),
    ];
    printer.row(headings, cells)
}
