//! A segment of the journal: its header, then its frames.

use std::fmt::Write;

use serde::Serialize;
use storage::journal::{
    FrameReader, JournalScanItem, SEGMENT_HEADER_BYTES, ScannedFrame, SegmentHeader, segment_start,
};

use super::{InspectPrinter, InspectedFile, hex, user_times};
use crate::moments::utc_date;

const HEADINGS: &[&str] =
    &["position", "stamp", "log", "base", "count", "kind", "length", "user times", "checksums"];
/// The headings for a frame of a sorted segment.
const SORTED_HEADINGS: &[&str] = &[
    "position",
    "stamp",
    "log",
    "base",
    "count",
    "kind",
    "length",
    "user times",
    "checksums",
    "at",
    "chain",
];

#[derive(Serialize)]
struct SegmentHeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    start: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct SegmentFrameLine<'a> {
    file: &'a str,
    what: &'static str,
    position: u64,
    stamp: String,
    stamp_ms: u64,
    date: String,
    log: u64,
    base: u64,
    count: u32,
    epoch: u32,
    kind: u8,
    length: u32,
    user_min: i64,
    user_max: i64,
    synced_to: u64,
    payload_is_whole: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

#[derive(Serialize)]
struct SegmentCorruptionLine<'a> {
    file: &'a str,
    what: &'static str,
    position: u64,
    until: u64,
    reason: String,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let start = print_header(inspected, printer)?;
    let length = inspected.file.length()?.saturating_sub(SEGMENT_HEADER_BYTES);
    let span = start..start.saturating_add(length);
    let mut frames = FrameReader::new(inspected.file.clone(), span, SEGMENT_HEADER_BYTES);
    let mut frames_left = printer.args.frames.unwrap_or(u64::MAX);
    while let Some(item) = frames.next_item()? {
        let end = match &item {
            JournalScanItem::Frame(frame) => frame.position + 1,
            JournalScanItem::Corrupt { until, .. } => *until,
        };
        if end <= printer.args.from {
            continue;
        }
        if frames_left == 0 {
            if !printer.args.json {
                printer.text(&format!("more follows: --from {}\n", end - 1))?;
            }
            break;
        }
        frames_left -= 1;
        match item {
            JournalScanItem::Frame(frame) => {
                print_frame(inspected, &frame, None, frames.payload_preview(), printer)?
            }
            JournalScanItem::Corrupt { position, until, reason } => {
                let reason = reason.to_string();
                if printer.args.json {
                    let (file, what) = (inspected.name.as_str(), "corruption");
                    printer.json(&SegmentCorruptionLine { file, what, position, until, reason })?;
                } else {
                    printer.text(&format!("{position}\tup to {until}: {reason}\n"))?;
                }
            }
        }
    }
    Ok(())
}

/// The start of the segment: from its header, or from its name if the header is incomplete.
fn print_header(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<u64> {
    let head = inspected.read_prefix(SEGMENT_HEADER_BYTES as usize)?;
    let header = head.first_chunk().and_then(SegmentHeader::decode);
    let by_name = segment_start(&inspected.name);
    let start = header.map(|header| header.start).or(by_name).unwrap_or(0);
    let bytes = inspected.file.length()?;
    let is_whole = header.is_some();
    if printer.args.json {
        let (file, what) = (inspected.name.as_str(), "segment");
        printer.json(&SegmentHeaderLine { file, what, whole: is_whole, start, bytes })?;
        return Ok(start);
    }
    let state = match header {
        Some(header) if by_name.is_some_and(|start| start != header.start) => {
            "whole, and not the one that the name says"
        }
        Some(_) => "whole",
        None => "not whole",
    };
    printer.text(&format!("header {state}, start {start}, {bytes} bytes\n"))?;
    Ok(start)
}

/// Prints a frame. For a frame of a sorted segment, the position of its payload and the chain of
/// its log are known too.
pub(super) fn print_frame(
    inspected: &InspectedFile,
    frame: &ScannedFrame,
    filed: Option<(u64, u128)>,
    preview: &[u8],
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let ScannedFrame { position, frame, payload_is_whole, .. } = *frame;
    if printer.args.json {
        return printer.json(&SegmentFrameLine {
            file: &inspected.name,
            what: "frame",
            position,
            stamp: frame.stamp.to_string(),
            stamp_ms: frame.stamp.time().0,
            date: utc_date(frame.stamp.time()),
            log: frame.log.0,
            base: frame.base.0,
            count: frame.count,
            epoch: frame.epoch,
            kind: frame.kind,
            length: frame.length,
            user_min: frame.user_min.0,
            user_max: frame.user_max.0,
            synced_to: frame.synced_to,
            payload_is_whole,
            at: filed.map(|(at, _)| at),
            chain: filed.map(|(_, chain)| format!("{chain:032x}")),
            payload: printer.args.payload.then(|| hex(preview)),
        });
    }
    let user = user_times(frame.user_min, frame.user_max);
    let [position, log, base] = [position, frame.log.0, frame.base.0].map(|n| n.to_string());
    let [count, kind, length] =
        [frame.count, frame.kind.into(), frame.length].map(|n| n.to_string());
    let stamp = frame.stamp.to_string();
    let state = if payload_is_whole { "ok" } else { "payload does not match" }.to_owned();
    if let Some((at, chain)) = filed {
        let (at, chain) = (at.to_string(), format!("{chain:032x}"));
        let cells = [position, stamp, log, base, count, kind, length, user, state, at, chain];
        printer.row(SORTED_HEADINGS, cells)?;
    } else {
        let cells = [position, stamp, log, base, count, kind, length, user, state];
        printer.row(HEADINGS, cells)?;
    }
    if printer.args.payload {
        printer.text(&dump(preview, u64::from(frame.length)))?;
    }
    Ok(())
}

/// Bytes in the format of `hexdump -C`.
fn dump(bytes: &[u8], length: u64) -> String {
    let mut text = String::new();
    for (row, line) in bytes.chunks(16).enumerate() {
        let mut cells = String::new();
        for byte in line {
            // Writing to a string cannot fail.
            let _ = write!(cells, " {byte:02x}");
        }
        let letters: String = line
            .iter()
            .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' })
            .collect();
        let _ = writeln!(text, "    {:04x} {cells:<48}  |{letters}|", row * 16);
    }
    match length - bytes.len() as u64 {
        0 => {}
        omitted => {
            let _ = writeln!(text, "    and {omitted} bytes more");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_shown_as_bytes_and_as_letters_that_are_safe_on_a_terminal() {
        let text = dump(b"hello \x1b[31m\x00world, once more", 100);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("    0000  68 65 6c 6c 6f 20 1b"), "{text}");
        assert!(lines[0].ends_with("|hello .[31m.worl|"), "{text}");
        assert!(lines[1].contains("0010  64 2c") && lines[1].ends_with("|d, once more|"), "{text}");
        assert_eq!(lines[2], "    and 72 bytes more");
        assert_eq!(dump(b"", 0), "");
    }
}
