//! `freezeframe stat`: shows the attributes of a path in the tree of files.

use client::tree::{TreeNodeKind, TreeNodeStat};
use serde::Serialize;

use super::ServerAddress;
use crate::completion;
use crate::moments::MomentArg;
use crate::output::print_list;
use crate::tree_path::{TreePath, mode_of, name_of, time_of};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A size is exact: so many bytes `cat` prints, if nothing comes or goes meanwhile.

Examples:
  freezeframe stat /topics/orders/0.jsonl
  freezeframe stat /topics/orders/by-key/17 --at '1 hour ago'
  freezeframe stat /files/report.csv@s1795252948259 --json")]
pub(crate) struct StatArgs {
    /// A path in the tree of files: it begins with a slash.
    #[arg(value_parser = TreePath::parse, add = completion::paths())]
    path: TreePath,
    /// The moment as of which to read the tree.
    #[arg(long, value_parser = MomentArg::parse, value_name = "MOMENT", allow_hyphen_values = true)]
    at: Option<MomentArg>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PathStat {
    path: String,
    #[serde(flatten)]
    stat: TreeNodeStat,
}

pub(crate) async fn run(args: StatArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let path = args.path.with_at(args.at)?;
    path.announce();
    let path = path.to_string();
    let stat = server.connect().await?.tree_stat(&path).await?;
    if args.json {
        return print_list(true, &["path"], [(PathStat { path, stat }, [String::new()])]);
    }
    let kind = match stat.kind {
        TreeNodeKind::Directory => "directory",
        TreeNodeKind::File => "file",
        TreeNodeKind::Symlink => "symlink",
        TreeNodeKind::Other => "other",
    };
    let mut rows = vec![
        ("path", path),
        ("kind", kind.to_owned()),
        ("bytes", stat.size.to_string()),
        ("mode", format!("{:04o} {}", stat.mode, mode_of(stat.mode))),
        ("links", stat.links.to_string()),
        ("owner", format!("{}:{}", stat.uid, stat.gid)),
        ("inode", stat.inode.to_string()),
        ("modified", time_of(stat.modified)),
        ("changed", time_of(stat.changed)),
        ("created", time_of(stat.created)),
        ("grows", if stat.grows { "yes" } else { "no" }.to_owned()),
    ];
    if let Some(target) = &stat.target {
        rows.push(("target", name_of(target)));
    }
    print_list(
        false,
        &["", ""],
        rows.into_iter().map(|(label, value)| ((), [label.to_owned(), value])),
    )
}
