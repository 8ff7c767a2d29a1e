//! Files that are text already.

use serde::Serialize;

use super::{Inspected, Printer};
use crate::table::Table;

/// Longer ones are none of ours.
const BYTES_MAX: usize = 64 << 10;

#[derive(Serialize)]
struct Line<'a> {
    file: &'a str,
    what: &'a str,
    value: &'a str,
}

pub(super) fn print_identity(
    inspected: &Inspected,
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let bytes = inspected.head(BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    print(&inspected.name, lines, printer)
}

pub(super) fn print_lock(inspected: &Inspected, printer: &mut Printer<'_>) -> anyhow::Result<()> {
    let bytes = inspected.head(BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    print(&inspected.name, [("last holder's process id", text.trim())].into_iter(), printer)
}

fn print<'a>(
    file: &str,
    lines: impl Iterator<Item = (&'a str, &'a str)>,
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let mut table = Table::new(&["what", "value"]);
    for (what, value) in lines {
        if printer.args.json {
            printer.json(&Line { file, what, value })?;
        } else {
            table.row([what.to_owned(), value.to_owned()]);
        }
    }
    if printer.args.json { Ok(()) } else { printer.table(&table) }
}
