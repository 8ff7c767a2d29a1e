//! The output of commands on terminals of several widths, and in a pipe.

use std::process::Command;

use testkit::process::{OwnServer, freezeframe, run};

/// A server with something in every list.
struct TerminalShell {
    server: OwnServer,
}

impl TerminalShell {
    fn new() -> TerminalShell {
        let arguments = ["--zookeeper", "127.0.0.1:0", "--set", "super.users=User:ANONYMOUS"];
        let authorizer =
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";
        let arguments = [&arguments[..], &["--set", authorizer]].concat();
        let shell = TerminalShell { server: OwnServer::start(&arguments) };
        for (line, input) in [
            ("topics create orders payments-of-the-shop", ""),
            ("topics create prices --partitions 3 --config retention.ms=86400000", ""),
            ("produce orders -K:", "17:placed\n18:placed\n"),
            ("pins set audit --topic orders", ""),
            ("produce orders -K:", "17:paid\n"),
            ("groups seek billing --at now --topic orders", ""),
            ("users add alice", "a password\n"),
            ("quotas set --user alice producer_byte_rate=10MiB", ""),
            ("acls add --allow User:alice --operation read --topic orders", ""),
            ("zk create /app/config size=3 --parents", ""),
            ("zk set /app/config size=4", ""),
        ] {
            let words = shell.words(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let ended = run(&words, input);
            assert_eq!(ended.code, Some(0), "{line}: {}", ended.stderr);
        }
        shell
    }

    fn words(&self, line: &str) -> Vec<String> {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        if words[0] == "zk" {
            let zookeeper = self.server.zookeeper.expect("an address");
            words.extend(["--zookeeper".to_owned(), zookeeper.to_string()]);
        }
        words.extend(["--bootstrap".to_owned(), self.server.bootstrap()]);
        words
    }

    /// The standard output of a command on a terminal of so many columns, without colours.
    fn terminal(&self, columns: u16, line: &str) -> String {
        self.shell(&format!("stty cols {columns}; {} 2>/dev/null", self.command(line)))
    }

    fn command(&self, line: &str) -> String {
        format!("{} {}", freezeframe().display(), self.words(line).join(" "))
    }

    /// The output of a shell whose input and output are a terminal.
    fn shell(&self, command: &str) -> String {
        let ended = Command::new("script")
            .args(["-qec", command, "/dev/null"])
            .env("NO_COLOR", "1")
            .env("TZ", "UTC")
            .output()
            .expect("script of util-linux runs");
        let text = String::from_utf8(ended.stdout).expect("a text").replace('\r', "");
        assert!(ended.status.success(), "{command}: {text}");
        text
    }
}

#[test]
fn every_list_fits_a_terminal_of_80_columns_and_of_40() {
    let shell = TerminalShell::new();
    let mut wide = Vec::new();
    for line in [
        "topics",
        "topics describe prices",
        "topics --at now",
        "ls",
        "ls orders",
        "ls -l /topics/orders",
        "stat /topics/orders/0.log",
        "moment",
        "cut",
        "diff start",
        "pins",
        "groups",
        "groups describe billing",
        "groups describe billing --at now",
        "transactions",
        "users",
        "acls",
        "acls log",
        "quotas",
        "budgets",
        "plugins",
        "doctor",
        "zk log /app --recursive",
        "zk ls / --long",
        "zk stat /app/config",
        "zk diff / start now",
    ] {
        for columns in [80, 40] {
            let text = shell.terminal(columns, line);
            // Words that cannot be broken may be longer than a narrow terminal.
            let is_broken_at_best = |line: &str| line.trim().split("  ").count() <= 2;
            let too_wide = |line: &&str| {
                let is_wide = line.chars().count() > usize::from(columns);
                is_wide && (columns == 80 || !is_broken_at_best(line))
            };
            if text.lines().any(|line| too_wide(&line)) {
                wide.push(format!("{line} on {columns} columns:\n{text}"));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// The same rows on three widths, with what a pipe gets.
#[test]
fn a_list_is_a_table_where_it_fits_and_lines_where_it_does_not() {
    let shell = TerminalShell::new();
    let wide = "\
┌────────────────────────────────────────────┐
│ of           quota                value    │
╞════════════════════════════════════════════╡
│ user alice   producer_byte_rate   10485760 │
└────────────────────────────────────────────┘
";
    let medium = "\
┌───────────────────────────────────────┐
│ of      quota                value    │
╞═══════════════════════════════════════╡
│ user    producer_byte_rate   10485760 │
│ alice                                 │
└───────────────────────────────────────┘
";
    let narrow = "of     user alice\nquota  producer_byte_rate\nvalue  10485760\n";
    for (columns, expected) in [(80, wide), (42, medium), (30, narrow), (20, narrow)] {
        assert_eq!(shell.terminal(columns, "quotas"), expected, "{columns} columns");
    }
    let words = shell.words("quotas");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(run(&words, "").stdout(), "user alice\tproducer_byte_rate\t10485760\n");
}

#[test]
fn an_empty_list_says_at_a_terminal_alone_how_to_make_one() {
    let shell = TerminalShell { server: OwnServer::start(&[]) };
    for line in ["topics", "ls", "pins", "users", "quotas", "plugins", "groups"] {
        let hint = shell.shell(&shell.command(line));
        assert!(hint.lines().count() == 1 && hint.contains("no"), "{line}: {hint}");
        let words = shell.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let piped = run(&words, "");
        assert_eq!((piped.stdout(), piped.stderr.as_str()), ("", ""), "{line}");
    }
    // A list of a moment gives no hint: items may exist at others.
    for line in ["ls --at now", "topics --at now", "users --at now", "quotas --at now"] {
        let shown = shell.shell(&format!("{} 2>&1", shell.command(line)));
        assert!(!shown.contains("freezeframe "), "{line}: {shown}");
    }
}
