//! `freezeframe config`: the settings that a server would have.

use broker::EffectiveSetting;
use serde_json::json;

use super::serve::SettingArgs;
use crate::output::{self, StandardOutput};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe config show --config freezeframe.toml --changed
  freezeframe config example > freezeframe.toml")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Show each setting, with its value and where that is said
    Show(Box<ShowArgs>),
    /// Print a file with every setting in a comment, with its default
    Example(ExampleArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freezeframe config example > freezeframe.toml
  freezeframe config example --format markdown > SETTINGS.md")]
struct ExampleArgs {
    /// A file in TOML, or a page about the settings
    #[arg(long, value_enum, default_value = "toml")]
    format: ExampleFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ExampleFormat {
    Toml,
    Markdown,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The settings are those that `serve` would have with the same options, in the
same environment. A secret is never shown. A value `auto` follows from the
machine. With --json, `source` is missing for a default.

Examples:
  freezeframe config show --config /etc/freezeframe/freezeframe.toml
  freezeframe config show --config freezeframe.toml --changed
  freezeframe config show --json | jq -r 'select(.source) | .name'")]
struct ShowArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Leave out the settings that have their defaults
    #[arg(long)]
    changed: bool,
    /// Print one JSON object a line for each setting
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: ConfigArgs) -> anyhow::Result<()> {
    match args.command {
        ConfigCommand::Show(args) => show(*args),
        ConfigCommand::Example(args) => {
            let text = match args.format {
                ExampleFormat::Toml => broker::example_config(),
                ExampleFormat::Markdown => broker::settings_page(),
            };
            let mut output = StandardOutput::lock();
            output.bytes(text.as_bytes())?;
            Ok(output.flush()?)
        }
    }
}

fn show(args: ShowArgs) -> anyhow::Result<()> {
    let config = args.settings.load()?;
    config.warnings.iter().for_each(|warning| output::note(warning));
    let shown = config.settings.iter().filter(|setting| !args.changed || setting.origin.is_some());
    let rows = shown.map(|setting| (document(setting), cells(setting)));
    let hint = "every setting has its default";
    output::print_list_or(args.json, &["setting", "value", "source"], rows, hint)
}

fn document(setting: &EffectiveSetting) -> serde_json::Value {
    let mut document = json!({ "name": setting.name, "secret": setting.is_secret });
    if let Some(value) = &setting.value {
        document["value"] = json!(value);
    }
    if let Some(origin) = &setting.origin {
        document["source"] = json!(origin.to_string());
    }
    document
}

fn cells(setting: &EffectiveSetting) -> [String; 3] {
    let value = match (&setting.value, setting.is_secret && setting.origin.is_some()) {
        (Some(value), _) => value.clone(),
        (None, true) => "(secret)".to_owned(),
        (None, false) => String::new(),
    };
    let source = setting.origin.as_ref().map_or("default".to_owned(), ToString::to_string);
    [setting.name.clone(), value, source]
}
