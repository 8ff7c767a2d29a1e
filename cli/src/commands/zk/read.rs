//! `zk ls`, `zk get` and `zk stat`.

use client::zookeeper::{ZkClient, ZnodeStat, ZooKeeperCode};
use hlc::SysTime;
use serde::Serialize;

use super::write::acl_text;
use super::{ZnodeAtArgs, child_of};
use crate::moments::date;
use crate::output::{StandardOutput, print_list};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk ls /
  freezeframe zk ls -l /app --at 'yesterday 14:00'")]
pub(super) struct LsZnodeArgs {
    #[command(flatten)]
    znode: ZnodeAtArgs,
    /// Show versions, sizes and times too.
    #[arg(long, short)]
    long: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk get /app/config
  freezeframe zk get /app/config --at '1 hour ago' > config.then")]
pub(super) struct GetZnodeArgs {
    #[command(flatten)]
    znode: ZnodeAtArgs,
    /// Print binary data to a terminal too.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk stat /app/config
  freezeframe zk stat /app/config --at '1 hour ago' --json")]
pub(super) struct StatZnodeArgs {
    #[command(flatten)]
    znode: ZnodeAtArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// All about a znode but its data.
#[derive(Serialize)]
struct ZnodeStatItem {
    path: String,
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    ctime_ms: i64,
    mtime_ms: i64,
    version: i32,
    cversion: i32,
    aversion: i32,
    ephemeral_owner: String,
    data_length: i32,
    children: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    acl: Option<Vec<String>>,
}

impl ZnodeStatItem {
    fn new(path: String, stat: &ZnodeStat, acl: Option<Vec<String>>) -> ZnodeStatItem {
        ZnodeStatItem {
            path,
            czxid: stat.czxid,
            mzxid: stat.mzxid,
            pzxid: stat.pzxid,
            ctime_ms: stat.ctime,
            mtime_ms: stat.mtime,
            version: stat.version,
            cversion: stat.cversion,
            aversion: stat.aversion,
            ephemeral_owner: format!("{:#x}", stat.ephemeral_owner),
            data_length: stat.data_length,
            children: stat.num_children,
            acl,
        }
    }
}

fn time_of(ms: i64) -> String {
    match u64::try_from(ms) {
        Ok(0) | Err(_) => "-".to_owned(),
        Ok(ms) => date(SysTime(ms)),
    }
}

/// The session that a znode ends with.
fn session_of(stat: &ZnodeStat) -> String {
    match stat.ephemeral_owner {
        0 => "-".to_owned(),
        owner => format!("{owner:#x}"),
    }
}

pub(super) async fn ls(client: &mut ZkClient, args: &LsZnodeArgs) -> anyhow::Result<()> {
    let path = args.znode.resolve();
    let (names, _) = client.children(&path).await?;
    if !args.long {
        let items = names.iter().map(|name| {
            let path = child_of(&args.znode.path, name);
            (serde_json::json!({ "path": path }), [name.clone()])
        });
        return print_list(args.json, &["name"], items);
    }
    let mut items = Vec::with_capacity(names.len());
    for name in names {
        let child = child_of(&args.znode.path, &name);
        match client.stat(&child_of(&path, &name)).await {
            Ok(stat) => {
                let cells = [
                    name,
                    stat.version.to_string(),
                    stat.data_length.to_string(),
                    stat.num_children.to_string(),
                    time_of(stat.mtime),
                    session_of(&stat),
                ];
                items.push((Some(ZnodeStatItem::new(child, &stat, None)), cells));
            }
            Err(error) if error.is(ZooKeeperCode::NoAuth) => {
                eprintln!("{error}");
                items.push((None, [&*name, "-", "-", "-", "-", "-"].map(str::to_owned)));
            }
            // It is gone meanwhile.
            Err(error) if error.is(ZooKeeperCode::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        items.retain(|(item, _)| item.is_some());
    }
    let headings = &["name", "version", "bytes", "children", "modified", "session"];
    print_list(args.json, headings, items)
}

pub(super) async fn get(client: &mut ZkClient, args: &GetZnodeArgs) -> anyhow::Result<()> {
    let (data, _) = client.data(&args.znode.resolve()).await?;
    let mut output = StandardOutput::lock().forced(args.force);
    output.contents(&data.unwrap_or_default())?;
    Ok(output.flush()?)
}

pub(super) async fn stat(client: &mut ZkClient, args: &StatZnodeArgs) -> anyhow::Result<()> {
    let path = args.znode.resolve();
    let stat = client.stat(&path).await?;
    let acl: Vec<String> = client.acl(&path).await?.iter().map(acl_text).collect();
    if args.json {
        let item = ZnodeStatItem::new(args.znode.path.clone(), &stat, Some(acl));
        return print_list(true, &["path"], [(item, [String::new()])]);
    }
    let rows = [
        ("path", args.znode.path.clone()),
        ("bytes", stat.data_length.to_string()),
        ("children", stat.num_children.to_string()),
        ("version", stat.version.to_string()),
        ("cversion", stat.cversion.to_string()),
        ("aversion", stat.aversion.to_string()),
        ("created", format!("{} zxid {:#x}", time_of(stat.ctime), stat.czxid)),
        ("modified", format!("{} zxid {:#x}", time_of(stat.mtime), stat.mzxid)),
        ("children changed", format!("zxid {:#x}", stat.pzxid)),
        ("session", session_of(&stat)),
        ("acl", acl.join(" ")),
    ];
    print_list(false, &["", ""], rows.map(|(label, value)| ((), [label.to_owned(), value])))
}
