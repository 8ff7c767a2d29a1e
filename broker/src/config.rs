//! The configuration: one typed [`Config`], out of many sources.
//!
//! Defaults, then a file, then the environment, then options, then `--set`: the later wins. Every
//! value takes the same way, as text with an origin, through one of two tables: our own settings by
//! section and name (`storage.tail-bytes`), and the broker's by their Kafka names (`num.partitions`;
//! in a file they stand under `[kafka]`). The variable of a setting is `FREEZEFRAME_` and its name in
//! capitals, with `_` for other signs and without `server`: `FREEZEFRAME_DATA_DIR`,
//! `FREEZEFRAME_STORAGE_TAIL_BYTES`, `FREEZEFRAME_KAFKA_NUM_PARTITIONS`.
//!
//! All problems are found in one go. A name that is none is refused, with the nearest that is one;
//! except in the environment, which is not only ours: there only near misses are refused, and others
//! are warned of. The tables do this instead of serde, which would stop at the first.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use compat_kafka::KafkaOptions;
use engine::{ConfigError, EngineOptions, TopicConfig};

mod kafka;
mod memory;
pub(crate) mod nearest;
mod own;
mod problem;
mod sources;
mod value;

pub use problem::{Origin, Problem, Problems};
pub use sources::Sources;
pub use value::Listen;

use kafka::{Effect, KafkaSetting};
use own::OwnSetting;
use sources::{Given, VARIABLE_PREFIX};
use value::Value;

/// A variable is refused if it is this near to one that is known: it is a slip of the pen.
const VARIABLE_SLIP: usize = 2;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its data lies.
    pub data_dir: PathBuf,
    /// Where it listens for Kafka's clients.
    pub kafka: Listen,
    /// Where it listens for its operators.
    pub http: Listen,
    /// The names by which operators may ask there, besides `localhost` and that of `http`.
    pub http_hosts: Vec<String>,
    /// Where it mounts its tree.
    pub mounts: Vec<PathBuf>,
    /// Where it was asked to listen for ZooKeeper's clients. This version does not serve them.
    pub zookeeper: Listen,
    /// The engine; its catalog's directory follows from `data_dir`.
    pub engine: EngineOptions,
    /// Kafka's face; its cluster's name follows from the data directory.
    pub kafka_face: KafkaOptions,
    /// What was accepted and does not do what somebody may expect.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config::load(&Sources::default()).expect("a default is a value, as a test sees to")
    }
}

/// A setting, in either table; its place there is its rank among those of one source.
#[derive(Clone, Copy)]
enum Setting {
    Own(usize, &'static OwnSetting),
    Kafka(usize, &'static KafkaSetting),
}

/// What a name turns out to be.
enum Known {
    Setting(Setting),
    WithoutMeaning(&'static str),
    Refused(&'static str),
}

impl Config {
    /// Reads all of `sources`.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn load(sources: &Sources) -> Result<Config, Problems> {
        let mut problems = Vec::new();
        let mut given: Vec<(Given, Setting)> = Vec::new();
        let mut load = Load {
            config: bare(),
            kafka_values: BTreeMap::new(),
            origins: HashMap::new(),
            problems: Vec::new(),
        };
        load.defaults();
        for value in sources.given(&mut problems) {
            match find(&value) {
                Ok(Known::Setting(setting)) => given.push((value, setting)),
                Ok(Known::WithoutMeaning(why)) => {
                    let Given { key, origin, .. } = value;
                    load.config.warnings.push(format!("{origin}: {key} has no effect: {why}"));
                }
                Ok(Known::Refused(why)) => {
                    let what = value.origin.tell(&value.key, why);
                    problems.push(Problem { origin: value.origin, what });
                }
                Err(Unknown::Refused(what)) => {
                    problems.push(Problem { origin: value.origin, what });
                }
                Err(Unknown::Warned(what)) => {
                    load.config.warnings.push(format!("{}: {what}", value.origin));
                }
            }
        }
        given.sort_by_key(|(given, setting)| (given.layer, setting.rank()));
        for (given, setting) in &given {
            load.apply(given, *setting);
        }
        load.check_together();
        problems.append(&mut load.problems);
        if problems.is_empty() { Ok(load.finish()) } else { Err(Problems(problems)) }
    }
}

/// A configuration before its defaults are applied.
fn bare() -> Config {
    Config {
        data_dir: PathBuf::new(),
        kafka: Listen::Off,
        http: Listen::Off,
        http_hosts: Vec::new(),
        zookeeper: Listen::Off,
        mounts: Vec::new(),
        engine: EngineOptions::default(),
        kafka_face: KafkaOptions::default(),
        warnings: Vec::new(),
    }
}

struct Load {
    config: Config,
    /// What DescribeConfigs lists.
    kafka_values: BTreeMap<&'static str, String>,
    /// Who gave a setting the value that it has.
    origins: HashMap<&'static str, Origin>,
    problems: Vec<Problem>,
}

impl Load {
    fn defaults(&mut self) {
        for OwnSetting { key, default, apply } in own::SETTINGS {
            let applied = apply(&mut self.config, &mut Value::new(default, false));
            applied.unwrap_or_else(|expected| panic!("the default of {key}: {expected}"));
        }
        for KafkaSetting { name, default, effect } in kafka::SETTINGS {
            let Some(default) = default else { continue };
            if let Effect::Broker(apply) = effect {
                let applied = apply(&mut self.config, &mut Value::new(default, true));
                applied.unwrap_or_else(|expected| panic!("the default of {name}: {expected}"));
            }
            self.kafka_values.insert(name, (*default).to_owned());
        }
    }

    fn apply(&mut self, given: &Given, setting: Setting) {
        let mut value = Value::new(&given.value, matches!(setting, Setting::Kafka(..)));
        let applied = match setting {
            Setting::Own(_, own) => (own.apply)(&mut self.config, &mut value),
            Setting::Kafka(_, kafka) => match kafka.effect {
                Effect::Broker(apply) => apply(&mut self.config, &mut value),
                Effect::Topic(key, scale) => self.topic_default(key, scale, &mut value),
            },
        };
        let name = setting.name();
        match applied {
            Ok(()) => {
                self.origins.insert(name, given.origin.clone());
                if matches!(setting, Setting::Kafka(..)) {
                    self.kafka_values.insert(name, value.text().to_owned());
                }
            }
            Err(expected) => {
                let what = format!("{:?} is no value for it; {expected}", given.value);
                let what = given.origin.tell(name, &what);
                self.problems.push(Problem { origin: given.origin.clone(), what });
            }
        }
    }

    fn topic_default(&mut self, key: &str, scale: i64, value: &mut Value) -> Result<(), String> {
        let text = value.for_topic(key, scale);
        let config = BTreeMap::from([(key.to_owned(), text)]);
        let config = TopicConfig::new(config).map_err(|error| match error {
            ConfigError::Value { expected, .. } => format!("give {expected}"),
            ConfigError::Unknown(key) => unreachable!("topics have a setting {key}"),
        })?;
        self.config.engine.topic_defaults.extend(config.set().clone());
        Ok(())
    }

    /// What is wrong only with two settings together.
    fn check_together(&mut self) {
        let groups = &self.config.kafka_face.groups;
        let (min, max) = (groups.session_timeout_min, groups.session_timeout_max);
        if min > max {
            let names = ["group.min.session.timeout.ms", "group.max.session.timeout.ms"];
            let origin = names.iter().find_map(|name| self.origins.get(name)).cloned();
            let [least, most] = names;
            let what = format!(
                "{least} ({min:?}) is above {most} ({max:?}); raise the latter, or lower the former"
            );
            // One of the two was given: the defaults agree.
            self.problems.extend(origin.map(|origin| Problem { origin, what }));
        }
    }

    fn finish(mut self) -> Config {
        // Two names for one thing, whichever was given.
        for name in ["node.id", "broker.id"] {
            self.kafka_values.insert(name, self.config.kafka_face.node_id.to_string());
        }
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        self.config.kafka_face.broker_configs = self.kafka_values.into_iter().map(named).collect();
        let default =
            |setting: &KafkaSetting| Some((setting.name.to_owned(), setting.default?.to_owned()));
        self.config.kafka_face.broker_defaults =
            kafka::SETTINGS.iter().filter_map(default).collect();
        if self.config.zookeeper != Listen::Off {
            let asked = &self.config.zookeeper;
            let warning =
                format!("zookeeper={asked}: this version does not serve ZooKeeper's clients");
            self.config.warnings.push(warning);
        }
        self.config
    }
}

impl Setting {
    fn all() -> impl Iterator<Item = Setting> {
        let kafka = kafka::SETTINGS.iter().enumerate().map(|(i, row)| Setting::Kafka(i, row));
        own::SETTINGS.iter().enumerate().map(|(i, row)| Setting::Own(i, row)).chain(kafka)
    }

    /// Its name, as `--set` takes it.
    fn name(self) -> &'static str {
        match self {
            Setting::Own(_, own) => own.key,
            Setting::Kafka(_, kafka) => kafka.name,
        }
    }

    fn rank(self) -> usize {
        match self {
            Setting::Own(rank, _) | Setting::Kafka(rank, _) => rank,
        }
    }

    /// The variable that gives it.
    fn variable(self) -> String {
        match self {
            Setting::Own(_, own) => variable(own.key.strip_prefix("server.").unwrap_or(own.key)),
            Setting::Kafka(_, kafka) => kafka_variable(kafka.name),
        }
    }
}

fn variable(name: &str) -> String {
    VARIABLE_PREFIX.to_owned() + &name.to_ascii_uppercase().replace(['.', '-'], "_")
}

fn kafka_variable(name: &str) -> String {
    variable("kafka.") + &variable(name)[VARIABLE_PREFIX.len()..]
}

/// A name that is none, and what to say about it.
enum Unknown {
    Refused(String),
    Warned(String),
}

fn find(given: &Given) -> Result<Known, Unknown> {
    let key = given.key.as_str();
    match &given.origin {
        Origin::Variable(_) => find_variable(key),
        Origin::Flag(_) => own_setting(key).ok_or_else(|| unknown(key, own_names())),
        Origin::Set(_) => own_setting(key)
            .or_else(|| kafka_name(key))
            .ok_or_else(|| unknown(key, own_names().chain(kafka_names()))),
        Origin::File { .. } => find_in_file(key),
    }
}

fn find_in_file(key: &str) -> Result<Known, Unknown> {
    if let Some(name) = key.strip_prefix("kafka.") {
        return kafka_name(name).ok_or_else(|| unknown(name, kafka_names()));
    }
    own_setting(key).ok_or_else(|| match kafka_name(key) {
        Some(_) => Unknown::Refused(format!("{key}: Kafka's settings stand under [kafka]")),
        None => unknown(key, own_names()),
    })
}

fn find_variable(name: &str) -> Result<Known, Unknown> {
    if let Some(setting) = Setting::all().find(|setting| setting.variable() == name) {
        return Ok(Known::Setting(setting));
    }
    let kafka_prefix = variable("kafka.");
    // Capitals do not say where Kafka's name has its dots; the lists are of names with dots only.
    let kafka = name
        .strip_prefix(&kafka_prefix)
        .and_then(|rest| kafka_name(&rest.to_ascii_lowercase().replace('_', ".")));
    if let Some(known) = kafka {
        return Ok(known);
    }
    let variables: Vec<String> = Setting::all().map(Setting::variable).collect();
    let near = nearest::nearest(name, variables.iter().map(String::as_str));
    match near.filter(|near| nearest::distance(name, near) <= VARIABLE_SLIP) {
        Some(near) => Err(Unknown::Refused(format!("it is no setting's; did you mean {near}?"))),
        None => Err(Unknown::Warned("it is no setting's, and has no effect".to_owned())),
    }
}

fn own_setting(key: &str) -> Option<Known> {
    let (rank, row) = own::SETTINGS.iter().enumerate().find(|(_, row)| row.key == key)?;
    Some(Known::Setting(Setting::Own(rank, row)))
}

/// What a Kafka name is.
fn kafka_name(name: &str) -> Option<Known> {
    if let Some((rank, row)) = kafka::SETTINGS.iter().enumerate().find(|(_, row)| row.name == name)
    {
        return Some(Known::Setting(Setting::Kafka(rank, row)));
    }
    kafka::reason(kafka::REFUSED, name)
        .map(Known::Refused)
        .or_else(|| kafka::reason(kafka::WITHOUT_MEANING, name).map(Known::WithoutMeaning))
}

fn own_names() -> impl Iterator<Item = &'static str> + Clone {
    own::SETTINGS.iter().map(|row| row.key)
}

fn kafka_names() -> impl Iterator<Item = &'static str> + Clone {
    kafka::SETTINGS.iter().map(|row| row.name)
}

fn unknown(key: &str, names: impl Iterator<Item = &'static str> + Clone) -> Unknown {
    // A topic's name for what is `log.*` here, or one of ours without its section.
    let whole =
        names.clone().find(|name| name.split_once('.').is_some_and(|(_, rest)| rest == key));
    Unknown::Refused(match whole.or_else(|| nearest::nearest(key, names)) {
        Some(near) => format!("{key} is no setting; did you mean {near}?"),
        None => format!("{key} is no setting"),
    })
}

#[cfg(test)]
mod tests;
