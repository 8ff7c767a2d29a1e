//! `freezeframe users`: who can log in, and their passwords.

use std::path::{Path, PathBuf};

use anyhow::bail;
use broker::control::{ControlRequest, ControlResponse};
use client::history::{MechanismAtMoment, UserAtMoment};
use scram::{ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism, random_bytes};
use tls::Secret;

use super::ServerAddress;
use crate::moments::MomentArg;
use crate::output::{counted, print_list_or};
use crate::password::read_new_password;

/// The number of hash iterations of a password, by default.
const ITERATIONS: u32 = 8192;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Users log in with a name and a password (SCRAM-SHA-256, SCRAM-SHA-512, PLAIN).
What they may do, rules say: see `freezeframe acls`. No password is stored: what
is stored can check one.

With --data-dir, the server that runs on that directory of this machine is
asked, by its owner or root; if none runs, the directory is opened, and made if
it does not exist: this is how the first user is added. Without it, the server
at --bootstrap is asked.

Examples:
  freezeframe users add admin --data-dir /var/lib/freezeframe
  freezeframe users add alice --password-file alice.password
  freezeframe users
  freezeframe users remove alice"
)]
pub(crate) struct UsersArgs {
    #[command(subcommand)]
    command: Option<UsersCommand>,
    #[command(flatten)]
    list: ListUsersArgs,
}

#[derive(Debug, clap::Subcommand)]
enum UsersCommand {
    /// List the users with a password (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe users list --json
  freezeframe users list --at '1 hour ago'")]
    List(ListUsersArgs),
    /// Add a user, or set the password of one. Delegation tokens end with an earlier password.
    #[command(after_help = "\
Examples:
  freezeframe users add alice
  openssl rand -base64 18 | tee alice.password | freezeframe users add alice")]
    Add(AddUserArgs),
    /// Remove a user: nobody can log in under that name from then on, and delegation tokens that it
    /// owns or has requested end. Open connections go on until they end, or
    /// connections.max.reauth.ms is over.
    #[command(after_help = "\
Examples:
  freezeframe users remove alice")]
    Remove(RemoveUserArgs),
}

#[derive(Debug, clap::Args)]
struct DirectoryArgs {
    /// The data directory of a server on this machine, which may run or not
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ListUsersArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
    /// The users as of a moment
    #[arg(long, value_name = "MOMENT", value_parser = MomentArg::parse_system_moment, allow_hyphen_values = true, conflicts_with = "data_dir")]
    at: Option<MomentArg>,
    /// Print one JSON object a line for each user
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct AddUserArgs {
    /// The name of the user.
    name: String,
    /// A file with the password. Without it, the terminal asks, or it is a line of standard input
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Iterations of the password's hash (PBKDF2)
    #[arg(long, value_name = "COUNT", default_value_t = ITERATIONS,
        value_parser = clap::value_parser!(u32).range(i64::from(ITERATIONS_MIN)..=i64::from(ITERATIONS_MAX)))]
    iterations: u32,
    #[command(flatten)]
    directory: DirectoryArgs,
}

#[derive(Debug, clap::Args)]
struct RemoveUserArgs {
    /// The name of the user.
    name: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

pub(crate) async fn run(args: UsersArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(UsersCommand::List(args.list)) {
        UsersCommand::List(args) => list(&args, server).await,
        UsersCommand::Add(args) => {
            let password = read_new_password(args.password_file.as_deref(), &args.name)?;
            add(&args, &password, server).await
        }
        UsersCommand::Remove(args) => remove(&args, server).await,
    }
}

/// A user and the ways in which it can log in, with how many times its password is hashed.
fn description(
    user: String,
    mechanisms: impl IntoIterator<Item = (ScramMechanism, u32)>,
) -> UserAtMoment {
    let mechanisms = mechanisms.into_iter().map(|(mechanism, iterations)| MechanismAtMoment {
        mechanism: mechanism.to_string(),
        iterations,
    });
    UserAtMoment { user, mechanisms: mechanisms.collect() }
}

async fn list(args: &ListUsersArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let users: Vec<UserAtMoment> = match (&args.at, &args.directory.data_dir) {
        (Some(at), _) => {
            at.announce();
            server.connect().await?.users_at(&at.moment()).await?
        }
        (None, Some(data_dir)) => {
            let answer = broker::request_users(data_dir, ControlRequest::Users).await?;
            let ControlResponse::Users(users) = answer else {
                bail!("the server answers another question")
            };
            users.into_iter().map(|user| description(user.name, user.mechanisms)).collect()
        }
        (None, None) => {
            let users = server.connect().await?.users().await?;
            let mechanism_of = |(mechanism, iterations): (ScramMechanism, i32)| {
                (mechanism, u32::try_from(iterations).unwrap_or(0))
            };
            let users = users.into_iter();
            users
                .map(|user| description(user.name, user.mechanisms.into_iter().map(mechanism_of)))
                .collect()
        }
    };
    let items = users.into_iter().map(|user| {
        let mechanisms = user.mechanisms.iter();
        let mechanisms: Vec<String> = mechanisms
            .map(|mechanism| format!("{} ({})", mechanism.mechanism, mechanism.iterations))
            .collect();
        let cells = [user.user.clone(), mechanisms.join(", ")];
        (user, cells)
    });
    let hint = match &args.at {
        None => "there are no users with a password; add one: freezeframe users add NAME",
        Some(_) => "",
    };
    print_list_or(args.json, &["user", "mechanisms (iterations)"], items, hint)
}

async fn add(args: &AddUserArgs, password: &Secret, server: &ServerAddress) -> anyhow::Result<()> {
    let ended_tokens = match &args.directory.data_dir {
        Some(data_dir) => add_locally(args, password, data_dir).await?,
        None => {
            let mut client = server.connect().await?;
            let (password, mechanisms) = (password.expose(), ScramMechanism::ALL);
            client.set_password(&args.name, password, mechanisms, args.iterations).await?
        }
    };
    eprintln!("{} can log in", args.name);
    report_ended_password(&args.name, ended_tokens);
    Ok(())
}

/// Says what ended with an earlier password of a user, and what goes on. `ended_tokens` is `None`
/// if there was none.
fn report_ended_password(user: &str, ended_tokens: Option<u32>) {
    if let Some(count) = ended_tokens {
        let tokens = counted(count, "delegation token");
        eprintln!(
            "{tokens} of {user} ended; its open connections go on until they end, or connections.max.reauth.ms is over"
        );
    }
}

/// Asks for a change of a user on this machine; returns how many delegation tokens ended with an
/// earlier password.
async fn change_locally(data_dir: &Path, request: ControlRequest) -> anyhow::Result<Option<u32>> {
    match broker::request_users(data_dir, request).await? {
        ControlResponse::UserChanged { ended_tokens } => {
            Ok(ended_tokens.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
        }
        _ => bail!("the server answers another question"),
    }
}

async fn add_locally(
    args: &AddUserArgs,
    password: &Secret,
    data_dir: &Path,
) -> anyhow::Result<Option<u32>> {
    let credentials = ScramMechanism::ALL.iter().map(|mechanism| {
        let salt = random_bytes::<24>().to_vec();
        let password = password.expose();
        (*mechanism, ScramCredential::from_password(*mechanism, password, salt, args.iterations))
    });
    let credentials = credentials.collect();
    let request = ControlRequest::SetUser { name: args.name.clone(), credentials };
    change_locally(data_dir, request).await
}

async fn remove(args: &RemoveUserArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let ended_tokens = match &args.directory.data_dir {
        Some(data_dir) => {
            let request = ControlRequest::RemoveUser { name: args.name.clone() };
            change_locally(data_dir, request).await?
        }
        None => server.connect().await?.remove_user(&args.name).await?,
    };
    eprintln!("removed {}", args.name);
    report_ended_password(&args.name, ended_tokens);
    Ok(())
}
