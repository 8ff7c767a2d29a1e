//! `zk import`: copies the znodes of another ZooKeeper, which runs, or whose data directory is
//! there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, ensure};
use bytes::Bytes;
use client::zookeeper::{
    NewZnode, ZkClient, ZkClientError, ZnodeAclEntry, ZnodeContent, ZooKeeperCode,
};
use indicatif::ProgressBar;

use super::stored::{StoredTree, kind_of};
use super::write::create_parents;
use super::{ZkIdentity, child_of, connect, parse_auth, parse_znode};
use crate::output::counted;
use crate::tls_args::open_tls;

/// The bytes that one transaction creates: ZooKeeper takes requests of up to 1 MiB.
const BATCH_BYTES: usize = 256 << 10;
/// The bytes that a znode takes in a request besides its data: about as many as its path and its
/// list.
const ZNODE_BYTES: usize = 200;
/// Znodes are read from the other server in batches of this size.
const READS_AT_ONCE: usize = 100;
/// The path of a server's own znodes.
const OWN: &str = "/zookeeper";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies data and access control lists. Skips ephemeral znodes, which belong to
sessions of the other server, and /zookeeper. Versions and times start again;
sequence numbers continue. Existing znodes are not changed.

A running server hides the hashes in access control lists from identities
without ADMIN on the znode. The import fails at the first such list: give an
identity of the other server with --from-auth.

If transactions of a data directory are missing or damaged, the import copies
the rest and exits with 1.

Examples:
  freezeframe zk import zk.example:2181
  freezeframe zk import /var/lib/zookeeper    newest snapshot and logs
  freezeframe zk import zk.example:2181 --path /kafka
  freezeframe zk import zk.example:2181 --from-auth digest:super:secret")]
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

/// The results of an import.
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
    let is_complete = if Path::new(&args.from).is_dir() {
        import.copy_stored(&args).await?
    } else {
        import.copy_running(&args).await?;
        true
    };
    import.progress.finish_and_clear();
    let ImportCounts { created, existing, ephemeral } = import.counts;
    let created = counted(created, "znode");
    eprintln!("{created} created; {existing} existed already, {ephemeral} ephemeral were left out");
    ensure!(
        is_complete,
        "some transactions are missing, as the warnings say: compare the copy with {}",
        args.from
    );
    Ok(())
}

/// An import while it runs.
struct Import<'a> {
    client: &'a mut ZkClient,
    progress: ProgressBar,
    /// The znodes that the next transaction creates.
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
        while !open.is_empty() {
            let paths: Vec<String> =
                std::iter::from_fn(|| open.pop_first()).take(READS_AT_ONCE).collect();
            let contents = source.contents(&paths).await?;
            for (path, content) in paths.into_iter().zip(contents) {
                let Some(content) = content else {
                    // Another one was deleted meanwhile.
                    ensure!(path != args.path, "{path}: {} has no such znode", args.from);
                    continue;
                };
                open.extend(self.copy(path, content).await?);
            }
        }
        self.flush().await?;
        for ancestor in paths_above(&args.path) {
            match source.stat(ancestor).await {
                Ok(stat) => self.raise_sequence(ancestor, stat.next_sequence()).await?,
                Err(error) if error.is(ZooKeeperCode::NoNode) || is_forbidden(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(source.close().await?)
    }

    /// Copies a znode of a server that runs, unless it is ephemeral; returns the paths of its
    /// children.
    async fn copy(&mut self, path: String, content: ZnodeContent) -> anyhow::Result<Vec<String>> {
        let ZnodeContent { data, acl, children, stat } = content;
        let Some(kind) = kind_of(stat.ephemeral_owner) else {
            self.counts.ephemeral += 1;
            return Ok(Vec::new());
        };
        if acl.iter().any(is_without_hash) {
            bail!(
                "{path}: its access control list is shown without hashes. Give an identity that may administer \
                 the znode with --from-auth, or import from the data directory"
            );
        }
        let children = children.iter().map(|name| child_of(&path, name)).filter(|path| path != OWN);
        let children = children.collect();
        self.add(NewZnode { path, data, acl, kind, next_sequence: stat.next_sequence() }).await?;
        Ok(children)
    }

    /// Has the numbers of sequential children go on in a znode that is not copied.
    async fn raise_sequence(&mut self, path: &str, next: i32) -> anyhow::Result<()> {
        match self.client.raise_sequence(path, next).await {
            Err(error) if !is_forbidden(&error) => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Copies what can be read of a data directory; whether that is all of it.
    async fn copy_stored(&mut self, args: &ImportZnodesArgs) -> anyhow::Result<bool> {
        let tree = StoredTree::read(Path::new(&args.from), args.log_dir.as_deref())?;
        for warning in &tree.warnings {
            eprintln!("warning: {warning}");
        }
        eprintln!("{} as of zxid {:#x}", args.from, tree.zxid);
        let ancestors = paths_above(&args.path);
        let ancestors: Vec<_> =
            ancestors.map(|ancestor| (ancestor, tree.next_sequence(ancestor))).collect();
        let is_complete = !tree.is_incomplete;
        let (znodes, ephemeral) = tree.into_znodes();
        self.counts.ephemeral = ephemeral;
        let prefix = format!("{}/", args.path.trim_end_matches('/'));
        for znode in znodes {
            if znode.path == args.path || znode.path.starts_with(&prefix) {
                self.add(znode).await?;
            }
        }
        self.flush().await?;
        for (ancestor, next) in ancestors {
            self.raise_sequence(ancestor, next).await?;
        }
        Ok(is_complete)
    }

    async fn add(&mut self, znode: NewZnode) -> anyhow::Result<()> {
        let size = ZNODE_BYTES + 2 * znode.path.len() + znode.data.as_ref().map_or(0, Bytes::len);
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
        created.await.map_err(|error| {
            if error.is(ZooKeeperCode::Unimplemented) {
                anyhow!(
                    "some znodes have a time to live: start the server with --set zookeeper.extendedTypesEnabled=true"
                )
            } else {
                error.into()
            }
        })?;
        self.progress.set_message(counted(self.counts.created, "znode"));
        Ok(())
    }
}

/// The paths above a path.
fn paths_above(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at).filter(move |_| path != "/");
    ends.map(move |end| if end == 0 { "/" } else { &path[..end] })
}

/// True for an entry whose hash the server hides from identities without ADMIN.
fn is_without_hash(entry: &ZnodeAclEntry) -> bool {
    entry.scheme == "digest" && entry.id.ends_with(":x")
}

fn is_forbidden(error: &ZkClientError) -> bool {
    error.is(ZooKeeperCode::NoAuth)
}

/// Creates znodes in one transaction; one by one where some exist.
async fn create(
    client: &mut ZkClient,
    mut znodes: Vec<NewZnode>,
    counts: &mut ImportCounts,
) -> Result<(), ZkClientError> {
    // The root exists everywhere.
    let root = znodes.iter().position(|znode| znode.path == "/").map(|root| znodes.remove(root));
    match client.create_all(&znodes).await {
        Ok(()) => counts.created += znodes.len(),
        Err(error) if error.is(ZooKeeperCode::NodeExists) => {
            let created = client.create_missing(&znodes).await?;
            counts.created += created;
            counts.existing += znodes.len() - created;
        }
        Err(error) => return Err(error),
    }
    match root {
        Some(NewZnode { path, next_sequence, .. }) if next_sequence != 0 => {
            client.raise_sequence(&path, next_sequence).await
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_above_a_path_begin_with_the_root() {
        assert_eq!(paths_above("/a/b/c").collect::<Vec<_>>(), ["/", "/a", "/a/b"]);
        assert_eq!(paths_above("/").count(), 0);
    }
}
