//! `zk log`, `zk diff`, `zk watch` and `zk restore`.

use std::time::Duration;

use client::zookeeper::{
    ZkClient, ZnodeChangeName, ZnodeDiffEntry, ZnodeDiffRequest, ZnodeDiffResponse,
    ZnodeHistoryRequest, ZnodeLogEntry, ZnodeLogRequest, ZnodeLogResponse, ZnodeRestoreRequest,
    ZnodeRestoreResponse, ZnodeSummary,
};

use super::{moment_text, parse_znode};
use crate::commands::topics::stamp_date;
use crate::moments::MomentArg;
use crate::output::{StandardOutput, counted};
use crate::table::OutputTable;

/// The longest wait of the server for a moment.
const MOMENT_WAIT: Duration = Duration::from_secs(60);
/// The longest wait of one request of `watch` for a change.
const WATCH_WAIT: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk log /app/config
  freezeframe zk log /app --recursive --from '1 hour ago'
  freezeframe zk log /app/config --json          with the data, in base64")]
pub(super) struct ZnodeLogArgs {
    /// The znode.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// Changes of the znodes below it too. It reads all transactions between the moments.
    #[arg(long, short)]
    recursive: bool,
    /// Only changes from this moment on.
    #[arg(long, value_parser = MomentArg::parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    from: Option<MomentArg>,
    /// Only changes before this moment.
    #[arg(long, value_parser = MomentArg::parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    until: Option<MomentArg>,
    /// Print one JSON object a line for each transaction.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk diff /app '1 hour ago' now
  freezeframe zk diff / s1795252940000 s1795252948259 --json")]
pub(super) struct ZnodeDiffArgs {
    /// The znode at and below which to compare.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// The earlier moment.
    #[arg(value_parser = MomentArg::parse_system_moment, value_name = "FROM", allow_hyphen_values = true)]
    from: MomentArg,
    /// The later moment.
    #[arg(value_parser = MomentArg::parse_system_moment, value_name = "UNTIL", allow_hyphen_values = true)]
    until: MomentArg,
    /// Print one JSON object a line for each znode.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
No change is missed, whatever came between two runs: give the last zxid of one
run to the next one.

Examples:
  freezeframe zk watch /app --recursive
  freezeframe zk watch /app/config --from 0    everything kept, and on
  freezeframe zk watch / --recursive --from 0x1f3 --json")]
pub(super) struct WatchZnodeArgs {
    /// The znode.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// Changes of the znodes below it too.
    #[arg(long, short)]
    recursive: bool,
    /// Begin after this transaction; without it, with what comes from now on.
    #[arg(long, value_name = "ZXID", value_parser = parse_zxid)]
    from: Option<i64>,
    /// Print one JSON object a line for each transaction.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What was created since is deleted, what was deleted is created, and data and
access control lists are set to what they were: all of it, or nothing. Ephemeral
znodes are left as they are. Versions and the numbers of sequential znodes go
on. A znode of another kind (with a time to live, or a container) is deleted
first, with all below it. If something changes meanwhile, it is tried again.

Examples:
  freezeframe zk restore /app --at '1 hour ago' --dry-run
  freezeframe zk restore /app --at s1795252948259")]
pub(super) struct RestoreZnodeArgs {
    /// The top of the subtree.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// The moment.
    #[arg(long, value_parser = MomentArg::parse_system_moment, value_name = "MOMENT", allow_hyphen_values = true)]
    at: MomentArg,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn parse_zxid(text: &str) -> Result<i64, String> {
    let zxid = match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    zxid.ok().filter(|zxid| *zxid >= 0).ok_or_else(|| "give a zxid: 500 or 0x1f4".to_owned())
}

pub(super) async fn log(client: &mut ZkClient, args: &ZnodeLogArgs) -> anyhow::Result<()> {
    let mut request = ZnodeLogRequest {
        path: args.path.clone(),
        recursive: args.recursive,
        from: args.from.as_ref().map(moment_text),
        until: args.until.as_ref().map(moment_text),
        ..ZnodeLogRequest::default()
    };
    let mut printed = 0;
    loop {
        let page = log_page(client, &request, MOMENT_WAIT).await?;
        printed += page.transactions.len();
        print_log(&page.transactions, args.json)?;
        if page.complete {
            break;
        }
        request.after = Some(page.through);
    }
    if printed == 0 {
        eprintln!("{} did not change", args.path);
    }
    Ok(())
}

pub(super) async fn watch(client: &mut ZkClient, args: WatchZnodeArgs) -> anyhow::Result<()> {
    let after = match args.from {
        Some(zxid) => zxid,
        // Nothing comes after the last transaction yet: the answer only says which one that is.
        None => {
            let request = ZnodeLogRequest {
                path: args.path.clone(),
                after: Some(i64::MAX),
                ..ZnodeLogRequest::default()
            };
            log_page(client, &request, Duration::ZERO).await?.through
        }
    };
    let mut request = ZnodeLogRequest {
        path: args.path,
        recursive: args.recursive,
        after: Some(after),
        wait_ms: WATCH_WAIT.as_millis() as u64,
        ..ZnodeLogRequest::default()
    };
    loop {
        let page = log_page(client, &request, WATCH_WAIT).await?;
        print_log(&page.transactions, args.json)?;
        request.after = Some(page.through);
    }
}

async fn log_page(
    client: &mut ZkClient,
    request: &ZnodeLogRequest,
    wait: Duration,
) -> anyhow::Result<ZnodeLogResponse> {
    let request = ZnodeHistoryRequest::Log(request.clone());
    Ok(client.request_history(&request, wait).await?)
}

fn change_name(kind: ZnodeChangeName) -> &'static str {
    match kind {
        ZnodeChangeName::Created => "created",
        ZnodeChangeName::Deleted => "deleted",
        ZnodeChangeName::DataChanged => "data",
        ZnodeChangeName::AclChanged => "acl",
        ZnodeChangeName::SequenceRaised => "sequence",
    }
}

fn print_log(entries: &[ZnodeLogEntry], json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        entries.iter().try_for_each(|entry| output.json(entry))?;
        return Ok(output.flush()?);
    }
    let headings = &["zxid", "time", "change", "path", "version", "bytes", "session", "by"];
    let mut table = OutputTable::new(headings);
    for entry in entries {
        for change in &entry.changes {
            table.row([
                format!("{:#x}", entry.zxid),
                stamp_date(entry.stamp),
                change_name(change.kind).to_owned(),
                change.path.clone(),
                change.znode.version.to_string(),
                change.znode.data_length.to_string(),
                entry.session.clone(),
                if entry.by.is_empty() { "-".to_owned() } else { entry.by.clone() },
            ]);
        }
    }
    if table.count() > 0 {
        output.table(&table)?;
    }
    Ok(output.flush()?)
}

pub(super) async fn diff(client: &mut ZkClient, args: ZnodeDiffArgs) -> anyhow::Result<()> {
    let mut request = ZnodeDiffRequest {
        path: args.path,
        from: moment_text(&args.from),
        until: moment_text(&args.until),
        after: None,
        limit: None,
    };
    loop {
        let history_request = ZnodeHistoryRequest::Diff(request.clone());
        let page: ZnodeDiffResponse = client.request_history(&history_request, MOMENT_WAIT).await?;
        print_diff(&page.changes, args.json)?;
        match page.next {
            Some(next) => request.after = Some(next),
            None => return Ok(()),
        }
    }
}

fn print_diff(changes: &[ZnodeDiffEntry], json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        changes.iter().try_for_each(|change| output.json(change))?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["change", "path", "before", "after"]);
    let summary = |znode: &Option<ZnodeSummary>| match znode {
        Some(ZnodeSummary { version, aversion: 0, data_length, .. }) => {
            format!("version {version}, {}", counted(*data_length as u64, "byte"))
        }
        Some(ZnodeSummary { version, aversion, data_length, .. }) => {
            let bytes = counted(*data_length as u64, "byte");
            format!("version {version}, {bytes}, acl version {aversion}")
        }
        None => "-".to_owned(),
    };
    for change in changes {
        let kind = match (&change.before, &change.after) {
            (None, _) => "created",
            (Some(_), None) => "deleted",
            (Some(_), Some(_)) => "changed",
        };
        let (before, after) = (summary(&change.before), summary(&change.after));
        table.row([kind.to_owned(), change.path.clone(), before, after]);
    }
    if table.count() > 0 {
        output.table(&table)?;
    }
    Ok(output.flush()?)
}

pub(super) async fn restore(client: &mut ZkClient, args: &RestoreZnodeArgs) -> anyhow::Result<()> {
    let (path, at) = (args.path.clone(), moment_text(&args.at));
    let request = ZnodeRestoreRequest { path, at, dry_run: args.dry_run };
    let request = ZnodeHistoryRequest::Restore(request);
    let response: ZnodeRestoreResponse = client.request_history(&request, MOMENT_WAIT).await?;
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&response)?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["change", "path"]);
    for change in &response.changes {
        table.row([change_name(change.kind).to_owned(), change.path.clone()]);
    }
    if table.count() > 0 {
        output.table(&table)?;
    }
    output.flush()?;
    match response.zxid {
        Some(zxid) => eprintln!("{} in transaction {zxid:#x}", counted(table.count(), "change")),
        None if table.count() == 0 => eprintln!("{} is as it was then", args.path),
        None => eprintln!("nothing is changed: this is a dry run"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zxid_is_a_number_in_either_base() {
        assert_eq!(parse_zxid("500"), Ok(500));
        assert_eq!(parse_zxid("0x1f4"), Ok(500));
        for refused in ["", "-1", "0x", "x"] {
            assert!(parse_zxid(refused).is_err(), "{refused}");
        }
    }
}
