//! The commands: one module each, with its arguments and its `run`.

use anyhow::Context;
use client::{Client, Options};

use crate::args::{Cli, Command};

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
        Command::Topics(args) => as_client(topics::run(args, &server)),
        Command::Produce(args) => as_client(produce::run(args, &server)),
        Command::Consume(args) => as_client(consume::run(args, &server)),
        Command::Ls(args) => as_client(ls::run(args, &server)),
        Command::Cat(args) => as_client(cat::run(args, &server)),
        Command::Stat(args) => as_client(stat::run(args, &server)),
        Command::Cut(args) => as_client(cut::run(args, &server)),
        Command::Diff(args) => as_client(diff::run(args, &server)),
        Command::Pins(args) => as_client(pins::run(args, &server)),
        Command::Plugins(args) => as_client(plugins::run(args, &server)),
        Command::Groups(args) => as_client(groups::run(args, &server)),
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
