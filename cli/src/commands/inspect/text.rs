//! Text files.

use serde::Serialize;
use storage::{DirectoryIdentity, IdentityError};

use super::{InspectPrinter, InspectedFile};
use crate::table::OutputTable;

/// A longer file is not one of ours.
const BYTES_MAX: usize = 4 << 10;
const CORRUPT: &str = "corrupt";

#[derive(Serialize)]
struct TextLine<'a> {
    file: &'a str,
    what: &'a str,
    value: &'a str,
}

pub(super) fn print_identity(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let bytes = inspected.read_prefix(BYTES_MAX)?;
    let decoded = DirectoryIdentity::decode(&bytes);
    let corrupt = match &decoded {
        Err(error @ IdentityError::Corrupt) => Some(error.to_string()),
        Ok(_) | Err(IdentityError::Format { .. }) => None,
    };
    match identity(&bytes) {
        Some(lines) => {
            let corrupt = corrupt.iter().map(|reason| (CORRUPT, reason.as_str()));
            print(&inspected.name, lines.into_iter().chain(corrupt), printer)
        }
        None => {
            let reason = "it is not lines of a word and a value, of which `format` is the first";
            print(&inspected.name, [(CORRUPT, reason)].into_iter(), printer)
        }
    }
}

/// Names and values; `None` if it is not an identity file.
fn identity(bytes: &[u8]) -> Option<Vec<(&str, &str)>> {
    let text = text(bytes)?;
    let lines: Option<Vec<_>> = text.lines().map(|line| line.split_once(' ')).collect();
    lines.filter(|lines| lines.first().is_some_and(|(name, _)| *name == "format"))
}

pub(super) fn print_lock(
    inspected: &InspectedFile,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let bytes = inspected.read_prefix(BYTES_MAX)?;
    let line = match text(&bytes).map(str::trim) {
        Some("") => ("last holder's process id", "not known"),
        Some(id) if id.parse::<u32>().is_ok() => ("last holder's process id", id),
        _ => (CORRUPT, "it is no process id; the lock still holds"),
    };
    print(&inspected.name, [line].into_iter(), printer)
}

/// The bytes as text; `None` if they are not text, or could confuse a terminal.
fn text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.chars().all(|c| c == '\n' || !c.is_control()).then_some(text)
}

fn print<'a>(
    file: &str,
    lines: impl Iterator<Item = (&'a str, &'a str)>,
    printer: &mut InspectPrinter<'_>,
) -> anyhow::Result<()> {
    let mut table = OutputTable::new(&["what", "value"]);
    for (what, value) in lines {
        if printer.args.json {
            printer.json(&TextLine { file, what, value })?;
        } else {
            table.row([what.to_owned(), value.to_owned()]);
        }
    }
    if printer.args.json { Ok(()) } else { printer.table(&table) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_lines_of_a_name_and_a_value_and_nothing_else_is() {
        let identity_text = identity(b"format 2\ncluster abc\n").unwrap();
        assert_eq!(identity_text, [("format", "2"), ("cluster", "abc")]);
        for text in
            [&b""[..], b"cluster abc\n", b"format\n", b"format 2\n\n", b"\xff", b"format \x1b[31m"]
        {
            assert_eq!(identity(text), None, "{text:?}");
        }
    }
}
