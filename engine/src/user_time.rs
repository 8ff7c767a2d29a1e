//! The source of a topic's user time, now and in the past.
//!
//! A change of the setting does not rewrite the past: each batch is read by the rule that was in
//! force at its stamp. To guarantee that it was also accepted by this rule, the writer's thread
//! checks each batch against the rule in force at that position of the journal (`ActiveRules`).
//!
//! A record can have no user time, if the topic accepts such records. It is found by no user time,
//! belongs to no exact set of one, and does not count for the smallest and the largest of its
//! batch.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use hlc::{Cut, Hlc, UserTime};
use parking_lot::{Mutex, RwLock};
use storage::{EntryPayload, LogId, Offset};
use user_time::{
    MODULE_BYTES_MAX, Plugin, UserTimeExtractor, UserTimeKind, UserTimeSpec, check_plugin_name,
};

use crate::blocking::{block_in_place, read};
use crate::config::{ConfigError, TopicConfig};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::files::{FileError, FileSystem};
use crate::namespace::{Partition, Topic};

/// The setting for the source of user time: a [`UserTimeSpec`].
pub const USER_TIME: &str = "freezeframe.user.time";
/// The setting that says whether user time may decrease.
pub const USER_TIME_ORDER: &str = "freezeframe.user.time.order";
/// The setting that says what happens to records without a user time.
pub const USER_TIME_UNREADABLE: &str = "freezeframe.user.time.unreadable";

/// The directory of plug-in modules, among the service's files.
pub const PLUGINS_DIRECTORY: &str = "/plugins";

/// The path of a plug-in's module.
pub fn plugin_path(name: &str) -> String {
    format!("{PLUGINS_DIRECTORY}/{name}.wasm")
}

/// A topic's settings for user time, from one stamp on.
#[derive(Debug)]
pub struct UserTimeRule {
    since: Hlc,
    spec: UserTimeSpec,
    is_strict: bool,
    keeps_unreadable: bool,
    /// Created when it is first needed.
    extractor: OnceLock<UserTimeExtractor>,
}

impl UserTimeRule {
    /// The rule of settings that hold from `since` on; `None` for the defaults.
    pub(crate) fn from_config(config: &TopicConfig, since: Hlc) -> Option<Arc<UserTimeRule>> {
        let set = |key: &str| config.overrides().get(key).map(String::as_str);
        let spec =
            set(USER_TIME).map(|text| UserTimeSpec::parse(text).expect("settings are checked"));
        let spec = spec.unwrap_or_else(|| UserTimeSpec::parse("timestamp").expect("it is a spec"));
        let is_strict = set(USER_TIME_ORDER) == Some("strict");
        let keeps_unreadable = set(USER_TIME_UNREADABLE) == Some("keep");
        let extractor = OnceLock::new();
        let says_nothing = spec.is_timestamp() && !is_strict;
        let rule = UserTimeRule { since, spec, is_strict, keeps_unreadable, extractor };
        (!says_nothing).then(|| Arc::new(rule))
    }

    /// The stamp from which it holds.
    pub fn since(&self) -> Hlc {
        self.since
    }

    /// The source of user time.
    pub fn spec(&self) -> &UserTimeSpec {
        &self.spec
    }

    /// Whether a record's user time must not be below that of the record before it.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Whether records whose user time cannot be read are kept, without one.
    pub fn keeps_unreadable(&self) -> bool {
        self.keeps_unreadable
    }

    /// Whether user time is the record's own timestamp.
    pub fn is_timestamp(&self) -> bool {
        self.spec.is_timestamp()
    }

    fn is_equivalent(&self, other: &UserTimeRule) -> bool {
        (&self.spec, self.is_strict, self.keeps_unreadable)
            == (&other.spec, other.is_strict, other.keeps_unreadable)
    }
}

/// The rule of a new version of a topic: the rule of the version before, if the settings say the
/// same.
pub(crate) fn next_rule(
    before: Option<&Arc<UserTimeRule>>,
    config: &TopicConfig,
    stamp: Hlc,
) -> Option<Arc<UserTimeRule>> {
    let rule = UserTimeRule::from_config(config, stamp)?;
    match before {
        Some(before) if before.is_equivalent(&rule) => Some(Arc::clone(before)),
        _ => Some(rule),
    }
}

/// All rules that a topic has had. Its partitions share them.
#[derive(Debug, Default)]
pub(crate) struct UserTimeRules(RwLock<Vec<(Hlc, Option<Arc<UserTimeRule>>)>>);

impl UserTimeRules {
    /// From `stamp` on, `rule` holds.
    pub(crate) fn push(&self, stamp: Hlc, rule: Option<&Arc<UserTimeRule>>) {
        let mut rules = self.0.write();
        let is_same = match (rules.last().and_then(|(_, last)| last.as_ref()), rule) {
            (None, None) => true,
            (Some(last), Some(rule)) => Arc::ptr_eq(last, rule),
            _ => false,
        };
        if !is_same {
            rules.push((stamp, rule.cloned()));
        }
    }

    /// Whether none of them reads the content of records.
    pub(crate) fn are_all_timestamps(&self) -> bool {
        let looks =
            |rule: &Option<Arc<UserTimeRule>>| rule.as_ref().is_some_and(|r| !r.is_timestamp());
        !self.0.read().iter().any(|(_, rule)| looks(rule))
    }

    /// Whether any of them uses a plug-in.
    pub(crate) fn any_plugin(&self) -> bool {
        self.0.read().iter().any(|(_, rule)| rule.as_ref().is_some_and(|r| is_plugin(&r.spec)))
    }

    /// The rule for a batch with this stamp.
    pub(crate) fn at(&self, stamp: Hlc) -> Option<Arc<UserTimeRule>> {
        let rules = self.0.read();
        let count = rules.partition_point(|(since, _)| *since <= stamp);
        rules[..count].last()?.1.clone()
    }
}

/// What a change of the namespace does to rules. It is known before the change has a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleChange {
    /// The logs get a new rule, from the stamp of the change on.
    FromStamp,
    /// The logs get a rule that already holds.
    Since(Hlc),
    /// The logs get no rule.
    Removed,
}

/// The rules in force at the journal position of the writer's thread.
///
/// Only that thread changes it, so its decisions follow the order of appends.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveRules(Arc<Mutex<ActiveRulesState>>);

#[derive(Debug, Default)]
struct ActiveRulesState {
    /// The stamp from which a log's rule holds. Logs without a rule are absent.
    rules: HashMap<LogId, Hlc>,
    /// The largest user time of logs with strict rules, including staged batches that are not
    /// visible yet.
    user_time_max: HashMap<LogId, UserTime>,
    /// What to restore if the group of appends is rolled back.
    undo: Vec<RuleUndo>,
}

#[derive(Debug)]
enum RuleUndo {
    Rule(LogId, Option<Hlc>),
    UserTimeMax(LogId, Option<UserTime>),
}

impl ActiveRules {
    /// Restores a rule that was in force when the journal was opened.
    pub(crate) fn restore(&self, log: LogId, rule: &UserTimeRule) {
        self.0.lock().rules.insert(log, rule.since);
    }

    /// Applies a change of rules at its position in the journal.
    pub(crate) fn change(&self, logs: &[LogId], change: RuleChange, stamp: Hlc) {
        let ActiveRulesState { rules, user_time_max: peaks, undo } = &mut *self.0.lock();
        for log in logs {
            let before = match change {
                RuleChange::FromStamp => rules.insert(*log, stamp),
                RuleChange::Since(since) => rules.insert(*log, since),
                RuleChange::Removed => rules.remove(log),
            };
            undo.push(RuleUndo::Rule(*log, before));
            // A batch under the new rule finds earlier times in the log itself.
            if let Some(peak) = peaks.remove(log) {
                undo.push(RuleUndo::UserTimeMax(*log, Some(peak)));
            }
        }
    }

    /// Checks that a batch was accepted by the rule in force.
    pub(crate) fn check(&self, log: LogId, rule: Hlc) -> Result<(), EngineError> {
        let in_force = self.0.lock().rules.get(&log).copied().unwrap_or(Hlc::ZERO);
        if rule == in_force { Ok(()) } else { Err(EngineError::UserTimeChanged) }
    }

    /// Stages a batch of a strict topic with these user times, unless they are below the largest so
    /// far. `seen` is the largest that was visible when the batch was queued.
    pub(crate) fn advance_user_time_max(
        &self,
        log: LogId,
        seen: UserTime,
        (least, most): (UserTime, UserTime),
    ) -> Result<(), EngineError> {
        let ActiveRulesState { user_time_max: peaks, undo, .. } = &mut *self.0.lock();
        let known = peaks.get(&log).copied();
        let last = known.map_or(seen, |known| known.max(seen));
        if least < last {
            return Err(EngineError::UserTimeOutOfOrder { least, last });
        }
        undo.push(RuleUndo::UserTimeMax(log, known));
        peaks.insert(log, last.max(most));
        Ok(())
    }

    /// The staged appends are visible.
    pub(crate) fn commit(&self) {
        self.0.lock().undo.clear();
    }

    /// The staged appends are discarded.
    pub(crate) fn rollback(&self) {
        let ActiveRulesState { rules, user_time_max: peaks, undo } = &mut *self.0.lock();
        for undo in undo.drain(..).rev() {
            match undo {
                RuleUndo::Rule(log, Some(since)) => drop(rules.insert(log, since)),
                RuleUndo::Rule(log, None) => drop(rules.remove(&log)),
                RuleUndo::UserTimeMax(log, Some(peak)) => drop(peaks.insert(log, peak)),
                RuleUndo::UserTimeMax(log, None) => drop(peaks.remove(&log)),
            }
        }
    }
}

impl Engine {
    /// The extractor of user times under `rule`.
    ///
    /// # Errors
    /// The plug-in that it names cannot be read.
    pub fn extractor<'a>(
        &self,
        rule: &'a UserTimeRule,
    ) -> Result<&'a UserTimeExtractor, EngineError> {
        if let Some(extractor) = rule.extractor.get() {
            return Ok(extractor);
        }
        let at = Cut::below(rule.since);
        let made = block_in_place(|| {
            UserTimeExtractor::new(rule.spec.clone(), |name| read_module(self.files(), name, at))
        });
        let made = made.map_err(|error| EngineError::UserTime(error.to_string().into()))?;
        Ok(rule.extractor.get_or_init(|| made))
    }

    /// The user times of the records of a stored batch, by rising offset. The rule that was in
    /// force at its stamp finds them, so they never change.
    ///
    /// # Errors
    /// The batch cannot be read from the disk, or the plug-in of its rule cannot be read.
    pub fn user_times(
        &self,
        partition: &Partition,
        piece: &EntryPayload,
    ) -> Result<Vec<(Offset, Option<UserTime>)>, EngineError> {
        let batch = read(piece)?;
        let entry = &piece.entry;
        let times = match partition.rules.at(entry.stamp) {
            Some(rule) if !rule.is_timestamp() => {
                let extractor = self.extractor(&rule)?;
                let extract = || self.format.user_times(&batch, extractor);
                // A plug-in may take long.
                if is_plugin(&rule.spec) { block_in_place(extract) } else { extract() }
            }
            _ => self.format.times(&batch).map(|times| {
                times.into_iter().map(|(offset, time)| (offset, Some(time))).collect()
            }),
        };
        Ok(times.unwrap_or_else(|why| {
            // A producer wrote the batch like that, and no reader will see its records. The largest
            // time that its header claims lets a lookup continue after it, so that one broken batch
            // does not break every later lookup.
            tracing::debug!(why, base = entry.base.0, "a batch cannot be looked into");
            vec![(entry.base, (entry.user_max != NO_TIMES.1).then_some(entry.user_max))]
        }))
    }

    /// Checks that a plug-in named by settings exists and can be used, unless `topic` names it
    /// already; and that a topic with a plug-in is not compacted.
    pub(crate) fn check_plugin(
        &self,
        config: &TopicConfig,
        topic: Option<&Topic>,
    ) -> Result<(), EngineError> {
        let spec = |config: &TopicConfig| config.overrides().get(USER_TIME).cloned();
        let text = spec(config);
        let parsed =
            text.as_deref().map(|text| UserTimeSpec::parse(text).expect("settings are checked"));
        let names_plugin = parsed.as_ref().is_some_and(is_plugin);
        let had_plugin = topic.is_some_and(|topic| topic.had_plugin());
        let is_compacted = config.is_compacted(&self.options.topic_defaults);
        if is_compacted && (names_plugin || had_plugin) {
            return Err(compaction_conflict(config).into());
        }
        let is_new = text != topic.and_then(|topic| spec(&topic.config));
        let (Some(text), Some(parsed)) = (text, parsed.filter(|_| names_plugin && is_new)) else {
            return Ok(());
        };
        let made = block_in_place(|| {
            UserTimeExtractor::new(parsed, |name| read_module(self.files(), name, Cut::ALL))
                .map(drop)
        });
        made.map_err(|error| {
            let (key, expected) = (USER_TIME.to_owned(), error.to_string().into());
            ConfigError::Value { key, value: text, expected }.into()
        })
    }

    /// The current plug-in of that name.
    ///
    /// # Errors
    /// It does not exist, or it cannot be used.
    pub fn load_plugin(&self, name: &str) -> Result<Plugin, EngineError> {
        let refused = |why: String| EngineError::UserTime(why.into());
        check_plugin_name(name).map_err(|error| refused(error.to_string()))?;
        block_in_place(|| {
            let bytes = read_module(self.files(), name, Cut::ALL).map_err(refused)?;
            Plugin::new(name, &bytes).map_err(|error| refused(error.to_string()))
        })
    }
}

/// A plug-in's result for a record may depend on earlier records of the batch. Without them it
/// would give another result for the past.
fn compaction_conflict(config: &TopicConfig) -> ConfigError {
    let (key, why) = ("cleanup.policy", "not compact where a plug-in finds, or found, user times");
    let value = config.overrides().get(key).map_or("compact", String::as_str);
    ConfigError::Value { key: key.to_owned(), value: value.to_owned(), expected: why.into() }
}

/// The smallest and the largest user time of a batch in which no record has any.
pub const NO_TIMES: (UserTime, UserTime) = (UserTime(i64::MAX), UserTime(i64::MIN));

fn is_plugin(spec: &UserTimeSpec) -> bool {
    matches!(spec.kind(), UserTimeKind::Wasm { .. })
}

/// The bytes of a plug-in's module, as of `at`.
fn read_module(files: &FileSystem, name: &str, at: Cut) -> Result<Vec<u8>, String> {
    let path = plugin_path(name);
    let view = files.open_at(path.as_str(), at).map_err(|error| match error {
        FileError::NotFound(_) => format!(
            "there is no plug-in {name}: add it first, with `freezeframe plugins add {name} FILE`"
        ),
        error => format!("the plug-in {name} cannot be read: {error}"),
    })?;
    let length = view.length();
    if length > MODULE_BYTES_MAX as u64 {
        return Err(format!(
            "the plug-in {name} is too long. bytes={length}, most={MODULE_BYTES_MAX}"
        ));
    }
    let bytes = view.read(0, length as usize);
    bytes
        .map(|bytes| bytes.to_vec())
        .map_err(|error| format!("the plug-in {name} cannot be read: {error}"))
}
