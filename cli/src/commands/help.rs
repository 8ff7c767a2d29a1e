//! `freezeframe help`: the help of a command, or a page about a subject.

use crate::args::Cli;
use crate::output::{StandardOutput, UsageError};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe help topics create
  freezeframe help moments       all ways to name a moment
  freezeframe help connection    servers, TLS, users, and profiles of them
  freezeframe help completions   scripts for shells")]
pub(crate) struct HelpArgs {
    /// A command with its subcommand, or `moments` or `connection`.
    #[arg(value_name = "COMMAND|moments|connection")]
    words: Vec<String>,
}

pub(crate) fn run(args: &HelpArgs) -> anyhow::Result<()> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let page = match words[..] {
        ["moments"] => MOMENTS,
        ["connection"] => CONNECTION,
        _ => {
            let line = [&["freezeframe"], &words[..], &["--help"]].concat();
            match Cli::read(line) {
                Err(error) => error.exit(),
                Ok(_) => {
                    let message =
                        "give a command with its subcommand, as in: freezeframe help topics create";
                    return Err(UsageError(message.to_owned()).into());
                }
            }
        }
    };
    let mut output = StandardOutput::lock();
    output.bytes(page.as_bytes())?;
    Ok(output.flush()?)
}

/// Prints the version.
pub(crate) fn version() -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    output.bytes(concat!("freezeframe ", env!("CARGO_PKG_VERSION"), "\n").as_bytes())?;
    Ok(output.flush()?)
}

pub(crate) const MOMENTS: &str = "\
Moments, wherever a command takes one: after @, and with --at

A moment of system time has what the server had accepted before it. A moment of
user time has the records whose own time is earlier. The bound is exclusive. A
moment of system time gives the same answer as long as it can be read.

Spelled, and the same for everybody:
  s1795252948259                  system time, in milliseconds since 1970
  s2026-11-21T09:00:00Z           the same, as a date
  sh01a1fe6e9ee90000              a stamp, as `cat -f %m` prints them
  u1795252948259                  user time
  u1795252948259@s1795252948259   user time, as known at a system time
  s1795252940000..s1795252948259  a window: what happened between the two

Said, resolved once, and printed as an absolute moment:
  now, start                      start is before all that can still be read
  5m, '5 minutes ago', '2 days ago'
  noon, '10:30', 'yesterday 14:00', monday, 2026-11-21, '2026-11-21 09:00+01:00'
  u:'yesterday 14:00'             the same, in user time

Named:
  pin:audit, or orders@audit      the moment of a pin
  orders/0:17                     when record 17 of orders/0 was accepted
  zxid:0x3b                       after that change of znodes

In other dialects:
  a Kafka client        the topic orders@s1795252948259, or
                        orders.__at.s1795252948259 where @ is not accepted
  a path, in a mount    /.at/s1795252948259/topics/orders, /topics/orders@audit
  a ZooKeeper client    the chroot HOST:2181/.at/s1795252948259
  HTTP                  ?at=s1795252948259, ?at=now, ?at=pin:audit

Examples:
  T=$(freezeframe moment)                      now, for a script
  freezeframe cat 'orders@5 minutes ago'
  freezeframe cat orders --at 'yesterday 14:00..yesterday 15:00'
  freezeframe diff 1h
  freezeframe moment 'yesterday 14:00'         all its spellings
";

pub(crate) const CONNECTION: &str = "\
Which server is meant, and as whom

  --bootstrap HOST:PORT        its address, or several with commas between
                               [FREEZEFRAME_BOOTSTRAP; 127.0.0.1:9092]
  --tls-trust FILE             speak TLS, and trust servers for which these
                               certificates sign: PEM or PKCS#12
                               [FREEZEFRAME_TLS_TRUST]
  --tls-key FILE               our key and certificates [FREEZEFRAME_TLS_KEY]
  --tls-password-file FILE     the password of both files
                               [FREEZEFRAME_TLS_PASSWORD_FILE]
  --sasl-user NAME             log in as this user [FREEZEFRAME_SASL_USER]
  --sasl-password-file FILE    its password [FREEZEFRAME_SASL_PASSWORD_FILE]; or
                               the variable FREEZEFRAME_SASL_PASSWORD has it
  --sasl-mechanism MECHANISM   SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN
                               [FREEZEFRAME_SASL_MECHANISM]
  --profile NAME               all of the above from a profile, and --zookeeper
                               of `zk` [FREEZEFRAME_PROFILE]

An option wins over its variable, and a variable over the profile.

Examples:
  freezeframe profile set production --bootstrap kafka.example:9093 \\
      --tls-trust ca.pem --sasl-user alice --sasl-password-file alice.password
  freezeframe --profile production topics
  freezeframe profile use production           for all commands from now on
  freezeframe doctor                           does it work?
";
