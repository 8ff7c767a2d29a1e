//! The sources of settings, and all values that they give, in the order of precedence.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::problem::{ConfigProblem, SettingOrigin};
use super::zoo_cfg;

pub(super) const VARIABLE_PREFIX: &str = "FREEZEFRAME_";
/// The variable that names the file.
const CONFIG_VARIABLE: &str = "FREEZEFRAME_CONFIG";
/// The variables that are read elsewhere.
const FOREIGN_VARIABLES: &[&str] = &[
    CONFIG_VARIABLE,
    crate::logging::VARIABLE,
    crate::logging::FORMAT_VARIABLE,
    "FREEZEFRAME_BOOTSTRAP",
    "FREEZEFRAME_TLS_TRUST",
    "FREEZEFRAME_TLS_KEY",
    "FREEZEFRAME_TLS_PASSWORD_FILE",
];

/// The sources of settings. Each one wins over those before it.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// A file, in TOML (`--config`, or the variable `FREEZEFRAME_CONFIG`).
    pub file: Option<PathBuf>,
    /// A configuration of Apache ZooKeeper (`--zoo-cfg`).
    pub zoo_cfg: Option<PathBuf>,
    /// The environment. Only variables that begin with `FREEZEFRAME_` count.
    pub variables: Vec<(OsString, OsString)>,
    /// Command line options: the option, the setting, and its value.
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// `--set KEY=VALUE`.
    pub set: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceValue {
    /// The rank of its source. A higher one wins.
    pub(super) layer: u8,
    /// The setting: its section and name, or the name of a variable, whose exact setting is not
    /// resolved yet.
    pub(super) key: String,
    pub(super) value: String,
    pub(super) origin: SettingOrigin,
}

impl ConfigSources {
    /// All values of all sources.
    pub(super) fn values(&self, problems: &mut Vec<ConfigProblem>) -> Vec<SourceValue> {
        let mut values = Vec::new();
        if let Some((path, origin)) = self.config_file() {
            match std::fs::read_to_string(&path) {
                Ok(text) => read_file(&path, &text, &mut values, problems),
                Err(error) => {
                    let what = format!("cannot read {}: {error}", path.display());
                    problems.push(ConfigProblem { origin, what });
                }
            }
        }
        if let Some(path) = &self.zoo_cfg {
            match std::fs::read_to_string(path) {
                Ok(text) => values.extend(zoo_cfg::read(path, &text)),
                Err(error) => {
                    let what = format!("cannot read {}: {error}", path.display());
                    problems.push(ConfigProblem { origin: SettingOrigin::Flag("--zoo-cfg"), what });
                }
            }
        }
        self.read_variables(&mut values, problems);
        values.extend(self.flags.iter().map(|(flag, key, value)| SourceValue {
            layer: 2,
            key: (*key).to_owned(),
            value: value.clone(),
            origin: SettingOrigin::Flag(flag),
        }));
        values.extend(self.set.iter().map(|(key, value)| SourceValue {
            layer: 3,
            key: key.clone(),
            value: value.clone(),
            origin: SettingOrigin::Set(key.clone()),
        }));
        values
    }

    fn config_file(&self) -> Option<(PathBuf, SettingOrigin)> {
        if let Some(path) = &self.file {
            return Some((path.clone(), SettingOrigin::Flag("--config")));
        }
        let (_, path) = self.variables.iter().find(|(name, _)| name == CONFIG_VARIABLE)?;
        Some((path.into(), SettingOrigin::Variable(CONFIG_VARIABLE.to_owned())))
    }

    fn read_variables(&self, values: &mut Vec<SourceValue>, problems: &mut Vec<ConfigProblem>) {
        for (name, value) in &self.variables {
            let Some(name) = name.to_str().filter(|name| is_own_variable(name)) else { continue };
            let origin = SettingOrigin::Variable(name.to_owned());
            match value.to_str() {
                Some(value) => values.push(SourceValue {
                    layer: 1,
                    key: name.to_owned(),
                    value: value.to_owned(),
                    origin,
                }),
                None => {
                    problems.push(ConfigProblem { origin, what: "its value is no text".to_owned() })
                }
            }
        }
    }
}

/// True if the variable is for this configuration. If a service has our name, Kubernetes gives
/// every process variables with our prefix for the addresses of that service.
fn is_own_variable(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(VARIABLE_PREFIX) else { return false };
    let is_kubernetes = rest == "PORT"
        || rest.starts_with("PORT_")
        || rest.ends_with("_PORT")
        || rest.contains("_PORT_")
        || rest.ends_with("SERVICE_HOST");
    !is_kubernetes && !FOREIGN_VARIABLES.contains(&name)
}

fn read_file(
    path: &Path,
    text: &str,
    values: &mut Vec<SourceValue>,
    problems: &mut Vec<ConfigProblem>,
) {
    let at = |span: Option<Range<usize>>| {
        let before = text.get(..span.map_or(0, |span| span.start)).unwrap_or(text);
        SettingOrigin::File { path: path.to_owned(), line: before.matches('\n').count() + 1 }
    };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let mut what = error.message().replace('\n', "; ");
        if what.contains("dotted key") {
            what.push_str(r#"; write names with dots in quotes: "max.connections" = 100"#);
        }
        problems.push(ConfigProblem { origin: at(error.span()), what });
    }
    if !errors.is_empty() {
        return;
    }
    let mut walk = TomlFlattener { at: &at, given: values, problems };
    walk.table("", document.get_ref());
}

/// Flattens a document into names and values.
struct TomlFlattener<'a> {
    at: &'a dyn Fn(Option<Range<usize>>) -> SettingOrigin,
    given: &'a mut Vec<SourceValue>,
    problems: &'a mut Vec<ConfigProblem>,
}

impl TomlFlattener<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let origin = (self.at)(Some(name.span()));
            let dot = if prefix.is_empty() { "" } else { "." };
            let key = format!("{prefix}{dot}{}", name.get_ref());
            if let DeValue::Table(inner) = value.get_ref() {
                self.table(&key, inner);
            } else if let Some(value) = text_of(value.get_ref()) {
                self.given.push(SourceValue { layer: 0, key, value, origin });
            } else {
                let what = format!("{key}: give a text, a number, true or false");
                self.problems.push(ConfigProblem { origin, what });
            }
        }
    }
}

fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        // Kafka writes lists with commas.
        DeValue::Array(values) => values
            .iter()
            .map(|value| value.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
            .map(|values| values.join(",")),
        DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}
