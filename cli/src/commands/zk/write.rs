//! `zk set`, `zk create` and `zk delete`.

use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use client::zookeeper::{
    NewZnode, ZkClient, ZkClientError, ZnodeAclEntry, ZnodeKind, ZooKeeperCode,
};

use super::{child_of, parse_znode};
use crate::moments::parse_length;
use crate::output::{StandardOutput, counted};

/// The letters of permissions, with their bits, in the order of ZooKeeper's command line.
const PERMISSIONS: [(char, i32); 5] = [('c', 4), ('d', 8), ('r', 1), ('w', 2), ('a', 16)];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk set /app/config 'size=4'
  freezeframe zk set /app/config --version 3 < config")]
pub(super) struct SetZnodeArgs {
    /// The znode.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// Its data; without it, standard input is read.
    data: Option<String>,
    /// Only if it has this version.
    #[arg(long, value_name = "NUMBER")]
    version: Option<i32>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk create /app
  freezeframe zk create /app/config 'size=3' --parents
  freezeframe zk create /app/task- --sequential
  freezeframe zk create /app/secret x --acl auth::cdrwa --auth digest:me:secret
  freezeframe zk create /app/lease x --ttl 30s")]
pub(super) struct CreateZnodeArgs {
    /// The znode.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// Its data.
    data: Option<String>,
    /// Append a number to its name.
    #[arg(long, conflicts_with_all = ["container", "ttl"])]
    sequential: bool,
    /// The server removes it once its last child is deleted.
    #[arg(long, conflicts_with = "ttl")]
    container: bool,
    /// The server removes it once it has no children and has not changed for so long.
    #[arg(long, value_name = "TIME", value_parser = parse_length)]
    ttl: Option<Duration>,
    /// Create the znodes above it too, without data.
    #[arg(long, short)]
    parents: bool,
    /// An entry of its access control list. May be given more than once. The default is
    /// world:anyone:cdrwa.
    #[arg(long, value_name = "SCHEME:ID:PERMISSIONS", value_parser = parse_acl)]
    acl: Vec<ZnodeAclEntry>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe zk delete /app/config --version 4
  freezeframe zk delete /app --recursive")]
pub(super) struct DeleteZnodeArgs {
    /// The znode.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// Only if it has this version.
    #[arg(long, value_name = "NUMBER", conflicts_with = "recursive")]
    version: Option<i32>,
    /// Delete all below it first. This is many changes, and others may see some of them.
    #[arg(long, short)]
    recursive: bool,
}

fn parse_acl(text: &str) -> Result<ZnodeAclEntry, String> {
    let expected = "give SCHEME:ID:PERMISSIONS, with permissions of cdrwa, such as world:anyone:r";
    let (scheme, rest) = text.split_once(':').ok_or(expected)?;
    let (id, letters) = rest.rsplit_once(':').ok_or(expected)?;
    let bit = |letter| {
        PERMISSIONS.iter().find(|(known_letter, _)| *known_letter == letter).map(|(_, bit)| bit)
    };
    let bits: Option<Vec<&i32>> = letters.chars().map(bit).collect();
    let permissions = bits.filter(|bits| !bits.is_empty()).ok_or(expected)?;
    let permissions = permissions.into_iter().fold(0, |mask, bit| mask | bit);
    Ok(ZnodeAclEntry { permissions, scheme: scheme.to_owned(), id: id.to_owned() })
}

/// An entry as `--acl` takes it.
pub(super) fn acl_text(entry: &ZnodeAclEntry) -> String {
    let letters = PERMISSIONS.iter().filter(|(_, bit)| entry.permissions & bit != 0);
    let letters: String = letters.map(|(letter, _)| letter).collect();
    format!("{}:{}:{letters}", entry.scheme, entry.id)
}

pub(super) async fn set(client: &mut ZkClient, args: SetZnodeArgs) -> anyhow::Result<()> {
    let data = match args.data {
        Some(data) => data.into_bytes(),
        None => {
            let mut data = Vec::new();
            std::io::stdin().read_to_end(&mut data).context("read standard input")?;
            data
        }
    };
    let stat = client.set(&args.path, &data, args.version.unwrap_or(-1)).await?;
    eprintln!("{} has version {}", args.path, stat.version);
    Ok(())
}

pub(super) async fn create(client: &mut ZkClient, args: CreateZnodeArgs) -> anyhow::Result<()> {
    let kind = match args.ttl {
        Some(ttl) => ZnodeKind::Ttl(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
        None if args.container => ZnodeKind::Container,
        None if args.sequential => ZnodeKind::Sequential,
        None => ZnodeKind::Persistent,
    };
    let acl = if args.acl.is_empty() { ZnodeAclEntry::open() } else { args.acl };
    if args.parents {
        create_parents(client, &args.path).await?;
    }
    let data = Some(Bytes::from(args.data.unwrap_or_default()));
    let (path, _) =
        client.create(&NewZnode { path: args.path, data, acl, kind, next_sequence: 0 }).await?;
    let mut output = StandardOutput::lock();
    output.bytes(format!("{path}\n").as_bytes())?;
    Ok(output.flush()?)
}

/// Creates the znodes above `path` that do not exist.
pub(super) async fn create_parents(client: &mut ZkClient, path: &str) -> anyhow::Result<()> {
    let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    for end in ends {
        let znode = NewZnode {
            path: path[..end].to_owned(),
            data: Some(Bytes::new()),
            acl: ZnodeAclEntry::open(),
            kind: ZnodeKind::Persistent,
            next_sequence: 0,
        };
        match client.create(&znode).await {
            Err(error) if !error.is(ZooKeeperCode::NodeExists) => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

pub(super) async fn delete(client: &mut ZkClient, args: &DeleteZnodeArgs) -> anyhow::Result<()> {
    if !args.recursive {
        return Ok(client.delete(&args.path, args.version.unwrap_or(-1)).await?);
    }
    let mut open = vec![args.path.clone()];
    let mut names = Vec::new();
    while let Some(path) = open.pop() {
        match client.children(&path).await {
            Ok((names, _)) => open.extend(names.iter().map(|name| child_of(&path, name))),
            Err(error) if is_gone(&error) && path != args.path => continue,
            Err(error) => return Err(error.into()),
        }
        names.push(path);
    }
    for path in names.iter().rev() {
        match client.delete(path, -1).await {
            Err(error) if !is_gone(&error) => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    eprintln!("{} deleted", counted(names.len(), "znode"));
    Ok(())
}

/// Somebody else deletes too.
fn is_gone(error: &ZkClientError) -> bool {
    error.is(ZooKeeperCode::NoNode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_list_is_printed_as_it_is_given() {
        for text in ["world:anyone:cdrwa", "digest:me:hash=:r", "auth::cw", "ip:10.0.0.0/8:r"] {
            assert_eq!(acl_text(&parse_acl(text).unwrap()), text);
        }
        assert_eq!(parse_acl("ip:::1:r").unwrap().id, "::1");
        for refused in ["world", "world:anyone", "world:anyone:", "world:anyone:x"] {
            assert!(parse_acl(refused).is_err(), "{refused}");
        }
    }
}
