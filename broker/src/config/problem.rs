//! The problems of a configuration: all of them together, each with its origin.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// A line of the configuration file.
    File {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A line of a configuration of Apache ZooKeeper.
    ZooCfg {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A command line option.
    Flag(&'static str),
    /// A command line setting: `--set KEY=VALUE`.
    Set(String),
}

impl SettingOrigin {
    /// A message about the setting `name` that names it exactly once.
    pub(super) fn with_setting_name(&self, name: &str, what: &str) -> String {
        match self {
            SettingOrigin::Set(key) if key == name => what.to_owned(),
            _ => format!("{name}: {what}"),
        }
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::File { path, line } | SettingOrigin::ZooCfg { path, line } => {
                write!(f, "{}:{line}", path.display())
            }
            SettingOrigin::Variable(name) => write!(f, "variable {name}"),
            SettingOrigin::Flag(name) => f.write_str(name),
            SettingOrigin::Set(key) => write!(f, "--set {key}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub origin: SettingOrigin,
    /// The mistake, and what would be right.
    pub what: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblems(pub Vec<ConfigProblem>);

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("the configuration has a problem:")?,
            count => write!(f, "the configuration has {count} problems:")?,
        }
        for ConfigProblem { origin, what } in &self.0 {
            write!(f, "\n  {origin}: {what}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigProblems {}
