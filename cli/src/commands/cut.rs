//! `freezeframe cut`: one moment across all partitions.

use std::time::Duration;

use anyhow::Context;
use client::history::{CutRequest, CutResponse, Isolation, PendingMomentPolicy};

use super::{IsolationArgs, ServerAddress};
use crate::completion;
use crate::moments::{MomentArg, describe_ask, moment_or_now, parse_patience};
use crate::output::{StandardOutput, note_incomplete};
use crate::table::OutputTable;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A cut says for every partition which offsets had been accepted before the
moment. Its hash is the same whenever the same moment is asked for again.
By system time it is causally closed: with a record, it holds all that happened
before it. By user time (u…) it is not: it holds of each partition the prefix up
to the first record of that time or later, of what was known at the system time
after @, or at the moment that is printed.
A transaction is in it on all its partitions if it was committed before the
moment, and on none otherwise. With --isolation uncommitted, the hash stands for
all records.
What differs between two moments is for freezeframe diff.

Examples:
  freezeframe cut
  freezeframe cut --at '5 minutes ago' --topic orders --topic payments
  freezeframe cut --at s1795252948259 --json
  freezeframe cut --at u1795252948259@s1795252948259
  freezeframe cut --at now --when frontier   what can be answered at once")]
pub(crate) struct CutArgs {
    /// The moment. The default is now, with all that was acknowledged before.
    #[arg(long, value_parser = MomentArg::parse_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Only this topic. May be given more than once.
    #[arg(long, value_name = "TOPIC", value_parser = super::topics::parse_topic, add = completion::topics())]
    topic: Vec<String>,
    #[command(flatten)]
    isolation: IsolationArgs,
    /// What to do if the moment is not final yet.
    #[arg(long, value_enum, default_value = "wait")]
    when: WhenArg,
    /// How long the server may wait, at most 60s.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_patience)]
    patience: Duration,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WhenArg {
    /// Wait until it is final.
    Wait,
    /// Fail, and show the frontier.
    Refuse,
    /// Answer for the frontier instead.
    Frontier,
}

pub(crate) async fn run(args: CutArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect().await?;
    let when = match args.when {
        WhenArg::Wait => PendingMomentPolicy::Wait,
        WhenArg::Refuse => PendingMomentPolicy::Refuse,
        WhenArg::Frontier => PendingMomentPolicy::Frontier,
    };
    let moment = moment_or_now(&mut client, args.at.as_ref()).await?;
    let request = CutRequest {
        at: moment.to_string(),
        topics: (!args.topic.is_empty()).then_some(args.topic),
        when,
        patience_ms: u64::try_from(args.patience.as_millis()).ok(),
        isolation: args.isolation.isolation(),
    };
    let cut = client.cut_of(request).await.with_context(|| format!("cut at {moment}"))?;
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&cut)?;
        output.flush()?;
        note_incomplete(cut.complete);
        return Ok(());
    }
    let mut table = OutputTable::new(&["topic", "partition", "start", "end"]);
    for partition in &cut.partitions {
        table.row([
            partition.topic.clone(),
            partition.partition.to_string(),
            partition.start.to_string(),
            partition.end.to_string(),
        ]);
    }
    output.table(&table)?;
    output.flush()?;
    let at = cut.at.parse().map_or_else(|_| cut.at.clone(), |ask| describe_ask(&ask));
    let durable = if cut.durable { "on stable storage" } else { "not yet on stable storage" };
    eprintln!("at {at}\nfrontier {}, {}, {durable}", cut.frontier, precision(&cut));
    let closed = if cut.closed { "causally closed" } else { "not causally closed" };
    let isolation = match cut.isolation {
        Isolation::Committed => "committed",
        Isolation::Uncommitted => "committed or not",
    };
    eprintln!("hash {} of what is {isolation}\n{} of each partition, {closed}", cut.hash, cut.kind);
    note_incomplete(cut.complete);
    if let Some(zxid) = cut.zxid.filter(|zxid| *zxid > 0) {
        eprintln!("znodes up to zxid {zxid:#x}");
    }
    Ok(())
}

/// The precision of the times of a cut, in words.
fn precision(cut: &CutResponse) -> String {
    let (error_ms, skew_ms, ahead_ms) = (cut.clock_error_ms, cut.skew_ms, cut.ahead_ms);
    let mut text = if cut.clock_synchronised {
        format!("clock right within {error_ms} ms")
    } else {
        format!("clock not known to be synchronised, trusted within {skew_ms} ms")
    };
    if ahead_ms > 0 {
        text.push_str(&format!(", stamps {ahead_ms} ms ahead of it"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_precise_a_cut_is_is_said_in_words() {
        let text = r#"{"at":"s5","kind":"prefix","closed":true,"frontier":"sh0000000000050001","frontier_ms":5,"skew_ms":500,"clock_error_ms":3,"clock_synchronised":true,"ahead_ms":0,"durable":true,"hash":"00","partitions":[]}"#;
        let exact: CutResponse = serde_json::from_str(text).unwrap();
        assert_eq!(precision(&exact), "clock right within 3 ms");
        let vague = CutResponse { clock_synchronised: false, ahead_ms: 8, ..exact };
        let expected =
            "clock not known to be synchronised, trusted within 500 ms, stamps 8 ms ahead of it";
        assert_eq!(precision(&vague), expected);
    }
}
