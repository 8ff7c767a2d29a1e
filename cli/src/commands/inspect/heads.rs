//! A head table: its header, and where the newest run of each log stands.

use std::sync::Arc;

use serde::Serialize;
use storage::index::{BlockCache, HeadTable};

use super::{Inspected, Printer};
use crate::table::Table;

#[derive(Serialize)]
struct HeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    start: Option<u64>,
    end: Option<u64>,
    logs: Option<u64>,
    bytes: u64,
    expected_bytes: Option<u64>,
    damaged_blocks: Vec<u64>,
}

#[derive(Serialize)]
struct HeadLine<'a> {
    file: &'a str,
    what: &'static str,
    log: u64,
    part: u64,
    run: u64,
    end: u64,
}

pub(super) fn print(inspected: &Inspected, printer: &mut Printer<'_>) -> anyhow::Result<()> {
    let (file, cache) = (Arc::clone(&inspected.file), Arc::new(BlockCache::new(1 << 20)));
    let table = HeadTable::open_any(&inspected.name, file, cache)?;
    let damaged = table.as_ref().map(HeadTable::damaged_blocks).transpose()?.unwrap_or(vec![0]);
    print_header(inspected, table.as_ref(), &damaged, printer)?;
    let Some(table) = table else { return Ok(()) };
    if damaged.is_empty() {
        for number in 0..table.count {
            print_head(inspected, &table, number, printer)?;
        }
    }
    printer.flush()
}

fn print_header(
    inspected: &Inspected,
    table: Option<&HeadTable>,
    damaged: &[u64],
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let bytes = inspected.file.length()?;
    let expected = table.map(HeadTable::length);
    if printer.args.json {
        return printer.json(&HeaderLine {
            file: &inspected.name,
            what: "heads",
            whole: damaged.is_empty() && expected == Some(bytes),
            start: table.map(|table| table.stretch.start),
            end: table.map(|table| table.stretch.end),
            logs: table.map(|table| table.count),
            bytes,
            expected_bytes: expected,
            damaged_blocks: damaged.to_vec(),
        });
    }
    let Some(held) = table else {
        return printer
            .text("damaged: the first block is not whole, and says what the others are\n");
    };
    let mut table = Table::new(&["what", "value"]);
    let mut row = |what: &str, value: String| table.row([what.to_owned(), value]);
    row("stretch", format!("{}..{}", held.stretch.start, held.stretch.end));
    row("logs", held.count.to_string());
    row("bytes", bytes.to_string());
    if expected != Some(bytes) {
        row("bytes that it should have", held.length().to_string());
    }
    let damaged: Vec<String> = damaged.iter().map(u64::to_string).collect();
    row("damaged blocks", if damaged.is_empty() { "none".into() } else { damaged.join(", ") });
    printer.table(&table)
}

fn print_head(
    inspected: &Inspected,
    table: &HeadTable,
    number: u64,
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let head = table.head_at(number)?;
    let (log, part, run, end) = (head.log.0, head.part, head.number, head.end.0);
    if printer.args.json {
        let (file, what) = (inspected.name.as_str(), "head");
        return printer.json(&HeadLine { file, what, log, part, run, end });
    }
    printer.row(&["log", "part", "run", "end"], [log, part, run, end].map(|n| n.to_string()))
}
