//! The manifest: its header, the sealed segments, and for each log what was removed or compacted.

use anyhow::bail;
use serde::Serialize;
use storage::LogId;
use storage::journal::segment_name;
use storage::manifest::{LogHorizon, MANIFEST_BYTES_MAX, Manifest, ManifestSegment};
use storage::sealed_segment::SegmentLayout;
use storage::sorted_segment::sorted_segment_name;

use super::{InspectPrinter, InspectedFile, stamp};

#[derive(Serialize)]
struct ManifestHeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    sequence: Option<u64>,
    indexed_to: Option<u64>,
    sealed_segments: Option<usize>,
    logs: Option<usize>,
}

#[derive(Serialize)]
struct SealedSegmentLine<'a> {
    file: &'a str,
    what: &'static str,
    start: u64,
    end: u64,
    data: String,
}

#[derive(Serialize)]
struct ManifestLogLine<'a> {
    file: &'a str,
    what: &'static str,
    log: u64,
    start: u64,
    lost_to: String,
    compacted_to: String,
    clean_to: u64,
    reclaimed_to: u64,
    punched_to: u64,
    compacted_generation: u64,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let length = inspected.file.length()?;
    if length > MANIFEST_BYTES_MAX {
        bail!("no manifest is so long: {length} bytes");
    }
    let bytes = inspected.read_prefix(length as usize)?;
    let decoded = Manifest::decode(&bytes);
    let is_whole = decoded.is_some();
    let manifest = decoded.or_else(|| Manifest::decode_corrupt(&bytes));
    print_header(inspected, manifest.as_ref(), is_whole, printer)?;
    let Some(manifest) = manifest else { return Ok(()) };
    let mut segments_left = printer.args.frames.unwrap_or(u64::MAX);
    for segment in manifest.segments.iter().filter(|segment| segment.end > printer.args.from) {
        let Some(rest) = segments_left.checked_sub(1) else { break };
        segments_left = rest;
        print_sealed_segment(inspected, segment, printer)?;
    }
    printer.flush()?;
    for (log, horizon) in manifest.logs {
        print_log(inspected, log, &horizon, printer)?;
    }
    Ok(())
}

fn print_header(
    inspected: &InspectedFile,
    manifest: Option<&Manifest>,
    is_whole: bool,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    if printer.args.json {
        return printer.json(&ManifestHeaderLine {
            file: &inspected.name,
            what: "manifest",
            whole: is_whole,
            sequence: manifest.map(|manifest| manifest.sequence),
            indexed_to: manifest.map(|manifest| manifest.indexed_to),
            sealed_segments: manifest.map(|manifest| manifest.segments.len()),
            logs: manifest.map(|manifest| manifest.logs.len()),
        });
    }
    if !is_whole {
        printer
            .text("corrupt: a checksum does not match; what follows is what can be read of it\n")?;
    }
    let Some(manifest) = manifest else { return printer.text("nothing can be read of it\n") };
    let Manifest { sequence, indexed_to, segments, logs } = manifest;
    printer.text(&format!(
        "write {sequence}, indexed to {indexed_to}, {} sealed segments, {} logs with a horizon\n",
        segments.len(),
        logs.len()
    ))
}

fn print_sealed_segment(
    inspected: &InspectedFile,
    segment: &ManifestSegment,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let ManifestSegment { start, end, layout } = *segment;
    let data = match layout {
        SegmentLayout::Journal => segment_name(start),
        SegmentLayout::Sorted { generation } => sorted_segment_name(start, generation),
    };
    if printer.args.json {
        let (file, what) = (inspected.name.as_str(), "sealed-segment");
        return printer.json(&SealedSegmentLine { file, what, start, end, data });
    }
    printer.row(&["start", "end", "file"], [start.to_string(), end.to_string(), data])
}

fn print_log(
    inspected: &InspectedFile,
    log: LogId,
    horizon: &LogHorizon,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let freed = horizon.released_tip();
    if printer.args.json {
        return printer.json(&ManifestLogLine {
            file: &inspected.name,
            what: "log",
            log: log.0,
            start: horizon.start.0,
            lost_to: horizon.lost_to.to_string(),
            compacted_to: horizon.compacted_to.to_string(),
            clean_to: horizon.clean_to.0,
            reclaimed_to: freed.end.0,
            punched_to: horizon.reclaimed_to().0,
            compacted_generation: horizon.compacted_generation(),
        });
    }
    let moment = |at: hlc::Hlc| if at == hlc::Hlc::ZERO { String::new() } else { stamp(at) };
    let headings = &[
        "log",
        "start",
        "lost to",
        "compacted to",
        "clean to",
        "reclaimed to",
        "punched to",
        "compacted generation",
    ];
    let cells = [
        log.0.to_string(),
        horizon.start.0.to_string(),
        moment(horizon.lost_to),
        moment(horizon.compacted_to),
        horizon.clean_to.0.to_string(),
        freed.end.0.to_string(),
        horizon.reclaimed_to().0.to_string(),
        horizon.compacted_generation().to_string(),
    ];
    printer.row(headings, cells)
}
