//! `freezeframe plugins`: modules that find the user times of records.

use std::path::PathBuf;

use anyhow::{Context, bail};
use client::plugins::{MODULE_BYTES_MAX, TestRecord};
use client::{Client, ClientError};
use hlc::SysTime;

use super::ServerAddress;
use super::topics::stamp_date;
use crate::moments::date;
use crate::output;

/// The longest record that fits into a request, which writes each byte as two digits.
const RECORD_BYTES_MAX: u64 = 500 << 10;

/// Current times, if they are in seconds. In milliseconds they would be from 1970 to 1973.
const LIKE_SECONDS: std::ops::Range<i64> = 1_000_000_000..100_000_000_000;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A topic says with freezeframe.user.time where the user time of its records is.
What no built-in kind can read, a plug-in can: a WebAssembly module.

Examples:
  freezeframe plugins
  freezeframe plugins add filetime docs/plugins/filetime.wasm
  freezeframe plugins test filetime --value-file record.bin
  freezeframe topics create events --config freezeframe.user.time=wasm:filetime
  freezeframe plugins remove filetime"
)]
pub(crate) struct PluginsArgs {
    #[command(subcommand)]
    command: Option<PluginsCommand>,
    #[command(flatten)]
    list: ListPluginsArgs,
}

#[derive(Debug, clap::Subcommand)]
enum PluginsCommand {
    /// List the plug-ins (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe plugins list --json")]
    List(ListPluginsArgs),
    /// Add a plug-in, or replace it. Topics that use it continue with the old module.
    #[command(after_help = "\
Examples:
  freezeframe plugins add filetime docs/plugins/filetime.wasm")]
    Add(AddPluginArgs),
    /// Remove plug-ins. Topics that use them are not affected.
    #[command(after_help = "\
Examples:
  freezeframe plugins remove filetime")]
    Remove(RemovePluginArgs),
    /// Show the user time that a plug-in, or any freezeframe.user.time, finds in a record.
    #[command(after_help = "\
Examples:
  freezeframe plugins test filetime --value-file record.bin
  freezeframe plugins test 'json:/time;unit=s' --value '{\"time\":1700000000.5}'
  freezeframe plugins test header:when --header when=2026-11-21T09:00:00Z")]
    Test(TestPluginArgs),
}

#[derive(Debug, clap::Args)]
struct ListPluginsArgs {
    /// Print one JSON object a line for each plug-in.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct AddPluginArgs {
    /// The name of the plug-in.
    name: String,
    /// The module.
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
struct RemovePluginArgs {
    /// The plug-ins.
    #[arg(required = true)]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct TestPluginArgs {
    /// The name of a plug-in, or a value of freezeframe.user.time.
    #[arg(value_name = "NAME|SPEC")]
    spec: String,
    /// The record's value.
    #[arg(long, conflicts_with = "value_file", allow_hyphen_values = true)]
    value: Option<String>,
    /// A file with the record's value.
    #[arg(long, value_name = "FILE")]
    value_file: Option<PathBuf>,
    /// The record's key.
    #[arg(long, allow_hyphen_values = true)]
    key: Option<String>,
    /// The record's timestamp, in milliseconds.
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    timestamp: Option<i64>,
    /// A header. May be given more than once.
    #[arg(long, value_parser = parse_header, value_name = "NAME=VALUE")]
    header: Vec<(String, String)>,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("a header is NAME=VALUE".to_owned()),
    }
}

pub(crate) async fn run(args: PluginsArgs, server: &ServerAddress) -> anyhow::Result<()> {
    match args.command.unwrap_or(PluginsCommand::List(args.list)) {
        PluginsCommand::List(args) => list(&mut server.connect().await?, &args).await,
        PluginsCommand::Add(args) => add(server, &args).await,
        PluginsCommand::Remove(args) => remove(&mut server.connect().await?, &args).await,
        PluginsCommand::Test(args) => test(server, args).await,
    }
}

async fn list(client: &mut Client, args: &ListPluginsArgs) -> anyhow::Result<()> {
    let plugins = client.plugins().await?;
    let items = plugins.iter().map(|plugin| {
        let cells = [plugin.name.clone(), plugin.bytes.to_string(), stamp_date(plugin.written)];
        (plugin, cells)
    });
    let hint = "there are no plug-ins; add one: freezeframe plugins add NAME MODULE.wasm";
    output::print_list_or(args.json, &["plug-in", "bytes", "written"], items, hint)
}

async fn add(server: &ServerAddress, args: &AddPluginArgs) -> anyhow::Result<()> {
    let module = read(&args.file, "a plug-in: strip it", MODULE_BYTES_MAX)?;
    let mut client = server.connect().await?;
    client.add_plugin(&args.name, &module).await?;
    eprintln!("added {}; a topic uses it with freezeframe.user.time=wasm:{}", args.name, args.name);
    Ok(())
}

fn read(file: &std::path::Path, kind: &str, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let reading = || format!("read {}", file.display());
    let bytes = std::fs::metadata(file).with_context(reading)?.len();
    if bytes > bytes_max {
        bail!(
            "{} is too long for {kind}: it has {bytes} bytes, and may have {bytes_max}",
            file.display()
        );
    }
    std::fs::read(file).with_context(reading)
}

async fn remove(client: &mut Client, args: &RemovePluginArgs) -> anyhow::Result<()> {
    for name in &args.names {
        client.remove_plugin(name).await?;
        eprintln!("removed {name}");
    }
    Ok(())
}

async fn test(server: &ServerAddress, args: TestPluginArgs) -> anyhow::Result<()> {
    let value = match &args.value_file {
        Some(file) => Some(read(file, "a question", RECORD_BYTES_MAX)?),
        None => args.value.map(String::into_bytes),
    };
    let record = TestRecord {
        key: args.key.map(String::into_bytes),
        value,
        timestamp: args.timestamp,
        headers: args.header.into_iter().map(|(name, value)| (name, value.into_bytes())).collect(),
    };
    let mut client = server.connect().await?;
    let spec = spec_of(&args.spec);
    let ms = match client.test_user_time(&spec, &record).await {
        Err(ClientError::History(refusal)) => bail!("{spec}: {refusal}"),
        answer => answer?,
    };
    let time = u64::try_from(ms).map_or_else(|_| "before 1970".to_owned(), |ms| date(SysTime(ms)));
    println!("{ms}\t{time}");
    if LIKE_SECONDS.contains(&ms) && !spec.contains("unit=") {
        eprintln!("that number looks like seconds: a topic takes them with {spec};unit=s");
    }
    Ok(())
}

/// The specification: a plug-in's name stands for that plug-in. Kinds without parameters have names
/// too.
fn spec_of(text: &str) -> String {
    let is_spec = text.contains([':', ';']) || matches!(text, "timestamp" | "pmu");
    if is_spec { text.to_owned() } else { format!("wasm:{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_a_plug_in_s() {
        assert_eq!(spec_of("filetime"), "wasm:filetime");
        for spec in ["csv:2", "pmu;time-base=60", "timestamp", "wasm:p"] {
            assert_eq!(spec_of(spec), spec);
        }
    }
}
