//! `freezeframe cat`: the contents of a topic or partition, to its end.

use fileview::{Format, RenderError, Selection};

use super::Server;
use crate::moments::{At, TypedPath};
use crate::output::{Output, UsageError};
use crate::reading::Source;

/// Arguments of `cat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PATH is TOPIC, TOPIC/PARTITION, or either with @MOMENT or @FIRST..SECOND behind
it. It reads to the end as of now, or as of the moment, and never follows. Of
several partitions, one comes after the other.

A moment of system time gives what the server had accepted before it. A moment
of user time gives the exact set of records that say of themselves that they
happened before it.

Examples:
  freezeframe cat orders
  freezeframe cat orders/0 --format jsonl
  freezeframe cat 'orders@5 minutes ago'
  freezeframe cat orders --at 'yesterday 14:00..yesterday 15:00'
  freezeframe cat 'orders@u:2026-11-21 09:00'
  freezeframe cat orders/0 --format raw > orders-0.batches")]
pub(crate) struct Args {
    /// TOPIC or TOPIC/PARTITION, and @MOMENT behind it if wanted
    #[arg(value_parser = TypedPath::parse)]
    path: TypedPath,
    /// The moment, if it is not in the path.
    #[arg(long, value_parser = At::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<At>,
    /// How the contents look.
    #[arg(long, short, value_enum, default_value = "values")]
    format: FormatArg,
}

/// Formats, on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum FormatArg {
    /// The batches, byte for byte as they are on the wire.
    Raw,
    /// Each value and a newline.
    Values,
    /// One JSON object a record and line; `produce --json` reads it.
    Jsonl,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Format {
        match format {
            FormatArg::Raw => Format::Raw,
            FormatArg::Values => Format::Values,
            FormatArg::Jsonl => Format::Jsonl,
        }
    }
}

/// Prints it.
pub(crate) async fn run(args: Args, server: &Server) -> anyhow::Result<()> {
    let path = args.path.with_at(args.at)?;
    let is_user = path.at.as_ref().is_some_and(|at| Selection::user_times(&at.ask).is_some());
    if is_user && matches!(args.format, FormatArg::Raw) {
        return Err(UsageError(RenderError::RawOfUserTime.to_string()).into());
    }
    let mut client = server.connect().await?;
    let source = Source::find(&mut client, &path).await?;
    let bounds = source.bounds(&mut client, &path).await?;
    let mut output = Output::lock();
    let mut out = Vec::new();
    for bound in &bounds {
        let mut reader = source.reader(std::slice::from_ref(bound), args.format.into())?;
        while !reader.is_done() {
            let read = reader.step(&mut client, u64::MAX, &mut out).await;
            // What came before an error is shown before the error is.
            output.bytes(&out)?;
            out.clear();
            if read.is_err() {
                output.flush()?;
            }
            read?;
        }
    }
    Ok(output.flush()?)
}
