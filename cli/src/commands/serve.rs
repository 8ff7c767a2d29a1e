//! `freezeframe serve`: runs the server.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use broker::{Config, ConfigSources};
use storage::{DataDirectory, DataDirectoryError};

use crate::output::{self, UsageError};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
When clients are served, one line on standard output says where:
  ready kafka=127.0.0.1:9092 zookeeper=off http=off
Everything else is said on standard error. SIGTERM and SIGINT end the server in
order; a second one ends it at once. Its exit code is 0 then, and 1 if it cannot
start or go on.

Each setting is taken from where it is said last: defaults, the file, variables
(FREEZEFRAME_DATA_DIR, FREEZEFRAME_KAFKA_NUM_PARTITIONS), options, --set.
FREEZEFRAME_LOG=debug says more, FREEZEFRAME_LOG_FORMAT=json says it in JSON.
Port 0 is any free one. --mount and --set may be given more than once. HTTP has
/livez, /readyz, /metrics and /v1. Certificates for ZooKeeper:
zookeeper.ssl.keyStore.location, zookeeper.ssl.trustStore.location.

A file:
  [server]
  data-dir = \"/var/lib/freezeframe\"
  kafka = \"0.0.0.0:9092\"
  [storage]
  tail-bytes = \"2GiB\"
  [kafka]
  num.partitions = 3

Examples:
  freezeframe serve
  freezeframe serve --kafka 0.0.0.0:9092 --http 127.0.0.1:8080 --mount /mnt/ff
  freezeframe serve --set advertised.listeners=PLAINTEXT://kafka.example:9092
  freezeframe serve --zookeeper 127.0.0.1:2181 --zoo-cfg /etc/zookeeper/zoo.cfg
  freezeframe serve --config freezeframe.toml --set num.partitions=3 --check")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Check the settings and the data directory's format, then exit
    #[arg(long)]
    check: bool,
    /// Shut down when standard input ends, which means that the process at its other end has ended
    #[arg(long, hide = true)]
    end_with_input: bool,
}

/// The sources of a server's settings.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingArgs {
    /// The data directory [default: ./freezeframe-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// The address for Kafka clients; off disables it [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    kafka: Option<String>,
    /// The address for ZooKeeper clients [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    zookeeper: Option<String>,
    /// The address for ZooKeeper clients over TLS [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    zookeeper_tls: Option<String>,
    /// The address for operators, over HTTP [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Mount the tree of topics and files at an empty directory
    #[arg(long, value_name = "DIR")]
    mount: Vec<String>,
    /// The durability of an acknowledged write [default: fsync]
    #[arg(long, value_enum)]
    durability: Option<DurabilityArg>,
    /// A file with settings, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A zoo.cfg of Apache ZooKeeper, whose settings are used
    #[arg(long, value_name = "FILE")]
    zoo_cfg: Option<PathBuf>,
    /// Any setting: ours (storage.tail-bytes) or Kafka's (num.partitions)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    set: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DurabilityArg {
    /// On stable storage: it survives a crash of the machine.
    Fsync,
    /// In the operating system: it survives a crash of this process.
    Os,
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("a setting is KEY=VALUE, such as num.partitions=3".to_owned()),
    }
}

/// Serves until a signal or an error ends it.
pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    let end_with_input = args.end_with_input;
    let config = args.settings.load()?;
    if args.check {
        config.warnings.iter().for_each(|warning| output::note(warning));
        let given = config.settings.iter().filter(|setting| setting.origin.is_some()).count();
        check_format(&config.data_dir)?;
        output::note(&format!("the settings are valid; {given} given, the others have defaults"));
        return Ok(());
    }
    // It sends the last traces when it is dropped.
    let _traces = broker::logging::start_server()?;
    if end_with_input {
        let thread = std::thread::Builder::new().name("input".to_owned());
        thread.spawn(terminate_when_input_ends).context("watch standard input")?;
    }
    broker::run(config, |running| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{running}")
            .and_then(|()| stdout.flush())
            .context("write to standard output")
    })
}

/// Refuses a data directory that this program could not open. One that is not there yet, or is
/// another user's, is no problem of the settings.
fn check_format(data_dir: &Path) -> anyhow::Result<()> {
    match DataDirectory::read_cluster_id(data_dir) {
        Err(error @ (DataDirectoryError::Version { .. } | DataDirectoryError::Identity { .. })) => {
            Err(error.into())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The kernel closes the pipe however the parent ends, so this also detects a parent that was
/// killed.
fn terminate_when_input_ends() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}

impl SettingArgs {
    /// Loads the configuration from these sources and the environment.
    pub(crate) fn load(self) -> anyhow::Result<Config> {
        let sources = self.into_sources(std::env::vars_os().collect());
        Ok(Config::load(&sources).map_err(|problems| UsageError(problems.to_string()))?)
    }

    fn into_sources(
        self,
        variables: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    ) -> ConfigSources {
        let durability = self.durability.map(|durability| match durability {
            DurabilityArg::Fsync => "fsync".to_owned(),
            DurabilityArg::Os => "os".to_owned(),
        });
        let mounts = Some(self.mount.join(":")).filter(|mounts| !mounts.is_empty());
        let flags = [
            ("--data-dir", "server.data-dir", self.data_dir),
            ("--kafka", "server.kafka", self.kafka),
            ("--zookeeper", "server.zookeeper", self.zookeeper),
            ("--zookeeper-tls", "server.zookeeper-tls", self.zookeeper_tls),
            ("--http", "server.http", self.http),
            ("--durability", "server.durability", durability),
            ("--mount", "server.mount", mounts),
        ];
        let settings = flags.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value?)));
        ConfigSources {
            file: self.config,
            zoo_cfg: self.zoo_cfg,
            variables,
            flags: settings.collect(),
            set: self.set,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ServeCommandLine {
        #[command(flatten)]
        args: SettingArgs,
    }

    fn load(words: &[&str]) -> Config {
        let line = ServeCommandLine::parse_from([&["serve"], words].concat());
        Config::load(&line.args.into_sources(Vec::new())).unwrap()
    }

    #[test]
    fn options_say_what_the_file_and_the_settings_say() {
        let config = load(&["--data-dir", "d", "--kafka", "h:1", "--http", "off"]);
        assert_eq!(config.data_dir, PathBuf::from("d"));
        assert_eq!(
            (config.kafka.to_string(), config.http.to_string()),
            ("h:1".into(), "off".into())
        );
        let config = load(&["--mount", "/a", "--mount", "/b"]);
        assert_eq!(config.mounts, [PathBuf::from("/a"), PathBuf::from("/b")]);
        let config = load(&["--durability", "os", "--set", "num.partitions=3"]);
        assert_eq!(config.engine.core.storage.durability, storage::Durability::Written);
        assert_eq!(config.kafka_server.partitions, 3);
    }

    #[test]
    fn the_defaults_that_help_shows_are_those_in_force() {
        let config = load(&[]);
        assert_eq!(config.data_dir, PathBuf::from("./freezeframe-data"));
        assert_eq!(config.kafka.to_string(), "127.0.0.1:9092");
        assert_eq!(config.engine.core.storage.durability, storage::Durability::Synced);
    }

    #[test]
    fn a_setting_has_a_name_and_may_have_an_empty_or_any_value() {
        assert_eq!(parse_set("a.b=c=d"), Ok(("a.b".to_owned(), "c=d".to_owned())));
        assert_eq!(parse_set("a="), Ok(("a".to_owned(), String::new())));
        assert!(parse_set("a").is_err());
        assert!(parse_set("=b").is_err());
    }
}
