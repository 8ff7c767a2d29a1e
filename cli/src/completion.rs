//! Shell completion of names: topics, groups and paths of the server that the rest of the command
//! line selects.
//!
//! If the server does not answer soon, there are no candidates, and no error is printed: a person
//! is typing.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::env::CompleteEnv;
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use client::tree::TreeNodeKind;
use client::{Client, ClientError, Options};

use crate::args::{DEFAULT_BOOTSTRAP, command};
use crate::help::HelpDetail;
use crate::profile::{self, PROFILE_VARIABLE, Profile};
use crate::tls_args::open_tls;
use crate::tree_path::name_of;

/// The variable by which a shell's script requests candidates.
pub(crate) const VARIABLE: &str = "FREEZEFRAME_COMPLETE";
/// The longest wait for candidates. If no server listens, the error is immediate.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most candidates that are useful.
const NAMES_MAX: usize = 1000;

/// If the caller is a completion script, answers it and ends the process.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(|| command(HelpDetail::Brief, &Profile::new()))
        .var(VARIABLE)
        .complete();
}

/// Completes topic names.
pub(crate) fn topics() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| offer(typed, NameKind::Topics))
}

/// Completes group names.
pub(crate) fn groups() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| offer(typed, NameKind::Groups))
}

/// Completes topic names, and paths in the tree of files.
pub(crate) fn paths() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| match typed.to_str() {
        Some(text) if text.starts_with('/') => offer(typed, NameKind::Paths),
        _ => offer(typed, NameKind::Topics),
    })
}

#[derive(Clone, Copy)]
enum NameKind {
    Topics,
    Groups,
    Paths,
}

fn offer(typed: &OsStr, kind: NameKind) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let on_line = |option: &str, variable: &str| {
        option_of(option, std::env::args_os()).or_else(|| std::env::var(variable).ok())
    };
    let profile = profile::selected(on_line("--profile", PROFILE_VARIABLE).as_deref());
    let profile = profile.ok().flatten().unwrap_or_default();
    let option_value = |option: &str, variable| {
        let of_profile = || profile.get(option.trim_start_matches('-')).cloned();
        on_line(option, variable).or_else(of_profile)
    };
    let bootstrap = option_value("--bootstrap", "FREEZEFRAME_BOOTSTRAP");
    let bootstrap = bootstrap.unwrap_or_else(|| DEFAULT_BOOTSTRAP.to_owned());
    let file = |option, variable| option_value(option, variable).map(PathBuf::from);
    let tls = open_tls(
        file("--tls-trust", "FREEZEFRAME_TLS_TRUST").as_deref(),
        file("--tls-key", "FREEZEFRAME_TLS_KEY").as_deref(),
        file("--tls-password-file", "FREEZEFRAME_TLS_PASSWORD_FILE").as_deref(),
    );
    let Ok(tls) = tls else { return Vec::new() };
    let options = Options { tls, ..Options::default() };
    let names = names(&bootstrap, options, typed, kind);
    let names = runtime.block_on(async { tokio::time::timeout(PATIENCE, names).await });
    let mut names = names.ok().and_then(Result::ok).unwrap_or_default();
    names.retain(|name| name.starts_with(typed));
    names.sort_unstable();
    names.truncate(NAMES_MAX);
    names.into_iter().map(CompletionCandidate::new).collect()
}

async fn names(
    bootstrap: &str,
    options: Options,
    typed: &str,
    kind: NameKind,
) -> Result<Vec<String>, ClientError> {
    let mut client = Client::connect(bootstrap, options).await?;
    match kind {
        NameKind::Topics => {
            let topics = client.topics().await?.into_iter();
            Ok(topics.filter(|topic| !topic.is_internal).map(|topic| topic.name).collect())
        }
        NameKind::Groups => {
            Ok(client.groups().await?.into_iter().map(|group| group.group).collect())
        }
        NameKind::Paths => paths_below(&mut client, typed).await,
    }
}

/// The paths in the directory of the typed path.
async fn paths_below(client: &mut Client, typed: &str) -> Result<Vec<String>, ClientError> {
    let directory = typed.rsplit_once('/').map_or("", |(directory, _)| directory);
    let path_or_root = if directory.is_empty() { "/" } else { directory };
    let entries = client.tree_list(path_or_root, 0, false).await?;
    let path = |name: &str, kind| {
        let end = if kind == TreeNodeKind::Directory { "/" } else { "" };
        format!("{directory}/{name}{end}")
    };
    Ok(entries.iter().map(|entry| path(&name_of(&entry.name), entry.kind)).collect())
}

/// The last value that a command line gives an option.
fn option_of(option: &str, words: impl Iterator<Item = OsString>) -> Option<String> {
    let mut value = None;
    let mut words = words.filter_map(|word| word.into_string().ok());
    while let Some(word) = words.next() {
        if word == option {
            value = words.next();
        } else if let Some(server) =
            word.strip_prefix(option).and_then(|rest| rest.strip_prefix('='))
        {
            value = Some(server.to_owned());
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_the_one_that_the_line_names_last() {
        let bootstrap_in =
            |line: &str| option_of("--bootstrap", line.split(' ').map(OsString::from));
        assert_eq!(bootstrap_in("freezeframe cat a"), None);
        assert_eq!(bootstrap_in("freezeframe --bootstrap h:1 cat a").as_deref(), Some("h:1"));
        assert_eq!(
            bootstrap_in("freezeframe --bootstrap=h:1 cat a --bootstrap h:2").as_deref(),
            Some("h:2")
        );
        assert_eq!(bootstrap_in("freezeframe cat a --bootstrap"), None);
    }
}
