//! The commands: one module each, with its arguments and its `run`.

use anyhow::Context;
use client::{Client, Isolation, LinkChoice, Options};

use crate::args::{Cli, CliCommand};
use crate::login_args::LoginArgs;
use crate::moments::{resolve_references, show_utc};
use crate::suggestion::with_suggestion;
use crate::tls_args::TlsArgs;

pub(crate) mod acls;
pub(crate) mod backup;
pub(crate) mod budgets;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod consume;
pub(crate) mod cut;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod groups;
pub(crate) mod help;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod moment;
pub(crate) mod mount;
pub(crate) mod pins;
pub(crate) mod plugins;
pub(crate) mod produce;
pub(crate) mod profile;
pub(crate) mod quotas;
pub(crate) mod serve;
pub(crate) mod stat;
pub(crate) mod topics;
pub(crate) mod transactions;
pub(crate) mod users;
pub(crate) mod zk;

pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    if cli.utc {
        show_utc();
    }
    let server = ServerAddress { bootstrap: cli.bootstrap, tls: cli.tls, login: cli.login };
    match cli.command {
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Config(args) => config::run(args),
        CliCommand::Mount(args) => mount::run(&args),
        CliCommand::Umount(args) => mount::umount(&args),
        CliCommand::Clock(args) => clock::run(&args),
        CliCommand::Backup(args) => backup::run(&args),
        CliCommand::Restore(args) => backup::run_restore(&args),
        CliCommand::Check(args) => check::run(&args),
        CliCommand::Inspect(args) => inspect::run(&args),
        CliCommand::Demo(args) => run_as_client(demo::run(args)),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => man::run(&args),
        CliCommand::Help(args) => help::run(&args),
        CliCommand::Version => help::version(),
        CliCommand::Profile(args) => profile::run(args, &cli.given),
        CliCommand::Zk(args) => run_as_client(async {
            resolve_references(async || server.connect().await).await?;
            zk::run(args, cli.zookeeper_tls).await
        }),
        CliCommand::Topics(args) => run_with_server(&server, topics::run(args, &server)),
        CliCommand::Produce(args) => run_with_server(&server, produce::run(args, &server)),
        CliCommand::Consume(args) => run_with_server(&server, consume::run(args, &server)),
        CliCommand::Export(args) => run_with_server(&server, export::run(args, &server)),
        CliCommand::Import(args) => run_with_server(&server, import::run(args, &server)),
        CliCommand::Ls(args) => run_with_server(&server, ls::run(args, &server)),
        CliCommand::Cat(args) => run_with_server(&server, cat::run(args, &server)),
        CliCommand::Stat(args) => run_with_server(&server, stat::run(args, &server)),
        CliCommand::Moment(args) => run_with_server(&server, moment::run(args, &server)),
        CliCommand::Cut(args) => run_with_server(&server, cut::run(args, &server)),
        CliCommand::Doctor(args) => run_with_server(&server, doctor::run(args, &server)),
        CliCommand::Diff(args) => run_with_server(&server, diff::run(args, &server)),
        CliCommand::Pins(args) => run_with_server(&server, pins::run(args, &server)),
        CliCommand::Budgets(args) => run_with_server(&server, budgets::run(args, &server)),
        CliCommand::Plugins(args) => run_with_server(&server, plugins::run(args, &server)),
        CliCommand::Users(args) => run_with_server(&server, users::run(args, &server)),
        CliCommand::Quotas(args) => run_with_server(&server, quotas::run(args, &server)),
        CliCommand::Acls(args) => run_with_server(&server, acls::run(args, &server)),
        CliCommand::Transactions(args) => {
            run_with_server(&server, transactions::run(args, &server))
        }
        CliCommand::Groups(args) => run_with_server(&server, groups::run(args, &server)),
    }
}

/// Runs a client command with logging and a runtime. The server sets these up itself.
fn run_as_client(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    broker::logging::start("error")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(command)
}

/// [`run_as_client`] for a command that uses a server. The server may know what a mistyped name
/// should be.
fn run_with_server(
    server: &ServerAddress,
    command: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    run_as_client(async {
        let resolved = resolve_references(async || server.connect().await).await;
        let run = match resolved {
            Ok(()) => command.await,
            Err(error) => Err(error),
        };
        match run {
            Ok(()) => Ok(()),
            Err(error) => Err(with_suggestion(server, error).await),
        }
    })
}

/// The link over which records move.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// The transport of records between this machine and the server
    #[arg(long, value_enum, default_value = "auto", value_name = "LINK")]
    link: LinkArg,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LinkArg {
    /// By RDMA where both sides have a device for it, else over TCP.
    Auto,
    /// Over TCP.
    Tcp,
    /// By RDMA; it is an error if that is not possible.
    Rdma,
}

/// The records of transactions to show.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct IsolationArgs {
    /// Read committed records only, or all
    #[arg(long, value_enum, default_value = "committed", value_name = "LEVEL")]
    isolation: IsolationArg,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum IsolationArg {
    /// Records of transactions that are committed, or were before the moment.
    Committed,
    /// All records, also of open and aborted transactions.
    Uncommitted,
}

impl IsolationArgs {
    pub(crate) fn isolation(self) -> Isolation {
        match self.isolation {
            IsolationArg::Committed => Isolation::Committed,
            IsolationArg::Uncommitted => Isolation::Uncommitted,
        }
    }
}

impl LinkArgs {
    /// The options of a client whose records move so.
    pub(crate) fn options(self) -> Options {
        let link = match self.link {
            LinkArg::Auto => LinkChoice::Auto,
            LinkArg::Tcp => LinkChoice::Tcp,
            LinkArg::Rdma => LinkChoice::Rdma,
        };
        Options { link, ..Options::default() }
    }
}

/// The address of the server.
pub(crate) struct ServerAddress {
    bootstrap: String,
    tls: TlsArgs,
    login: LoginArgs,
}

impl ServerAddress {
    /// Connects to the server.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        self.connect_with(Options::default()).await
    }

    /// [`ServerAddress::connect`] with options.
    pub(crate) async fn connect_with(&self, options: Options) -> anyhow::Result<Client> {
        let options = Options { tls: self.tls.open()?, login: self.login.read()?, ..options };
        Ok(Client::connect(&self.bootstrap, options).await?)
    }
}
