//! A sorted segment: its header, then its frames in file order, and the gaps between them.

use serde::Serialize;
use storage::sorted_segment::{
    SORTED_HEADER_BYTES, SortedFrameReader, SortedScanItem, SortedSegmentHeader,
};

use super::segment::print_frame;
use super::{InspectPrinter, InspectedFile};

#[derive(Serialize)]
struct SortedHeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    start: Option<u64>,
    end: Option<u64>,
    generation: Option<u64>,
    log: Option<u64>,
    bytes: u64,
}

#[derive(Serialize)]
struct SortedGapLine<'a> {
    file: &'a str,
    what: &'static str,
    at: u64,
    until: u64,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    print_header(inspected, printer)?;
    let mut frames = SortedFrameReader::new(inspected.file.clone())?;
    let mut frames_left = printer.args.frames.unwrap_or(u64::MAX);
    while let Some(item) = frames.next_item()? {
        match item {
            SortedScanItem::Frame { found, .. } if found.position < printer.args.from => continue,
            SortedScanItem::Frame { found, .. } if frames_left == 0 => {
                if !printer.args.json {
                    let (log, base) = (found.frame.log.0, found.frame.base.0);
                    printer.text(&format!("more follows, from offset {base} of log {log} on\n"))?;
                }
                break;
            }
            SortedScanItem::Frame { found, at, chain } => {
                frames_left -= 1;
                print_frame(
                    inspected,
                    &found,
                    Some((at, chain)),
                    frames.payload_preview(),
                    printer,
                )?;
            }
            SortedScanItem::Gap { range, is_hole } => {
                let (what, reason) = if is_hole {
                    ("hole", "reclaimed space, and rests of frames around it")
                } else {
                    ("corruption", "no frame begins here")
                };
                let (at, until) = (range.start, range.end);
                if printer.args.json {
                    printer.json(&SortedGapLine { file: &inspected.name, what, at, until })?;
                } else {
                    printer.text(&format!("at {at}\tup to {until}: {reason}\n"))?;
                }
            }
        }
    }
    Ok(())
}

fn print_header(inspected: &InspectedFile, printer: &mut InspectPrinter<'_>) -> anyhow::Result<()> {
    let head = inspected.read_prefix(SORTED_HEADER_BYTES as usize)?;
    let header = head.first_chunk().and_then(SortedSegmentHeader::decode);
    let bytes = inspected.file.length()?;
    if printer.args.json {
        return printer.json(&SortedHeaderLine {
            file: &inspected.name,
            what: "sorted",
            whole: header.is_some(),
            start: header.map(|header| header.start),
            end: header.map(|header| header.end),
            generation: header.map(|header| header.generation),
            log: header.and_then(|header| header.log).map(|log| log.0),
            bytes,
        });
    }
    let text = match header {
        None => format!("header not whole, {bytes} bytes\n"),
        Some(SortedSegmentHeader { start, end, generation, log: None }) => {
            format!("header whole, {start}..{end}, generation {generation}, {bytes} bytes\n")
        }
        Some(SortedSegmentHeader { end, generation, log: Some(log), .. }) => format!(
            "header whole, what compaction left of log {} before {end}, generation {generation}, {bytes} bytes\n",
            log.0
        ),
    };
    printer.text(&text)
}
