//! The commands: one module each, with its arguments and its `run`.

use anyhow::Context;
use client::{Client, Options};

use crate::args::{Cli, Command};
use crate::suggestion::with_suggestion;

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod completions;
pub(crate) mod consume;
pub(crate) mod cut;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod groups;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod mount;
pub(crate) mod pins;
pub(crate) mod plugins;
pub(crate) mod produce;
pub(crate) mod serve;
pub(crate) mod stat;
pub(crate) mod topics;

/// Runs what the command line asks for.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let server = Server { bootstrap: cli.bootstrap };
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => mount::umount(&args),
        Command::Clock(args) => clock::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Demo(args) => as_client(demo::run(args)),
        Command::Completions(args) => completions::run(&args),
        Command::Topics(args) => ask(&server, topics::run(args, &server)),
        Command::Produce(args) => ask(&server, produce::run(args, &server)),
        Command::Consume(args) => ask(&server, consume::run(args, &server)),
        Command::Ls(args) => ask(&server, ls::run(args, &server)),
        Command::Cat(args) => ask(&server, cat::run(args, &server)),
        Command::Stat(args) => ask(&server, stat::run(args, &server)),
        Command::Cut(args) => ask(&server, cut::run(args, &server)),
        Command::Diff(args) => ask(&server, diff::run(args, &server)),
        Command::Pins(args) => ask(&server, pins::run(args, &server)),
        Command::Plugins(args) => ask(&server, plugins::run(args, &server)),
        Command::Groups(args) => ask(&server, groups::run(args, &server)),
    }
}

/// What every client command has around it. A server sets these up in its own way.
fn as_client(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    broker::logging::start("error")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(command)
}

/// [`as_client`], of a server that may know what a misspelt name should be.
fn ask(server: &Server, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    as_client(async {
        match command.await {
            Ok(()) => Ok(()),
            Err(error) => Err(with_suggestion(server, error).await),
        }
    })
}

/// Where the server is.
pub(crate) struct Server {
    bootstrap: String,
}

impl Server {
    /// Connects to it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.bootstrap, Options::default()).await?)
    }
}
