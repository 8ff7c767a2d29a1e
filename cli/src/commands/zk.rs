//! `freezeframe zk`: znodes, now and as of a moment.

mod import;
mod past;
mod read;
mod stored;
mod write;

use anyhow::Context;
use client::zookeeper::ZkClient;
use hlc::Moment;
use tls::TlsClient;

use crate::moments::MomentArg;
use crate::tls_args::TlsArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is one that was started with --zookeeper; ls, get, stat, set, create
and delete work with any ZooKeeper. The server at --bootstrap resolves names of
moments, such as pin:audit.

Examples:
  freezeframe zk ls /
  freezeframe zk create /app/config 'size=3' --parents
  freezeframe zk get /app/config
  freezeframe zk get /app/config --at '1 hour ago'
  freezeframe zk log /app --recursive          who changed what, and when
  freezeframe zk diff /app '1 hour ago' now
  freezeframe zk restore /app --at '1 hour ago' --dry-run
  freezeframe zk --zookeeper zk.example:2181 --auth digest:me:secret ls /
  freezeframe zk --zookeeper zk.example:2281 --tls-trust ca.pem ls /")]
pub(crate) struct ZkArgs {
    #[command(flatten)]
    server: ZkServerArgs,
    #[command(subcommand)]
    command: ZkCommand,
}

/// The server, and the identity of the client.
#[derive(Debug, clap::Args)]
struct ZkServerArgs {
    /// The address of the ZooKeeper port.
    #[arg(
        long,
        global = true,
        env = "FREEZEFRAME_ZOOKEEPER",
        default_value = "127.0.0.1:2181",
        value_name = "HOST:PORT",
        value_parser = parse_address
    )]
    zookeeper: String,
    /// An identity, such as digest:USER:PASSWORD. The variable hides it from others on this
    /// machine.
    #[arg(
        long,
        global = true,
        env = "FREEZEFRAME_ZOOKEEPER_AUTH",
        hide_env_values = true,
        value_name = "SCHEME:CREDENTIALS",
        value_parser = parse_auth
    )]
    auth: Vec<ZkIdentity>,
}

#[derive(Debug, clap::Subcommand)]
enum ZkCommand {
    /// List the children of a znode.
    Ls(read::LsZnodeArgs),
    /// Print the data of a znode.
    Get(read::GetZnodeArgs),
    /// Show all about a znode but its data.
    Stat(read::StatZnodeArgs),
    /// Set the data of a znode.
    Set(write::SetZnodeArgs),
    /// Create a znode.
    Create(write::CreateZnodeArgs),
    /// Delete a znode.
    Delete(write::DeleteZnodeArgs),
    /// Show who changed a znode, when, and how.
    Log(past::ZnodeLogArgs),
    /// Show the znodes that differ between two moments.
    Diff(past::ZnodeDiffArgs),
    /// Print changes as they come.
    Watch(past::WatchZnodeArgs),
    /// Put a subtree back to what it was, in one transaction.
    Restore(past::RestoreZnodeArgs),
    /// Copy the znodes of another ZooKeeper.
    Import(import::ImportZnodesArgs),
}

/// An identity for an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ZkIdentity {
    scheme: String,
    credentials: String,
}

/// Parses the address of a server, which has no chroot here: each command names a whole path.
fn parse_address(text: &str) -> Result<String, String> {
    if text.contains('/') {
        return Err("HOST:PORT has no path: give it with the znode, and a moment with --at".into());
    }
    Ok(text.to_owned())
}

fn parse_auth(text: &str) -> Result<ZkIdentity, String> {
    match text.split_once(':') {
        Some((scheme, credentials)) => {
            Ok(ZkIdentity { scheme: scheme.to_owned(), credentials: credentials.to_owned() })
        }
        None => Err("give SCHEME:CREDENTIALS, such as digest:USER:PASSWORD".to_owned()),
    }
}

/// Parses the path of a znode.
fn parse_znode(text: &str) -> Result<String, String> {
    let is_sound = |name: &str| !name.is_empty() && name != "." && name != "..";
    match text.strip_prefix('/') {
        Some(names) if names.is_empty() || names.split('/').all(is_sound) => Ok(text.to_owned()),
        Some(_) => Err("a name in the path is empty, or is . or ..".to_owned()),
        None => Err("the path of a znode begins with a slash".to_owned()),
    }
}

/// A znode, and the moment as of which it is read.
#[derive(Debug, clap::Args)]
struct ZnodeAtArgs {
    /// The znode.
    #[arg(value_parser = parse_znode)]
    path: String,
    /// Read it as of this moment.
    #[arg(
        long,
        value_parser = MomentArg::parse_system_moment,
        value_name = "MOMENT",
        allow_hyphen_values = true
    )]
    at: Option<MomentArg>,
}

impl ZnodeAtArgs {
    /// The path that a client asks for.
    fn resolve(&self) -> String {
        match &self.at {
            Some(at) => {
                at.announce();
                let path = self.path.strip_suffix('/').unwrap_or(&self.path);
                format!("/.at/{}{path}", at.moment())
            }
            None => self.path.clone(),
        }
    }
}

/// The path of a child.
fn child_of(parent: &str, name: &str) -> String {
    format!("{}/{name}", parent.strip_suffix('/').unwrap_or(parent))
}

/// A moment as a document has it, announced if it was relative.
fn moment_text(at: &MomentArg) -> String {
    at.announce();
    let moment: Moment = at.moment();
    moment.to_string()
}

async fn connect(
    address: &str,
    identities: &[ZkIdentity],
    tls: Option<&TlsClient>,
) -> anyhow::Result<ZkClient> {
    let mut client = ZkClient::connect(address, tls).await?;
    for ZkIdentity { scheme, credentials } in identities {
        let authenticated = client.authenticate(scheme, credentials).await;
        authenticated.with_context(|| format!("authenticate with scheme {scheme}"))?;
    }
    Ok(client)
}

pub(crate) async fn run(args: ZkArgs, tls: TlsArgs) -> anyhow::Result<()> {
    let ZkArgs { server, command } = args;
    let mut client = connect(&server.zookeeper, &server.auth, tls.open()?.as_ref()).await?;
    let result = match command {
        ZkCommand::Ls(args) => read::ls(&mut client, &args).await,
        ZkCommand::Get(args) => read::get(&mut client, &args).await,
        ZkCommand::Stat(args) => read::stat(&mut client, &args).await,
        ZkCommand::Set(args) => write::set(&mut client, args).await,
        ZkCommand::Create(args) => write::create(&mut client, args).await,
        ZkCommand::Delete(args) => write::delete(&mut client, &args).await,
        ZkCommand::Log(args) => past::log(&mut client, &args).await,
        ZkCommand::Diff(args) => past::diff(&mut client, args).await,
        ZkCommand::Watch(args) => past::watch(&mut client, args).await,
        ZkCommand::Restore(args) => past::restore(&mut client, &args).await,
        ZkCommand::Import(args) => import::run(&mut client, args).await,
    };
    // An unclosed session keeps its ephemeral znodes until it expires.
    let closed = client.close().await;
    result?;
    closed?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_znode_of_the_past_is_below_its_moment() {
        let resolve = |path: &str| {
            let at = Some(MomentArg::parse("s5").unwrap());
            ZnodeAtArgs { path: path.to_owned(), at }.resolve()
        };
        assert_eq!(resolve("/a/b"), "/.at/s5/a/b");
        assert_eq!(resolve("/"), "/.at/s5");
        assert_eq!(child_of("/", "a"), "/a");
        assert_eq!(child_of("/a", "b"), "/a/b");
    }

    #[test]
    fn an_identity_is_a_scheme_and_the_rest() {
        let identity = parse_auth("digest:me:se:cret").unwrap();
        assert_eq!((&*identity.scheme, &*identity.credentials), ("digest", "me:se:cret"));
        assert!(parse_auth("digest").is_err());
    }
}
