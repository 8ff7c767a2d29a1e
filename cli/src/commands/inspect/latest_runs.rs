//! A latest-run table: its header, and the position of the newest run of each log.

use std::sync::Arc;

use serde::Serialize;
use storage::index::{BlockCache, LatestRunTable};

use super::{InspectPrinter, InspectedFile};
use crate::table::OutputTable;

#[derive(Serialize)]
struct LatestRunsHeaderLine<'a> {
    file: &'a str,
    what: &'static str,
    whole: bool,
    start: Option<u64>,
    end: Option<u64>,
    logs: Option<u64>,
    bytes: u64,
    expected_bytes: Option<u64>,
    corrupt_blocks: Vec<u64>,
}

#[derive(Serialize)]
struct LatestRunLine<'a> {
    file: &'a str,
    what: &'static str,
    log: u64,
    sealed_segment: u64,
    run: u64,
    end: u64,
}

pub(super) fn print(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let (file, cache) = (inspected.file.clone(), Arc::new(BlockCache::new(1 << 20)));
    let table = LatestRunTable::open_any(file, cache)?;
    let damaged =
        table.as_ref().map(LatestRunTable::corrupt_blocks).transpose()?.unwrap_or(vec![0]);
    print_header(inspected, table.as_ref(), &damaged, printer)?;
    let Some(table) = table else { return Ok(()) };
    if damaged.is_empty() {
        for number in 0..table.count {
            print_latest_run(inspected, &table, number, printer)?;
        }
    }
    printer.flush()
}

fn print_header(
    inspected: &InspectedFile,
    table: Option<&LatestRunTable>,
    damaged: &[u64],
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let bytes = inspected.file.length()?;
    let expected = table.map(LatestRunTable::length);
    if printer.args.json {
        return printer.json(&LatestRunsHeaderLine {
            file: &inspected.name,
            what: "latest-runs",
            whole: damaged.is_empty() && expected == Some(bytes),
            start: table.map(|table| table.range.start),
            end: table.map(|table| table.range.end),
            logs: table.map(|table| table.count),
            bytes,
            expected_bytes: expected,
            corrupt_blocks: damaged.to_vec(),
        });
    }
    let Some(first_block) = table else {
        return printer
            .text("corrupt: the first block is not whole, and it describes the others\n");
    };
    let mut table = OutputTable::new(&["what", "value"]);
    let mut row = |label: &str, value: String| table.row([label.to_owned(), value]);
    row("positions", format!("{}..{}", first_block.range.start, first_block.range.end));
    row("logs", first_block.count.to_string());
    row("bytes", bytes.to_string());
    if expected != Some(bytes) {
        row("bytes that it should have", first_block.length().to_string());
    }
    let damaged: Vec<String> = damaged.iter().map(u64::to_string).collect();
    row("corrupt blocks", if damaged.is_empty() { "none".into() } else { damaged.join(", ") });
    printer.table(&table)
}

fn print_latest_run(
    inspected: &InspectedFile,
    table: &LatestRunTable,
    number: u64,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let head = table.latest_run_at(number)?;
    let (log, segment, run, end) = (head.log.0, head.segment, head.number, head.end.0);
    if printer.args.json {
        let (file, what) = (inspected.name.as_str(), "latest-run");
        return printer.json(&LatestRunLine { file, what, log, sealed_segment: segment, run, end });
    }
    printer.row(
        &["log", "sealed segment", "run", "end"],
        [log, segment, run, end].map(|n| n.to_string()),
    )
}
