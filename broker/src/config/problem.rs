//! What is wrong with a configuration: all of it at once, each with where it came from.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// An option of the command line.
    Flag(&'static str),
    /// A setting of the command line: `--set KEY=VALUE`.
    Set(String),
}

impl SettingOrigin {
    /// What is to be said of the setting `name`, once with its name.
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
            SettingOrigin::File { path, line } => write!(f, "{}:{line}", path.display()),
            SettingOrigin::Variable(name) => write!(f, "variable {name}"),
            SettingOrigin::Flag(name) => f.write_str(name),
            SettingOrigin::Set(key) => write!(f, "--set {key}"),
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Where.
    pub origin: SettingOrigin,
    /// What, and what would be right.
    pub what: String,
}

/// Everything that is wrong.
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
