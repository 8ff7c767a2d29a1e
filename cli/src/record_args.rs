//! The format and the order in which `cat` and `consume` print records.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::bail;
use client::Client;
use fileview::{RecordLayout, RecordTemplate, ViewFormat};
use hlc::Cut;
use jiff::tz::TimeZone;

use crate::moments::display_zone;
use crate::time_order::TimeOrderedReader;
use crate::topic_reader::{TopicReader, present};

/// The format and the order of records.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// values, jsonl (`produce --json` reads it), raw (the batches, byte for byte), or a layout
    /// such as '%t/%p %o %k=%v'
    #[arg(long, short, default_value = "values", value_parser = RecordFormat::parse)]
    pub(crate) format: RecordFormat,
    /// Several partitions in the order in which records were accepted, or one partition after the
    /// other [default: time on a terminal]
    #[arg(long, value_enum, value_name = "ORDER")]
    by: Option<OrderArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OrderArg {
    Time,
    Partition,
}

/// The end of a help text, which explains the layouts of `--format`.
macro_rules! layout_help {
    () => {
        "\
Layouts have kcat's letters: %t topic, %p partition, %o offset, %k key, %v value
(%s too), %h headers, %T timestamp, %K and %S lengths, %% and \\n, \\t, \\xHH. Ours
are %A when the server accepted it, %d and %a the two times as dates, and %m its
stamp, which --at takes: what was accepted before it."
    };
}
pub(crate) use layout_help;

/// The format of printed records.
#[derive(Clone, Debug)]
pub(crate) enum RecordFormat {
    View(ViewFormat),
    Template(RecordTemplate),
}

impl RecordFormat {
    fn parse(text: &str) -> Result<RecordFormat, String> {
        Ok(match text {
            "values" => RecordFormat::View(ViewFormat::Values),
            "jsonl" => RecordFormat::View(ViewFormat::Jsonl),
            "raw" => RecordFormat::View(ViewFormat::Raw),
            layout if layout.contains(['%', '\\']) => {
                let template = RecordTemplate::parse(layout, TimeZone::UTC);
                RecordFormat::Template(template.map_err(|error| error.to_string())?)
            }
            _ => {
                return Err("give values, jsonl, raw, or a layout such as '%t/%p %o %v'".to_owned());
            }
        })
    }

    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, RecordFormat::View(ViewFormat::Raw))
    }

    /// The layout, with dates for where it is printed.
    pub(crate) fn layout(&self) -> RecordLayout {
        match self {
            RecordFormat::View(format) => RecordLayout::View(*format),
            RecordFormat::Template(template) => {
                RecordLayout::Template(Arc::new(template.clone().in_zone(display_zone())))
            }
        }
    }
}

impl RecordArgs {
    /// Returns true if this many partitions are to be printed in the order of time.
    pub(crate) fn is_by_time(&self, partitions: usize) -> bool {
        match self.by {
            Some(order) => order == OrderArg::Time,
            None => partitions > 1 && std::io::stdout().is_terminal() && !self.format.is_raw(),
        }
    }

    /// True if the user asked for the order of time.
    pub(crate) fn wants_time(&self) -> bool {
        self.by == Some(OrderArg::Time)
    }

    /// The extension of the files in the tree that have records in this format, one partition after
    /// the other.
    pub(crate) fn extension(&self) -> Option<&'static str> {
        match self.format {
            RecordFormat::View(ViewFormat::Values) if !self.wants_time() => Some("values"),
            RecordFormat::View(ViewFormat::Jsonl) if !self.wants_time() => Some("jsonl"),
            _ => None,
        }
    }

    /// Now, as the server knows it; `None` if it cannot order records by time, and nobody asked for
    /// that.
    pub(crate) async fn present(&self, client: &mut Client) -> anyhow::Result<Option<Cut>> {
        match present(client).await? {
            None if self.wants_time() => {
                bail!(
                    "this server is not Freezeframe and does not say when it accepted records: leave --by time out"
                )
            }
            present => Ok(present),
        }
    }
}

/// A reader in either order.
pub(crate) enum RecordReader {
    /// Several partitions side by side.
    ByPartition(TopicReader),
    ByTime(TimeOrderedReader),
}

impl RecordReader {
    /// True if everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            RecordReader::ByPartition(reader) => reader.is_done(),
            RecordReader::ByTime(reader) => reader.is_done(),
        }
    }

    /// Appends the next records to `out`, as far as there are any, and returns their number.
    pub(crate) async fn step(
        &mut self,
        client: &mut Client,
        records_max: u64,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<u64> {
        match self {
            RecordReader::ByPartition(reader) => reader.step(client, records_max, out).await,
            RecordReader::ByTime(reader) => reader.step(client, records_max, out).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_a_name_or_a_layout() {
        assert!(RecordFormat::parse("raw").unwrap().is_raw());
        assert!(matches!(RecordFormat::parse("%k %v"), Ok(RecordFormat::Template(_))));
        for (text, hint) in [("json", "jsonl"), ("%x", "%k key"), ("", "layout")] {
            assert!(RecordFormat::parse(text).unwrap_err().contains(hint), "{text}");
        }
    }
}
