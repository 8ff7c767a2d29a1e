//! The top level of the command line.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    acls, budgets, cat, check, clock, completions, consume, cut, demo, diff, doctor, groups,
    inspect, ls, moment, mount, pins, plugins, produce, serve, stat, topics, transactions, users,
    zk,
};
use crate::login_args::LoginArgs;
use crate::tls_args::TlsArgs;

/// A log that stock Kafka clients use unchanged, and whose past can be read.
#[derive(Debug, Parser)]
#[command(
    name = "freezeframe",
    version,
    after_help = "\
Examples:
  freezeframe serve --data-dir /var/lib/freezeframe
  freezeframe topics create orders --partitions 3
  echo hello | freezeframe produce orders
  freezeframe cat orders
  freezeframe cat 'orders@5 minutes ago'
  freezeframe cut --at now --json

Moments, wherever --at or @ takes one:
  s1795252948259                     system time: what the server had accepted before it
  s2026-11-21T09:00:00Z              the same, spelled as a date
  u1795252948259                     user time: what says of itself that it happened before it
  u1795252948259@s1795252948259      the same, as known at a system time
  s1795252940000..s1795252948259     a window: what happened between the two
  '5 minutes ago', 5m, 'yesterday 14:00', 'monday', 'noon', '10:30', now
                                     resolved once, and printed as an absolute moment
  pin:audit, orders/0:17, zxid:0x3b, start
                                     a pin, when a record was accepted, after a change of
                                     znodes, and before all that can still be read"
)]
pub(crate) struct Cli {
    /// The address of the server: HOST:PORT, or several separated by commas.
    #[arg(
        long,
        global = true,
        env = "FREEZEFRAME_BOOTSTRAP",
        default_value = "127.0.0.1:9092",
        value_name = "HOST:PORT"
    )]
    pub(crate) bootstrap: String,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) login: LoginArgs,

    /// Show times in UTC. On a terminal they are local otherwise, and in a pipe always in UTC.
    #[arg(long, global = true)]
    pub(crate) utc: bool,

    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// Commands that do not connect to a server.
const WITHOUT_SERVER: [&str; 9] =
    ["serve", "mount", "umount", "clock", "check", "inspect", "demo", "completions", "zk"];

impl Cli {
    /// Parses a command line.
    pub(crate) fn read(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        Cli::from_arg_matches(&command().try_get_matches_from(words)?)
    }
}

/// The command line as clap sees it. `--bootstrap` and the options of TLS are shown only where they have an
/// effect.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let argument = |id: &str| {
        let found = command.get_arguments().find(|argument| argument.get_id() == id);
        found.expect("it is declared above").clone().hide(true)
    };
    let bootstrap = argument("bootstrap");
    let of_tls = TlsArgs::IDS.map(argument);
    let of_login = LoginArgs::IDS.map(argument);
    // A subcommand that connects to a server already has the options.
    command.mut_subcommands(|command| match command.get_name() {
        "zk" => command.arg(&bootstrap).args(&of_login),
        name if WITHOUT_SERVER.contains(&name) => {
            command.arg(&bootstrap).args(&of_tls).args(&of_login)
        }
        _ => command,
    })
}

/// All commands. Each has a module of its name in `commands/`, with its arguments and its `run`.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run the server.
    Serve(serve::ServeArgs),
    /// List, create, delete and describe topics, now or as of a moment.
    Topics(topics::TopicsArgs),
    /// Write the lines of standard input to a topic.
    Produce(produce::ProduceArgs),
    /// Print records of a topic as they arrive, or those between two moments of its past.
    Consume(consume::ConsumeArgs),
    /// List topics, the partitions of a topic, or a directory in the tree of files.
    Ls(ls::LsArgs),
    /// Print the contents of a topic, a partition or a file, now or as of a moment.
    Cat(cat::CatArgs),
    /// Show the attributes of a path in the tree of files.
    Stat(stat::StatArgs),
    /// Say which moment it is, or which one a text means.
    Moment(moment::MomentCliArgs),
    /// Show where every partition ends at one moment.
    Cut(cut::CutArgs),
    /// Say what is well and what is not, and what to do about it.
    Doctor(doctor::DoctorArgs),
    /// Show the differences between two moments.
    Diff(diff::DiffArgs),
    /// List, set and remove pins: moments that retention keeps readable.
    Pins(pins::PinsArgs),
    /// List the limits that all clients share, and who uses them.
    Budgets(budgets::BudgetsArgs),
    /// List, add, remove and test plug-ins: modules that find the user times of records.
    Plugins(plugins::PluginsArgs),
    /// List and describe groups of every kind, now or as of a moment, and reset them to a moment.
    Groups(groups::GroupsArgs),
    /// List transactional ids, show their transactions, and abort one that is stuck.
    Transactions(transactions::TransactionsArgs),
    /// List users, set their passwords, and remove them.
    Users(users::UsersArgs),
    /// List, add and remove rules that say who may do what, now or as of a moment, and show who changed them.
    Acls(acls::AclsArgs),
    /// Read and change znodes, and read their past.
    Zk(zk::ZkArgs),
    /// Mount the tree of topics and files at a directory, or list the mounts.
    Mount(mount::MountArgs),
    /// Remove a mount.
    Umount(mount::UmountArgs),
    /// Show the state of the server's clock, or confirm that the clock is right.
    Clock(clock::ClockCliArgs),
    /// Read a whole data directory, and report whether it is intact.
    Check(check::CheckArgs),
    /// Print the contents of files of a data directory.
    Inspect(inspect::InspectArgs),
    Demo(demo::DemoArgs),
    /// Print a completion script for a shell.
    Completions(completions::CompletionsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_coherent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_that_ask_no_server_do_not_offer_to() {
        let asks = |line: &str| {
            let words = std::iter::once("freezeframe").chain(line.split(' ')).chain(["--help"]);
            let help = Cli::read(words).unwrap_err().to_string();
            assert_eq!(help.contains("--tls-trust"), help.contains("--bootstrap") || line == "zk");
            help.contains("--bootstrap")
        };
        for line in WITHOUT_SERVER {
            assert!(!asks(line), "{line}");
        }
        for line in ["topics", "topics create", "cat", "pins set", "groups seek"] {
            assert!(asks(line), "{line}");
        }
        // The variable may be set for the other commands: here it has no effect.
        let words = ["freezeframe", "--bootstrap", "h:1", "check", "d"];
        assert!(matches!(Cli::read(words).unwrap().command, CliCommand::Check(_)));
        let words = ["freezeframe", "topics", "--bootstrap", "h:1"];
        assert_eq!(Cli::read(words).unwrap().bootstrap, "h:1");
    }

    #[test]
    fn every_command_shows_examples_in_its_help() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }

    #[test]
    fn what_does_not_read_is_a_usage_error() {
        for line in [
            "cat ../etc/passwd",
            "cat a -f %x",
            "cat",
            "cut --at soon",
            "cut --at now --patience 5000",
            "cut --at now --patience 2m",
            "cut --at s5..s6",
            "diff",
            "diff s5 s6..s7",
            "diff soon now",
            "groups seek",
            "groups seek g",
            "groups seek g --at s5..s6",
            "groups restore g --at u5",
            "consume a --at s5 --follow",
            "produce a/b",
            "topics create a --config novalue",
            "topics trim a",
            "topics restore a",
            "topics restore a --at s5 --keys --as b",
            "moment soon",
            "ls a//0",
            "serve --durability maybe",
            "pins set",
            "pins set p --at s5 --for 7",
            "pins set p --at u5 --for 7d",
            "pins set p --at s5 --for 0s",
            "pins remove",
            "plugins add p",
            "plugins remove",
            "plugins test",
            "plugins test p --header novalue",
            "plugins test p --value a --value-file b",
            "serve --set novalue",
            "umount",
            "mount a b",
            "check",
            "check a --public-key b",
            "inspect",
            "zk",
            "zk ls relative",
            "zk get",
            "zk get /a --at u5",
            "zk get /a --auth digest",
            "zk set /a --version x",
            "zk create /a x --acl world:anyone:xyz",
            "zk create /a x --ttl 5",
            "zk diff /a s5",
            "zk restore /a",
            "zk import",
        ] {
            let words = std::iter::once("freezeframe").chain(line.split(' '));
            let error = Cli::try_parse_from(words).map(|_| ()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
