//! The user times of stored records, by the rule that was in force when they were appended; and
//! the plug-ins that extract them.

use hlc::{Cut, UserTime};
use storage::{EntryPayload, Offset};
use user_time::{Plugin, UserTimeExtractor, UserTimeSpec, check_plugin_name};

use crate::blocking::{block_in_place, read};
use crate::config::{ConfigError, TopicConfig, USER_TIME};
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic};
use crate::user_time::{NO_TIMES, UserTimeRule, is_plugin};

/// The user times of stored records.
#[derive(Clone, Copy, Debug)]
pub struct UserTimes<'a> {
    core: &'a EngineCore,
}

impl EngineCore {
    /// The user times of stored records.
    pub fn user_times(&self) -> UserTimes<'_> {
        UserTimes { core: self }
    }
}

impl UserTimes<'_> {
    /// The extractor of user times under `rule`.
    ///
    /// # Errors
    /// The plug-in that it names cannot be read.
    pub fn extractor(self, rule: &UserTimeRule) -> Result<&UserTimeExtractor, EngineError> {
        if let Some(extractor) = rule.extractor.get() {
            return Ok(extractor);
        }
        let at = Cut::below(rule.since);
        let result = block_in_place(|| {
            UserTimeExtractor::new(rule.spec.clone(), |name| {
                self.core.wings().plugins.read(name, at)
            })
        });
        let extractor = result.map_err(|error| EngineError::UserTime(error.to_string().into()))?;
        Ok(rule.extractor.get_or_init(|| extractor))
    }

    /// The user times of the records of a stored batch, by rising offset. The rule that was in
    /// force at its stamp finds them, so they never change.
    ///
    /// # Errors
    /// The batch cannot be read from the disk, or the plug-in of its rule cannot be read.
    pub fn of_batch(
        self,
        partition: &Partition,
        piece: &EntryPayload,
    ) -> Result<Vec<(Offset, Option<UserTime>)>, EngineError> {
        let batch = read(piece)?;
        let entry = &piece.entry;
        let times = match partition.rules.at(entry.stamp) {
            Some(rule) if !rule.is_timestamp() => {
                let extractor = self.extractor(&rule)?;
                let extract = || self.core.format.user_times(&batch, extractor);
                // A plug-in may take long.
                if is_plugin(&rule.spec) { block_in_place(extract) } else { extract() }
            }
            _ => self.core.format.times(&batch).map(|times| {
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
        self,
        config: &TopicConfig,
        topic: Option<&Topic>,
    ) -> Result<(), EngineError> {
        let spec = |config: &TopicConfig| config.overrides().get(USER_TIME).cloned();
        let text = spec(config);
        let parsed =
            text.as_deref().map(|text| UserTimeSpec::parse(text).expect("settings are checked"));
        let names_plugin = parsed.as_ref().is_some_and(is_plugin);
        let had_plugin = topic.is_some_and(|topic| topic.had_plugin());
        let is_compacted = config.is_compacted(&self.core.topic_defaults());
        if is_compacted && (names_plugin || had_plugin) {
            return Err(compaction_conflict(config).into());
        }
        let is_new = text != topic.and_then(|topic| spec(&topic.config));
        if !names_plugin || !is_new {
            return Ok(());
        }
        let (Some(text), Some(parsed)) = (text, parsed) else { return Ok(()) };
        let result = block_in_place(|| {
            UserTimeExtractor::new(parsed, |name| self.core.wings().plugins.read(name, Cut::ALL))
                .map(drop)
        });
        result.map_err(|error| {
            let (key, expected) = (USER_TIME.to_owned(), error.to_string().into());
            ConfigError::Value { key, value: text, expected }.into()
        })
    }

    /// The current plug-in of that name.
    ///
    /// # Errors
    /// It does not exist, or it cannot be used.
    pub fn load_plugin(self, name: &str) -> Result<Plugin, EngineError> {
        let refused = |why: String| EngineError::UserTime(why.into());
        check_plugin_name(name).map_err(|error| refused(error.to_string()))?;
        block_in_place(|| {
            let bytes = self.core.wings().plugins.read(name, Cut::ALL).map_err(refused)?;
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
