//! `freezeframe transactions`: transactional ids, their transactions, and the end of one that is
//! stuck.

use std::collections::BTreeMap;
use std::time::Duration;

use client::Client;
use hlc::SysTime;
use serde::Serialize;

use super::ServerAddress;
use crate::moments::date;
use crate::output::{StandardOutput, note, print_list_or};
use crate::table::OutputTable;

/// The time that an aborted id's next transaction may be open; none is begun.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Readers of committed records wait for a transaction that is open. The server
aborts it after its timeout; abort does it now, and fences its producer, which
cannot go on with it.

Examples:
  freezeframe transactions
  freezeframe transactions describe shop-1
  freezeframe transactions abort shop-1"
)]
pub(crate) struct TransactionsArgs {
    #[command(subcommand)]
    command: Option<TransactionsCommand>,
    #[command(flatten)]
    list: ListTransactionsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum TransactionsCommand {
    /// List transactional ids, and the state of each (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe transactions list
  freezeframe transactions list --json")]
    List(ListTransactionsArgs),
    /// Show the transaction of an id.
    #[command(after_help = "\
Examples:
  freezeframe transactions describe shop-1
  freezeframe transactions describe shop-1 --json")]
    Describe(DescribeTransactionArgs),
    /// Abort the open transaction of an id, and fence its producer.
    #[command(after_help = "\
Examples:
  freezeframe transactions abort shop-1")]
    Abort(AbortTransactionArgs),
}

#[derive(Debug, clap::Args)]
struct ListTransactionsArgs {
    /// Print one JSON object a line for each transactional id.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct DescribeTransactionArgs {
    /// The transactional id.
    id: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct AbortTransactionArgs {
    /// The transactional id.
    id: String,
}

#[derive(Serialize)]
struct TransactionListItem<'a> {
    id: &'a str,
    state: &'a str,
}

#[derive(Serialize)]
struct TransactionDetail<'a> {
    id: &'a str,
    state: &'a str,
    producer: i64,
    epoch: i16,
    began_ms: Option<i64>,
    timeout_ms: i32,
    partitions: &'a BTreeMap<String, Vec<i32>>,
}

pub(crate) async fn run(args: TransactionsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut client = server.connect().await?;
    match args.command.unwrap_or(TransactionsCommand::List(args.list)) {
        TransactionsCommand::List(args) => list(&mut client, args.json).await,
        TransactionsCommand::Describe(args) => describe(&mut client, &args).await,
        TransactionsCommand::Abort(AbortTransactionArgs { id }) => {
            // The next request would create an unknown id.
            client.describe_transaction(&id).await?;
            client.begin_transaction(&id, TIMEOUT).await?;
            note(&format!("aborted what was open of {id}; its producer is fenced"));
            Ok(())
        }
    }
}

async fn list(client: &mut Client, json: bool) -> anyhow::Result<()> {
    let transactions = client.transactions().await?;
    let items = transactions
        .iter()
        .map(|(id, state)| (TransactionListItem { id, state }, [id.clone(), state.clone()]));
    let hint = "no producer has a transactional id";
    print_list_or(json, &["transactional id", "state"], items, hint)
}

async fn describe(client: &mut Client, args: &DescribeTransactionArgs) -> anyhow::Result<()> {
    let transaction = client.describe_transaction(&args.id).await?;
    let (producer, epoch) = transaction.producer;
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&TransactionDetail {
            id: &transaction.id,
            state: &transaction.state,
            producer,
            epoch,
            began_ms: transaction.began_ms,
            timeout_ms: transaction.timeout_ms,
            partitions: &transaction.partitions,
        })?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["what", "value"]);
    let mut row = |label: &str, value: String| table.row([label.to_owned(), value]);
    row("transactional id", transaction.id.clone());
    row("state", transaction.state.clone());
    row("producer", format!("{producer}, epoch {epoch}"));
    let began = transaction.began_ms.and_then(|ms| u64::try_from(ms).ok());
    row("began", began.map_or_else(|| "-".to_owned(), |ms| date(SysTime(ms))));
    row("timeout", format!("{} s", f64::from(transaction.timeout_ms) / 1000.0));
    for (topic, partitions) in &transaction.partitions {
        let partitions: Vec<String> = partitions.iter().map(i32::to_string).collect();
        row(topic, partitions.join(","));
    }
    output.table(&table)?;
    Ok(output.flush()?)
}
