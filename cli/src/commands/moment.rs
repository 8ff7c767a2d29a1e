//! `freezeframe moment`: says which moment it is, and what a moment is called elsewhere.

use std::io::IsTerminal;

use client::history::moment_topic;
use hlc::{Moment, MomentSelector};
use serde::Serialize;

use super::ServerAddress;
use crate::moments::{MomentArg, dates_of, utc_dates_of};
use crate::output::StandardOutput;
use crate::table::OutputTable;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a text it is now: the moment has all that was acknowledged before, and
nothing that is accepted later. A script keeps it, and reads as of it whenever
it likes; the answer is the same.

Into a pipe it prints the moment alone. On a terminal it prints what the moment
is called elsewhere too.

Examples:
  T=$(freezeframe moment); deploy; freezeframe diff $T
  freezeframe moment 'yesterday 14:00'
  freezeframe moment pin:audit --json
  freezeframe moment orders/0:17         when that record was accepted")]
pub(crate) struct MomentCliArgs {
    /// A moment or a window, however it is spelled. The default is now.
    #[arg(value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    moment: Option<MomentArg>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The spellings of a moment.
#[derive(Serialize)]
struct MomentNames {
    at: String,
    /// RFC 3339.
    date: String,
    /// The time in milliseconds since 1970, if it is no window.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_ms: Option<i64>,
    /// The end of a topic's name for a Kafka client.
    topic_suffix: String,
    /// The directory in the tree of files, and below a mount.
    path: String,
}

pub(crate) async fn run(args: MomentCliArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let ask = match &args.moment {
        Some(moment) => moment.ask(),
        None => MomentSelector::At(Moment::Sys(server.connect().await?.now().await?)),
    };
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&names_of(&ask))?;
    } else if std::io::stdout().is_terminal() {
        let MomentNames { at, topic_suffix, path, .. } = names_of(&ask);
        let mut table = OutputTable::new(&["spelled", "moment"]);
        table.row(["moment".to_owned(), at.clone()]);
        table.row(["date".to_owned(), dates_of(&ask)]);
        table.row(["topic of a Kafka client".to_owned(), format!("orders{topic_suffix}")]);
        table.row(["file, also below a mount".to_owned(), format!("{path}/topics/orders")]);
        if matches!(ask, MomentSelector::At(Moment::Sys(_))) {
            table.row(["chroot of a ZooKeeper client".to_owned(), format!("HOST:2181/.at/{at}")]);
        }
        output.table(&table)?;
    } else {
        output.bytes(format!("{ask}\n").as_bytes())?;
    }
    Ok(output.flush()?)
}

fn names_of(ask: &MomentSelector) -> MomentNames {
    let at_ms = match ask {
        MomentSelector::At(Moment::Sys(cut)) => i64::try_from(cut.bound().time().0).ok(),
        MomentSelector::At(Moment::User { before, .. }) => Some(before.0),
        MomentSelector::Window(..) => None,
    };
    MomentNames {
        at: ask.to_string(),
        date: utc_dates_of(ask),
        at_ms,
        topic_suffix: moment_topic("", ask),
        path: format!("/.at/{ask}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_a_name_in_each_dialect() {
        let names = names_of(&"s1795251600123".parse().unwrap());
        assert_eq!(names.at_ms, Some(1_795_251_600_123));
        assert_eq!(names.date, "2026-11-21T09:00:00.123Z");
        assert_eq!(names.topic_suffix, ".__at.s1795251600123");
        assert_eq!(names.path, "/.at/s1795251600123");
        assert_eq!(names_of(&"s5..s6".parse().unwrap()).at_ms, None);
    }
}
