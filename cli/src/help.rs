//! The layout of the help of all commands: examples first, then arguments and options. `--help`
//! adds how to connect, and what a command does in detail; `-h` leaves both out, and fits a screen.

use std::ffi::OsStr;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// The heading of options that say which server is meant, and as whom.
pub(crate) const CONNECTION: &str = "Connection";

/// The widest line.
const WIDTH: usize = 80;

/// Commands by purpose. Each stands in one group.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Topics, groups, znodes and files",
        &[
            "topics",
            "produce",
            "consume",
            "cat",
            "ls",
            "stat",
            "groups",
            "transactions",
            "zk",
            "mount",
            "export",
        ],
    ),
    ("Time", &["moment", "cut", "diff", "pins"]),
    ("Who may do what, and how much", &["users", "acls", "quotas", "budgets"]),
    (
        "The server and this program",
        &[
            "serve", "config", "doctor", "clock", "backup", "check", "plugins", "demo", "profile",
            "help",
        ],
    ),
];

/// Shorter names that other tools have taught people.
const ALIASES: [(&str, &str); 4] =
    [("list", "ls"), ("delete", "rm"), ("remove", "rm"), ("log", "history")];

/// The amount of help to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpDetail {
    /// `-h`.
    Brief,
    /// `--help`.
    Full,
}

impl HelpDetail {
    /// The amount that a command line asks for.
    pub(crate) fn of(words: &[impl AsRef<OsStr>]) -> HelpDetail {
        let is_full = words.iter().any(|word| word.as_ref() == "--help");
        if is_full { HelpDetail::Full } else { HelpDetail::Brief }
    }
}

/// The command line with its help laid out.
pub(crate) fn lay_out(root: Command, detail: HelpDetail) -> Command {
    let commands = grouped_commands(&root);
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .global(true)
        .action(ArgAction::HelpShort)
        .display_order(1000)
        .help("Print help; --help prints more");
    let version = Arg::new("version").short('V').long("version").action(ArgAction::Version);
    let root = root.disable_version_flag(true).arg(version.hide(true));
    let root = root.disable_help_flag(true).arg(help);
    let root = lay_out_command(root, detail);
    let examples = match detail {
        HelpDetail::Full => root.get_before_help().map(ToString::to_string).unwrap_or_default(),
        HelpDetail::Brief => String::new(),
    };
    root.before_help(commands).after_help(examples).help_template(
        "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{options}{after-help}",
    )
}

fn lay_out_command(command: Command, detail: HelpDetail) -> Command {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let begin = text.find("Examples:").unwrap_or(text.len());
    let (prose, examples) = text.split_at(begin);
    let (prose, examples) = (prose.trim().to_owned(), examples.trim().to_owned());
    let mut command = command
        .disable_help_subcommand(true)
        .max_term_width(WIDTH)
        .before_help(examples)
        .after_help(if detail == HelpDetail::Full { prose } else { String::new() })
        .help_template(
            "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}",
        );
    command = command.mut_args(|arg| {
        let is_connection = arg.get_help_heading() == Some(CONNECTION);
        let arg = if is_connection { arg.hide_env(true) } else { arg };
        if is_connection && detail == HelpDetail::Brief { arg.hide(true) } else { arg }
    });
    command.mut_subcommands(|subcommand| {
        let alias = ALIASES.iter().find(|(name, _)| *name == subcommand.get_name());
        let subcommand = match alias {
            Some((_, alias)) => subcommand.visible_alias(alias),
            None => subcommand,
        };
        lay_out_command(subcommand, detail)
    })
}

/// All commands with what they do, by purpose.
fn grouped_commands(root: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let about = root.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:13} {}", about.trim_end_matches('.'));
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Calls `visit` with the words of each command.
    fn walk(command: &Command, words: &[String], visit: &mut impl FnMut(&Command, &[String])) {
        visit(command, words);
        for subcommand in command.get_subcommands() {
            let words = [words, &[subcommand.get_name().to_owned()]].concat();
            walk(subcommand, &words, visit);
        }
    }

    fn help_of(words: &[String], option: &str) -> String {
        let line = [&["freezeframe".to_owned()], words, &[option.to_owned()]].concat();
        Cli::read(line).unwrap_err().to_string()
    }

    #[test]
    fn each_command_stands_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let root = Cli::command();
        let visible = root.get_subcommands().filter(|command| !command.is_hide_set());
        let mut names: Vec<&str> = visible.map(Command::get_name).collect();
        grouped.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped, names);
    }

    #[test]
    fn brief_help_fits_a_screen_of_40_lines_and_all_help_80_columns() {
        let mut wrong = Vec::new();
        walk(&Cli::command(), &[], &mut |command, words| {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (brief, full) = (help_of(words, "-h"), help_of(words, "--help"));
            let lines = brief.lines().count();
            if lines > 40 || brief.contains("\nConnection:") {
                wrong.push(format!("{words:?} has {lines} lines:\n{brief}"));
            }
            let too_wide = |line: &&str| line.chars().count() > WIDTH;
            wrong.extend(text.lines().chain(full.lines()).filter(too_wide).map(str::to_owned));
        });
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
