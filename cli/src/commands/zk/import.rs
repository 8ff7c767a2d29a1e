//! `zk import`: copies the znodes of another ZooKeeper.

use std::collections::BTreeSet;

use bytes::Bytes;
use client::zookeeper::{NewZnode, ZkClient, ZkClientError, ZnodeKind, ZooKeeperCode};
use indicatif::ProgressBar;

use super::write::create_parents;
use super::{ZkIdentity, child_of, connect, parse_auth, parse_znode};
use crate::output::counted;

/// How many bytes one transaction creates: ZooKeeper takes requests of up to 1 MiB.
const BATCH_BYTES: usize = 256 << 10;
/// What a znode takes in a request besides its data: about as much as its path and its list.
const ZNODE_BYTES: usize = 200;
/// What belongs to a server itself.
const OWN: &str = "/zookeeper";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies data and access control lists. Ephemeral znodes are left out, since they
belong to sessions of the other server, and so is /zookeeper. Versions and times
begin anew. Znodes that exist already stay as they are.

Lists with hashes are readable only to who may administer the znodes: give an
identity of the other server with --from-auth.

Examples:
  freezeframe zk import zk.example:2181
  freezeframe zk import zk.example:2181 --path /kafka
  freezeframe zk import zk.example:2181 --from-auth digest:super:secret --auth digest:super:secret")]
pub(super) struct ImportZnodesArgs {
    /// The other ZooKeeper.
    #[arg(value_name = "HOST:PORT")]
    from: String,
    /// Only this znode, and all below it.
    #[arg(long, default_value = "/", value_parser = parse_znode)]
    path: String,
    /// An identity for the other ZooKeeper. May be given more than once.
    #[arg(long, value_name = "SCHEME:CREDENTIALS", value_parser = parse_auth)]
    from_auth: Vec<ZkIdentity>,
}

/// How an import went.
#[derive(Default)]
struct ImportCounts {
    created: usize,
    existing: usize,
    ephemeral: usize,
}

pub(super) async fn run(client: &mut ZkClient, args: ImportZnodesArgs) -> anyhow::Result<()> {
    let mut source = connect(&args.from, &args.from_auth).await?;
    let progress = ProgressBar::new_spinner();
    let mut counts = ImportCounts::default();
    create_parents(client, &args.path).await?;
    // Parents come before their children.
    let mut open = BTreeSet::from([args.path]);
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Some(path) = open.pop_first() {
        let Some((znode, children)) = read(&mut source, &path, &mut counts).await? else {
            continue;
        };
        open.extend(children);
        let size = ZNODE_BYTES + znode.path.len() + znode.data.as_ref().map_or(0, Bytes::len);
        if bytes + size > BATCH_BYTES {
            create(client, std::mem::take(&mut batch), &mut counts).await?;
            bytes = 0;
            progress.set_message(counted(counts.created, "znode"));
        }
        progress.tick();
        bytes += size;
        batch.push(znode);
    }
    create(client, batch, &mut counts).await?;
    progress.finish_and_clear();
    source.close().await?;
    let ImportCounts { created, existing, ephemeral } = counts;
    let created = counted(created, "znode");
    eprintln!("{created} created; {existing} existed already, {ephemeral} ephemeral were left out");
    Ok(())
}

/// A znode of the source, and the paths of its children; `None` if it is left out.
async fn read(
    source: &mut ZkClient,
    path: &str,
    counts: &mut ImportCounts,
) -> Result<Option<(NewZnode, Vec<String>)>, ZkClientError> {
    let (data, stat) = match source.data(path).await {
        // It was deleted meanwhile.
        Err(error) if error.is(ZooKeeperCode::NoNode) && path != "/" => return Ok(None),
        read => read?,
    };
    if stat.ephemeral_owner != 0 {
        counts.ephemeral += 1;
        return Ok(None);
    }
    let acl = source.acl(path).await?;
    let names = match stat.num_children {
        0 => Vec::new(),
        _ => source.children(path).await?.0,
    };
    let children = names.iter().map(|name| child_of(path, name)).filter(|path| path != OWN);
    let znode = NewZnode { path: path.to_owned(), data, acl, kind: ZnodeKind::Persistent };
    Ok(Some((znode, children.collect())))
}

/// Creates znodes in one transaction; one by one where some exist.
async fn create(
    client: &mut ZkClient,
    mut znodes: Vec<NewZnode>,
    counts: &mut ImportCounts,
) -> Result<(), ZkClientError> {
    // The root exists everywhere.
    znodes.retain(|znode| znode.path != "/");
    match client.create_all(&znodes).await {
        Ok(()) => counts.created += znodes.len(),
        Err(error) if error.is(ZooKeeperCode::NodeExists) => {
            for znode in &znodes {
                match client.create(znode).await {
                    Ok(_) => counts.created += 1,
                    Err(error) if error.is(ZooKeeperCode::NodeExists) => counts.existing += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
