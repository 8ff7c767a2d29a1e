//! The top level of the command line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    acls, backup, budgets, cat, check, clock, completions, config, consume, cut, demo, diff,
    doctor, export, groups, help, import, inspect, ls, man, moment, mount, pins, plugins, produce,
    profile as profile_command, quotas, serve, stat, topics, transactions, users, zk,
};
use crate::help::{CONNECTION, HelpDetail, lay_out};
use crate::login_args::{LoginArgs, PASSWORD_VARIABLE};
use crate::output::error_chain;
use crate::profile::{self, PROFILE_VARIABLE, Profile};
use crate::tls_args::TlsArgs;

/// A log that stock Kafka clients use unchanged, and whose past can be read.
#[derive(Debug, Parser)]
#[command(
    name = "freezeframe",
    version,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  freezeframe serve                              a server on 127.0.0.1:9092
  freezeframe topics create orders --partitions 3
  freezeframe cat 'orders@5 minutes ago'         `help moments` has more of them"
)]
pub(crate) struct Cli {
    /// The address of the server: HOST:PORT, or several separated by commas.
    #[arg(
        long,
        global = true,
        env = "FREEZEFRAME_BOOTSTRAP",
        default_value = DEFAULT_BOOTSTRAP,
        value_name = "HOST:PORT",
        help_heading = CONNECTION
    )]
    pub(crate) bootstrap: String,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) login: LoginArgs,

    /// Take what is not given here from this profile (`freezeframe profile`).
    #[arg(long, global = true, env = PROFILE_VARIABLE, value_name = "NAME", help_heading = CONNECTION)]
    profile: Option<String>,

    /// Show times in UTC, as pipes always do.
    #[arg(long, global = true, display_order = 999)]
    pub(crate) utc: bool,

    /// The options of connections that the command line has.
    #[arg(skip)]
    pub(crate) given: Profile,

    /// The TLS options without those of the profile, which are for Kafka's port.
    #[arg(skip)]
    pub(crate) zookeeper_tls: TlsArgs,

    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// The address of a server that was started without options.
pub(crate) const DEFAULT_BOOTSTRAP: &str = "127.0.0.1:9092";

/// Commands that do not connect to a server.
const WITHOUT_SERVER: [&str; 14] = [
    "serve",
    "config",
    "mount",
    "umount",
    "clock",
    "backup",
    "restore",
    "check",
    "inspect",
    "demo",
    "completions",
    "man",
    "help",
    "version",
];

impl Cli {
    /// Parses a command line.
    pub(crate) fn read(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let detail = HelpDetail::of(&words);
        let matches = command(detail, &Profile::new()).try_get_matches_from(&words)?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.given = given_options(&matches);
        cli.zookeeper_tls = cli.tls.clone();
        let name = matches.subcommand_name().unwrap_or_default();
        if name == "profile" || WITHOUT_SERVER.contains(&name) {
            return Ok(cli);
        }
        let profile = profile::selected(cli.profile.as_deref()).map_err(|error| {
            let mut command = command(detail, &Profile::new());
            command.error(ErrorKind::InvalidValue, error_chain(&error))
        })?;
        let Some(mut profile) = profile else { return Ok(cli) };
        let is_given = |id: &str| {
            let source = matches.value_source(id);
            matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        // A password of one user is not sent under the name of another.
        if is_given("sasl_user") || std::env::var_os(PASSWORD_VARIABLE).is_some() {
            profile.remove("sasl-password-file");
        }
        let with_profile = command(detail, &profile).try_get_matches_from(&words)?;
        let with_profile = Cli::from_arg_matches(&with_profile)?;
        let Some(("zk", of_zk)) = matches.subcommand() else { return Ok(with_profile) };
        // The default is another server than that of the profile.
        let has_default = of_zk.value_source(profile::ZOOKEEPER) == Some(ValueSource::DefaultValue);
        if has_default && !profile.contains_key(profile::ZOOKEEPER) {
            let message = "the profile has no ZooKeeper address: give --zookeeper HOST:PORT, here or \
                        with `freezeframe profile set`";
            return Err(
                command(detail, &Profile::new()).error(ErrorKind::MissingRequiredArgument, message)
            );
        }
        // On its command line, the options of TLS are about ZooKeeper's port.
        let (tls, zookeeper_tls) = (TlsArgs::of_profile(&profile), cli.zookeeper_tls);
        Ok(Cli { tls, zookeeper_tls, ..with_profile })
    }
}

/// The options of connections that stand on the command line itself.
fn given_options(matches: &ArgMatches) -> Profile {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let value = |id: &str| Some(matches.get_raw(id)?.next()?.to_string_lossy().into_owned());
    let options = profile::OPTIONS.iter().filter(|(id, _)| is_given(id));
    options.filter_map(|(id, _)| Some((profile::option_name(id), value(id)?))).collect()
}

/// The command line, where options that are not given are those of a profile.
fn with_defaults(mut command: clap::Command, profile: &Profile) -> clap::Command {
    for (id, _) in profile::OPTIONS {
        if let Some(value) = profile.get(&profile::option_name(id)) {
            // clap takes defaults that live as long as the program.
            let value: &'static str = value.clone().leak();
            command = command.mut_arg(id, |arg| arg.default_value(value));
        }
    }
    if let Some(value) = profile.get(profile::ZOOKEEPER) {
        let value: &'static str = value.clone().leak();
        command = command.mut_subcommand("zk", |zk| {
            zk.mut_arg(profile::ZOOKEEPER, |arg| arg.default_value(value))
        });
    }
    command
}

/// The command line as clap sees it, with the options that a profile has. Options of connections
/// are shown only where they have an effect.
pub(crate) fn command(detail: HelpDetail, profile: &Profile) -> clap::Command {
    let command = with_defaults(lay_out(Cli::command(), detail), profile);
    let is_connection = |arg: &&Arg| arg.get_help_heading() == Some(CONNECTION);
    let hidden = |arg: &Arg| arg.clone().hide(true);
    let connection: Vec<Arg> = command.get_arguments().filter(is_connection).map(hidden).collect();
    let is_of_tls = |arg: &&Arg| arg.get_id().as_str().starts_with("tls");
    let without_tls: Vec<Arg> = connection.iter().filter(|arg| !is_of_tls(arg)).cloned().collect();
    // A subcommand that connects to a server already has the options.
    command.mut_subcommands(|command| match command.get_name() {
        "zk" => command.args(&without_tls),
        name if WITHOUT_SERVER.contains(&name) => command.args(&connection),
        _ => command,
    })
}

/// All commands. Each has a module of its name in `commands/`, with its arguments and its `run`.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run the server.
    Serve(serve::ServeArgs),
    /// Show the settings of a server, or print a file with all of them.
    Config(config::ConfigArgs),
    /// List, create, alter, trim, restore and delete topics.
    Topics(topics::TopicsArgs),
    /// Write lines of standard input to a topic.
    Produce(produce::ProduceArgs),
    /// Print records as they arrive, or those of a window of the past.
    Consume(consume::ConsumeArgs),
    /// Write topics to files; `import` copies them from a Kafka.
    Export(export::ExportArgs),
    /// Copy topics and the offsets of groups from a Kafka.
    #[command(hide = true)]
    Import(import::ImportArgs),
    /// List topics, partitions, or a directory in the tree of files.
    Ls(ls::LsArgs),
    /// Print topics, partitions or files, now or as of a moment.
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
    /// Name moments, and keep them readable.
    Pins(pins::PinsArgs),
    /// List the limits that all clients share, and who uses them.
    Budgets(budgets::BudgetsArgs),
    /// Add modules that find the user times of records.
    Plugins(plugins::PluginsArgs),
    /// List and describe groups, and set them to a moment.
    Groups(groups::GroupsArgs),
    /// List transactions, and abort one that is stuck.
    Transactions(transactions::TransactionsArgs),
    /// List users, set their passwords, and remove them.
    Users(users::UsersArgs),
    /// List, add and remove rules, and show who changed them.
    Acls(acls::AclsArgs),
    /// List, set and remove quotas of users, client ids and addresses.
    Quotas(quotas::QuotasArgs),
    /// Read and change znodes, and read their past.
    Zk(zk::ZkArgs),
    /// Mount the tree of topics and files; `umount` removes the mount.
    Mount(mount::MountArgs),
    /// Remove a mount.
    #[command(hide = true)]
    Umount(mount::UmountArgs),
    /// Show the state of the server's clock, or confirm it.
    Clock(clock::ClockCliArgs),
    /// Back up a running server; see also `restore`.
    Backup(backup::BackupArgs),
    /// Make a data directory from a backup, also as of an earlier moment.
    #[command(hide = true)]
    Restore(backup::RestoreArgs),
    /// Say if a data directory is intact; `inspect` prints files.
    Check(check::CheckArgs),
    /// Print the contents of files of a data directory.
    #[command(hide = true)]
    Inspect(inspect::InspectArgs),
    Demo(demo::DemoArgs),
    /// Name servers, and how to connect to them.
    Profile(profile_command::ProfileArgs),
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completions(completions::CompletionsArgs),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Man(man::ManArgs),
    /// Print help on a command, on moments or on connection.
    Help(help::HelpArgs),
    /// Print the version.
    #[command(hide = true, after_help = "Examples:\n  freezeframe version")]
    Version,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_coherent() {
        command(HelpDetail::Full, &Profile::new()).debug_assert();
    }

    #[test]
    fn commands_that_ask_no_server_do_not_offer_to() {
        let asks = |line: &str| {
            let words = std::iter::once("freezeframe").chain(line.split(' ')).chain(["--help"]);
            let help = Cli::read(words).unwrap_err().to_string();
            let offers = |option: &str| help.contains(&format!("{option} <"));
            assert_eq!(offers("--tls-trust"), offers("--bootstrap") || line == "zk");
            offers("--bootstrap")
        };
        // It takes a profile, and shows no option for it.
        assert!(!asks("zk"));
        for line in WITHOUT_SERVER.into_iter().filter(|line| *line != "version") {
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
    fn a_profile_is_what_an_option_is_unless_the_line_has_the_option() {
        let profile = [("bootstrap", "h:1"), ("sasl-user", "alice"), ("tls-trust", "/ca.pem")];
        let profile = profile.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let command = command(HelpDetail::Brief, &Profile::from(profile));
        let read = |line: &str| {
            let matches = command.clone().try_get_matches_from(line.split(' ')).unwrap();
            (given_options(&matches), Cli::from_arg_matches(&matches).unwrap().bootstrap)
        };
        assert_eq!(read("freezeframe topics"), (Profile::new(), "h:1".to_owned()));
        // Its server knows the names of moments.
        assert_eq!(read("freezeframe zk get /a").1, "h:1");
        let (options, bootstrap) = read("freezeframe topics list --bootstrap h:2 --sasl-user bob");
        assert_eq!(bootstrap, "h:2");
        let names: Vec<&str> = options.keys().map(String::as_str).collect();
        assert_eq!((names, options["sasl-user"].as_str()), (vec!["bootstrap", "sasl-user"], "bob"));
    }

    #[test]
    fn shorter_names_mean_the_same() {
        let same = |line: &str, same_line: &str| {
            let read = |line: &str| {
                let words = std::iter::once("freezeframe").chain(line.split(' '));
                format!("{:?}", Cli::read(words).unwrap().command)
            };
            assert_eq!(read(line), read(same_line));
        };
        same("topics ls", "topics list");
        same("topics rm a", "topics delete a");
        same("pins rm a", "pins remove a");
        same("acls history", "acls log");
        same("zk history /a", "zk log /a");
    }

    #[test]
    fn every_command_shows_examples_in_its_help() {
        for command in Cli::command().get_subcommands() {
            for command in std::iter::once(command).chain(command.get_subcommands()) {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{}", command.get_name());
            }
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
            "quotas set --user a",
            "quotas set producer_byte_rate=1",
            "quotas set --user a --ip 1.2.3.4 producer_byte_rate=1",
            "profile set",
            "profile set a/b",
        ] {
            let words = std::iter::once("freezeframe").chain(line.split(' '));
            let error = Cli::read(words).map(|_| ()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
