//! `zk import`: copies the znodes of another ZooKeeper, which runs, or whose data directory is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use bytes::Bytes;
use client::zookeeper::{NewZnode, ZkClient, ZkClientError, ZooKeeperCode};
use indicatif::ProgressBar;

use super::stored::{StoredTree, kind_of};
use super::write::create_parents;
use super::{ZkIdentity, child_of, connect, parse_auth, parse_znode};
use crate::output::counted;
use crate::tls_args::open_tls;

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

From a server that runs, lists with hashes are readable only to who may administer the znodes: give an
identity of the other server with --from-auth.

Examples:
  freezeframe zk import zk.example:2181
  freezeframe zk import /var/lib/zookeeper       its newest snapshot, and the logs behind it
  freezeframe zk import zk.example:2181 --path /kafka
  freezeframe zk import zk.example:2181 --from-auth digest:super:secret --auth digest:super:secret")]
pub(super) struct ImportZnodesArgs {
    /// The other ZooKeeper: its address, or its data directory
    #[arg(value_name = "HOST:PORT|DIR")]
    from: String,
    /// The directory of its logs, if that is another one (dataLogDir)
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Only this znode, and all below it.
    #[arg(long, default_value = "/", value_parser = parse_znode)]
    path: String,
    /// An identity for the other ZooKeeper. May be given more than once.
    #[arg(
        long,
        env = "FREEZEFRAME_ZOOKEEPER_FROM_AUTH",
        hide_env_values = true,
        value_name = "SCHEME:CREDENTIALS",
        value_parser = parse_auth
    )]
    from_auth: Vec<ZkIdentity>,
    /// Speak TLS with the other ZooKeeper, and trust it if these certificates sign for it
    #[arg(long, value_name = "FILE")]
    from_tls_trust: Option<PathBuf>,
    /// Our key and certificates, if it asks who we are
    #[arg(long, requires = "from_tls_trust", value_name = "FILE")]
    from_tls_key: Option<PathBuf>,
    /// A file with the password of both
    #[arg(long, value_name = "FILE")]
    from_tls_password_file: Option<PathBuf>,
}

/// How an import went.
#[derive(Default)]
struct ImportCounts {
    created: usize,
    existing: usize,
    ephemeral: usize,
}

pub(super) async fn run(client: &mut ZkClient, args: ImportZnodesArgs) -> anyhow::Result<()> {
    if args.from.contains('/') && !Path::new(&args.from).is_dir() {
        bail!("there is no directory {}: give the dataDir of a ZooKeeper, or HOST:PORT", args.from);
    }
    let path = args.path.clone();
    create_parents(client, &path).await?;
    let mut import = Import {
        client,
        progress: ProgressBar::new_spinner(),
        batch: Vec::new(),
        bytes: 0,
        counts: ImportCounts::default(),
    };
    match Path::new(&args.from).is_dir() {
        true => import.copy_stored(&args).await?,
        false => import.copy_running(&args).await?,
    }
    import.flush().await?;
    import.progress.finish_and_clear();
    let ImportCounts { created, existing, ephemeral } = import.counts;
    let created = counted(created, "znode");
    eprintln!("{created} created; {existing} existed already, {ephemeral} ephemeral were left out");
    Ok(())
}

/// An import while it runs.
struct Import<'a> {
    client: &'a mut ZkClient,
    progress: ProgressBar,
    /// What is created next, in one transaction.
    batch: Vec<NewZnode>,
    bytes: usize,
    counts: ImportCounts,
}

impl Import<'_> {
    async fn copy_running(&mut self, args: &ImportZnodesArgs) -> anyhow::Result<()> {
        let tls = open_tls(
            args.from_tls_trust.as_deref(),
            args.from_tls_key.as_deref(),
            args.from_tls_password_file.as_deref(),
        )?;
        let mut source = connect(&args.from, &args.from_auth, tls.as_ref()).await?;
        // Parents come before their children.
        let mut open = BTreeSet::from([args.path.clone()]);
        while let Some(path) = open.pop_first() {
            let read = read(&mut source, &path, &mut self.counts).await?;
            if let Some((znode, children)) = read {
                open.extend(children);
                self.add(znode).await?;
            }
        }
        Ok(source.close().await?)
    }

    async fn copy_stored(&mut self, args: &ImportZnodesArgs) -> anyhow::Result<()> {
        let tree = StoredTree::read(Path::new(&args.from), args.log_dir.as_deref())?;
        for warning in &tree.warnings {
            eprintln!("warning: {warning}");
        }
        eprintln!("{} as of zxid {:#x}", args.from, tree.zxid);
        let (znodes, ephemeral) = tree.into_znodes();
        self.counts.ephemeral = ephemeral;
        let below = format!("{}/", args.path.trim_end_matches('/'));
        for znode in znodes {
            if znode.path == args.path || znode.path.starts_with(&below) {
                self.add(znode).await?;
            }
        }
        Ok(())
    }

    async fn add(&mut self, znode: NewZnode) -> anyhow::Result<()> {
        let size = ZNODE_BYTES + znode.path.len() + znode.data.as_ref().map_or(0, Bytes::len);
        if self.bytes + size > BATCH_BYTES {
            self.flush().await?;
        }
        self.progress.tick();
        self.bytes += size;
        self.batch.push(znode);
        Ok(())
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        self.bytes = 0;
        let created = create(self.client, std::mem::take(&mut self.batch), &mut self.counts);
        created.await.map_err(|error| match error.is(ZooKeeperCode::Unimplemented) {
            true => anyhow!(
                "some znodes have a time to live: start the server with --set zookeeper.extendedTypesEnabled=true"
            ),
            false => error.into(),
        })?;
        self.progress.set_message(counted(self.counts.created, "znode"));
        Ok(())
    }
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
    let Some(kind) = kind_of(stat.ephemeral_owner) else {
        counts.ephemeral += 1;
        return Ok(None);
    };
    let acl = source.acl(path).await?;
    let names = match stat.num_children {
        0 => Vec::new(),
        _ => source.children(path).await?.0,
    };
    let children = names.iter().map(|name| child_of(path, name)).filter(|path| path != OWN);
    let znode = NewZnode { path: path.to_owned(), data, acl, kind };
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
