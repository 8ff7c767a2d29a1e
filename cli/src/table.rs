//! Tables in the output: framed for people, tab-separated for programs.

pub(crate) use comfy_table::Color;
use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Width, presets,
};

/// Words up to this length are never broken, such as times, hashes and moments.
const WORD_MAX: usize = 40;
/// The width around a cell: a blank on either side, and what separates it from the next one.
const AROUND_CELL: usize = 3;

/// Rows under headings.
#[derive(Debug)]
pub(crate) struct OutputTable {
    headings: &'static [&'static str],
    rows: Vec<Vec<String>>,
    marks: &'static [(&'static str, Color)],
}

impl OutputTable {
    /// Creates an empty table.
    pub(crate) fn new(headings: &'static [&'static str]) -> OutputTable {
        OutputTable { headings, rows: Vec::new(), marks: &[] }
    }

    /// The same table, whose cells with one of these texts have its colour on a terminal.
    pub(crate) fn with_marks(self, marks: &'static [(&'static str, Color)]) -> OutputTable {
        OutputTable { marks, ..self }
    }

    /// Adds a row: one cell for each heading.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.headings.len(), "a cell for each heading");
        self.rows.push(cells);
    }

    /// The number of rows.
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// One line a row, with tabs between the cells and no headings. A tab or newline inside a cell
    /// becomes a space, because it would break the format.
    pub(crate) fn plain(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<_> =
                row.iter().map(|cell| cell.replace(['\t', '\n', '\r'], " ")).collect();
            text.push_str(&cells.join("\t"));
            text.push('\n');
        }
        text
    }

    /// A framed table for a terminal. Numbers are aligned to the right.
    pub(crate) fn framed(&self, colours: bool) -> String {
        self.framed_in(comfy_table::Table::new().width(), colours)
    }

    fn framed_in(&self, width: Option<u16>, colours: bool) -> String {
        let words = self.words();
        let needed = words.iter().map(|word| word + AROUND_CELL).sum::<usize>() + 1;
        // Some terminals report a width of 0.
        let width = width.filter(|width| *width > 0);
        if width.is_some_and(|width| usize::from(width) < needed) {
            return self.stacked(colours);
        }
        let mut table = comfy_table::Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        match width {
            Some(width) => {
                table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic)
            }
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        if colours {
            table.enforce_styling();
        }
        table.set_header(self.headings.iter().map(|heading| {
            let cell = Cell::new(heading);
            if colours { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| {
                let is_number = !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit());
                let side = if is_number { CellAlignment::Right } else { CellAlignment::Left };
                let mark = self.marks.iter().find(|(text, _)| colours && text == cell);
                let cell = Cell::new(printable(cell)).set_alignment(side);
                match mark {
                    Some((_, colour)) => cell.fg(*colour),
                    None => cell,
                }
            }));
        }
        for (column, word) in table.column_iter_mut().zip(words) {
            let width = u16::try_from(word + AROUND_CELL - 1).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
        }
        format!("{table}\n")
    }

    /// A line for each cell that has something, and a blank line between rows: for a terminal that
    /// is too narrow.
    fn stacked(&self, colours: bool) -> String {
        let wide = self.headings.iter().map(|heading| heading.chars().count()).max().unwrap_or(0);
        let (bold, end) = if colours { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let rows = self.rows.iter().map(|row| {
            let cells = self.headings.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
            cells
                .map(|(heading, cell)| format!("{bold}{heading:wide$}{end}  {}\n", printable(cell)))
                .collect::<String>()
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    /// The length of the longest unbreakable word in each column.
    fn words(&self) -> Vec<usize> {
        let longest = |text: &str| {
            text.split(' ').map(|word| word.chars().count().min(WORD_MAX)).max().unwrap_or(0)
        };
        let of_column = |nth: usize| {
            let cells = self.rows.iter().map(|row| longest(&row[nth]));
            cells.max().unwrap_or(0).max(longest(self.headings[nth]))
        };
        (0..self.headings.len()).map(of_column).collect()
    }
}

/// The text without characters that a terminal obeys.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> OutputTable {
        let mut table = OutputTable::new(&["topic", "end"]);
        table.row(["a".to_owned(), "17".to_owned()]);
        table.row(["b\tc\nd".to_owned(), "3".to_owned()]);
        table
    }

    #[test]
    fn in_a_pipe_a_row_is_a_line_and_a_cell_never_breaks_it() {
        assert_eq!(table().plain(), "a\t17\nb c d\t3\n");
    }

    #[test]
    fn on_a_terminal_there_are_headings_and_no_control_characters_get_through() {
        let mut table = table();
        table.row(["\x1b[31mred".to_owned(), "0".to_owned()]);
        let text = table.framed(false);
        assert!(text.contains("topic") && text.contains("17"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn in_a_narrow_terminal_no_time_and_no_hash_is_broken() {
        let mut table = OutputTable::new(&["change", "of", "note"]);
        let (time, hash) = ("2026-11-21T09:00:00.000Z", "0123456789abcdef0123456789abcdef");
        let long_text = "a setting and another setting and one more setting of this topic";
        table.row([
            "topic created".to_owned(),
            format!("{long_text} until {time}"),
            hash.to_owned(),
        ]);
        for width in [0, 20, 40, 80, 100, 200] {
            let text = table.framed_in(Some(width), false);
            assert!(text.contains(time) && text.contains(hash), "{width}: {text}");
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(width < 80 || widest <= usize::from(width), "{width}: {text}");
        }
    }

    #[test]
    fn where_a_table_does_not_fit_each_cell_is_a_line() {
        let mut table = OutputTable::new(&["zxid", "by", "note"]);
        table.row(["0x1".to_owned(), String::new(), "a\tb".to_owned()]);
        table.row(["0x2".to_owned(), "alice".to_owned(), "c".to_owned()]);
        let expected = "zxid  0x1\nnote  a\u{fffd}b\n\nzxid  0x2\nby    alice\nnote  c\n";
        assert_eq!(table.framed_in(Some(10), false), expected);
        assert!(table.framed_in(Some(40), false).starts_with('\u{250c}'));
    }

    #[test]
    fn colours_are_used_only_when_asked_for() {
        assert!(table().framed(true).contains('\x1b'));
    }
}
