//! `freezeframe mount` and `umount`: mount the tree of the local server as a file system.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use broker::control::{ControlRequest, data_dir_of, request_directories};
use client::Isolation;

use super::IsolationArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server of the data directory mounts its tree there, and takes it away when
it ends. The directory must be empty. Below it:
  files/                          general files, read and written
  topics/TOPIC/PARTITION.jsonl    a partition (.log and .values too)
  topics/TOPIC/by-key/KEY         the newest value of a key
  offsets/GROUP/TOPIC/PARTITION   a committed offset
  .at/MOMENT/...                  all of this as it was
  NAME@MOMENT                     one topic, partition or file as it was

Root, and the user that the server runs as, can ask. For a server that is not
root's, Debian's fuse3 must be installed.

Of transactions, it shows the records of those that are committed. With
--isolation uncommitted it shows all.

Examples:
  freezeframe mount /mnt/frames
  freezeframe mount /mnt/all --isolation uncommitted
  freezeframe mount /mnt/frames --data-dir /var/lib/freezeframe
  freezeframe mount
  grep -r error /mnt/frames/.at/s20261121T090000Z/topics/logs
  diff -r /mnt/frames/.at/s1795252948259/files /mnt/frames/files")]
pub(crate) struct MountArgs {
    /// The mount point. Without it, the mounts are listed
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    isolation: IsolationArgs,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The mount says which server it is of.

Examples:
  freezeframe umount /mnt/frames
  freezeframe umount /mnt/frames --lazy")]
pub(crate) struct UmountArgs {
    /// The mount point
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Also while it is in use: open files stay usable until they are closed
    #[arg(long)]
    lazy: bool,
    /// The data directory of the server. The default is the one that the mount names
    #[arg(long, value_name = "DIR", env = "FREEZEFRAME_DATA_DIR")]
    data_dir: Option<PathBuf>,
}

/// Selects the server: the one that runs on a data directory of this machine.
#[derive(Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The data directory of the server
    #[arg(
        long,
        value_name = "DIR",
        env = "FREEZEFRAME_DATA_DIR",
        default_value = "./freezeframe-data"
    )]
    pub(super) data_dir: PathBuf,
}

/// Runs `mount`: mounts, or lists the mounts.
pub(crate) fn run(args: &MountArgs) -> anyhow::Result<()> {
    let request = match &args.directory {
        Some(directory) => ControlRequest::Mount {
            directory: absolute(directory)?,
            shows_uncommitted: args.isolation.isolation() == Isolation::Uncommitted,
        },
        None => ControlRequest::Mounts,
    };
    print(&request_directories(&args.server.data_dir, &request)?)
}

pub(crate) fn umount(args: &UmountArgs) -> anyhow::Result<()> {
    let request =
        ControlRequest::Umount { directory: absolute(&args.directory)?, lazily: args.lazy };
    let data_dir = args.data_dir.clone().or_else(|| data_dir_of(&args.directory));
    let data_dir = data_dir.with_context(|| {
        let directory = args.directory.display();
        format!("no server has its tree mounted at {directory}, or the mount does not say which: name its --data-dir")
    })?;
    request_directories(&data_dir, &request).map(drop)
}

/// The absolute path: the server has another working directory.
fn absolute(directory: &std::path::Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(directory).context("name the directory from the root")
}

fn print(directories: &[PathBuf]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for directory in directories {
        writeln!(stdout, "{}", directory.display())?;
    }
    Ok(())
}
