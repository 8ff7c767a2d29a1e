//! `freezeframe profile`: names for servers, and for how to connect to them.

use anyhow::ensure;
use serde::Serialize;

use crate::output::{UsageError, note, print_list_or};
use crate::profile::{OPTIONS, Profile, Profiles, ZOOKEEPER, option_name, profiles_path};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A profile has addresses and the options of TLS and logins, but no password: it
names the file that has it. An option or a variable on the command line goes
before it. All profiles are in ~/.config/freezeframe/profiles.toml.

Examples:
  freezeframe profile
  freezeframe profile set laptop --bootstrap 127.0.0.1:9092 \\
      --zookeeper 127.0.0.1:2181
  freezeframe profile set production --bootstrap kafka.example:9093 \\
      --tls-trust ca.pem --sasl-user alice --sasl-password-file alice.password
  freezeframe --profile production topics
  freezeframe profile use production
  freezeframe profile remove laptop"
)]
pub(crate) struct ProfileArgs {
    #[command(subcommand)]
    command: Option<ProfileCommand>,
    #[command(flatten)]
    list: ListProfilesArgs,
}

#[derive(Debug, clap::Subcommand)]
enum ProfileCommand {
    /// List the profiles (also without a subcommand).
    #[command(after_help = "\
Examples:
  freezeframe profile list
  freezeframe profile list --json")]
    List(ListProfilesArgs),
    /// Keep the options of this command line as a profile.
    #[command(after_help = "\
The options are --bootstrap, --zookeeper, and those of TLS and logins: see
`freezeframe help connection`.

Examples:
  freezeframe profile set laptop --bootstrap 127.0.0.1:9092 \\
      --zookeeper 127.0.0.1:2181")]
    Set(SetProfileArgs),
    /// Use a profile where none is named; without a name, none.
    #[command(after_help = "\
Examples:
  freezeframe profile use production
  freezeframe profile use")]
    Use(UseProfileArgs),
    /// Remove a profile.
    #[command(after_help = "\
Examples:
  freezeframe profile remove laptop")]
    Remove(ProfileNameArgs),
}

#[derive(Debug, clap::Args)]
struct ListProfilesArgs {
    /// Print one JSON object a line for each profile.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ProfileNameArgs {
    /// The name of the profile.
    #[arg(value_parser = parse_name)]
    name: String,
}

#[derive(Debug, clap::Args)]
struct SetProfileArgs {
    /// The name of the profile.
    #[arg(value_parser = parse_name)]
    name: String,
    /// The address of the ZooKeeper port, for `zk`.
    #[arg(long, value_name = "HOST:PORT")]
    zookeeper: Option<String>,
}

#[derive(Debug, clap::Args)]
struct UseProfileArgs {
    /// The name of the profile.
    #[arg(value_parser = parse_name)]
    name: Option<String>,
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_of_name) {
        return Err("a name has letters, digits, and . _ - in it".to_owned());
    }
    Ok(text.to_owned())
}

/// Runs `profile`, with the options of connections that the command line has.
pub(crate) fn run(args: ProfileArgs, options: &Profile) -> anyhow::Result<()> {
    let path = profiles_path()?;
    let mut profiles = Profiles::read(&path)?;
    match args.command.unwrap_or(ProfileCommand::List(args.list)) {
        ProfileCommand::List(args) => return list(&profiles, args.json),
        ProfileCommand::Set(SetProfileArgs { name, zookeeper }) => {
            let mut profile = with_absolute_paths(options)?;
            profile.extend(zookeeper.map(|address| (ZOOKEEPER.to_owned(), address)));
            if profile.is_empty() {
                let message = "give the options that the profile should have, such as --bootstrap";
                return Err(UsageError(message.to_owned()).into());
            }
            profiles.profiles.insert(name.clone(), profile);
            note(&format!(
                "use it with --profile {name}, or always: freezeframe profile use {name}"
            ));
        }
        ProfileCommand::Use(UseProfileArgs { name }) => {
            if let Some(name) = &name {
                profiles.named(name)?;
            }
            note(&match &name {
                Some(name) => format!("{name} is used where no other profile is named"),
                None => "no profile is used where none is named".to_owned(),
            });
            profiles.default = name;
        }
        ProfileCommand::Remove(ProfileNameArgs { name }) => {
            profiles.named(&name)?;
            let is_default = profiles.default.as_ref() == Some(&name);
            ensure!(!is_default, "{name} is in use; say `freezeframe profile use` first");
            profiles.profiles.remove(&name);
        }
    }
    profiles.write(&path)
}

/// The options, with paths that mean the same from everywhere.
fn with_absolute_paths(options: &Profile) -> anyhow::Result<Profile> {
    let mut profile = options.clone();
    for (id, _) in OPTIONS.iter().filter(|(_, is_path)| *is_path) {
        if let Some(value) = profile.get_mut(&option_name(id)) {
            *value = std::path::absolute(&value)?.display().to_string();
        }
    }
    Ok(profile)
}

#[derive(Serialize)]
struct ProfileItem<'a> {
    profile: &'a str,
    is_default: bool,
    #[serde(flatten)]
    options: &'a Profile,
}

fn list(profiles: &Profiles, json: bool) -> anyhow::Result<()> {
    let items = profiles.profiles.iter().map(|(name, options)| {
        let is_default = profiles.default.as_ref() == Some(name);
        let value_of = |option: &str| options.get(option).cloned().unwrap_or_default();
        let mark = if is_default { "in use" } else { "" };
        let cells = [
            name.clone(),
            mark.to_owned(),
            value_of("bootstrap"),
            value_of(ZOOKEEPER),
            value_of("sasl-user"),
        ];
        (ProfileItem { profile: name, is_default, options }, cells)
    });
    let hint = "there is no profile; make one: freezeframe profile set NAME --bootstrap HOST:PORT";
    print_list_or(json, &["profile", "", "server", "zookeeper", "user"], items, hint)
}
