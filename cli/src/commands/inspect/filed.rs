//! Frames that were filed by log: the header, then the frames as they stand, and what lies between.

use std::sync::Arc;

use serde::Serialize;
use storage::filed::{FILED_HEADER_BYTES, FiledFound, FiledFrames, FiledHeader};

use super::segment::print_frame;
use super::{Inspected, Printer};

#[derive(Serialize)]
struct HeaderLine<'a> {
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
struct GapLine<'a> {
    file: &'a str,
    what: &'static str,
    at: u64,
    until: u64,
}

pub(super) fn print(inspected: &Inspected, printer: &mut Printer<'_>) -> anyhow::Result<()> {
    print_header(inspected, printer)?;
    let mut frames = FiledFrames::new(Arc::clone(&inspected.file))?;
    let mut left = printer.args.frames.unwrap_or(u64::MAX);
    while let Some(found) = frames.next_found()? {
        match found {
            FiledFound::Frame { found, .. } if found.position < printer.args.from => continue,
            FiledFound::Frame { found, .. } if left == 0 => {
                if !printer.args.json {
                    let (log, base) = (found.frame.log.0, found.frame.base.0);
                    printer.text(&format!("more follows, from offset {base} of log {log} on\n"))?;
                }
                break;
            }
            FiledFound::Frame { found, at, chain } => {
                left -= 1;
                print_frame(inspected, &found, Some((at, chain)), frames.shown(), printer)?;
            }
            FiledFound::Gap { range, is_hole } => {
                let (what, reason) = match is_hole {
                    true => ("hole", "space that was given back, and rests of frames around it"),
                    false => ("damage", "no frame begins here"),
                };
                let (at, until) = (range.start, range.end);
                if printer.args.json {
                    printer.json(&GapLine { file: &inspected.name, what, at, until })?;
                } else {
                    printer.text(&format!("at {at}\tup to {until}: {reason}\n"))?;
                }
            }
        }
    }
    Ok(())
}

fn print_header(inspected: &Inspected, printer: &mut Printer<'_>) -> anyhow::Result<()> {
    let head = inspected.head(FILED_HEADER_BYTES as usize)?;
    let header = head.first_chunk().and_then(FiledHeader::decode);
    let bytes = inspected.file.length()?;
    if printer.args.json {
        return printer.json(&HeaderLine {
            file: &inspected.name,
            what: "filed",
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
        Some(FiledHeader { start, end, generation, log: None }) => {
            format!("header whole, {start}..{end}, generation {generation}, {bytes} bytes\n")
        }
        Some(FiledHeader { end, generation, log: Some(log), .. }) => format!(
            "header whole, what compaction left of log {} before {end}, generation {generation}, {bytes} bytes\n",
            log.0
        ),
    };
    printer.text(&text)
}
